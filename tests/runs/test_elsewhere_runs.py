"""Defects of other libraries' runs, each as a test that chains, SVI, NoiseAware and queries pass; `test_mutations_elsewhere`
plants them."""

import pickle
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta, AutoNormal
from patches import run_through, same_key

import dpppl
from dpppl.runs import driver, session

N, WIDTH, RATE = 157, 3, 0.4


def model(x, y, ok):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]), numpyro.handlers.mask(mask=ok):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def data(num_rows=N):
    """(x, y, which rows count), the last tenth of which do not."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((N, WIDTH)).astype(np.float32), (rng.random(N) < 0.6).astype(np.float32)
    return x[:num_rows], y[:num_rows], np.arange(num_rows) < 0.9 * N


def changed(index, x_value, y_value):
    """The data with another row."""
    x, y, ok = data()
    x[index], y[index] = x_value, y_value
    return x, y, ok


def chain(*args, **settings):
    settings = {"clipping_norm": 1.0, "subsampling": dpppl.Poisson(RATE)} | settings
    kernel = dpppl.DPSGLD(model, noise_multiplier=8.0, **settings)
    mcmc = dpppl.MCMC(kernel, num_warmup=2, num_samples=4, num_chains=2, chain_method="vectorized", progress_bar=False)
    with same_key() as key:
        mcmc.run(key, *args)
    return {
        "samples": mcmc.get_samples(),
        "state": mcmc.last_state._replace(rng_key=None),
        "weights": mcmc.get_weights(),
    }


def norms(*args):
    """Chains that choose their norm; the kernel's clipping is centred."""
    return chain(*args, clipping_norm="auto", subsampling=None)


def variational(*args, **settings):
    svi = dpppl.SVI(model, AutoNormal(model), **({"clipping_norm": 1.0} | settings), noise_multiplier=8.0)
    with same_key() as key:
        result = svi.run(key, 5, *args, progress_bar=False)
    return {"parameters": result.params, "trajectory": result.trajectory, "gradients": result.gradients}


def aware(*args):
    method = dpppl.NoiseAware(model, noise_multiplier=0.5, num_samples=20, progress_bar=False)
    with same_key() as key:
        method.run(key, *args)
    return {"releases": method.releases.values, "samples": method.get_samples(allow_unconverged=True)}


def query(*args):
    score = lambda x, y, ok: jnp.where(ok, (x[0] - y) ** 2, 0.0)  # noqa: E731
    with same_key() as key:
        found = dpppl.private_score(key, score, *args, bounds=(-2.0, 2.0), noise_multiplier=2.0)
    print(found)
    return {"mean": np.float64(found.mean)}


WAYS = {"MCMC": chain, "norms": norms, "SVI": variational, "NoiseAware": aware, "query": query}
slow = [pytest.param(way, marks=pytest.mark.slow) for way in ("norms", "NoiseAware")]
every_way = pytest.mark.parametrize("way", ["query", "SVI", "MCMC", *slow])


class Seen:
    """What a run compiled, printed and reported before it released anything."""

    def __init__(self, monkeypatch):
        self.programs, self.reports, self.first = [], [], None
        lowered, announce = driver.placing.lowered, session.announce

        def noting(closed, arguments, quickly):
            made = lowered(closed, arguments, quickly)
            if self.first is None:
                self.programs.append(made._lowered.as_text())
            return made

        def calling(call, *_):
            self.first = self.programs[:]
            return call()

        def announcing(report, *rest):
            self.reports.append(f"{report} {report.to_json()}")
            announce(report, *rest)

        monkeypatch.setattr(driver.placing, "lowered", noting)
        run_through(monkeypatch, calling)
        monkeypatch.setattr(session, "announce", announcing)


def seen(way, args, monkeypatch, capfd):
    """(programs, all that was printed and reported at the start, what was released)."""
    with monkeypatch.context() as patch:
        facts = Seen(patch)
        released = WAYS[way](*args)
    printed = capfd.readouterr()
    # what a query prints is its release
    return facts.programs, [*facts.reports, printed.err] + ([printed.out] if way != "query" else []), released


def less_one(program, way):
    """The program's text with N - 1 in place of N: in lengths of arrays, also of flat ones; but in queries as the scale of the rows' plate
    and as what a noised count is a share of."""

    def less(number):
        times, rest = divmod(int(number[0]), N)
        return number[0] if rest or not 0 < times <= 2 * WIDTH else str(times * (N - 1))

    for times in () if way == "query" else (1.0, RATE):
        program = program.replace(f"<{times * N:.6e}>", f"<{times * (N - 1.0):.6e}>")
    return re.sub(r"(?<![\d.%_g])\d+(?![\d.])", less, program)


NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])")


@pytest.mark.quick_cases(1)
@every_way
def test_no_constant_comes_of_the_number_of_rows(way, monkeypatch, capfd):
    """Programs for N and N - 1 rows are the same but for N itself, and so are prints and reports: nothing is computed from N,
    neither a rate nor a scale, a noise or a price."""
    (one, text, _), (other, words, _) = (seen(way, data(n), monkeypatch, capfd) for n in (N, N - 1))
    assert len(one) == len(other) > 0
    for a, b in zip(one, other):
        lines = zip(less_one(a, way).splitlines(), b.splitlines(), strict=True)
        assert len(a) > 1000 and [(p, q) for p, q in lines if p != q] == []
    assert len(text) == len(words)
    for a, b in zip(text, words):
        pairs = [(p, q) for p, q in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True) if p != q]
        assert set(pairs) <= {(str(N), str(N - 1))}, pairs
    if way != "query":
        assert all("N public" in report for report in text[:-2])


