"""NoiseAware: what it releases, what it charges, and posteriors that are as wide as they should be."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy import stats

import dpppl
from dpppl.access.centring import ROW_NUMBER
from dpppl.access.clipping import Flat
from dpppl.access.norm_histogram import FINE, LOWEST, MISSING, SIZE
from dpppl.errors import BudgetExceededError, ConfigurationError, UnsupportedModelError
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware import curvature, posterior, recipe, runner
from dpppl.noise_aware.measured import blurred
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.settings import NoiseAwareDetails
from dpppl.noise_aware.sketch import Sketch
from dpppl.noise_aware.surrogate import Surrogate, excess_spread
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.row_statistics import releases, response_ranks
from dpppl.row_statistics.accesses import At, Kind, State, narrow
from dpppl.row_statistics.coordinates import Coordinates
from dpppl.row_statistics.matrices import from_vector
from dpppl.row_statistics.plan import plan_of
from dpppl.row_statistics.statistics import RowStatistics, units
from dpppl.row_statistics.weights import Weights
from dpppl.runs import driver

NUM_ROWS, DIMENSION = 1_000, 3


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def laplace(x, y):
    w = numpyro.sample("w", dist.Laplace(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def data(seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((NUM_ROWS, DIMENSION)).astype(np.float32), rng.standard_normal(DIMENSION)
    return x, (rng.random(NUM_ROWS) < 1.0 / (1.0 + np.exp(-x @ w))).astype(np.float32), w


class Bench:
    """The programs of one model, compiled once; runs without a budget."""

    def __init__(self, model, args):
        split = split_model(model, args, {})
        self.coordinates = Coordinates.of(split)
        self.rows, self.public = split.arrays(args, {})
        self.prior, self.is_normal = self.coordinates.prior(self.public, jax.random.key(0))
        self.statistics = RowStatistics(Responses.of(split), self.coordinates.latents, self.prior.first())
        self.key = dpppl.secret_key()
        self.programs = releases.prepared(self.statistics, self.key, self.rows, self.public, self.coordinates.dimension)

    def run(self, rows, seed, mu):
        key = jax.random.fold_in(dpppl.randomness.keys.stream(jax.random.wrap_key_data(np.arange(8, dtype=np.uint32),
                                 impl=jax.random.key_impl(self.key)), "test"), seed)  # fmt: skip
        ask = releases.Accesses(self.programs, key, rows, self.public, int).asker()
        responses, num_rows = self.statistics.responses, self.coordinates.split.num_rows
        plan, bounds = plan_of(True, self.coordinates.dimension, num_rows), recipe.Bounds()
        return recipe.run_recipe(
            ask, plan, 1.0 / mu, self.prior, bounds, num_rows, responses.redrawn, added=responses.added
        )

    def verdict(self, found):
        moments = Mixture.of(found.surrogate, self.prior).moments()
        return NoiseAwareVerdict.from_releases(found, moments, self.prior, self.coordinates.names(), NUM_ROWS)


@functools.cache
def bench():
    return Bench(model, data(0)[:2])


def full(dimension):
    """A standard normal prior, one block."""
    return recipe.Prior(np.zeros(dimension), np.ones(dimension), [np.arange(dimension)], np.eye(dimension))


def state_of(prior, **values):
    """What accesses take, at the prior mean unless `values` say otherwise."""
    basis = prior.first()
    sketch = Sketch.drawn(basis, prior.covariance(basis), None).columns
    return narrow(At(prior.mean, 1.0, 1.0, basis._replace(sketch=sketch))._replace(**values))


def parts(look, at, most_scores=1.0):
    """psi, A and J of a look with one block, in u."""
    unit, unit_a, unit_j = map(float, units(at.score_share, most_scores))
    matrix = lambda vector: from_vector(np.asarray(vector, np.float64), len(at.point))  # noqa: E731
    psi = np.asarray(look["score"], np.float64) * at.norm / unit
    return psi, matrix(look["A"]) * at.curvature_bound / unit_a, matrix(look["J"]) * at.norm**2 / unit_j


def length(look):
    return np.linalg.norm(np.concatenate([np.ravel(part) for part in jax.tree.leaves(look)]))


def split_rows(bench, args):
    return bench.coordinates.split.arrays(args, {})[0]


# What a row is asked


def classes(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 4]).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


LOGITS = {model: lambda x, w: jnp.stack([0.0, x @ w]), classes: lambda x, w: x @ w.reshape(2, 4)}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("weight", [2.0, 0.5, None])
@pytest.mark.parametrize("model", LOGITS, ids=["two", "four"])
def test_a_rows_curvature_is_the_slope_of_its_expected_score(model, weight):
    """E_theta[psi(y; z)] by finite differences of none: exact, over all responses, for a norm that clips, and a row of a survey
    weight over its cap. A curvature beyond its bound is as long as that, and scores stay as they are."""
    rng, column = np.random.default_rng(0), Weights("weight", 2.0)
    width = 8 if model is classes else 2
    rows = {"x": 2.0 * rng.standard_normal((3, 2)).astype(np.float32), "y": np.array([0, 1, 1], np.int32)}
    rows |= {} if weight is None else {"weight": np.ones(3, np.float32)}
    split = split_model(model if weight is None else column.model(model, rows), (), rows)
    of_row = RowStatistics(
        Responses.of(split), Coordinates.of(split).latents, full(width).first(), None if weight is None else column
    )
    point = np.linspace(-1.0, 1.0, width).astype(np.float32)
    at = state_of(full(width), point=point, norm=0.6, curvature_bound=50.0, directions=np.eye(width, width + 1))
    rest = ({}, jax.random.key(0))
    look, bins, scalars = (
        jax.jit(lambda at, row, f=f: f(at, row, rest)) for f in (of_row.look, of_row.bins, of_row.scalars)
    )
    own = jax.jit(lambda at, row: jnp.linalg.norm(of_row._own(at, row, {})[1]))
    share, count = 1.0 if weight is None else weight / 2.0, 4 if model is classes else 2
    with jax.enable_x64(False):
        for number, x in enumerate(rows["x"]):
            row = {"x": x, "y": rows["y"][number], ROW_NUMBER: np.int32(0)}
            row |= {} if weight is None else {"weight": np.float32(weight)}
            found = [parts(look(at, row | {"y": np.int32(k)}), at) for k in range(count)]
            psi = np.array([one[0] for one in found])
            expected = lambda theta, x=x, psi=psi: jax.nn.softmax(LOGITS[model](x, theta)) @ psi  # noqa: E731
            assert np.max(np.abs(expected(jnp.asarray(point)))) < 2e-3 < np.max(np.abs(psi))  # centred
            slope = np.asarray(jax.jacobian(expected)(jnp.asarray(point)))
            for one, (_, a, j) in zip(psi, found):
                np.testing.assert_allclose(a, (slope + slope.T) / 2, atol=2e-3)
                np.testing.assert_allclose(j, np.outer(one, one), atol=1e-5)
            size = np.linalg.norm(found[0][1])
            short = at._replace(curvature_bound=np.float32(0.3 * size / share))
            cut = parts(look(short, row), short)
            np.testing.assert_allclose(cut[1], 0.3 * parts(look(at, row), at)[1], atol=2e-3)
            np.testing.assert_allclose(cut[0], parts(look(at, row), at)[0], atol=1e-6)
            both = np.asarray(bins(at, row))
            assert np.count_nonzero(both) == 2
            lengths = float(own(at, row)), np.sqrt(size / share)
            bins_of = (np.floor(fine * (np.log2(x) - LOWEST)) for fine, x in zip((1, FINE), lengths))
            assert np.flatnonzero(both).tolist() == [next(bins_of), SIZE + next(bins_of)]
            norms = [length(f(each, row)) for f in (look, bins, scalars) for each in (at, short)]
            assert max(norms) <= 1.0 + 1e-5


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("model", [model, laplace], ids=["listed", "drawn"])
def test_a_row_that_is_not_finite_is_counted_and_says_nothing_else(model):
    """Ranks by surprise are finite numbers even of infinities."""
    x, y = np.ones((11, 2), np.float32), np.ones(11, np.float32)
    x[1:5, 0], y[5:8] = [np.nan, np.inf, -np.inf, np.nan], [np.nan, np.inf, -np.inf]
    x[8:, 1], y[4], y[8:] = [np.nan, np.inf, -np.inf], 0.0, 0.0
    split = split_model(model, (x, y), {})
    of_row = RowStatistics(Responses.of(split), Coordinates.of(split).latents, full(2).first())
    at = state_of(full(2), point=np.array([0.3, -0.1]), directions=np.eye(2, 3))
    rows = split.arrays((x, y), {})[0] | {ROW_NUMBER: np.arange(11, dtype=np.int32)}

    @jax.jit
    def clipped(rows):
        every = [
            jax.vmap(lambda row, f=f: f(at, row, ({}, jax.random.key(0))))(rows)
            for f in (of_row.look, of_row.bins, of_row.scalars)
        ]
        return [Flat(1.0).clip(statistic, None) for statistic in every]

    looks, bins, scalars = clipped(rows)
    for one in np.split(bins, [SIZE], axis=1):
        missing = one.shape[1] + MISSING
        assert np.argmax(one[0]) < missing and np.all(np.argmax(one[1:], axis=1) == missing)
    for leaf in jax.tree.leaves(looks):
        assert np.any(leaf[0] != 0.0) and not np.any(leaf[1:])
    assert scalars[0, 2] == 0.0 and np.any(scalars[0] != 0.0)
    np.testing.assert_allclose(scalars[1:], np.tile(np.eye(len(scalars[0]))[2], (10, 1)), atol=1e-3)


@pytest.mark.slow
def test_signed_ranks_have_mean_zero_where_the_model_is_right():
    """Of 20,000 responses of two kinds, at the truth: within 3.5 standard errors (a false alarm in 1,000). With signs made of the
    draws that responses are ranked among, two of three means are 4.5 and 5.4 off."""

    def kinds(x, y=None):
        places = numpyro.sample("places", dist.Normal(jnp.array([-1.5, 1.5]), 0.3).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            half = dist.Categorical(probs=jnp.ones(2) / 2)
            numpyro.sample("y", dist.MixtureSameFamily(half, dist.Normal(places, 0.7)), obs=y)

    count, rng = 20_000, np.random.default_rng(0)
    y = np.where(rng.random(count) < 0.5, -1.5, 1.5) + 0.7 * rng.standard_normal(count)
    args = np.zeros(count, np.float32), y.astype(np.float32)
    split = split_model(kinds, args, {})
    of_row = RowStatistics(Responses.of(split), Coordinates.of(split).latents, full(2).first())
    at = state_of(full(2), point=np.array([-1.5, 1.5]), norm=1e3, curvature_bound=1e9, directions=np.eye(2, 3))
    rows = split.arrays(args, {})[0] | {ROW_NUMBER: np.arange(count, dtype=np.int32)}
    scalars = jax.jit(jax.vmap(lambda row: of_row.scalars(at, row, ({}, jax.random.key(0)))))(rows)
    signed = np.asarray(scalars, np.float64)[:, -4:]
    assert np.all(np.abs(signed.mean(axis=0)) < 3.5 * signed.std(axis=0) / np.sqrt(count))


def test_moments_of_ranks_have_mean_zero_where_the_model_is_right():
    """Over listed responses, by their probabilities, and over an exchangeable set, some of which tie; not where probabilities
    are a tenth off. With both flags they are at most 1 long."""
    rng = np.random.default_rng(0)
    of = jax.jit(lambda log_probs, weights: response_ranks.moments_of_rank(log_probs, weights))

    def mean_of(log_probs, weights, probabilities):
        found = [of(np.append(own, log_probs), np.append(0.0, weights)) for own in log_probs]
        return probabilities @ np.array([moments for moments, _ in found])

    log_probs = np.log([0.5, 0.2, 0.2, 0.1]).astype(np.float32)
    p = np.exp(log_probs)
    assert np.abs(mean_of(log_probs, p, p)).max() < 1e-6
    assert np.abs(mean_of(log_probs, p, np.array([0.45, 0.2, 0.2, 0.15]))).max() > 0.02
    drawn = np.round(rng.standard_normal(33), 1).astype(np.float32)
    alike = np.full(33, 1 / 33, np.float32)
    rolled = [of(np.roll(drawn, k), alike) for k in range(33)]
    moments = np.array([moments for moments, _ in rolled])
    assert np.abs(moments.mean(axis=0)).max() < 1e-6
    np.testing.assert_allclose(rolled[0][1], np.mean(moments**2, axis=0), rtol=1e-4)
    long = max(np.sum((response_ranks.FIT * np.asarray(m)) ** 2) for m in moments) + np.sum(
        (response_ranks.variance_unit(2) * rolled[0][1]) ** 2
    )
    assert (
        long
        + response_ranks.LINK**2
        + response_ranks.SKEW**2
        + (2 + 1 / 9 + 0.16**2) * response_ranks.variance_unit(2) ** 2
        <= 1.0
    )


# What is charged


def test_every_access_is_charged_before_it_is_made_with_noise_of_its_own():
    """One by one, with the noise that the plan says, and with no less."""
    charged, made = [], []
    found = bench()
    plan, mu = plan_of(True, DIMENSION, NUM_ROWS), 0.5
    sigma = plan.noise_multipliers(1.0 / mu)

    class Spy:
        def __init__(self, program):
            self.program = program

        def __call__(self, state, rows, public):
            made.append((int(state.i), float(state.noise_multiplier)))
            return self.program(state, rows, public)

    ask = releases.Accesses(
        {kind: Spy(program) for kind, program in found.programs.items()}, found.key, found.rows, found.public,
        lambda count: charged.append((count, len(made))), sigma,
    ).asker()  # fmt: skip
    recipe.run_recipe(ask, plan, 1.0 / mu, found.prior, recipe.Bounds(), NUM_ROWS)
    assert charged == [(number + 1, number) for number in range(plan.num_accesses)]  # before
    assert [number for number, _ in made] == list(range(plan.num_accesses))
    np.testing.assert_allclose([noise for _, noise in made], sigma, rtol=1e-6)
    with pytest.raises(
        AssertionError, match=rf"access {plan.num_accesses} \(bins\) has less noise than it is charged for"
    ):
        ask(Kind.BINS, state_of(found.prior), sigma[0])  # one more than the plan has
    ask = releases.Accesses(found.programs, found.key, found.rows, found.public, pytest.fail, sigma).asker()
    with pytest.raises(AssertionError, match=r"access 0 \(bins\) has less noise than it is charged for"):
        ask(Kind.BINS, state_of(found.prior), 0.999 * sigma[0])


def test_rows_of_an_access_leave_through_the_door_only():
    found = bench()
    for kind in (Kind.BINS, Kind.LOOK):
        state = State(state_of(found.prior), 0, found.key, 1.0).on_device()
        program = functools.partial(releases._access, kind, found.statistics)
        driver.prove(program, (state, found.rows, found.public), rows=1)


def test_each_access_draws_its_own_noise_of_the_sd_that_was_asked():
    """Two kinds, and two accesses of a kind, of rows of zeros: 168 numbers, whose sd is within a fifth (4.5 standard errors)."""
    found = bench()
    at = state_of(found.prior)
    zero = jax.tree.map(np.zeros_like, found.rows)
    ask = releases.Accesses(found.programs, found.key, zero, found.public, lambda count: None).asker()
    drawn = [ask(kind, at, 1e4) for kind in (Kind.BINS, Kind.LOOK, Kind.LOOK)]
    drawn = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(drawn)])
    assert len(np.unique(drawn)) == drawn.size > 160
    assert 0.8e4 < np.std(drawn) < 1.2e4


@pytest.fixture
def compiled_once(monkeypatch):
    monkeypatch.setattr(runner, "prepared", lambda *_: bench().programs)


def noise_aware(**settings):
    return dpppl.NoiseAware(model, **({"target_epsilon": 1.0, "target_delta": 1e-5, "print_cost": False} | settings))


def test_a_run_spends_its_budget_once(compiled_once, capsys):
    found = noise_aware(num_samples=500)
    planned = found.privacy_plan()
    x, y, _ = data(1)
    found.run(dpppl.secret_key(), x, y)
    report = found.privacy_report()
    assert report.status == "complete" and report.num_accesses == plan_of().num_accesses
    assert 0.99 < report.epsilon <= 1.0 and report.epsilon == planned.epsilon
    assert found.budget.charged[0].num_steps == plan_of().num_accesses
    samples = found.get_samples(allow_unconverged=True)["w"]
    assert samples.shape == (500, DIMENSION) and found.get_samples(True, allow_unconverged=True)["w"].shape == (
        1,
        500,
        3,
    )
    found.print_summary()
    printed = capsys.readouterr().out
    assert "verdict:" in printed and "w[0]" in printed
    assert {"verdict", "rows clipped", "fit", "latents"} <= {name for name, _ in report.rows()}
    exported = found.to_arviz(allow_unconverged=True)
    attributes = exported.attrs
    assert exported.posterior["w"].shape == (2, 250, 3) and "Privacy report" in found._repr_html_()
    assert "verdict" in attributes["privacy_report"]
    predictive = numpyro.infer.Predictive(model, {"w": samples})
    assert predictive(jax.random.key(0), x[:5], None)["y"].shape == (500, 5)
    check_bayes_factors(found, samples)
    with pytest.raises(BudgetExceededError):
        found.run(dpppl.secret_key(), x, y)
    with pytest.raises(BudgetExceededError):
        found.privacy_plan()


def test_bayes_factors_of_latents_in_public_units():
    """Those of mu = unit z at 0 are those of z."""

    def scaled(y, unit):
        law = dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(0.0, unit))
        mu = numpyro.sample("mu", law)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu / unit, 1.0), obs=y)

    y, public = np.random.default_rng(0).normal(0.1, 1.0, 500).astype(np.float32), dpppl.Public(np.float32(20.0))
    found = dpppl.NoiseAware(scaled, noise_multiplier=2.0, num_samples=4_000, print_cost=False, progress_bar=False)
    found.run(dpppl.secret_key(), y, public)
    drawn = np.asarray(found.get_samples(allow_unconverged=True)["mu"], float)
    expected = stats.norm.pdf(0.0, drawn.mean(), drawn.std()) / stats.norm.pdf(0.0, 0.0, 20.0)
    assert found.bayes_factor("mu", 0.0, allow_unconverged=True) == pytest.approx(expected, rel=0.2)
    assert found.bayes_factor("mu", 20.0, allow_unconverged=True) < 1e-3


def check_bayes_factors(found, samples):
    """Densities of 500 draws by a kernel estimate, which is within a fifth near the middle; the prior is N(0, 1)."""
    for number in range(DIMENSION):
        drawn = samples[:, number].astype(float)
        for value in np.quantile(drawn, [0.2, 0.5, 0.8]):
            expected = stats.gaussian_kde(drawn)(value)[0] / stats.norm.pdf(value)
            assert found.bayes_factor(f"w[{number}]", value, allow_unconverged=True) == pytest.approx(expected, rel=0.2)
        far = found.bayes_factor(f"w[{number}]", 8.0, allow_unconverged=True)
        assert far < 1e-3 or samples[:, number].std() > 0.8
    for wrong in ("w", "v", "w[9]"):
        with pytest.raises(ConfigurationError, match="elements: w"):
            found.bayes_factor(wrong, allow_unconverged=True)
    with pytest.raises(ConfigurationError, match="must be called before"):
        noise_aware().bayes_factor("w[0]")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("progress_bar", [True, False])
def test_a_run_shows_its_phases_and_how_many_accesses_it_made(progress_bar, compiled_once, capsys):
    x, y, _ = data(1)
    noise_aware(progress_bar=progress_bar, num_samples=10).run(dpppl.secret_key(), x, y)
    bar, plan = capsys.readouterr().err, plan_of()
    phases = [line.split(":")[0] for line in bar.split("\r") if line.strip()]
    shown = [phase for phase, before in zip(phases, [None, *phases]) if phase != before]
    every = [releases._PHASES[kind] for kind, _ in plan.accesses]
    of_accesses = [phase for phase, before in zip(every, [None, *every]) if phase != before]
    assert shown == (["compiling", *of_accesses, "posterior"] if progress_bar else [])
    assert (f" {plan.num_accesses}/{plan.num_accesses} " in bar) == progress_bar
    assert ": :" not in bar


@pytest.mark.slow
def test_a_run_that_stops_stays_charged_for_what_it_began(compiled_once, monkeypatch):
    found = noise_aware()
    calls = []
    ask = releases.Accesses.asker

    def failing(self, *given):
        inner = ask(self, *given)

        def wrapped(kind, *rest):
            calls.append(kind)
            if len(calls) == 8:
                raise KeyboardInterrupt
            return inner(kind, *rest)

        return wrapped

    monkeypatch.setattr(releases.Accesses, "asker", failing)
    with pytest.raises(KeyboardInterrupt):
        found.run(dpppl.secret_key(), *data(1)[:2])
    assert found.budget.charged[0].num_steps == 7 and found.privacy_report().status == "interrupted"
    with pytest.raises(ConfigurationError, match="`run` must be called"):
        found.get_samples()


# What is refused


def normal_mean(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y)


def improper(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def without_density(y):
    with handlers.mask(mask=False):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def line(y):  # NumPyro takes the support of the transform to be the real line
    shifted = dist.transforms.AffineTransform(0.1, 1.0)
    mu = numpyro.sample("mu", dist.TransformedDistribution(dist.Exponential(1.0), shifted))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def idle(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    numpyro.sample("idle", dist.Normal(mu, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([0]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu + b.sum(), 1.0), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_latents_without_data_and_without_elements_are_drawn(x64):
    y = np.random.default_rng(0).normal(1.0, 1.0, 500).astype(np.float32)
    with jax.enable_x64(x64):
        found = dpppl.NoiseAware(idle, target_epsilon=8.0, target_delta=1e-5, progress_bar=False)
        found.run(dpppl.secret_key(), y)
        samples = jax.tree.map(np.asarray, found.get_samples())
    assert samples["b"].shape == (2_000, 0) and np.std(samples["mu"]) < 0.2
    assert np.std(samples["idle"] - samples["mu"]) == pytest.approx(1.0, abs=0.1)  # false alarm 1e-9


def test_what_it_cannot_do_is_refused_before_anything_is_charged():
    y = data(0)[1]
    with pytest.raises(
        ConfigurationError, match="no argument subsampling: every access of NoiseAware looks at all rows"
    ):
        noise_aware(subsampling=dpppl.Poisson(0.1))
    with pytest.raises(ConfigurationError, match="either noise_multiplier or target_epsilon"):
        noise_aware(noise_multiplier=2.0)
    for model, words in (
        (improper, "'mu' has no"),
        (without_density, "'mu' has no"),
        (line, "fall on both sides.*, which is no"),
    ):
        without = dpppl.NoiseAware(model, target_epsilon=1.0, target_delta=1e-5)
        with pytest.raises(UnsupportedModelError, match=f"{words} proper prior"):
            without.run(dpppl.secret_key(), y)
        assert not without.budget.charged
    weighed = dpppl.NoiseAware(handlers.scale(normal_mean, 2.0), target_epsilon=1.0, target_delta=1e-5)
    with pytest.raises(UnsupportedModelError, match="'y' is scaled, and NoiseAware takes each response for one"):
        weighed.run(dpppl.secret_key(), y)
    assert not weighed.budget.charged


@functools.cache
def normal_bench():
    rng = np.random.default_rng(0)
    x = (0.5 * rng.standard_normal((NUM_ROWS, DIMENSION))).astype(np.float32)
    return Bench(laplace, (x, (x @ [0.5, -0.3, 0.2]).astype(np.float32))), rng.standard_normal(NUM_ROWS).astype(
        np.float32
    )


@pytest.mark.slow
def test_draws_of_responses_are_not_taken_for_scatter(monkeypatch):
    """A normal likelihood, exactly quadratic, with next to no noise: draws of responses, others at each look, scatter far more than
    the noise, and as much as is expected. Of 12 degrees a chi-squared law's 1e-4 quantile is 3.3."""
    found, noise = normal_bench()
    x, y = found.rows.values()
    rows = split_rows(found, (x, (y + noise).astype(np.float32)))
    assert found.run(rows, 0, 20.0).chi_squared < 3.3
    monkeypatch.setattr(Responses, "redrawn", 0.0)
    assert found.run(rows, 0, 20.0).chi_squared > 5.0


