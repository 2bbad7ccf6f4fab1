"""The commands about files of published likelihoods: `dpppl likelihood show` and `dpppl pool`. Nothing in a file is executed."""

import argparse
from collections.abc import Callable
from pathlib import Path

from dpppl.contrib.cli.models import Answer
from dpppl.published.likelihood import Likelihood, pool


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add both commands. `command(name, function, words)` makes the parser of one."""
    shown = command("likelihood", _show, "what a file of a published likelihood holds, and what its owners spent")
    shown.add_argument("action", choices=("show",))
    shown.add_argument("file", type=Path)
    added = command("pool", _pool, "multiply the likelihoods of several owners of one model")
    added.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a file that likelihood().to_file wrote")
    added.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file of the product")
    added.add_argument(
        "--any-program", action="store_true", help="pool versions of one model, as of other versions of JAX"
    )
    for each in (shown, added):
        each.add_argument("--html", type=Path, metavar="FILE", help="write a page that loads nothing")


def _show(options: argparse.Namespace) -> Answer:
    return _answer(Likelihood.from_file(options.file), options)


def _pool(options: argparse.Namespace) -> Answer:
    pooled = pool([Likelihood.from_file(file) for file in options.files], any_program=options.any_program)
    pooled.to_file(options.out)
    return _answer(pooled, options, f"\nwrote {options.out}")


def _answer(likelihood: Likelihood, options: argparse.Namespace, more: str = "") -> Answer:
    if options.html is not None:
        from dpppl.contrib import pages

        options.html.write_text(pages.to_html(likelihood), encoding="utf-8")
        more += f"\nwrote {options.html}"
    return likelihood.report(), f"{likelihood}{more}"
