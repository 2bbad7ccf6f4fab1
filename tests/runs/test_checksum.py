"""A checksum of rows: the same wherever they lie, another for other rows."""

import jax
import numpy as np
import pytest
from test_sharded import meshes, rows_of

from dpppl.data.rows import sharded
from dpppl.runs.placing import checksum, contents


def test_it_does_not_depend_on_how_rows_are_dealt_out():
    rows = rows_of()  # an odd number: the last of two devices has padding
    found = {contents(jax.tree.map(jax.numpy.asarray, rows)), *(contents(sharded(rows, mesh)) for mesh in meshes())}
    assert len(found) == 1


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.int8, np.int64, np.uint16, bool, np.complex64]
)
def test_any_change_changes_it(dtype):
    rows = np.random.default_rng(0).integers(0, 2, (50, 3)).astype(dtype)
    found = {str(checksum(rows, 50)), str(checksum(rows[::-1], 50)), str(checksum(rows, 49))}
    found |= {str(checksum(rows.reshape(25, 6), 25)), str(checksum(rows[:, ::-1], 50))}
    for place in [(0, 0), (7, 2), (49, 1)]:
        other = rows.copy()
        other[place] = 1 - other[place]
        found.add(str(checksum(other, 50)))
    assert len(found) == 8


def test_signs_of_zero_count():
    assert checksum(np.zeros(3, np.float32), 3) != checksum(-np.zeros(3, np.float32), 3)
