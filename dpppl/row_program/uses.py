"""Where the program of one row uses latents: in which matrix product, convolution or lookup, also in loops, and how else.

A latent that meets the row in one operation alone has a gradient that is a product of what comes in at this operation
and of the derivative with respect to what comes out (Goodfellow 2015, arXiv:1510.01799).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.jaxprs import is_literal, programs, scan_parts
from dpppl.types import Atom, Equation, Traced, Tree

Chain = tuple[tuple[str, tuple[int, ...]], ...]
"""Reshapes and transposes in order: ("reshape", shape), ("transpose", axes)."""

_RESHAPES = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "copy_p"}
_COPIES = _RESHAPES | {"transpose", "slice", "dynamic_slice", "concatenate", "rev", "pad", "gather", "split"}


@dataclass(frozen=True)
class Value:
    """How a value in the program of one row depends on the row and the latents.

    - **of_row** - whether it depends on the row.
    - **latents** - the latents that it depends on, if it does not depend on the row.
    - **source** - the variable that it is a rearrangement of, and how to undo that.
    - **exact** - whether it is copied from the row, or made of its integers: it then has the same bits whenever it is computed.
    """

    of_row: bool = False
    latents: frozenset[int] = frozenset()
    source: tuple[Any, Chain] | None = None
    exact: bool = False


@dataclass(frozen=True)
class Use:
    """One operation of a variable, rearranged, with a value of the row.

    - **kind** - "dot", "convolution" or "lookup".
    - **place** - the equation's number, after those of the scans that it is in.
    - **iterations** - the lengths of these scans.
    - **equation** - the operation.
    - **position** - which of its operands is the variable.
    - **source** - the variable.
    - **chain** - from the operand's shape back to the variable's.
    - **exact** - see `Value`, of the value of the row."""

    kind: str
    place: tuple[int, ...]
    iterations: tuple[int, ...]
    equation: Equation
    position: int
    source: Any
    chain: Chain
    exact: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rearranged variable."""
        return tuple(self.equation.invars[self.position].aval.shape)

    def sizes(self) -> tuple[int, int, int, int]:
        """(G, T, m, n): a row's gradient is G matrices (m, n), each the sum of T outer products."""
        out = math.prod(self.equation.outvars[0].aval.shape)
        total = math.prod(self.shape)
        if self.kind == "dot":
            contracted, batch = (axes[self.position] for axes in self.equation.params["dimension_numbers"])
            groups, m = (math.prod(self.shape[k] for k in axes) for axes in (batch, contracted))
            n = total // max(groups * m, 1)
        else:
            specification = self.equation.params["dimension_numbers"]
            groups, n = 1, total // self.shape[0]
            n = self.shape[specification.rhs_spec[0]] if self.kind == "convolution" else n
            m = total // max(n, 1)
        return groups, math.prod(self.iterations) * (out // max(groups * n, 1)), m, n


@dataclass
class Uses:
    """How a row's program uses latents.

    - **found** - uses in a known form.
    - **direct** - numbers of latents that are used in other ways, too."""

    found: list[Use] = field(default_factory=list)
    direct: set[int] = field(default_factory=set)


def uses_of(program: Traced, latents: Sequence[int], row: Sequence[int]) -> Uses:
    """The uses, in a flattened program, of its inputs with the numbers `latents`; those numbered `row` are the row."""
    uses, values = Uses(), {v: Value() for v in program.jaxpr.constvars}
    for number, v in enumerate(program.jaxpr.invars):
        values[v] = Value(of_row=number in row, exact=number in row)
        if number in latents:
            values[v] = Value(latents=frozenset({latents.index(number)}), source=(v, ()))
    _walk(program.jaxpr, values, uses)
    return uses


def _walk(
    jaxpr: Traced, values: dict[Atom, Value], uses: Uses, place: tuple[int, ...] = (), iterations: tuple[int, ...] = ()
) -> None:
    """Through the equations of a program, or of the body of a scan, whose inputs have these `values`."""
    for number, equation in enumerate(jaxpr.eqns):
        operands = [Value(exact=True) if is_literal(v) else values[v] for v in equation.invars]
        exact = all(operand.exact for operand in operands) and _is_exact(equation)
        if not any(operand.of_row for operand in operands):
            values.update(_without_row(equation, operands, uses, exact, in_loop=bool(iterations)))
            continue
        values.update((v, Value(of_row=True, exact=exact)) for v in equation.outvars)
        here = (*place, number)
        if equation.primitive.name == "scan":
            _walk_scan(equation, operands, uses, here, iterations)
            continue
        mixed = [k for k, operand in enumerate(operands) if operand.latents]
        if len(mixed) == 1 and operands[mixed[0]].source and (kind := _kind(equation, mixed[0], bool(iterations))):
            source, chain = operands[mixed[0]].source or (None, ())
            other = operands[1 - mixed[0]]
            uses.found.append(Use(kind, here, iterations, equation, mixed[0], source, chain, other.exact))
            mixed = []
        uses.direct.update(*(operands[k].latents for k in mixed))
    uses.direct.update(*(values[v].latents for v in jaxpr.outvars if not is_literal(v)))


def _walk_scan(
    equation: Equation, operands: Sequence[Value], uses: Uses, place: tuple[int, ...], iterations: tuple[int, ...]
) -> None:
    """A loop's carried values count as the row's; latents that are carried, or sliced by iteration, are used directly."""
    body, (first, num_carry) = equation.params["jaxpr"], scan_parts(equation)
    uses.direct.update(*(operand.latents for operand in operands[first:]))
    carried = [Value(of_row=True)] * num_carry
    slices = [Value(of_row=operand.of_row, exact=operand.exact) for operand in operands[first + num_carry :]]
    values = dict.fromkeys(body.jaxpr.constvars, Value())
    values |= dict(zip(body.jaxpr.invars, [*operands[:first], *carried, *slices]))
    _walk(body.jaxpr, values, uses, place, (*iterations, equation.params["length"]))


def _without_row(
    equation: Equation, operands: Sequence[Value], uses: Uses, exact: bool, in_loop: bool
) -> dict[Atom, Value]:
    """The outputs of an equation that no row enters. A loop's computation on latents is left to JAX."""
    latents = frozenset().union(*(operand.latents for operand in operands))
    undo = _undone(equation)
    if latents and undo is not None and operands[0].source is not None:
        variable, chain = operands[0].source
        return {equation.outvars[0]: Value(latents=latents, source=(variable, (undo, *chain)), exact=exact)}
    uses.direct |= latents
    if in_loop:
        return dict.fromkeys(equation.outvars, Value(exact=exact))
    return {
        v: Value(latents=latents, source=(v, ()) if latents else None, exact=exact)
        if jnp.issubdtype(v.aval.dtype, jnp.floating)
        else Value(exact=exact)
        for v in equation.outvars
    }


def _undone(equation: Equation) -> tuple[str, tuple[int, ...]] | None:
    """The inverse of an equation that only rearranges its operand; None for others."""
    if len(equation.invars) != 1 or len(equation.outvars) != 1 or is_literal(equation.invars[0]):
        return None
    operand, out = equation.invars[0].aval, equation.outvars[0].aval
    if equation.primitive.name == "transpose":
        return "transpose", tuple(int(k) for k in np.argsort(equation.params["permutation"]))
    return ("reshape", tuple(operand.shape)) if _is_reshape(equation, operand, out) else None


def _is_reshape(equation: Equation, operand: Tree, out: jax.Array) -> bool:
    axes = equation.params.get("broadcast_dimensions", ())
    return equation.primitive.name in _RESHAPES and operand.size == out.size and list(axes) == sorted(axes)


def _is_exact(equation: Equation) -> bool:
    """Whether an equation only copies, or computes integers from integers."""
    avals = [v.aval for v in (*equation.invars, *equation.outvars)]
    whole = all(jnp.issubdtype(a.dtype, jnp.integer) or a.dtype == jnp.bool for a in avals if hasattr(a, "dtype"))
    return equation.primitive.name in _COPIES or (whole and not any(True for _ in programs(equation)))


def _kind(equation: Equation, position: int, in_loop: bool) -> str | None:
    """The kind of use, if an operation with a variable in this place is understood; lookups are not in loops."""
    parameters, name = equation.params, equation.primitive.name
    if name == "dot_general":
        return "dot"
    if name == "conv_general_dilated" and position == 1:
        grouped = parameters["feature_group_count"] != 1 or parameters["batch_group_count"] != 1
        return None if grouped else "convolution"
    if name == "gather" and position == 0 and not in_loop:
        numbers, table = parameters["dimension_numbers"], equation.invars[0].aval.shape
        first = tuple(numbers.start_index_map) == tuple(numbers.collapsed_slice_dims) == (0,)
        whole = tuple(parameters["slice_sizes"]) == (1, *table[1:]) and not numbers.operand_batching_dims
        return "lookup" if first and whole and len(table) > 1 else None
    return None
