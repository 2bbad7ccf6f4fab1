"""The door: `noisy_sum` and `noisy_statistic` are the only ways to private rows.

They bind a primitive that holds the program of one row; all else that it does is written here and in `mechanism`. `door_p`
lowers to the access of a Mechanism: subsample, the row's program for each row (`jax.vmap`, so that rows cannot meet), clip,
sum, noise. It can be batched (vectorised chains: one access each). It has no differentiation rule: a derivative through it
would be a second access that nobody charges.
"""

import functools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir
from jax.tree_util import PyTreeDef

from dpppl import information_flow
from dpppl.access import ghost_sum
from dpppl.access.clipping import NUM_COUNTS, Centred, Flat
from dpppl.access.mechanism import Mechanism, one_of
from dpppl.data.disk import OnDisk
from dpppl.data.rows import Placement, Sharded, arrays_of, devices_of, placement_of
from dpppl.errors import ConfigurationError, PrivacyLeakError
from dpppl.jaxprs import flattened
from dpppl.row_program import passes
from dpppl.row_program.hoist import gradient
from dpppl.row_program.materialize import Statistic
from dpppl.subsampling import FullBatch, Partition, Poisson, WithoutReplacement
from dpppl.types import Function, Scalar, Traced, Tree

door_p = Primitive("dpppl_door")
door_p.multiple_results = True

Maps = tuple[tuple[bool, ...], ...]
"""For each `jax.vmap` around, from the innermost, which operands have a leading axis for it."""
STREAMS = ("noise", "subsampling")
"""Names of the streams (`keys.stream`) that an access draws from its key; the verifier keeps others off them."""


_EXACT: dict[str, tuple[type, ...]] = {
    "clipping": (Flat, Centred),
    "subsampling": (FullBatch, Poisson, Partition, WithoutReplacement),
    "forms": (type(None), ghost_sum.Forms),
    "placement": (type(None), Sharded, OnDisk),
}
"""The classes that an access may hold: no subclass, which could override clipping or draws."""


def plain_structure(tree: Tree) -> Tree:
    """A structure (a PyTreeDef) with tuples for all containers but dicts: other classes run code of theirs on what is in them.

    >>> plain_structure(jax.tree.structure({"a": [1, 2], "b": None}))
    PyTreeDef({'a': (*, *), 'b': None})
    """

    def rebuilt(tree: Tree) -> Tree:
        if (node := tree.node_data()) is None:
            return 0
        inside = tuple(map(rebuilt, tree.children()))
        if node[0] is dict:
            return dict(zip(node[1], inside))
        return None if node[0] is type(None) else inside

    return jax.tree.structure(rebuilt(tree))


