"""A progress bar: the phase of a run and the number of its accesses, both public."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from tqdm.auto import tqdm

from dpppl.processes import messages
from dpppl.types import Foreign, Function, Tree

SECONDS = 1.0


class _Bar:
    """A bar that shows what it can: a closed stream, or a notebook that is gone, costs no results."""

    def __init__(self, bar: Foreign) -> None:
        self._bar = bar

    def __getattr__(self, name: str) -> Function:
        return partial(self._tried, name)

    def _tried(self, name: str, *args: Tree, **kwargs: Tree) -> None:
        try:
            getattr(self._bar, name)(*args, **kwargs)
        except Exception:
            self._bar.disable = True
            with suppress(Exception):  # tqdm keeps its lock where a display fails, and other threads would wait for it
                tqdm.get_lock().release()

    @contextmanager
    def external_write_mode(self) -> Iterator[None]:
        """Inside, others may print: see tqdm's. It is entered before anything is charged."""
        with self._bar.external_write_mode():
            yield


@contextmanager
def bar_for(total: int, *, visible: bool, **settings: Tree) -> Iterator[Foreign]:
    """A bar that begins with "compiling". Its elapsed time goes on while no access ends.

    - **total** - number of accesses.
    - **visible** - whether to show it; only the first process does.
    - **settings** - of tqdm."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(SECONDS):
            bar.refresh()

    is_hidden = not (visible and messages.leads())
    bar = _Bar(tqdm(total=total, disable=is_hidden, desc="compiling", **settings))
    clock = threading.Thread(target=tick, daemon=True)
    if not is_hidden:
        clock.start()
    try:
        yield bar
    finally:
        done.set()
        if clock.ident is not None:
            clock.join()
        bar.close()
