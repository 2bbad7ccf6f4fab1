"""Ghost clipping: sums of clipped gradients of rows whose gradients are not formed.

`factored(log_likelihood, z, row, public)` finds where the program of one row uses latents and makes a program of one row that
gives factors of its gradient; `ghost_sum.clipped_sum` gets the rows' norms from the factors, and the sum of the clipped gradients
as one weighted product. There are no layers to register: what is not understood falls back, latent by latent.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.factors import factors, plan
from dpppl.access.ghost_sum import Forms
from dpppl.types import BySite, Function, Tree

_FEWEST_LATENTS = 2048


@dataclass(frozen=True)
class Factored:
    """A row's gradient in factors.

    - **statistic** - of (z, row, public): factors of the row's gradient in z.
    - **forms** - what the factors mean.
    - **worthwhile** - whether this is likely to be faster than forming the gradient."""

    statistic: Function
    forms: Forms
    worthwhile: bool


def factored(log_likelihood: Function, z: BySite, row: Tree, public: Tree, *, always: bool = False) -> Factored | None:
    """How to form the gradient of `log_likelihood(z, row, public)` in factors, from shapes and types alone.

    None where that is of no use: all of the gradient would be formed, or (unless `always`) there are few latents."""
    leaves, tree = jax.tree.flatten(z)
    if not all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves):
        return None
    if sum(int(np.prod(jnp.shape(leaf))) for leaf in leaves) < _FEWEST_LATENTS and not always:
        return None
    found = plan(log_likelihood, z, row, public)
    if not found.program.out_avals[0].shape == () or not (any(found.factored) or found.summed):
        return None

    def statistic(*arguments: object) -> Tree:
        return factors(found, jax.tree.leaves(arguments))

    return Factored(statistic, Forms(found.forms, tree), found.worthwhile)
