"""Censored responses: clipped scores have mean zero where the censoring law is declared; other models are refused with a cure."""

import functools
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from small_models import seen

import dpppl
import dpppl.contrib.uncertainty
from dpppl.access import centring
from dpppl.access.centring import ROW_NUMBER
from dpppl.contrib.audit import replay
from dpppl.contrib.uncertainty import survival_curve
from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.model import censoring, supports
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from models import survival

N, SHAPE, PLACE, RATE, LIMIT = 2_000, 1.5, 0.2, 0.7, 0.6
VISITS = np.array([0.3, 0.6, 1.0, 1.5], np.float32)
RIGHT, LEFT, INTERVAL = (
    dist.RightCensoredDistribution,
    dist.LeftCensoredDistribution,
    dist.IntervalCensoredDistribution,
)


def weibull():
    place, shape = numpyro.sample("place", dist.Normal(0, 1)), numpyro.sample("shape", dist.LogNormal(0, 0.5))
    return dist.Weibull(jnp.exp(place), shape)


def one_site(kind, infer=None):
    """A model of (time, indicators, ...) whose last arguments `infer` makes a declaration of."""

    def model(time, censored, *more):
        base = weibull()
        with numpyro.plate("data", time.shape[0]):
            declared = {} if infer is None else infer(time, censored, *more)
            numpyro.sample(
                "time",
                kind(base, *(censored if isinstance(censored, tuple) else (censored,))),
                obs=time,
                infer=declared,
            )

    return model


def by(part):
    """`part` is made inside of the model."""
    return one_site(RIGHT, lambda *_: {"censored_by": part()})


def column(time, censored, end):
    one_site(RIGHT, lambda *_: {"censored_by": end})(time, censored)


def competing(time, censored):
    base, rate = weibull(), numpyro.sample("rate", dist.LogNormal(0, 1))
    with numpyro.plate("data", time.shape[0]):
        stayed = ~censored | (time >= LIMIT)
        numpyro.sample("time", RIGHT(base, censored), obs=time, infer={"censored_by": ("dropout", LIMIT)})
        numpyro.sample(
            "dropout", RIGHT(dist.Exponential(rate), stayed), obs=time, infer={"censored_by": ("time", LIMIT)}
        )


def inspected(ends, left, right, visits):
    base = weibull()
    with numpyro.plate("data", ends.shape[0]):
        numpyro.sample("time", INTERVAL(base, left, right), obs=ends, infer={"inspected_at": visits})


@functools.cache
def data(name):
    """The model of a design, and its arguments; float32 as users have them."""
    rng = np.random.default_rng(0)
    time = (np.exp(PLACE) * rng.weibull(SHAPE, N)).astype(np.float32)
    end, gone = rng.uniform(0.3, 2.0, N).astype(np.float32), rng.exponential(1 / RATE, N).astype(np.float32)
    place = np.searchsorted(VISITS, time)
    ends = np.stack([np.append(0, VISITS)[place], np.append(VISITS, np.inf)[place]], axis=1).astype(np.float32)
    return {
        "column": (column, (np.minimum(time, end), time > end, end)),
        "law": (by(lambda: dist.Exponential(RATE)), (np.minimum(time, gone), time > gone)),
        "competing": (competing, (np.minimum(time, np.minimum(gone, LIMIT)).astype(np.float32), time > np.minimum(gone, LIMIT))),
        "left": (one_site(LEFT, lambda *_: {"censored_by": 0.4}), (np.maximum(time, np.float32(0.4)), time < 0.4)),
        "interval": (inspected, (ends, place == 0, place == 4, dpppl.Public(VISITS))),
    }[name]  # fmt: skip


def farthest(name, centred=True):
    """The largest |mean / standard error| of a latent's clipped scores at the truth, a third of the rows clipped."""
    model, args = data(name)
    split = split_model(model, args, {})
    rows, public = split.arrays(args, {})
    z = {"place": jnp.float32(PLACE), "shape": jnp.log(jnp.float32(SHAPE)), "rate": jnp.log(jnp.float32(RATE))}
    z = {site: z[site] for site in split.latents}
    plain = lambda row: ravel_pytree(jax.grad(split.log_likelihood)(z, row, public))[0]  # noqa: E731
    scores = np.asarray(jax.jit(jax.vmap(plain))(rows))
    norm = float(np.quantile(np.linalg.norm(scores, axis=1), 2 / 3))
    if centred:
        statistic = centring.centred_gradient(split.log_likelihood, Responses.of(split), norm)
        of_row = lambda row: ravel_pytree(statistic(z, row, (public, jax.random.key(2))))[0]  # noqa: E731
        scores = np.asarray(jax.jit(jax.vmap(of_row))({**rows, ROW_NUMBER: np.arange(N, dtype=np.int32)}))
    psi = scores * np.minimum(1.0, norm / np.maximum(np.linalg.norm(scores, axis=1, keepdims=True), 1e-30))
    return float(np.max(np.abs(psi.mean(axis=0)) / psi.std(axis=0)) * np.sqrt(N))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["column", "competing", "left", "interval"])
