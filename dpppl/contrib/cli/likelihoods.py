"""The commands about files of published likelihoods: `dpppl likelihood show` and `dpppl pool`. Nothing in a file is executed."""

import argparse
from collections.abc import Callable
from pathlib import Path

from dpppl.contrib.cli.models import Answer
from dpppl.published.likelihood import Likelihood, pool


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add both commands. `command(name, function, words)` makes the parser of one."""
    added = command("likelihood", _show, "what a file of a published likelihood holds, and what its owners spent")
    added.add_argument("action", choices=("show",))
    added.add_argument("file", type=Path)
    added = command("pool", _pool, "multiply the likelihoods of several owners of one model")
    added.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a file that likelihood().to_file wrote")
    added.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file of the product")
    added.add_argument(
        "--any-program", action="store_true", help="pool versions of one model, as of other versions of JAX"
    )


def _show(options: argparse.Namespace) -> Answer:
    likelihood = Likelihood.from_file(options.file)
    return likelihood.report(), str(likelihood)


def _pool(options: argparse.Namespace) -> Answer:
    pooled = pool([Likelihood.from_file(file) for file in options.files], any_program=options.any_program)
    pooled.to_file(options.out)
    return pooled.report(), f"{pooled}\nwrote {options.out}"
