"""Gradients of rows that share work: what does not depend on rows is differentiated once, not once a row.

Where the program of one row first computes u = f(z) from latents alone (the Cholesky factor of a covariance, or of a Gaussian
process's kernel), JAX's gradient takes every row's derivatives back through f. Here a row's gradient is that of
what follows u, in z and in u, the latter times J = du/dz: no row enters J, so that `jax.vmap` over rows computes it once.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.flatten_util import ravel_pytree

from dpppl import jaxprs
from dpppl.jaxprs import REARRANGEMENTS, evaluate, flattened, inputs_of, is_literal, walk
from dpppl.row_program import linear_algebra as solves
from dpppl.types import Atom, BySite, Equation, Function, Traced, Tree

_FACTORISATIONS = {"cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "svd"}
_OF_PLACES = {"cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "fft", "gather", "sort"}
_DEAR, _PRODUCT = 8, 1 / 8
"""The cost of a number in such operations, and in products of large matrices, in units of elementwise arithmetic."""
_PART, _LEAST_SAVED, _MOST_DIRECTIONS, _LARGEST_JACOBIAN = 32, 256, 128, 2**22
_MOST_MARKED = 256


@dataclass(frozen=True)
class Marked:
    """The log likelihood of a row, of (position, row, public, responses or None), with a gradient of NaN where it is -infinity
    or NaN: NumPyro's is 0 outside the support, as if the row were masked. It stays 0 where there are many latents, and where
    there are responses in place of the row's own. It is multiplied by 1 or by NaN, so that `materialize` need not store it.

    - **log_likelihood** - the function without the mark."""

    log_likelihood: Function

    def __call__(self, position: BySite, *rest: object) -> Tree:
        return self.log_likelihood(position, *rest)

    def value_and_gradient(
        self, position: BySite, row: Tree, public: Tree, responses: Tree = None
    ) -> tuple[Tree, Tree]:
        """The value, and its gradient in `position` with the mark."""
        rest = () if responses is None else (responses,)
        value, slopes = value_and_gradient(self.log_likelihood)(position, row, public, *rest)
        if responses is None and sum(jnp.size(leaf) for leaf in jax.tree.leaves(position)) <= _MOST_MARKED:
            mark = jnp.where(jnp.isneginf(value) | jnp.isnan(value), jnp.nan, 1.0)
            slopes = jax.tree.map(lambda slope: slope * mark.astype(slope.dtype), slopes)
        return value, slopes


def gradient(log_likelihood: Function) -> Function:
    """The second of what `value_and_gradient` gives."""
    return lambda *arguments: value_and_gradient(log_likelihood)(*arguments)[1]


def value_and_gradient(log_likelihood: Function) -> Function:
    """`jax.value_and_grad(log_likelihood)` to be mapped over rows: a function of (z, row, public, *more of the row).

    JAX's own program, unless another one saves work, as shapes alone tell: the same numbers but for rounding.

    >>> row_gradient = gradient(lambda z, row, public: row @ jnp.linalg.cholesky(z * jnp.eye(8) + z * z).sum(0))
    >>> program = jax.make_jaxpr(jax.vmap(row_gradient, (None, 0, None)))(2.0, np.ones((99, 8), np.float32), None)
    >>> [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "cholesky"]
    [(8, 8)]
    """

    if isinstance(log_likelihood, Marked):
        return log_likelihood.value_and_gradient

    def both(z: BySite, *rest: object) -> tuple[Tree, Tree]:
        (latents, tree), (others, structure) = jax.tree.flatten(z), jax.tree.flatten(rest)

        def flat(latents: Tree, others: Tree) -> Tree:
            return log_likelihood(jax.tree.unflatten(tree, latents), *jax.tree.unflatten(structure, others))

        if all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in latents):
            traced = jax.make_jaxpr(flat)(latents, others)
            public = [number == 1 for number, part in enumerate(rest) for _ in jax.tree.leaves(part)]
            steady = [True] * len(latents) + public
            program = flattened(traced) if _steady_work(traced, steady) >= _LEAST_SAVED else None
            shared, used = ([], []) if program is None else _shared(program, len(latents), steady)
            if shared:
                value, slopes = _in_two(program, latents, others, shared, used)
                return value, jax.tree.unflatten(tree, slopes)
        return jax.value_and_grad(log_likelihood)(z, *rest)

    return both


def _in_two(
    program: Traced, latents: Sequence[jax.Array], others: Sequence[jax.Array], shared: Sequence[Atom],
    used: Sequence[int],
) -> tuple[Traced, list[jax.Array]]:  # fmt: skip
    """The output of a flat program and its gradients in `latents`, by way of the variables `shared`: of these the ones that
    can be differentiated come first, and are made of the latents numbered `used`.

    Of an ill-conditioned triangular system A x = b, dx/dz is so large, and cancels so much, that little precision would be
    left. So x at the cut is x0 - A0^-1 r, as a function of the residual r(z) = A(z) x0 - b(z), which is 0: J is that of r, and
    rows solve for the rest."""
    num_smooth, inputs = sum(map(_is_smooth, shared)), inputs_of(program.jaxpr)
    flat, unflat = ravel_pytree([latents[k] for k in used])

    def values_of(wanted: Sequence[Atom], latents: Iterable[jax.Array], given: dict[Atom, Tree]) -> list[jax.Array]:
        return evaluate(program.jaxpr, dict(zip(inputs, [*program.consts, *latents, *others])) | given, wanted=wanted)

    makers = {equation.outvars[0]: equation for equation in program.jaxpr.eqns if solves.is_system(equation)}
    systems = {k: makers[v] for k, v in enumerate(shared) if v in makers}

    def before(flat: Tree) -> Tree:
        full = dict(enumerate(latents)) | dict(zip(used, unflat(flat)))
        u = values_of(shared, full.values(), {})
        moving, matrices = u[:num_smooth], {}
        for k, equation in systems.items():
            matrices[k], given = values_of(equation.invars, full.values(), {})
            moving[k] = solves.applied(matrices[k], lax.stop_gradient(u[k]), **equation.params) - given
        return ravel_pytree(moving)[0], (u, matrices)

    sizes = [v.aval.size for v in shared[:num_smooth]]
    if flat.size <= sum(sizes) and not _backwards_only(program):
        _, push, (u, matrices) = jax.linearize(before, flat, has_aux=True)
        jacobian = jax.vmap(push, out_axes=1)(jnp.eye(flat.size, dtype=flat.dtype))
    else:
        vector, pull, (u, matrices) = jax.vjp(before, flat, has_aux=True)
        jacobian = jax.vmap(pull)(jnp.eye(vector.size, dtype=vector.dtype))[0]

    def after(latents: Tree, moving: Tree) -> Tree:
        smooth = list(moving)
        for k, equation in systems.items():
            smooth[k] = u[k] - lax.linalg.triangular_solve(matrices[k], moving[k], **equation.params)
        given = dict(zip(shared, [*smooth, *u[num_smooth:]]))
        return values_of(program.jaxpr.outvars, latents, given)[0]

    start = [jnp.zeros_like(value) if k in systems else value for k, value in enumerate(u[:num_smooth])]
    run = _by_products(jax.value_and_grad(after, (0, 1)))
    (value, (slopes, of_shared)), (_, (_, is_zero)) = run(list(latents), start)
    through, parts = jnp.zeros(flat.size, flat.dtype), jnp.split(jacobian, np.cumsum(sizes)[:-1])
    for slope, zero, part in zip(of_shared, is_zero, parts):
        through += 0.0 if zero else slope.ravel() @ part  # zero times infinity, where nothing was to be differentiated
    for number, slope in zip(used, unflat(through.astype(flat.dtype))):
        slopes[number] += slope
    return value, slopes


def _by_products(function: Function) -> Function:
    """The same function, in which sums over all axes, or the last ones, are products with ones: of many short rows XLA
    computes these several times as fast on a CPU. It also gives which of its outputs are written down as 0."""

    def rule(equation: Equation, operands: Sequence[jax.Array]) -> list[jax.Array] | None:
        if equation.primitive.name != "reduce_sum" or not _is_smooth(equation.outvars[0]):
            return None
        x, lead = operands[0], equation.outvars[0].aval.ndim
        if lead == x.ndim or tuple(equation.params["axes"]) != tuple(range(lead, x.ndim)):
            return None
        x = x.reshape(*x.shape[:lead], math.prod(x.shape[lead:]))
        ones, last = jnp.ones(x.shape[-1], x.dtype), (((lead,), (0,)), ((), ()))
        return [lax.dot_general(x, ones, last, precision=lax.Precision.HIGHEST)]

    def run(*arguments: object) -> Tree:
        program, like = jax.make_jaxpr(function, return_shape=True)(*arguments)
        program, tree = flattened(program, rule), jax.tree.structure(like)
        copied = lambda e, given: [e.primitive.name in REARRANGEMENTS and given[0]] * len(e.outvars)  # noqa: E731
        nothing = [False] * len(inputs_of(program.jaxpr))
        zeros = walk(program.jaxpr, nothing, copied, lambda value, aval: not np.any(value))
        leaves = jaxpr_as_fun(program)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(tree, leaves), jax.tree.unflatten(tree, zeros)

    return run


def _backwards_only(program: Traced) -> bool:
    """Whether something in it has no derivative but its own, from results to arguments."""
    return any(equation.primitive.name.startswith("custom_vjp") for equation in jaxprs.equations(program))


def _is_smooth(v: Tree) -> bool:
    return bool(jnp.issubdtype(v.aval.dtype, jnp.floating))


# Which values are worth it


def _shared(program: Traced, num_latents: int, public: Sequence[bool]) -> tuple[list[jax.Array], list[int]]:
    """The variables by way of which most work is saved, and the numbers of the latents that they are made of.

    A minimum cut. Each equation of latents and public inputs alone lies before the cut, and is differentiated once, or costs
    each row its `_work`; each variable at the cut costs each row its `_price`. Empty where little is saved. Functions of
    solutions of triangular systems lie behind the cut, unless they are factorised again (`_in_two`)."""
    inputs, sizes = program.jaxpr.invars, [v.aval.size for v in program.jaxpr.invars[:num_latents]]
    made_of = {v: {k} if k < num_latents else set() for k, v in enumerate(inputs) if public[k]}
    made_of |= {v: set() for v in program.jaxpr.constvars}
    makers, nodes, edges = dict[Atom, int](), dict[Atom, int](), dict[tuple[int, int], float]()
    factorised, solutions = set[Atom](), set[Atom]()
    for equation in reversed(program.jaxpr.eqns):
        if equation.primitive.name in _FACTORISATIONS or factorised.intersection(equation.outvars):
            factorised.update(v for v in equation.invars if not is_literal(v))
    end = 2  # 0 is where all costs are saved, 1 are the rows
    for equation in program.jaxpr.eqns:
        operands = [v for v in equation.invars if not is_literal(v)]
        if any(v not in made_of for v in operands):
            edges |= {(nodes[v], 1): math.inf for v in operands if v in nodes}
            continue
        of = set().union(*(made_of[v] for v in operands))
        made_of |= dict.fromkeys(equation.outvars, of)
        if of:
            edges[0, end] = _work(equation) * any(map(_is_smooth, equation.outvars))
            edges |= {(nodes[v], end): math.inf for v in operands if v in nodes}
            edges |= {(end, makers[v]): math.inf for v in operands if v in nodes}
            if solutions.intersection(operands):
                edges[end, 1] = math.inf
            if equation.primitive.name == "triangular_solve":
                solutions.update(set(equation.outvars) - factorised)
            for k, v in enumerate(equation.outvars):
                makers[v], nodes[v] = end, end + 1 + k
                edges[end, end + 1 + k] = _price(v, sum(sizes[k] for k in of))
                if jnp.issubdtype(v.aval.dtype, jnp.complexfloating):
                    edges[end, end + 1 + k] = math.inf
            end += 1 + len(equation.outvars)
    edges |= {(nodes[v], 1): math.inf for v in program.jaxpr.outvars if v in nodes}
    total = sum(work for (start, _), work in edges.items() if start == 0)
    if total < _LEAST_SAVED:
        return [], []
    cost, before = minimum_cut(edges, end, total)
    shared = [v for v, node in nodes.items() if makers[v] in before and node not in before]
    shared.sort(key=_is_smooth, reverse=True)
    used = sorted(set().union(*(made_of[v] for v in shared)))
    numbers, directions = sum(v.aval.size for v in shared if _is_smooth(v)), sum(sizes[k] for k in used)
    passes = numbers if _backwards_only(program) else min(numbers, directions)
    wide = passes > _MOST_DIRECTIONS or numbers * directions > _LARGEST_JACOBIAN
    return ([], []) if total - cost < _LEAST_SAVED or wide or not numbers else (shared, used)


def _steady_work(program: Traced, steady: Sequence[bool]) -> float:
    """The work of equations that no row enters; `steady`: which inputs no row enters."""
    total = 0.0

    def rule(equation: Equation, given: Sequence[bool]) -> list[bool]:
        nonlocal total
        if (outputs := jaxprs.called(equation, given, rule, lambda *_: True)) is not None:
            return outputs
        total += _work(equation) * all(given)
        return [all(given)] * len(equation.outvars)

    walk(program, steady, rule, lambda *_: True)
    return total


def minimum_cut(edges: dict[tuple[int, int], float], size: int, total: float) -> tuple[float, set[int]]:
    """The cost of the cheapest cut between nodes 0 and 1, of those below `size`, and the nodes on the side of 0."""
    from scipy.sparse import csgraph, csr_array

    unit = max(1.0, total / 2**30)
    capacities = [2**31 - 1 if c > 2**30 * unit else math.ceil(c / unit) for c in edges.values()]
    network = csr_array((np.array(capacities, np.int32), np.transpose(list(edges))), shape=(size, size))
    flow = csgraph.maximum_flow(network, 0, 1)
    left = csr_array(network - flow.flow)
    left.eliminate_zeros()
    return unit * flow.flow_value, set(csgraph.breadth_first_order(left, 0, return_predecessors=False).tolist())


def _price(v: Tree, num_latents: int) -> float:
    """Cost of a variable at the cut for each row, in the units of `_work`."""
    return _PART + v.aval.size * (1 + _PRODUCT * num_latents) if _is_smooth(v) else 1.0


def _work(equation: Equation) -> float:
    """Cost of one equation for each row: the number of elementwise operations, from shapes."""
    shapes = [v.aval.shape for v in (*equation.invars, *equation.outvars)]
    numbers, name = sum(map(math.prod, shapes)), equation.primitive.name
    inside = sum(_work(e) for program in jaxprs.programs(equation) for e in jaxprs.open_jaxpr(program).eqns)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return float(numbers + _PRODUCT * math.prod(shapes[-1]) * math.prod(shapes[0][k] for k in contracted))
    if name in _FACTORISATIONS or name == "triangular_solve":
        return float(_DEAR * numbers * max(shapes[0][-2:]))
    if name in _OF_PLACES or name.startswith("scatter"):
        return float(_DEAR * numbers)
    if name in REARRANGEMENTS and shapes[0] and math.prod(shapes[0]) == math.prod(shapes[-1]):
        return 0.0
    return float(numbers + equation.params.get("length", 1) * inside)
