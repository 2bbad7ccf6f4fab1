"""The likelihood that looks give: their scores lie around a line, whose slope is the curvature that they release."""

from typing import NamedTuple

import numpy as np

from dpppl.noise_aware.curvature import ReleasedCurvature
from dpppl.row_statistics.accesses import Ask, At, Kind
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.coordinates import Prior
from dpppl.row_statistics.matrices import Array, eigh, posterior_covariance, root_of, times
from dpppl.row_statistics.statistics import units

_SLOPE = 0.3  # the relative error of a slope at points that are a posterior sd or more apart
_KEPT = 0.8  # of what looks before say: likelihoods are skewed, and looks get nearer
FLOOR = 2.0  # sds of a curvature's noise, below which none counts
_UNKNOWN = 1e60  # the error of a curvature of which nothing is known


def trace(matrices: Array) -> float:
    """The trace of a matrix in blocks (k, b, b)."""
    return float(np.trace(matrices, axis1=1, axis2=2).sum())


class Look(NamedTuple):
    """One look.

    - **at**, **centre** - where it was made, and the point in u, (k, b).
    - **scores**, **std** - its noisy sum of scores in u, (k, b), and the sd of that noise.
    - **curvature** - as released."""

    at: At
    centre: Array
    scores: Array
    std: float
    curvature: ReleasedCurvature

    @classmethod
    def asked(cls, ask: Ask, at: At, sigma: float, prior: Prior, most_scores: float) -> "Look":
        """The look of noise multiplier `sigma` at this place."""
        values, unit = ask(Kind.LOOK, at, sigma), at.norm / units(at.score_share, most_scores)[0]
        scores = at.basis.layout.gathered(values["score"]) * unit
        centre = at.basis.to_u(np.asarray(at.point) - prior.mean)
        return cls(
            at, centre, np.asarray(scores), float(sigma * unit), ReleasedCurvature.of(values, sigma, at, most_scores)
        )


