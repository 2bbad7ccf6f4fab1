"""A file that several processes append records to, and that a crash at any moment leaves readable.

One JSON object a line, in the order of writing. Each ends in a check over itself and the check before it, so a line that was
changed, lost, doubled or moved is seen. A line without its end was never completed: nobody acted on it, readers pass
over it, and the next writer cuts it off. The file holds public numbers only, so its mode follows the umask.

The head, a second file, is a copy of the last line, replaced before anybody acts on the line. A file without the head's line has
lost its end, or is an older copy. It cannot see an older copy of both files, or lines cut by somebody who writes the
head anew.

The lock is `flock`'s, of the open file. SQLite's locks belong to the process: whoever copies the file while a thread of the
same process charges drops them, and a charge is lost. It also needs this head, and a journal that no hard link has.
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
from dpppl.output import replace_file

Record = dict[str, Any]
_DIGITS = 16


@dataclass(frozen=True)
class Position:
    """How far a file was read.

    - **offset** - in bytes.
    - **lines** - number of lines.
    - **check** - the check of the last line."""

    offset: int = 0
    lines: int = 0
    check: str = ""


class LockedFile:
    """The file under its lock.

    - **path**, **descriptor**, **start** - of the file, open, and what was read before.

    State: `new`, the records after the start; `position`, the end of the last complete line; `has_head`, whether there is a head,
    which then agrees."""

    def __init__(self, path: str, descriptor: int, start: Position):
        self._path, self._descriptor, self._head = path, descriptor, head_of(path)
        size = os.fstat(descriptor).st_size
        if size < start.offset:
            raise LedgerError(
                f"{path} is shorter than it was: an older copy stands in its place. Restore the newer one."
            )
        data = b""
        while piece := os.pread(descriptor, size - start.offset - len(data), start.offset + len(data)):
            data += piece
        self.new, self.position, checks = _parse(path, data, start)
        self.has_head = _agrees_with_head(path, start.lines, checks)

    def append(self, record: Record) -> None:
        """Write one record after the last complete line, and wait until it is on the disk.

        Raises LedgerError where it cannot be written; then the file is what it was."""
        try:
            self._append(record)
        except OSError as error:
            with contextlib.suppress(OSError):  # cutting takes no room; a line that stays counts, and no access follows
                os.ftruncate(self._descriptor, self.position.offset)
            raise LedgerError(
                f"the ledger at {self._path} cannot be written ({_reason(error)}), and nothing looks at data that it does not "
                "count: nothing was admitted or charged. Make room, or let this user write there, and run again."
            ) from None

    def _append(self, record: Record) -> None:
        end, lines = self.position.offset, self.position.lines
        body = json.dumps({"seq": lines, **record}, separators=(",", ":"), allow_nan=False).encode()
        check = _check(self.position.check, body)
        line = body[:-1] + f',"check":"{check}"}}\n'.encode()
        os.ftruncate(self._descriptor, end)  # a line that a crash cut off
        if lines > 1 and not self.has_head:  # that of the last line, which a crash cut off
            _replace(self._head, json.dumps({"seq": lines - 1, "check": self.position.check}).encode() + b"\n")
        _write(self._descriptor, line, end)
        os.fsync(self._descriptor)
        if end:  # a file of one line has nothing to lose
            _replace(self._head, line)
            self.has_head = True
        self.position = Position(end + len(line), lines + 1, check)


def head_of(path: str) -> str:
    """Where the head of the file at `path` is."""
    return path + ".head"


def create(path: str, first: Record) -> None:
    """Make the file with its first record, unless there is one. It appears complete, or not at all."""
    if os.path.exists(path):
        return
    if os.path.exists(head_of(path)) and not os.path.exists(path):  # another process may have made both just now
        raise LedgerError(
            f"there was a ledger at {path}, and only its head is left: restore it. If a new one is meant, for other data, remove "
            f"{head_of(path)} first."
        )
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"there is no folder {folder!r} for the ledger {name!r}; make it first.") from None
    try:
        LockedFile(draft, descriptor, Position()).append(first)
        os.link(draft, path)
    except FileExistsError:  # another process made it just now
        return
    except OSError as error:
        raise ConfigurationError(f"a ledger cannot be made at {path} ({_reason(error)}); use a local disk.") from None
    finally:
        os.close(descriptor)
        os.unlink(draft)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(path: str, start: Position, *, write: bool) -> Iterator[LockedFile]:
    """The file with what stands in it after `start`: under a lock of this call's own to write, shared to read.

    Each call opens the file anew, so that threads exclude each other like processes, and forks inherit nothing."""
    import fcntl  # not on Windows, where the rest of dpppl works

    if os.path.isdir(path):
        raise LedgerError(f"{path} is a folder; give the path of the ledger's file.")
    locked = None
    while locked is None:
        try:
            descriptor = os.open(path, os.O_RDWR if write else os.O_RDONLY)
        except FileNotFoundError:
            raise LedgerError(f"there is no ledger at {path}.") from None
        except OSError as error:
            raise LedgerError(
                f"{path} is no ledger that can be opened ({_reason(error)}); give the path of its file."
            ) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
                if _stands_at(path, descriptor):
                    locked = LockedFile(path, descriptor, start)
            except OSError as error:
                raise LedgerError(
                    f"the ledger at {path} cannot be locked or read ({_reason(error)}): nothing was admitted or charged. Put it "
                    "on a local disk that this user may read, with its head, and run again."
                ) from None
            if locked is not None:
                yield locked
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a copy that a fork took along
            os.close(descriptor)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _stands_at(path: str, descriptor: int) -> bool:
    """Whether the open file is still the one of that name: it may have been replaced while we waited."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _check(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:_DIGITS]


def _write(descriptor: int, data: bytes, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], offset + written)


def _replace(path: str, data: bytes) -> None:
    """Put a file in the place of the one at `path`, complete and on the disk."""
    replace_file(path, path + ".draft", lambda file: file.write(data))


def _agrees_with_head(path: str, start: int, checks: list[str]) -> bool:
    """Whether there is a head. Raises LedgerError if the file lacks its line. `checks`: of line `start` and all after it."""
    head = head_of(path)
    try:
        with open(head, "rb") as file:
            record = json.loads(file.read())
        number, check = int(record["seq"]), str(record["check"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        raise LedgerError(f"{head} is damaged. {_cure(path)}") from None
    place = number + 1 - start
    if place >= len(checks) or (place >= 0 and checks[place] != check):
        raise LedgerError(
            f"{path} lacks line {number + 1}, which was its last: its end was cut off, or an older copy stands in its place. "
            f"The budget spent is unknown, so nothing is admitted. {_cure(path)}"
        )
    return True


def _cure(path: str) -> str:
    return (
        f"Restore both files from one copy. If you know that {path} has every line: tail -n 1 {path} > {head_of(path)}"
    )


def check_head(path: str, locked: LockedFile) -> None:
    """Raise LedgerError where the head is missing of a file that has had one."""
    if not locked.has_head and locked.position.lines > 2:  # the second line's head may have been cut off by a crash
        raise LedgerError(
            f"{head_of(path)} is missing, without which nobody sees whether the end of {path} was cut off. {_cure(path)}"
        )


def _parse(path: str, data: bytes, start: Position) -> tuple[list[Record], Position, list[str]]:
    """The records of all complete lines, where they end, and the checks of the line before and of each."""
    records, position, checks = [], start, [start.check]
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
        checks.append(check)
    return records, position, checks
