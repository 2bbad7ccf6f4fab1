"""Draws of responses: the laws of NumPyro's distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from dpppl.model import samplers
from dpppl.model.samplers import _many, drawn

COUNT = 20_000
LAWS = {
    "poisson": lambda: (
        dist.Poisson(jnp.array([0.0, 0.2, 3.0, 75.0, 300.0])),
        stats.poisson([0.0, 0.2, 3.0, 75.0, 300.0]),
    ),
    "half precision": lambda: (dist.Poisson(jnp.float16([30.0, 3.0])), stats.poisson([30.0, 3.0])),
    "whole rates": lambda: (dist.Poisson(np.array([30, 3])), stats.poisson([30.0, 3.0])),
    "binomial": lambda: (
        dist.BinomialProbs(jnp.array([0.02, 0.5, 0.97, 0.4, 0.0]), jnp.array([30, 20, 50, 500, 7])),
        stats.binom([30, 20, 50, 500, 7], [0.02, 0.5, 0.97, 0.4, 0.0]),
    ),
    "logits": lambda: (dist.BinomialLogits(jnp.array([-1.0, 2.0]), 12), stats.binom(12, 1 / (1 + np.exp([1.0, -2.0])))),
    "beta-binomial": lambda: (
        dist.BetaBinomial(jnp.array([2.0, 0.7]), jnp.array([1.0, 3.0]), jnp.array([12, 300])),
        stats.betabinom([12, 300], [2.0, 0.7], [1.0, 3.0]),
    ),
    "negative binomial": lambda: (
        dist.NegativeBinomial2(jnp.array([0.5, 5.0, 70.0, 5.0, 300.0]), jnp.array([2.0, 0.7, 9.0, 0.3, 1.0])),
        stats.nbinom([2.0, 0.7, 9.0, 0.3, 1.0], [0.8, 0.7 / 5.7, 9.0 / 79.0, 0.3 / 5.3, 1.0 / 301.0]),
    ),
    "gamma": lambda: (
        dist.Gamma(jnp.array([0.2, 0.4, 1.0, 6.0, 1e4]), jnp.array([1.0, 2.0, 3.0, 1.0, 100.0])),
        stats.gamma([0.2, 0.4, 1.0, 6.0, 1e4], scale=[1.0, 0.5, 1.0 / 3.0, 1.0, 0.01]),
    ),
    "chi-squared": lambda: (dist.Chi2(jnp.array([1.0, 9.0])), stats.chi2([1.0, 9.0])),
    "inverse gamma": lambda: (dist.InverseGamma(jnp.array([1.5, 4.0]), 2.0), stats.invgamma([1.5, 4.0], scale=2.0)),
    "beta": lambda: (
        dist.Beta(jnp.array([0.3, 2.0, 40.0]), jnp.array([0.5, 1.0, 7.0])),
        stats.beta([0.3, 2.0, 40.0], [0.5, 1.0, 7.0]),
    ),
    "student_t": lambda: (
        dist.StudentT(jnp.array([1.0, 4.0, 1e7, jnp.inf]), 2.0, 3.0),
        stats.t([1.0, 4.0, 1e7, 1e7], 2.0, 3.0),
    ),
    "normal": lambda: (dist.Normal(jnp.array([0.0, 2.0]), 3.0), stats.norm([0.0, 2.0], 3.0)),
    "log-normal": lambda: (dist.LogNormal(jnp.array([0.0, 1.0]), 0.5), stats.lognorm(0.5, scale=np.exp([0.0, 1.0]))),
    "Laplace": lambda: (dist.Laplace(jnp.array([0.0, 2.0]), 3.0), stats.laplace([0.0, 2.0], 3.0)),
    "Gumbel": lambda: (dist.Gumbel(jnp.array([0.0, 2.0]), 3.0), stats.gumbel_r([0.0, 2.0], 3.0)),
    "logistic": lambda: (dist.Logistic(jnp.array([0.0, 2.0]), 3.0), stats.logistic([0.0, 2.0], 3.0)),
    "Cauchy": lambda: (dist.Cauchy(jnp.array([0.0, 2.0]), 3.0), stats.cauchy([0.0, 2.0], 3.0)),
    "exponential": lambda: (dist.Exponential(jnp.array([0.1, 2.0])), stats.expon(scale=[10.0, 0.5])),
    "Weibull": lambda: (dist.Weibull(2.0, jnp.array([0.5, 3.0])), stats.weibull_min([0.5, 3.0], scale=2.0)),
    "geometric": lambda: (dist.GeometricProbs(jnp.array([0.1, 0.7])), stats.geom([0.1, 0.7], -1)),
    "geometric of logits": lambda: (
        dist.GeometricLogits(jnp.array([-2.0, 1.0])),
        stats.geom(1 / (1 + np.exp([2.0, -1.0])), -1),
    ),
}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", LAWS)
def test_the_law_is_that_of_the_distribution(name):
    """Shares below each decile within 4.5 standard errors (false alarm below 1e-3 in all); not those of a law that is moved
    by .1 sd, or 1."""
    fn, reference = LAWS[name]()
    found = np.asarray(jax.jit(lambda key: drawn(fn, key, (COUNT,)))(jax.random.key(0)), np.float64)
    one, theirs = (jax.eval_shape(draw, jax.random.key(0)) for draw in (lambda key: drawn(fn, key), fn.sample))
    assert found.shape == fn.shape((COUNT,)) and one.dtype == theirs.dtype

    def largest(moved):
        z = []
        for level in np.arange(0.1, 1.0, 0.1):
            place = reference.ppf(level)
            p = reference.cdf(place)
            share = np.mean(found + moved <= place, axis=0)
            z.append(np.abs(share - p) / np.sqrt(np.maximum(p * (1 - p), 1e-9) / COUNT))
        return np.max(z)

    spread = np.nan_to_num(np.minimum(reference.std(), 30.0), nan=3.0, posinf=3.0)
    assert largest(0.0) < 4.5
    is_continuous = not jnp.issubdtype(theirs.dtype, jnp.integer)
    assert largest(np.where(is_continuous, 0.1 * spread, 1.0)) > 4.5


@pytest.mark.parametrize("law", [dist.BinomialProbs, lambda p, n: dist.BetaBinomial(2.0, 3.0, n)])
def test_a_total_count_may_be_of_floats(law):
    """NumPyro's samplers raise TypeError; its log probabilities take them."""
    counts = [drawn(law(0.3, n), jax.random.key(0), (50,)) for n in (np.int32(7), np.float32(7.0))]
    assert counts[0].dtype == counts[1].dtype == jnp.int32 and jnp.array_equal(*counts) and jnp.ptp(counts[0]) > 2


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("gate", [0.1, 0.5])
def test_zero_inflated_counts_have_their_share_of_zeros(gate):
    """Within 4.5 standard errors (false alarm below 2e-5), under NumPyro's probabilities and logits alike."""
    for fn in (
        dist.ZeroInflatedPoisson(gate, jnp.array([2.0, 50.0])),
        dist.ZeroInflatedDistribution(dist.Poisson(jnp.array([2.0, 50.0])), gate_logits=jnp.log(gate / (1 - gate))),
    ):
        found = np.asarray(jax.jit(lambda key: drawn(fn, key, (COUNT,)))(jax.random.key(2)))  # noqa: B023
        expected = gate + (1 - gate) * np.exp([-2.0, -50.0])
        assert found.dtype == jax.eval_shape(fn.sample, jax.random.key(0)).dtype
        np.testing.assert_array_less(np.abs((found == 0).mean(0) - expected), 4.5 * np.sqrt(expected / COUNT) + 1e-9)
        assert np.abs(found[found[:, 1] > 0, 1].mean() - 50.0) < 4.5 * np.sqrt(50.0 / COUNT / (1 - gate))


