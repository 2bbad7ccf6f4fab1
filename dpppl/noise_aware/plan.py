"""What a run asks of the rows: its accesses in order, and the share of the privacy cost that each of them gets."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    """Accesses of one kind that follow each other; `share` is that of all of them together."""

    kind: str
    share: float
    repeats: int = 1


@dataclass(frozen=True)
class Plan:
    """Blocks of accesses. A Gaussian access of noise multiplier s costs 1 / s^2 of mu^2 on a full batch; the shares are
    those of mu^2, scaled to sum to 1."""

    blocks: tuple[Block, ...]

    @property
    def num_accesses(self) -> int:
        return sum(block.repeats for block in self.blocks)

    def noise_multipliers(self, scale: float) -> np.ndarray:
        """Of each access (num_accesses,), for `scale` = 1 / mu."""
        total = sum(block.share for block in self.blocks)
        each = [np.full(b.repeats, b.share / (total * b.repeats)) for b in self.blocks]
        return scale / np.sqrt(np.concatenate(each))


GRADIENTS = (0.01, 0.015, 0.03, 0.08, 0.55)
CURVATURES = (0.01, 0.01, 0.02, 0.04, 0.10, 0.12)
HISTOGRAMS, SCALARS, STEPS = 0.003, 0.01, 40


def default_plan(is_adaptive: bool = True) -> Plan:
    """Five stages, each a histogram of norms and one of curvatures (where these bounds are to be found), a curvature and
    gradients; then a last curvature, and scalars."""
    blocks = []
    for gradients, curvature in zip(GRADIENTS, CURVATURES):
        if is_adaptive:
            blocks += [Block("norm_bin", HISTOGRAMS / 2), Block("curvature_bin", HISTOGRAMS / 2)]
        blocks += [Block("curvature", curvature), Block("gradient", gradients, STEPS)]
    return Plan((*blocks, Block("curvature", CURVATURES[-1]), Block("scalars", SCALARS)))