def test_clipped_scores_have_mean_zero_where_the_censoring_law_is_declared(name):
    """|t| below 5 for at most 3 latents: false alarm 2e-6."""
    assert farthest(name) < 5.0


@pytest.mark.slow
def test_a_public_law_centres_as_well_and_without_centring_scores_are_far_from_zero():
    assert farthest("law") < 5.0
    assert farthest("column", centred=False) > 8.0


def observed_end(time, censored, end):
    base = weibull()
    with numpyro.plate("data", time.shape[0]):
        numpyro.sample("end", dist.Exponential(1.0), obs=end)
        numpyro.sample("time", RIGHT(base, censored), obs=time, infer={"censored_by": end})


def one_way(time, censored):
    base = weibull()
    with numpyro.plate("data", time.shape[0]):
        numpyro.sample("time", RIGHT(base, censored), obs=time, infer={"censored_by": "gone"})
        numpyro.sample("gone", RIGHT(dist.Exponential(1.0), ~censored), obs=time, infer={"censored_by": 3.0})


def latent_law(time, censored):
    base = weibull()
    with numpyro.plate("data", time.shape[0]):
        rate = base.scale
        numpyro.sample("time", RIGHT(base, censored), obs=time, infer={"censored_by": dist.Exponential(rate)})


def uncensored(time, censored):
    base = weibull()
    with numpyro.plate("data", time.shape[0]):
        numpyro.sample("time", base, obs=jnp.where(censored, time, time), infer={"censored_by": 3.0})