RATES = np.float32([0.3, 3.0, 60.0])
HURDLES = {
    "Poisson": lambda: dist.HurdlePoisson(0.2, RATES),
    "negative binomial": lambda: dist.HurdleDistribution(dist.NegativeBinomial2(RATES, 0.5), gate=0.2),
    "logits": lambda: dist.HurdleDistribution(dist.Poisson(RATES), gate_logits=np.log(0.25)),
    "mixture": lambda: dist.MixtureGeneral(
        SHARES, [dist.HurdlePoisson(0.2, RATES), dist.Poisson(5.0 * np.ones_like(RATES))]
    ),
    "one family": lambda: dist.MixtureSameFamily(
        SHARES, dist.HurdlePoisson(0.2, RATES[:, None] * np.float32([1.0, 2.0]))
    ),
}
SHARES = dist.CategoricalProbs(np.float32([0.3, 0.7]))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", HURDLES)
def test_hurdle_counts_have_their_law(name):
    """Frequencies of 0 to 4, and the mean: within 4.5 standard errors, 18 of them (false alarm 1e-4)."""
    fn = HURDLES[name]()
    found = np.asarray(jax.jit(lambda key: drawn(fn, key, (COUNT,)))(jax.random.key(3)))
    expected = np.exp(np.asarray(fn.log_prob(jnp.arange(5)[:, None])))
    frequencies = np.stack([(found == k).mean(0) for k in range(5)])
    assert found.dtype == jax.eval_shape(fn.sample, jax.random.key(0)).dtype
    np.testing.assert_array_less(np.abs(frequencies - expected), 4.5 * np.sqrt(expected / COUNT) + 1e-4)
    np.testing.assert_array_less(np.abs(found.mean(0) - fn.mean), 4.5 * found.std(0) / np.sqrt(COUNT))


