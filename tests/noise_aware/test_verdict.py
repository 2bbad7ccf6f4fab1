"""NoiseAware's verdict: what it must see in the releases, and what it must not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.interpolate import BSpline
from test_noise_aware import DIMENSION, NUM_ROWS, bench, compiled_once, data, model, noise_aware, split_rows  # noqa: F401

import dpppl
from dpppl.errors import ConfigurationError, UnconvergedWarning
from dpppl.findings.directions import known_together
from dpppl.likelihood.symmetry import symmetries
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware import binding, conclusion
from dpppl.noise_aware.curvature import ReleasedCurvature
from dpppl.noise_aware.measured import Pull
from dpppl.noise_aware.settings import NoiseAwareDetails
from dpppl.noise_aware.surrogate import OneSided
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.row_statistics import response_ranks
from dpppl.row_statistics.coordinates import Coordinates


def verdict(**findings):
    """A good one, but for these."""
    large = {"harm": (3.0, 3.0, 3.0)} if {"fit", "link", "skew"} & set(findings) else {}
    good = large | {
        "arrival": 0.1, "agreement": 0.5, "chi_squared": 1.0, "degrees": 100, "rank": (0.5, 0.01), "fit": (0.0, 1.0),
        "clipped": (0.5, 0.0, 0.01), "learned": {"w[0]": 0.9, "w[1]": 0.05}, "norms": (1.0, 1.0), "share_std": 0.01,
    }  # fmt: skip
    return NoiseAwareVerdict(**good | findings)


# Latents that are known only together


def designs():
    """By name: columns, an intercept first, and the numbers of those that add up."""
    rng = np.random.default_rng(0)
    x, group, place = rng.normal(size=(2_000, 3)), rng.integers(0, 4, 2_000), rng.random(2_000)
    knots = np.concatenate([np.zeros(3), np.linspace(0.0, 1.0, 5), np.ones(3)])
    splines = BSpline.design_matrix(place, knots, 3).toarray()
    return {
        "twice": (np.c_[x, x[:, :1]], (1, 4)), "dummies": (np.eye(4)[group], (0, 1, 2, 3, 4)), "splines": (splines, None),
        "nearly constant": (np.c_[5.0 + 0.01 * x[:, 0], x[:, 1:]], (0, 1)), "sound": (x, ()), "in other units": (x * [1e-4, 1.0, 1e3], ()),
        "a rare dummy": (np.c_[x, place < 0.005], ()), "alike": (np.c_[x, x[:, 0] + 0.5 * x[:, 1]], (1, 2, 4)),
    }  # fmt: skip


@pytest.mark.parametrize("name", designs())
def test_columns_that_add_up_are_named(name):
    """In the posterior of a linear regression, under a narrow and under a wide prior."""
    columns, expected = designs()[name]
    columns = np.c_[np.ones(len(columns)), columns]
    names = [str(number) for number in range(columns.shape[1])]
    for sd in (1.0, 100.0):
        found = known_together(names, np.linalg.inv(columns.T @ columns + np.eye(len(names)) / sd**2))
        if name == "splines":  # but for those that few rows have
            assert "0" in found and len(found) >= 5 and not set(found).difference(names)
        else:
            assert found == tuple(map(str, expected))


# Words: the worst finding first, and the cure that fits


def test_what_is_good_is_read():
    assert verdict().line().startswith("read: ") and not verdict().refusals and not verdict().doubts


def test_a_refusal_says_how_far_estimates_move_also_where_that_is_next_to_nothing():
    for cut, words in ((0.5, "so estimates move, by up to"), (0.001, "so estimates move, by less than .05")):
        [refusal] = verdict(impossible=(0.1, 0.001), fit=(0.0, 40.0), cut=cut).refusals
        assert words in refusal and "by up to 0.0" not in refusal


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        ({"fit": (0.4, 1079.0), "rank": (0.9, 0.01)}, "do not read: the model is wrong: by surprise, responses rank 0.900"),
        ({"fit": (0.4, 1079.0), "symmetric": ("entries of 'locs' change places",)}, "do not read: the model does not fit where the run ended: "
         "by surprise, responses rank 0.500 ± 0.010"),
        ({"fit": (0.1, 8.2), "impossible": (0.067, 0.021)}, "18 of 3 with responses that are next to impossible"),
        ({"link": ("w[0]", 0.1, 60.0, 4)}, "do not read: the model is wrong: where 'w[0]' matters most, responses are too high"),
        ({"link": ("", -0.1, 60.0, 4)}, "where fitted values are most extreme, responses are too low"),
        ({"skew": (0.1, 60.0)}, "do not read: the model is wrong: responses have another distribution than the model's: by value"),
        ({"impossible": (0.01, 0.002)}, "1.0% ± 0.2% of the responses are next to impossible"),
        ({"outside": 0.5, "codes": ("site 'y': counts",)}, "do not read: 50.0% ± 1.0% of the rows have responses outside the support: "
         "site 'y': counts."),
        ({"missing": 0.1}, "do not read: 10.0% ± 1.0% of the rows are ignored: they hold missing values"),
        ({"arrival": 9.0}, "do not read: scores were summed 9.0 sd away from the posterior mean: raise the budget"),
        ({"arrival": 9.0, "unnamed": "name the value"}, "away from the posterior mean: name the value."),
        ({"unnamed": "name the value"}, "read with care: rows know some latents through a value without a name"),
        ({"arrival": 9.0, "fit": (0.4, 99.0)}, "do not read: scores were summed 9.0 sd away"),
        ({"agreement": 9.0}, "do not read: the late looks disagree with the early ones by 9.0 sd: raise the budget"),
        ({"agreement": 5.0}, "read with care: the late looks disagree with the early ones by 5.0 sd, more than their noise: the likelihood is skewed"),
        ({"chi_squared": 2.8, "degrees": 16}, "do not read: scores scatter 2.80 times as widely as their noise around one line"),
        ({"chi_squared": 1.2, "degrees": 40_000}, "not near quadratic where they were summed; raise the budget, give the latents narrower priors, or fewer of them, or transform"),
        ({"learned": {"w[0]": 0.01}}, "the samples are the prior's; raise the budget, and check masks, weights and the coding of the data"),
        ({"unseen": 12.0}, "read with care: the rows are too few for this budget to check the model: a misfit that moves estimates by 12"),
        ({"farthest": ("w[1]", 5.0)}, "read with care: the prior puts 'w[1]' at 5.0 sd"),
        ({"pull": Pull(1e-4, 3.0, "w[0]")}, "read with care: the prior has latents as far from its means as here in one run of 500 at most, "
         "and moves 'w[0]' by 3.0 posterior sd"),
        ({"learned": {"w[0]": 0.02}}, "read with care: nothing was learned: the samples are the prior's"),
        ({"resolved": 0.6}, "read with care: noise hides the directions in which the data know the latents (draws of the curvature agree "
         "on 60% of what was learned)"),
        ({"resolved": 0.6, "together": ("w[0]", "w[1]")}, "60% of what was learned): shares learned may be too large by a tenth or more, and "
         "predictions are too near the prior's; the rows know 'w[0]' and 'w[1]' together and hardly one by one"),
        ({"arrival": 9.0, "together": ("w[0]", "w[1]")}, "9.0 sd away from the posterior mean: the rows know 'w[0]' and 'w[1]' together"),
        ({"symmetric": ("entries of 'locs' change places",)}, "read with care: the model stays the same when entries of 'locs'"),
        ({"blurred": ("effects",), "through": ("tau",)}, "read with care: values of 'effects' differ by little more"),
    ],
)  # fmt: skip
def test_each_finding_is_in_the_line_and_the_report(finding, words):
    found = verdict(**finding)
    assert words in found.line()
    assert bool(found.refusals) == found.line().startswith("do not read")
    warnings = NoiseAwareDetails(num_accesses=1, verdict=found).warnings()
    assert len(warnings) == len(found.refusals) + len(found.doubts) >= 1


@pytest.mark.parametrize(
    "finding",
    [
        {"fit": (0.01, 50.0), "harm": (0.9, 0.0, 0.0)}, {"fit": (0.4, 9.0)}, {"unseen": 9.0}, {"fit": (0.004, 16.0)},
        {"fit": (0.1, 8.2), "impossible": (-0.067, 0.021)}, {"fit": (0.1, 8.2), "impossible": (0.04, 0.021)}, {"link": ("w[0]", 0.01, 90.0, 4), "harm": (0.0, 0.9, 0.0)},
        {"skew": (0.1, 60.0), "harm": (0.0, 0.0, 0.9)}, {"skew": (0.1, 9.0)}, {"skew": (0.004, 16.0)}, {"link": ("w[0]", 0.1, 9.0, 4)}, {"outside": 0.02}, {"outside": 0.142, "share_std": 0.038}, {"missing": 0.005, "share_std": 1e-4}, {"impossible": (0.01, 0.004)}, {"farthest": ("w[0]", 2.9)},
        {"farthest": ("w[0]", 4.2), "learned": {f"w[{k}]": 0.9 for k in range(200)}},
        {"resolved": 0.8}, {"agreement": 3.9}, {"chi_squared": 2.4, "degrees": 16}, {"chi_squared": 1.1, "degrees": 40_000},
    ],
)  # fmt: skip
def test_what_is_small_or_may_be_chance_is_not_a_finding(finding):
    assert not verdict(**finding).findings


@pytest.mark.parametrize("finding", [{"fit": (0.1, 50.0)}, {"link": ("w[0]", 0.1, 90.0, 4)}, {"skew": (0.1, 60.0)}])
def test_a_model_that_does_not_fit_is_refused_where_clipping_may_have_moved_estimates(finding):
    """Harm is 15 sds if all scores are clipped; else as much of it as was clipped, and unknown where tails may be hidden."""
    finding = finding | {"harm": (15.0, 15.0, 15.0)}
    few, some, many = (verdict(cut=cut, **finding) for cut in (0.03, 0.04, 0.07))
    assert few.line().startswith("read: ") and "within 0.4 posterior sd" in few.findings[0].words
    assert (
        some.line().startswith("read with care: the model does not fit") and "by up to 0.6 posterior sd" in some.line()
    )
    assert many.line().startswith("do not read: the model is wrong") and "by up to 1.1 posterior sd" in many.line()
    assert (
        verdict(cut=0.06, **finding | {"harm": (3.0, 3.0, 3.0)})
        .line()
        .startswith("read with care: the model does not fit")
    )
    assert verdict(cut=0.03, symmetric=("locs",), **finding).refusals
    least = [verdict(cut=cut, tails=1.0, **finding).line().split(":")[0] for cut in (0.013, 0.014)]  # .195 and .21 sds
    assert least == ["read", "read with care"]


def test_notebooks_show_the_line_and_the_words_by_site():
    found = verdict(missing=0.1, arrival=9.0)._repr_html_()
    assert found.startswith("<p><strong>do not read: 10.0%") and "<li>scores were summed 9.0" in found.replace(
        "\xa0", " "
    )
    assert "2 do not read" in found.replace("\xa0", " ") and "Words by site" in found and "learned" not in found
    assert "1 learned, 1 prior" in verdict()._repr_html_().replace("\xa0", " ")


def test_a_refused_run_shows_nothing_as_learned(capsys):
    """What was learned is computed from the samples that the verdict refuses."""
    samples = {"w": np.random.default_rng(0).standard_normal((1, 100, 2))}
    for found, expected in ((verdict(), True), (verdict(arrival=9.0), False)):
        conclusion.print_conclusion(samples, found, 0.9)
        printed = capsys.readouterr().out
        assert ("learned: w[0]" in printed) == ("prior: w[1]" in printed) == expected
        assert dict(found.rows())["latents"] == ("1 learned, 1 prior" if expected else "2 do not read")


def test_a_prior_that_the_data_contradict_is_made_wider_not_narrower():
    found = verdict(arrival=28.0, agreement=30.0, farthest=("w[1]", 8.0))
    assert len(found.refusals) == 2 and not found.doubts and found.line().endswith("(1 more finding)")
    for line in found.refusals:
        assert "the prior puts 'w[1]' at 8.0 sd" in line and "wider prior" in line and "narrower" not in line


# Rows that say nothing


def coded(y, x, how):
    """Data that the model does not take."""
    x = x.copy()
    if how == "10 % missing":
        x[::10, 1] = np.nan
    if how == "column missing":
        x[:, 2] = np.nan
    return x, {"-1 and 1": 2.0 * y - 1.0, "1 and 2": y + 1.0}.get(how, y)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("how", "outside", "missing"),
    [("-1 and 1", 0.5, 0.0), ("1 and 2", 0.5, 0.0), ("10 % missing", 0.0, 0.1), ("column missing", 0.0, 1.0)],
)
def test_rows_that_say_nothing_are_counted_and_refused(compiled_once, monkeypatch, how, outside, missing):  # noqa: F811
    """At epsilon 3; the counts' noise has an sd of .004. Which rows are outside the support, y decides, half of it."""
    monkeypatch.setattr(binding, "symmetries", lambda *_: ())
    x, y, _ = data(1)
    x, y = coded(y, x, how)
    found = noise_aware(target_epsilon=3.0, num_samples=10)
    found.run(dpppl.secret_key(), x, y)
    shares = found.verdict.outside, found.verdict.missing
    np.testing.assert_allclose(shares, (outside, missing), atol=5 * found.verdict.share_std + 0.1 * (outside > 0.0))
    cause = "takes 0 and 1; pass (y + 1) / 2 for responses -1 and 1" if outside else "missing values (NaN)"
    assert cause in found.verdict.line() and found.verdict.line().startswith("do not read")
    with pytest.warns(UnconvergedWarning, match="of the rows"):
        found.get_samples()
    assert found.get_samples(allow_unconverged=True)["w"].shape == (10, DIMENSION)


