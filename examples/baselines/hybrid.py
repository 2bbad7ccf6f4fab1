"""Hybrid posterior sampling (Wang, Fienberg, Smola 2015): one exact posterior sample, and from there a DP-SGLD chain.

The sample spends one part of epsilon and spares the chain its way to the posterior; the chain spends the rest. *The
guarantee of the sample holds for exact sampling only*, see `posterior_sample`; that of the chain for every step that was taken.
"""

from dataclasses import replace

import numpy as np
import numpyro
import numpyro.distributions as dist

import dpppl
from dpppl import accounting
from examples.baselines.posterior_sample import one_posterior_sample


def hybrid_samples(rng, rng_key, x, y, *, epsilon, delta, radius, num_samples=200, share=0.5):
    """Samples (num_samples, D) of a logistic regression's weights, rows shrunk to norm 1.

    - **rng**: NumPy's generator, for the first sample. **rng_key**: of the chain, from `dpppl.secret_key()`.
    - **x**: (N, D). **y**: (N,) of -1 and 1.
    - **epsilon**, **delta**: of all together; `share` of epsilon goes to the first sample.
    - **radius**: of the ball in which weights are uniform for the first sample; their prior in the chain is N(0, radius^2 / D).

    Returns the samples and what was spent, (epsilon, delta), for replacing one row: pure epsilon-DP and the chain's account,
    added (basic composition)."""
    x = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    start = one_posterior_sample(rng, x, y, epsilon=share * epsilon, radius=radius)
    labels = (y > 0).astype(np.float32)

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, radius / x.shape[1] ** 0.5).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def event(noise_multiplier):
        return accounting.GaussianEvent(
            noise_multipliers=((noise_multiplier, num_samples),), neighboring_relation="replace_one"
        )

    noise = accounting.calibrate_noise_multiplier(event, (1.0 - share) * epsilon, delta)
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=noise)
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=num_samples, progress_bar=False, print_cost=False)
    mcmc.run(rng_key, x.astype(np.float32), labels, init_params={"w": start.astype(np.float32)})
    ran = [replace(event, neighboring_relation="replace_one") for event in mcmc.privacy_report().events]
    spent = share * epsilon + accounting.epsilon(ran, delta)
    return np.asarray(mcmc.get_samples()["w"]), (spent, delta)
