"""A law that no row enters: the table of all responses gives each row what its own program gives, and no row moves more than one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from test_noise_aware import full, parts, state_of

from dpppl.access.clipping import SLACK
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.jaxprs import equations
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.row_program import passes
from dpppl.row_statistics.accesses import Kind, State
from dpppl.row_statistics.coordinates import Coordinates
from dpppl.row_statistics.releases import _access
from dpppl.row_statistics.shared_law import centre_of_many, statistics_of

DIMENSION = 3


def cells(count):
    features = np.random.default_rng(5).standard_normal((count, DIMENSION)).astype(np.float32)

    def model(y):
        effects = numpyro.sample("effects", dist.Normal(0.0, 1.0).expand([DIMENSION]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Categorical(logits=jnp.asarray(features) @ effects), obs=y)

    return model


def two_columns(y, n):
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with numpyro.plate("rows", y.shape[0]):
        y = numpyro.sample("y", dist.Bernoulli(logits=a), obs=y)
        numpyro.sample("n", dist.Normal(a + b * y, 0.5), obs=n)


def bench(model, args, is_shared):
    split = split_model(model, args, {})
    responses = replace(Responses.of(split, may_share=is_shared), is_shared=is_shared)
    statistics = statistics_of(responses, Coordinates.of(split).latents, full(DIMENSION).first())
    rows = split.arrays(args, {})[0]
    return statistics, rows | {ROW_NUMBER: np.arange(len(args[0]), dtype=np.int32)}


def asked(**values):
    point, directions = np.array([0.4, -0.7, 0.2], np.float32), np.random.default_rng(2).standard_normal((3, 4))
    given = dict(norm=0.9, curvature_bound=0.5, directions=directions.astype(np.float32)) | values
    return state_of(full(DIMENSION), point=point, **given)


@pytest.mark.slow
def test_a_table_gives_each_row_what_its_own_program_gives():
    """Within .002 of a bound of 1, of twelve cells, one that is not listed among the rows; the centre of rows is less precise."""
    args = (np.r_[np.arange(12), 12].astype(np.int32),)
    (own, rows), (shared, _) = (bench(cells(12), args, is_shared) for is_shared in (False, True))
    rest, at = ({}, jax.random.key(0)), asked()
    for kind in ("look", "bins", "scalars"):
        one, other = (
            jax.jit(jax.vmap(lambda row, s=s, kind=kind: getattr(s, kind)(at, row, rest)))(rows) for s in (own, shared)
        )
        if kind != "look":
            speaks = slice(0, 12) if kind == "bins" else slice(None)
            np.testing.assert_allclose(one[speaks], other[speaks], atol=2e-3, err_msg=kind)
            continue
        np.testing.assert_allclose(one["score"][:12], other["score"][:12], atol=2e-3)
        np.testing.assert_allclose(np.ravel(other["A"])[:12], np.linalg.norm(one["A"], axis=1)[:12], rtol=5e-3)
        squares = parts({"score": 0.0, "A": one["A"][:12], "J": one["J"][:12]}, at)[2] / float(at.norm) ** 2
        unit = np.sqrt(0.3 * 0.15)
        np.testing.assert_allclose(np.asarray(other["J"])[:12, 0] / unit, squares, atol=2e-3)


def largest_moves(kind, count):
    """By how much one row, any number at all, moves a release with the same noise from where it is left out; and where it is not
    listed."""
    y = np.random.default_rng(1).integers(0, count, 9).astype(np.int32)
    statistics, rows = bench(cells(count), (y,), True)
    (name,) = set(rows) - {ROW_NUMBER}
    alone = State(asked(), 3, jax.random.key(0), 1.0)
    run = jax.jit(lambda values: _access(kind, statistics, alone, {name: values}, {}))

    def released(values):
        with jax.enable_x64(False):
            found = run(np.asarray(values, np.int32))
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])

    without = released(y[:-1])
    listed, others = (0, 5, count - 1), (-1, count, 2**31 - 1, -(2**31))
    return [
        max(np.linalg.norm(released([*y[:-1], value]) - without) for value in values) for values in (listed, others)
    ]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", list(Kind))
def test_no_row_of_a_shared_law_moves_a_release_by_more_than_its_sensitivity(kind):
    """In the units of the door, 1."""
    moved, by_others = largest_moves(kind, 40)
    assert 0.01 < moved <= (1.0 + SLACK) * (1.0 + 1e-5) and by_others <= (1.0 + SLACK) * (1.0 + 1e-5)
    assert kind is not Kind.LOOK or by_others == 0.0  # these two count such rows


@pytest.mark.slow
def test_noise_that_a_shared_curvature_leaves_out_is_made_up():
    """Of 4,000 releases of no rows: variances along 6 isometric coordinates within 4.5 standard errors of 1 (false alarm: 1e-4), and
    along the curvature only the noise of the door's sum."""
    statistics, _ = bench(cells(12), (np.zeros(4, np.int32),), True)
    keys = jax.random.split(jax.random.key(3), 4_000)
    noise = jax.random.normal(jax.random.key(4), (4_000,))
    at = asked()

    def released(key, own):
        total = {"A": 2.0 * own[None], "J": jnp.zeros((1, DIMENSION, DIMENSION)), "score": jnp.zeros(DIMENSION)}
        return statistics.unpacked(at, {}, key, jnp.float32(2.0), total)["A"]

    values = np.asarray(jax.jit(jax.vmap(released))(keys, noise)) / 2.0
    assert np.max(np.abs(np.var(values, axis=0) - 1.0)) < 4.5 * np.sqrt(2.0 / 4_000)
    table = statistics.table(at, {}, keys[0])
    np.testing.assert_allclose(values @ np.asarray(table.matrix / table.length), noise, atol=1e-3)


