"""Findings of the proof, in words."""

import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from dpppl.errors import PrivacyLeakError
from dpppl.information_flow.lattice import Trail
from dpppl.jaxprs import is_of_user, source_of

CURE = (
    "Loop over jax.random.split(key, n), or count a step by one. Followed are keys made by fold_in and split(key, n), and their "
    "elements at constant places or in lax.scan; integer arguments and constants with constants added, and counters in "
    "the state of lax.scan and lax.fori_loop; not what lax.cond or a changing state makes of keys, reversed scans, other "
    "indices and arithmetic, or the raw words of keys"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A way by which something private could leave.

    - **kind** - one or two words.
    - **what** - a sentence.
    - **trail** - the equations on the way."""

    kind: str
    what: str
    trail: Trail | None = None


def leak(*findings: Finding) -> PrivacyLeakError:
    """The error, which says the first findings, a line each."""
    shown = [f"{finding.what}.{_path(finding.trail)}" for finding in findings[:5]]
    if len(findings) > 5:
        shown.append(f"... and {len(findings) - 5} more.")
    return PrivacyLeakError("\n".join(shown), findings)


def describe(value: Any) -> str:
    """Shape and type of a captured array."""
    return f"{np.shape(value)} {getattr(value, 'dtype', type(value).__name__)}"


def user_line(error: BaseException) -> str:
    """The innermost line of the user's code, without values."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if is_of_user(f"{frame.filename}:")]
    return f"{theirs[-1].filename}:{theirs[-1].lineno} ({theirs[-1].name})" if theirs else "an unknown line"


def _path(trail: Trail | None) -> str:
    """The way of a secret, from the argument on, each source line once."""
    steps: list[str] = []
    while trail is not None:
        step = trail.step if isinstance(trail.step, str) else _source(trail.step)
        if not steps or steps[-1] != step:
            steps.append(step)
        trail = trail.before
    steps.reverse()
    if len(steps) > 8:
        steps = [*steps[:3], "...", *steps[-4:]]
    return f" Path: {' -> '.join(steps)}." if steps else ""


def _source(equation: JaxprEqn) -> str:
    name = str(equation.primitive.name)
    where = source_of(equation)
    return f"{where}: {name}" if where else name
