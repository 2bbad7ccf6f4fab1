"""MC Dropout as a guide."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import autoguide, init_to_median

from dpppl.errors import ConfigurationError
from dpppl.types import BySite, Function, Numbers
from dpppl.validation import checked_fields


@checked_fields
class AutoDropout(autoguide.AutoDelta):
    """MC Dropout as a guide: the latents are theta * m / (1 - rate), with masks m of zeros and ones.

    - **model** - the NumPyro model.
    - **rate** - probability that a unit is dropped, in (0, 1).
    - **sites** - latent sites to drop from; None: those with at least two axes (weights of layers).
    - **prefix**, **init_loc_fn** - as for `numpyro.infer.autoguide.AutoDelta`.

    A mask has one entry for each input unit (the second-last axis of a site), or for each entry of a site with one axis. The
    objective is E[log likelihood] + log prior(theta), as in MC Dropout; posterior draws use fresh masks.

    Raises ConfigurationError unless 0 < rate < 1. Reference: Gal, Ghahramani (2016), section 3.

    >>> from numpyro import sample, distributions as dist
    >>> AutoDropout(lambda x: sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2)), rate=0.5).rate
    0.5
    """

    def __init__(
        self, model: Function, *, rate: float, sites: Sequence[str] | None = None, prefix: str = "auto",
        init_loc_fn: Function = init_to_median,
    ):  # fmt: skip
        if not 0.0 < rate < 1.0:
            raise ConfigurationError("AutoDropout: rate is the probability of dropping a unit, in (0, 1).")
        self.rate, self.sites = float(rate), None if sites is None else tuple(sites)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)

    def _setup_prototype(self, *args: object, **kwargs: object) -> None:
        super()._setup_prototype(*args, **kwargs)
        dropped = [name for name, value in self._init_locs.items() if jnp.ndim(value) > 1]
        self.sites = tuple(dropped) if self.sites is None else self.sites
        if not self.sites or not set(self.sites) <= set(self._init_locs):
            raise ConfigurationError(f"AutoDropout: sites must be some of the latent sites {sorted(self._init_locs)}.")
        for name in self.sites:
            support = self.prototype_trace[name]["fn"].support
            if getattr(support, "base_constraint", support) is not dist.constraints.real:
                raise ConfigurationError(f"AutoDropout: site '{name}' is not real-valued and cannot be dropped to 0.")

    def drop(self, values: BySite, rng_key: jax.Array) -> dict[str, Numbers]:
        """`values` by site with fresh masks."""
        assert self.sites is not None
        keep, dropped = 1.0 - self.rate, dict(values)
        for site_key, name in zip(jax.random.split(rng_key, len(self.sites)), self.sites):
            shape = jnp.shape(values[name])
            units = (*shape[:-1], 1) if len(shape) > 1 else shape
            dropped[name] = values[name] * jax.random.bernoulli(site_key, keep, units) / keep
        return dropped

    def sample_posterior(
        self, rng_key: jax.Array, params: BySite, *args: object, sample_shape: tuple[int, ...] = (), **kwargs: object,
    ) -> dict[str, jax.Array]:  # fmt: skip
        values = {name: params[f"{name}_{self.prefix}_loc"] for name in self._init_locs}
        keys = jax.random.split(rng_key, math.prod(sample_shape))
        inverse = {name: biject_to(self.prototype_trace[name]["fn"].support).inv for name in values}
        one = lambda key: self._postprocess_fn({n: inverse[n](v) for n, v in self.drop(values, key).items()})  # noqa: E731
        draws = jax.vmap(one)(keys)
        return {name: leaf.reshape(*sample_shape, *leaf.shape[1:]) for name, leaf in draws.items()}

    def __call__(self, *args: object, **kwargs: object) -> dict[str, jax.Array]:
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        with handlers.block(hide=list(self._init_locs)):
            values = super().__call__(*args, **kwargs)
        key = numpyro.prng_key()
        dropped = values if key is None else self.drop(values, key)
        return {
            name: numpyro.sample(name, dist.Delta(value, event_dim=jnp.ndim(value))) for name, value in dropped.items()
        }
