"""The program of one row that gives, for each latent, the row's gradient or two factors of it.

Latents that meet the row in one matrix product with one position, or in one lookup, are differentiated no further than to
what comes out of it: their gradient is never formed. The gradient of convolutions, and of products in loops, is formed by
one matrix product over all positions and iterations.
All else is differentiated by JAX.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.jaxprs import bind, evaluate, flattened, scan_parts
from dpppl.row_program.convolutions import few_channels, patches, rule
from dpppl.row_program.uses import Chain, Use, uses_of
from dpppl.types import Atom, BySite, Equation, Function, Traced, Tree

_MOST_POSITIONS = 128
"""Of lookups of one row: their gradients are added up by a square matrix of them."""
_SAVING = 4.0

Place = tuple[int, ...]
Shifts = dict[Place, Any]
"""See `Use.place`."""


@dataclass(frozen=True)
class Form:
    """How the rows' gradients in one latent are given.

    - **kind** - "whole": (g,), the gradient itself, or (G, n, m) with a way to `restore` it. "outer": (a, b), of shapes (G, m)
      and (G, n): G outer products. "lookup": (i, b), of shapes (T,) and (T, n): rows i of a table (m, n), all others zero;
      indices are unique, and m is padding.
    - **shape**, **dtype** - those of the latent.
    - **sizes** - (G, T, m, n).
    - **restore** - from (G, m, n), or what is given, to the latent's shape.
    - **exact** - whether the first of two factors is copied from the row."""

    kind: str
    shape: tuple[int, ...]
    dtype: Any
    sizes: tuple[int, int, int, int] = (0, 0, 0, 0)
    restore: Chain = ()
    exact: bool = False

    @property
    def numbers(self) -> int:
        """How many numbers a row's gradient takes in this form."""
        groups, positions, m, n = self.sizes
        whole = math.prod(self.shape)
        return {"whole": whole, "outer": groups * (m + n), "lookup": positions * (n + positions)}[self.kind]


@dataclass(frozen=True)
class Plan:
    """How a row's gradients are formed in all latents.

    - **forms** - one for each latent.
    - **summed** - convolutions, and uses in loops, whose products over positions are formed.
    - **factored** - for each latent its one use, where the gradient is not formed; else None.
    - **program** - the flat program of one row."""

    forms: tuple[Form, ...]
    summed: tuple[Use, ...]
    factored: tuple[Use | None, ...]
    program: Traced

    @property
    def worthwhile(self) -> bool:
        """Whether most latents are in a form that is faster than JAX's own gradients of rows."""
        inputs = self.program.jaxpr.invars
        convolved = [use.source for use in self.summed]
        sizes = [math.prod(form.shape) for form in self.forms]
        faster = [form.kind != "whole" or any(v is s for s in convolved) for form, v in zip(self.forms, inputs)]
        return sum(size for size, fast in zip(sizes, faster) if fast) > 0.5 * sum(sizes)


def plan(log_likelihood: Function, z: BySite, row: Tree, public: Tree = None) -> Plan:
    """How to form the gradients of `log_likelihood(z, row, public)` in z, from the shapes and types of one row alone."""
    leaves, tree = jax.tree.flatten((z, row, public))
    num_latents, num_row = len(jax.tree.leaves(z)), len(jax.tree.leaves(row))
    with jax.default_matmul_precision("highest"):
        traced = jax.make_jaxpr(lambda *leaves: log_likelihood(*jax.tree.unflatten(tree, leaves)))(*leaves)
        program = flattened(traced)
    uses = uses_of(program, range(num_latents), range(num_latents, num_latents + num_row))
    forms, factored = [], []
    for number, v in enumerate(program.jaxpr.invars[:num_latents]):
        own = [use for use in uses.found if use.source is v]
        use = own[0] if len(own) == 1 and number not in uses.direct and _saves(own[0]) else None
        form = Form("whole", tuple(v.aval.shape), v.aval.dtype)
        if use is not None:
            kind = "outer" if use.kind == "dot" else use.kind
            form = Form(kind, form.shape, form.dtype, use.sizes(), (*_to_operand(use), *use.chain), use.exact)
        elif len(own) == 1 and number not in uses.direct and _is_summed(own[0]):
            chain = (("transpose", (0, 2, 1)), *_to_operand(own[0]), *own[0].chain)
            form = Form("whole", form.shape, form.dtype, own[0].sizes(), chain)
        forms.append(form)
        factored.append(use)
    summed = [use for use in uses.found if use not in factored and _is_summed(use)]
    return Plan(tuple(forms), tuple(summed), tuple(factored), program)


