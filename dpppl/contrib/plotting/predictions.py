"""Pictures of predictions: where they are uncertain, and why."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dpppl.contrib.plotting.axes import BLUE, GREY, ORANGE, SKY, STYLES, new_axes
from dpppl.contrib.uncertainty.decomposition import as_array, decompose_variance
from dpppl.contrib.uncertainty.survival import SurvivalCurve
from dpppl.errors import ConfigurationError
from dpppl.validation import checked, fraction

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked
def predictive_band(
    inputs: ArrayLike, means: ArrayLike, variances: ArrayLike, *, weights: ArrayLike | None = None,
    num_sd: float = 2.0, observed: Any = None, axes: "Axes | None" = None,
) -> "Axes":  # fmt: skip
    """Predictive mean of a real response along one input, with a band for each part of its variance.

    - **inputs**: (N,) the input of each column; public, or the recipient's own.
    - **means**, **variances**, **weights**: as in `uncertainty.decompose_variance`: (S, N), (S, N) and (S,).
    - **num_sd**: the bands reach this many standard deviations from the mean.
    - **observed**: (inputs, responses) of public rows to draw as points, or None.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    The inner band is epistemic, what more data would narrow; the outer one is all of the variance. Returns the Axes.
    Raises ConfigurationError where shapes differ, as `decompose_variance`.

    >>> means = [[0.0, 1.0], [0.2, 1.4]]
    >>> predictive_band([0.0, 1.0], means, [[0.1, 0.1], [0.1, 0.1]]).get_xlabel()
    'input'
    """
    at, centre = as_array(inputs, "inputs"), as_array(means, "means")
    if centre.shape[1:] != at.shape or at.ndim != 1:
        raise ConfigurationError(f"inputs must have shape (N,) and means (S, N), got {at.shape} and {centre.shape}.")
    parts = decompose_variance(means, variances, weights=weights)
    mean = np.average(centre, axis=0, weights=None if weights is None else as_array(weights, "weights"))
    order = np.argsort(at)
    axes = new_axes(axes, figsize=(6.0, 3.8))
    for spread, colour, alpha, hatch, label in (
        (parts.total, SKY, 0.35, None, f"all, ±{num_sd:g} sd"),
        (parts.epistemic, BLUE, 0.45, "///", f"epistemic, ±{num_sd:g} sd"),
    ):
        low, high = mean - num_sd * np.sqrt(spread), mean + num_sd * np.sqrt(spread)
        looks: Any = dict(facecolor=colour, edgecolor=colour, alpha=alpha, hatch=hatch)
        axes.fill_between(at[order], low[order], high[order], label=label, **looks)
    axes.plot(at[order], mean[order], color="black", linewidth=1.4, label="mean")
    if observed is not None:
        x, y = observed
        axes.scatter(x, y, s=8.0, c="black", alpha=0.5, linewidths=0, label="observed", zorder=3)
    axes.set(xlabel="input", ylabel="response")
    axes.legend(loc="upper left", frameon=False)
    return axes


@checked
def input_probability(
    probabilities: ArrayLike, *, prior: Any = None, level: float = 0.9, label: str = "private posterior",
    axes: "Axes | None" = None,
) -> "Axes":  # fmt: skip
    """Posterior of the probability of one input: how sure the model is of its own prediction.

    - **probabilities**: (S,) the probability that each posterior sample gives to the input.
    - **prior**: (S',) the same of prior samples, drawn below as an outline, or None.
    - **level**: the probability of the central interval, in (0, 1).
    - **label**: a name for the legend.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    The line is the mean, which is the prediction. Returns the Axes. Raises ConfigurationError for probabilities outside of
    [0, 1] or of another shape, and for another level.

    >>> axes = input_probability([0.7, 0.8, 0.9])
    >>> axes.get_xlabel()
    'probability'
    """
    level = fraction(level, name="level")
    drawn = {"probabilities": probabilities} | ({} if prior is None else {"prior": prior})
    values = {name: as_array(value, name) for name, value in drawn.items()}
    for name, value in values.items():
        if value.ndim != 1 or not value.size or not np.all((value >= 0.0) & (value <= 1.0)):
            raise ConfigurationError(f"{name} must be numbers in [0, 1] of shape (S,), one a sample.")
    axes, bins = new_axes(axes, figsize=(5.0, 3.0)), np.linspace(0.0, 1.0, 41).tolist()
    ours = values["probabilities"]
    axes.hist(ours, bins=bins, density=True, color=BLUE, alpha=0.6, label=label)
    if "prior" in values:
        axes.hist(values["prior"], bins=bins, density=True, histtype="step", color=GREY, ls="--", label="prior")
    low, high = np.quantile(ours, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    axes.axvline(ours.mean(), color="black", linewidth=1.4, label=f"mean {ours.mean():.2f}")
    axes.plot([low, high], [0.0, 0.0], color=ORANGE, linewidth=5, solid_capstyle="butt", clip_on=False,
              label=f"{level:.0%}: {low:.2f} to {high:.2f}")  # fmt: skip
    axes.set(xlim=(0, 1), xlabel="probability", ylabel="density")
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    return axes


@checked
def survival_plot(curve: SurvivalCurve, *, labels: Sequence[str] | None = None, axes: "Axes | None" = None) -> "Axes":
    """Survival curves with their credible bands.

    - **curve** - what `uncertainty.survival_curve(...)` returns, n rows.
    - **labels** - a name for each row, or None.
    - **axes** - matplotlib's Axes to draw on, or None for new ones.

    Returns the Axes.

    >>> from dpppl.contrib.uncertainty import SurvivalCurve
    >>> line = np.array([[1.0, 0.6, 0.4]])
    >>> survival_plot(SurvivalCurve(np.arange(3.0), line, 0.9 * line, line, 0.9)).get_ylabel()
    'probability of no event'
    """
    if labels is not None and len(labels) != len(curve.mean):
        raise ConfigurationError(f"labels has {len(labels)} names, and the curve {len(curve.mean)} rows: give as many.")
    axes = new_axes(axes, figsize=(5.0, 3.5))
    for row, mean in enumerate(curve.mean):
        colour, _, line = STYLES[row % len(STYLES)]
        axes.plot(curve.times, mean, line, color=colour, label=labels[row] if labels else None)
        axes.fill_between(curve.times, curve.lower[row], curve.upper[row], color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="time", ylabel="probability of no event", ylim=(0.0, 1.02))
    if labels:
        axes.legend(loc="upper left", frameon=False)
    return axes