def counts(x, y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        with numpyro.handlers.mask(mask=x > 0.0):
            numpyro.sample("y", dist.Poisson(rate), obs=y)


def shares(x, y):
    scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(scale, 1.0).expand([2]).to_event(1), obs=y)
        numpyro.sample("y", dist.Dirichlet(scale * jnp.ones(3)), obs=x)


@pytest.mark.parametrize(
    ("model", "cases"),
    [
        (counts, {"inside": (1.0, 2.0, False), "negative": (1.0, -1.0, True), "no count": (1.0, 2.5, True),
                  "missing": (1.0, np.nan, False), "masked": (-1.0, -1.0, False)}),
        (shares, {"rounded": ([0.2, 0.3, 0.4995], [1.0, 2.0], False), "no shares": ([0.2, 0.3, 0.6], [1.0, 2.0], True),
                  "a negative share": ([-0.2, 0.3, 0.9], [1.0, 2.0], True)}),
    ],
)  # fmt: skip
def test_supports_are_the_models_own(model, cases):
    """Masked entries may be anything, and shares may be rounded."""
    x, y, expected = map(np.array, zip(*cases.values()))
    args = x.astype(np.float32), y.astype(np.float32)
    responses = Responses.of(split_model(model, args, {}))
    (rows, public), z = responses.split.arrays(args, {}), {name: jnp.zeros(()) for name in responses.split.latents}
    found = jax.jit(jax.vmap(lambda row: responses.is_outside(z, row, public)))(rows)
    assert dict(zip(cases, found.tolist())) == dict(zip(cases, expected.tolist()))