# Whether it is right


def test_an_sd_among_values_that_are_hardly_known_is_doubted():
    """30 effects with an sd of 1 among them, known to .6 or to .4; ten of them are too few to say."""
    means, names = np.append(np.tile([-1.0, 1.0], 15), 5.0), [*(f"effects[{k}]" for k in range(30)), "scale"]
    known = lambda sd: recipe.Known(means, np.append(np.full(30, sd**2), 25.0))  # noqa: E731
    assert blurred(known(0.6), names) == ("effects",) and blurred(known(0.4), names) == ()
    few = recipe.Known(means[20:], known(0.6).variance[20:])
    assert blurred(few, names[20:]) == ()
    numbers = dict.fromkeys(("arrival", "agreement", "chi_squared"), 1.0) | {"degrees": 100, "learned": {}}
    pairs = dict.fromkeys(("rank", "fit", "norms"), (0.5, 0.5))
    verdict = NoiseAwareVerdict(
        **numbers, **pairs, clipped=(0.0, 0.0, 0.0), blurred=("effects",), through=("mu", "tau")
    )
    (warning,) = NoiseAwareDetails(num_accesses=1, verdict=verdict).warnings()
    assert "'effects' differ by little more" in warning and "'mu' and 'tau'" in warning and not verdict.refusals
    title, *lines = repr(replace(verdict, arrival=9.0)).splitlines()
    assert (
        title == "NoiseAware's verdict"
        and lines[0].startswith("  verdict                do not read: ")
        and "9.0 sd" in lines[0]
    )
    assert lines[-1] == f"  - {warning}" and lines[-2].startswith("  latents")
    assert not replace(verdict, through=()).doubts and not replace(verdict, blurred=()).doubts


