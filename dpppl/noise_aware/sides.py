"""Does the likelihood bound latents on both sides of the posterior mean, as its normal surrogate does?

Curvatures along a latent are released at the posterior mean and `APART` posterior sds to either side, the other latents at their
conditional means. Where the data bound a latent on one side only, as the log odds of an event that did not occur, the curvature
vanishes on the other side. Where the posterior reaches to values that the data exclude, the curvature grows.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpppl.model.refusals import quoted
from dpppl.noise_aware.curvature import Array, times
from dpppl.noise_aware.fit import NUM_AXES
from dpppl.noise_aware.prior import Known, Prior
from dpppl.noise_aware.surrogate import Surrogate

APART = 2.5
"""In posterior sds: the curvature there is about its mean over the first five."""
TYPICAL = 4.5
"""A row's curvature along a latent is bounded by this multiple of the mean over rows."""
FACTOR, STANDS_OUT, _LEAST = 1.8, 4.0, 0.05


class Sides(NamedTuple):
    """How wide the likelihood and the prior make a latent on either side of its posterior mean.

    - **latents** - numbers of the latents (n,).
    - **widths** - (n, 2): sd below and above the mean, in units of the stated sd; 1 where noise may explain the difference."""

    latents: Array
    widths: Array

    def named(self, names: Sequence[str]) -> tuple[tuple[str, float, float], ...]:
        """The latents whose widths are not 1, by name, each with both widths."""
        found = zip(self.latents, self.widths)
        return tuple(
            (names[number], float(low), float(high)) for number, (low, high) in found if (low, high) != (1.0, 1.0)
        )

    @classmethod
    def asked(
        cls,
        ask: Callable[..., Any],
        at: Any,
        noise_multiplier: float,
        stages: Sequence[Any],
        prior: Prior,
        num_rows: int,
    ) -> "Sides":
        """The widths along at most `NUM_AXES` latents, the most doubtful ones, from one access.

        - **ask** - the function that makes an access.
        - **at** - arrays that accesses need.
        - **noise_multiplier** - of the access.
        - **stages** - all stages, see `Stage`.
        - **prior** - of the latents.
        - **num_rows** - number of rows."""
        last = stages[-1]
        surrogate, mean, frame = last.surrogate, last.belief.mean, last.surrogate.frame
        latents = doubtful(stages[0].surrogate, surrogate, last.belief, prior)[:NUM_AXES]
        spread = frame.from_latents(last.covariance)
        axes = np.zeros((len(latents), len(prior.mean)))
        axes[np.arange(len(latents)), latents] = prior.scales[latents]
        # Along each latent, one posterior sd long.
        moves = times(spread, times(frame.roots.swapaxes(1, 2), frame.layout.gathered(frame.turned(axes))))
        variances = frame.variances(spread)[latents]
        moves /= np.sqrt(variances)[:, None, None]
        stated = np.maximum(np.sum(moves * times(surrogate.curvature.mean, moves), axis=(1, 2)), 1e-30)
        learned = np.clip(1.0 - variances / prior.variance[latents], _LEAST, 1.0)
        sampled = _sampled_along(surrogate, frame.from_latents(prior.covariance(frame)), moves)
        bounds = TYPICAL * stated / learned / num_rows
        away = APART * frame.latents(moves)
        values = ask(
            "sides", at | {"point": mean}, noise_multiplier, sides=np.concatenate([mean - away, mean + away]),
            along=(frame.layout.scattered(moves) / np.sqrt(bounds)[:, None]).T,
        )  # fmt: skip
        unit = np.sqrt(values.size) * bounds / stated
        return cls(latents, widths(values.reshape(4, -1) * unit, noise_multiplier * unit, learned, sampled))


def _sampled_along(surrogate: Surrogate, covariance: Array, moves: Array) -> Array:
    """The share (n,) of the gradient's variance that is the sampling of the data, along moves (n, k, b) of u, where u has this
    prior covariance."""
    scores = surrogate.curvature.scores.mean(axis=0)
    total = scores + np.eye(covariance.shape[-1]) * surrogate.noise_at(covariance)[:, None, :]
    pull = np.linalg.solve(total, times(surrogate.curvature.mean, moves)[..., None])[..., 0]
    return np.sum(pull * times(scores, pull), axis=(1, 2)) / np.sum(pull * times(total, pull), axis=(1, 2))


