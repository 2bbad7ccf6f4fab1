"""How an audit watches a run: it sees charges, and may compile a proved program in another form. Nothing else opens this."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

from dpppl.types import Traced


class Watcher(Protocol):
    """Hooks by which an audit follows the runs of its thread."""

    def charged(self, run: tuple[str, int], charge: object, first: int, until: int) -> None:
        """Note that steps `first` to `until` of a charge were charged. `run` is the run's id and the charge's number; a run
        that is resumed charges its earlier steps again."""

    def program(self, closed: Traced, digest: str) -> Traced:
        """Return the proved program to compile in place of `closed`, whose digest is `digest`."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def watcher() -> Watcher | None:
    """Return the audit that watches this thread; None in every ordinary run."""
    return _watcher.get()


@contextlib.contextmanager
def watched_by(audit: Watcher) -> Iterator[None]:
    """Let an audit watch the runs of this thread."""
    token = _watcher.set(audit)
    try:
        yield
    finally:
        _watcher.reset(token)