def test_hurdle_counts_of_next_to_no_rate_are_drawn_at_once():
    """NumPyro's own are drawn again until none is 0, which never ends: one row of rate 0 would stop a run."""
    draw = jax.jit(lambda rates, key: drawn(dist.HurdlePoisson(0.2, rates), key, (1_000,)))
    found = np.asarray(draw(np.float32([0.0, 1e-12, -1.0, np.nan]), jax.random.key(3)))
    assert np.all(np.abs(np.mean(found == 0, axis=0) - 0.2) < 0.06) and set(found[:, :2].ravel().tolist()) == {0, 1}


def test_components_of_mixtures_are_drawn_here_and_not_by_numpyro(monkeypatch):
    """Shares within 4.5 standard errors (false alarm 3e-5). NumPyro's hurdle would never end for a row of rate 0."""
    monkeypatch.setitem(
        samplers._DRAWS, dist.HurdlePoisson, lambda d, key, shape: jnp.broadcast_to(d.rate, shape) + 6.0
    )
    hurdle, pairs = dist.HurdlePoisson(0.2, np.ones(3, np.float32)), np.float32([1.0, 3.0])
    inner = dist.MixtureSameFamily(SHARES, dist.HurdlePoisson(0.2, jnp.broadcast_to(pairs, (3, 2))))
    found = np.asarray(drawn(dist.MixtureGeneral(SHARES, [hurdle, inner]), jax.random.key(0), (20_000,)))
    shares = 0.3 + 0.7 * 0.3, 0.7 * 0.7
    assert found.shape == (20_000, 3) and np.issubdtype(found.dtype, np.integer) and set(found.ravel()) == {7, 9}
    np.testing.assert_allclose([(found == k).mean(0) for k in (7, 9)], np.outer(shares, np.ones(3)), atol=4.5 * 0.0036)
    of_vectors = dist.MixtureGeneral(
        SHARES, [dist.HurdlePoisson(0.2, pairs).to_event(1), dist.HurdlePoisson(0.2, pairs + 2).to_event(1)]
    )
    found = np.asarray(drawn(of_vectors, jax.random.key(0), (500,)))
    assert {tuple(each) for each in found.tolist()} == {(7, 9), (9, 11)}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("concentration", [None, 3.0])
