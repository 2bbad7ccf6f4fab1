"""The accesses of a run: their order, and the share of the privacy cost that each of them gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpppl.row_statistics.accesses import Kind
from dpppl.row_statistics.walk import STEPS

Noises = dict[Kind, float]  # noise multipliers of a stage


class Block(NamedTuple):
    """Successive accesses of one kind.

    - **kind**, **share**, **repeats** - what they ask of a row, the share of mu^2 of all of them together, and how many."""

    kind: Kind
    share: float
    repeats: int = 1


@dataclass(frozen=True)
class Plan:
    """The accesses of a run. A Gaussian access of noise multiplier s costs 1 / s^2 of mu^2 on a full batch.

    - **stages** - in order; each has blocks in order; two of a kind have equal shares. Shares are scaled to sum to 1."""

    stages: tuple[tuple[Block, ...], ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        return sum(self.stages, ())

    @property
    def num_accesses(self) -> int:
        return sum(block.repeats for block in self.blocks)

    def priced(self, scale: float) -> list[Noises]:
        """By stage and kind, the noise multiplier of an access, for `scale` = 1 / mu."""
        total = sum(block.share for block in self.blocks)
        return [{b.kind: scale * float(np.sqrt(total * b.repeats / b.share)) for b in stage} for stage in self.stages]

    def noise_multipliers(self, scale: float) -> np.ndarray:
        """Noise multipliers of the accesses, in order, (num_accesses,)."""
        priced = zip(self.stages, self.priced(scale))
        return np.concatenate([np.full(b.repeats, sigma[b.kind]) for stage, sigma in priced for b in stage])


GRADIENT_SHARES = (0.01, 0.015, 0.03, 0.08, 0.55)
CURVATURE_SHARES = (0.01, 0.01, 0.02, 0.04, 0.10, 0.12)
HISTOGRAM_SHARES = {0: 0.0075, 3: 0.0075, 4: 0.0075}
SCOUT_SHARES = (0.001,) * 12
LAST_SHARES = {Kind.SIZES: 0.01, Kind.SIDES: 0.03, Kind.SCALARS: 0.1}
WIDE_GRADIENT_SHARES = (0.01, 0.015, 0.03, 0.06, 0.40)
WIDE_CURVATURE_SHARES = (0.015, 0.02, 0.04, 0.08, 0.18, 0.22)
"""Shares of the cost of all accesses of a kind, by stage; of histograms, by the number of the stage."""


def default_plan(
    is_adaptive: bool = True, gradients: Sequence[float] = GRADIENT_SHARES, curvatures: Sequence[float] = CURVATURE_SHARES,
    scouts: Sequence[float] = SCOUT_SHARES,
) -> Plan:  # fmt: skip
    """Curvatures at the prior mean, which find the units of columns; five stages, each a curvature and gradients; then a last
    curvature, its sizes along the way, curvatures to either side of the posterior mean, and scalars. The first access and the
    last two stages come after histograms of norms and of curvatures, where these bounds are to be found."""
    stages: list[list[Block]] = [[Block(Kind.CURVATURE, share)] for share in scouts]
    for gradient, curvature in zip(gradients, curvatures):
        stages.append([Block(Kind.CURVATURE, curvature), Block(Kind.GRADIENT, gradient, STEPS)])
    for number, share in HISTOGRAM_SHARES.items() if is_adaptive else ():
        at = number + len(scouts) if number else 0
        stages[at] = [*[Block(Kind.BIN, share / 2)] * 2, *stages[at]]
    last = (Kind.CURVATURE, curvatures[-1]), *LAST_SHARES.items()
    return Plan((*map(tuple, stages), tuple(Block(*each) for each in last)))


def wide_plan(is_adaptive: bool = True) -> Plan:
    """The same accesses but for those that find units: what is not known of the curvature widens wide posteriors most."""
    return default_plan(is_adaptive, WIDE_GRADIENT_SHARES, WIDE_CURVATURE_SHARES, ())
