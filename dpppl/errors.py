"""Exceptions, one per remedy. No message ever contains a data value."""

import contextlib
import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_INSIDE = (os.path.dirname(__file__) + os.sep, contextlib.__file__)


class DPPPLError(Exception):
    """Base class of every error raised by dpppl. `code` is stable, and printed with tracebacks; the page "Errors" explains it."""

    code: ClassVar[str] = "DP00"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f'[{self.code}: see "Errors" in the documentation of dpppl]')


class ConfigurationError(DPPPLError, ValueError):
    """An argument is wrong, or two arguments contradict each other: change the call."""

    code = "DP01"


class UnsupportedModelError(DPPPLError, ValueError):
    """The model cannot be split into a prior and independent rows: change the model."""

    code = "DP02"


class BudgetExceededError(DPPPLError):
    """This would spend more than the privacy budget: for it nothing was run and nothing was charged."""

    code = "DP03"


class CheckpointError(DPPPLError):
    """The checkpoint is of another run, damaged (delete it to start anew, at a new charge), or cannot be written (make room)."""

    code = "DP06"


class PrivacyWarning(UserWarning):
    """Something weakens the privacy guarantee; the run continues."""


class UnconvergedWarning(UserWarning):
    """Results are returned that their verdict refuses: see its `line()`, or say `allow_unconverged=True`."""


class DataReadError(DPPPLError, OSError):
    """Rows could not be read from disk: mend the file. Earlier charges stay, and nothing is returned."""

    code = "DP07"


class LedgerError(DPPPLError):
    """A ledger's file is gone, damaged or replaced (restore it), or cannot be written (make room). Nothing was admitted."""

    code = "DP05"


class ProcessError(DPPPLError):
    """Another process of the run failed, or is out of step: see its output; or this one was forked. Steps begun are charged."""

    code = "DP09"


class KeyReuseError(DPPPLError):
    """The key, or a state that holds it, was already used: take a new one.

    On changed data the noise of both runs could be subtracted."""

    code = "DP04"


class PrivacyLeakError(DPPPLError):
    """A program's outputs could reveal more about a private row than the door releases: change the program.

    - **message** - the error's text.
    - **findings** - each with `kind` (one word), `what` (a sentence) and `trail`."""

    code = "DP08"

    def __init__(self, message: str, findings: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class ConclusionError(DPPPLError, RuntimeError):
    """Accesses were made and charged, but a result of what they released could not be computed: read what the message names, and
    report the cause, which is shown above it."""

    code = "DP10"


@contextlib.contextmanager
def concluding(
    what: str, instead: str, is_over: Callable[[], bool] = lambda: True, otherwise: str = ""
) -> Iterator[None]:
    """Inside, a run was charged: an exception that is not ours becomes a ConclusionError, which says what is left of the run.

    - **what** - the result that is computed; **instead** - a call that returns what is kept, and what it returns.
    - **is_over** - whether all accesses were made; **otherwise** - the remedy where some were not."""
    try:
        yield
    except Exception as error:
        over = is_over()
        if isinstance(error, ConclusionError if over else DPPPLError):
            raise
        failed = f"{what} could not be computed ({type(error).__name__}, shown above)."
        kept = f"All accesses of the run were made and charged, and what they released is kept: {instead}."
        stopped = f"Accesses so far stay charged, and those to come are not: {otherwise}."
        raise ConclusionError(f"{failed} {kept if over else stopped}") from error


def forgetting(function: Callable[P, R]) -> Callable[P, R]:
    """The function; what it raises holds no argument: neither in frames of tracebacks, nor in exceptions that were replaced."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        before = sys.exception()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            del args, kwargs
            _forget(error, before)
            raise
        finally:
            del before

    return wrapper


def _forget(error: BaseException, before: BaseException | None) -> None:
    """Clear an exception and those that it holds, but for the one that the caller was handling `before`."""
    seen, left = {id(before)}, [error]
    while left:
        error = left.pop()
        seen.add(id(error))
        if error.__traceback__ is not None:
            traceback.clear_frames(error.__traceback__)
        if isinstance(error, AttributeError):
            error.obj = None
        inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        left += [e for e in (error.__cause__, error.__context__, *inner) if e is not None and id(e) not in seen]
        replaced = error.__suppress_context__ or isinstance(error, DPPPLError)
        if replaced and error.__context__ is not before:
            error.__context__ = None


def warn(message: str, category: type[Warning] = PrivacyWarning, *, charged: bool = False) -> None:
    """A warning at the line outside of dpppl that led to it. Where warnings are errors, one about a result that was `charged` is
    printed: an error would lose the result."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    try:
        warnings.warn(message, category, stacklevel=level)
    except Warning:
        if not charged:
            raise
        print(f"{category.__name__}: {message}", file=sys.stderr)
