"""Whatever a row holds, it moves what the door returns by no more than the account says: a property of whole models."""

import functools
import sys

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import ZOO

from dpppl.access import door
from dpppl.access.centring import noisy_centred_sum
from dpppl.access.clipping import SLACK, Centred, Flat
from dpppl.access.mechanism import Mechanism
from dpppl.frame.metric import Metric
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.subsampling import FullBatch, Poisson

pytestmark = pytest.mark.numerical

BY_NAME = {entry.name: entry for entry in ZOO}
NORM, NOISE = 0.5, 1e-3
ROUNDING = 2e-5  # of a float32 output of about 10, in units of NORM
HOSTILE = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 1e-40, -1e-45, 0.0, 1.0, -7.0, 1e4, 1e-8]
FRAMED = "centred, in the coordinates of a frame"
IN_A_FRAME = "linear_regression", "poisson_regression", "hierarchical_logistic_regression"
CASES = [  # (model, latents' type, subsampling, clipping, discretise)
    ("logistic_gaussian", np.float32, FullBatch(), Flat, False),
    ("linear_regression", np.float32, Poisson(0.5), Flat, False),
    ("poisson_regression", np.float64, FullBatch(), Flat, False),
    ("gaussian_mixture", np.float32, Poisson(0.5), Flat, False),
    ("correlated_outcomes", np.float64, Poisson(0.5), Flat, True),
    ("linear_regression", np.float32, FullBatch(), Flat, True),
    ("poisson_regression", np.float32, FullBatch(), Centred, False),
    ("hierarchical_logistic_regression", np.float32, FullBatch(), Centred, False),
    *((name, np.float32, FullBatch(), FRAMED, False) for name in IN_A_FRAME),
]


def frame_of(split):
    """A frame that is stretched a thousandfold in some directions, and turned."""
    shapes = {name: leaf.shape for name, leaf in split.latents.items()}
    size, rng = sum(leaf.size for leaf in split.latents.values()), np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
    covariance = turn @ np.diag(np.geomspace(1e-4, 1e2, size)) @ turn.T
    return Metric(shapes, rng.standard_normal(size), np.linalg.cholesky((covariance + covariance.T) / 2.0))


@functools.cache
def door_of(case):
    """(z, rows, key) -> what the door returns, compiled; the rows; and the latents' shapes."""
    name, dtype, subsampling, clipping, discretise = CASES[case]
    args, kwargs = BY_NAME[name].data(0)
    with jax.enable_x64(dtype == np.float64):
        split = split_model(BY_NAME[name].model, args, kwargs)
        rows, public = split.arrays(args, kwargs)
        mechanism = Mechanism(
            clipping=Centred(NORM) if clipping is FRAMED else clipping(NORM),
            subsampling=subsampling,
            discretise=discretise,
        )
        if clipping in (Centred, FRAMED):
            to_latents = frame_of(split).latents if clipping is FRAMED else lambda z: z
            law = Responses.of(split)
            noisy_sum = functools.partial(
                noisy_centred_sum,
                mechanism,
                law,
                law.is_binary,
                lambda z, *rest: split.log_likelihood(to_latents(z), *rest),
                lambda z, public: (to_latents(z), public),
                step=0,
            )
        else:
            noisy_sum = functools.partial(door.noisy_sum, mechanism, split.log_likelihood)
        run = jax.jit(lambda z, rows, key: noisy_sum(z, rows, public, key=key, noise_multiplier=NOISE).total)
    return run, jax.tree.map(np.asarray, rows), {name: leaf.shape for name, leaf in split.latents.items()}


def returned(case, seed, number, values):
    """The door's output as one vector, with the floating-point numbers of row `number` replaced, one after the other."""
    run, rows, shapes = door_of(case)
    values, dtype = iter(values), CASES[case][1]

    def spoilt(column):
        if not np.issubdtype(column.dtype, np.floating):
            return column
        column = column.astype(dtype)
        column[number] = np.reshape([next(values) for _ in range(column[number].size)], column[number].shape)
        return column

    rng = np.random.default_rng(seed)
    with jax.enable_x64(dtype == np.float64), np.errstate(over="ignore"):
        z = {name: jnp.asarray(rng.standard_normal(shape), dtype) for name, shape in sorted(shapes.items())}
        result = run(z, jax.tree.map(spoilt, rows), jax.random.key(seed))
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(result)])


def moved(case, seed, number, one, other):
    """By how much one row moves the output, in units of the clipping norm."""
    return np.linalg.norm(returned(case, seed, number, one) - returned(case, seed, number, other)) / NORM


NAN = [np.nan] * 20
ROW = st.lists(st.sampled_from(HOSTILE) | st.floats(-5, 5), min_size=20, max_size=20)


@pytest.mark.slow
@hypothesis.settings(max_examples=150)
@hypothesis.given(
    case=st.integers(0, len(CASES) - 1), seed=st.integers(0, 50), number=st.integers(0, 10), one=ROW, other=ROW
)
def test_no_row_moves_the_door_by_more_than_the_sensitivity(case, seed, number, one, other):
    """Zeroing a row out (NaN rows are) moves the output by at most the norm, replacing it by at most twice that."""
    assert moved(case, seed, number, one, NAN) <= 1.0 + SLACK + ROUNDING
    assert moved(case, seed, number, one, other) <= 2.0 * (1.0 + SLACK + ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_bound_is_reached(case):
    """Else the property would say little: some row moves the output by nearly the norm (a part of it, site by site)."""
    rows = [[value] * 20 for value in (-7.0, 1.0, 1e4, 25.0)]
    furthest = max(moved(case, seed, 4, row, NAN) for row in rows for seed in range(4))
    assert furthest > 0.95


if (
    __name__ == "__main__"
):  # python tests/access/test_sensitivity.py NUMBER: as many pairs in a frame; the longest moves
    framed, rng, found = [k for k, case in enumerate(CASES) if case[3] is FRAMED], np.random.default_rng(0), []
    for number in range(int(sys.argv[1])):
        one, other = (
            [float(rng.choice(HOSTILE)) if rng.random() < 0.6 else rng.normal() for _ in range(20)] for _ in "ab"
        )
        place = framed[number % len(framed)], int(rng.integers(50)), int(rng.integers(10))
        found.append((moved(*place, one, NAN), moved(*place, one, other)))
    print("removed {:.6f}, replaced {:.6f}".format(*np.max(found, axis=0)))
