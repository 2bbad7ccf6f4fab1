"""How wide a run's intervals would be, by latent, before data: rows are made up, and informed as the model says they are."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.accounting.planning import Z90
from dpppl.information_flow.executables import run_once
from dpppl.model.arguments import Arrays
from dpppl.model.initialization import drawn_from_prior
from dpppl.model.split import SplitModel
from dpppl.noise_aware.binding import BoundModel
from dpppl.row_statistics.coordinates import MOST_FULL
from dpppl.row_statistics.matrices import posterior_covariance, root_of
from dpppl.types import Tree
from dpppl.validation import element_name

_ROWS, _DRAWS, _MOST_CODES = 128, 64, 1_000


class Width(NamedTuple):
    """Widths of a 90 % interval, each the median over prior draws.

    - **name** - the latent, with its index where it has several.
    - **width**, **without** - of a run, and without privacy."""

    name: str
    width: float
    without: float


def widths(bound: BoundModel, added: float, key: jax.Array) -> tuple[list[Width], str]:
    """Widths of the sites in which the likelihood is measured, and why there are none, in words.

    Columns of numbers are standard normal, codes as frequent as one another, of those in range, masks true.

    - **added** - the variance that privacy adds; see `accounting.looks.added_variance`."""
    split, coordinates, public = bound.split, bound.coordinates, bound.public
    if coordinates.dimension > MOST_FULL or bound.symmetric:
        return [], f"latents may change places, or are more than {MOST_FULL}"

    def information(v: jax.Array, public: Arrays, row: Tree) -> jax.Array:
        likelihood = lambda v, r: split.log_likelihood(coordinates.latents(v), row[0], public, r)  # noqa: E731
        others, weights = bound.responses(coordinates.latents(v), row[0], public, row[1])
        scores = jax.vmap(jax.grad(likelihood), (None, 0))(v, others)
        scores = jnp.where(weights[1:, None] > 0.0, scores, 0.0)
        return jnp.einsum("m,mi,mj->ij", weights[1:] / jnp.sum(weights[1:]), scores, scores)

    def constrained(v: jax.Array, public: Arrays) -> Arrays:
        z = coordinates.latents(v)
        values = split.constrain(z, public)
        return {site: z[site] if site in coordinates.held else values[site] for site in coordinates.sites}

    def at(v: jax.Array, public: Arrays, rows: Tree) -> Tree:
        each = jax.lax.map(partial(information, v, public), rows, batch_size=32)
        is_finite = jnp.all(jnp.isfinite(each), axis=(1, 2))
        mean = jnp.sum(jnp.where(is_finite[:, None, None], each, 0.0), axis=0) / jnp.sum(is_finite)
        return mean, jnp.mean(is_finite), jax.jacobian(constrained)(v, public)

    draws = drawn_from_prior(split, public, jax.random.fold_in(key, 0), _DRAWS, coordinates.vector)
    rows = _made_up(split, public, jax.random.fold_in(key, 1)), jax.random.split(jax.random.fold_in(key, 2), _ROWS)
    found = run_once(lambda draws, public, rows: jax.lax.map(lambda v: at(v, public, rows), draws), draws, public, rows)
    of_row, share, jacobians = jax.tree.map(lambda x: np.asarray(x, np.float64), found)
    if np.median(share) < 0.5:
        return [], "made-up columns do not fit the model"
    of_row, jacobians = of_row[share >= 0.5], jax.tree.map(lambda x: x[share >= 0.5], jacobians)
    prior, _ = coordinates.prior(public, key)
    root = root_of(np.asarray(prior.correlation) * np.outer(prior.scales, prior.scales))

    def of_noise(added: float) -> dict[str, np.ndarray]:
        covariance = posterior_covariance(split.num_rows * of_row / (1.0 + added), root)
        variances = {s: np.einsum("n...i,nij,n...j->n...", j, covariance, j) for s, j in jacobians.items()}
        return {site: 2.0 * Z90 * np.median(np.sqrt(v), axis=0) for site, v in variances.items()}

    with_noise, without = of_noise(added), of_noise(0.0)
    found = [
        Width(element_name(site, place), float(value), float(without[site][place]))
        for site, values in with_noise.items()
        for place, value in np.ndenumerate(values)
    ]
    return found, ""


def _made_up(split: SplitModel, public: Arrays, key: jax.Array) -> Arrays:
    """Rows of made-up values, (128, ...): of a column of codes those that the model takes, found by trying."""
    blank = {name: jnp.full(s.shape, s.dtype == bool, s.dtype) for name, s in split.row.items()}  # no mask hides a code
    latents, found = {name: jnp.zeros(s.shape, s.dtype) for name, s in split.latents.items()}, {}
    for number, (name, s) in enumerate(split.row.items()):
        own, shape = jax.random.fold_in(key, number), (_ROWS, *s.shape)
        if jnp.issubdtype(s.dtype, jnp.floating):
            found[name] = jax.random.normal(own, shape, s.dtype)
        elif s.dtype == bool:
            found[name] = jnp.ones(shape, bool)
        else:
            codes = jnp.arange(_MOST_CODES).astype(s.dtype)

            def is_out(code: jax.Array, public: Arrays, name: str = name) -> jax.Array:
                row = blank | {name: jnp.full_like(blank[name], code)}
                outside = split.is_out_of_range(latents, row, public)
                return jnp.zeros((), bool) if outside is None else jnp.any(outside)

            outside = np.asarray(run_once(jax.vmap(is_out, (0, None)), codes, public))
            inside = codes[~outside] if outside.any() and not outside.all() else codes[:2]
            found[name] = jax.random.permutation(own, jnp.resize(inside, math.prod(shape))).reshape(shape)
    return found
