"""Checks of programs that may only compute: the program of one row, which the door maps over rows, and branches."""

from jax.extend.core import JaxprEqn

from dpppl import jaxprs
from dpppl.information_flow.lattice import Trail
from dpppl.information_flow.messages import Finding, leak
from dpppl.information_flow.primitives import (
    Kind,
    crosses_devices,
    effects_of,
    is_unset,
    kind_of,
    named,
    other_generators,
)  # fmt: skip


def check_row_program(program: object) -> None:
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


def problem_with(equation: JaxprEqn) -> tuple[str, str] | None:
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
