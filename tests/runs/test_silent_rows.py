"""Rows that do not inform a posterior: counted by the histogram that chooses the clipping norm, and told in all methods."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import dpppl
from dpppl.access.norm_histogram import MISSING, OUTSIDE, SILENT, SIZE
from dpppl.model.split import split_model
from dpppl.runs.budget import Charge
from dpppl.runs.histogram import Histogram

NUM_ROWS = 400
RNG = np.random.default_rng(0)
X, U = RNG.standard_normal(NUM_ROWS).astype(np.float32), RNG.random(NUM_ROWS).astype(np.float32)
HALF = np.arange(NUM_ROWS) < NUM_ROWS // 2


def of(law, weight=None):
    """y given the linear predictor a + b x by `law`, or with a scale or a mask for each row."""

    def model(x, y, w):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            if weight == "mask":
                with numpyro.handlers.mask(mask=w):
                    numpyro.sample("y", law(a + b * x), obs=y)
            elif weight == "scale":
                with numpyro.handlers.scale(scale=w):
                    numpyro.sample("y", law(a + b * x), obs=y)
            elif weight == "slopes":
                numpyro.sample("y", law(a * b * x + b * x), obs=y)
            elif weight == "exposure":
                numpyro.sample("y", dist.Poisson(w * jnp.exp(a + b * x)), obs=y)
            else:
                numpyro.sample("y", law(a + b * x), obs=y)

    return model


def normal(mean):
    return dist.Normal(mean, 1.0)


def logits(mean):
    return dist.BernoulliLogits(mean)


def half(one, other):
    return np.where(HALF, one, other).astype(np.float32)


KINDS = {  # model, x, y, w, and the bin that half of the rows belong to; `test_supports` has what is outside
    "masked": (of(normal, "mask"), X, X, ~HALF, SILENT),
    "masked, NaN": (of(normal, "mask"), X, half(np.nan, X), ~HALF, SILENT),
    "weight 0": (of(normal, "scale"), X, X, half(0.0, 1.0), SILENT),
    "covariate 0": (of(normal, "slopes"), half(0.0, X), X, U, SILENT),
    "exposure 0": (of(normal, "exposure"), X, np.float32(HALF * 0.0), half(0.0, 1.0), MISSING),
    "missing response": (of(normal), X, half(np.nan, X), U, MISSING),
    "missing covariate": (of(logits), half(np.nan, X), np.float32(U < 0.5), U, MISSING),
    "infinite covariate": (of(normal), half(np.inf, X), X, U, MISSING),
    "-1 and 1": (of(logits), X, half(-1.0, 1.0), U, OUTSIDE),
}  # fmt: skip


def histogram_of(model, args):
    """The histogram, without a run, and the rows."""
    split = split_model(model, args, {})
    rows, public = split.arrays(args, {})
    start = {site: jnp.zeros(shape.shape) for site, shape in split.latents.items()}
    charge = Charge(None, np.array([18.5]))
    return Histogram.starting(start, split, public, charge), rows, public


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_rows_has_a_bin_of_its_own(kind):
    """The counts without noise; and with the noise of epsilon 2, the norm is that of the other half."""
    model, x, y, w, number = KINDS[kind]
    histogram, rows, public = histogram_of(model, (x, y, w))
    bins = jax.jit(jax.vmap(histogram.statistic, (None, 0, None)))(histogram.at(), rows, public)
    counts = np.sum(np.asarray(bins), axis=0)
    assert counts.shape == (SIZE,) and counts.sum() == NUM_ROWS
    assert counts[number] == NUM_ROWS // 2 and counts[SILENT:].sum() == NUM_ROWS // 2
    noise = 18.5 * np.random.default_rng(1).standard_normal(SIZE)
    norms, counted = histogram.found(counts + noise, NUM_ROWS)
    assert norms.share < 0.75 and 0.03 < norms.high_quantile(0.9) < 300.0
    shares = {SILENT: counted.silent, MISSING: counted.missing, OUTSIDE: counted.outside}
    assert abs(shares.pop(number) - 0.5) < 0.2 and max(shares.values()) < 0.2
    assert len(counted.lines) == 1 + norms.are_hidden and bool(counted.refusals) == (number != SILENT)


def run(method, model, args, epsilon=3.0, steps=500, frame=None):
    """A run with the defaults of a method: the object, its words and the text that a reader sees."""
    target = dict(target_epsilon=epsilon, target_delta=1e-5, print_cost=False, frame=frame)
    if method == "MCMC":
        found = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=steps, num_samples=steps, progress_bar=False, **target)
        found.run(dpppl.secret_key(), *args)
        return (
            found,
            {word for words in found.verdict.by_site.values() for word in np.ravel(words)},
            str(found.privacy_report()),
        )
    found = dpppl.SVI(model, AutoNormal(model), **target)
    result = found.run(dpppl.secret_key(), steps, *args, progress_bar=False)
    return found, {result.convergence.verdict}, f"{result.convergence}{found.privacy_report()}"


def masked(y, ok):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]), numpyro.handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["MCMC", "SVI"])
@pytest.mark.parametrize("frame", [None, False], ids=["frame", "no frame"])
@pytest.mark.parametrize(("num_rows", "share"), [(400, 0.5), (10_000, 0.92)])
def test_silent_rows_do_not_make_the_posterior_the_prior(method, frame, num_rows, share):
    """Truth 1, prior N(0, 1), whose sd was reported before. Without a frame the norm is that of |y|, about 2.3, and noise is large
    only with 400 rows, where the norm may be too large by up to 8."""
    ok = np.arange(num_rows) >= share * num_rows
    y = np.float32(1.0 + np.random.default_rng(3).standard_normal(num_rows))
    found, words, text = run(method, masked, (y, ok), epsilon=2.0, frame=frame)
    norm = found.calibrated_kernel().mechanism if method == "MCMC" else found.mechanism
    assert frame is None or 1.0 < norm.clipping.clipping_norm < 30.0
    assert "gradient of 0 at the start: they are masked" in text and "Do not read the posterior" not in text
    if method == "MCMC":
        mu = np.asarray(found.get_samples()["mu"])
        assert mu.std() < 0.3 and (not words & {"read", "read the mean only"} or abs(mu.mean() - 1.0) < 5.0 * mu.std())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["MCMC", "SVI"])
def test_rows_are_counted_where_a_norm_is_given(method):
    """A tenth of 4,000 responses is 2 under Bernoulli, or NaN; with a flat norm no histogram is made."""
    model = of(logits)
    for bad in (2.0, np.nan):
        y = np.where(np.arange(4_000) < 400, bad, 1.0).astype(np.float32)
        args = np.tile(X, 10), y, np.tile(U, 10)
        target = dict(target_epsilon=3.0, target_delta=1e-5, print_cost=False)
        if method == "MCMC":
            kernel = dpppl.DPSGLD(model, clipping_norm=2.0)
            found = dpppl.MCMC(kernel, num_warmup=20, num_samples=200, progress_bar=False, **target)
            found.run(dpppl.secret_key(), *args)
            counted = found.privacy_report().details.measured.counted
        else:
            svi = dpppl.SVI(model, AutoNormal(model), clipping_norm=2.0, **target)
            counted = svi.run(dpppl.secret_key(), 200, *args, progress_bar=False).counted
        assert counted.missing == pytest.approx(0.1, abs=5 * counted.std) and counted.std < 0.02
        assert "outside the support (site 'y': BernoulliLogits takes 0 and 1" in counted.refusals[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["MCMC", "SVI"])
@pytest.mark.parametrize(("frame", "steps"), [(None, 400), (False, 100)], ids=["frame", "no frame"])
@pytest.mark.filterwarnings("ignore:steps of")
def test_rows_that_a_model_cannot_use_are_told_with_the_remedy(method, frame, steps, capsys):
    """Half of 4,000 responses coded 1 and 2; before, "read" and "arrived" without a word."""
    model = of(logits)
    args = tuple(np.tile(v, 10) for v in (X, half(2.0, 1.0), U))
    found, words, text = run(method, model, args, steps=steps, frame=frame)
    assert not words & {"read", "read the mean only", "arrived"}
    assert (
        "responses outside the support: site 'y': BernoulliLogits takes 0 and 1" in text and "pass (y + 1) / 2" in text
    )
    assert "counted rows" in text and "Do not read the posterior: " in text
    line = found.verdict.line()
    assert line.startswith("do not read: ") and "outside the support: site" in line.split("; ")[0]
    if method == "MCMC":
        with pytest.warns(
            dpppl.UnconvergedWarning, match="not be read: .* of the rows have responses outside the supp"
        ):
            found.get_samples()
        found.print_summary()
        assert "responses outside the support" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("method", "frame"), [("MCMC", None), ("MCMC", False), ("SVI", False)])
@pytest.mark.filterwarnings("ignore:steps of")
def test_the_counts_of_rows_are_those_of_a_run_and_not_of_its_object(method, frame):
    """Wrong codes are refused by the histogram of the first run and by the steps of a later one; corrected ones are not."""
    right, wrong = (tuple(np.tile(v, 10) for v in (X, y, U)) for y in (half(0.0, 1.0), half(2.0, 1.0)))
    if method == "MCMC":
        budget = dict(target_epsilon=8.0, target_delta=1e-5, reserve=0.6, frame=frame)
        thing = dpppl.MCMC(
            dpppl.DPSGLD(of(logits)), num_warmup=200, num_samples=200, progress_bar=False, print_cost=False, **budget
        )
    else:
        thing = dpppl.SVI(of(logits), AutoNormal(of(logits)), noise_multiplier=20.0, print_cost=False)
    told = []
    for args in (wrong, right, wrong):
        before = len(thing.budget.charged)
        if method == "MCMC":
            thing.run(dpppl.secret_key(), *args)
            counted = thing.privacy_report().details.measured.counted
        else:
            counted = thing.run(dpppl.secret_key(), 200, *args, progress_bar=False).counted
        is_told = any("outside the support" in line for line in thing.verdict.refusals)
        told.append((len(thing.budget.charged) - before, bool(counted.refusals), is_told))
    assert told == [(2 + (frame is None), True, True), (1, False, False), (1, True, True)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:steps of")
def test_a_run_has_the_counts_of_its_warmup():
    """Also where its steps count nothing; the next run, of other rows, has not."""
    right, wrong = (tuple(np.tile(v, 10) for v in (X, y, U)) for y in (half(0.0, 1.0), half(2.0, 1.0)))
    kernel = dpppl.DPSGLD(of(logits), noise_multiplier=20.0, measure_clipping=False)
    mcmc = dpppl.MCMC(kernel, num_warmup=20, num_samples=50, frame=False, progress_bar=False, print_cost=False)
    mcmc.warmup(dpppl.secret_key(), *wrong)
    told = []
    for args in (wrong, right):
        mcmc.run(dpppl.secret_key(), *args)
        told.append(any("outside the support" in line for line in mcmc.verdict.refusals))
    assert told == [True, False]


@pytest.mark.slow
def test_a_warmup_by_itself_chooses_the_norm_of_the_whole_run(claimed):
    norms = []
    for parts in (("run",), ("warmup", "run")):
        claimed.clear()
        mcmc = dpppl.MCMC(
            dpppl.DPSGLD(masked), num_warmup=50, num_samples=400, thinning=3, progress_bar=False, frame=False,
            print_cost=False, target_epsilon=2.0, target_delta=1e-5,
        )  # fmt: skip
        for part, number in zip(parts, (0, 1)):
            getattr(mcmc, part)(jax.random.key(number), np.tile(X, 5), np.ones(5 * NUM_ROWS, bool))
        norms.append(mcmc.calibrated_kernel().mechanism.clipping.clipping_norm)
        assert mcmc.privacy_report().epsilon == pytest.approx(2.0, rel=0.01)
    assert norms[0] == norms[1]
