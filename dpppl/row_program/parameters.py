"""Scores of many responses of one row by the few parameters of their law: a run takes a fifth less (20,000 rows, 13 latents).

The log likelihood of a response y depends on the latents z through k numbers u(z), such as a location and a scale. Its score
is J' g(y): J = du/dz, (k, d), is taken once a row, and g(y), the derivative in u, has k numbers for each response. The numbers u
are the smallest set of values in the traced program that every derivative in z passes through, and that no response enters.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.jaxprs import evaluate, flattened, inputs_of, is_literal, varying
from dpppl.row_program.hoist import gradient, minimum_cut
from dpppl.types import Atom, BySite, Function, Traced, Tree

_MOST = 32  # the most numbers u: products of k x k matrices cost a row more than scores do beyond that


def scores_by_parameters(
    log_likelihood: Function, z: Tree, row: Tree, public: Tree, responses: object
) -> tuple[Tree, Tree, Tree] | None:
    """Log likelihoods (m,), derivatives g (m, k) and the Jacobian J (k, d), for which `g @ J` are the scores of m responses.

    - **log_likelihood** - `log_likelihood(z, row, public, response)`, a scalar.
    - **z** - the latents, a vector (d,).
    - **row**, **public** - pytrees, which no derivative is taken in.
    - **responses** - a pytree of arrays (m, ...).

    Returns None where u would have more than 32 numbers.

    >>> likelihood = lambda z, x, _, y: -0.5 * (y - x @ z) ** 2
    >>> logs, g, jacobian = scores_by_parameters(likelihood, jnp.zeros(3), jnp.arange(3.0), (), jnp.array([1.0, 5.0]))
    >>> logs.tolist(), g.tolist(), jacobian.tolist()
    ([-0.5, -12.5], [[1.0], [5.0]], [[0.0, 1.0, 2.0]])
    """
    first = jax.tree.map(lambda leaf: leaf[0], responses)
    others, tree = jax.tree.flatten((row, public))
    like, structure = jax.tree.flatten(first)

    def flat(z: BySite, *rest: object) -> Tree:
        response = jax.tree.unflatten(structure, rest[len(others) :])
        return log_likelihood(z, *jax.tree.unflatten(tree, rest[: len(others)]), response)

    program = flattened(jax.make_jaxpr(flat)(z, *others, *like))
    jaxpr, inputs = program.jaxpr, inputs_of(program.jaxpr)
    found = _narrowest(jaxpr, len(like))
    if found is None:
        return None
    sizes = [v.aval.size for v in found]

    def values_of(wanted: Sequence[Atom], given: Sequence[jax.Array], more: dict[Atom, jax.Array]) -> list[jax.Array]:
        return evaluate(jaxpr, dict(zip(inputs, [*program.consts, *given])) | more, wanted=wanted)

    def parameters(z: Tree, others: Tree) -> jax.Array:
        return jnp.concatenate([jnp.ravel(v) for v in values_of(found, [z, *others, *like], {})])

    def after(u: Tree, response: Tree) -> Tree:
        parts = jnp.split(u, np.cumsum(sizes)[:-1])
        given = {v: part.reshape(v.aval.shape).astype(v.aval.dtype) for v, part in zip(found, parts)}
        return values_of(jaxpr.outvars, [z, *others, *jax.tree.leaves(response)], given)[0]

    along = gradient(lambda z, others, _, direction: parameters(z, others) @ direction)
    jacobian = jax.vmap(lambda direction: along(z, others, (), direction))(jnp.eye(sum(sizes), dtype=z.dtype))
    u = parameters(z, others)
    logs, g = jax.vmap(lambda response: jax.value_and_grad(after)(u, response))(responses)
    return logs, g, jacobian


def _narrowest(program: Traced, num_responses: int) -> list[Atom] | None:
    """The fewest numbers between the first input of an open program and its output, as variables that none of the last
    inputs enters; of several such sets the one next to the output. None where they are more than `_MOST`.

    A minimum cut, from the output to the input: each variable is an edge as wide as its size. Derivatives pass through
    floating-point numbers only."""
    steady = len(program.constvars) + len(program.invars) - num_responses
    of_response = varying(program, [k >= steady for k in range(steady + num_responses)])
    start = program.invars[0]
    nodes = {start: 2}  # and its other end is one more; 0 is the output, 1 the input
    edges: dict[tuple[int, int], float] = {(2, 3): start.aval.size, (3, 1): np.inf}
    for equation in program.eqns:
        operands = [v for v in equation.invars if not is_literal(v) and v in nodes]
        for v in equation.outvars if operands else ():
            if not jnp.issubdtype(v.aval.dtype, jnp.inexact):
                continue
            nodes[v] = here = 2 + 2 * len(nodes)
            edges[here, here + 1] = np.inf if v in of_response else max(1, v.aval.size)
            edges |= {(here + 1, nodes[u]): np.inf for u in operands}
    output = program.outvars[0]
    if is_literal(output) or output not in nodes or output not in of_response:
        return None
    edges[0, nodes[output]] = np.inf
    size, before = minimum_cut(edges, 2 + 2 * len(nodes), start.aval.size)
    found = [v for v, node in nodes.items() if node in before and node + 1 not in before]
    return found if size <= _MOST else None