@dataclass(frozen=True, kw_only=True)
class Access:
    """The parameter of a door: what one access does. Hashable and public.

    - **mechanism** - its settings, and its computation, `Mechanism.access`.
    - **program** - the jaxpr of one row's statistic, from (z, row, public); its constants are operands of the door.
    - **inputs** - the structure of the door's operands: (z, rows, public, captured, key, noise_multiplier, step).
    - **output** - the structure of the statistic.
    - **forms** - those of the statistic's factors (`ghost_sum.Forms`); None where it is the gradient itself.
    - **number** - see `noisy_statistic`.
    - **x64** - the setting under which the program was traced.
    - **placement** - where rows lie; None: on one device.
    - **chains** - for each `jax.vmap` around, from the innermost, which operands it maps.

    Raises PrivacyLeakError for a program that does more than compute, for a mechanism, clipping, subsampling, forms or
    placement of a class that is not one of dpppl's own, and for structures that are not `plain_structure`s."""

    mechanism: Mechanism
    program: Traced
    inputs: PyTreeDef
    output: PyTreeDef
    forms: ghost_sum.Forms | None
    number: str | None
    x64: bool
    placement: Placement | None = None
    chains: Maps = ()

    def __post_init__(self) -> None:
        _check_classes(self)
        information_flow.check_row_program(self.program)

    @functools.cached_property
    def parts(self) -> Tree:
        """The numbers of the operands, in their structure."""
        return jax.tree.unflatten(self.inputs, range(self.inputs.num_leaves))

    @functools.cached_property
    def row_program(self) -> passes.RowProgram:
        """The program of one row after its passes."""
        z, _, public, captured, *_ = (len(jax.tree.leaves(part)) for part in self.parts)
        row = len(self.program.invars) - z - public
        holds_row = [False] * (captured + z) + [True] * row + [False] * public
        return passes.rewritten(self.program, holds_row, passes.GRADIENT if self.forms is None else passes.FACTORS)

    @property
    def roles(self) -> information_flow.Roles:
        """The roles of the operands, for the verifier."""
        _, rows, _, _, key, _, step = self.parts
        streams = tuple(zlib.crc32(name.encode()) for name in STREAMS)
        rows = tuple(jax.tree.leaves(rows))
        return information_flow.Roles(rows, key, step, len(self.chains), streams, self.program)

    def __call__(self, *operands: object) -> Tree:
        """The access of every chain."""
        every = _mapped(self._one, self.chains)
        devices = devices_of(self.placement)
        if devices is not None:
            of_rows, of_chains = [k in self.roles.rows for k in range(len(operands))], tuple[bool, ...]()
            if self.chains and devices.chains_of(_lead(operands, self.chains)[0]):
                of_chains = self.chains[-1]
                every = one_by_one(_mapped(self._one, self.chains[:-1]), of_chains)
            every = devices.on_devices(every, of_rows, of_chains)
        with jax.enable_x64(self.x64):
            return every(*operands)

    def _one(self, *operands: object) -> list[Tree]:
        z, rows, public, captured, *rest = jax.tree.unflatten(self.inputs, operands)
        run = functools.partial(row_p.bind, x64=self.x64, maps=())
        parts = self.row_program
        steady = [] if parts.before is None else run(*captured, *jax.tree.leaves((z, public)), program=parts.before)
        given = lambda row: (*steady, *captured, *jax.tree.leaves((z, row, public)))  # noqa: E731
        like = functools.partial(jax.tree.unflatten, self.output)
        if parts.last is None:
            statistic = Statistic(lambda row: like(run(*given(row), program=parts.of_row)))
        else:
            statistic = Statistic(
                lambda row: run(*given(row), program=parts.of_row),
                lambda stored, row: like(run(*given(row), *stored, program=parts.last)),
            )
        rest = (*rest, self.forms, self.placement)
        return jax.tree.leaves(self.mechanism.access(statistic, rows, self.number, *rest))


def _check_classes(access: Access) -> None:
    """See `Access`. Others could clip, draw or add up as they like: their very class is asked for, never a base."""
    refused: list[object] = [access] if type(access) is not Access else []
    refused = refused or ([access.mechanism] if type(access.mechanism) is not Mechanism else [])
    if not refused:
        mechanism = access.mechanism
        held: dict[str, object] = dict(clipping=mechanism.clipping, subsampling=mechanism.subsampling)
        held |= dict(forms=access.forms, placement=access.placement)
        refused = [value for name, value in held.items() if type(value) not in _EXACT[name]]
    if refused:
        raise PrivacyLeakError(
            f"an access with a {type(refused[0]).__name__}: the door takes dpppl's own Mechanism, clipping and subsampling "
            "themselves, no class of yours, even if it is made of one of them; use one of these as it is."
        )
    trees = [access.inputs, access.output, *([] if access.forms is None else [access.forms.tree])]
    if any(type(tree) is not jax.tree_util.PyTreeDef or tree != plain_structure(tree) for tree in trees):
        raise PrivacyLeakError(
            "an access with a container that is no dict or tuple: putting it together runs code of its class on all rows."
        )


def _roles(parameters: Mapping[str, Access]) -> information_flow.Roles:
    _check_classes(parameters["access"])
    return parameters["access"].roles


information_flow.register_door(door_p, _roles)


@functools.lru_cache(maxsize=64)
def compiled(access: Access) -> Tree:
    """The access as a compiled function of the operands, for calls outside `jax.jit`."""
    return jax.jit(lambda *operands: door_p.bind(*operands, access=access))


@door_p.def_impl
def _run(*operands: object, access: Access) -> Tree:
    return compiled(access)(*operands)


@door_p.def_abstract_eval
def _shapes(*operands: object, access: Access) -> list[Tree]:
    _check_classes(access)
    lead = _lead(operands, access.chains)
    count = jax.core.ShapedArray((*lead, NUM_COUNTS), jnp.dtype("float64" if access.x64 else "float32"))
    like = [v.aval for v in access.program.outvars] if access.forms is None else jax.tree.leaves(access.forms.like)
    return _outputs(like, lead) + [count] * access.mechanism.counts


