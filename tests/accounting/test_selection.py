"""The price of private selection: against dp_accounting, the paper's formulas, and the law of the number of runs."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting import rdp as theirs

from dpppl import accounting
from dpppl.accounting import GaussianEvent, SelectionEvent
from dpppl.errors import ConfigurationError
from dpppl.ledger.book import as_json, events_of_json

RUN = GaussianEvent(noise_multipliers=((20.0, 100),))
SAMPLED = GaussianEvent(noise_multipliers=((1.5, 200),), sampling_rate=0.01)
ORDERS = list(theirs.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)


@pytest.mark.parametrize("run", [RUN, SAMPLED])
@pytest.mark.parametrize(
    ("mean", "shape"), [(1.0, 1.0), (10.0, 1.0), (10.0, 0.0), (30.0, 0.5), (5.0, 3.0), (10.0, None)]
)
def test_divergences_are_dp_accountings(run, mean, shape):
    event = dp_event.RepeatAndSelectDpEvent(accounting.to_dp_event(run), mean, math.inf if shape is None else shape)
    ledger = theirs.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    ledger.compose(event)
    own = accounting.rdp(SelectionEvent(candidates=((run,),), mean=mean, shape=shape), ORDERS)
    assert np.all(own >= np.minimum.accumulate(ledger.rdp[::-1])[::-1] * (1 - 1e-9))
    assert np.allclose(own, np.minimum.accumulate(ledger.rdp[::-1])[::-1], rtol=1e-6)


def test_the_geometric_price_by_hand():
    """Theorem 2 with shape 1 for a Gaussian mechanism, minimised by hand over the second order."""
    mu_squared, mean, alpha = 0.25, 8.0, 6.0
    second = min(2 * ((1 - 1 / b) * b * mu_squared / 2 + math.log(mean) / b) for b in ORDERS)
    by_hand = alpha * mu_squared / 2 + second + math.log(mean) / (alpha - 1)
    event = SelectionEvent(candidates=((GaussianEvent(noise_multipliers=((2.0, 1),)),),), mean=mean)
    assert accounting.rdp(event, [alpha])[0] <= by_hand * (1 + 1e-9)
    assert accounting.rdp(event, [alpha])[0] > 0.9 * by_hand  # a later order may be better


def test_of_several_candidates_the_dearest_counts():
    both = SelectionEvent(candidates=((RUN,), (SAMPLED,)), mean=5.0)
    alone = [SelectionEvent(candidates=((run,),), mean=5.0) for run in (RUN, SAMPLED)]
    assert accounting.epsilon(both, 1e-6) >= max(accounting.epsilon(event, 1e-6) for event in alone)
    assert accounting.epsilon([both, RUN], 1e-6) > accounting.epsilon(both, 1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("shape", [0.0, 0.1, 0.5, 1.0, 3.0, None])
def test_the_number_of_runs_has_its_law(shape):
    event, rng = SelectionEvent(candidates=((RUN,),), mean=6.0, shape=shape), np.random.default_rng(0)
    counts = np.array([event.draw(rng) for _ in range(20_000)])
    assert abs(counts.mean() - 6.0) < 5 * counts.std() / math.sqrt(len(counts))
    if shape is None:
        assert (counts == 0).any()
        return
    k = np.arange(1, 4_000)
    log = k * math.log1p(-event.gamma) + np.array([math.lgamma(n + shape) - math.lgamma(n + 1) for n in k])
    law = np.exp(log - log.max())
    assert abs(np.mean(counts == 1) - law[0] / law.sum()) < 0.018  # 5 sd


@pytest.mark.parametrize("shape", [0.0, 5e-324, 0.5, 1.0, 1e6])
def test_means_next_to_one_and_odd_shapes_end(shape):
    for mean in (1.0, 1 + 1e-10, 1 + 2e-9, 1.001, 40.0):
        event, rng = SelectionEvent(candidates=((RUN,),), mean=mean, shape=shape), np.random.default_rng(1)
        counts = np.array([event.draw(rng) for _ in range(500)])
        assert counts.min() >= 1 and abs(counts.mean() - mean) <= 5 * counts.std() / math.sqrt(len(counts)) + 0.01
        assert math.isfinite(accounting.epsilon(event, 1e-6))


def test_other_accountants_refuse_it():
    event = SelectionEvent(candidates=((RUN,),), mean=5.0)
    for accountant in ("pld", "gaussian"):
        with pytest.raises(ConfigurationError, match="by 'rdp' only"):
            accounting.epsilon(event, 1e-6, accountant)
    assert accounting.spent(event, 1e-6).accountant.startswith("RDP")
    assert accounting.trade_off(event).advantage >= accounting.trade_off(RUN).advantage


def test_a_ledgers_file_holds_it():
    event = SelectionEvent(candidates=((RUN, SAMPLED), (SAMPLED,)), mean=5.0, shape=None)
    assert events_of_json(as_json([event, RUN])) == (event, RUN)


@pytest.mark.parametrize(
    "changed",
    [{"candidates": ()}, {"candidates": ((),)}, {"mean": 0.5}, {"shape": -1.0}, {"mean": 1e13}, {"shape": 1e300}],
)
def test_numbers_out_of_range_are_refused(changed):
    with pytest.raises(ConfigurationError):
        SelectionEvent(**({"candidates": ((RUN,),), "mean": 5.0} | changed))
