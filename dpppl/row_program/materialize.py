"""Statistics of rows as stored numbers, so that the bits that are clipped are those that their norm was computed from.

A compiler may compute a value twice, once for its norm and once for the sum, and round differently, as where it makes one
operation of a product and a sum in only one of the two places. Where terms cancel, one of the two can be 0 and the other huge: a
row would be clipped by the norm of something else. So what is computed of rows passes through `materialize`. Products alone of
stored numbers and of what rows hold have the same bits wherever they are computed: these need not be stored (`ending`),
such as the gradients of a linear predictor, a number times the row's covariates.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.jaxprs import REARRANGEMENTS, evaluate, inputs_of, is_literal, trace
from dpppl.randomness import native
from dpppl.types import Atom, Equation, Function, Traced, Tree

_UNLIKELY = np.float32(0.7356218)
_CALLED = {"float32", "float64", "int32"}
_PRODUCTS = {"mul", "neg", *REARRANGEMENTS} - {"convert_element_type"}  # a conversion may be left out in one place


@dataclass(frozen=True)
class Statistic:
    """A function of a row, in two parts.

    - **first** - of the row: computed once, and stored.
    - **last** - of what is stored and the row: products alone."""

    first: Function
    last: Function = lambda stored, row: stored

    @classmethod
    def of(cls, function: Function) -> "Statistic":
        """`function` itself if it is a `Statistic`; else a `Statistic` that stores all results of `function`."""
        return function if isinstance(function, cls) else cls(function)

    def then(self, function: Function) -> "Statistic":
        """`function`, products or a rearrangement, of what it gives."""
        return Statistic(self.first, lambda stored, row: function(self.last(stored, row)))

    def __call__(self, row: Tree) -> Tree:
        """Both."""
        return self.last(self.first(row), row)

    def of_rows(self, rows: Tree) -> Tree:
        """The value for each of `rows`, a pytree of arrays (B, ...): every use of it sees the same bits."""
        stored = materialize(lambda: jax.vmap(self.first)(rows), rows)
        with jax.default_matmul_precision("highest"):
            return jax.vmap(self.last)(stored, rows)


def materialize(function: Function, rows: Tree) -> Tree:
    """`function()`, a pytree of arrays made of `rows`, computed once: every use reads the same bits.

    On CPUs the results pass through a call of C that returns them. Elsewhere it is the body of a loop of one iteration: the trip
    count is data-dependent, so XLA cannot duplicate the result; `optimization_barrier` does not survive CPU fusion."""

    def computed() -> list[Tree]:
        with jax.default_matmul_precision("highest"):
            return jax.tree.leaves(function())

    def by_call() -> list[Tree]:
        found = computed()
        with jax.enable_x64(True):
            return [native.call(native.STORED, a, x, in_place=True) for a, x in zip(like, found)]

    def by_loop() -> list[Tree]:
        some = sum(jnp.asarray(leaf.ravel()[0], jnp.float32) for leaf in jax.tree.leaves(rows) if leaf.size)
        trip_count = jnp.where(some == _UNLIKELY, 2, 1)
        carry = jnp.zeros_like(trip_count), [*map(jnp.zeros_like, like)]
        return lax.while_loop(lambda carry: carry[0] < trip_count, lambda carry: (carry[0] + 1, computed()), carry)[1]

    like, tree = jax.tree.flatten(jax.eval_shape(function))
    is_called = like and native.available() and {str(x.dtype) for x in like} <= _CALLED
    return jax.tree.unflatten(tree, lax.platform_dependent(default=by_loop, **dict(cpu=by_call) if is_called else {}))


def ending(program: Traced, of_rows: Sequence[bool]) -> tuple[Tree, Tree] | None:
    """Two closed programs for an open one: `first(*inputs)` gives what is to be stored, and `last(*inputs, *that)` the
    outputs, by products alone. None where that is not less than half of the outputs. Constants are the first inputs;
    `of_rows`: which inputs are numbers that a row holds.

    >>> program = jax.make_jaxpr(lambda w, x: jnp.exp(x @ w) * x)(np.ones(9, np.float32), np.ones(9, np.float32)).jaxpr
    >>> [[equation.primitive.name for equation in part.eqns] for part in ending(program, (False, True))]
    [['dot_general', 'exp'], ['mul']]
    """
    inputs = inputs_of(program)
    held = {v for v, of_row in zip(inputs, of_rows) if of_row}
    factors_of: dict[Atom, dict[Atom, None]] = {v: {} for v in held}  # in the program's order, which every process has

    def factors(v: Atom) -> dict[Atom, None]:
        return {} if is_literal(v) else factors_of.get(v, {v: None})

    for equation in program.eqns:
        if _multiplies(equation):
            found = {f: None for v in equation.invars for f in factors(v)}
            factors_of |= {v: found for v in equation.outvars}

    stored: dict[Atom, None] = {}
    for v in program.outvars:
        if not is_literal(v):
            found = factors(v)
            stored |= dict.fromkeys(found if 2 * _numbers(found) < v.aval.size else [v])
    if 2 * _numbers(stored) >= _numbers(v for v in program.outvars if not is_literal(v)):
        return None
    first = trace(lambda *given: evaluate(program, given, wanted=[*stored]), inputs)
    last = trace(lambda *given: evaluate(program, dict(zip([*inputs, *stored], given))), [*inputs, *stored])
    return first, last


def _multiplies(equation: Equation) -> bool:
    """Whether each of its outputs is a product of its operands' numbers, in float32 or float64 throughout."""
    if any(v.aval.dtype not in (jnp.float32, jnp.float64) for v in (*equation.invars, *equation.outvars)):
        return False
    name, shape = equation.primitive.name, np.shape(equation.invars[0].aval) if equation.invars else ()
    if name == "dot_general":
        return math.prod(shape[k] for k in equation.params["dimension_numbers"][0][0]) == 1
    if name == "reduce_sum":
        return math.prod(shape[k] for k in equation.params["axes"]) == 1
    return name in _PRODUCTS


def _numbers(variables: Iterable[Atom]) -> int:
    return sum(v.aval.size for v in variables)
