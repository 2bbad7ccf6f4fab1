"""Programs and their arguments where rows are sharded over devices: rows as they lie, all else on every device."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.data.disk import OnDisk, contents_of, reading
from dpppl.data.rows import Rows, Sharded, arrays_of, devices_of, number_of, placement_of
from dpppl.information_flow.executables import Lowered, is_small
from dpppl.types import Function, Traced, Tree


def _placement(arguments: Tree) -> Sharded | None:
    return next((devices_of(argument.placement) for argument in arguments if isinstance(argument, Rows)), None)


def _on_disk(arguments: Tree) -> OnDisk | None:
    return next((a.placement for a in arguments if isinstance(a, Rows) and isinstance(a.placement, OnDisk)), None)


def _leaves(arguments: Tree) -> Iterator[tuple[bool, Tree]]:
    """All leaves, and whether they are rows."""
    return ((isinstance(argument, Rows), leaf) for argument in arguments for leaf in jax.tree.leaves(argument))


def lowered(closed: Traced, arguments: Tree, quickly: bool, kept: bool = True) -> Lowered:
    """A proved program, to be compiled for these arguments and where they lie; `kept`: see `Lowered`."""
    placement, leaves = _placement(arguments), jax.tree.leaves(arguments)
    if _on_disk(arguments) is not None:  # it reads these rows alone: another run's must be another program
        quickly = quickly and is_small(*jax.tree.leaves(on_one_device(arguments)), *closed.out_avals)
        return Lowered(closed, leaves, quickly, kept=False)
    if placement is None:
        return Lowered(closed, leaves, quickly, kept=kept)
    given = tuple(placement.of_rows if is_rows else placement.of_others for is_rows, _ in _leaves(arguments))
    shardings = dict(in_shardings=given, out_shardings=placement.of_others)
    return Lowered(closed, leaves, quickly, shardings, kept=kept)


def placed(arguments: Tree) -> list[Tree]:
    """The leaves of the arguments of such a program, where it wants them."""
    placement = _placement(arguments)
    if placement is None:
        return jax.tree.leaves(arguments)
    return [leaf if is_rows else placement.everywhere(leaf) for is_rows, leaf in _leaves(arguments)]


def ran(call: Function, arguments: Tree) -> Tree:
    """The result of a compiled program, given the leaves of its arguments. Rows on disk are open while it runs."""
    placement = _on_disk(arguments)
    if placement is None:
        return call(*placed(arguments))
    with reading(placement):
        return jax.block_until_ready(call(*placed(arguments)))


def on_one(tree: Tree, rows: Tree) -> Tree:
    """The results of a run, moved off the devices of its rows."""
    return tree if devices_of(placement_of(rows)) is None else jax.device_put(jax.device_get(tree))


def mapping_on(mapping: object, rows: Tree) -> Tree:
    """How several chains run: on one mesh they share its devices."""
    return jax.vmap if mapping == "pmap" and placement_of(rows) is not None else mapping


def on_one_device(arguments: Tree) -> tuple[Tree, ...]:
    """Shapes of the arguments as they were on one device, where the program is the same on any number of them."""

    def of_rows(argument: Rows) -> Tree:
        if isinstance(argument.placement, OnDisk):
            return argument.placement.rows_like(argument.placement.num_rows)
        length = argument.placement.num_rows
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((length, *x.shape[1:]), x.dtype), argument.arrays)

    return tuple(of_rows(argument) if isinstance(argument, Rows) else argument for argument in arguments)


def contents(rows: Tree) -> Tree:
    """A number that identifies rows, the same however they are sharded: see `checksum`."""
    if isinstance(placement_of(rows), OnDisk):
        return contents_of(rows.placement)
    return str(checksum(arrays_of(rows), number_of(rows)))


def program_digest(program: Traced, function: Function, arguments: Tree) -> str:
    """The digest of a program; for sharded rows, that of the program on one device of this kind."""
    if _placement(arguments) is None and _on_disk(arguments) is None:
        return str(program.digest)
    alone = jax.make_jaxpr(function)(*on_one_device(arguments))
    return Lowered(alone, jax.tree.leaves(on_one_device(arguments)), devices=jax.devices()[0].device_kind).digest


_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def checksum(arrays: Tree, num_rows: int) -> list[tuple[int, str, tuple[int, ...]]]:
    """Return for each array (length, ...) a number that identifies its first `num_rows` rows, with type and shape.

    Each row's bits are mixed into one number of 64 bits, and this with the row's position; the sum is modulo 2^64. So it depends
    on rows and their order, not on sharding, and no device gets a row of another. It detects mistakes, not attacks: somebody
    who may choose rows can find others with the same sum.

    >>> checksum(np.array([1.0, 2.0], np.float32), 2) == checksum(np.array([1.0, 2.0, 3.0], np.float32), 2)
    True
    >>> checksum(np.array([1.0, 2.0], np.float32), 2) == checksum(np.array([2.0, 1.0], np.float32), 2)
    False
    """
    with jax.enable_x64(True):
        sums = [_total(x, num_rows) for x in jax.tree.leaves(arrays)]
    shapes = [(str(x.dtype), (num_rows, *x.shape[1:])) for x in jax.tree.leaves(arrays)]
    return [(int(np.asarray(total)), *shape) for total, shape in zip(sums, shapes)]


@functools.partial(jax.jit, static_argnums=1)
def _total(array: jax.Array, num_rows: int) -> jax.Array:
    words = _words(array).reshape(array.shape[0], -1)
    places = jnp.arange(1, words.shape[1] + 1, dtype=jnp.uint64)
    of_rows = jnp.sum(_mixed(words + places * np.uint64(_GOLDEN)), axis=1)
    numbers = jnp.arange(1, array.shape[0] + 1, dtype=jnp.uint64)
    mixed = _mixed(of_rows ^ _mixed(numbers * np.uint64(_GOLDEN)))
    return jnp.sum(jnp.where(numbers <= num_rows, mixed, np.uint64(0)))


def _words(array: jax.Array) -> jax.Array:
    """The bits of each number."""
    if jnp.iscomplexobj(array):
        return jnp.stack([_words(array.real), _words(array.imag)], axis=-1)
    if array.dtype == bool:
        return array.astype(jnp.uint64)
    return jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}").astype(jnp.uint64)


def _mixed(words: jax.Array) -> jax.Array:
    """SplitMix64's finaliser, a bijection (Steele, Lea, Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))