# Budgets that can tell nothing


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("rows", "epsilon"), [(NUM_ROWS, 1e-4), (1, 1.0)], ids=["no budget", "one row"])
def test_a_budget_that_can_tell_nothing_is_refused_before_anything_is_charged(rows, epsilon):
    x, y, _ = data(1)
    found = noise_aware(target_epsilon=epsilon)
    with pytest.raises(ConfigurationError, match=r"can tell nothing of .*Raise the budget .* nothing was charged"):
        found.run(dpppl.secret_key(), x[:rows], y[:rows])
    assert not found.budget.charged


# The report


def test_the_report_says_of_the_mechanism_what_is_so():
    """Nothing of flat clipping at norm 1, which is how releases in units of their bounds go through the door."""
    report = noise_aware().privacy_plan()
    assert report.mechanism.clipping.startswith("centred") and "flat" not in report.mechanism.clipping
    text = str(report)
    assert "pseudo-posterior" not in text and "without a word" not in text
    assert "unbiased for data that the model describes" in text


# Models that are wrong


def test_what_a_row_releases_has_mean_zero_under_the_model_and_is_at_most_one_long():
    """Over four responses by their probabilities; not where these are a tenth off. Flags of rows that say nothing stand alone."""
    p, values = jnp.array([0.5, 0.2, 0.2, 0.1]), jnp.array([0.0, 3.0, 1.0, 2.0])
    squares, flags = jnp.array([0.5, 2.0, 3.0]), jnp.array([True, True])

    @jax.jit
    def of(k, speaks, is_outside):
        log_probs, all_values = jnp.append(jnp.log(p[k]), jnp.log(p)), jnp.append(values[k], values)
        return response_ranks.numbers(log_probs, all_values, jnp.append(0.0, p), squares, flags, speaks, is_outside)

    every = np.array([of(k, True, False) for k in range(4)])
    signed = np.array([0.45, 0.2, 0.2, 0.15]) @ every
    assert np.abs((np.asarray(p) @ every)[[0, 3, 4, 11, 12, 13, 14]]).max() < 1e-6
    assert np.abs(signed[11:14]).min() > 0.01 and np.sign(signed[11]) == -np.sign(signed[12]) == -np.sign(signed[13])
    assert abs(signed[14]) > 1e-3
    assert np.linalg.norm(every, axis=1).max() <= 1.0
    np.testing.assert_array_equal(of(1, False, True), np.eye(15)[1])
    np.testing.assert_array_equal(of(1, False, False), np.eye(15)[2])


