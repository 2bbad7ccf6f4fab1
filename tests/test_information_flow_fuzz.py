"""Some hundreds of the random programs of fuzz_information_flow, and bugs of the proof that such programs find."""

from collections import Counter

import jax
import pytest
from fuzz_information_flow import attack, collisions
from test_mutations import Mutation, mutated


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_what_is_accepted_leaks_nothing(first):
    outcomes = Counter(attack(seed) for seed in range(first, first + 50))
    assert outcomes["accepted"] >= 8 and outcomes["refused"] >= 8
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "old", "new"),
    [
        ("dpppl.information_flow.keys:conflicts", "uses[: number + 1]", "uses[:number]"),
        ("dpppl.information_flow.walk:Walk.plain", "Data.PUBLIC if public else Data.DERIVED", "Data.PUBLIC"),
    ],
    ids=["an access is not compared with itself", "what is computed is public"],
)
def test_it_finds_bugs_of_the_proof(where, old, new, monkeypatch):
    mutated(Mutation("", where, old, new, ""), monkeypatch)
    with pytest.raises(AssertionError, match="is accepted, and"):
        for seed in range(300):
            attack(seed)


def test_collisions_are_counted():
    key = jax.random.key(7)
    data = jax.random.key_data(key)
    one, two = (0, bytes(memoryview(data)), 0), (0, bytes(memoryview(data)), 1)
    assert collisions([one, two]) == 0 and collisions([one, two, one]) == 1
    assert collisions([one, (1, one[1], 0)]) == 1