NEIGHBOURS = [(0, 0.0, 0.0), (0, np.nan, 1.0), (5, 1e30, 1e30), (N // 2, 3.0, 0.5), (1, np.inf, -7.0)]


def shapes(released):
    """Structure, types, shapes and the length of a pickle."""
    kinds = jax.tree.map(lambda x: (np.shape(x), np.asarray(x).dtype.str), released)
    return str(kinds), len(pickle.dumps(jax.tree.map(np.asarray, released)))


@pytest.mark.quick_cases(1)
@every_way
def test_what_is_released_has_the_form_that_it_has_on_neighbours(way, monkeypatch, capfd):
    """Lengths, types, sizes of pickles, programs with all their constants (supports, categories, edges), prints and prices."""
    programs, text, released = seen(way, data(), monkeypatch, capfd)
    values = [np.concatenate([np.ravel(x).astype(np.float64) for x in jax.tree.leaves(released)])]
    for neighbour in NEIGHBOURS[:: 1 if way != "NoiseAware" else 3]:
        others, words, found = seen(way, changed(*neighbour), monkeypatch, capfd)
        assert (others, words) == (programs, text)
        assert shapes(found) == shapes(released)
        values.append(np.concatenate([np.ravel(x).astype(np.float64) for x in jax.tree.leaves(found)]))
        assert np.all(np.isfinite(values[-1]))
    assert not any(np.array_equal(values[0], other) for other in values[1:3])  # rows did take part


@pytest.mark.quick_cases(1)
@every_way
def test_masked_rows_change_nothing(way):
    """Whatever stands in rows that do not count: bit for bit."""
    expected = WAYS[way](*data())
    for x_value, y_value in ((0.0, 0.0), (7.0, 1.0)):
        x, y, ok = data()
        x[~ok], y[~ok] = x_value, y_value
        jax.tree.map(np.testing.assert_array_equal, WAYS[way](x, y, ok), expected)


def in_another_order(args):
    order = np.random.default_rng(1).permutation(N)
    return [values[order] for values in args]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["SVI", "query", *slow])  # a Poisson batch has other rows then
def test_rows_in_another_order_change_nothing(way):
    """Sums of full batches, of norms' histograms, of curvatures and of scores.

    Sums are exact in any order. A row's own gradient may round differently at another place in memory: the last bits are free."""
    same = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
    jax.tree.map(same, WAYS[way](*in_another_order(data())), WAYS[way](*data()))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["SVI", "query", slow[0]])
def test_one_row_is_data_like_others(way):
    found = WAYS[way](*data(1))
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(found))


@pytest.mark.slow
def test_no_row_of_noise_aware_is_divided_by():
    """Few rows are refused by their public number and the budget alone, before anything is charged."""
    for values in (1.0, 0.0, np.nan):
        method = dpppl.NoiseAware(model, noise_multiplier=0.5, progress_bar=False)
        with pytest.raises(dpppl.ConfigurationError, match="this budget can tell nothing of 1 rows"):
            method.run(
                dpppl.secret_key(), np.full((1, WIDTH), values, np.float32), np.ones(1, np.float32), np.ones(1, bool)
            )
        assert not method.budget.charged


# Keys


SITES, LENGTH, STEPS = ("a", "b", "c"), 128, 10


def flat(y):
    improper = dist.ImproperUniform(dist.constraints.real, (), (LENGTH,))
    total = sum(jnp.sum(numpyro.sample(site, improper)) for site in SITES)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0 * total, 1.0), obs=y)


def uncorrelated(noise):
    """Vectors (count, LENGTH), no two of which are alike: |r| sqrt(n) is nearly standard normal, a false alarm in 1e6."""
    assert np.all(np.std(noise, axis=1) > 0)
    alike = np.abs(np.corrcoef(noise)[np.triu_indices(len(noise), 1)]) * LENGTH**0.5
    assert np.max(alike) < 7.0 and len(noise) > 10, np.max(alike)


def increments(method):
    """The noise of steps, by site and chain, (steps * sites * chains, LENGTH): every other difference of the samples, which are
    midpoints between two steps."""
    settings = dict(chain_method=method)
    if method == "mesh":
        settings = dict(chain_method="parallel", mesh=jax.make_mesh((2,), ("rows",), devices=jax.devices()[:2]))
    kernel = dpppl.DPSGLD(
        flat,
        clipping_norm=1.0,
        noise_multiplier=5.0,
        step_size=0.01,
        init_strategy={s: jnp.zeros(LENGTH) for s in SITES},
    )
    mcmc = dpppl.MCMC(
        kernel, num_warmup=0, num_samples=STEPS, num_chains=2, progress_bar=False, print_cost=False, **settings
    )
    mcmc.run(dpppl.secret_key(), np.zeros(6, np.float32))
    found = mcmc.get_samples(group_by_chain=True)
    return np.concatenate([np.diff(np.asarray(found[s]), axis=1)[:, ::2].reshape(-1, LENGTH) for s in SITES])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vectorized", "sequential", "parallel", "mesh"])
def test_equal_sites_steps_chains_and_devices_share_no_noise(method):
    uncorrelated(increments(method))


def test_equal_sites_and_steps_of_svi_share_no_noise():
    svi = dpppl.SVI(flat, AutoDelta(flat), clipping_norm=1.0, noise_multiplier=5.0, print_cost=False)
    result = svi.run(dpppl.secret_key(), STEPS, np.zeros(6, np.float32), progress_bar=False)
    uncorrelated(np.concatenate([np.asarray(x).reshape(-1, LENGTH) for x in result.gradients.values()]))
