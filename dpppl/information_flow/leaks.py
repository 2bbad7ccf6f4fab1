"""Ways by which private values could leave, as the proof finds them, in words."""

import traceback
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpppl.errors import PrivacyLeakError
from dpppl.jaxprs import is_of_user, source_of
from dpppl.types import Equation, Tree

CURE = (
    "Loop over jax.random.split(key, n), or count a step by one. Followed are keys made by fold_in and split(key, n), and their "
    "elements at constant places or in lax.scan; integer arguments and constants with constants added, and counters in "
    "the state of lax.scan and lax.fori_loop; not what lax.cond or a changing state makes of keys, reversed scans, other "
    "indices and arithmetic, or the raw words of keys"
)


class Trail(NamedTuple):
    """How a secret came to be in a value.

    - **step**, **before** - an equation, or a few words; and the trail before it."""

    step: Equation | str
    before: "Trail | None" = None


@dataclass(frozen=True, slots=True)
class Leak:
    """A way by which something private could leave.

    - **kind**, **what**, **trail** - one or two words; a sentence; the equations on the way."""

    kind: str
    what: str
    trail: Trail | None = None


def leak(*findings: Leak) -> PrivacyLeakError:
    """The error, which says the first findings, a line each."""
    shown = [f"{finding.what}.{_path(finding.trail)}" for finding in findings[:5]]
    if len(findings) > 5:
        shown.append(f"... and {len(findings) - 5} more.")
    return PrivacyLeakError("\n".join(shown), findings)


def _path(trail: Trail | None) -> str:
    """The way of a secret, from the argument on, each source line once."""
    steps: list[str] = []
    while trail is not None:
        step = trail.step if isinstance(trail.step, str) else str(trail.step.primitive.name)
        where = "" if isinstance(trail.step, str) else source_of(trail.step)
        step = f"{where}: {step}" if where else step
        if steps[:1] != [step]:
            steps.insert(0, step)
        trail = trail.before
    if len(steps) > 8:
        steps = [*steps[:3], "...", *steps[-4:]]
    return f" Path: {' -> '.join(steps)}." if steps else ""


def describe(value: Tree) -> str:
    """Shape and type of a captured array."""
    return f"{np.shape(value)} {getattr(value, 'dtype', type(value).__name__)}"


def user_line(error: BaseException) -> str:
    """The innermost line of the user's code, without values."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if is_of_user(f"{frame.filename}:")]
    return f"{theirs[-1].filename}:{theirs[-1].lineno} ({theirs[-1].name})" if theirs else "an unknown line"
