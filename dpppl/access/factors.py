"""The program of one row that gives, for each latent, the row's gradient or two factors of it; found from where it uses latents.

A latent that meets the row in one operation alone has a gradient that is a product of what comes in at this operation
and of the derivative with respect to what comes out (Goodfellow 2015, arXiv:1510.01799). Of one matrix product with one
position, or of one lookup, it is never formed. The gradient of convolutions, and of products in loops, is formed by
one matrix product over all positions and iterations. All else is differentiated by JAX.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.access.convolutions import few_channels, patches, rule
from dpppl.jaxprs import bind, evaluate, flattened, inputs_of, is_literal, programs, scan_parts, walk
from dpppl.types import Atom, BySite, Equation, Function, Traced, Tree

_MOST_POSITIONS = 128
"""Of lookups of one row: their gradients are added up by a square matrix of them."""
_SAVING = 4.0
_RESHAPES = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "copy_p"}
_COPIES = _RESHAPES | {"transpose", "slice", "dynamic_slice", "concatenate", "rev", "pad", "gather", "split"}

Place = tuple[int, ...]
Shifts = dict[Place, jax.Array]
"""See `FactorUse.place`."""
Chain = tuple[tuple[str, tuple[int, ...]], ...]
"""Reshapes and transposes in order: ("reshape", shape), ("transpose", axes)."""


# Where the program of one row uses latents


class FactorValue(NamedTuple):
    """How a value in the program of one row depends on the row and the latents.

    - **of_row** - whether it depends on the row.
    - **latents** - the latents that it depends on, if it does not depend on the row.
    - **source** - the variable that it is a rearrangement of, and how to undo that.
    - **exact** - whether it is copied from the row, or made of its integers: then it has the same bits always."""

    of_row: bool = False
    latents: frozenset[int] = frozenset()
    source: tuple[Atom, Chain] | None = None
    exact: bool = False


@dataclass(frozen=True)
class FactorUse:
    """One operation of a variable, rearranged, with a value of the row.

    - **kind**, **equation** - "dot", "convolution" or "lookup"; and the operation.
    - **place**, **iterations** - the equation's number, after those of the scans that it is in; the lengths of these.
    - **position**, **source** - which of its operands is the variable, and the variable.
    - **chain** - from the operand's shape back to the variable's.
    - **exact** - see `FactorValue`, of the value of the row."""

    kind: str
    place: Place
    iterations: tuple[int, ...]
    equation: Equation
    position: int
    source: Atom
    chain: Chain
    exact: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rearranged variable."""
        return tuple(self.equation.invars[self.position].aval.shape)

    def sizes(self) -> tuple[int, int, int, int]:
        """(G, T, m, n): a row's gradient is G matrices (m, n), each the sum of T outer products."""
        numbers, total, groups = self.equation.params["dimension_numbers"], math.prod(self.shape), 1
        if self.kind == "dot":
            contracted, batch = (axes[self.position] for axes in numbers)
            groups, m = (math.prod(self.shape[k] for k in axes) for axes in (batch, contracted))
            n = total // max(groups * m, 1)
        else:
            n = self.shape[numbers.rhs_spec[0]] if self.kind == "convolution" else total // self.shape[0]
            m = total // max(n, 1)
        out = math.prod(self.equation.outvars[0].aval.shape)
        return groups, math.prod(self.iterations) * (out // max(groups * n, 1)), m, n


@dataclass
class Uses:
    """How a row's program uses latents.

    - **found** - uses in a known form.
    - **direct** - numbers of latents that are used in other ways, too."""

    found: list[FactorUse] = field(default_factory=list)
    direct: set[int] = field(default_factory=set)


def uses_of(program: Traced, latents: Sequence[int], row: Sequence[int]) -> Uses:
    """The uses, in a flattened program, of its inputs with the numbers `latents`; those numbered `row` are the row."""
    uses, values = Uses(), {v: FactorValue() for v in program.jaxpr.constvars}
    for number, v in enumerate(program.jaxpr.invars):
        values[v] = FactorValue(of_row=number in row, exact=number in row)
        if number in latents:
            values[v] = FactorValue(latents=frozenset({latents.index(number)}), source=(v, ()))
    _walk(program.jaxpr, values, uses)
    return uses


def _walk(jaxpr: Traced, values: Tree, uses: Uses, place: Place = (), iterations: tuple[int, ...] = ()) -> None:
    """Through a program, or the body of a scan, with inputs of these `values`. In loops, computing on latents is left to JAX;
    carried values count as the row's; latents that are carried, or sliced by iteration, are used directly."""
    numbers = {id(equation): number for number, equation in enumerate(jaxpr.eqns)}

    def found(equation: Equation, operands: Sequence[FactorValue]) -> list[FactorValue]:
        exact, here = (
            all(operand.exact for operand in operands) and _is_exact(equation),
            (*place, numbers[id(equation)]),
        )
        latents = frozenset[int]().union(*(operand.latents for operand in operands))
        if not any(operand.of_row for operand in operands):
            undo = _undone(equation)
            if latents and undo is not None and operands[0].source is not None:
                variable, chain = operands[0].source
                return [FactorValue(latents=latents, source=(variable, (undo, *chain)), exact=exact)]
            uses.direct.update(latents)
            followed = (not iterations and jnp.issubdtype(v.aval.dtype, jnp.floating) for v in equation.outvars)
            sources = ((v, ()) if latents else None for v in equation.outvars)
            return [
                FactorValue(False, latents, s, exact) if f else FactorValue(exact=exact)
                for s, f in zip(sources, followed)
            ]
        if equation.primitive.name == "scan":
            body, (first, num_carry) = equation.params["jaxpr"], scan_parts(equation)
            uses.direct.update(*(operand.latents for operand in operands[first:]))
            slices = [
                FactorValue(of_row=operand.of_row, exact=operand.exact) for operand in operands[first + num_carry :]
            ]
            inside = [
                *[FactorValue()] * len(body.jaxpr.constvars),
                *operands[:first],
                *[FactorValue(True)] * num_carry,
                *slices,
            ]
            _walk(body.jaxpr, inside, uses, here, (*iterations, equation.params["length"]))
            return [FactorValue(of_row=True, exact=exact)] * len(equation.outvars)
        mixed = [k for k, operand in enumerate(operands) if operand.latents]
        if len(mixed) == 1 and operands[mixed[0]].source and (kind := _kind(equation, mixed[0], bool(iterations))):
            source, chain = operands[mixed[0]].source or (None, ())
            other = operands[1 - mixed[0]]
            uses.found.append(FactorUse(kind, here, iterations, equation, mixed[0], source, chain, other.exact))
            mixed = []
        uses.direct.update(*(operands[k].latents for k in mixed))
        return [FactorValue(of_row=True, exact=exact)] * len(equation.outvars)

    uses.direct.update(*(value.latents for value in walk(jaxpr, values, found, lambda *_: FactorValue(exact=True))))


def _undone(equation: Equation) -> tuple[str, tuple[int, ...]] | None:
    """The inverse of an equation that only rearranges its operand; None for others."""
    if len(equation.invars) != 1 or len(equation.outvars) != 1 or is_literal(equation.invars[0]):
        return None
    operand, out = equation.invars[0].aval, equation.outvars[0].aval
    if equation.primitive.name == "transpose":
        return "transpose", tuple(int(k) for k in np.argsort(equation.params["permutation"]))
    axes = list(equation.params.get("broadcast_dimensions", ()))
    is_reshape = equation.primitive.name in _RESHAPES and operand.size == out.size and axes == sorted(axes)
    return ("reshape", tuple(operand.shape)) if is_reshape else None


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


# How gradients are formed


@dataclass(frozen=True)
class Form:
    """How the rows' gradients in one latent are given.

    - **kind** - "whole": (g,), the gradient itself, or (G, n, m) with a way to `restore` it. "outer": (a, b), of shapes (G, m)
      and (G, n): G outer products. "lookup": (i, b), of shapes (T,) and (T, n): rows i of a table (m, n), all others zero;
      indices are unique, and m is padding.
    - **shape**, **dtype** - those of the latent.
    - **sizes** - (G, T, m, n).
    - **restore** - from (G, m, n), or what is given, to the latent's shape.
    - **exact** - whether the first of two factors is copied from the row.
    - **convolved** - whether the latent is the kernel of a convolution."""

    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sizes: tuple[int, int, int, int] = (0, 0, 0, 0)
    restore: Chain = ()
    exact: bool = False
    convolved: bool = False

    @property
    def numbers(self) -> int:
        """How many numbers a row's gradient takes in this form, and both sides of the product that it is formed by."""
        groups, positions, m, n = self.sizes
        whole = math.prod(self.shape) + groups * positions * (m + n)
        return {"whole": whole, "outer": groups * (m + n), "lookup": positions * (n + positions)}[self.kind]


@dataclass(frozen=True)
class FactorPlan:
    """How a row's gradients are formed in all latents.

    - **forms**, **program** - one for each latent; the flat program of one row.
    - **summed** - convolutions, and uses in loops, whose products over positions are formed.
    - **factored** - for each latent its one use, where the gradient is not formed; else None."""

    forms: tuple[Form, ...]
    summed: tuple[FactorUse, ...]
    factored: tuple[FactorUse | None, ...]
    program: Traced

    @property
    def worthwhile(self) -> bool:
        """Whether most latents are in a form that is faster than JAX's own gradients of rows."""
        inputs = self.program.jaxpr.invars
        convolved = [use.source for use in self.summed]
        sizes = [math.prod(form.shape) for form in self.forms]
        faster = [form.kind != "whole" or any(v is s for s in convolved) for form, v in zip(self.forms, inputs)]
        return sum(size for size, fast in zip(sizes, faster) if fast) > 0.5 * sum(sizes)


def factor_plan(log_likelihood: Function, z: BySite, row: Tree, public: Tree = None) -> FactorPlan:
    """How to form the gradients of `log_likelihood(z, row, public)` in z, from the shapes and types of one row alone."""
    leaves, tree = jax.tree.flatten((z, row, public))
    num_latents, num_row = len(jax.tree.leaves(z)), len(jax.tree.leaves(row))
    with jax.default_matmul_precision("highest"):
        traced = jax.make_jaxpr(lambda *leaves: log_likelihood(*jax.tree.unflatten(tree, leaves)))(*leaves)
        program = flattened(traced)
    uses = uses_of(program, range(num_latents), range(num_latents, num_latents + num_row))
    is_summed = lambda use: use.kind == "convolution" or bool(use.iterations)  # noqa: E731
    forms, factored = list[Form](), list[FactorUse | None]()
    for number, v in enumerate(program.jaxpr.invars[:num_latents]):
        own = [use for use in uses.found if use.source is v]
        form, alone = Form("whole", tuple(v.aval.shape), v.aval.dtype), len(own) == 1 and number not in uses.direct
        use = own[0] if alone and _saves(own[0]) else None
        if use is not None:
            kind = "outer" if use.kind == "dot" else use.kind
            form = Form(kind, form.shape, form.dtype, use.sizes(), (*_to_operand(use), *use.chain), use.exact)
        elif alone and is_summed(own[0]):
            chain = (("transpose", (0, 2, 1)), *_to_operand(own[0]), *own[0].chain)
            form = Form("whole", form.shape, form.dtype, own[0].sizes(), chain, False, own[0].kind == "convolution")
        forms.append(form)
        factored.append(use)
    summed = [use for use in uses.found if use not in factored and is_summed(use)]
    return FactorPlan(tuple(forms), tuple(summed), tuple(factored), program)


def _saves(use: FactorUse) -> bool:
    """Whether the factors of a latent's gradient are much smaller than it."""
    _, positions, m, n = use.sizes()
    dtypes = {v.aval.dtype for v in (*use.equation.invars, *use.equation.outvars)}
    if use.kind == "convolution" or use.iterations or sum(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes) != 1:
        return False
    if use.kind == "lookup":
        return positions <= _MOST_POSITIONS and _SAVING * positions <= m
    return positions == 1 and m * n >= _SAVING * (m + n)


def factors(plan: FactorPlan, leaves: Sequence[jax.Array]) -> list[tuple[jax.Array, ...]]:
    """Of one row: what `plan.forms` describe, given the leaves of (z, row, public)."""
    whole = [number for number, form in enumerate(plan.forms) if form.kind == "whole" and not form.restore]
    chosen = {use.place: use for use in (*plan.summed, *plan.factored) if use is not None}

    def with_latents(values: Sequence[jax.Array]) -> list[jax.Array]:
        full = list(leaves)
        for number, value in zip(whole, values):
            full[number] = value
        return full

    def run(values: Sequence[jax.Array], shifts: Shifts) -> Tree:
        (out,), seen = _run(plan.program, with_latents(values), chosen, shifts)
        return out, seen

    outputs = {place: (use.iterations, use.equation.outvars[0].aval) for place, use in chosen.items()}
    shifts = {place: jnp.zeros((*iterations, *out.shape), out.dtype) for place, (iterations, out) in outputs.items()}
    values = [leaves[number] for number in whole]
    out, pull_back, seen = jax.vjp(run, values, shifts, has_aux=True)
    gradients, derivatives = pull_back(jnp.ones_like(out))
    formed: dict[Atom, jax.Array] = {}
    sums: dict[Atom, jax.Array] = {}
    inputs = dict(zip(plan.program.jaxpr.invars, plan.forms))
    for use in plan.summed:
        a, b = _all_positions(use, seen[use.place], derivatives[use.place])
        if use.source in inputs and inputs[use.source].restore:
            # On CPUs this order is 3 times as fast as (m, n), and putting it right row by row takes longer than both.
            b = lax.optimization_barrier(b.swapaxes(1, 2))
            formed[use.source] = lax.dot_general(b, a, (((2,), (1,)), ((0,), (0,))))
        else:
            product = restored(jnp.einsum("gtm,gtn->gmn", a, b), (*_to_operand(use), *use.chain))
            sums[use.source] = sums[use.source] + product if use.source in sums else product
    if sums:
        jaxpr, consts = plan.program.jaxpr, plan.program.consts

        def sources(values: Sequence[jax.Array]) -> list[jax.Array]:
            given = dict(zip(inputs_of(jaxpr), [*consts, *with_latents(values)]))
            return evaluate(jaxpr, given, wanted=list(sums))

        _, pull_back = jax.vjp(sources, values)
        (more,) = pull_back(list(sums.values()))
        gradients = [jnp.add(*pair) for pair in zip(gradients, more)]
    of_whole = iter(gradients)
    found: list[tuple[jax.Array, ...]] = []
    for v, own in zip(plan.program.jaxpr.invars, plan.factored):
        if own is None:
            found.append((formed[v] if v in formed else next(of_whole),))
            continue
        a, b = _positions(own, seen[own.place], derivatives[own.place])
        found.append(_distinct(a, b, own.shape[0]) if own.kind == "lookup" else (a[:, 0], b[:, 0]))
    return found


def restored(array: jax.Array, chain: Chain) -> jax.Array:
    """Reshapes and transposes, in order."""
    for name, numbers in chain:
        array = array.reshape(numbers) if name == "reshape" else array.transpose(numbers)
    return array


def _run(
    program: Traced, arguments: Sequence[jax.Array], chosen: dict[Place, FactorUse], shifts: Shifts
) -> tuple[list[jax.Array], Shifts]:
    """The program's outputs, with what comes out of each chosen use shifted; and what came in there from the row."""
    seen = cast(Shifts, {})
    numbers = {id(equation): number for number, equation in enumerate(program.jaxpr.eqns)}

    def shifted(equation: Equation, operands: Sequence[jax.Array]) -> Sequence[Tree] | None:
        number = numbers[id(equation)]
        inside = {place[1:]: use for place, use in chosen.items() if place[0] == number}
        if not inside:
            return rule(equation, operands)
        if () not in inside:  # a scan
            parameters, (first, num_carry) = equation.params, scan_parts(equation)
            last = first + num_carry

            def iteration(carry: Tree, given: Tree) -> Tree:
                outputs, own = _run(parameters["jaxpr"], [*operands[:first], *carry, *given[0]], inside, given[1])
                return outputs[:num_carry], (outputs[num_carry:], own)

            slices = operands[last:], {place: shifts[number, *place] for place in inside}
            settings = (parameters[name] for name in ("length", "reverse", "unroll"))
            carry, (ys, own) = lax.scan(iteration, list(operands[first:last]), slices, *settings)
            seen.update({(number, *place): value for place, value in own.items()})
            return [*carry, *ys]
        use, operands = inside[()], list(operands)
        operands[use.position], seen[number,] = lax.stop_gradient(operands[use.position]), operands[1 - use.position]
        output = None
        if use.kind == "convolution" and use.exact:  # its patches are formed for the gradient
            output = few_channels(equation.params, *operands)
        if output is None:
            (output,) = rule(equation, operands) or bind(equation, operands)
        return [output + shifts[number,]]

    return evaluate(program, arguments, shifted), seen


# Both sides of a use as matrices over positions


def _all_positions(use: FactorUse, a: jax.Array, b: jax.Array) -> tuple[Tree, Tree]:
    """`_positions` over all iterations of loops."""
    each: Function = partial(_positions, use)
    for _ in use.iterations:
        each = jax.vmap(each, out_axes=1)
    groups, positions, m, n = use.sizes()
    a, b = each(a, b)
    return a.reshape(groups, positions, m), b.reshape(groups, positions, n)


def _positions(use: FactorUse, a: jax.Array, b: jax.Array) -> tuple[Tree, Tree]:
    """The row's input (G, T, m) and the derivative (G, T, n); for a lookup, (T,) and (T, n)."""
    groups, positions, m, n = replace(use, iterations=()).sizes()
    numbers = use.equation.params["dimension_numbers"]
    if use.kind == "lookup":
        outer = [k for k in range(b.ndim) if k not in numbers.offset_dims]
        number, b = a.reshape(positions), b.transpose(*outer, *numbers.offset_dims).reshape(positions, n)
        if use.equation.params["mode"] == lax.GatherScatterMode.CLIP:
            number = jnp.clip(number, 0, m - 1)
        return jnp.where((number >= 0) & (number < m), number, m), b
    if use.kind == "convolution":
        a = patches(a, use.equation.params, use.shape)
        first, channel, *space = numbers.out_spec
        return a.reshape(1, positions, m), b.transpose(first, *space, channel).reshape(1, positions, n)
    contracted, batch = (axes[1 - use.position] for axes in numbers)
    free = [k for k in range(a.ndim) if k not in contracted and k not in batch]
    a = a.transpose(*batch, *free, *contracted)
    own, after = len(use.shape) - len(contracted) - len(batch), list(range(len(batch), b.ndim))
    of_row, of_latent = (after[: len(free)], after[len(free) :]) if use.position else (after[own:], after[:own])
    b = b.transpose(*range(len(batch)), *of_row, *of_latent)
    return a.reshape(groups, positions, m), b.reshape(groups, positions, n)


def _to_operand(use: FactorUse) -> Chain:
    """Reshape (G, m, n) to the shape of the operand."""
    numbers = use.equation.params["dimension_numbers"]
    if use.kind == "lookup":
        return (("reshape", use.shape),)
    if use.kind == "convolution":
        out, into, *space = numbers.rhs_spec
        order = [*space, into, out]
    else:
        contracted, batch = (axes[use.position] for axes in numbers)
        order = [*batch, *contracted, *(k for k in range(len(use.shape)) if k not in batch and k not in contracted)]
    back = tuple(int(k) for k in np.argsort(order))
    return ("reshape", tuple(use.shape[k] for k in order)), ("transpose", back)


def _distinct(number: np.ndarray, b: jax.Array, size: int) -> tuple[Tree, Tree]:
    """Each number below `size` once, with the sum of the rows of `b` that have it; in other places `size`, and zeros."""
    same = number[:, None] == number[None, :]
    first = (jnp.argmax(same, axis=1) == jnp.arange(len(number))) & (number < size)
    total = lax.dot(same.astype(b.dtype), b, precision=lax.Precision.HIGHEST)
    return jnp.where(first, number, size), jnp.where(first[:, None], total, np.zeros((), b.dtype))
