"""What is found, in words."""

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend import source_info_util

from dpppl.information_flow.lattice import Trail


@dataclass(frozen=True, slots=True)
class Finding:
    """A way by which something private could leave. `kind`: one or two words; `what`: a sentence; `trail`: the way."""

    kind: str
    what: str
    trail: Trail | None = None


def message(findings: Sequence[Finding]) -> str:
    """The first findings, a line each."""
    shown = [f"{finding.what}.{_path(finding.trail)}" for finding in findings[:5]]
    if len(findings) > 5:
        shown.append(f"... and {len(findings) - 5} more.")
    return "\n".join(shown)


def describe(value: Any) -> str:
    """Shape and type of a captured array."""
    return f"{np.shape(value)} {getattr(value, 'dtype', type(value).__name__)}"


def user_line(error: BaseException) -> str:
    """The innermost line of the user's code, without values."""
    ours = os.path.dirname(os.path.dirname(__file__))
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(ours)]
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


def _source(equation: Any) -> str:
    name = str(equation.primitive.name)
    try:
        where = source_info_util.summarize(equation.source_info)
    except Exception:  # these are only words: another version of JAX may have no such function
        where = ""
    return f"{where}: {name}" if where else name
