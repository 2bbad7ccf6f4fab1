"""The accesses of a run, in order, and the share of the privacy cost that each of them gets."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

NUM_AXES = 8
"""The most coordinates along which ranks by value are compared."""


class Block(NamedTuple):
    """Successive accesses of one kind.

    - **kind** - what they ask of a row.
    - **share** - the share of mu^2 of all of them together.
    - **repeats** - how many."""

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
        return tuple(itertools.chain(*self.stages))

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
HISTOGRAMS = {0: 0.0075, 3: 0.0075}
SCOUTS = (0.001,) * 12
SIZES, SIDES, SCALARS, STEPS = 0.01, 0.03, 0.1, 40
WIDE_GRADIENTS = (0.01, 0.015, 0.03, 0.06, 0.40)
WIDE_CURVATURES = (0.015, 0.02, 0.04, 0.08, 0.18, 0.22)


def default_plan(
    is_adaptive: bool = True,
    gradients: Sequence[float] = GRADIENTS,
    curvatures: Sequence[float] = CURVATURES,
    scouts: Sequence[float] = SCOUTS,
) -> Plan:
    """Curvatures at the prior mean, which find the units of columns; five stages, each a curvature and gradients; then a last
    curvature, its sizes along the way, curvatures to either side of the posterior mean, and scalars. The first access and the
    fourth stage come after histograms of norms and of curvatures, where these bounds are to be found."""
    stages: list[list[Block]] = [[Block("curvature", share)] for share in scouts]
    for gradient, curvature in zip(gradients, curvatures):
        stages.append([Block("curvature", curvature), Block("gradient", gradient, STEPS)])
    for number, share in HISTOGRAMS.items() if is_adaptive else ():
        at = number + len(scouts) if number else 0
        stages[at] = [Block("norm_bin", share / 2), Block("curvature_bin", share / 2), *stages[at]]
    last = Block("curvature", curvatures[-1]), Block("sizes", SIZES), Block("sides", SIDES), Block("scalars", SCALARS)
    return Plan((*map(tuple, stages), last))


def wide_plan(is_adaptive: bool = True) -> Plan:
    """The same accesses, for wide models, but for those that find units: what is not known of the curvature widens their
    posteriors most."""
    return default_plan(is_adaptive, WIDE_GRADIENTS, WIDE_CURVATURES, ())