def test_multinomial_counts_have_their_law_whatever_each_row_s_total(concentration):
    """Means and variances within 5 standard errors (18 of them: false alarm 1e-5); a total is traced, as a row's own is."""
    probs, totals = np.float32([0.1, 0.0, 0.3, 0.6]), np.float32([0.0, 7.0, 300.0])

    def law(totals):
        if concentration is not None:
            return dist.DirichletMultinomial(concentration * (probs + 0.1), totals)
        return (
            dist.MultinomialProbs(probs, totals)
            if totals.dtype == int
            else dist.MultinomialLogits(jnp.log(probs + 1e-30), totals)
        )

    for given in (totals, totals.astype(int)):
        found = np.asarray(jax.jit(lambda given, key: drawn(law(given), key, (20_000,)))(given, jax.random.key(3)))
        assert np.issubdtype(found.dtype, np.integer) and np.array_equal(
            found.sum(-1), np.broadcast_to(totals, found.shape[:-1])
        )
        fn = law(jnp.asarray(given))
        mean, variance = np.asarray(fn.mean), np.asarray(fn.variance)
        assert np.all(np.abs(found.mean(0) - mean) <= 5.0 * np.sqrt(variance / 20_000) + 1e-6)
        kurtosis = np.mean((found - found.mean(0)) ** 4, axis=0)
        assert np.all(np.abs(found.var(0) - variance) <= 5.0 * np.sqrt(kurtosis / 20_000) + 1e-6)


def test_hurdles_of_positive_numbers_have_their_share_of_zeros():
    found = np.asarray(jax.jit(lambda key: drawn(dist.HurdleGamma(0.2, 2.0, 1.0), key, (COUNT,)))(jax.random.key(3)))
    assert abs(np.mean(found == 0) - 0.2) < 4.5 * np.sqrt(0.16 / COUNT) and abs(found[found > 0].mean() - 2.0) < 0.05


def test_gamma_variates_are_close_in_total_variation(monkeypatch):
    """6e-6 at most, of a concentration that is raised; 1e-4 and more by Wilson and Hilferty's root alone."""
    w = np.linspace(-5.5, 5.5, 20_001)
    monkeypatch.setattr(samplers.quick, "normal", lambda *_: jnp.asarray(w))
    distances = []
    with jax.enable_x64(True):
        for table in (samplers._gamma_quantile(), np.zeros((10, 6))):
            monkeypatch.setattr(samplers, "_gamma_quantile", lambda table=table: table)
            raise_all = jax.jit(lambda c: samplers._raised_gamma(c, jax.random.key(0), (len(w),))[0])
            for raised in (4.0, 4.7, 9.0, 1e3):
                x = np.asarray(raise_all(jnp.full(len(w), raised - samplers._RAISED)))
                off = stats.norm.pdf(w) - stats.gamma.pdf(x, raised) * np.gradient(x, w)
                distances.append(0.5 * np.trapezoid(np.abs(off), w))
    assert max(distances[:4]) < 6e-6 and max(distances[4:7]) > 1e-4


def test_large_counts_are_close_in_total_variation():
    """1e-4 at most where they begin to be taken as nearly normal; 1e-3 and more with another fourth cumulant."""
    edges = np.linspace(-6.5, 6.5, 1_000_001)
    w, shares = (edges[1:] + edges[:-1]) / 2, np.diff(stats.norm.cdf(edges))
    for law, third, fourth in (
        (stats.poisson(40.0), 1.0, 1.0), (stats.binom(58, 0.5), 0.0, -0.5), (stats.binom(200, 0.18), 0.64, 1 - 6 * 0.1476)
    ):  # fmt: skip
        mean, variance = law.stats()

        def distance(third, fourth, law=law, mean=mean, variance=variance):
            counts = np.asarray(_many(jnp.asarray(w), mean, variance, third, fourth)).astype(int)
            found = np.bincount(counts, weights=shares)
            return 0.5 * np.abs(found - law.pmf(np.arange(len(found)))).sum()

        assert distance(third, fourth) < 1e-4 < 1e-3 < distance(third, fourth + 12.0)


def test_others_and_those_with_axes_are_numpyros():
    fn = dist.Poisson(2.0).expand([3]).to_event(1).mask(jnp.array(True))
    assert drawn(fn, jax.random.key(0), (5,)).shape == (5, 3)
    other, key = dist.VonMises(0.0, 1.0), jax.random.key(1)
    np.testing.assert_array_equal(drawn(other, key, (3,)), other.sample(key, (3,)))
