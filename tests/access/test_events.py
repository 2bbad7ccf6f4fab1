"""What an access costs, which settings it takes and whose classes: nothing is compiled."""

import numpy as np
import pytest

from dpppl.access.clipping import Centred, Flat, british, clipping_of
from dpppl.access.mechanism import ACCOUNTED, Mechanism
from dpppl.errors import ConfigurationError
from dpppl.randomness.discrete_gaussian import FAILURE_PROBABILITY
from dpppl.subsampling import FullBatch, Poisson


def door(clipping_norm=1.0, subsampling=None, **options):
    return Mechanism(clipping=Flat(clipping_norm), subsampling=subsampling or FullBatch(), **options)


@pytest.mark.parametrize(
    ("relation", "expected"), [("zero_out", 3.0), ("add_or_remove_one", 3.0), ("replace_one", 6.0)]
)
def test_sensitivity_is_the_norm_or_twice_it(relation, expected):
    assert door(3.0).sensitivity(relation) == expected


def test_sensitivity_of_an_unknown_relation_is_refused():
    with pytest.raises(ConfigurationError, match="replace_one"):
        door().sensitivity("replace")


def test_the_event_is_what_ran():
    event = door(7.0).event([2.0, 1.0, 2.0])
    assert event.num_accesses == 3 and event.is_full_batch and event.failure_probability == 0.0
    assert event.neighboring_relation == "zero_out"
    assert event.noise_multipliers == ((1.0 * ACCOUNTED, 1), (2.0 * ACCOUNTED, 2))


def test_the_event_of_poisson_sampling():
    event = door(subsampling=Poisson(0.01, overflow_probability=1e-20)).event(np.full(500, 1.5))
    assert event.sampling_rate == 0.01 and not event.is_full_batch
    assert event.failure_probability == pytest.approx(500 * 3e-20, rel=1e-6, abs=0.0)
    assert event.noise_multipliers == ((1.5 * ACCOUNTED, 500),)


@pytest.mark.parametrize("discretise", [False, True])
def test_each_step_of_each_chain_may_fail(discretise):
    """In a draw of more rows than fit, and in one of discrete noise."""
    mechanism = door(subsampling=Poisson(0.01, overflow_probability=1e-20), discretise=discretise)
    one, all_chains = mechanism.event([1.5]), mechanism.event(np.full(500, 1.5), repeats=4)
    assert one.failure_probability > 0 and one.discrete == discretise
    assert all_chains.failure_probability == pytest.approx(2_000 * one.failure_probability, rel=1e-6, abs=0.0)
    assert all_chains.num_accesses == 2_000 and one.num_accesses == 1
    sampled = FAILURE_PROBABILITY if discretise else 0.0
    assert one.failure_probability == pytest.approx(3e-20 + sampled, rel=1e-6, abs=0.0)


def test_many_noise_multipliers_are_never_rounded_up():
    values = np.geomspace(1.0, 10.0, 1000)
    event = door(subsampling=Poisson(0.1)).event(values)
    rounded = np.concatenate([np.full(count, value) for value, count in event.noise_multipliers])
    assert len(event.noise_multipliers) <= 64 and len(rounded) == 1000
    assert np.all(rounded <= values * ACCOUNTED) and np.sum(rounded**-2.0) < 1.05 * np.sum(values**-2.0)


def test_the_overflow_probability_can_be_set():
    mechanism = door(subsampling=Poisson(0.01)).with_overflow_probability(1e-30)
    assert mechanism.subsampling == Poisson(0.01, overflow_probability=1e-30)
    assert door().with_overflow_probability(1e-30) == door()


def test_a_schedule_on_full_batches_is_not_rounded():
    values = np.geomspace(1.0, 10.0, 1000)
    event = door().event(values)
    assert len(event.noise_multipliers) == 1000 and event.noise_multipliers[-1] == (10.0 * ACCOUNTED, 1)


def test_settings_of_a_mechanism():
    for strategy in ("auto", "vmap", "microbatch", "ghost"):
        assert not door(strategy=strategy).counts
    with pytest.raises(ConfigurationError, match="gradient_strategy must be"):
        door(strategy="fast")
    with pytest.raises(ConfigurationError, match="which discretise=True cannot round"):
        door(strategy="ghost", discretise=True)
    counting = door(2.0, count_share=0.19)
    assert counting.counts and door(2.0).noise_scale == 2.0 and np.isnan(door().count_std)
    assert counting.noise_scale == pytest.approx(2.0 / 0.9) and counting.count_std == pytest.approx(0.5 / 0.19**0.5)


def test_settings_of_clipping():
    assert [british(name) for name in ("centered", "flat", None)] == ["centred", "flat", None]
    assert type(clipping_of("centered", 1.0)) is Centred and type(clipping_of("flat", 1.0)) is Flat
    for norm in (True, "1", 1e-31, 1.1e18, np.nan):
        with pytest.raises(ConfigurationError):
            Flat(norm)
    assert Flat(1e18).clipping_norm == 1e18 and Flat(1e-30).clipping_norm == 1e-30
