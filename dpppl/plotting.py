"""Pictures of predictive uncertainty and of what a private run learned; each function returns matplotlib's Axes.

Needs matplotlib, `pip install dpppl[plot]`, when a function is called. Colours are Okabe and Ito's, which the colour-blind tell
apart, and shapes or hatches say the same. Pictures of predictions for public inputs, and of samples, cost nothing; a picture
of scores of private rows is a release that no report covers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpppl.accounting import Plan
from dpppl.errors import ConfigurationError
from dpppl.uncertainty.calibration import reliability_bins
from dpppl.uncertainty.decomposition import by_element, decompose_variance
from dpppl.uncertainty.inputs import as_array

BLUE, ORANGE, SKY, GREY = "#0072B2", "#E69F00", "#56B4E9", "#7F7F7F"


def _axes(axes: Any, **size: Any) -> Any:
    """The axes given, or those of a new figure."""
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ConfigurationError("pictures need matplotlib: pip install dpppl[plot].") from None
    return plt.subplots(layout="constrained", **size)[1]


def reliability_diagram(
    probabilities: Any, labels: Any, *, num_bins: int = 10, bins: str = "width", weights: Any = None, mask: Any = None,
    label: str | None = None, axes: Any = None,
) -> Any:  # fmt: skip
    """Predicted probability against observed frequency, a point a bin, and the diagonal on which calibrated ones lie.

    - **probabilities**, **labels**, **num_bins**, **bins**, **weights**, **mask**: as in `uncertainty.reliability_bins`.
    - **label**: a name for the legend, before the calibration error, or None.
    - **axes**: matplotlib's Axes to draw on, or None for new ones; call it again with them to compare.

    The area of a point grows with the share of rows in its bin. Returns the Axes. Raises ConfigurationError as
    `reliability_bins`.

    >>> axes = reliability_diagram([0.2, 0.4, 0.8], [0, 1, 1])
    >>> axes.get_xlabel()
    'predicted probability'
    """
    found = reliability_bins(probabilities, labels, num_bins=num_bins, bins=bins, weights=weights, mask=mask)
    error = np.sum(found.share * np.abs(found.predicted - found.observed))
    axes = _axes(axes, figsize=(4.5, 4.5))
    number = len(axes.collections)
    if not number:
        axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="calibrated")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set(xlabel="predicted probability", ylabel="observed frequency")
    colour, marker = [(BLUE, "o"), (ORANGE, "s"), (GREY, "^"), (SKY, "D")][number % 4]
    axes.plot(found.predicted, found.observed, color=colour, linewidth=1.2)
    text = f"{label}, ECE {error:.3f}" if label else f"ECE {error:.3f}"
    area = 20.0 + 400.0 * found.share
    axes.scatter(
        found.predicted, found.observed, s=area, c=colour, marker=marker, alpha=0.8, label=text, clip_on=False, zorder=3
    )
    legend = axes.legend(loc="upper left", frameon=False)
    for handle in legend.legend_handles[1:]:
        handle.set_sizes([40.0])
    return axes


def predictive_band(
    inputs: Any, means: Any, variances: Any, *, weights: Any = None, num_sd: float = 2.0, observed: Any = None, axes: Any = None
) -> Any:  # fmt: skip
    """Predictive mean of a real response along one input, with a band for each part of its variance.

    - **inputs**: (N,) the input of each column; public, or the recipient's own.
    - **means**, **variances**, **weights**: as in `uncertainty.decompose_variance`: (S, N), (S, N) and (S,).
    - **num_sd**: the bands reach this many standard deviations from the mean.
    - **observed**: (inputs, responses) of public rows to draw as points, or None.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    The inner band is epistemic, what more data would narrow; the outer one is all of the variance. Returns the Axes.
    Raises ConfigurationError where shapes differ, as `decompose_variance`.
    """
    parts = decompose_variance(means, variances, weights=weights)
    at, centre = as_array(inputs, "inputs"), as_array(means, "means")
    if centre.shape[1:] != at.shape or at.ndim != 1:
        raise ConfigurationError(f"inputs must have shape (N,) and means (S, N), got {at.shape} and {centre.shape}.")
    mean = np.average(centre, axis=0, weights=None if weights is None else as_array(weights, "weights"))
    order = np.argsort(at)
    axes = _axes(axes, figsize=(6.0, 3.8))
    for spread, colour, alpha, hatch, label in (
        (parts.total, SKY, 0.35, None, f"all, ±{num_sd:g} sd"),
        (parts.epistemic, BLUE, 0.45, "///", f"epistemic, ±{num_sd:g} sd"),
    ):
        low, high = mean - num_sd * np.sqrt(spread), mean + num_sd * np.sqrt(spread)
        axes.fill_between(
            at[order],
            low[order],
            high[order],
            facecolor=colour,
            alpha=alpha,
            hatch=hatch,
            edgecolor=colour,
            label=label,
        )
    axes.plot(at[order], mean[order], color="black", linewidth=1.4, label="mean")
    if observed is not None:
        axes.scatter(*observed, s=8.0, c="black", alpha=0.5, linewidths=0, label="observed", zorder=3)
    axes.set(xlabel="input", ylabel="response")
    axes.legend(frameon=False)
    return axes


def learned_share(shares: Mapping[str, float], *, axes: Any = None) -> Any:
    """By latent, what the data told: 1 - posterior variance / prior variance, as bars from 0 (the prior) to 1.

    - **shares**: by latent; `NoiseAware.verdict.learned`, or `uncertainty.learned_shares(posterior, prior)`.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    Shares below 0, where the posterior is wider, are drawn as 0 and written out. Returns the Axes. Raises
    ConfigurationError where there is no latent.
    """
    if not shares:
        raise ConfigurationError("there is no latent to draw: shares is empty.")
    axes = _axes(axes, figsize=(5.5, 0.9 + 0.32 * len(shares)))
    values, places = np.array(list(shares.values()), float), np.arange(len(shares))
    axes.barh(
        places, np.ones(len(places)), color="white", edgecolor=GREY, hatch="....", height=0.7, label="from the prior"
    )
    axes.barh(places, np.clip(values, 0.0, 1.0), color=BLUE, height=0.7, label="from the data")
    for place, value in zip(places, values):
        axes.text(1.02, place, f"{value:.2f}", va="center")
    axes.set(
        yticks=places, yticklabels=list(shares), xlim=(0, 1.14), xticks=[0, 0.5, 1], ylim=(len(places) - 0.5, -0.5)
    )
    axes.set_xlabel("share of the prior variance that the data removed")
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def private_beside_prior(
    posterior: Mapping[str, Any], prior: Mapping[str, Any], *, reference: Mapping[str, Any] | None = None,
    level: float = 0.9, axes: Any = None,
) -> Any:  # fmt: skip
    """Medians and central intervals of each latent, private posterior below prior: where both are alike nothing was learned.

    - **posterior**: private samples by site, (S, ...), as `get_samples` gives them.
    - **prior**: prior samples by site, as `Predictive(model, num_samples=...)` gives them; other sites are left out.
    - **reference**: samples of a posterior without privacy, of public data, or None.
    - **level**: the probability of the intervals, in (0, 1).
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    Returns the Axes. Raises ConfigurationError for another level, a site that has no prior samples, or another shape.
    """
    if not 0.0 < float(level) < 1.0:
        raise ConfigurationError(f"level must lie in (0, 1), got {level!r}.")
    kinds = [("prior", prior, GREY, "o", "-"), ("private posterior", posterior, BLUE, "s", "-")]
    kinds += [] if reference is None else [("without privacy", reference, ORANGE, "^", "--")]
    rows = {label: by_element(samples, like=posterior) for label, samples, *_ in kinds}
    names = list(rows["private posterior"])
    axes = _axes(axes, figsize=(6.0, 1.1 + 0.2 * (1 + len(kinds)) * len(names)))
    places = np.arange(len(names))
    for number, (label, _, colour, marker, style) in enumerate(kinds):
        tail = (1.0 - level) / 2.0
        low, middle, high = np.array([np.quantile(rows[label][n], [tail, 0.5, 1.0 - tail]) for n in names]).T
        shifted = places + 0.22 * (number - (len(kinds) - 1) / 2.0)
        drawn = axes.errorbar(
            middle, shifted, xerr=[middle - low, high - middle], color=colour, marker=marker, linestyle="", label=label,
            markersize=5, capsize=3,
        )  # fmt: skip
        drawn[2][0].set_linestyle(style)
    axes.set(yticks=places, yticklabels=names, ylim=(len(places) - 0.5, -0.5))
    axes.set_xlabel(f"median and {level:.0%} interval")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(kinds), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def plan_picture(plan: Plan, *, axes: Any = None) -> Any:
    """Widths of honest 90 % intervals by the curvature of a row's log likelihood, for the best option of each kind.

    - **plan**: of `dpppl.accounting.plan`.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    A square marks where the data begin to outweigh the noise, a triangle where a chain explores; the dotted line is the curvature
    planned for. Returns the Axes.

    >>> from dpppl import accounting
    >>> axes = plan_picture(accounting.plan(num_data=1000, target_epsilon=1.0, target_delta=1e-6, rates=(1.0,)))
    >>> axes.get_xscale()
    'log'
    """
    axes = _axes(axes, figsize=(6.0, 4.0))
    curvatures = plan.row_curvature * 10.0 ** np.linspace(-4, 2, 121)
    axes.plot(curvatures, [plan.width_at(c) for c in curvatures], color="black", linewidth=1.2, label="without privacy")
    kinds = (("NoiseAware", BLUE, "-"), ("SVI", ORANGE, "--"), ("DPSGLD", SKY, "-."))
    for method, colour, style in kinds:
        option = next((o for o in plan.options if o.method == method), None)
        if option is None:
            continue
        label = f"{method}, rate {option.rate:g}, {option.num_steps} steps"
        axes.plot(
            curvatures, [plan.width_at(c, option) for c in curvatures], color=colour, linestyle=style, label=label
        )
        for place, marker in ((option.learned_above, "s"), (option.explored_above, "^")):
            if place is not None and curvatures[0] <= place <= curvatures[-1]:
                axes.plot(place, plan.width_at(place, option), color=colour, marker=marker, markersize=7, linestyle="")
    axes.axvline(plan.row_curvature, color=GREY, linestyle=":", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="curvature of one row", ylabel="width of a 90 % interval")
    axes.legend(frameon=False, fontsize="small")
    return axes
