"""The program of one row, which a door holds and runs for each: it may compute, and nothing else."""

from collections.abc import Sequence
from typing import Any

from dpppl import jaxprs
from dpppl.errors import PrivacyLeakError
from dpppl.information_flow.lattice import Trail
from dpppl.information_flow.messages import Finding, message
from dpppl.information_flow.primitives import Kind, crosses_devices, effects_of, is_key, is_unset, kind_of, named


def check_row_program(program: Any, key_types: Sequence[Any]) -> None:
    """Raise PrivacyLeakError for a jaxpr that does more than compute its outputs from one row and public values.

    `jax.vmap` of what is left keeps rows apart by construction: every operation is JAX's own, with JAX's own rule of
    batching; none talks to other devices or to Python, and none has an effect. Random bits come from keys of `key_types`
    alone: others' generators draw all rows' bits from the first row's key (rbg), or run code that is not in the program."""
    for equation in jaxprs.equations(program):
        problem = _problem_with(equation, key_types)
        if problem is not None:
            finding = Finding(*problem, Trail(equation))
            raise PrivacyLeakError(message((finding,)), (finding,))


def _problem_with(equation: Any, key_types: Sequence[Any]) -> tuple[str, str] | None:
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
    keys = {v.aval.dtype for v in (*equation.invars, *equation.outvars) if is_key(v.aval)}
    if not keys <= set(key_types) or equation.primitive in (named("rng_bit_generator"), named("rng_uniform")):
        return "door", (
            f"the likelihood of a row calls {name} with a random generator whose draws for one row may depend on others: use "
            "keys of threefry2x32 or dpppl's own"
        )
    return None
