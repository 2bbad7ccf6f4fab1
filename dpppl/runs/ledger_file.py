"""A file that several processes append records to, and that a crash at any moment leaves readable.

One JSON object a line, in the order of writing. Each ends in a check over itself and the check before it, so a line that was
changed, lost, doubled or moved is seen. A line without its end was never completed: nobody acted on it, readers pass
over it, and the next writer cuts it off. The file holds public numbers only, so its mode follows the umask.
"""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpppl.errors import ConfigurationError, LedgerError

Record = dict[str, Any]
_DIGITS = 16


@dataclass(frozen=True)
class Position:
    """How far a file was read: bytes, lines, and the check of the last line."""

    offset: int = 0
    lines: int = 0
    check: str = ""


class Session:
    """The file under its lock: `new` records since a position; `append` adds one, durable when it returns."""

    def __init__(self, path: str, descriptor: int, start: Position):
        self._descriptor = descriptor
        size = os.fstat(descriptor).st_size
        if size < start.offset:
            raise LedgerError(
                f"{path} is shorter than it was: an older copy stands in its place. Restore the newer one."
            )
        data = b""
        while piece := os.pread(descriptor, size - start.offset - len(data), start.offset + len(data)):
            data += piece
        self.new, self.position = _parse(path, data, start)
        self._torn = size > self.position.offset

    def append(self, record: Record) -> None:
        """Write one record after the last complete line, and wait until it is on the disk."""
        line, check = _line(record, self.position)
        if self._torn:
            os.ftruncate(self._descriptor, self.position.offset)
        self._torn, end, written = True, self.position.offset, 0
        while written < len(line):
            written += os.pwrite(self._descriptor, line[written:], end + written)
        os.fsync(self._descriptor)
        self._torn, self.position = False, Position(end + len(line), self.position.lines + 1, check)


def create(path: str, first: Record) -> bool:
    """Make the file with its first record; False if there is one. It appears complete, or not at all."""
    if os.path.exists(path):
        return False
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"there is no folder {folder!r} for the ledger {name!r}; make it first.") from None
    try:
        Session(draft, descriptor, Position()).append(first)
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigurationError(f"a ledger cannot be made at {path} ({error.strerror}); use a local disk.") from None
    finally:
        os.close(descriptor)
        os.unlink(draft)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


@contextlib.contextmanager
def opened(path: str, start: Position, *, write: bool) -> Iterator[Session]:
    """The file with what stands in it after `start`: under a lock of this call's own to write, shared to read.

    Each call opens the file anew, so that threads exclude each other like processes, and forks inherit nothing."""
    import fcntl  # not on Windows, where the rest of dpppl works

    while True:
        try:
            descriptor = os.open(path, os.O_RDWR if write else os.O_RDONLY)
        except FileNotFoundError:
            raise LedgerError(f"there is no ledger at {path}.") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
            try:
                if _stands_at(path, descriptor):
                    yield Session(path, descriptor, start)
                    return
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a copy that a fork took along
        finally:
            os.close(descriptor)


def _stands_at(path: str, descriptor: int) -> bool:
    """Whether the open file is still the one of that name: it may have been replaced while we waited."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _line(record: Record, before: Position) -> tuple[bytes, str]:
    body = json.dumps({"seq": before.lines, **record}, separators=(",", ":"), allow_nan=False).encode()
    check = _check(before.check, body)
    return body[:-1] + f',"check":"{check}"}}\n'.encode(), check


def _check(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:_DIGITS]


def _parse(path: str, data: bytes, start: Position) -> tuple[list[Record], Position]:
    """The records of all complete lines, and where they end."""
    records, position = [], start
    suffix = len(f',"check":"{"0" * _DIGITS}"}}')
    for line in data.split(b"\n")[:-1]:
        body = line[:-suffix] + b"}"
        check = _check(position.check, body)
        if line[-suffix:] != f',"check":"{check}"}}'.encode():
            number = position.lines + 1
            raise LedgerError(
                f"line {number} of {path} is damaged, or does not follow the line before it: what was spent cannot be "
                "known, so nothing is admitted. Restore the file from a copy that has every line."
                if number > 1
                else f"{path} is not a ledger, or its first line is damaged."
            )
        records.append(json.loads(body))
        position = Position(position.offset + len(line) + 1, position.lines + 1, check)
    return records, position
