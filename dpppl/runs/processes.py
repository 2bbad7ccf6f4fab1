"""Runs of several processes: all agree on what is run, process 0 charges, and the others begin an access after it."""

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax

from dpppl.data.rows import devices_of, placement_of
from dpppl.errors import ConfigurationError
from dpppl.information_flow.executables import digest_of
from dpppl.ledger.follower import FollowedLedger
from dpppl.processes import messages
from dpppl.runs.budget import Budget
from dpppl.types import Tree

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes among whose devices the rows of a run are sharded; a single process does no communication.

    - **many** - whether there are several.
    - **budget** - the account of the run."""

    many: bool
    budget: Budget

    @classmethod
    def of(cls, rows: Tree, budget: Budget) -> "ProcessGroup":
        """Those that hold these rows."""
        devices = devices_of(placement_of(rows))
        return cls(devices is not None and devices.processes > 1, budget)

    def agree(self, key: jax.Array, program: str, **arguments: object) -> None:
        """Raises ConfigurationError, the same in all processes, where they differ in key, program or other arguments.

        - **arguments** - pytrees of settings, keys and public arrays, by name."""
        if not self.many:
            return
        mine = {"key": digest(key), "program": program} | {name: digest(value) for name, value in arguments.items()}
        first, *others = messages.exchange("agreement", mine)
        for number, other in enumerate(others, start=1):
            if differing := [name.replace("_", " ") for name in first if other.get(name) != first[name]]:
                raise ConfigurationError(
                    f"processes 0 and {number} differ in: {', '.join(differing)}. Run the same program with the same settings "
                    "and public arrays, and one key (dpppl.secret_key() gives the same to all). Nothing was charged."
                )

    def enter(self, what: str, act: Callable[[], T]) -> T:
        """`act()`; of several processes, once all are here, and in process 0 first. An exception there is raised in all."""
        if not self.many:
            return act()
        ledger = self.budget.ledger
        result, spent = messages.enter(what, act, lambda: None if ledger is None else ledger.spent)
        if isinstance(ledger, FollowedLedger):
            ledger.spent = spent
        return result

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Inside, a process that fails informs the others."""
        return messages.watched() if self.many else contextlib.nullcontext()


def digest(tree: Tree) -> str:
    """Of the arrays, keys and other values in a pytree."""
    leaves, structure = jax.tree.flatten(tree)
    return hashlib.sha256("\n".join([str(structure), *map(digest_of, leaves)]).encode()).hexdigest()