@pytest.mark.slow
def test_posteriors_are_as_wide_as_they_should_be():
    """Truths from the prior, 50 data sets, mu = 0.1: squares of (mean - truth) / sd average 1.

    Of 150 the average has standard error .115 (more in heavy tails): false alarm about 3e-4 a side. With a tenth of the sd of the noise in
    the gradients it is above 1.4."""
    found, z, too_sure = bench(), [], []
    for seed in range(50):
        x, y, w = data(100 + seed)
        last = found.run(split_rows(found, (x, y)), seed, 0.1).surrogate
        for surrogate, errors in ((last, z), (last._replace(noise_variance=last.noise_variance / 100), too_sure)):
            mean, variance = Mixture.of(surrogate, found.prior).moments()
            errors.append((mean - w) / np.sqrt(variance))
    assert 0.6 < np.mean(np.square(z)) < 1.4 < np.mean(np.square(too_sure))


@pytest.mark.slow
def test_ranks_far_from_the_truth_say_less(monkeypatch):
    """Scores at a point that is r times as far from the truth as sampling would put it move the ranks' moments; their
    variance is taken as r^2 times as large."""
    h, prior = np.array([4.0, 0.5, 1e-9]), np.eye(3)[None]
    sampled, centre = np.diag(1.0 / (h + 1.0))[None], np.zeros((1, 3))
    law = curvature.Curvature(h[None, None], prior[None], prior)
    surrogate = Surrogate(full(3).first(), centre, centre, 1.0, law, centre, 1.0, centre)
    assert excess_spread(surrogate, prior, sampled) == pytest.approx(0.0, abs=1e-8)
    assert excess_spread(surrogate, prior, 4.0 * sampled) == pytest.approx(3.0)
    x, y, _ = data(100)
    found = bench().run(split_rows(bench(), (x, y)), 0, 0.5)
    chi_squared = []
    for excess in (0.0, 8.0):
        monkeypatch.setattr("dpppl.noise_aware.measured.excess_spread", lambda *_, excess=excess: excess)
        chi_squared.append(bench().verdict(found).fit[1])
    assert chi_squared[1] < chi_squared[0] < 9.0 * chi_squared[1]


