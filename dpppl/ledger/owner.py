"""Which process a run belongs to, and whether that process is gone."""

import functools
import os
import socket
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process. Its start time and its machine's boot distinguish it from later processes of the same number.

    - **host** - the machine's name; not compared.
    - **boot** - id of the machine's last boot; empty outside Linux.
    - **namespace** - the process's namespace of process numbers; empty outside Linux.
    - **pid** - the process number.
    - **started** - when the process started, in clock ticks since boot; empty outside Linux."""

    host: str = field(compare=False)  # a laptop's changes with its network
    boot: str
    namespace: str
    pid: int
    started: str


def this_process() -> Owner:
    """The calling process; after a fork, the child."""
    pid = os.getpid()
    return Owner(host=socket.gethostname(), boot=_boot(), namespace=_namespace(), pid=pid, started=_stat(pid)[1])


def is_gone(owner: Owner) -> bool:
    """Whether the process has surely ended: False for other machines and other containers, of which we see nothing."""
    here = this_process()
    if not here.boot or owner.boot != here.boot:
        if owner.host != here.host:
            return False
        if owner.boot != here.boot:
            return True
    if owner.namespace != here.namespace:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    state, started = _stat(owner.pid)
    return state in ("Z", "X") or bool(started and started != owner.started)


def _stat(pid: int) -> tuple[str, str]:
    """State and start of a process; empty where they cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
    except OSError:
        return "", ""
    return fields[0].decode(), fields[19].decode()


@functools.cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
