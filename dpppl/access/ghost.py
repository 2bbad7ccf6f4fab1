"""Ghost clipping: sums of clipped gradients of rows whose gradients are not formed.

`factored(log_likelihood, z, row, public)` finds where the program of one row uses latents and makes a program of one row that
gives factors of its gradient; `clipped_sum` gets the rows' norms from the factors, and the sum of the clipped gradients
as one weighted product. There are no layers to register: what is not understood falls back, latent by latent.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access import ghost_sum as sums
from dpppl.access.ghost_sum import MOST_DEVICES
from dpppl.access.ghost_weights import supports
from dpppl.row_program.convolutions import rewrite
from dpppl.row_program.factors import Form, factors, plan
from dpppl.types import BySite, Function, Tree

__all__ = ["MOST_DEVICES", "Factored", "Forms", "clipped_sum", "factored", "plan", "rewrite", "supports"]

_FEWEST_LATENTS = 2048


@dataclass(frozen=True)
class Forms:
    """How rows' gradients are given as factors.

    - **of_latents** - the form of the gradient in each latent.
    - **tree** - the structure of the latents."""

    of_latents: tuple[Form, ...]
    tree: Tree

    @property
    def like(self) -> Any:
        """The latents' shapes and types."""
        return jax.tree.unflatten(self.tree, [jax.ShapeDtypeStruct(f.shape, f.dtype) for f in self.of_latents])


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

    def statistic(*arguments: object) -> Any:
        return factors(found, jax.tree.leaves(arguments))

    return Factored(statistic, Forms(found.forms, tree), found.worthwhile)


def clipped_sum(
    statistic: Function,
    forms: Forms,
    rows: Any,
    mask: Any,
    clipping: Any,
    norm: Any = None,
    counts: bool = False,
    **places: Any,
) -> Any:
    """The sum over rows of clipped gradients whose factors `statistic(row)` gives: see `sums.clipped_sum`."""
    return sums.clipped_sum(statistic, forms.of_latents, forms.tree, rows, mask, clipping, norm, counts, **places)
