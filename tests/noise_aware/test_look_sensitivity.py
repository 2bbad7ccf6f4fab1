"""No row of any kind of model releases more than its bound, whatever it holds: then the door clips nothing, and sums stay unbiased."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_models import latent
from test_noise_aware import full, state_of

import dpppl
from dpppl.access.clipping import Flat
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.noise_aware.binding import bind
from dpppl.row_statistics.accesses import num_directions
from dpppl.row_statistics.shared_law import statistics_of

X = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
X[1, 0], X[2, 1], X[3], X[4], X[5], X[6, 2], X[7] = np.nan, 1e30, 0.0, 1e-20, 40.0, -1e6, [0.0, 0.0, 9.0]
NUMBERS = np.array([0.3, 1.0, 0.0, -1e30, 2.0, -30.0, 1.0, 1e4, np.inf, -np.inf, np.nan, 0.0], np.float32)
COUNTS = np.array([0, 1, 2, 3, 0, 1, 0, -1, 2**30, 2, 1, 0], np.int32)
SEEN = np.arange(12) % 3 != 1


def of(law):
    """A model whose rows follow `law` of a linear predictor."""

    def model(x, y):
        w = latent("w", 3)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", law(x @ w), obs=y)

    return model


def scaled(x, y):
    w, scale = latent("w", 3), numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def classes(x, y):
    w = latent("w", 3, 2)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=jnp.pad(x @ w, ((0, 0), (0, 1)))), obs=y)


def cells(y):
    w = latent("w", 11)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=jnp.pad(w, (0, 1))), obs=y)


def masked(x, y, seen):
    w = latent("w", 3)
    with numpyro.plate("data", x.shape[0]):
        with numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def missing(x, known, seen, y):
    w, place = latent("w", 3), latent("place")
    with numpyro.plate("data", x.shape[0]):
        more = numpyro.sample("more", dist.Normal(place, 1.0), obs=known, obs_mask=seen)
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + more), obs=y)


def censored(x, y, seen):
    w = latent("w", 3)
    with numpyro.plate("data", x.shape[0]):
        law = dist.RightCensoredDistribution(dist.Exponential(jnp.exp(x @ w)), seen)
        numpyro.sample("y", law, obs=y, infer={"censored_by": 2.0})


WEIGHTED = {"weights": "weight", "max_weight": 2.0}, {"weight": np.append(np.linspace(0.0, 4.0, 10), [np.nan, -1.0])}
UNITS = {"unit": "person", "max_rows_per_unit": 3}, {"person": np.arange(12) // 3}
PLAIN = {}, {}
binary, normal, poisson = (
    of(law)
    for law in (lambda e: dist.Bernoulli(logits=e), lambda e: dist.Normal(e, 1.0), lambda e: dist.Poisson(jnp.exp(e)))
)
KINDS = {
    "two responses": (binary, (X, 1.0 * (COUNTS == 1)), PLAIN),
    "drawn": (scaled, (X, NUMBERS), PLAIN),
    "drawn, sandwich": (scaled, (X, NUMBERS), ({"width": "sandwich"}, {})),
    "listed": (classes, (X, COUNTS), PLAIN),
    "counts": (poisson, (X, COUNTS), PLAIN),
    "one law": (cells, (COUNTS,), PLAIN),
    "weighted": (binary, (X, 1.0 * (COUNTS == 1)), WEIGHTED),
    "weighted, drawn": (scaled, (X, NUMBERS), WEIGHTED),
    "units": (normal, (X, np.where(np.isfinite(NUMBERS), NUMBERS, 0.0)), UNITS),
    "masked": (masked, (X, COUNTS, SEEN), PLAIN),
    "missing": (missing, (X, NUMBERS, SEEN, 1.0 * (COUNTS == 1)), PLAIN),
    "censored": (censored, (X, NUMBERS, SEEN), PLAIN),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_longer_than_one_and_some_are_that_long(kind):
    """All parts of a look jointly, histograms and scalars; for norms that clip all rows or none, and shares of scores. A row of which
    a number is not finite adds zero."""
    model, args, (settings, columns) = KINDS[kind]
    private = dpppl.NoiseAware(model, noise_multiplier=1.0, print_cost=False, **settings)
    bound = bind(
        private, tuple(a.astype(np.float32) if a.dtype == float else a for a in args), columns, dpppl.secret_key()
    )
    dimension = bound.coordinates.dimension
    statistics = statistics_of(
        bound.responses, bound.coordinates.latents, full(dimension).first(), private.weights, private.most_scores
    )
    rows = {name: np.asarray(value) for name, value in bound.rows.items()}
    rows[ROW_NUMBER] = np.arange(len(next(iter(rows.values()))), dtype=np.int32)
    directions = np.random.default_rng(1).standard_normal((dimension, num_directions(dimension)))

    @jax.jit
    def every(at):
        def of_row(row):
            return [
                f(at, row, (bound.public, jax.random.key(0)))
                for f in (statistics.look, statistics.bins, statistics.scalars)
            ]

        found = jax.vmap(of_row)(rows)
        return found, [Flat(1.0).clip(one, None) for one in found]

    longest = []
    for norm, share in ((0.5, 0.7), (1e-3, 0.2), (1e3, 0.95)):
        at = state_of(
            full(dimension), point=np.full(dimension, 0.3), norm=norm, curvature_bound=0.4 * norm**2, score_share=share, directions=directions
        )  # fmt: skip
        for released, clipped in zip(*every(at)):
            own, added = map(lengths, (released, clipped))
            np.testing.assert_array_less(np.nan_to_num(own), 1.0 + 1e-5)
            np.testing.assert_allclose(added, np.nan_to_num(own), atol=1e-5)  # the door clips nothing
            longest.append(np.max(added))
    assert max(longest) > 0.9


def lengths(released):
    """Of each row's numbers, as one vector."""
    return np.linalg.norm(
        np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(released)], axis=1), axis=1
    )
