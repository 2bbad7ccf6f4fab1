"""What a chain's verdict says of the prior, and of elements that depend on latents that have not arrived."""

import re

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import dpppl
from dpppl.findings.learned import LEARNED, PRIOR, Learned
from dpppl.mcmc import verdict
from dpppl.mcmc.measured import Arrival, MeasuredChains, Noise, excess_of
from dpppl.mcmc.verdict import DEPENDS, MEAN, READ, SHORT, reading

READABLE = (READ, MEAN)


def chain(rng, curvature, mode, step, draws=1_000, friction=1.0):
    """(midpoints, positions, noise) of a chain, after as many steps of warmup, with a normal posterior."""
    std, z, v, found = (2.0 * friction * step) ** 0.5, np.zeros((1, len(mode))), 0.0, []
    for number in range(2 * draws):
        v = (1.0 - friction) * v - step * (z - mode) @ curvature + std * rng.standard_normal(z.shape)
        z = z + v
        if number >= draws:
            found.append((z - 0.5 * v, z))
    middle, positions = ({"w": np.stack(part, axis=1)} for part in zip(*found))
    way = (std / friction) ** 2
    moves, ways = np.full((1, draws), way * friction / (2.0 - friction)), np.full((1, draws - 1), way)
    return middle, positions, Noise(moves=moves, ways=ways, friction=friction)


def found(middle, positions, noise, prior):
    measured = MeasuredChains(step_size=0.1, excess=excess_of(middle, positions, noise))
    return reading(middle, measured, Arrival.of(middle, positions, noise), {"w": prior})


def ridge(rng, friction):
    """Curvature, mode and step of `y ~ N(a + b x, 1)` with x far from 0, whose intercept and slope are known together only;
    the chain has the time of a tenth to three relaxations of their ridge."""
    x = rng.uniform(3.0, 100.0)
    rows = 10 ** rng.uniform(2.5, 4.5) * np.array([[1.0, x], [x, x**2 * (1.0 + 10 ** rng.uniform(-3.0, -1.0))]])
    curvature = rows + np.eye(2)
    values = np.linalg.eigvalsh(curvature)
    time = min(10 ** rng.uniform(-1.0, 0.5) / values[0], 300.0 / values[1])
    return curvature, np.linalg.solve(curvature, rows @ rng.standard_normal(2)), time / 1_000 * friction


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("friction", [1.0, 0.1])
def test_a_slope_whose_intercept_has_not_arrived_is_not_readable(friction, monkeypatch):
    """60 data sets. Without a look at the intercept more than ten slopes would be read that are 5 sds off or more; of those left
    one in 100 has an intercept that seems to be held."""
    rng, prior, wrong = np.random.default_rng(0), np.random.default_rng(1).standard_normal((1_000, 2)), [0, 0]
    limit = verdict.LARGEST_SHIFT
    for _ in range(60):
        curvature, mode, step = ridge(rng, friction)
        run = chain(rng, curvature, mode, step, friction=friction)
        off = np.abs(np.mean(run[0]["w"], axis=(0, 1)) - mode) > 5.0 * np.std(run[0]["w"], axis=(0, 1))
        for number, largest in enumerate((limit, np.inf)):  # the second is a mutant
            monkeypatch.setattr(verdict, "LARGEST_SHIFT", largest)
            wrong[number] += np.sum(off & np.isin(found(*run, prior).words["w"], READABLE))
    assert wrong[0] <= 1 and wrong[1] > 10


def test_what_does_not_depend_stays_readable():
    """Six independent elements, 400 relaxations, and one of no curvature that walks over a third of its prior: the element is too
    short, and 80 % of 120 others are readable. The same walk against a prior a hundred times as wide holds all of them back."""
    rng, kept, prior = np.random.default_rng(2), [], np.random.default_rng(1).standard_normal((1_000, 7))
    curvature = np.diag([1_000.0] * 6 + [1e-3])
    for _ in range(20):
        run = chain(rng, curvature, np.zeros(7), 4e-4)
        wide = run[0]["w"].std(axis=(0, 1))[-1] * 3.0
        scaled = found(*run, prior * np.array([1.0] * 6 + [wide])).words["w"]
        assert scaled[-1] not in READABLE
        kept.append(np.mean(np.isin(scaled[:-1], READABLE)))
        assert not np.any(np.isin(found(*run, prior * np.array([1.0] * 6 + [100.0 * wide])).words["w"], READABLE))
    assert np.mean(kept) > 0.8


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("size", [6, 30])
def test_elements_of_which_only_differences_are_held_are_not_held(size):
    """20 chains, 100 relaxations of all differences and one of the sum, which is 3 sds away: each element has a small part of the
    sum's power. One test for each element would let at least twice as many be read. Where the sum is held, too, nearly all are."""
    rng, own, together, held = np.random.default_rng(3), 0, 0, 0
    mean = np.ones((size, size)) / size
    for _ in range(20):
        mode = np.full(size, 3.0 * (0.1 / size) ** 0.5)
        run = chain(rng, 1_000.0 * (np.eye(size) - mean) + 10.0 * mean, mode, 1e-4)
        alone = [Arrival.of(*({"w": v["w"][..., [i]]} for v in run[:2]), run[2]).held["w"][0] for i in range(size)]
        own, together = own + np.sum(alone), together + np.sum(Arrival.of(*run).held["w"])
        held += np.mean(Arrival.of(*chain(rng, 1_500.0 * np.eye(size), np.zeros(size), 1e-4)).held["w"])
    assert together < 0.5 * own and held > 0.9 * 20


