"""A ledger in processes other than process 0. Process 0 alone holds the file and charges; the others start each access after
it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from dpppl.accounting.events import GaussianEvent
from dpppl.errors import ConfigurationError
from dpppl.ledger.append_only import Record
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.processes import messages


@dataclass
class FollowedLedger:
    """Process 0's ledger, as it was sent.

    - **path**, **name**, **unit**, **epsilon**, **delta**, **neighboring_relation** - as of a `PrivacyLedger`.
    - **failure_allowance**, **spent** - those, too; `spent` as it was when process 0 last charged.

    `reserve` and `charge` do nothing, while process 0 has just done them; else they raise ConfigurationError."""

    path: str
    name: str | None
    unit: str
    epsilon: float
    delta: float
    neighboring_relation: str
    failure_allowance: float
    spent: float

    def reserve(self, run_id: str, events: Sequence[GaussianEvent], what: str) -> None:
        _check()

    def charge(self, run_id: str, events: Sequence[GaussianEvent], first: int, count: int) -> None:
        _check()

    def release(self, run_id: str, status: str = "released") -> None:
        pass

    def charged_steps(self, run_id: str) -> range:
        """Empty: only process 0 knows."""
        return range(0)


def ledger_of(ledger: object) -> PrivacyLedger | FollowedLedger | None:
    """The ledger itself, or the one that stands at a path; in processes other than process 0 what that tells of it."""
    if ledger is None:
        return None
    if not isinstance(ledger, str | os.PathLike | PrivacyLedger | FollowedLedger):
        raise ConfigurationError(f"ledger is a dpppl.PrivacyLedger or the path of one, got {type(ledger).__name__}.")
    if messages.count() == 1:
        return _opened(ledger)
    kept: list[PrivacyLedger | FollowedLedger] = []

    def told() -> Record:
        kept.append(_opened(ledger))
        return {name: getattr(kept[0], name) for name in FollowedLedger.__dataclass_fields__}

    found = messages.from_first("ledger", told)
    return kept[0] if kept else FollowedLedger(**found)


def _opened(ledger: PrivacyLedger | FollowedLedger | str | os.PathLike[str]) -> PrivacyLedger | FollowedLedger:
    if not isinstance(ledger, str | os.PathLike):
        return ledger
    if not os.path.exists(ledger):
        raise ConfigurationError(
            f"there is no ledger at {os.fspath(ledger)!r}: make it, with the budget of the data, by "
            f"dpppl.PrivacyLedger({os.fspath(ledger)!r}, epsilon, delta)."
        )
    return PrivacyLedger.open(ledger)


def _check() -> None:
    if not messages.follows():
        raise ConfigurationError(
            "process 0 alone holds the ledger: with one, all processes run together, on rows sharded over their devices."
        )
