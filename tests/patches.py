"""What several tests change of the library for a while."""

from dpppl.runs import driver


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