def widths(curvatures: Array, std: Array, learned: Array, sampled: Array) -> Array:
    """The sd on either side of the mean in units of the stated one, (n, 2).

    The prior makes the share 1 - learned of the posterior precision. A likelihood of g times the curvature adds
    learned g^2 / (1 + j (g - 1)), where j is the share of noise that is the sampling of the data, and changes with the curvature.

    - **curvatures** - (4, n) in units of the surrogate's: at the mean, below and above, and of the first the part of rows that
      were weighed down.
    - **std** - sd of their noise, (n,).
    - **learned** - share of the prior variance that was learned, (n,).
    - **sampled** - j, (n,)."""
    centre, sides, weighed = curvatures[0], curvatures[1:3], curvatures[3]
    precision = lambda g: 1.0 - learned + learned * g**2 / (1.0 + sampled * (np.maximum(g, 0.0) - 1.0) + 1e-12)  # noqa: E731
    # Where few rows inform a latent, all three are too small by as much: then sides are compared with the middle.
    part, least = np.clip(weighed / np.maximum(centre, std), 0.0, 1.0), np.maximum(centre - 2.5 * std, std)
    expected = 1.0 - part + part * np.maximum(centre, 0.0)
    relative = np.maximum(sides, 0.0) / np.maximum(expected, 1e-12)
    noise = std * np.sqrt(1.0 + (np.maximum(1.0 - centre, 0.0) / least) ** 2 + (part / least) ** 2)
    is_low = (precision(np.minimum(relative, 1.0)) < FACTOR**-2) & (expected - sides > STANDS_OUT * noise)
    highest = np.maximum(sides, centre)
    is_high = (precision(highest) > FACTOR**2) & (highest > 1.0 + STANDS_OUT * std)
    found = np.where(is_low, relative, np.where(is_high, highest, 1.0))
    return np.where(is_low | is_high, 1.0 / np.sqrt(np.maximum(precision(found), 1e-4)), 1.0).T


def doubtful(first: Surrogate, last: Surrogate, found: Known, prior: Prior) -> Array:
    """Numbers of the latents, those first whose curvature changes most within a posterior sd.

    - **first**, **last** - the likelihood near the prior mean, and at the posterior mean.
    - **found** - the posterior.
    - **prior** - of the latents."""
    change = np.abs(np.log(_diagonal(first) / _diagonal(last)))
    sd = np.sqrt(found.variance)
    return np.argsort(-change * sd / np.hypot(found.mean - prior.mean, sd), kind="stable")


def _diagonal(surrogate: Surrogate) -> Array:
    """Curvatures of the scaled latents (d,)."""
    frame = surrogate.frame
    matrices = frame.inverse.swapaxes(1, 2) @ surrogate.curvature.mean @ frame.inverse
    return np.maximum(frame.layout.scattered(np.diagonal(matrices, axis1=1, axis2=2)), 1e-30)


def findings(sides: Sequence[tuple[str, float, float]]) -> list[str]:
    """Sentences on the latents that the data bound on one side only, and on those whose posterior reaches too far.

    - **sides** - latents, each with its sd below and above the mean, in units of the stated one."""
    order = sorted(sides, key=lambda side: -max(abs(np.log(width)) for width in side[1:]))
    wider = [name for name, *widths in order if max(widths) > 1.0]
    narrower = [name for name, *widths in order if min(widths) < 1.0]
    lines = []
    if wider:
        lines.append(
            f"the data bound {_few(wider)} on one side only, as a rare category or a group without events does: the mean and the "
            "interval may be far off; merge categories or groups, or give the latent a narrower prior."
        )
    if narrower:
        lines.append(
            f"the posterior of {_few(narrower)} reaches to values that the data exclude: the interval is too wide by a factor "
            f"of {FACTOR:g} or more, and the mean may be off; raise the budget, or give the latent a narrower prior."
        )
    return lines


def _few(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return quoted(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
