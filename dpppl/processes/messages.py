"""Messages between the processes that `jax.distributed.initialize` made one program: few and short, in the same order on each.

They go through the key-value store of JAX's own coordinator, which lives in process 0. A process that waits for one that died is
ended by JAX (`heartbeat_timeout_seconds`); one that waits for a process that does something else gets an error from here.
"""

import contextlib
import contextvars
import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
import numpy as np
from jax._src import distributed, xla_bridge  # no public name leads to the client, or says whether JAX has started
from jax.experimental import multihost_utils

from dpppl import errors
from dpppl.errors import DPPPLError, ProcessError
from dpppl.types import Foreign, Function, Tree

R = TypeVar("R")
TIMEOUT = 600.0
"""Seconds that a process waits for the others, which may still compile or load."""

_numbers = itertools.count()
_following = contextvars.ContextVar("following", default=False)
_forks_with_jax: list[bool] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks_with_jax.append(xla_bridge.backends_are_initialized()))


def check_not_forked() -> None:
    """Raise ProcessError in a process that was forked after JAX had started: it lacks JAX's threads, so a run would never end."""
    if any(_forks_with_jax):
        raise ProcessError(
            "this process was forked from one in which JAX had started, and lacks JAX's threads, so a run would never end: start "
            "it with multiprocessing's spawn, multiprocessing.get_context('spawn').Process(target=...). Nothing was charged."
        )


def count() -> int:
    """How many processes there are; 1 where `jax.distributed.initialize` was not called."""
    return int(distributed.global_state.num_processes) if jax.distributed.is_initialized() else 1


def index() -> int:
    """The number of this one."""
    return int(distributed.global_state.process_id) if jax.distributed.is_initialized() else 0


def leads() -> bool:
    """Whether this is process 0, which holds what there is one of."""
    return index() == 0


def follows() -> bool:
    """Whether process 0 has just done what this process does now, and its ledger has charged it."""
    return _following.get()


def exchange(what: str, mine: object) -> list[Tree]:
    """Each process's value, anything that JSON can hold, by the number of the process."""
    number = next(_numbers)
    _tell(number, index(), what, mine)
    return [_heard(number, process, what) for process in range(count())]


def from_first(what: str, act: Callable[[], R]) -> R:
    """The result or exception of `act()` in process 0, which alone calls it: anything that JSON can hold."""
    if count() == 1:
        return act()
    return _led(next(_numbers), what, act)


def bytes_from_first(what: str, read: Callable[[], bytes | None]) -> bytes | None:
    """The result of `read()` in process 0, which alone calls it."""
    if count() == 1:
        return read()
    kept: list[bytes | None] = []

    def length() -> int | None:
        kept.append(read())
        return None if kept[0] is None else len(kept[0])

    size = from_first(what, length)
    if size is None:
        return None
    mine = np.frombuffer(kept[0], np.uint8) if kept and kept[0] is not None else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine), np.uint8).tobytes()


def enter(what: str, act: Function, reply: Function = lambda: None) -> tuple[Tree, Tree]:
    """The result of `act()`, and that of `reply()` in process 0 after it.

    Process 0 acts once all have come to this call, the others after it. Where it raises, they raise the same and do not act."""
    number, results = next(_numbers), []
    if leads():
        return _led_after_all(number, what, act, reply)
    _tell(number, index(), what, None)
    from_first_process = _heard(number, "all", what)
    token = _following.set(True)
    try:
        results.append(act())
    finally:
        _following.reset(token)
    return results[0], from_first_process


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Inside, a process that fails informs the others when they next wait for it."""
    try:
        yield
    except BaseException as error:
        if not getattr(error, "reported", False):
            number = next(_numbers)
            with contextlib.suppress(Exception):
                _tell(number, index(), "", None, error)
                if leads():
                    _tell(number, "all", "", None, error)
        raise


def _led(number: int, what: str, act: Callable[[], R]) -> R:
    if not leads():
        return _heard(number, "all", what)
    try:
        value = act()
    except BaseException as error:
        _tell(number, "all", what, None, error)
        raise
    _tell(number, "all", what, value)
    return value


def _led_after_all(number: int, what: str, act: Function, reply: Function) -> tuple[Tree, Tree]:
    results: list[Tree] = []

    def acted() -> Tree:
        for process in range(1, count()):
            _heard(number, process, what)
        results.append(act())
        return reply()

    try:
        said = _led(number, what, acted)
    except BaseException as error:
        error.reported = True  # type: ignore[attr-defined]
        raise
    if number:  # all are here: what was said before has been heard
        _client().key_value_delete(f"dpppl/{number - 1}/")
    return results[0], said


def _client() -> Foreign:
    return distributed.global_state.client


def _tell(number: int, place: object, what: str, value: object, error: BaseException | None = None) -> None:
    """Errors of dpppl's own travel with their words, which hold no data; of others the kind alone."""
    message = {"what": what, "value": value}
    if error is not None:
        known = isinstance(error, DPPPLError)
        message["error"] = [type(error).__name__, str(error) if known else None, index()]
    _client().key_value_set(f"dpppl/{number}/{place}", json.dumps(message))


def _heard(number: int, place: object, what: str) -> Tree:
    """The message with this number. Raises the other process's exception, or ProcessError if no message comes."""
    process = 0 if place == "all" else place
    message = json.loads(_waited(f"dpppl/{number}/{place}", f"process {process} has not come to '{what}'"))
    if "error" in message:
        kind, words, raised_in = message["error"]
        raised = getattr(errors, kind, None) if words is not None else None
        if raised is None:
            words = f"process {raised_in} was ended by {kind}: see its output. All that had begun is charged."
            raised = ProcessError
        error: Tree = raised(words)
        error.reported = True
        raise error
    if message["what"] != what:
        raise ProcessError(
            f"process {index()} is at '{what}' and process {process} at '{message['what']}': run the same program in all "
            "processes. Nothing of this was charged."
        )
    return message["value"]


def _waited(key: str, missing: str) -> str:
    for _ in range(max(1, round(TIMEOUT))):  # so that Ctrl-C is heard
        try:
            return str(_client().blocking_key_value_get(key, 1_000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise ProcessError(f"{missing}: JAX's coordinator, in process 0, cannot be reached.") from None
    raise ProcessError(f"{missing} within {TIMEOUT:g} seconds. Nothing of this was charged.")
