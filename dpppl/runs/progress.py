"""A progress bar: the phase of a run and the number of its accesses, both public."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm.auto import tqdm

from dpppl.processes import messages
from dpppl.types import Foreign, Tree

SECONDS = 1.0


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

    with tqdm(total=total, disable=not (visible and messages.leads()), desc="compiling", **settings) as bar:
        clock = threading.Thread(target=tick, daemon=True)
        if not bar.disable:
            clock.start()
        try:
            yield bar
        finally:
            done.set()
            if clock.ident is not None:
                clock.join()
