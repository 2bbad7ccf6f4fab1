"""The prior of the coordinates, and normal approximations of what is believed of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.blocks import RANK, Frame
from dpppl.noise_aware.curvature import Array
from dpppl.noise_aware.geometry import Geometry
from dpppl.noise_aware.sketch import COLUMNS

_MOST_KNOWN = RANK // 2


class Prior(NamedTuple):
    """The prior of the coordinates, unconstrained.

    - **mean**, **scales** - means and standard deviations (d,).
    - **pieces** - the coordinates of each block.
    - **correlation** - (d, d), or None.
    - **draws** - standardised draws (n, d) where there is no correlation matrix; None, too: independent coordinates."""

    mean: Array
    scales: Array
    pieces: Sequence[Array]
    correlation: Array | None = None
    draws: Array | None = None

    @property
    def variance(self) -> Array:
        return self.scales**2

    @property
    def is_full(self) -> bool:
        return len(self.pieces) == 1

    @property
    def curvature(self) -> str:
        """Which curvature is released."""
        return "full" if self.is_full else f"blocks of at most {max(map(len, self.pieces))} coordinates"

    def geometry(self) -> Geometry:
        """The geometry for the programs of a run."""
        frame = self.first()
        count, width, _ = frame.roots.shape
        return Geometry(len(self.mean), count, width, frame.turn.shape[1], 0 if self.is_full else COLUMNS)

    def first(self) -> Frame:
        """A frame in which the prior is white in each block; of several, the first are directions that the prior knows of."""
        directions = np.zeros((len(self.mean), 0))
        if self.draws is not None and not self.is_full:
            count, dimension = self.draws.shape
            values, vectors = np.linalg.eigh(self.draws @ self.draws.T / count)
            chosen = np.flatnonzero(values > 1.5 * (1.0 + np.sqrt(dimension / count)) ** 2)[-_MOST_KNOWN:]
            directions = np.linalg.qr(self.draws.T @ vectors[:, chosen])[0]
        frame = Frame.of(self.scales, directions, self.pieces)
        return frame.evened(np.zeros_like(frame.roots), self.covariance(frame))

    def covariance(self, frame: Frame) -> Array:
        """Blocks, of scaled and turned latents; 1 in padding."""
        if self.correlation is not None:
            return self.correlation[None]
        if self.draws is None:
            return np.tile(np.eye(frame.roots.shape[1]), (len(frame.roots), 1, 1))
        inside = frame.layout.gathered(frame.turned(self.draws)).transpose(1, 2, 0)
        return frame.layout.padded(inside @ inside.swapaxes(1, 2) / len(self.draws))


class Known(NamedTuple):
    """A normal approximation.

    - **mean**, **variance** - of each coordinate, (d,)."""

    mean: Array
    variance: Array