@functools.partial(jax.jit, static_argnums=2)
def lengths(p, values, num_flags):
    """Of what a row releases with each of the responses that have probabilities p, all flags set."""
    log_probs, weights, flags = jnp.log(p), jnp.append(0.0, p), jnp.ones(num_flags)
    first = lambda x, k: jnp.append(x[k], x)  # noqa: E731
    one = lambda k: jnp.linalg.norm(  # noqa: E731
        response_ranks.numbers(
            first(log_probs, k), first(values, k), weights, jnp.ones(3), flags, jnp.array(True), jnp.array(False)
        )
    )
    return jax.vmap(one)(jnp.arange(len(p)))


@pytest.mark.parametrize("num_flags", [2, 3])
def test_no_row_releases_more_than_one(num_flags):
    """Longer ones would be clipped, and the sums of a right model not have mean zero. The longest have one likely response and a
    few of about equal probability; and random laws of up to eight responses."""
    rng, found = np.random.default_rng(0), []
    for count in (2, 3, 4, 8):
        for share in (*np.linspace(0.6, 0.9, 7), None):
            rest = (
                np.r_[share, np.full(count - 1, (1.0 - share) / (count - 1))]
                if share
                else rng.dirichlet(np.ones(count))
            )
            p = rest * (1.0 + 0.01 * np.arange(count))
            p = np.float32(p / p.sum())
            found += [max(lengths(p, np.float32(rng.permutation(count)), num_flags)) for _ in range(4)]
    assert 0.95 < max(found) <= 1.0


