"""The accesses of a run: what they need, their order, and the share of the privacy cost that each of them gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from dpppl.row_statistics.basis import Basis
from dpppl.types import Numbers, Tree

STEPS, NUM_AXES = 40, 8
"""Steps of a walk; the most coordinates along which ranks by value are compared."""


class At(NamedTuple):
    """Where accesses are made. Each kind reads its own of the fields that may be None.

    - **point**, **norm**, **curvature_bound** - (d,); bounds of a row's score and of its curvature.
    - **basis** - the coordinates u.
    - **score_bound** - the score of a row whose curvature is longer is weighed down.
    - **halfway** - of "sizes": another point, (d,).
    - **sides**, **along** - of "sides": points (2 n, d), and directions (d, n).
    - **directions** - of "scalars": those in which rows are compared, (d, k).
    - **of_curvature** - of histograms: whether it is that of curvatures.
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


class Walk(NamedTuple):
    """The needs of a walk of `STEPS` gradients.

    - **mean**, **inverse** - the prior mean, (d,), and of the basis's roots, (k, b, b).
    - **gains**, **offsets** - for each step, see `gains_of`.
    - **curvature** - that of the likelihood, (k, b, b).
    - **reach** - how far it may go from its start, in prior sds."""

    mean: Numbers
    inverse: Numbers
    gains: Numbers
    offsets: Numbers
    curvature: Numbers
    reach: float

    @classmethod
    def like(cls, basis: Basis) -> "Walk":
        """One of the same shapes, of zeros."""
        blocks, width, _ = basis.roots.shape
        matrices = np.zeros((blocks, width, width))
        gains, offsets = np.zeros((STEPS, *matrices.shape)), np.zeros((STEPS, blocks, width))
        return cls(np.zeros(len(basis.scales)), matrices, gains, offsets, matrices, 1.0)


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
"""`ask(kind, at, noise_multiplier, repeats=1, walk=None)` makes accesses, and returns their noisy sums; of a walk, positions and
noisy scores."""


def num_directions(dimension: int) -> int:
    """In how many directions rows are compared, see `fit.Directions`."""
    return 1 + min(dimension, NUM_AXES)


class Block(NamedTuple):
    """Successive accesses of one kind.

    - **kind**, **share**, **repeats** - what they ask of a row, the share of mu^2 of all of them together, and how many."""

    kind: str
    share: float
    repeats: int = 1


@dataclass(frozen=True)
class Plan:
    """The accesses of a run. A Gaussian access of noise multiplier s costs 1 / s^2 of mu^2 on a full batch.

    - **stages** - in order; each has blocks in order, no two of a kind. Shares are scaled to sum to 1."""

    stages: tuple[tuple[Block, ...], ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        return sum(self.stages, ())

    @property
    def num_accesses(self) -> int:
        return sum(block.repeats for block in self.blocks)

    def priced(self, scale: float) -> list[dict[str, float]]:
        """By stage and kind, the noise multiplier of an access, for `scale` = 1 / mu."""
        total = sum(block.share for block in self.blocks)
        return [{b.kind: scale * float(np.sqrt(total * b.repeats / b.share)) for b in stage} for stage in self.stages]

    def noise_multipliers(self, scale: float) -> np.ndarray:
        """Noise multipliers of the accesses, in order, (num_accesses,)."""
        priced = zip(self.stages, self.priced(scale))
        return np.concatenate([np.full(b.repeats, sigma[b.kind]) for stage, sigma in priced for b in stage])


GRADIENTS = (0.01, 0.015, 0.03, 0.08, 0.55)
CURVATURES = (0.01, 0.01, 0.02, 0.04, 0.10, 0.12)
HISTOGRAMS = {0: 0.0075, 3: 0.0075, 4: 0.0075}
SCOUTS = (0.001,) * 12
SIZES, SIDES, SCALARS = 0.01, 0.03, 0.1
WIDE_GRADIENTS = (0.01, 0.015, 0.03, 0.06, 0.40)
WIDE_CURVATURES = (0.015, 0.02, 0.04, 0.08, 0.18, 0.22)


def default_plan(
    is_adaptive: bool = True, gradients: Sequence[float] = GRADIENTS, curvatures: Sequence[float] = CURVATURES,
    scouts: Sequence[float] = SCOUTS,
) -> Plan:  # fmt: skip
    """Curvatures at the prior mean, which find the units of columns; five stages, each a curvature and gradients; then a last
    curvature, its sizes along the way, curvatures to either side of the posterior mean, and scalars. The first access and the
    last two stages come after histograms of norms and of curvatures, where these bounds are to be found."""
    stages: list[list[Block]] = [[Block("curvature", share)] for share in scouts]
    for gradient, curvature in zip(gradients, curvatures):
        stages.append([Block("curvature", curvature), Block("gradient", gradient, STEPS)])
    for number, share in HISTOGRAMS.items() if is_adaptive else ():
        at = number + len(scouts) if number else 0
        stages[at] = [Block("norm_bin", share / 2), Block("curvature_bin", share / 2), *stages[at]]
    last = Block("curvature", curvatures[-1]), Block("sizes", SIZES), Block("sides", SIDES), Block("scalars", SCALARS)
    return Plan((*map(tuple, stages), last))


def wide_plan(is_adaptive: bool = True) -> Plan:
    """The same accesses but for those that find units: what is not known of the curvature widens wide posteriors most."""
    return default_plan(is_adaptive, WIDE_GRADIENTS, WIDE_CURVATURES, ())
