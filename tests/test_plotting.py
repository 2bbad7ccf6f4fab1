"""Pictures show the numbers that they are made of, on the axes that are given, and render."""

import functools
import io

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

import dpppl
from dpppl.contrib import plotting, uncertainty


@pytest.fixture
def axes():
    with matplotlib.rc_context({"backend": "agg"}):
        _, found = plt.subplots()
        yield found
        plt.close("all")


def picture(drawn, **settings):
    file = io.BytesIO()
    drawn.figure.savefig(file, **settings)
    return file.getvalue()


def test_bands_reach_as_far_as_the_parts_of_the_variance(axes):
    rng = np.random.default_rng(1)
    x, means = np.array([2.0, 0.0, 1.0]), rng.normal(size=(50, 3))
    variances = np.full((50, 3), 0.25)
    plotting.predictive_band(x, means, variances, num_sd=2.0, observed=([0.0], [1.0]), axes=axes)
    parts = uncertainty.decompose_variance(means, variances)
    for band, variance in zip(axes.collections, (parts.total, parts.epistemic)):
        top = max(y for place, y in band.get_paths()[0].vertices if place == 0.0)
        assert top == pytest.approx(means.mean(0)[1] + 2.0 * np.sqrt(variance[1]))
    assert picture(axes) != b""
    with pytest.raises(dpppl.ConfigurationError, match="inputs"):
        plotting.predictive_band(x[:2], means, variances, axes=axes)


def test_what_was_learned_and_what_is_prior(axes):
    rng = np.random.default_rng(2)
    prior = {"w": rng.normal(size=(400, 2)), "b": rng.normal(size=400), "other": rng.normal(size=400)}
    posterior = {"w": prior["w"] * [0.5, 1.0], "b": 0.1 * prior["b"][:300]}
    shares = uncertainty.learned_shares(posterior, prior)
    assert list(shares) == ["w[0]", "w[1]", "b"]
    assert shares["w[0]"] == pytest.approx(0.75) and shares["w[1]"] == pytest.approx(0.0) and shares["b"] > 0.98
    plotting.learned_share(shares, axes=axes)
    widths = [patch.get_width() for patch in axes.patches[3:]]
    np.testing.assert_allclose(widths, list(shares.values()), atol=1e-12)
    assert picture(axes) != b""
    beside = plotting.private_beside_prior(posterior, prior, reference=posterior)
    assert beside is not axes and [t.get_text() for t in beside.get_yticklabels()] == list(shares)
    medians = beside.containers[1].lines[0].get_xdata()
    np.testing.assert_allclose(
        medians, [np.median(posterior["w"][:, 0]), np.median(prior["w"][:, 1]), np.median(posterior["b"])]
    )
    assert picture(beside) != b""
    named = plotting.posteriors_by_name({"wide": posterior, "narrow": {n: 2.0 + x for n, x in posterior.items()}})
    moved = named.containers[1].lines[0].get_xdata() - named.containers[0].lines[0].get_xdata()
    np.testing.assert_allclose(moved, 2.0)
    with pytest.raises(dpppl.ConfigurationError, match="1 to 8 dicts"):
        plotting.posteriors_by_name({})


def test_wrong_arguments_of_pictures_are_named():
    with pytest.raises(dpppl.ConfigurationError, match="empty"):
        plotting.learned_share({})
    with pytest.raises(dpppl.ConfigurationError, match="'b'"):
        plotting.private_beside_prior({"b": np.ones(3)}, {"a": np.ones(3)})
    with pytest.raises(dpppl.ConfigurationError, match="elements"):
        uncertainty.learned_shares({"b": np.ones((3, 2))}, {"b": np.ones(3)})
    with pytest.raises(dpppl.ConfigurationError, match="do not vary"):
        uncertainty.learned_shares({"b": np.ones(3)}, {"b": np.ones(3)})
    with pytest.raises(dpppl.ConfigurationError, match="level"):
        plotting.private_beside_prior({}, {}, level=90)


WRONG = [
    (plotting.learned_share, ({"w": np.ones(2)},), "not numbers"),
    (plotting.learned_share, ({"w": "much"},), "the share of 'w'"),
    (plotting.mixing, ({"w": "draws"},), "samples of 'w'"),
    (uncertainty.discoveries, ("few",), "bayes_factors"),
    (functools.partial(uncertainty.discoveries, prior_null="half"), ([0.1],), "prior_null"),
]


@pytest.mark.parametrize(("call", "given", "words"), WRONG)
def test_an_object_of_another_kind_is_named_with_what_to_give(call, given, words):
    with pytest.raises(dpppl.ConfigurationError, match=words):
        call(*given)


def test_one_inputs_probability(axes):
    chances = np.random.default_rng(3).beta(20, 5, 4000)
    plotting.input_probability(chances, prior=np.linspace(0.0, 1.0, 101), axes=axes)
    low, high = np.quantile(chances, [0.05, 0.95])
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert f"mean {chances.mean():.2f}" in texts and f"90%: {low:.2f} to {high:.2f}" in texts
    assert axes.patches[16].get_height() < axes.patches[32].get_height()
    assert picture(axes) != b""
    for wrong in ([0.5, 1.5], [[0.5]], []):
        with pytest.raises(dpppl.ConfigurationError, match="probabilities"):
            plotting.input_probability(wrong, axes=axes)


def test_paths_of_chains_stand_in_bands_with_their_verdicts(axes):
    rng = np.random.default_rng(4)
    samples = {"b": rng.normal(size=(2, 50)), "w": np.cumsum(rng.normal(size=(2, 50, 3)), axis=1)}
    words = {"b": np.array("read", object), "w": np.array(["read", "do not read: still moving", "read"], object)}
    weights = np.tile(np.linspace(2.0, 1.0, 50) / 75.0, (2, 1))
    plotting.mixing(samples, words, weights=weights, axes=axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "w[0]", "w[1]", "w[2]"]
    assert [text.get_text() for text in axes.texts] == ["read", "read", "do not read: still moving", "read"]
    paths = [line for line in axes.lines if len(line.get_xdata()) == 50]
    assert len(paths) == 8 and paths[0].get_xdata()[-1] == pytest.approx(1.0)
    slope = np.corrcoef(paths[4].get_ydata(), samples["w"][0, :, 1])[0, 1]
    assert slope < -0.99  # the axis points down, so that the first element is on top
    assert picture(axes) != b""
    with pytest.raises(dpppl.ConfigurationError, match="chains, draws"):
        plotting.mixing({"b": np.zeros(3)}, axes=axes)


def test_a_budget_over_runs(axes, tmp_path):
    ledger = dpppl.PrivacyLedger(tmp_path / "a.ledger", 2.0, 1e-5)
    with pytest.raises(dpppl.ConfigurationError, match="nothing was charged"):
        plotting.budget_spent(ledger, axes=axes)
    event = dpppl.accounting.GaussianEvent(noise_multipliers=((20.0, 5),))
    for number in range(3):
        ledger.reserve(f"run {number}", [event], f"a run {number}")
        ledger.charge(f"run {number}", [event], 0, 5)
    plotting.budget_spent(ledger, axes=axes)
    total = axes.lines[0].get_ydata()
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([total[0]] * 3)
    assert total[-1] == pytest.approx(ledger.spent) and total[0] < total[1] < 3 * total[0]
    assert picture(axes) != b""