def test_skewness_is_at_most_one_long():
    """Of 62 responses, the last but one with three quarters of the probability and the largest with next to nothing, the longest of all."""
    p = np.append([0.25 / 60] * 60, [0.75 - 1e-6, 1e-6]).astype(np.float32)
    by_value = np.cumsum(p) - p / 2 - 0.5
    assert 0.99 < np.abs(response_ranks.skewness(jnp.asarray(by_value), jnp.asarray(p))).max() <= 1.0


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("p", [0.02, 0.5, 0.9])
def test_the_unlikelier_of_two_responses_counts_in_full(p):
    """By value, with the signs of the squares; and the likelier by their odds, so that the mean is zero."""
    log_probs, squares = jnp.log(jnp.array([1.0 - p, p])), jnp.array([0.1, 3.0, 0.5, 0.2])

    @jax.jit
    def of(k):
        return response_ranks.numbers(
            jnp.append(log_probs[k], log_probs), jnp.array([k, 0.0, 1.0]), jnp.array([0.0, 1.0 - p, p]), squares,
            jnp.zeros(2), jnp.array(True), jnp.array(False),
        )  # fmt: skip

    signs, odds = np.array([-1.0, 1.0, -1.0, -1.0]), min(p, 1.0 - p) / max(p, 1.0 - p)
    sizes = np.array([of(0)[11:-1], of(1)[11:-1]]) * np.sqrt(4) / response_ranks.LINK
    np.testing.assert_allclose(sizes[1], signs * (1.0 if p <= 0.5 else odds), rtol=1e-4)
    np.testing.assert_allclose(sizes[0], -signs * (1.0 if p >= 0.5 else odds), rtol=1e-4)
    assert of(0)[7] / response_ranks.variance_unit(2) == pytest.approx(odds, rel=1e-4)