def test_many_scores_are_centred():
    """The mean of clipped scores is 0 to 1e-4 of the norm, where half of them are clipped."""
    scores = np.random.default_rng(0).standard_normal((4_096, 5)).astype(np.float32) * np.r_[3.0, 1, 1, 1, 1] + 0.5
    scores[:1_000] += [4.0, 0.0, 0.0, 0.0, 0.0]
    weights = np.linspace(0.5, 1.5, 4_096).astype(np.float32) / 4_096
    centre = np.asarray(centre_of_many(scores, weights, 2.0), np.float64)
    away = scores - centre
    lengths = np.linalg.norm(away, axis=1)
    assert np.mean(lengths > 2.0) > 0.5
    assert np.linalg.norm(weights @ (away * np.minimum(1.0, 2.0 / lengths)[:, None])) < 1e-4 * 2.0


@pytest.mark.slow
def test_rows_of_drawn_responses_are_centred_by_draws_that_they_share():
    """Sums of 8,000 clipped scores at the truth, of 3,200 data sets: their variance is that of rows times 1 + added, within 4 standard
    errors (10 %), which a variance without draws is not."""
    count = 8_000
    split = split_model(two_columns, (np.zeros(count, np.float32),) * 2, {})
    law = Responses.of(split, may_share=True)
    assert law.is_shared and law.supports is None and law.added == pytest.approx(count / 4_096)
    latents = Coordinates.of(split).latents
    statistics, at = (
        statistics_of(law, latents, full(2).first()),
        state_of(full(2), point=np.array([0.3, -0.5]), norm=1.0, curvature_bound=9.0),
    )
    names = list(split.row)

    @jax.jit
    def sums(key):
        y = jax.random.bernoulli(key, jax.nn.sigmoid(0.3), (count,)).astype(jnp.float32)
        n = 0.3 - 0.5 * y + 0.5 * jax.random.normal(jax.random.fold_in(key, 1), (count,))
        rest = {}, jax.random.fold_in(key, 2)
        row = lambda y, n: dict(zip(names, (y, n))) | {ROW_NUMBER: 0}  # noqa: E731
        psi = jax.vmap(lambda y, n: statistics.look(at, row(y, n), rest)["score"])(y, n)
        return psi.sum(axis=0), (psi**2).sum(axis=0)

    with jax.enable_x64(False):
        total, squares = jax.lax.map(sums, jax.random.split(jax.random.key(0), 3_200))
    ratio = np.mean(np.asarray(total) ** 2, axis=0) / np.mean(np.asarray(squares), axis=0)
    assert np.all(np.abs(ratio / (1.0 + law.added) - 1.0) < 4.0 * np.sqrt(2.0 / 3_200))
    assert np.all(ratio > 1.0 + 4.0 * np.sqrt(2.0 / 3_200))


def covariates(x, y):
    effects = numpyro.sample("effects", dist.Normal(0.0, 1.0).expand([DIMENSION]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x[:, None] * jnp.pad(effects, (0, 17))), obs=y)


def masked(x, y):
    rate = numpyro.sample("effects", dist.Normal(0.0, 1.0).expand([DIMENSION]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=jnp.pad(rate, (0, 17))).mask(x > 0), obs=y)


def test_a_law_is_shared_where_no_row_enters_it():
    y = np.zeros(4, np.int32)
    of = lambda model, *args, **options: Responses.of(split_model(model, args, {}), **options)  # noqa: E731
    many = of(cells(40), y, may_share=True)
    assert many.is_shared and len(many.supports["y"]) == 40 and many.redrawn == many.added == 0.0
    assert not of(cells(40), y).is_shared and of(cells(40), y).supports is None
    assert of(cells(12), y, may_share=True).is_shared and not of(cells(3), y, may_share=True).is_shared
    too_many = of(cells(2_000), y, may_share=True)
    assert not too_many.is_shared and too_many.supports is None
    for model in (covariates, masked):
        found = of(model, np.ones(4, np.float32), y, may_share=True)
        assert not found.is_shared and found.supports is None


@pytest.mark.slow
def test_the_table_lies_before_the_rows():
    """What is left of a row is a look-up and operations on its own score: no matrix of all cells."""
    statistics, rows = bench(cells(40), (np.zeros(9, np.int32),), True)
    (name,) = set(rows) - {ROW_NUMBER}
    row = {name: jnp.int32(0), ROW_NUMBER: jnp.int32(0)}
    for kind in ("look", "scalars"):
        at = asked()
        program = jax.make_jaxpr(getattr(statistics, kind))(at, row, ({}, jax.random.key(0))).jaxpr
        z = len(jax.tree.leaves(at))
        held = [False] * (len(program.constvars) + z) + [True] * len(row)
        held += [False] * (len(program.constvars) + len(program.invars) - len(held))
        found = passes.rewritten(program, held, passes.GRADIENT)
        made = [v.aval.size for equation in equations(found.of_row) for v in equation.outvars]
        assert found.before is not None and max(made) <= 40, kind