REFUSED = {
    "nothing declared": (one_site(RIGHT), r'does not say when an uncensored row .* infer=\{"censored_by": end\}'),
    "no inspections": (None, r'infer=\{"inspected_at": visits\}'),
    "the observed time": (one_site(RIGHT, lambda t, *_: {"censored_by": t}), "computed from argument 'time', which the site observes"),
    "known where censored": (
        one_site(RIGHT, lambda t, c: {"censored_by": jnp.where(c, t, jnp.inf)}), "so they are known of censored rows only",
    ),
    "another site's response": (observed_end, "'end' observes values of argument 'end', and a distribution"),
    "a latent": (latent_law, "depends on the latent 'place', which no censoring time informs"),
    "no such site": (by(lambda: "gone"), "'time' is censored by site 'gone', which must be"),
    "not in return": (one_way, "'time' is censored by site 'gone', which must be"),
    "all rows at once": (by(lambda: np.ones(7)), "do not have one entry a row"),
    "no number": (by(lambda: dist.Dirichlet(jnp.ones(2))), "give a distribution of one number"),
    "not censored": (uncensored, "observe it under dist.RightCensoredDistribution"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_incomplete_law_is_refused_with_a_cure(name):
    model, match = REFUSED[name]
    time = np.ones(5, np.float32)
    args = (time, np.zeros(5, bool), np.ones(5, np.float32))[: 3 if model is observed_end else 2]
    if model is None:

        def model(ends, left, right):
            base = weibull()
            seen(ends, INTERVAL(base, left, right), "time")

        args = np.ones((5, 2), np.float32), np.zeros(5, bool), np.zeros(5, bool)
    with pytest.raises(UnsupportedModelError, match=match):
        Responses.of(split_model(model, args, {}))


def outside(model, *row):
    split = split_model(model, tuple(np.asarray(x)[None].repeat(3, axis=0) for x in row), {})
    z = {name: jnp.zeros(s.shape) for name, s in split.latents.items()}
    return bool(supports.is_outside(split, z, dict(zip(split.row, map(jnp.asarray, row))), split.placeholder_public()))


@pytest.mark.slow
def test_rows_against_their_declaration_are_outside():
    """So is a negative time; a row that is censored at 0 is not."""
    f = np.float32
    for time, censored, end, expected in [
        (0.5, False, 1.0, False), (1.0, True, 1.0, False), (1.0, True, 1.0001, False), (1.5, False, 1.0, True), (0.5, True, 1.0, True),
        (-1.0, False, 1.0, True), (-1.0, True, -1.0, True), (0.0, False, 1.0, True), (0.0, True, 0.0, False), (0.5, False, np.nan, True),
        (np.nan, False, 1.0, False), (0.5, False, np.inf, False),
    ]:  # fmt: skip
        assert outside(column, f(time), np.bool_(censored), f(end)) == expected, (time, censored, end)
    for ends, left, expected in [
        ((0, 0.3), False, False),
        ((0.6, 0.3), False, True),
        ((-5, 0.3), True, False),
        ((-5, 0.3), False, True),
    ]:
        found = outside(inspected, np.array(ends, f), np.bool_(left), np.bool_(False), np.array([0.3, 0.6], f))
        assert found == expected, (ends, left)


@pytest.mark.parametrize("law", [lambda a: dist.Kumaraswamy(jnp.exp(a), 2.0), lambda a: dist.Beta(jnp.exp(a), 2.0)])
@pytest.mark.parametrize("kind", [LEFT, RIGHT])
def test_a_law_that_numpyro_cannot_censor_is_refused_with_that_cause(law, kind):
    """One has no cdf, which NumPyro says without a word; the other holds vectors, of which it says that shapes do not fit."""

    def model(time, censored):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", time.shape[0]):
            numpyro.sample("time", kind(law(a), censored), obs=time, infer={"censored_by": 0.5})

    with pytest.raises(
        UnsupportedModelError, match=r"NumPyro censors no law without a cdf.*; take another law, such as dist.Weibull"
    ):
        split_model(model, (np.full(5, 0.3, np.float32), np.zeros(5, bool)), {})


@pytest.mark.parametrize("kind", [LEFT, RIGHT, INTERVAL])
def test_a_law_that_loses_its_support_where_it_is_held_is_censored_all_the_same(kind):
    """NumPyro's Levy has none in a censored law, which knows it by itself; other indicators left that out."""
    flags = (jnp.zeros(1, bool),) * (2 if kind is INTERVAL else 1)
    fn = kind(dist.Levy(0.0, 1.0), *flags)
    assert censoring.with_indicators(fn.mask(jnp.ones(1, bool)), flags).support is fn.support
    value = jnp.array([[1.0, 2.0]]) if kind is INTERVAL else jnp.array([1.0])
    site = {"name": "time", "fn": censoring.with_indicators(fn, flags), "infer": {}, "value": value}
    assert not np.any(censoring.is_outside(site)) and np.any(censoring.is_outside(site | {"value": -value}))
    np.testing.assert_allclose(site["fn"].log_prob(value), fn.log_prob(value))


def test_inspections_that_do_not_take_place_are_at_infinity():
    site = {
        "name": "time",
        "fn": INTERVAL(dist.Weibull(jnp.ones(4), 1.0), jnp.zeros(4, bool), jnp.zeros(4, bool)),
        "infer": {},
    }
    draws = {"time": censoring.Uncensored(jnp.array([0.1, 0.5, 0.6, 2.0]), (np.array([0.3, 0.6, np.inf]),))}
    found = censoring.observed(site, draws)
    np.testing.assert_allclose(found.value, [[0.3, 0.3], [0.3, 0.6], [0.3, 0.6], [0.6, 0.6]])
    assert [x.tolist() for x in found.indicators] == [[True, False, False, False], [False, False, False, True]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exponential", "weibull", "log_normal", "piecewise"])
def test_models_draw_what_their_densities_say(name):
    """A Kolmogorov-Smirnov distance of 4,000 draws below .035: false alarm 1e-4. Densities are derivatives of distribution functions."""
    model, x = getattr(survival, f"{name}_survival"), np.zeros((4_000, 1), np.float32)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(model, jax.random.key(3))).get_trace(x)
    base, draws = trace["time"]["fn"].base_dist, np.sort(trace["time"]["value"])
    assert np.max(np.abs(base.cdf(draws) - np.arange(0.5, 4_000) / 4_000)) < 0.035
    at = jnp.array([0.1, 0.3, 0.6, 1.7])
    slopes = jax.vmap(jax.grad(lambda t: base.cdf(jnp.full(4_000, t))[0]))(at)
    np.testing.assert_allclose(jnp.exp(jax.vmap(lambda t: base.log_prob(jnp.full(4_000, t))[0])(at)), slopes, rtol=1e-3)


def rows(kind, count=120):
    """Covariates, times, indicators and censoring times of an edge case."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((count, 1)).astype(np.float32)
    time, end = rng.weibull(1.5, count).astype(np.float32), rng.uniform(0.5, 2, count).astype(np.float32)
    end = end * np.float32({"all censored": 1e-3, "none censored": 1e3, "heavy": 0.1}.get(kind, 1.0))
    time, censored = np.minimum(time, end), time > end
    if kind == "odd times":
        time[:4], censored[:4] = (0.0, -1.0, np.nan, np.inf), False
        time[4], censored[4], end[4], end[5] = 0.0, True, 0.0, np.nan
    return x, time, censored, end


QUIET = {"print_cost": False, "progress_bar": False}
EDGES = ["all censored", "none censored", "heavy", "odd times"]


def aware(key, *args):
    method = dpppl.NoiseAware(survival.weibull_survival, target_epsilon=3.0, target_delta=1e-5, num_samples=50, **QUIET)
    method.run(key, *args)
    return method


def chain(key, *args):
    kernel = dpppl.DPSGLD(
        survival.weibull_survival, clipping_norm=1.0, clipping="centred", noise_multiplier=20.0, step_size=1e-3
    )
    mcmc = dpppl.MCMC(kernel, num_warmup=1, num_samples=3, **QUIET)
    mcmc.run(key, *args)
    return mcmc


def variational(key, *args):
    from numpyro.infer.autoguide import AutoNormal

    model = survival.weibull_survival
    svi = dpppl.SVI(
        model, AutoNormal(model), clipping_norm=1.0, noise_multiplier=20.0, print_cost=False, num_data=len(args[0])
    )
    return svi.run(key, 3, *args, progress_bar=False)


def samples_of(found):
    return (
        found.params
        if hasattr(found, "params")
        else found.get_samples(**({"allow_unconverged": True} if isinstance(found, dpppl.NoiseAware) else {}))
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", [aware, chain, variational], ids=lambda f: f.__name__)
def test_edge_cases_run_and_give_finite_samples(method):
    """One row is too few for NoiseAware's budget, which says so."""
    for args in (*map(rows, EDGES), rows("", 1)):
        if method is aware and len(args[0]) == 1:
            with pytest.raises(ConfigurationError, match="can tell nothing of 1 rows"):
                method(dpppl.secret_key(), *args)
        else:
            assert all(np.all(np.isfinite(value)) for value in samples_of(method(dpppl.secret_key(), *args)).values())


@pytest.mark.slow
@pytest.mark.parametrize("method", [aware, chain, variational], ids=lambda f: f.__name__)
def test_a_row_changes_nothing_but_releases(method, claimed):
    """On D and D', of which one row is another, censored instead of not."""
    other = [np.array(column) for column in rows("")]
    other[0][7], other[1][7], other[2][7], other[3][7] = 3.0, 0.2, True, 0.2
    found = replay(method, rows(""), tuple(other))
    assert not found.differences


def test_survival_curves_are_those_of_the_samples():
    samples = {"intercept": np.array([0.0, 0.4]), "weights": np.zeros((2, 1)), "concentration": np.array([1.0, 1.0])}
    curve = survival_curve(survival.weibull_survival, samples, [0.5, 1.0], np.zeros((3, 1)), level=0.5)
    expected = np.exp(-np.array([0.5, 1.0])[:, None] / np.exp([0.0, 0.4]))
    assert curve.mean.shape == (3, 2)
    np.testing.assert_allclose(curve.mean[2], expected.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(curve.lower[0], np.quantile(expected, 0.25, axis=1), rtol=1e-5)
    assert pickle.loads(pickle.dumps(curve)).level == 0.5
    for settings, match in (({"site": "y"}, "no site 'y'"), ({"level": 1.0}, "level must be")):
        with pytest.raises(ConfigurationError, match=match):
            survival_curve(survival.weibull_survival, samples, [0.5], np.zeros((1, 1)), **settings)


@pytest.mark.slow
def test_the_page_says_what_runs():
    code = (
        (Path(__file__).resolve().parents[2] / "docs/survival.md").read_text().split("```python\n")[1].split("```")[0]
    )
    found = {}
    exec(code, found)
    curve = found["curve"]
    assert curve.mean.shape == (2, 2) and np.all(curve.lower < curve.upper)


@pytest.mark.slow
def test_replicates_are_censored_like_rows():
    """Their mean time is that of the rows, within 5 standard errors; times without censoring are far longer."""
    model, args = data("column")
    samples = dpppl.Public({"place": np.full(4, PLACE, np.float32), "shape": np.full(4, SHAPE, np.float32)})
    for declared, expected in ((model, True), (one_site(RIGHT, lambda *_: {"censored_by": 9.0}), False)):
        of_row = dpppl.contrib.uncertainty.discrepancy(
            declared, lambda draw, responses, *_: responses["time"], (0.0, 3.0)
        )
        found = dpppl.private_score(
            dpppl.secret_key(), of_row, samples, *args[: 3 if expected else 2], bounds=(-3.0, 3.0), noise_multiplier=0.5,
            measure_spread=True,
        )  # fmt: skip
        assert (found.p_value() > 6e-7) == expected
    with pytest.raises(UnsupportedModelError, match="replicates would not be"):
        of_row = dpppl.contrib.uncertainty.discrepancy(
            one_site(RIGHT), lambda draw, responses, *_: responses["time"], (0.0, 3.0)
        )
        dpppl.private_score(dpppl.secret_key(), of_row, samples, *args[:2], bounds=(-3.0, 3.0), noise_multiplier=9.0)