class Line(NamedTuple):
    """All that looks say of the latents under a flat prior, in coordinates u.

    - **basis** - the coordinates u.
    - **information**, **pull** - (k, b, b); and it times the place that the looks say, (k, b).
    - **curvature**, **error** - that of the likelihood with noise, (k, b, b), and the sd of an entry.
    - **floor** - what noise may make of an eigenvalue."""

    basis: Basis
    information: Array
    pull: Array
    curvature: Array
    error: float
    floor: float

    @property
    def slope(self) -> Array:
        """The curvature (k, b, b), whose eigenvalues are at least the floor."""
        return self.known_at(self.floor)

    def known_at(self, floor: float) -> Array:
        """The curvature, whose eigenvalues are at least `floor`."""
        values, vectors = eigh(self.curvature)
        return self.basis.real((vectors * np.maximum(values, floor)[:, None, :]) @ vectors.swapaxes(1, 2))

    @classmethod
    def none(cls, basis: Basis) -> "Line":
        zeros = np.zeros_like(basis.roots)
        return cls(basis, zeros, zeros[..., 0], zeros, _UNKNOWN, 0.0)

    def carried(self, basis: Basis) -> "Line":
        """The same in other coordinates."""
        ours, back, root = self.basis, self.basis.inverse, basis.roots.swapaxes(1, 2)

        def into(matrices: Array) -> Array:
            of_latents = ours.carried(ours.real(back.swapaxes(1, 2) @ matrices @ back), basis)
            return basis.real(root @ of_latents @ basis.roots)

        pull = ours.reflected(ours.layout.scattered(times(back.swapaxes(1, 2), self.pull)))
        pull = times(root, basis.layout.gathered(basis.reflected(pull)))
        by = float(np.sum(basis.real(back @ basis.roots) ** 2)) / basis.layout.dimension  # of the noise of entries
        error, floor = (min(x * by, _UNKNOWN) for x in (self.error, self.floor))
        return Line(basis, into(self.information), pull, into(self.curvature), error, floor)

    def with_look(self, look: Look, covariance: Array) -> tuple["Line", Array]:
        """With a further look, and the posterior mean (k, b) under a normal prior around u = 0 of this `covariance`."""
        line, at = self._with_curvature(look.curvature), look.centre
        slope = Slope.of(line)
        measured = times(slope.gain, look.scores + times(slope.h, at))
        mean, spread = self.posterior(covariance)
        for _ in range(4):  # noise in the slope counts as far from the look as the posterior reaches
            reach = np.sum((mean - at) ** 2) + trace(self.basis.real(spread))
            variance = look.std**2 + line.error**2 / 2.0 * reach
            information = _KEPT * self.information + slope.precision / variance
            line = line._replace(information=information, pull=_KEPT * self.pull + measured / variance)
            mean, spread = line.posterior(covariance, slope.roots)
        return line._far_from_look(mean - at, slope), mean

    def _with_curvature(self, released: ReleasedCurvature) -> "Line":
        """With the mean of this curvature and the one so far, which is scaled to its size, weighted by their errors."""
        dimension = self.basis.layout.dimension
        typical = max(trace(released.curvature) / dimension, released.curvature_std)
        scale = float(np.clip(typical / max(trace(self.curvature) / dimension, 1e-9 * typical), 0.2, 5.0))
        weights = np.array([released.curvature_std, scale * self.error]) ** -2.0
        error, weights = float(np.sum(weights) ** -0.5), weights / np.sum(weights)
        curvature = weights[0] * released.curvature + weights[1] * scale * self.curvature
        return self._replace(curvature=curvature, error=error, floor=FLOOR * error)

    def _far_from_look(self, step: Array, slope: "Slope") -> "Line":
        """The same where the posterior mean is a step away from the look: slopes there are in error by `_SLOPE` of themselves."""
        dimension = self.basis.layout.dimension
        apart = float(np.clip(np.nan_to_num(np.sum(step * times(slope.h, step))) / dimension, 0.0, _UNKNOWN))
        error = float(np.hypot(self.error, _SLOPE * np.tanh(np.sqrt(apart)) * (trace(slope.h) / dimension)))
        return self._spread_by(_SLOPE**2 * apart, slope.roots)._replace(error=error)

    def _spread_by(self, by: float, roots: tuple[Array, Array]) -> "Line":
        """The same where its place has a further variance, by this factor the inverse of the curvature, which has these roots."""
        root, inverse = roots
        known, turn = eigh(inverse @ self.information @ inverse.swapaxes(1, 2))
        back = root @ (turn / (1.0 + by * np.maximum(known, 0.0))[:, None, :]) @ turn.swapaxes(1, 2) @ inverse
        return self._replace(information=back @ self.information, pull=times(back, self.pull))

    def posterior(self, covariance: Array, roots: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        """The posterior's mean (k, b) and covariance (k, b, b), with the sampling of rows, under a normal prior around u = 0;
        `roots`: of the slope, where they are known."""
        sampled = self._spread_by(1.0, roots or _roots(self.slope))
        information = (sampled.information + sampled.information.swapaxes(1, 2)) / 2.0
        found = posterior_covariance(information, root_of(covariance))
        return times(found, sampled.pull), found


class Slope(NamedTuple):
    """The slope of scores along a line, (k, b, b), and what a score says where noise hides a part of the slope.

    - **h**, **roots** - the slope, with a floor under its eigenvalues; its root and the inverse of that.
    - **precision** - the precision that scores of unit noise have.
    - **gain** - takes scores at 0 to this precision times the place that they say."""

    h: Array
    roots: tuple[Array, Array]
    precision: Array
    gain: Array

    @classmethod
    def of(cls, line: Line) -> "Slope":
        values, vectors = eigh(line.curvature)
        floored = np.maximum(values, line.floor)
        known = np.maximum(values, 0.0) ** 3 / (values**2 + line.error**2)  # of a slope that noise hides little
        matrix = lambda x: (vectors * x[:, None, :]) @ vectors.swapaxes(1, 2)  # noqa: E731
        h, root = line.basis.real(matrix(floored)), matrix(known)
        return cls(h, _roots(h), root @ root, matrix(known**2 / floored))


def _roots(curvature: Array) -> tuple[Array, Array]:
    """A root R of the curvature (k, b, b), RR', and its inverse."""
    values, vectors = eigh(curvature)
    roots = np.sqrt(np.maximum(values, np.max(values) * 1e-12 + 1e-200))[:, None, :]
    return vectors * roots, (vectors / roots).swapaxes(1, 2)
