"""What several tests change of the library for a while."""

import contextlib

import jax
import numpy as np

from dpppl.randomness import keys
from dpppl.runs import driver


def forget_keys():
    """All keys count as unused again."""
    keys._claimed.clear()


@contextlib.contextmanager
def same_key():
    """A key with the same noise each time, for runs whose numbers are to be compared."""
    claimed = set(keys._claimed)
    try:
        yield jax.random.wrap_key_data(np.array([2**31 + 11, 2**30 + 5], np.uint32), impl="threefry2x32")
    finally:
        forget_keys()
        keys._claimed.update(claimed)


def run_through(monkeypatch, around):
    """Each call of a run's compiled program becomes `around(call, program, *arguments)`, of which `call()` is the call itself."""
    real = driver.Program.__call__

    def called(program, *arguments):
        return around(lambda: real(program, *arguments), program, *arguments)

    monkeypatch.setattr(driver.Program, "__call__", called)


def smaller_blocks(monkeypatch, rows):
    """Sums take small chunks of rows, and those on disk are read by `rows` at a time."""
    monkeypatch.setattr("dpppl.access.exact_sum._INT32_GRIDS", ((32, 65_536, 21), (32, 2**22, 24)))
    monkeypatch.setattr("dpppl.data.disk._BLOCK_ROWS", rows)


def stored_by(compiled):
    """What loops and calls of a compiled program store, a text each."""
    lines = compiled.as_text().splitlines()
    return [line.split(by)[0] for line in lines for by in (" while(", "dpppl_stored") if by in line]
