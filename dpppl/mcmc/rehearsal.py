"""A rehearsal of a chain without rows: on the prior and the noise alone, before any step is charged, in .1 s of a processor.

The frame and the histogram of an automatic norm, on which the length of steps depends, are charged by then.
"""

import jax
import numpy as np
from jax import lax

from dpppl.access.door import NoisySum
from dpppl.errors import ConfigurationError
from dpppl.information_flow.executables import run_once
from dpppl.mcmc.bound import BoundKernel
from dpppl.randomness import chacha
from dpppl.types import BySite, Tree

_MOST_STEPS = 1000
_SMALLEST = 1e-18  # a step whose square float32 does not hold
_FEW_NUMBERS = 10**6


class _WithoutRows(BoundKernel):
    """A bound kernel whose accesses give noise alone."""

    def noisy_sum(self, position: BySite, rows: Tree, public: Tree, **settings: Tree) -> NoisySum:
        leaves, tree = jax.tree.flatten(position)
        keys = jax.random.split(jax.random.fold_in(settings["key"], settings["step"]), len(leaves))
        scale = self.kernel.mechanism.noise_scale * settings["noise_multiplier"]
        noise = [scale * jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves)]
        return NoisySum(jax.tree.unflatten(tree, noise))


def check_prior_stability(bound: BoundKernel, state: Tree, public: Tree, num_steps: int) -> None:
    """Run a chain of at most 1,000 steps on the prior and the noise, without any data.

    Rows add a bounded force to a step, so where the prior's own force makes steps grow without bound, no data can keep
    the chain finite. Raises ConfigurationError then."""
    alone, steps = _WithoutRows(**vars(bound)), min(num_steps, _MOST_STEPS)

    def last(state: Tree, public: Tree) -> Tree:
        step = lambda _, state: alone.step(state, rows=(), public=public)  # noqa: E731
        return lax.fori_loop(0, steps, step, state).z

    rehearsal = state._replace(rng_key=chacha.wrap(np.zeros(8)))
    z = run_once(last, rehearsal, public, quickly=bound.num_latents * steps < _FEW_NUMBERS)
    if not all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(z)):
        step_sizes, _ = bound.kernel.schedule(int(state.i), 1)
        if step_sizes[0] < _SMALLEST:
            raise ConfigurationError(
                f"steps of size {step_sizes[0]:.3g} are too small for float32, so no step was run or charged. Take a smaller "
                "clipping_norm, less noise or a larger step_size."
            )
        raise ConfigurationError(
            f"steps of size {step_sizes[0]:.3g} explode on the prior alone, whatever the data: no step was run or "
            "charged. Take more steps (num_samples) or a larger clipping_norm, which make the matched step smaller, a "
            "smaller step_size, or a wider prior."
        )
