"""The one door: the only place where private rows are computed on, and where the noise is added.

The door is a JAX primitive of our own. It lowers to the program it holds, it can be batched (vectorised chains), and
it has no differentiation rule: a derivative through it would be a second access that nobody charges.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

from dpppl import discrete, information_flow, random
from dpppl.accounting.events import NEIGHBORING_RELATIONS, GaussianEvent, round_down
from dpppl.clipping import SLACK, Adaptive, Flat, PerSite
from dpppl.errors import ConfigurationError
from dpppl.gradients import clipped_sum
from dpppl.subsampling import Poisson, Subsampling

door_p = Primitive("dpppl_door")
door_p.multiple_results = True
information_flow.register_door(door_p)


ACCOUNTED = (1.0 - 1e-6) / (1.0 + SLACK)
"""What is accounted of a noise multiplier: less the slack of the sensitivity, and what rounding on the device may take."""


class NoisySum(NamedTuple):
    """What an access returns: the noised sum of clipped gradients, a pytree like the latents; with adaptive clipping
    also the noised count of drawn rows whose gradient is not longer than the norm, each less the quantile."""

    total: Any
    count: Any = None


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The subsampled Gaussian mechanism on clipped per-row gradients.

    `M(z) = sum over drawn rows of clip(grad log_likelihood(z, row)) + clipping_norm * noise_multiplier * xi`, xi
    standard normal. With `discretise`, clipped rows are rounded to a grid of which the noise's standard deviation has
    2^31 steps, their norms lowered by what rounding may add, and xi is a discrete Gaussian: whole numbers all along.

    Guarantee: one call is one access of `event`; the un-noised sum exists nowhere outside. Nothing is scaled by the
    number of rows drawn.
    """

    clipping: Flat | PerSite | Adaptive
    subsampling: Subsampling
    strategy: str = "auto"
    discretise: bool = False

    def __post_init__(self):
        if self.strategy not in ("auto", "vmap", "microbatch"):
            raise ConfigurationError('the strategy must be "auto", "vmap" or "microbatch".')

    def noisy_sum(
        self,
        log_likelihood,
        z,
        rows,
        public,
        *,
        key,
        noise_multiplier,
        step=0,
        clipping_norm=None,
        number: str | None = None,
    ) -> "NoisySum":
        """One access. `z`: pytree of latents; `rows`: private arrays (N, ...); `log_likelihood(z, row, public)`: a
        scalar; `key`: a single key, used once for each `step`; `noise_multiplier`: positive scalar; `step`: number of
        the access under this key; `clipping_norm`: that of this access, where clipping adapts; `number`: name under which
        each row, then a dict, finds its place among those of the step, a public number from which to draw what is its
        own."""
        if isinstance(self.clipping, Adaptive):
            z, log_likelihood = (z, jnp.zeros(())), functools.partial(_of_first, log_likelihood)
        norm = jnp.asarray(self.clipping.clipping_norm if clipping_norm is None else clipping_norm, jnp.float32)
        flat, tree = jax.tree.flatten((z, rows, public, key, jnp.asarray(noise_multiplier), jnp.asarray(step), norm))
        program = functools.partial(self._program, log_likelihood, number)
        closed = jax.make_jaxpr(lambda *leaves: jax.tree.leaves(program(*jax.tree.unflatten(tree, leaves))))(*flat)
        noisy = jax.tree.unflatten(jax.tree.structure(z), door_p.bind(*flat, program=closed))
        return NoisySum(*noisy) if isinstance(self.clipping, Adaptive) else NoisySum(noisy)

    def _program(self, log_likelihood, number, z, rows, public, key, noise_multiplier, step, norm):
        leaves, tree = jax.tree.flatten(z)
        num_rows = jax.tree.leaves(rows)[0].shape[0]
        index, mask = self.subsampling.draw(random.stream(key, "subsampling"), num_rows, step)
        drawn = rows if index is None else jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), rows)
        if number is not None:
            drawn = {**drawn, number: jnp.arange(jax.tree.leaves(drawn)[0].shape[0])}
        adaptive = self.clipping if isinstance(self.clipping, Adaptive) else None
        clip = self.clipping.clip if adaptive is None else functools.partial(adaptive.clip, clipping_norm=norm)
        sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
        with jax.enable_x64(True):
            scales, norms, steps = self._scales(noise_multiplier.astype(jnp.float64), norm.astype(jnp.float64), sizes)
        steps = None if steps is None else jax.tree.unflatten(tree, steps)
        total = clipped_sum(lambda z, row: log_likelihood(z, row, public), z, drawn, mask, clip, self.strategy, steps)
        draw = discrete.discrete_normal if self.discretise else random.standard_normal
        noise = draw(jax.random.fold_in(random.stream(key, "noise"), step), sum(sizes))
        with jax.enable_x64(True):
            pieces = jnp.split(noise, np.cumsum(sizes)[:-1])
            noisy = [
                ((part + scale * piece.reshape(leaf.shape)) * norm).astype(leaf.dtype)
                for part, scale, piece, norm, leaf in zip(jax.tree.leaves(total), scales, pieces, norms, leaves)
            ]
        return jax.tree.unflatten(tree, noisy)

    def _scales(self, noise_multiplier, norm, sizes):
        """For each leaf: the noise's scale, by what to multiply the noised sum, and by what rows before they are
        rounded to whole numbers (None for all if they are not). `norm`: that of this access, if it adapts."""
        scales, norms = [noise_multiplier] * len(sizes), [np.float64(self.clipping.clipping_norm)] * len(sizes)
        if isinstance(self.clipping, Adaptive):  # the count is the last leaf
            share, sensitivity = self.clipping.count_share, self.clipping.count_sensitivity
            norms = [norm] * (len(sizes) - 1) + [np.float64(1.0)]
            scales = [noise_multiplier / np.sqrt(1.0 - share)] * (len(sizes) - 1)
            scales += [noise_multiplier * sensitivity / np.sqrt(share)]
        if not self.discretise:
            return scales, norms, None
        rounding = 0.5 * np.sqrt(sum(sizes)) * noise_multiplier / discrete.STD  # the norm that rounding may add
        steps = [jnp.maximum(0.0, 1.0 - rounding) * discrete.STD / scale for scale in scales]
        return [1] * len(sizes), [norm * scale / discrete.STD for norm, scale in zip(norms, scales)], steps

    def sensitivity(self, neighboring_relation: str) -> float:
        """Largest L2 change of the clipped sum between neighbours, without floating-point slack.

        >>> from dpppl.subsampling import FullBatch
        >>> Mechanism(clipping=Flat(2.0), subsampling=FullBatch()).sensitivity("replace_one")
        4.0
        """
        if neighboring_relation not in NEIGHBORING_RELATIONS:
            raise ConfigurationError(f"neighboring_relation must be one of {', '.join(NEIGHBORING_RELATIONS)}.")
        return self.clipping.clipping_norm * (2.0 if neighboring_relation == "replace_one" else 1.0)

    @property
    def neighboring_relation(self) -> str:
        """The relation that the report states: rows are held in arrays whose length is visible, so N is public."""
        return self.subsampling.neighboring_relation

    def event(self, noise_multipliers, first: int = 0, repeats: int = 1) -> GaussianEvent:
        """What accesses number first, first + 1, ... with these noise multipliers cost, `repeats` times (chains).

        They are lowered by 1e-6, so that rounding on the device cannot make the account too small."""
        values = np.asarray(noise_multipliers, np.float64)
        accounted = np.tile(self.subsampling.accounted(values, first), repeats)
        sampling = discrete.FAILURE_PROBABILITY if self.discretise else 0.0
        num_values = 64 if self.subsampling.event_fields else 4096  # the exact Gaussian formula takes any number
        return GaussianEvent(
            noise_multipliers=round_down(accounted * ACCOUNTED, num_values),
            neighboring_relation=self.neighboring_relation,
            failure_probability=(self.subsampling.failure_probability + sampling) * values.size * repeats,
            discrete=self.discretise,
            **self.subsampling.event_fields,
        )

    def with_overflow_probability(self, probability: float) -> "Mechanism":
        """The same mechanism with another bound on a step's overflow."""
        if not isinstance(self.subsampling, Poisson):
            return self
        return replace(self, subsampling=replace(self.subsampling, overflow_probability=probability))


