"""Findings of the proof, in words; and checks of programs that may only compute: the program of one row, and branches."""

import traceback
from dataclasses import dataclass

import numpy as np

from dpppl import jaxprs
from dpppl.errors import PrivacyLeakError
from dpppl.information_flow.lattice import Trail
from dpppl.information_flow.rules import (
    Kind,
    crosses_devices,
    effects_of,
    is_unset,
    kind_of,
    named,
    other_generators,
)  # fmt: skip
from dpppl.jaxprs import is_of_user, source_of
from dpppl.types import Equation, Traced, Tree

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


def describe(value: Tree) -> str:
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


def _source(equation: Equation) -> str:
    name = str(equation.primitive.name)
    where = source_of(equation)
    return f"{where}: {name}" if where else name


def check_row_program(program: Traced) -> None:
    """Raise PrivacyLeakError for a jaxpr that does more than compute its outputs from one row and public values.

    `jax.vmap` of what is left keeps rows apart by construction: every operation is JAX's own, with JAX's own rule of
    batching; none talks to other devices or to Python, and none has an effect. Random bits come from threefry2x32 and
    ChaCha20 alone: others draw all rows' bits from the first row's key (rbg), or run code that is not in the program.

    >>> import jax
    >>> check_row_program(jax.make_jaxpr(lambda z, row: -0.5 * (row - z) ** 2)(0.0, 1.0).jaxpr)
    """
    for equation in jaxprs.equations(program):
        problem = problem_with(equation)
        if problem is not None:
            what = f"the likelihood of a row calls {equation.primitive.name}{problem[1]}"
            raise leak(Finding(problem[0], what, Trail(equation)))


def problem_with(equation: Equation) -> tuple[str, str] | None:
    """The side effect of an equation, as a kind of finding and in words; None if it only computes."""
    kind = kind_of(equation.primitive)
    if kind is Kind.CALLBACK or effects_of(equation):
        return "effect", ": it may only compute; print and call outside"
    if is_unset(equation):
        return "effect", ", whose memory may hold anything: use jnp.zeros"
    if crosses_devices(equation):
        return "door", ", by which devices could exchange rows: leave it out"
    if kind is Kind.UNKNOWN:
        return "unknown", ", which is not known here: its rule of batching could mix rows. Use operations of JAX"
    if other_generators(equation) or equation.primitive in (named("rng_bit_generator"), named("rng_uniform")):
        return (
            "noise",
            " with a random generator whose draws for one row may depend on others: use threefry2x32 or ChaCha20",
        )
    return None
