"""Gradients of rows that share work: what no row enters is differentiated once, not once a row.

Where the program of one row first computes u = f(z) from latents alone (the Cholesky factor of a covariance, or of a Gaussian
process's kernel), JAX's gradient takes every row's derivatives back through f. Here a row's gradient is that of
what follows u, in z and in u, the latter times J = du/dz: no row enters J, so that `jax.vmap` over rows computes it once.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpppl.jaxprs import REARRANGEMENTS, computed, flattened, is_literal, open_jaxpr, programs

_OF_MATRICES = {"cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "schur", "svd", "triangular_solve"}
_OF_PLACES = {"cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "fft", "gather", "sort"}
_DEAR, _PRODUCT = 8, 1 / 8
"""What a number costs in operations such as those, and in products of large matrices, in units of elementwise arithmetic."""
_PART, _LEAST_SAVED, _MOST_DIRECTIONS, _LARGEST_JACOBIAN = 32, 256, 128, 2**22


def gradient(log_likelihood: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.grad(log_likelihood)`: see `value_and_gradient`."""
    return lambda *arguments: value_and_gradient(log_likelihood)(*arguments)[1]


def value_and_gradient(log_likelihood: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.value_and_grad(log_likelihood)` to be mapped over rows: a function of (z, row, public, *more of the row).

    The same numbers but for rounding. JAX's own program unless another one saves work, as shapes alone tell.

    >>> row_gradient = gradient(lambda z, row, public: row @ jnp.linalg.cholesky(z * jnp.eye(8) + z * z).sum(0))
    >>> program = jax.make_jaxpr(jax.vmap(row_gradient, (None, 0, None)))(2.0, np.ones((99, 8), np.float32), None)
    >>> [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "cholesky"]
    [(8, 8)]
    """

    def both(z: Any, row: Any, *rest: Any) -> tuple[Any, Any]:
        latents, tree = jax.tree.flatten(z)
        if not all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in latents):
            return jax.value_and_grad(log_likelihood)(z, row, *rest)
        others, structure = jax.tree.flatten((row, *rest))
        whole = lambda latents, others: log_likelihood(  # noqa: E731
            jax.tree.unflatten(tree, latents), *jax.tree.unflatten(structure, others)
        )
        program = flattened(jax.make_jaxpr(whole)(latents, others))
        public = [True] * len(latents)
        for number, part in enumerate((row, *rest)):
            public += [number == 1] * len(jax.tree.leaves(part))
        shared, used = _shared(program, len(latents), public)
        if not shared:
            return jax.value_and_grad(log_likelihood)(z, row, *rest)
        value, slopes = _in_two(program, latents, others, shared, used)
        return value, jax.tree.unflatten(tree, slopes)

    return both


def _in_two(
    program: Any, latents: Sequence[Any], others: Sequence[Any], shared: Sequence[Any], used: Sequence[int]
) -> tuple[Any, list[Any]]:
    """The output of a flat program and its gradients in `latents`, by way of the variables `shared`, of which those that can
    be differentiated come first, and are made of the latents with the numbers `used`."""
    num_smooth, inputs = sum(map(_is_smooth, shared)), [*program.jaxpr.constvars, *program.jaxpr.invars]

    def values_of(wanted: Sequence[Any], latents: Iterable[Any], given: dict[Any, Any]) -> list[Any]:
        return computed(program.jaxpr, wanted, dict(zip(inputs, [*program.consts, *latents, *others])) | given)

    flat, unflat = ravel_pytree([latents[k] for k in used])

    def once(flat: Any) -> Any:
        full = dict(enumerate(latents)) | dict(zip(used, unflat(flat)))
        u = values_of(shared, full.values(), {})
        return ravel_pytree(u[:num_smooth])[0], u

    def after(latents: Any, smooth: Any) -> Any:
        given = dict(zip(shared, [*smooth, *u[num_smooth:]]))
        return values_of(program.jaxpr.outvars, latents, given)[0]

    sizes = [v.aval.size for v in shared[:num_smooth]]
    if flat.size <= sum(sizes):
        _, push, u = jax.linearize(once, flat, has_aux=True)
        jacobian = jax.vmap(push, out_axes=1)(jnp.eye(flat.size, dtype=flat.dtype))
    else:
        vector, pull, u = jax.vjp(once, flat, has_aux=True)
        jacobian = jax.vmap(pull)(jnp.eye(vector.size, dtype=vector.dtype))[0]
    value, pull = jax.vjp(after, list(latents), u[:num_smooth])
    slopes, of_shared = pull(jnp.ones_like(value))
    parts = jnp.split(jacobian, np.cumsum(sizes)[:-1])
    through = sum(slope.ravel() @ part for slope, part in zip(of_shared, parts))
    for number, slope in zip(used, unflat(through.astype(flat.dtype))):
        slopes[number] += slope
    return value, slopes


def _variables(operands: Sequence[Any]) -> list[Any]:
    return [v for v in operands if not is_literal(v)]


def _is_smooth(v: Any) -> bool:
    return bool(jnp.issubdtype(v.aval.dtype, jnp.inexact))


# Which values are worth it


def _shared(program: Any, num_latents: int, public: Sequence[bool]) -> tuple[list[Any], list[int]]:
    """The variables by way of which most work is saved, and the numbers of the latents that they are made of.

    A minimum cut. Each equation of latents and public inputs alone lies before the cut and is differentiated once, or costs
    each row its `_work`; each variable at the cut costs each row the product with its part of J. Empty where little is saved."""
    from scipy.sparse import csgraph, csr_array

    inputs, sizes = program.jaxpr.invars, [v.aval.size for v in program.jaxpr.invars[:num_latents]]
    made_of = {v: {k} if k < num_latents else set() for k, v in enumerate(inputs) if public[k]}
    made_of |= {v: set() for v in program.jaxpr.constvars}
    makers: dict[Any, int] = {}  # nodes: 0 is the source, 1 the sink
    nodes: dict[Any, int] = {}
    edges: dict[tuple[int, int], float] = {}
    end = 2
    for equation in program.jaxpr.eqns:
        operands = _variables(equation.invars)
        if any(v not in made_of for v in operands):
            edges |= {(nodes[v], 1): math.inf for v in operands if v in nodes}
            continue
        of = set().union(*(made_of[v] for v in operands))
        made_of |= dict.fromkeys(equation.outvars, of)
        if not of:
            continue
        edges[0, end] = _work(equation) * any(map(_is_smooth, equation.outvars))
        edges |= {(nodes[v], end): math.inf for v in operands if v in nodes}
        for k, v in enumerate(equation.outvars):
            makers[v], nodes[v] = end, end + 1 + k
            edges[end, nodes[v]] = _price(v, sum(sizes[k] for k in of))
        end += 1 + len(equation.outvars)
    edges |= {(nodes[v], 1): math.inf for v in program.jaxpr.outvars if v in nodes}
    total = sum(work for (start, _), work in edges.items() if start == 0)
    if total < _LEAST_SAVED:
        return [], []
    unit = max(1.0, total / 2**30)
    capacities = np.array([min(math.ceil(c / unit), 2**30) if c < math.inf else 2**31 - 1 for c in edges.values()], np.int32)
    network = csr_array((capacities, np.transpose(list(edges))), shape=(end, end))
    flow = csgraph.maximum_flow(network, 0, 1)
    left = csr_array(network - flow.flow)
    left.eliminate_zeros()
    before = set(csgraph.breadth_first_order(left, 0, return_predecessors=False))
    shared = [v for v, node in nodes.items() if makers[v] in before and node not in before]
    shared.sort(key=_is_smooth, reverse=True)
    used = sorted(set().union(*(made_of[v] for v in shared)))
    numbers, directions = sum(v.aval.size for v in shared), sum(sizes[k] for k in used)
    saved = total - unit * flow.flow_value
    wide = min(numbers, directions) > _MOST_DIRECTIONS or numbers * directions > _LARGEST_JACOBIAN
    return ([], []) if saved < _LEAST_SAVED or wide else (shared, used)


def _price(v: Any, num_latents: int) -> float:
    """What a variable at the cut costs a row, in the same units."""
    return _PART + v.aval.size * (1 + _PRODUCT * num_latents) if _is_smooth(v) else 1.0


def _work(equation: Any) -> float:
    """What one equation of a row costs, in numbers of elementwise arithmetic, from shapes."""
    shapes = [v.aval.shape for v in (*equation.invars, *equation.outvars)]
    numbers, name = sum(map(math.prod, shapes)), equation.primitive.name
    inside = sum(_work(e) for program in programs(equation) for e in open_jaxpr(program).eqns)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return float(numbers + _PRODUCT * math.prod(shapes[-1]) * math.prod(shapes[0][k] for k in contracted))
    if name in _OF_MATRICES:
        return float(_DEAR * numbers * max(shapes[0][-2:]))
    if name in _OF_PLACES or name.startswith("scatter"):
        return float(_DEAR * numbers)
    if name in REARRANGEMENTS and shapes[0] and math.prod(shapes[0]) == math.prod(shapes[-1]):
        return 0.0
    return float(numbers + equation.params.get("length", 1) * inside)