PRIORS = {
    "normal": lambda rng, n: rng.normal(3.0, 2.0, n), "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "half-cauchy": lambda rng, n: np.abs(rng.standard_cauchy(n)), "uniform": lambda rng, n: rng.random(n),
    "funnel": lambda rng, n: rng.standard_normal(n) * np.exp(1.5 * rng.standard_normal(n)),
    "two modes": lambda rng, n: rng.choice([-5.0, 5.0], n) + rng.standard_normal(n),
}  # fmt: skip


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("draw", PRIORS.values(), ids=PRIORS)
def test_a_posterior_that_is_the_prior_is_called_so(draw):
    """500 elements each: at 60 and at 1,000 draws at least 97 % of priors, at most 2 % of posteriors that are the prior's middle
    half, or its upper half."""
    rng = np.random.default_rng(4)
    prior = draw(rng, (1_000, 500))
    for number in (60, 1_000):
        same = Learned.of(draw(rng, (number, 500)), float(number), prior).words
        assert np.mean(same == PRIOR) > 0.97
        ordered = np.sort(draw(rng, (2 * number, 500)), axis=0)
        for part in (ordered[number // 2 : -(number // 2)], ordered[number:]):
            assert np.mean(Learned.of(part, float(number), prior).words == PRIOR) < 0.02
    narrow = Learned.of(np.median(prior, axis=0) + 1e-3 * rng.standard_normal((60, 500)), 60.0, prior)
    assert set(narrow.words) == {LEARNED} and np.all(narrow.share > 0.99)


def masked(y, ok):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.deterministic("twice", 2.0 * mu)
    with numpyro.plate("data", y.shape[0]), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def line(x, y):
    a, b = numpyro.sample("a", dist.Normal(0.0, 1.0)), numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def weights(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def ran(kernel, *args, steps=(300, 600), epsilon=3.0):
    mcmc = dpppl.MCMC(kernel, num_warmup=steps[0], num_samples=steps[1], target_epsilon=epsilon, target_delta=1e-5,
                      progress_bar=False, print_cost=False)  # fmt: skip
    mcmc.run(dpppl.secret_key(), *(np.asarray(x) if np.asarray(x).dtype == bool else np.float32(x) for x in args))
    return mcmc


NOISY = {
    "hidden": (dpppl.DPSGLD, {"subsampling": dpppl.Poisson(0.95)}, 1.0, READ),
    "seen": (dpppl.DPSGLD, {"subsampling": dpppl.Poisson(0.2)}, 1.3, "FullBatch"),
    "epochs": (dpppl.DPSGHMC, {"subsampling": dpppl.Partition(5)}, 1.0, "FullBatch"),
    "thermostat": (dpppl.DPSGNHT, {"subsampling": dpppl.Poisson(0.1)}, 1.0, "FullBatch"),
    "long steps": (dpppl.DPSGLD, {"step_size": 5e-4, "clipping_norm": 4.0}, 1.3, "step_size='matched'"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kernel, settings, widest, said", NOISY.values(), ids=NOISY)
def test_sds_that_noise_of_steps_may_widen_are_not_read(kernel, settings, widest, said):
    """1,000 rows, 120 relaxation times or more. Clipping alone widens sds by a fifth at the norm 2. The largest sd, in units of
    the exact posterior's, is at least .8 of `widest`."""
    x = np.random.default_rng(8).standard_normal((1_000, 3)) * [1.0, 0.7, 0.7]
    y = x.sum(1) + np.random.default_rng(9).standard_normal(1_000)
    kernel = kernel(weights, **{"clipping_norm": 2.0, "clipping": "centred"} | settings)
    mcmc = ran(kernel, x, y, steps=(400, 2_000), epsilon=8.0)
    sds = np.linalg.inv(x.T @ x + np.eye(3)).diagonal() ** 0.5
    assert np.max(np.std(mcmc.get_samples()["w"], axis=0) / sds) > 0.8 * widest
    assert set(mcmc.verdict.by_site["w"]) == {READ if said == READ else MEAN} and said in mcmc.verdict.line()


@pytest.mark.slow
def test_a_run_whose_samples_are_the_priors_says_prior(capsys):
    """A norm far below every gradient, half of the rows masked: the posterior is the prior, whatever the data are."""
    y, ok = 1.0 + np.random.default_rng(0).standard_normal(400), np.arange(400) % 2 == 0
    mcmc = ran(dpppl.DPSGLD(masked, clipping_norm=6e-5, clipping="centred"), y, ok)
    assert mcmc.verdict.by_site == {"mu": PRIOR, "twice": PRIOR} and abs(mcmc.get_samples()["mu"].std() - 1.0) < 0.3
    mcmc.print_summary()
    printed = capsys.readouterr().out
    assert "prior: 1 of 1 (mu); the data changed" in printed and "from the data: prior 1 of 1 (mu)" in printed


@pytest.mark.slow
def test_one_column_that_says_nothing_does_not_spoil_the_others():
    """The last of seven columns is 0: its weight is the prior's, and the others are read."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((20, 7)) * np.array([1.0] * 6 + [0.0])
    mcmc = ran(dpppl.DPSGLD(weights, clipping_norm=3.0, clipping="centred"), x, x.sum(1) + rng.standard_normal(20),
               steps=(300, 2_000), epsilon=100.0)  # fmt: skip
    assert [str(word) for word in mcmc.verdict.by_site["w"]] == [READ] * 6 + [PRIOR]


CASES = {
    "age": lambda rng, n: (line, rng.uniform(20, 90, n), np.array([1.0, 0.05])),
    "euros": lambda rng, n: (line, np.exp(10.0 + 0.7 * rng.standard_normal(n)), np.array([1.0, 3e-5])),
    "years": lambda rng, n: (line, rng.integers(1950, 2021, n), np.array([1.0, 5e-4])),
    "duplicated": lambda rng, n: (weights, rng.standard_normal((n, 1)) + 0.02 * rng.standard_normal((n, 2)) * [0, 1],
                                  np.array([0.2, 0.5])),
    "shifted": lambda rng, n: (weights, np.concatenate([np.ones((n, 1)), 5.0 + rng.standard_normal((n, 2))], 1),
                               np.array([1.0, 0.3, -0.2])),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [dpppl.DPSGLD, dpppl.DPSGHMC, dpppl.DPSGNHT], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_mean_far_from_the_truth_is_readable(case, kernel):
    """Defaults, epsilon 3, N = 5,000: no element that may be read is more than 5 of its sds from the truth."""
    model, x, truth = case(rng := np.random.default_rng(6), 5_000)
    linear = truth[0] + truth[1] * x if model is line else x @ truth
    mcmc = ran(kernel(model), x, linear + rng.standard_normal(5_000), steps=(1_000, 1_000))
    samples = mcmc.get_samples()
    drawn = np.stack([samples["a"], samples["b"]], 1) if model is line else np.asarray(samples["w"])
    words = np.concatenate([np.ravel(v) for v in mcmc.verdict.by_site.values()])
    off = np.abs(drawn.mean(0) - truth) > 5.0 * drawn.std(0)
    assert not np.any(off & np.isin(words.astype(str), (*READABLE, PRIOR)))


def test_the_sites_that_are_waited_for_are_named():
    rng, draws = np.random.default_rng(7), 400
    walk = np.cumsum(0.002 * rng.standard_normal((1, draws)), axis=1)
    samples = {"level": walk, "slope": 0.1 * rng.standard_normal((1, draws)), "other": rng.standard_normal((1, draws))}
    samples["sum"] = samples["level"] + samples["slope"]
    prior = {site: rng.standard_normal(1_000) for site in samples}
    measured = MeasuredChains(step_size=0.1, excess=dict.fromkeys(("level", "slope", "other"), 0.0))
    found = reading(samples, measured, Arrival(), prior)
    assert found.words["level"] == SHORT and found.words["slope"] == found.words["sum"] == f"{DEPENDS}level"
    assert found.words["other"] == f"{DEPENDS}level" or found.words["other"] == PRIOR
    assert any("depends on level: 2 of 4 (slope, sum); these latents" in text for text in found.lines)
    fixed = reading(
        samples, measured, Arrival(), prior | {"level": np.zeros(1_000)}
    )  # an improper prior excludes nothing
    assert fixed.words["slope"] == f"{DEPENDS}level"
    constant = reading(
        {"a": np.ones((1, draws))}, MeasuredChains(step_size=0.1, excess={"a": 0.0}), Arrival(), {"a": np.ones(1_000)}
    )
    assert constant.words["a"] == READ


def test_a_verdict_is_printed_in_words():
    rng = np.random.default_rng(0)
    run = found(*chain(rng, np.eye(3), np.zeros(3), 0.05), rng.standard_normal((500, 3)))
    for text in (str(run), repr(run)):
        lines = text.splitlines()
        assert lines[0] == run.line() and "array(" not in text and lines[-1].startswith("w: ")
        assert sum(int(count) for count in re.findall(r"(?:: |, )(\d+) ", lines[-1])) == 3
