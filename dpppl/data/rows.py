"""Private rows as an access finds them: arrays on one device, arrays sharded over devices, or rows elsewhere."""

from dataclasses import dataclass
from typing import Any

import jax

from dpppl.errors import ConfigurationError


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Rows:
    """Private rows that do not simply lie on one device.

    - **arrays** - by argument, (length, ...).
    - **placement** - where they lie."""

    arrays: Any
    placement: Any

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        return (self.arrays,), self.placement

    @classmethod
    def tree_unflatten(cls, placement: Any, children: Any) -> "Rows":
        return cls(children[0], placement)


def placement_of(rows: Any) -> Any:
    """Where rows lie, if that is not simply one device; else None."""
    return rows.placement if isinstance(rows, Rows) else None


def devices_of(placement: Any) -> Any:
    """The placement over several devices, if rows with this placement are sharded over devices; else None."""
    return None if placement is None else placement.over


def arrays_of(rows: Any) -> Any:
    """The arrays themselves."""
    return rows.arrays if isinstance(rows, Rows) else rows


def number_of(rows: Any) -> int:
    """How many rows there are, padding left out."""
    return int(rows.placement.num_rows if isinstance(rows, Rows) else jax.tree.leaves(rows)[0].shape[0])


def described(rows: Any) -> str | None:
    """Where rows lie, in words for the report, if that is not simply one device."""
    return rows.placement.describe() if isinstance(rows, Rows) else None


def of_one_process(rows: Any, what: str) -> Any:
    """`rows`. Raises ConfigurationError for those that are sharded over several processes, which `what` does not take."""
    devices = devices_of(placement_of(rows))
    if devices is not None and devices.processes > 1:
        raise ConfigurationError(
            f"{what} takes rows of one process, and these are sharded over {devices.processes}: use run, which charges once "
            "for all of them."
        )
    return rows
