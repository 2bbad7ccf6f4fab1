"""The clipping norm of the steps of chains and SVI, from the private norms of the rows."""

from dataclasses import replace

import numpy as np

from dpppl.access.norm_histogram import Norms
from dpppl.frame.locate import Located
from dpppl.frame.metric import Metric
from dpppl.runs.budget import Charge

RELAXATIONS = 35.0
"""Relaxation times that samples are to span: privacy moves a mean by .24 posterior sds, and changes a width by an eighth."""
_MOST_ROWS, _NEARLY_ALL, _MARGIN = 0.8, 0.99, 4.0
_MOST_SQUARED = 16.0  # squared norms over those of white coordinates; about 7 where counts are overdispersed
_SPARE = 32.0
_CENTRED_QUANTILE, _KEPT = 0.9, 0.6


def chosen_norm(
    found: Located, num_rows: int, steps: Charge, share: float = 1.0, *, quantile: float, margin: float = 1.0,
    affordable: float | None = None,
) -> tuple[float, Metric | None]:  # fmt: skip
    """The clipping norm of a run, to four digits, and its metric: in a metric by `clipped_at`, without one a quantile of norms.

    - **found** - by the run's first accesses; **num_rows** - of all rows.
    - **steps** - the cost of all steps; **share** - of them, that samples come from.
    - **quantile**, **margin** - without a metric few rows are longer than `margin` times this quantile.
    - **affordable** - of centred clipping, which has no bias, but loses the information in clipped rows: it takes this norm, at
      most four times the quantile. It clips at most a tenth of the rows, and at most 40 % of the sum of squared norms.

    >>> from dpppl.access.norm_histogram import SIZE
    >>> counts = np.zeros(SIZE); counts[39:42] = 200.0, 600.0, 200.0      # norms around 2^(-40 + 40.5)
    >>> found = Located(metric=None, norms=Norms.fitted(counts, 5.0, 1000), scale=1.0, counted=None)
    >>> [chosen_norm(found, 1000, None, quantile=0.99, margin=1.25, affordable=norm)[0] for norm in (None, 0.0, 3.2)]
    [4.601, 2.414, 3.2]"""
    norms = found.norms
    if found.metric is not None:
        return clipped_at(found.metric, norms, num_rows, steps, share)
    norm = margin * norms.high_quantile(quantile)
    if affordable is not None:
        least = max(norms.quantile(_CENTRED_QUANTILE), _keeping(norms, _KEPT))
        norm = max(least, min(affordable, _MARGIN * norms.high_quantile(quantile)))
    return float(f"{norm:.4g}"), None


def clipped_at(metric: Metric, norms: Norms, num_rows: int, steps: Charge, share: float = 1.0) -> tuple[float, Metric]:
    """The clipping norm at which a run spans `RELAXATIONS` relaxation times, to four digits; the metric with the share of the
    curvature that clipped scores keep: E[x min(x, C)] / E[x^2] over the norms x of rows, where the model is right.

    In the metric the posterior's curvature is about 1. So noise of norm C and multipliers s spans 2 k^2 sum(s^-2) / C^2
    relaxation times, if clipped scores keep the share k. The norm is the longest at which that is enough, and at
    least longer than most scores. All squared norms are d where d coordinates are white: the histogram misses the rest, which
    is in so few rows that its noise hides them. So a tail that noise may have made is left out, as is a
    tail that holds many times the information of d coordinates. Hidden information counts as that of so many rows as noise may
    hide, which are clipped, too.

    - **norms** - of rows' scores in the metric; **num_rows** - of all rows.
    - **steps** - the cost of all steps; `share`: the share of them that samples come from."""
    mu_squared = share * (steps.chains * float(np.sum(steps.noise_multipliers**-2.0)))
    total = lambda longest: num_rows * norms.share * norms.mean(lambda x: np.minimum(x, longest) ** 2)  # noqa: E731
    possible = [longest for longest in 2.0**norms.edges if total(longest) <= _MOST_SQUARED * len(metric.centre)]
    believed = [norms.high_quantile(np.clip(1.0 - norms.unseen, _MOST_ROWS, most)) for most in (_NEARLY_ALL, 1.0)]
    lengths, seen = (np.minimum(norms.middles, min([longest, *possible[-1:]])) for longest in believed)
    squared = float(norms.mass @ lengths**2)
    kept = lambda norm: float(norms.mass @ (lengths * np.minimum(lengths, norm))) / squared  # noqa: E731
    least, most = norms.quantile(_MOST_ROWS), _MARGIN * norms.high_quantile(_NEARLY_ALL)
    candidates = [c for c in 2.0**norms.edges if least < c < most]
    enough = [c for c in candidates if 2.0 * mu_squared * (kept(c) / c) ** 2 >= RELAXATIONS]
    norm = float(f"{max([least, *enough]):.4g}")
    held, shown, lost = norms.mass @ np.stack(
        [seen * np.minimum(seen, norm), seen**2, np.maximum(seen - norm, 0.0) ** 2], 1
    )
    expected = max(shown, (metric.information or len(metric.centre)) / max(1e-30, num_rows * norms.share))
    unseen = max(norms.unseen, 1e-30)
    lost += unseen * max(0.0, ((expected - shown) / unseen) ** 0.5 - norm) ** 2  # in hidden rows of one length
    informed, cut = min(kept(norm), held / expected), min(1.0, (lost / expected) ** 0.5)
    return norm, replace(metric, kept=kept(norm), informed=float(informed), cut=float(cut))


def _squared(norms: Norms, norm: float) -> float:
    """The mean of rows' squared norms, clipped to this one, and to the .99 quantile: beyond it a fit's tail is a guess."""
    longest = min(norm, norms.high_quantile(_NEARLY_ALL))
    return norms.mean(lambda x: np.minimum(x, longest) ** 2)


def _keeping(norms: Norms, share: float) -> float:
    """The norm that keeps this share of the rows' squared norms."""
    candidates = 2.0**norms.edges
    kept = [_squared(norms, norm) for norm in candidates]
    return float(np.interp(share * kept[-1], kept, candidates))


def affordable_norm(norms: Norms, num_latents: int, num_rows: float, diffusion_time: float) -> float:
    """The norm at which a chain can still explore most directions.

    The diffusion time falls with the square of the norm; 100 / time is the smallest curvature that may be read (`mixing_line`).
    The sum of rows' squared norms, divided by the number of latents, is the curvature of an average direction. Norms are larger
    at the start than later, and directions differ, so 32 times this curvature is required.

    - **num_rows** - number of rows that inform the posterior.
    - **diffusion_time** - diffusion time of a chain at norm 1.

    >>> norms = Norms(np.array([-0.5, 0.5]), np.array([1.0]), 0.0)                 # all of length 1
    >>> affordable_norm(norms, num_latents=5, num_rows=10_000, diffusion_time=1.0)
    0.7905694150420949"""
    curvature = num_rows * _squared(norms, np.inf) / num_latents
    return float((diffusion_time * curvature / (_SPARE * 100.0)) ** 0.5)