def test_rows_of_certain_responses_are_compared_by_their_covariates():
    """All squares of a row are small where its response is certain; its largest has the sign of a large one all the same."""
    certain = jnp.array([0.1, 0.9, 0.2])
    log_probs, weights = jnp.log(jnp.array([0.99, 0.99, 0.01])), jnp.array([0.0, 0.99, 0.01])
    values, flags = jnp.array([0.0, 0.0, 1.0]), jnp.zeros(2)
    found = jax.jit(
        lambda: response_ranks.numbers(log_probs, values, weights, certain, flags, jnp.array(True), jnp.array(False))
    )()
    np.testing.assert_array_equal(np.sign(found[11:-1]), [1.0, -1.0, 1.0])  # the response is the lower one


def test_sums_are_read_in_units_of_what_their_rows_released():
    """Sums over 100 rows whose numbers are known, three of them signed: each mean, and its standard error at and off the truth."""
    sums = np.array(
        [
            2.0,
            3.0,
            4.0,
            response_ranks.FIT * 5.0,
            0.0,
            *(response_ranks.variance_unit(2) * np.array([10.0, 20.0, 50.0, 12.0, 40.0, 30.0])),
        ]
    )
    sums = np.concatenate(
        [sums, response_ranks.LINK / np.sqrt(3) * np.array([1.0, -20.0, 2.0]), [response_ranks.SKEW * 6.0]]
    )
    for excess in (0.0, 3.0):
        found = response_ranks.Fit.from_sums(sums, 1e-9, 100, excess, ["", "a", "b"])
        assert (found.outside, found.missing, found.impossible[0]) == pytest.approx((0.03, 0.04, 0.02))
        assert found.clipped[:2] == pytest.approx((0.4, 0.3)) and found.fit[0] == pytest.approx(0.05)
        assert found.rank == pytest.approx((0.525, np.sqrt((0.25 * 0.1 + 0.0625 * 0.2) / 100 * (1 + excess))), rel=1e-3)
        assert found.link[0] == "a" and found.link[1:] == pytest.approx((-0.2, 0.2**2 / (0.5 / 100 * (1 + excess)), 3))
        assert found.skew == pytest.approx((0.06, 0.06**2 / (0.12 / 100 * (1 + excess))))
        assert found.harm == pytest.approx(
            np.array([0.05, 0.2, 0.06]) * np.sqrt(100 / np.array([0.1, 0.5, 0.12])), rel=1e-3
        )
    noisy = response_ranks.Fit.from_sums(sums, 10.0, 100, 0.0, ["", "a", "b"])
    variance = (0.1 * np.sqrt(3) / response_ranks.LINK) ** 2 + min(
        1.0, 0.5 + 0.2 / response_ranks.variance_unit(2)
    ) / 100
    assert noisy.link[2] == pytest.approx(0.2**2 / variance)
    assert noisy.skew[1] == pytest.approx(0.06**2 / ((0.1 / response_ranks.SKEW) ** 2 + 0.16 / 100))