def _lower(context: object, *operands: object, access: Access) -> Tree:
    with jax.enable_x64(True):  # float64 is lowered as such whatever the caller's setting
        return mlir.lower_fun(access, multiple_results=True)(context, *operands)


def _batch(operands: Sequence[Tree], axes: Sequence[int | None], *, access: Access) -> Tree:
    if any(axes[k] is not None for k in access.roles.rows):
        raise ConfigurationError(
            "the rows of an access are batched. jax.vmap over data sets is not supported: call it once for each of them. "
            "A jax.lax.cond inside jax.vmap batches whatever it uses: choose between results instead."
        )
    size = next(x.shape[axis] for x, axis in zip(operands, axes) if axis is not None)
    operands, axes = list(operands), list(axes)
    for k in (access.roles.key, access.roles.step):  # of each chain, which the verifier compares
        if axes[k] is None:
            operands[k], axes[k] = jnp.broadcast_to(operands[k], (size, *jnp.shape(operands[k]))), 0
    operands, level = _leading(operands, axes)
    outputs = door_p.bind(*operands, access=replace(access, chains=(*access.chains, level)))
    return outputs, [0] * len(outputs)


# The program of one row, lowered under the setting that it was traced under: rules of JAX's own depend on it

row_p = Primitive("dpppl_row")
row_p.multiple_results = True


@row_p.def_abstract_eval
def _row_shapes(*operands: Tree, program: Traced, x64: bool, maps: Maps) -> list[Tree]:
    return _outputs([v.aval for v in program.outvars], _lead(operands, maps))


def _lower_row(context: object, *operands: object, program: Traced, x64: bool, maps: Maps) -> Tree:
    captured = len(program.constvars)

    def one(*operands: Tree) -> Tree:
        return jaxpr_as_fun(ClosedJaxpr(program, operands[:captured]))(*operands[captured:])

    with jax.enable_x64(x64):
        return mlir.lower_fun(_mapped(one, maps), multiple_results=True)(context, *operands)


def _batch_row(
    operands: Sequence[object], axes: Sequence[int | None], *, program: object, x64: bool, maps: Maps
) -> Tree:
    operands, level = _leading(operands, axes)
    outputs = row_p.bind(*operands, program=program, x64=x64, maps=(*maps, level))
    return outputs, [0] * len(outputs)


def _mapped(function: Function, maps: Maps) -> Function:
    """`jax.vmap` around `jax.vmap`."""
    for level in maps:
        function = jax.vmap(function, in_axes=tuple(0 if batched else None for batched in level))
    return function


def one_by_one(function: Function, level: Sequence[bool]) -> Function:
    """Return the function for all chains, one after another: results of a chain depend on no number of chains.

    - **function** - of one chain's operands.
    - **level** - which operands have a leading axis for the chains."""

    def every(*operands: object) -> Tree:
        mapped = [x for x, batched in zip(operands, level) if batched]

        def one(parts: Tree) -> Tree:
            rest = iter(parts)
            return function(*(next(rest) if batched else x for x, batched in zip(operands, level)))

        return jax.lax.map(one, mapped)

    return every


def _leading(operands: Sequence[Tree], axes: Sequence[int | None]) -> tuple[list[Tree], tuple[bool, ...]]:
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes)]
    return moved, tuple(axis is not None for axis in axes)


def _lead(operands: Sequence[Tree], maps: Maps) -> tuple[int, ...]:
    """The sizes of the mapped axes, the outermost first."""
    sizes = []
    for number, level in enumerate(maps):
        first = level.index(True)
        sizes.append(operands[first].shape[sum(outer[first] for outer in maps[number + 1 :])])
    return tuple(reversed(sizes))


def _outputs(like: Sequence[Tree], lead: tuple[int, ...]) -> list[Tree]:
    return [jax.core.ShapedArray((*lead, *x.shape), x.dtype) for x in like]


for primitive, lower, batch in ((door_p, _lower, _batch), (row_p, _lower_row, _batch_row)):
    mlir.register_lowering(primitive, lower)
    batching.primitive_batchers[primitive] = batch


# The accesses


