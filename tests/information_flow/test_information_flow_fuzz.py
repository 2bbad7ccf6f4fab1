"""Some hundreds of the random programs of fuzz_information_flow, and bugs of the proof that such programs find."""

from collections import Counter

import jax
import numpy as np
import pytest
from fuzz_information_flow import attack, collisions, executed
from test_mutations import Mutation, mutated


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_what_is_accepted_leaks_nothing(first):
    outcomes = Counter(attack(seed) for seed in range(first, first + 50))
    assert outcomes["accepted"] >= 4 and outcomes["refused"] >= 8
    jax.clear_caches()


@pytest.mark.slow
def test_it_finds_a_bug_of_the_proof(monkeypatch):
    bug = Mutation("", "dpppl.information_flow.lattice:conflicts", "uses[: number + 1]", "uses[:number]", "")
    mutated(bug, monkeypatch)
    with pytest.raises(AssertionError, match="is accepted, and"):
        for seed in range(180, 190):
            attack(seed)


def test_what_depends_on_rows_is_seen():
    one, other, records = executed(lambda z, x, key, do, draw: do(z, x, key, 3) + draw(key) + 1e-6 * x[0, 0])
    assert np.all(one != other) and len(records) == 2 and collisions(records) == 1


def test_collisions_are_counted():
    key = jax.random.key(7)
    data = jax.random.key_data(key)
    one, two = (0, bytes(memoryview(data)), 0), (0, bytes(memoryview(data)), 1)
    assert collisions([one, two]) == 0 and collisions([one, two, one]) == 1
    assert collisions([one, (1, one[1], 0)]) == 1