def test_harm_that_is_expected_is_what_was_seen_where_noise_hides_little():
    """And next to nothing where nothing was; with noise that hides all it does not depend on what was seen."""

    def harm(signed, noise):
        sums = np.concatenate(
            [
                np.zeros(5),
                response_ranks.variance_unit(2) * np.array([2e3, 2e3, 1e4, 2e3, 0, 0]),
                response_ranks.LINK * signed,
                [0.0],
            ]
        )
        found = response_ranks.Fit.from_sums(sums, noise, 20_000, 0.0, [""])
        return found.squared_harm, max(found.harm) ** 2

    expected, seen = harm(np.array([4_000.0]), 1e-3)
    assert 0.5 * seen < expected <= 1.01 * seen and seen > 1_000.0
    assert harm(np.array([0.0]), 1e-3)[0] < 3.0
    hidden = [harm(np.array([signed]), 1e7)[0] for signed in (0.0, 4_000.0)]
    assert hidden[0] == pytest.approx(hidden[1], rel=0.01)


def test_impossible_responses_are_counted_alone():
    """Twenty sds away under a normal law whose 32 draws are in its middle; eight sds below the model's own mean are possible."""
    draws = -0.5 * jnp.linspace(-2.0, 2.0, 32) ** 2
    weights = jnp.full(33, 1 / 33)

    @jax.jit
    def of(z):
        log_probs, values = jnp.append(-0.5 * z**2, draws), jnp.append(z, jnp.linspace(-2.0, 2.0, 32))
        return response_ranks.numbers(
            log_probs, values, weights, jnp.ones(2), jnp.zeros(2), jnp.array(True), jnp.array(False)
        )

    far, near = np.array(of(20.0)), np.array(of(3.0))
    assert far[0] == pytest.approx(1 - 1 / 33, abs=1e-5) and not np.any(far[1:])
    assert near[0] == 0.0 and np.all(near[3:5] != 0.0)
    sums = -0.5 * np.random.default_rng(0).chisquare(
        300, (33, 1_000)
    )  # log probabilities of 300 numbers, the first one's own
    own, all_of = (
        jax.vmap(functools.partial(response_ranks.impossible, size=n), (1, None))(sums, weights)[0].mean()
        for n in (1, 300)
    )
    assert own > 0.1 and all_of == 0.0


@pytest.mark.slow
def test_a_missing_square_is_seen():
    """Of the second column; 1,000 rows, mu = 5. The same data without it pass."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((NUM_ROWS, DIMENSION)).astype(np.float32)
    for size, is_right in ((0.0, True), (1.0, False)):
        logits = x @ [0.5, -0.7, 0.2] + size * (x[:, 1] ** 2 - 1.0)
        y = (rng.random(NUM_ROWS) < 1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
        found = bench().verdict(bench().run(split_rows(bench(), (x, y)), 0, 5.0))
        assert (found.misfit is None) == is_right
    assert found.link[0] == "w[1]" and found.link[1] > 0.05 and "'w[1]' matters most" in found.misfit


@pytest.mark.slow
def test_the_latent_is_named_that_the_prior_does_not_expect():
    """A weight of 12 under a standard normal prior."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((NUM_ROWS, DIMENSION)).astype(np.float32)
    y = (rng.random(NUM_ROWS) < 1.0 / (1.0 + np.exp(-12.0 * x[:, 1]))).astype(np.float32)
    found = bench().verdict(bench().run(split_rows(bench(), (x, y)), 0, 5.0))
    assert found.farthest[0] == "w[1]" and found.farthest[1] > 3.0
    assert "the prior puts 'w[1]'" in found.line()


# Symmetric models


