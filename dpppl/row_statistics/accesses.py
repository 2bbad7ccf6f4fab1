"""The accesses of a run: their kinds, and the arguments of the programs that make them."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import jax
import numpy as np

from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.walk import Walk
from dpppl.types import Numbers, Tree

NUM_AXES = 8  # the most coordinates along which rows are compared, and curvatures asked on both sides


class Kind(StrEnum):
    """The kinds of accesses. Each releases a noisy sum over rows of numbers in units of their bounds. The door clips those of one
    row to length 1, the sensitivity. The method of `RowStatistics` of the same name computes them, from these fields of `At`.

    GRADIENT    v psi: d; as many accesses as a walk has steps
    CURVATURE   w A: its blocks and its products with the sketch; (v psi)(v psi)': its blocks; see `scores_share`
    BIN         a 1 in the bin of the length of its score, or if `of_curvature` of its curvature: norm_histogram.SIZE
    SIZES       lengths of w A at a point `halfway` (d,), and at `point`: 2
    SIDES       w A along n directions `along` (d, n), at `point`, and for each at its own two of the points `sides` (2 n, d): 4 n
    SCALARS     how well it fits, compared in `directions` (d, k), see `fit.numbers`: as many as its `Order` has"""

    GRADIENT = "gradient"
    CURVATURE = "curvature"
    BIN = "bin"
    SIZES = "sizes"
    SIDES = "sides"
    SCALARS = "scalars"

    @property
    def number(self) -> int:
        return [*Kind].index(self)


class At(NamedTuple):
    """Where accesses are made.

    - **point**, **norm**, **curvature_bound** - (d,); bounds of a row's score and of its curvature.
    - **basis** - the coordinates u.
    - **score_bound** - the score of a row whose curvature is longer is weighed down.
    - **halfway**, **sides**, **along**, **directions**, **of_curvature** - of one kind each, see `Kind`; None for the others.
    - **kind**, **passes** - of `Joint`: the number of the kind, and at how many points it looks."""

    point: Numbers
    norm: float
    curvature_bound: float
    basis: Basis
    score_bound: float = float("inf")
    halfway: Numbers | None = None
    sides: Numbers | None = None
    along: Numbers | None = None
    directions: Numbers | None = None
    of_curvature: Tree = None
    kind: Tree = None
    passes: Tree = None


class State(NamedTuple):
    """The arguments of a program of accesses but for rows and public arrays.

    - **at**, **i** - where they are made, and the number of the first.
    - **rng_key**, **noise_multiplier** - the key of all, and the noise of each.
    - **walk** - of gradients, else None; `Joint` always has one.
    - **repeats** - how many accesses `Joint` makes; None for other programs."""

    at: At
    i: Tree
    rng_key: Tree
    noise_multiplier: Tree
    walk: Walk | None = None
    repeats: Tree = None

    def on_device(self) -> "State":
        return narrow(self._replace(rng_key=None))._replace(rng_key=self.rng_key)


def narrow(tree: Tree) -> Tree:
    """A pytree with arrays of 32 bits."""
    kinds = {"f": np.float32, "i": np.int32, "b": np.bool_}
    return jax.tree.map(lambda x: np.asarray(x, kinds[np.asarray(x).dtype.kind]), tree)


Ask = Callable[..., Tree]
"""`ask(kind, at, noise_multiplier, repeats=1, walk=None)` makes accesses; returns noisy sums, for a walk with its positions."""


def num_directions(dimension: int) -> int:
    """In how many directions rows are compared, see `fit.Directions`."""
    return 1 + min(dimension, NUM_AXES)