def prove_rows_stay_inside(function, arguments, rows: int) -> None:
    """Raise PrivacyLeakError unless argument number `rows` of `function` reaches its outputs through the door only.

    The program is traced and not run. Keys may leave in a state's `rng_key`, which the runners drop."""
    leaves, keystr = jax.tree_util.tree_leaves_with_path, jax.tree_util.keystr
    program, outputs = jax.make_jaxpr(function, return_shape=True)(*arguments)
    information_flow.verify_jaxpr(
        program,
        [number for number, (path, _) in enumerate(leaves(arguments)) if path[0].idx == rows],
        output_names=[keystr(path) for path, _ in leaves(outputs)],
        secret_outputs=(".rng_key",),
        public_constants=True,
    )


def _of_first(log_likelihood, z, row, public):
    return log_likelihood(z[0], row, public)


@functools.lru_cache(maxsize=64)
def _compiled(program):
    return jax.jit(lambda *arguments: door_p.bind(*arguments, program=program))


@door_p.def_impl
def _run(*arguments, program):
    return _compiled(program)(*arguments)


@door_p.def_abstract_eval
def _shapes(*arguments, program):
    return program.out_avals


def _lower(context, *arguments, program):
    with jax.enable_x64(True):
        return mlir.lower_fun(lambda *args: jaxpr_as_fun(program)(*args), multiple_results=True)(context, *arguments)


def _batch(arguments, axes, *, program):
    with jax.enable_x64(True):
        batched = jax.make_jaxpr(jax.vmap(jaxpr_as_fun(program), in_axes=tuple(axes)))(*arguments)
    outputs = door_p.bind(*arguments, program=batched)
    return outputs, [0] * len(outputs)


mlir.register_lowering(door_p, _lower)
batching.primitive_batchers[door_p] = _batch
