"""Rows of one unit may be correlated: the variance of scores counts it, and the verdict says so."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpppl
from dpppl.noise_aware.curvature import _ratio
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.row_statistics.response_ranks import ranked, ranked_unit


def test_the_variance_of_scores_may_exceed_the_curvature_in_units_only():
    curvature, scores = 10.0 * np.eye(3)[None], 35.0 * np.eye(3)[None]
    in_rows, in_units = (np.diagonal(_ratio(scores, 8.0, curvature, most, 0)[0]) for most in (1.0, 20.0))
    assert np.all(in_rows < 1.5) and np.all((in_units > 3.0) & (in_units < 4.5))


def verdict(**changed):
    fine = NoiseAwareVerdict(
        arrival=0.5, agreement=0.5, chi_squared=1.0, degrees=100, rank=(0.6, 0.01), fit=(0.1, 80.0), clipped=(0.0, 0.0, 0.01),
        learned={"b": 0.9}, norms=(1.0, 1.0), harm=(5.0, 5.0, 5.0),
    )  # fmt: skip
    return replace(fine, **changed)


def test_correlated_rows_of_units_are_a_doubt_and_another_law_a_refusal():
    assert "the model is wrong" in verdict().refusals[0]
    units = verdict(fit=(0.001, 1.0), alike=(2.0, 0.1))
    assert not units.refusals and units.doubts[0].startswith(
        "rows of one unit are correlated (sums of their ranks vary 2.0 ± 0.1"
    )
    assert not verdict(fit=(0.001, 1.0), alike=(1.3, 0.1)).doubts


def ended(hazard, true, end=6, count=4_000):
    """Persons with a row a period up to an event, (count, end): outcomes 0 and 1, the probability under the model, the mask."""
    rng = np.random.default_rng(0)
    events = rng.random((count, end)) < true
    before = np.cumsum(events, axis=1) - events
    events = np.where(before == 0, events, events[:, :1])  # places that are not filled repeat the first row
    return events.astype(np.float32), np.full(events.shape, hazard, np.float32), before == 0


def of_rows(events, hazard):
    """Ranks of rows, of which each has two responses, listed."""

    def row(y, p):
        both = jnp.stack([jnp.zeros_like(p), jnp.ones_like(p)])
        values = jnp.concatenate([y[None], both])
        log_probs = jnp.log(jnp.where(values == 1.0, p, 1.0 - p))
        return ranked(log_probs, values, jnp.concatenate([jnp.zeros(1), jnp.stack([1.0 - p, p])]), jnp.ones(2) * 2.0, 1)

    return jax.vmap(row)(events, hazard)


def test_ranks_of_units_have_mean_zero_where_their_number_of_rows_follows_what_they_observe():
    """Rows up to an event: within 4 standard errors (false alarm below 1e-3 in all) at the true hazard, and not at another one. The
    squares agree: rows are independent given those before. A total's rank, among totals of as many rows, is not centred."""

    @jax.jit
    def found(events, hazard, mask):
        return jax.vmap(lambda *unit: ranked_unit(of_rows(*unit[:2]), unit[2]))(events, hazard, mask)

    def scores(true):
        ranks = found(*ended(0.3, true))
        values = np.concatenate([np.asarray(ranks.moments), np.asarray(ranks.by_value)], axis=1)
        values = values[:, values.std(axis=0) > 0]  # of two responses surprise is value
        return values.mean(axis=0) / (values.std(axis=0) / np.sqrt(len(values))), ranks.variances.mean(axis=0)

    z, variances = scores(0.3)
    assert np.all(np.abs(z) < 4.0) and abs(float(variances[2] / variances[3]) - 1.0) < 0.1
    assert np.max(np.abs(scores(0.4)[0])) > 8.0
    events, hazard, mask = ended(0.3, 0.3)
    alike = found(np.repeat(events[:, :1], 6, axis=1), hazard, np.ones_like(mask)).variances.mean(axis=0)
    assert abs(float(alike[2] / alike[3]) - 6.0) < 1e-3
    rng, number = np.random.default_rng(1), mask.sum(axis=1)
    others = rng.binomial(number, 0.3, (50, len(number)))  # totals of as many rows
    total = (events * mask).sum(axis=1)
    rank = np.mean((others < total) + 0.5 * (others == total), axis=0) - 0.5
    assert abs(rank.mean()) > 8.0 * rank.std() / np.sqrt(len(rank))


