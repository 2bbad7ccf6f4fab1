"""DP-SGLD: stochastic gradient Langevin dynamics whose Langevin noise is the privacy noise."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpppl.mcmc.kernel import DPKernel


class DPSGLDState(NamedTuple):
    """The state of `DPSGLD`.

    - **i** - steps done.
    - **z** - the position: unconstrained latents by site.
    - **midpoint** - the sample: the mean of this position and the one before.
    - **search** - see `step_search`; None where steps are not searched for.
    - **clipped** - the measured share of clipped rows, see `DPKernel`; None without.
    - **rng_key** - the chain's key; None in states that MCMC returns.
    """

    i: Any
    z: Any
    midpoint: Any
    search: Any
    clipped: Any
    rng_key: Any


def langevin_step(z: Any, noisy_gradient: Any, step_size: Any) -> Any:
    """z + h * G. The Langevin noise is already in G: the door was called with noise multiplier s * rate / (h * C)."""
    return jax.tree.map(lambda position, gradient: position + step_size * gradient, z, noisy_gradient)


class DPSGLD(DPKernel):
    """Differentially private stochastic gradient Langevin dynamics, a NumPyro kernel.

    z <- z + h * (grad log prior + sum of clipped row gradients / rate) + s * xi with
    s = max(sqrt(2 * temperature * h), h * clipping_norm * noise_multiplier / rate).

    The samples are midpoints of successive positions z. Where the posterior is Gaussian they have exactly its variance at
    every step h below 2 / (its largest curvature).

    All arguments are fixed when the kernel is made:

    - **model** - a NumPyro model with one data plate.
    - **clipping_norm** - bound on the norm of one row's gradient, in unconstrained space; or a dict with a bound for each latent
      site; or "auto", the default: 1 % of the cost goes to a histogram of norms at the start, and the norm clips a tenth of the
      rows, or fewer where tails are heavy or the budget allows; where clipping is flat, it is 1.25 times the .99 quantile.
    - **clipping** - "centred" shrinks what a row's gradient has beyond its expectation under the model, so that the posterior is
      unbiased however many rows are clipped; "flat" shrinks the gradient, and works for every model. By default centred where
      the norm is "auto", and flat where you give it.
    - **subsampling** - FullBatch(), the default, Poisson(rate), Partition(num_batches), WithoutReplacement(...).
    - **step_size** - h in the time of the diffusion; a number, a function of the step count from 0 (optax schedules fit), or
      "matched", the largest at which the noise that privacy needs is no more than the temperature's, shortened in the warmup
      where that would be unstable.
    - **noise_multiplier** - noise for privacy in units of clipping_norm, where no target_epsilon gives it.
    - **temperature** - 1 targets the (clipped) posterior.
    - **preconditioner** - a public diagonal, by site, in whose coordinates z / sqrt(diagonal) the chain moves and gradients are
      clipped.
    - **row_curvature** - a public bound on the curvature of one row's log likelihood; with num_data the report then checks that
      steps are stable.
    - **num_data** - the number of rows, if it may be public.
    - **data_plate** - the plate that holds the rows, where two fit.
    - **init_strategy** - "prior_median", "prior_sample", unconstrained values by site, or one of NumPyro's `init_to_value`,
      `init_to_median`, `init_to_uniform` and `init_to_sample`.
    - **gradient_strategy** - "ghost" sums clipped gradients of rows without forming them, where latents are weights of products
      (docs/ghost.md); "vmap" forms those of all rows at once, "microbatch" chunk by chunk; "auto" chooses.
    - **discretise** - whole numbers and discrete Gaussian noise inside the mechanism, against attacks on floating-point noise;
      accounted by RDP, so epsilon is larger (docs/discrete.md).
    - **measure_clipping** - where a norm is given, or clipping is flat, spend 1 % of the cost on the shares of rows that are
      clipped, whose gradient is not finite, and whose gradient is 0.

    Guarantee: each step is one access of the mechanism in `DPKernel.mechanism`; all states may be released.
    Raises ConfigurationError for arguments out of range; UnsupportedModelError when a run binds an unsuitable model.
    Reference: Li, Chen, Liu, Carin (2019), Algorithm 1, with the sign and the noise variance corrected.

    >>> import dpppl, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=50.0, measure_clipping=False).step_size
    0.0008
    """

    def matched_step_size(self, noise_multiplier: Any) -> Any:
        rate, norm = self.mechanism.subsampling.rate, self.mechanism.noise_scale
        return 2.0 * self.temperature * (rate / (norm * noise_multiplier)) ** 2

    def langevin_std(self, step_size: Any) -> Any:
        return jnp.sqrt(2.0 * self.temperature * step_size)

    def longest_step(self, curvature: Any) -> Any:
        return 0.5 / curvature

    def temperature_at(self, step_size: Any, std: Any) -> Any:
        return std**2 / (2.0 * step_size)

    def diffusion_time(self, step_size: Any, std: Any) -> Any:
        return step_size

    def first_state(self, z: Any, rng_key: Any, num_warmup: Any = 0) -> Any:
        return DPSGLDState(jnp.zeros((), jnp.int32), z, z, None, None, rng_key)

    def advance(self, state: Any, noisy_gradient: Any, step_size: Any) -> Any:
        return state._replace(z=langevin_step(state.z, noisy_gradient, step_size))