def _is_summed(use: Use) -> bool:
    """Whether the latent's gradient is formed by one product over all positions and iterations."""
    return use.kind == "convolution" or bool(use.iterations)


def _saves(use: Use) -> bool:
    """Whether the factors of a latent's gradient are much smaller than it."""
    _, positions, m, n = use.sizes()
    dtypes = {v.aval.dtype for v in (*use.equation.invars, *use.equation.outvars)}
    if use.kind == "convolution" or use.iterations or sum(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes) != 1:
        return False
    if use.kind == "lookup":
        return positions <= _MOST_POSITIONS and _SAVING * positions <= m
    return positions == 1 and m * n >= _SAVING * (m + n)


def factors(plan: Plan, leaves: Sequence[jax.Array]) -> list[tuple[jax.Array, ...]]:
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
            given = zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *with_latents(values)])
            return evaluate(jaxpr, dict(given), wanted=list(sums))

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
    program: Traced, arguments: Sequence[jax.Array], chosen: dict[Place, Use], shifts: Shifts
) -> tuple[list[jax.Array], Shifts]:
    """The program's outputs, with what comes out of each chosen use shifted; and what came in there from the row."""
    jaxpr, seen = program.jaxpr, cast(Shifts, {})
    numbers = {id(equation): number for number, equation in enumerate(jaxpr.eqns)}

    def rewritten(equation: Equation, operands: Sequence[jax.Array]) -> Sequence[Any] | None:
        number = numbers[id(equation)]
        inside = {place[1:]: use for place, use in chosen.items() if place[0] == number}
        if not inside:
            return rule(equation, operands)
        if () not in inside:
            own = {place: shifts[number, *place] for place in inside}
            outputs, found = _run_scan(equation, operands, inside, own)
            seen.update({(number, *place): value for place, value in found.items()})
            return outputs
        use, operands = inside[()], list(operands)
        operands[use.position], seen[number,] = lax.stop_gradient(operands[use.position]), operands[1 - use.position]
        output = None
        if use.kind == "convolution" and use.exact:  # its patches are formed for the gradient
            output = few_channels(equation.params, *operands)
        if output is None:
            (output,) = rule(equation, operands) or bind(equation, operands)
        return [output + shifts[number,]]

    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *arguments]))
    return evaluate(jaxpr, values, rewritten), seen


def _run_scan(
    equation: Equation, operands: Sequence[jax.Array], chosen: dict[Place, Use], shifts: Shifts
) -> tuple[list[jax.Array], Shifts]:
    """Evaluate a scan, iteration by iteration."""
    parameters, (first, num_carry) = equation.params, scan_parts(equation)
    last = first + num_carry

    def iteration(carry: Tree, given: Tree) -> Tree:
        slices, own = given
        outputs, seen = _run(parameters["jaxpr"], [*operands[:first], *carry, *slices], chosen, own)
        return outputs[:num_carry], (outputs[num_carry:], seen)

    carry, (ys, seen) = lax.scan(
        iteration, operands[first:last], (operands[last:], shifts), parameters["length"], parameters["reverse"],
        parameters["unroll"],
    )  # fmt: skip
    return [*carry, *ys], seen


# Both sides of a use as matrices over positions


def _all_positions(use: Use, a: jax.Array, b: jax.Array) -> tuple[Tree, Tree]:
    """`_positions` over all iterations of loops."""
    each = lambda a, b: _positions(use, a, b)  # noqa: E731
    for _ in use.iterations:
        each = jax.vmap(each, out_axes=1)
    groups, positions, m, n = use.sizes()
    a, b = each(a, b)
    return a.reshape(groups, positions, m), b.reshape(groups, positions, n)


def _positions(use: Use, a: jax.Array, b: jax.Array) -> tuple[Tree, Tree]:
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


def _to_operand(use: Use) -> Chain:
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
