"""Programs and their arguments where rows are dealt out over devices: rows as they lie, all else on every device."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from dpppl.data.rows import Rows, placement_of
from dpppl.information_flow.executables import Lowered


def _placement(arguments: Any) -> Any:
    return next((argument.placement for argument in arguments if isinstance(argument, Rows)), None)


def _leaves(arguments: Any) -> Iterator[tuple[bool, Any]]:
    """All leaves, and whether they are rows."""
    return ((isinstance(argument, Rows), leaf) for argument in arguments for leaf in jax.tree.leaves(argument))


def lowered(closed: Any, arguments: Any, quickly: bool) -> Lowered:
    """A proved program, to be compiled for these arguments and where they lie."""
    placement, leaves = _placement(arguments), jax.tree.leaves(arguments)
    if placement is None:
        return Lowered(closed, leaves, quickly)
    given = tuple(placement.of_rows if is_rows else placement.of_others for is_rows, _ in _leaves(arguments))
    return Lowered(closed, leaves, quickly, shardings=dict(in_shardings=given, out_shardings=placement.of_others))


def placed(arguments: Any) -> list[Any]:
    """The leaves of the arguments of such a program, where it wants them."""
    placement = _placement(arguments)
    if placement is None:
        return jax.tree.leaves(arguments)
    return [leaf if is_rows else placement.everywhere(leaf) for is_rows, leaf in _leaves(arguments)]


def on_one(tree: Any, rows: Any) -> Any:
    """What a run leaves behind, no longer on the devices of its rows."""
    return tree if placement_of(rows) is None else jax.device_put(jax.device_get(tree))


def together(mapping: Any, rows: Any) -> Any:
    """How several chains run: on one mesh they share its devices."""
    return jax.vmap if mapping == "pmap" and placement_of(rows) is not None else mapping


def plain(arguments: Any) -> tuple[Any, ...]:
    """Shapes of the arguments as they were on one device, where the program is the same on any number of them."""

    def of_rows(argument: Rows) -> Any:
        length = argument.placement.num_rows
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((length, *x.shape[1:]), x.dtype), argument.arrays)

    return tuple(of_rows(argument) if isinstance(argument, Rows) else argument for argument in arguments)


def contents(rows: Any) -> Any:
    """The rows themselves, on the host, without padding."""
    if placement_of(rows) is None:
        return rows
    return jax.tree.map(lambda x: np.asarray(x)[: rows.placement.num_rows], rows.arrays)


def digest(program: Any, function: Callable[..., Any], arguments: Any) -> str:
    """The digest of a program; of rows that are dealt out, as it were on one device of this kind."""
    if _placement(arguments) is None:
        return str(program.digest)
    alone = jax.make_jaxpr(function)(*plain(arguments))
    return Lowered(alone, jax.tree.leaves(plain(arguments)), devices=jax.devices()[0].device_kind).digest
