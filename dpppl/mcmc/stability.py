"""A chain that must explode is refused before it costs anything."""

from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np
from jax import lax

from dpppl.access.mechanism import Mechanism, NoisySum
from dpppl.errors import ConfigurationError
from dpppl.information_flow.executables import run_once
from dpppl.mcmc.kernel import DPKernel
from dpppl.randomness import chacha

_MOST_STEPS = 1000
_FEW_NUMBERS = 10**6


@dataclass(frozen=True, kw_only=True)
class _WithoutRows(Mechanism):
    """Noise alone."""

    def noisy_sum(self, log_likelihood: Any, z: Any, rows: Any, public: Any, **options: Any) -> NoisySum:
        leaves, tree = jax.tree.flatten(z)
        keys = jax.random.split(jax.random.fold_in(options["key"], options["step"]), len(leaves))
        scale = self.noise_scale * options["noise_multiplier"]
        noise = [scale * jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves)]
        return NoisySum(jax.tree.unflatten(tree, noise))


def check_prior_stability(kernel: DPKernel, state: Any, public: Any, num_steps: int) -> None:
    """Run a chain of at most 1,000 steps from `state` on the prior and the noise, without any data.

    Rows add a bounded force to a step, so where the prior's own force makes steps grow without bound, no data can keep
    the chain finite. Raises ConfigurationError then."""
    mechanism = kernel.mechanism
    alone = kernel.with_mechanism(_WithoutRows(**{f.name: getattr(mechanism, f.name) for f in fields(mechanism)}))
    rows = kernel.split.placeholder_rows()

    steps = min(num_steps, _MOST_STEPS)

    def last(state: Any, public: Any) -> Any:
        step = lambda _, state: alone.step(state, rows=rows, public=public)  # noqa: E731
        return lax.fori_loop(0, steps, step, state).z

    rehearsal = state._replace(rng_key=chacha.wrap(np.zeros(8)))
    z = run_once(last, rehearsal, public, quickly=kernel.num_latents * steps < _FEW_NUMBERS)
    if not all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(z)):
        step_sizes, _ = kernel.schedule(int(state.i), 1)
        raise ConfigurationError(
            f"steps of size {step_sizes[0]:.3g} explode on the prior alone, whatever the data: no step was run or "
            "charged. Take more steps (num_samples) or a larger clipping_norm, which make the matched step smaller, a "
            "smaller step_size, or a wider prior."
        )