def test_draws_under_the_exact_prior_are_weighted_or_refused():
    """Two parts, N(.5, .2) and N(-.4, .1) under N(0, 1), get a Laplace prior: means within 5 standard errors of quadrature's, where
    draws under the normal prior are 40 away; so are sizes, where the priors' ratio to the power .9 shows. Under a prior far from the draws, or with heavier tails than they have, there are
    none."""
    means, variances, count = np.array([0.5, -0.4]), np.array([0.2, 0.1]), 40_000
    flat = np.zeros((1, 1))
    law = curvature.Curvature(np.ones((1, 1, 1)), np.ones((1, 1, 1, 1)), np.ones((1, 1, 1)))
    surrogate = Surrogate(full(1).first(), flat, flat, 1.0, law, flat, 1.0, flat)
    parts = means.reshape(2, 1, 1), variances.reshape(2, 1, 1, 1)
    mixture = Mixture(np.zeros(1), np.ones((1, 1, 1)), *parts, surrogate)
    laplace = lambda x: -5.0 * np.abs(x[:, 0])  # noqa: E731
    x = np.linspace(-5.0, 5.0, 20_001)
    weights = np.exp(-0.5 * (x - means[:, None]) ** 2 / variances[:, None] - 5.0 * np.abs(x) + 0.5 * x**2)
    expected = np.mean(weights @ x / weights.sum(axis=1))
    drawn = mixture.weighted(laplace, np.random.default_rng(0), count)
    error = drawn.std() / count**0.5
    assert drawn.shape == (count, 1) and abs(drawn.mean() - expected) < 5.0 * error
    expected_size = np.mean(weights @ np.abs(x) / weights.sum(axis=1))
    size_error = np.abs(drawn).std() / count**0.5
    assert abs(np.abs(drawn).mean() - expected_size) < 5.0 * size_error
    nearly = mixture.weighted(lambda x: -4.5 * np.abs(x[:, 0]) - 0.05 * x[:, 0] ** 2, np.random.default_rng(0), count)
    assert abs(np.abs(nearly).mean() - expected_size) > 5.0 * size_error
    assert abs(mixture.draw(np.random.default_rng(0), count).mean() - expected) > 10.0 * error
    assert mixture.weighted(lambda x: -50.0 * (x[:, 0] - 3.0) ** 2, np.random.default_rng(0), 500) is None
    assert mixture.weighted(lambda x: 2.2 * x[:, 0] ** 2, np.random.default_rng(0), 500) is None


@pytest.mark.slow
def test_the_verdict_sees_data_that_are_too_dispersed(monkeypatch):
    """Noise of sd 1 passes, of sd 1.5 is named. The prior is not normal, so that samples are weighted, or NUTS's: as those of the
    mixture, whose prior has the same moments, where the data decide."""
    (found, noise), key = normal_bench(), jax.random.key(3)
    x, mean = found.rows.values()
    assert not found.is_normal
    for sd, is_right in ((1.0, True), (1.5, False)):
        last = found.run(split_rows(found, (x, (mean + sd * noise).astype(np.float32))), 0, 5.0)
        assert (found.verdict(last).misfit is None) == is_right
    mixture = Mixture.of(last.surrogate, found.prior)
    mean, variance = mixture.moments()
    sd = np.sqrt(variance)
    for weighted in (Mixture.weighted, lambda *_: None):
        monkeypatch.setattr(Mixture, "weighted", weighted)
        drawn, problem = posterior.draw(found.coordinates, mixture, False, found.public, key, 300)
        drawn = drawn["w"]
        assert problem is None
        assert drawn.shape == (300, DIMENSION)
        np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=0.4 * sd.max())
        np.testing.assert_allclose(drawn.std(axis=0), sd, rtol=0.3)
