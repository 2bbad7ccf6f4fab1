"""The accesses of a run: their kinds, and the arguments of the programs that make them."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import jax
import numpy as np

from dpppl.row_statistics.basis import Basis
from dpppl.types import Numbers, Tree

NUM_AXES = 8  # the most coordinates along which rows are compared


class Kind(StrEnum):
    """The kinds of accesses. Each releases a noisy sum over rows of numbers in units of their bounds. The door clips those of one
    row to length 1, the sensitivity. The method of `RowStatistics` of the same name computes them, from these fields of `At`.

    LOOK        psi: d; w A: its blocks and its products with the sketch; psi psi': its blocks; see `RowStatistics.look`
    BINS        a 1 in the bin of the length of its score: `norm_histogram.SIZE`; and one in that of its curvature: `FINE_SIZE`
    SCALARS     how well it fits, compared in `directions` (d, k), see `fit.numbers`: as many as its `Order` has"""

    LOOK = "look"
    BINS = "bins"
    SCALARS = "scalars"


class At(NamedTuple):
    """Where accesses are made.

    - **point**, **norm**, **curvature_bound** - (d,); bounds of a row's score and of its curvature.
    - **basis** - the coordinates u.
    - **kept** - the share of rows' curvature that its bound leaves, as a histogram has it.
    - **score_share** - the share of a look's squared length that goes to the score.
    - **directions** - of the scalars, see `Kind`; None for the others."""

    point: Numbers
    norm: float
    curvature_bound: float
    basis: Basis
    kept: float = 1.0
    score_share: float = 0.7
    directions: Numbers | None = None


class State(NamedTuple):
    """The arguments of a program of accesses but for rows and public arrays.

    - **at**, **i** - where it is made, and its number.
    - **rng_key**, **noise_multiplier** - the key of all, and the noise of this one."""

    at: At
    i: Tree
    rng_key: Tree
    noise_multiplier: Tree

    def on_device(self) -> "State":
        return narrow(self._replace(rng_key=None))._replace(rng_key=self.rng_key)


def narrow(tree: Tree) -> Tree:
    """A pytree with arrays of 32 bits."""
    kinds = {"f": np.float32, "i": np.int32, "b": np.bool_}
    return jax.tree.map(lambda x: np.asarray(x, kinds[np.asarray(x).dtype.kind]), tree)


Ask = Callable[..., Tree]
"""`ask(kind, at, noise_multiplier)` makes an access; returns its noisy sums."""


def num_directions(dimension: int) -> int:
    """In how many directions rows are compared, see `fit.Directions`."""
    return 1 + min(dimension, NUM_AXES)
