"""The program of one row, which a door holds and runs for each: it may compute, and nothing else."""

from typing import Any

from dpppl import jaxprs
from dpppl.errors import PrivacyLeakError
from dpppl.information_flow.lattice import Trail
from dpppl.information_flow.messages import Finding, message
from dpppl.information_flow.primitives import Kind, crosses_devices, effects_of, is_unset, kind_of


def check_row_program(program: Any) -> None:
    """Raise PrivacyLeakError for a jaxpr that does more than compute its outputs from one row and public values.

    `jax.vmap` of what is left keeps rows apart by construction: every operation is JAX's own, with JAX's own rule of
    batching; none talks to other devices or to Python, and none has an effect."""
    for equation in jaxprs.equations(program):
        problem = _problem_with(equation)
        if problem is not None:
            finding = Finding(*problem, Trail(equation))
            raise PrivacyLeakError(message((finding,)), (finding,))


def _problem_with(equation: Any) -> tuple[str, str] | None:
    kind, name = kind_of(equation.primitive), equation.primitive.name
    if kind is Kind.CALLBACK or effects_of(equation):
        return "effect", f"the likelihood of a row calls {name}: it may only compute; print and call outside"
    if is_unset(equation):
        return "effect", f"the likelihood of a row calls {name}, whose memory may hold anything: use jnp.zeros"
    if crosses_devices(equation):
        return "door", f"the likelihood of a row calls {name}, by which devices could exchange rows: leave it out"
    if kind is Kind.UNKNOWN:
        return "unknown", (
            f"the likelihood of a row calls {name}, which is not known here: with a rule of batching of its own it could "
            "mix rows. Use operations of JAX"
        )
    return None