class NoisySum(NamedTuple):
    """The result of an access.

    - **total** - the noised sum of clipped gradients, a pytree like the latents.
    - **count** - with a `count_share` the noised counts (NUM_COUNTS,) of drawn rows, see `clipping.counted`;
      else None."""

    total: jax.Array
    count: Tree = None


def noisy_sum(
    mechanism: Mechanism, log_likelihood: Function, z: Tree, rows: Tree, public: Tree, *,
    number: str | None = None, **settings: Tree,
) -> NoisySum:  # fmt: skip
    """One access: `noisy_statistic` of the gradient of `log_likelihood(z, row, public)`, a scalar, in z.

    - **log_likelihood** - the function.
    - **z** - latents, a pytree of floating-point arrays.
    - **mechanism**, **rows**, **public**, **number**, **settings** - as for `noisy_statistic`."""
    placement = placement_of(rows)
    devices = devices_of(placement)
    many = devices is not None and devices.devices > ghost_sum.MOST_DEVICES
    always = mechanism.strategy == "ghost"
    if always and many:
        raise ConfigurationError(
            f'gradient_strategy="ghost" is proved for {ghost_sum.MOST_DEVICES} devices: use "auto", or a smaller mesh.'
        )
    may_factor = always or (mechanism.strategy == "auto" and not many)
    if may_factor and not mechanism.discretise and ghost_sum.supports(mechanism.clipping):
        row = one_of(arrays_of(rows), number, placement)
        found = ghost_sum.factored(log_likelihood, z, row, public, always=always)
        if found is not None:
            settings |= dict(forms=found.forms)
            return noisy_statistic(mechanism, found.statistic, z, rows, public, number=number, **settings)
    statistic = gradient(mechanism.marked(log_likelihood))
    return noisy_statistic(mechanism, statistic, z, rows, public, number=number, **settings)


def noisy_statistic(
    mechanism: Mechanism, statistic: Function, z: Tree, rows: Tree, public: Tree, *, key: jax.Array, noise_multiplier: Scalar,
    step: object = 0, number: str | None = None, forms: ghost_sum.Forms | None = None,
) -> NoisySum:  # fmt: skip
    """One access: the noisy sum over the drawn rows of a clipped statistic.

    - **mechanism** - clipping, subsampling and the kind of noise.
    - **statistic** - `statistic(z, row, public)`, a pytree of floating-point arrays.
    - **z** - its first argument, a pytree of arrays that do not depend on rows.
    - **rows** - private arrays (N, ...), a pytree.
    - **public** - its last argument, a pytree.
    - **key** - a single key, used once for each `step`.
    - **noise_multiplier** - positive scalar.
    - **step** - number of the access under this key, an integer.
    - **number** - name under which a row, then a dict, holds its place among those of the step: a public number, from which
      the statistic can draw random numbers of the row's own.
    - **forms** - how the statistic gives the factors of a gradient in z, where it does.

    Raises PrivacyLeakError if the statistic of one row does more than compute: callbacks, prints, exchange between devices,
    batching rules of its own; and for classes that are not dpppl's own (see `Access`)."""
    placement, rows = placement_of(rows), arrays_of(rows)
    if len({x.shape[0] for x in jax.tree.leaves(rows)}) != 1:
        raise ConfigurationError("the private arrays of an access must have equally many rows, along the first axis.")
    if isinstance(placement, OnDisk):
        placement.check(mechanism.subsampling)
    with jax.default_matmul_precision("highest"):
        program, output = jax.make_jaxpr(statistic, return_shape=True)(z, one_of(rows, number, placement), public)
        if getattr(program, "is_high", False):  # from JAX 0.11 on: in a door, JAX would not expand it
            program = flattened(program)
    rest = key, jnp.asarray(noise_multiplier), jnp.asarray(step)
    operands, inputs = jax.tree.flatten((z, rows, public, tuple(program.consts), *rest))
    access = Access(
        mechanism=mechanism, program=program.jaxpr, inputs=plain_structure(inputs),
        output=plain_structure(jax.tree.structure(output)),
        forms=None if forms is None else replace(forms, tree=plain_structure(forms.tree)), number=number,
        x64=bool(jnp.result_type(float) == np.float64), placement=placement,
    )  # fmt: skip
    leaves = door_p.bind(*operands, access=access)
    tree = jax.tree.structure(output) if forms is None else forms.tree
    return NoisySum(jax.tree.unflatten(tree, leaves[: tree.num_leaves]), *leaves[tree.num_leaves :])