def started(count, square=0.0, seed=0):
    """Start-stop rows of persons whose treatment begins in time; the last ends at the event, or at the end of follow-up."""
    rng, rows = np.random.default_rng(seed), []
    for person in range(count):
        x, begin, last = rng.normal(), rng.uniform(0.2, 1.5), rng.uniform(1.5, 3.0)
        cuts = [c for c in sorted([begin, *rng.uniform(0.3, 2.2, 2)]) if c < last] + [last]
        start, left = 0.0, rng.exponential()
        for cut in cuts:
            treated = float(start >= begin - 1e-9)
            rate, end = 0.5 * np.exp(0.4 * x - 0.69 * treated + square * (x**2 - 1)), cut - start
            is_event = left / rate < end
            rows.append((person, x, treated, left / rate if is_event else end, not is_event, end))
            if is_event:
                break
            left, start = left - rate * end, cut
    person, x, treated, time, censored, end = map(np.array, zip(*rows))
    columns = [column.astype(np.float32) for column in (x, treated, time)]
    return person, [*columns, censored, end.astype(np.float32)]


def hazards(x, treated, time, censored, end):
    a, b, effect = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("a", "b", "effect"))
    with numpyro.plate("data", x.shape[0]):
        life = dist.Exponential(jnp.exp(a + b * x + effect * treated))
        numpyro.sample("time", dist.RightCensoredDistribution(life, censored), obs=time, infer={"censored_by": end})


def counted(x, treated, time, event):
    a, b, effect = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("a", "b", "effect"))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("event", dist.Poisson(time * jnp.exp(a + b * x + effect * treated)), obs=event)


def persons(model, person, args, **settings):
    settings = {"max_rows_per_unit": 4, "target_epsilon": 2.0, "target_delta": 1e-5, "progress_bar": False} | settings
    found = dpppl.NoiseAware(model, unit="person", print_cost=False, **settings)
    found.run(dpppl.secret_key(), *args, person=person)
    return found


@pytest.mark.slow
def test_start_stop_rows_that_the_model_made_are_read_and_others_refused():
    person, args = started(2_000)
    right = persons(hazards, person, args)
    effect = np.asarray(right.get_samples()["effect"])
    assert not right.verdict.refusals and right.verdict.misfit is None and abs(effect.mean() + 0.69) < 4 * effect.std()
    wrong = persons(hazards, *started(2_000, square=0.5, seed=1))
    assert "where 'b' matters most, responses are too low" in wrong.verdict.misfit  # a note: few scores are clipped


@pytest.mark.slow
def test_events_with_time_as_exposure_are_told_from_counts():
    """The finding names a law that has the same likelihood; which it has: the difference is a function of rows alone."""
    person, (x, treated, time, censored, _) = started(2_000, seed=2)
    event = (~censored).astype(np.float32)
    found = persons(counted, person, [x, treated, time, event])
    words = found.verdict.misfit
    assert "If 'event' counts the one event that ends a row's time (0 or 1), it is not Poisson" in words
    assert "dist.RightCensoredDistribution(dist.Exponential(rate), event == 0), obs=time" in words
    rates = np.float32([0.2, 0.9, 3.0])[:, None]
    same = dist.RightCensoredDistribution(dist.Exponential(rates * np.ones_like(time)), event == 0).log_prob(time)
    differences = np.asarray(dist.Poisson(rates * time).log_prob(event) - same)
    assert np.ptp(differences, axis=0).max() < 1e-4 < np.ptp(differences)


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


@pytest.mark.slow
def test_intervals_of_persons_count_their_correlation():
    """1,500 persons of 1 to 12 rows, 40 % of the variance their own: means vary 1.9 times as widely as of independent rows."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(1_500), rng.integers(1, 13, 1_500))
    y = (0.3 + np.sqrt(0.4) * rng.normal(size=1_500)[ids] + np.sqrt(0.6) * rng.normal(size=len(ids))).astype(np.float32)
    sums = np.bincount(ids, y - y.mean())
    robust, naive = np.sqrt(np.sum(sums**2)) / len(y), 1 / np.sqrt(len(y))
    assert robust > 1.7 * naive
    persons = dpppl.NoiseAware(
        model, target_epsilon=2.0, target_delta=1e-5, unit="person", max_rows_per_unit=12, progress_bar=False
    )
    persons.run(dpppl.secret_key(), y, person=ids)
    samples = np.asarray(persons.get_samples()["mu"])  # not refused
    assert 0.8 * robust < samples.std() < 2.0 * robust
    assert abs(samples.mean() - 0.3) < 4 * samples.std()
    assert persons.privacy_report().num_rows == 1_500 and persons.privacy_report().epsilon <= 2.0
