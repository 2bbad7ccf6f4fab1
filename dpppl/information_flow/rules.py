"""Rules for integers and keys, by primitive. The results of primitives without a rule are unknown.

A rule gives an output's number and key from an equation and what is known of its inputs. Integers are exact modulo 2**32.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from dpppl.information_flow.lattice import LOST, Key, Number, Step, Value, axis, number_of
from dpppl.information_flow.primitives import named
from dpppl.jaxprs import is_key

Found = tuple[Number | None, Key | None]


def is_followed(aval: object) -> bool:
    """Whether an array's elements are integers that do not wrap before 2**32."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits >= 32


def constant(value: Any) -> Number | None:
    """A number that stands in the program."""
    return Number(int(np.asarray(value).item())) if is_followed(value) and np.size(value) == 1 else None


def given_key(root: Any, aval: Any) -> Key | None:
    """The key, or array of different keys, that a program is given."""
    elements = (Step(("element", k), number_of(axis(k))) for k in range(len(aval.shape)))
    return Key(root, tuple(elements)) if is_key(aval) else None


def _slice(equation: Any, inputs: Sequence[Value]) -> Found:
    """Neighbouring elements, or the one that is left."""
    starts, new = enumerate(equation.params["start_indices"]), equation.outvars[0].aval.shape
    if set(equation.params["strides"] or ()) - {1}:
        return None, LOST
    part = inputs[0].renamed({axis(k): Number(n) if new[k] == 1 else number_of(axis(k), n) for k, n in starts})
    return part.number, part.key


def _squeeze(equation: Any, inputs: Sequence[Value]) -> Found:
    """Without axes of length 1."""
    gone, rank = equation.params["dimensions"], len(equation.invars[0].aval.shape)
    left = enumerate(k for k in range(rank) if k not in gone)
    part = inputs[0].renamed({axis(k): Number(0) for k in gone} | {axis(k): number_of(axis(n)) for n, k in left})
    return part.number, part.key


def _unstack(equation: Any, inputs: Sequence[Value]) -> list[Found]:
    """The elements along an axis, each an output: how newer JAX unpacks."""
    gone, rank = equation.params["axis"], len(equation.invars[0].aval.shape)
    left = {axis(k): number_of(axis(k - (k > gone))) for k in range(rank)}
    parts = [inputs[0].renamed(left | {axis(gone): Number(n)}) for n in range(len(equation.outvars))]
    return [(part.number, part.key) for part in parts]


def _broadcast(equation: Any, inputs: Sequence[Value]) -> Found:
    """One number for all chains. (One key would be a key twice.)"""
    return (None if equation.invars[0].aval.shape else inputs[0].number), LOST


def _add(equation: JaxprEqn, inputs: Sequence[Value]) -> Found:
    """A constant added."""
    first, second = (value.number for value in inputs)
    if first is None or second is None or (first.terms and second.terms):
        return None, LOST
    return first.plus(second), LOST


def _convert(equation: JaxprEqn, inputs: Sequence[Value]) -> Found:
    """To another type: the same modulo 2**32."""
    return (inputs[0].number if is_followed(equation.outvars[0].aval) else None), LOST


def _iota(equation: Any, inputs: Sequence[Value]) -> Found:
    """0, 1, 2, ..."""
    aval = equation.outvars[0].aval
    return (number_of(axis(0)) if is_followed(aval) and len(aval.shape) == 1 else None), LOST


def _fold_in(equation: Any, inputs: Sequence[Value]) -> Found:
    """The child of a number: of each key by its own, of each by one, or of one by each."""
    key, number = inputs[0].key, inputs[1].number
    of_key, of_number = (v.aval.shape for v in equation.invars)
    if key in (None, LOST) or number is None or (of_key and of_number and of_key != of_number):
        return None, LOST
    return None, key._replace(path=(*key.path, Step(("fold",), number)))


def _split(equation: Any, inputs: Sequence[Value]) -> Found:
    """The given number of children, along a new last axis."""
    key, shape, rank = inputs[0].key, tuple(equation.params["shape"]), len(equation.invars[0].aval.shape)
    if key in (None, LOST) or len(shape) != 1:
        return None, LOST
    return None, key._replace(path=(*key.path, Step(("split", *shape), number_of(axis(rank)))))


RULES: dict[Any, Callable[[Any, Sequence[Value]], Found | list[Found]]] = {
    named("slice"): _slice, named("squeeze"): _squeeze, named("unstack"): _unstack, named("broadcast_in_dim"): _broadcast,
    named("add"): _add, named("convert_element_type"): _convert, named("iota"): _iota, named("random_fold_in"): _fold_in,
    named("random_split"): _split,
}  # fmt: skip