def mixture(locations, share):
    """Of two normal laws."""

    def model(y):
        locs, p = numpyro.sample("locs", locations()), numpyro.sample("p", share())
        with numpyro.plate("data", y.shape[0]):
            kind = numpyro.sample("kind", dist.Bernoulli(p), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(locs[kind], 1.0), obs=y)

    return model


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("locations", "share", "expected"),
    [
        (lambda: dist.Normal(0.0, 2.0).expand([2]).to_event(1), lambda: dist.Beta(2.0, 2.0),
         ("entries of 'locs' change places and 'p' becomes 1 - p",)),
        (lambda: dist.Normal(0.0, 2.0).expand([2]).to_event(1), lambda: dist.Beta(2.0, 3.0), ()),
        (lambda: dist.Normal(jnp.array([-1.0, 1.0]), 2.0).to_event(1), lambda: dist.Beta(2.0, 2.0), ()),
    ],
    ids=["symmetric", "unequal shares", "unequal places"],
)  # fmt: skip
def test_labels_that_may_change_places_are_found_without_data(locations, share, expected):
    assert found_symmetries(mixture(locations, share), jax.ShapeDtypeStruct((9,), jnp.float32)) == expected


def test_hidden_units_are_symmetric_and_columns_are_not():
    def network(x, y):
        inner = numpyro.sample("inner", dist.Normal(0.0, 1.0).expand([3, 4]).to_event(2))
        outer = numpyro.sample("outer", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=jnp.tanh(x @ inner) @ outer), obs=y)

    rows = jax.ShapeDtypeStruct((9, 3), jnp.float32), jax.ShapeDtypeStruct((9,), jnp.float32)
    assert found_symmetries(network, *rows) == (
        "entries of 'inner' and 'outer' change places", "'inner' and 'outer' change their signs",
    )  # fmt: skip
    assert found_symmetries(model, *rows) == ()


@pytest.mark.slow
def test_symmetries_of_counts_are_looked_for():
    """JAX draws Poisson counts with threefry keys only."""

    def counts(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.ZeroInflatedPoisson(0.3, jnp.exp(x @ w)), obs=y)
            numpyro.sample("z", dist.Poisson(jnp.exp(x @ w)), obs=y)

    rows = jax.ShapeDtypeStruct((9, 3), jnp.float32), jax.ShapeDtypeStruct((9,), jnp.int32)
    assert found_symmetries(counts, *rows) == ()


def found_symmetries(model, *arguments):
    split = split_model(model, arguments, {})
    return symmetries(split, Coordinates.of(split).draws, Responses.of(split), {})


def test_sites_whose_names_end_in_brackets_are_sites():
    """As f"b[{i}]" in a loop gives them."""
    coordinates = Coordinates(
        None, {"b[0]": jax.ShapeDtypeStruct((), float), "c": jax.ShapeDtypeStruct((2,), float)}, ()
    )
    assert coordinates.site_of == {"b[0]": "b[0]", "c[0]": "c", "c[1]": "c"}
    found = verdict(
        learned={"b[0]": 0.9, "c[0]": 0.3, "c[1]": 0.01}, sites=coordinates.site_of, beyond={"b": np.array("prior")}
    )
    assert {site: list(words) for site, words in found.by_site.items()} == {
        "b[0]": ["learned"], "c": ["partly", "prior"], "b": ["prior"],
    }  # fmt: skip


def test_a_direction_whose_scores_hardly_vary_is_one_sided():
    """Scores have the curvature's variance, but along one axis a tenth of it: 5 sds of noise less than half of the typical .7, of
    which noise alone makes 6^(1/2)."""
    curvature, scores = 100.0 * np.eye(3)[None], np.diag([100.0, 100.0, 10.0])[None]
    spread, prior = np.diag([0.01, 0.01, 0.02])[None], np.eye(3)[None]

    def found(scores, std):
        released = ReleasedCurvature(curvature, std, np.zeros((3, 0)), scores, std)
        return OneSided.of(released, curvature, spread, prior)

    one_sided = found(scores, 5.0)
    assert one_sided.sure == pytest.approx(5.0 - 6.0**0.5) and one_sided.known == pytest.approx(0.98)
    assert np.argmax(np.abs(one_sided.move)) == 2 and np.sum(np.abs(one_sided.move)) == pytest.approx(0.02)
    assert found(scores, 20.0).sure < 0.0 and found(curvature, 5.0).sure < -10.0
    assert "inform 'w[1]'" in verdict(one_sided="w[1]").line() and not verdict(one_sided="w[1]").refusals
