"""How tables and files are written."""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import BinaryIO


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: each cell as wide as its column, two spaces apart.

    >>> aligned([("a", "b"), ("long", "c")])
    ['a     b', 'long  c']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def replace_file(path: str, draft: str, write: Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """Put a file in the place of the one at `path`, complete and on the disk: a reader sees it or what was there before.

    `write(file)` writes it, to the path `draft`; after an OSError nothing is left there."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(draft)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(draft)
        raise
