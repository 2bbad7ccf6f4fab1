"""Wrong queries, scores, reports, exports and pictures."""

import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
from refused_common import AWARE, CHAIN, F, N, X, Y, key, mcmc, mean, normal, rows

import dpppl
import dpppl.contrib.audit
import dpppl.contrib.tuning
from dpppl import Public
from dpppl.accounting import plan
from dpppl.contrib import pages, plotting, registry
from dpppl.contrib import uncertainty as un

matplotlib.use("Agg")
# fmt: off


def score(function=lambda y: jnp.clip(y, 0, 1), *args, **settings):
    given = {"bounds": (0.0, 1.0), "noise_multiplier": 5.0} | settings
    return dpppl.private_score(key(), function, *(args or (F,)), **given)


def scale(x=X, **settings):
    return dpppl.private_scale(key(), x, **({"noise_multiplier": 5.0} | settings))


SAMPLES = {"mu": np.zeros(20, np.float32)}
DRAWS = np.zeros((50, N))
PROBABILITIES, LABELS = np.full(N, 0.3), Y


def tuned(candidates=(1.0,), make=lambda c: mcmc(num_samples=2), rated=lambda samples, y: 0.0 * y, **settings):
    given = {"bounds": (-1.0, 0.0), "score_noise": 9.0} | settings
    return dpppl.contrib.tuning.tune(key(), list(candidates), make, rated, F, **given)


def by_noise(c):
    return mcmc(num_samples=2, target_epsilon=None, target_delta=None, noise_multiplier=50.0 * c)


QUERIES = [
    ("bounds exchanged", lambda: score(bounds=(1.0, 0.0)), "bounds|low", lambda: score(bounds=(0.0, 1.0))),
    ("one bound", lambda: score(bounds=1.0), "bounds|(low, high)", lambda: score(bounds=(0.0, 1.0))),
    ("samples without their mark", lambda: score(lambda s, y: y - s["mu"].mean(), SAMPLES, F), "s['mu']|20|40|dpppl.Public(s", lambda: score(lambda s, y: y - s["mu"].mean(), Public(SAMPLES), F)),
    ("a probability of 90", lambda: score(measure_spread=True).interval(90), "probability|(0, 1)", lambda: score(measure_spread=True).interval(0.9)),
    ("a probability by a word", lambda: score(measure_spread=True).interval("high"), "probability|number", lambda: score(measure_spread=True).interval(0.9)),
    ("an interval without its spread", lambda: score().interval(0.9), "measure_spread=True", lambda: score(measure_spread=True).interval(0.9)),
    ("a p-value of a word", lambda: score(measure_spread=True).p_value("zero"), "mean|number", lambda: score(measure_spread=True).p_value(0.0)),
    ("epsilon at delta 0", lambda: score().epsilon_at(0), "delta|(0, 1)", lambda: score().epsilon_at(1e-5)),
    ("a score of all rows", lambda: score(lambda y: y.mean(axis=0)[0]), "one row|y float32|tuple index", lambda: score(lambda y: y)),
    ("no budget", lambda: score(noise_multiplier=None), "target_epsilon|noise_multiplier", lambda: score()),
    ("the score after the data", lambda: dpppl.private_score(key(), F, lambda y: y, bounds=(0, 1), noise_multiplier=5.0), "score|function", lambda: score()),
    ("a scale of a cube", lambda: scale(np.zeros((N, 2, 2))), "x|(40, 2, 2)|(N, d)", lambda: scale(np.zeros((N, 2, 2)).reshape(N, -1))),
    ("a scale of words", lambda: scale(np.array(["a"] * N)), "x|numbers", lambda: scale(F)),
    ("a model as the scale's data", lambda: scale(mean), "x|function", lambda: scale(X)),
    ("nothing to choose", lambda: tuned(()), "candidates", lambda: tuned(make=by_noise)),
    ("a kernel from make", lambda: tuned(make=lambda c: dpppl.DPSGLD(mean)), "make|MCMC|DPSGLD", lambda: tuned(make=by_noise)),
    ("no function as make", lambda: tuned(make=mcmc()), "make|function", lambda: tuned(make=by_noise)),
    ("score noise of -1", lambda: tuned(make=by_noise, score_noise=-1.0), "score_noise|positive", lambda: tuned(make=by_noise)),
    ("no runs on average", lambda: tuned(make=by_noise, mean_runs=0), "mean_runs|from 1", lambda: tuned(make=by_noise, mean_runs=2.0)),
    ("a discrepancy of a word", lambda: un.discrepancy(mean, "mean", (0.0, 1.0)), "statistic|function", lambda: un.discrepancy(mean, lambda y: y, (0.0, 1.0))),
    ("a difference of numbers", lambda: un.elpd_difference(1.0, 2.0), "function|float", lambda: un.elpd_difference(mean, mean)),
]


