"""How wide the posterior is on either side of its mean, from one access to curvatures there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpppl.findings.counted_rows import STANDS_OUT
from dpppl.noise_aware.surrogate import Surrogate
from dpppl.row_statistics.accesses import NUM_AXES, Ask, At, Kind
from dpppl.row_statistics.coordinates import Known, Prior
from dpppl.row_statistics.matrices import Array, times

SIDE_DISTANCE = 2.5  # in posterior sds: the curvature there is about its mean over the first five
ROW_CURVATURE_BOUND = 4.5  # a row's curvature along a latent is bounded by this multiple of the mean over rows
NOTABLE_RATIO, _LEAST_LEARNED = 1.8, 0.05


class Sides(NamedTuple):
    """How wide the likelihood and the prior make a latent on either side of its posterior mean.

    - **latents** - numbers of the latents (n,).
    - **widths** - (n, 2): sd below and above the mean, in units of the stated sd; 1 where noise may explain the difference.
    - **noise** - (n,): sd of a side's noise in units of the curvature that is expected there."""

    latents: Array
    widths: Array
    noise: Array

    def named(self, names: Sequence[str]) -> tuple[tuple[str, float, float], ...]:
        """The latents whose widths are not 1, by name, each with both widths."""
        found = [(names[number], float(low), float(high)) for number, (low, high) in zip(self.latents, self.widths)]
        return tuple(each for each in found if each[1:] != (1.0, 1.0))

    @classmethod
    def asked(
        cls, ask: Ask, at: At, noise_multiplier: float, first: Surrogate, surrogate: Surrogate, belief: Known,
        covariance: Array, prior: Prior, num_rows: int,
    ) -> "Sides":  # fmt: skip
        """The widths along at most `NUM_AXES` latents, the most doubtful ones, from one access.

        - **first**, **surrogate** - of the first stage and of the last.
        - **belief**, **covariance** - after the last, see `recipe.Stage`."""
        mean, basis = belief.mean, surrogate.basis

        def diagonal(surrogate: Surrogate) -> Array:
            inverse, layout = surrogate.basis.inverse, surrogate.basis.layout
            matrices = inverse.swapaxes(1, 2) @ surrogate.curvature.mean @ inverse
            return np.maximum(layout.scattered(np.diagonal(matrices, axis1=1, axis2=2)), 1e-30)

        # Those first whose curvature changes most within a posterior sd.
        change, sd = np.abs(np.log(diagonal(first) / diagonal(surrogate))), np.sqrt(belief.variance)
        latents = np.argsort(-change * sd / np.hypot(mean - prior.mean, sd), kind="stable")[:NUM_AXES]
        spread = basis.covariance_of_u(covariance)
        axes = np.zeros((len(latents), len(prior.mean)))
        axes[np.arange(len(latents)), latents] = prior.scales[latents]
        # Along each latent, one posterior sd long.
        moves = times(spread, times(basis.roots.swapaxes(1, 2), basis.layout.gathered(basis.reflected(axes))))
        variances = basis.variances(spread)[latents]
        moves /= np.sqrt(variances)[:, None, None]
        stated = np.maximum(np.sum(moves * times(surrogate.curvature.mean, moves), axis=(1, 2)), 1e-30)
        learned = np.clip(1.0 - variances / prior.variance[latents], _LEAST_LEARNED, 1.0)
        # The share of the gradient's variance that is the sampling of the data, along each.
        pull, *variances_of = surrogate.pull(basis.covariance_of_u(prior.covariance(basis)), moves[..., None])
        sampled, full = (np.sum(pull * (matrices @ pull), axis=(1, 2, 3)) for matrices in variances_of)
        bounds = ROW_CURVATURE_BOUND * stated / learned / num_rows
        away = SIDE_DISTANCE * basis.to_latents(moves)
        along = (basis.layout.scattered(moves) / np.sqrt(bounds)[:, None]).T
        at = at._replace(point=mean, sides=np.concatenate([mean - away, mean + away]), along=along)
        values = ask(Kind.SIDES, at, noise_multiplier)
        unit = np.sqrt(values.size) * bounds / stated
        curvatures, std = values.reshape(4, -1) * unit, noise_multiplier * unit
        expected, noise = expected_at_sides(curvatures, std)
        return cls(latents, widths(curvatures, std, learned, sampled / full), noise / np.maximum(expected, 1e-12))


def expected_at_sides(curvatures: Array, std: Array) -> tuple[Array, Array]:
    """The curvature that is expected on both sides, (n,), and the sd of what is seen of it there; arguments as for `widths`.

    Where few rows inform a latent, all three are too small by as much: then sides are compared with the middle."""
    centre, weighed = curvatures[0], curvatures[3]
    part, least = np.clip(weighed / np.maximum(centre, std), 0.0, 1.0), np.maximum(centre - 2.5 * std, std)
    noise = std * np.sqrt(1.0 + (np.maximum(1.0 - centre, 0.0) / least) ** 2 + (part / least) ** 2)
    return 1.0 - part + part * np.maximum(centre, 0.0), noise


def widths(curvatures: Array, std: Array, learned: Array, sampled: Array) -> Array:
    """The sd on either side of the mean in units of the stated one, (n, 2), from `curvatures` (4, n) at the mean, below and
    above, and of rows that were weighed down, in units of the surrogate's, and the sd of their noise.

    The prior makes the share 1 - learned of the posterior precision. A likelihood of g times the curvature adds learned g^2 / (1
    + j (g - 1)), where j is the share `sampled` of noise that is the sampling of the data. Sides count where one differs by
    `NOTABLE_RATIO` from the stated sd, or from the other side."""
    centre, sides, (expected, noise) = curvatures[0], curvatures[1:3], expected_at_sides(curvatures, std)
    precision = lambda g: 1.0 - learned + learned * g**2 / (1.0 + sampled * (np.maximum(g, 0.0) - 1.0) + 1e-12)  # noqa: E731
    relative = np.maximum(sides, 0.0) / np.maximum(expected, 1e-12)
    is_low = (precision(np.minimum(relative, 1.0)) < NOTABLE_RATIO**-2) & (expected - sides > STANDS_OUT * noise)
    highest = np.maximum(sides, centre)
    is_high = (precision(highest) > NOTABLE_RATIO**2) & (highest > 1.0 + STANDS_OUT * std)
    wide, narrow = np.sort(precision(relative), axis=0)
    is_low |= (narrow > NOTABLE_RATIO**2 * wide) & (np.abs(sides[1] - sides[0]) > STANDS_OUT * np.sqrt(2.0) * std)
    found = np.where(is_low, relative, np.where(is_high, highest, 1.0))
    return np.where(is_low | is_high, 1.0 / np.sqrt(np.maximum(precision(found), 1e-4)), 1.0).T
