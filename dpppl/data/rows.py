"""Private rows as an access finds them: arrays on one device, arrays sharded over devices, or rows elsewhere.

Sharded rows: each device has an equal block, and the last blocks are padded at the end.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dpppl.data.sources import fitted
from dpppl.errors import ConfigurationError
from dpppl.processes import messages
from dpppl.types import Foreign, Function, Tree


class Placement(Protocol):
    """Where rows lie: over devices, which `over` gives, or in storage."""

    @property
    def num_rows(self) -> int: ...

    @property
    def over(self) -> "Sharded | None": ...

    def describe(self) -> str: ...


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Rows:
    """Private rows that do not simply lie on one device.

    - **arrays** - by argument, (length, ...).
    - **placement** - where they lie."""

    arrays: Tree
    placement: Placement

    def tree_flatten(self) -> tuple[tuple[Tree], Placement]:
        return (self.arrays,), self.placement

    @classmethod
    def tree_unflatten(cls, placement: Placement, children: tuple[Tree, ...]) -> "Rows":
        return cls(children[0], placement)


def placement_of(rows: Tree) -> Placement | None:
    """Where rows lie, if that is not simply one device; else None."""
    return rows.placement if isinstance(rows, Rows) else None


def devices_of(placement: Placement | None) -> "Sharded | None":
    """The placement over several devices, if rows with this placement are sharded over devices; else None."""
    return None if placement is None else placement.over


def arrays_of(rows: Tree) -> Tree:
    """The arrays themselves."""
    return rows.arrays if isinstance(rows, Rows) else rows


def number_of(rows: Tree) -> int:
    """How many rows there are, padding left out."""
    return int(rows.placement.num_rows if isinstance(rows, Rows) else jax.tree.leaves(rows)[0].shape[0])


def described(rows: Tree) -> str | None:
    """Where rows lie, in words for the report, if that is not simply one device."""
    return rows.placement.describe() if isinstance(rows, Rows) else None


def of_one_process(rows: Tree, what: str) -> Tree:
    """`rows`. Raises ConfigurationError for those that are sharded over several processes, which `what` does not take."""
    devices = devices_of(placement_of(rows))
    if devices is not None and devices.processes > 1:
        raise ConfigurationError(
            f"{what} takes rows of one process, and these are sharded over {devices.processes}: use run, which charges once "
            "for all of them."
        )
    return rows


AXIS, CHAINS = "rows", "chains"
_MOST_ROWS = 2**31 - 2**20  # places of rows, padding included, are 32-bit integers


@dataclass(frozen=True)
class Sharded:
    """Equal blocks of rows: row i lies on device i // (length // devices).

    - **num_rows** - the rows among the length, which ends in padding.
    - **mesh** - the devices.
    - **axes** - of the mesh, along which rows are sharded."""

    num_rows: int
    mesh: Mesh = field(repr=False)
    axes: tuple[str, ...] = field(repr=False)

    @property
    def over(self) -> "Sharded":
        """The devices that rows are sharded over: these."""
        return self

    @property
    def devices(self) -> int:
        """Among how many devices the rows are sharded."""
        return math.prod(self.mesh.shape[name] for name in self.axes)

    @property
    def of_rows(self) -> NamedSharding:
        """How an array of rows lies."""
        return NamedSharding(self.mesh, P(self.axes))

    @property
    def of_others(self) -> NamedSharding:
        """How all else lies: the same on every device."""
        return NamedSharding(self.mesh, P())

    @property
    def processes(self) -> int:
        """Among how many processes."""
        return len({device.process_index for device in self.mesh.devices.flat})

    def everywhere(self, value: jax.Array) -> Tree:
        """A value, the same in all processes, on every device."""
        if self.processes == 1:
            return jax.device_put(value, self.of_others)
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            return value  # it came back from a program
        parts = [jax.device_put(value, device) for device in self.mesh.local_devices]
        return jax.make_array_from_single_device_arrays(np.shape(value), self.of_others, parts)

    def chains_of(self, num_chains: int) -> bool:
        """Whether the mesh has an axis for this number of chains of an access. Raises ConfigurationError if they do not
        divide."""
        over = self.mesh.shape.get(CHAINS, 1) if CHAINS not in self.axes else 1
        if num_chains % over:
            raise ConfigurationError(
                f"{num_chains} chains cannot be laid over {over} devices of the mesh's axis '{CHAINS}': take a multiple."
            )
        return num_chains > 1 and CHAINS in self.mesh.shape and CHAINS not in self.axes

    def on_devices(self, function: Function, of_rows: Sequence[bool], of_chains: Sequence[bool] = ()) -> Function:
        """`function` run by every device, with its own rows where `of_rows` says so, and all of each other operand; given
        `of_chains`, with its own chains along the first axis of those operands. All have all results."""
        specs = tuple(P(self.axes) if own else P() for own in of_rows)

        def own_chains(*operands: Tree) -> Tree:  # cut and joined here: the program around is the same on any mesh
            me, over = jax.lax.axis_index(CHAINS), self.mesh.shape[CHAINS]
            cut = lambda x: jax.lax.dynamic_slice_in_dim(x, me * (len(x) // over), len(x) // over)  # noqa: E731
            found = function(*(cut(x) if mapped else x for x, mapped in zip(operands, of_chains)))
            return jax.lax.all_gather(found, CHAINS, tiled=True)

        run = own_chains if of_chains else function
        return jax.shard_map(run, mesh=self.mesh, in_specs=specs, out_specs=P(), check_vma=False)

    def describe(self) -> str:
        """One line for the report."""
        each = -(-self.num_rows // self.devices)
        return f"rows are sharded over {self.devices} device(s); how many each holds, at most {each}, is public, too"

    def index(self) -> jax.Array:
        """The number of the device, inside `on_devices`."""
        return jax.lax.axis_index(self.axes)

    def total(self, values: jax.Array) -> Tree:
        """The sum over devices of a pytree, the same on each."""
        return jax.lax.psum(values, self.axes)


def sharded(arrays: dict[str, Foreign], mesh: jax.sharding.Mesh | None) -> Rows | None:
    """`arrays` (N, ...) by argument as they lie on their devices, or sharded over `mesh`; None where neither is so.

    Raises ConfigurationError for a mesh without an axis for rows, and for arrays that are sharded in other ways."""
    lying = {label: found for label, x in arrays.items() if (found := _lying(label, x)) is not None}
    if mesh is not None:
        lying = {"mesh": (_automatic(mesh), _axis(mesh))} | lying
    if not lying:
        return None
    first, *others = lying
    for label in others:
        if lying[label] != lying[first]:
            raise ConfigurationError(
                f"'{first}' and '{label}' lie on other devices, or along other axes of a mesh: shard all private arrays alike."
            )
    used, axes = lying[first]
    used_by = {device.process_index for device in used.devices.flat}
    if used_by != {jax.process_index()} and used_by != set(range(jax.process_count())):
        raise ConfigurationError(
            f"rows lie on devices of processes {sorted(used_by)}: shard them over devices of this process, or of all, as "
            "jax.make_mesh((len(jax.devices()),), ('rows',)) does."
        )
    num_rows = int(next(iter(arrays.values())).shape[0])
    placement = Sharded(num_rows, used, axes)
    length = -(-num_rows // placement.devices) * placement.devices
    if length > _MOST_ROWS:
        raise ConfigurationError(f"{num_rows:,} rows are more than places of 32 bits can tell apart, {_MOST_ROWS:,}.")
    if placement.processes > 1 and mesh is not None:
        _check_alike(arrays)
    return Rows({label: _sharded(x, placement, length) for label, x in arrays.items()}, placement)


def _check_alike(arrays: dict[str, Foreign]) -> None:
    """Raises ConfigurationError where processes give different arrays to be sharded; a few rows are compared."""

    def told(array: jax.Array) -> str:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return ""
        some = np.asarray(array[:: max(1, len(array) // 64)])
        return hashlib.sha256(f"{some.dtype}{np.shape(array)}".encode() + some.tobytes()).hexdigest()

    found = messages.exchange("rows", {label: told(x) for label, x in arrays.items()})
    if unlike := [label for label in arrays if len({other.get(label) for other in found}) > 1]:
        raise ConfigurationError(
            f"argument '{unlike[0]}' is not the same in all processes: with mesh= over their devices each gives all rows, and "
            "places its own; or give arrays that lie over all devices, jax.make_array_from_process_local_data."
        )


def checked_mesh(mesh: Tree) -> Mesh | None:
    """`mesh`, where it is one. Raises ConfigurationError for an argument that is not a mesh, or has no axis for rows."""
    if mesh is not None:
        _axis(mesh)
    return mesh


def _axis(mesh: jax.sharding.Mesh | None) -> tuple[str, ...]:
    if not isinstance(mesh, Mesh):
        raise ConfigurationError(f"mesh must be a jax.sharding.Mesh, such as jax.make_mesh((8,), ('{AXIS}',)).")
    if len(mesh.axis_names) > 1 and AXIS not in mesh.axis_names:
        raise ConfigurationError(
            f"the mesh has the axes {', '.join(mesh.axis_names)}; name the one that rows are sharded over '{AXIS}'."
        )
    return (AXIS if AXIS in mesh.axis_names else mesh.axis_names[0],)


def _automatic(mesh: Tree) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _lying(label: str, array: jax.Array) -> tuple[Mesh, tuple[str, ...]] | None:
    """The mesh of an array that is sharded by rows, and its axes; None for one that is not sharded."""
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer) or array.sharding.is_fully_replicated:
        return None
    spec = getattr(array.sharding, "spec", ())
    first, *rest = [names if isinstance(names, tuple) else (names,) if names else () for names in spec] or [()]
    if not isinstance(array.sharding, NamedSharding) or not first or any(rest):
        raise ConfigurationError(
            f"argument '{label}' lies on several devices, but not by rows: shard its first axis alone, "
            "jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('rows')))."
        )
    return _automatic(array.sharding.mesh), first


def _sharded(array: Foreign, placement: Sharded, length: int) -> jax.Array:
    """An array of this number of rows and padding; as it is if it is sharded already."""
    if isinstance(array, jax.Array) and not array.sharding.is_fully_replicated:
        parts = [shard.data for shard in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(array.shape, placement.of_rows, parts)
    array = np.asarray(array)
    array = fitted(array, jax.dtypes.canonicalize_dtype(array.dtype))
    room = [(0, length - array.shape[0])] + [(0, 0)] * (array.ndim - 1)
    if placement.processes == 1:
        return jax.device_put(np.pad(array, room) if length > array.shape[0] else array, placement.of_rows)

    def part(index: Tree) -> np.ndarray:  # of an array that every process has
        rows = array[index]
        short = len(range(*index[0].indices(length))) - len(rows)
        return np.pad(rows, [(0, short)] + [(0, 0)] * (array.ndim - 1))

    return jax.make_array_from_callback((length, *array.shape[1:]), placement.of_rows, part)