def survival_model(x, time=None):
    place = normal("place")
    with rows(x):
        numpyro.sample("time", dist.Weibull(jnp.exp(place + x), 1.5), obs=time)


PLACE = {"place": np.zeros(20, np.float32)}


def curve(samples=PLACE, times=(0.5, 1.0), x=(0.0, 1.0), model=survival_model, **settings):
    return un.survival_curve(model, samples, times, jnp.asarray(x), **settings)


SCORES = [
    ("labels of another length", lambda: un.expected_calibration_error(PROBABILITIES, LABELS[:-1]), "40|39|labels", lambda: un.expected_calibration_error(PROBABILITIES, LABELS)),
    ("probabilities in percent", lambda: un.expected_calibration_error(100 * PROBABILITIES, LABELS), "probabilities|[0, 1]", lambda: un.expected_calibration_error(PROBABILITIES, LABELS)),
    ("labels of -1 and 1", lambda: un.expected_calibration_error(PROBABILITIES, 2 * LABELS - 1), "labels|from 0 to 1|(y + 1) / 2", lambda: un.expected_calibration_error(PROBABILITIES, LABELS)),
    ("labels by words", lambda: un.expected_calibration_error(PROBABILITIES, np.where(LABELS, "yes", "no")), "labels|real numbers", lambda: un.expected_calibration_error(PROBABILITIES, LABELS)),
    ("a dict of probabilities", lambda: un.expected_calibration_error({"p": PROBABILITIES}, LABELS), "probabilities|dict", lambda: un.expected_calibration_error(PROBABILITIES, LABELS)),
    ("0 bins", lambda: un.expected_calibration_error(PROBABILITIES, LABELS, num_bins=0), "num_bins|positive", lambda: un.expected_calibration_error(PROBABILITIES, LABELS, num_bins=10)),
    ("means that are no probabilities", lambda: un.decompose_variance(DRAWS + 5.0), "means|variances", lambda: un.decompose_variance(DRAWS + 5.0, DRAWS + 1.0)),
    ("variances of another shape", lambda: un.decompose_variance(DRAWS, DRAWS[:3] + 1), "variances|(50, 40)", lambda: un.decompose_variance(DRAWS, DRAWS + 1)),
    ("a prior without a site", lambda: un.learned_shares(SAMPLES, {"nu": np.zeros(20)}), "'mu'|other samples", lambda: un.learned_shares({"mu": F}, {"mu": 3 * F})),
    ("an array for samples by site", lambda: un.learned_shares(F, F), "posterior|dict", lambda: un.learned_shares({"mu": F}, {"mu": 3 * F})),
    ("negative Bayes factors", lambda: un.discoveries([-1.0, 2.0]), "bayes_factors|none negative", lambda: un.discoveries([1.0, 2.0])),
    ("a false discovery rate of 5", lambda: un.discoveries([1.0, 2.0], false_discovery_rate=5), "false_discovery_rate|(0, 1)", lambda: un.discoveries([1.0, 2.0], false_discovery_rate=0.05)),
    ("a survival curve of a list", lambda: curve(samples=[0.0]), "samples|dict", lambda: curve()),
    ("a survival curve without a latent", lambda: curve(samples={"nu": np.zeros(20)}), "'place'", lambda: curve()),
    ("times by words", lambda: curve(times=["1 year"]), "times|real numbers", lambda: curve()),
    ("a matrix of times", lambda: curve(times=np.zeros((2, 2))), "times|(T,)", lambda: curve()),
    ("no model", lambda: curve(model="weibull"), "model|function", lambda: curve()),
]

REPORT = lambda: CHAIN().privacy_report()  # noqa: E731

