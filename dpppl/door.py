"""The door's primitive: it holds the program of one row, and all else that it does is written here and in `mechanism`.

`door_p` lowers to the access of a Mechanism: subsample, the row's program for each row (`jax.vmap`, so that rows cannot
meet), clip, sum, noise. It can be batched (vectorised chains: one access each). It has no differentiation rule: a
derivative through it would be a second access that nobody charges.
"""

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

from dpppl import chacha, information_flow
from dpppl.errors import ConfigurationError

door_p = Primitive("dpppl_door")
door_p.multiple_results = True

STREAMS = ("noise", "subsampling")
"""Names of the streams (`random.stream`) that an access draws from its key; the verifier keeps others off them."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The parameter of a door: what one access does, hashable, and public all of it.

    `mechanism`: a Mechanism, whose `access` does the work. `program`: the jaxpr of one row's statistic, from
    (z, row, public); what it captured are its constants, and operands of the door. `inputs`, `output`: structures of
    (z, rows, public, captured, key, noise_multiplier, step, norm), which are the door's operands, and of the
    statistic. `number`: see `Mechanism.noisy_sum`. `x64`: the setting under which the program was traced. `chains`: for
    each `jax.vmap` around the access, from the innermost, which operands have a leading axis for it.

    Raises PrivacyLeakError for a program that does more than compute.
    """

    mechanism: Any
    program: Any
    inputs: Any
    output: Any
    number: str | None
    x64: bool
    chains: tuple[tuple[bool, ...], ...] = ()

    def __post_init__(self) -> None:
        information_flow.check_row_program(self.program)

    @functools.cached_property
    def parts(self) -> Any:
        """The numbers of the operands, in their structure."""
        return jax.tree.unflatten(self.inputs, range(self.inputs.num_leaves))

    @property
    def roles(self) -> information_flow.Roles:
        """What the verifier must know of the operands."""
        _, rows, _, _, key, _, step, _ = self.parts
        streams = tuple(zlib.crc32(name.encode()) for name in STREAMS)
        return information_flow.Roles(tuple(jax.tree.leaves(rows)), key, step, self.chains, streams, self.program)

    def __call__(self, *operands: Any) -> list[Any]:
        """The access of every chain."""
        function = self._one
        for level in self.chains:
            function = jax.vmap(function, in_axes=tuple(0 if batched else None for batched in level))
        return function(*operands)

    def _one(self, *operands: Any) -> list[Any]:
        z, rows, public, captured, *rest = jax.tree.unflatten(self.inputs, operands)
        program = jaxpr_as_fun(ClosedJaxpr(self.program, captured))

        def statistic(row: Any) -> Any:
            return jax.tree.unflatten(self.output, program(*jax.tree.leaves((z, row, public))))

        return jax.tree.leaves(self.mechanism.access(statistic, rows, self.number, *rest))


information_flow.register_door(door_p, lambda parameters: parameters["access"].roles)
information_flow.register_generator(chacha.chacha20)


def traced(access: Access, *avals: Any) -> ClosedJaxpr:
    """The program that a door lowers to."""
    with jax.enable_x64(access.x64):
        return jax.make_jaxpr(access)(*avals)


@functools.lru_cache(maxsize=64)
def compiled(access: Access) -> Any:
    """The access as a compiled function of the operands, for calls outside `jax.jit`."""
    return jax.jit(lambda *operands: door_p.bind(*operands, access=access))


@door_p.def_impl
def _run(*operands: Any, access: Access) -> Any:
    return compiled(access)(*operands)


@door_p.def_abstract_eval
def _shapes(*operands: Any, access: Access) -> list[Any]:
    sizes = []
    for k, level in enumerate(access.chains):
        first = level.index(True)
        sizes.append(operands[first].shape[sum(outer[first] for outer in access.chains[k + 1 :])])
    lead = tuple(reversed(sizes))
    counted = access.mechanism.counts
    number = [jax.core.ShapedArray(lead, jnp.dtype("float64" if access.x64 else "float32"))] * counted
    return [jax.core.ShapedArray((*lead, *v.aval.shape), v.aval.dtype) for v in access.program.outvars] + number


def _lower(context: Any, *operands: Any, access: Access) -> Any:
    program = traced(access, *context.avals_in)
    with jax.enable_x64(True):  # float64 is lowered as such whatever the caller's setting
        return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(context, *operands)


def _batch(operands: Sequence[Any], axes: Sequence[int | None], *, access: Access) -> Any:
    level = tuple(axis is not None for axis in axes)
    if any(level[k] for k in access.roles.rows):
        raise ConfigurationError(
            "the rows of an access are batched: jax.vmap over data sets is not supported. Call it once for each of them."
        )
    operands = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes)]
    outputs = door_p.bind(*operands, access=replace(access, chains=(*access.chains, level)))
    return outputs, [0] * len(outputs)


mlir.register_lowering(door_p, _lower)
batching.primitive_batchers[door_p] = _batch