EXPORTS = [
    ("an unknown entry about the run", lambda: pages.to_html(REPORT(), {"author": "x"}), "author|purpose", lambda: pages.to_html(REPORT())),
    ("a list about the run", lambda: REPORT().to_json(["x"]), "about|dict", lambda: REPORT().to_json()),
    ("a registry's card without about", lambda: registry.card(REPORT(), None), "about|dict", lambda: registry.card(REPORT(), {"date": "2026-01-01"})),
    ("one curator", lambda: registry.card(REPORT(), {"date": "2026-01-01"}, curators="Ann"), "curators|[curators]", lambda: registry.card(REPORT(), {"date": "2026-01-01"}, curators=["Ann"])),
    ("a region by a number", lambda: registry.card(REPORT(), {"date": "2026-01-01"}, region=3), "region|text", lambda: registry.card(REPORT(), {"date": "2026-01-01"}, region="EU")),
    ("a group of 0", lambda: REPORT().epsilon_for_group(0), "group_size|at least 1", lambda: REPORT().epsilon_for_group(2)),
    ("ArviZ before a run", lambda: mcmc().to_arviz(), "run", lambda: CHAIN().to_arviz(allow_unconverged=True)),
    ("ArviZ with coords", lambda: CHAIN().to_arviz(coords=[1], dims={"mu": ["a"]}, allow_unconverged=True), "coords|dims", lambda: CHAIN().to_arviz(allow_unconverged=True)),
    ("ArviZ with dims", lambda: AWARE().to_arviz(dims={"mu": ["a"]}), "dims|more names than axes", lambda: AWARE().to_arviz(allow_unconverged=True)),
]

AXES = lambda: matplotlib.pyplot.subplots()[1]  # noqa: E731
import matplotlib.pyplot  # noqa: E402

PICTURES = [
    ("samples for shares", lambda: plotting.learned_share(SAMPLES), "shares|learned_shares", lambda: plotting.learned_share(un.learned_shares({"mu": F}, {"mu": 3 * F}))),
    ("an array for shares", lambda: plotting.learned_share(F), "shares|dict", lambda: plotting.learned_share({"mu": 0.5})),
    ("a report for an attack", lambda: plotting.attack_picture(REPORT()), "audit", lambda: plotting.attack_picture(dpppl.contrib.audit.audit(dpppl.DPSGLD(mean, clipping_norm=1.0, noise_multiplier=3.0, measure_clipping=False), F, num_steps=1, delta=1e-5, num_trials=100))),
    ("a report for a ledger", lambda: plotting.budget_spent(REPORT()), "PrivacyLedger", lambda: plotting.budget_spent(charged())),
    ("an unknown plan", lambda: plotting.plan_picture(REPORT()), "plan|Plan|PrivacyReport", lambda: plotting.plan_picture(plan(num_data=1000, target_epsilon=1.0, target_delta=1e-5, simulates=False))),
    ("a picture without chains", lambda: plotting.mixing({"mu": F}), "'mu'|(chains, draws", lambda: plotting.mixing({"mu": F[None]})),
    ("an array to mix", lambda: plotting.mixing(F), "samples|dict", lambda: plotting.mixing({"mu": F[None]})),
    ("no samples", lambda: plotting.mixing({}), "samples is empty", lambda: plotting.mixing({"mu": F[None]})),
    ("a band of one draw", lambda: plotting.predictive_band(F, F, F), "means (S, N)", lambda: plotting.predictive_band(F, np.stack([F, F]), np.ones((2, N)))),
    ("a band by words", lambda: plotting.predictive_band(["a"] * N, np.stack([F, F]), np.ones((2, N))), "inputs|numbers", lambda: plotting.predictive_band(F, np.stack([F, F]), np.ones((2, N)))),
    ("an array beside a prior", lambda: plotting.private_beside_prior(F, F), "posterior|dict", lambda: plotting.private_beside_prior({"mu": F}, {"mu": 3 * F})),
    ("a figure for axes", lambda: plotting.learned_share({"mu": 0.5}, axes=matplotlib.pyplot.figure()), "axes|Figure", lambda: plotting.learned_share({"mu": 0.5}, axes=AXES())),
    ("a probability above 1", lambda: plotting.input_probability([1.2, 0.3]), "[0, 1]", lambda: plotting.input_probability([0.2, 0.3])),
    ("an array for a curve", lambda: plotting.survival_plot(F), "curve|ndarray|survival_curve(", lambda: plotting.survival_plot(curve())),
    ("too few labels", lambda: plotting.survival_plot(curve(), labels=["a"]), "labels|2", lambda: plotting.survival_plot(curve(), labels=["a", "b"])),
]


def charged():
    from refused_accounts import EVENT, ledger

    found = ledger()
    found.reserve("run", (EVENT,), "a run")
    found.charge("run", (EVENT,), 0, 100)
    return found


AREAS = {"queries": QUERIES, "scores": SCORES, "exports": EXPORTS, "pictures": PICTURES}
