"""Pictures of posteriors: posterior and prior, and paths of chains."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dpppl.contrib.plotting.axes import BLUE, GREY, ORANGE, STYLES, new_axes
from dpppl.contrib.uncertainty.decomposition import as_array, by_element
from dpppl.errors import ConfigurationError
from dpppl.report.labels import Labels
from dpppl.types import BySite
from dpppl.validation import checked, element_name, fraction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Given = Mapping[str, Sequence[object]] | None


@checked
def learned_share(shares: Mapping[str, float], *, axes: "Axes | None" = None) -> "Axes":
    """How much the data informed each latent: 1 - posterior variance / prior variance, as bars from 0 (the prior) to 1.

    - **shares**: by latent; `NoiseAware.verdict.learned`, or `uncertainty.learned_shares(posterior, prior)`.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    Shares below 0, where the posterior is wider, are drawn as 0 and written out. Returns the Axes. Raises
    ConfigurationError where there is no latent.
    """
    cure = "a dict of one number for each latent, NoiseAware.verdict.learned or uncertainty.learned_shares(posterior, prior)"
    if not shares:
        raise ConfigurationError("there is no latent to draw: shares is empty.")
    if any(as_array(share, f"the share of {name!r}").ndim for name, share in shares.items()):
        raise ConfigurationError(f"shares are not numbers; give {cure}.")
    axes = new_axes(axes, figsize=(5.5, 0.9 + 0.32 * len(shares)))
    values, places = np.array(list(shares.values()), float), np.arange(len(shares))
    axes.barh(places, 1.0, color="white", edgecolor=GREY, hatch="....", height=0.7, label="from the prior")
    axes.barh(places, np.clip(values, 0.0, 1.0), color=BLUE, height=0.7, label="from the data")
    for place, value in enumerate(values):
        axes.text(1.02, place, f"{value:.2f}", va="center")
    axes.set(yticks=places, yticklabels=[*shares], xlim=(0, 1.14), xticks=[0, 0.5, 1], ylim=(len(places) - 0.5, -0.5))
    axes.set_xlabel("share of the prior variance that the data removed")
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


@checked
def private_beside_prior(
    posterior: BySite, prior: BySite, *, reference: BySite | None = None, level: float = 0.9, labels: Given = None,
    axes: "Axes | None" = None,
) -> "Axes":  # fmt: skip
    """Medians and central intervals of each latent, private posterior below prior: where both are alike nothing was learned.

    - **posterior**: private samples, a dict by site, (S, ...), as `get_samples()` gives them.
    - **prior**: prior samples, a dict by site, as `Predictive(model, num_samples=...)` gives it; other sites are left out.
    - **reference**: samples of a posterior without privacy, of public data, or None.
    - **level**: the probability of the intervals, in (0, 1).
    - **labels**: of elements, by site, as `labels=` of a run; or None.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    Returns the Axes. Raises ConfigurationError for another level, a site that has no prior samples, or another shape.
    """
    kinds = {"prior": prior, "private posterior": posterior}
    return _intervals(
        kinds | ({} if reference is None else {"without privacy": reference}), posterior, level, labels, axes
    )


@checked
def posteriors_by_name(
    posteriors: Mapping[str, BySite], *, level: float = 0.9, labels: Given = None, axes: "Axes | None" = None
) -> "Axes":
    """Medians and central intervals of each latent, one below the other for each posterior: by prior, or by owner and pooled.

    - **posteriors**: samples by name, dicts by site, (S, ...); `Likelihood.sensitivity(...).samples`. Eight at most.
    - **level**: the probability of the intervals, in (0, 1).
    - **labels**: of elements, by site, as `labels=` of a run; or None.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    Sites are those of the first. Returns the Axes. Raises ConfigurationError for another level, and for samples without a site.
    """
    if not 0 < len(posteriors) <= len(_LOOKS):
        raise ConfigurationError(f"posteriors are 1 to {len(_LOOKS)} dicts of samples by name; got {len(posteriors)}.")
    return _intervals(posteriors, next(iter(posteriors.values())), level, labels, axes)


_LOOKS = [
    (GREY, "o", "-"), (BLUE, "s", "-"), (ORANGE, "^", "--"), (GREY, "v", ":"),
    (BLUE, "D", "-."), (ORANGE, "P", ":"), (GREY, "X", "--"), (BLUE, "*", ":"),
]  # fmt: skip


def _intervals(kinds: Mapping[str, BySite], like: BySite, level: float, labels: Given, axes: "Axes | None") -> "Axes":
    """Medians and intervals of the elements of `like`, for each kind of samples."""
    level = fraction(level, name="level")
    rows = {label: by_element(samples, like=like) for label, samples in kinds.items()}
    names = list(by_element(like, like=like))
    axes = new_axes(axes, figsize=(6.0, 1.1 + 0.2 * (1 + len(kinds)) * len(names)))
    places = np.arange(len(names))
    for number, (label, (colour, marker, style)) in enumerate(zip(kinds, _LOOKS)):
        tail = (1.0 - level) / 2.0
        low, middle, high = np.array([np.quantile(rows[label][n], [tail, 0.5, 1.0 - tail]) for n in names]).T
        shifted = places + 0.66 / len(kinds) * (number - (len(kinds) - 1) / 2.0)
        drawn = axes.errorbar(
            middle, shifted, xerr=[middle - low, high - middle], color=colour, marker=marker, linestyle="", label=label,
            markersize=5, capsize=3,
        )  # fmt: skip
        drawn[2][0].set_linestyle(style)
    named = Labels.of(labels, {site: np.shape(value)[1:] for site, value in like.items()}).named
    axes.set(yticks=places, yticklabels=map(named, names), ylim=(len(places) - 0.5, -0.5))
    axes.set_xlabel(f"median and {level:.0%} interval")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(3, len(kinds)), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


@checked
def mixing(
    samples: Mapping[str, object], verdicts: Mapping[str, object] | None = None, *, weights: ArrayLike | None = None,
    max_elements: int = 8, labels: Given = None, axes: "Axes | None" = None,
) -> "Axes":  # fmt: skip
    """Paths of chains, an element a band: bands that are filled evenly have been explored, drifts and slow waves have not.

    - **samples**: a dict by site, (chains, draws, ...): `mcmc.get_samples(group_by_chain=True)`.
    - **verdicts**: by site, words by element: `mcmc.verdict.by_site`; written next to each band. Or None.
    - **weights**: (chains, draws) `mcmc.get_weights()`, so that the horizontal axis is time and not steps; or None.
    - **max_elements**: the number of elements drawn, from the first.
    - **labels**: of elements, by site, as `labels=` of a run; or None.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    Each band is four standard deviations high, of all chains together. Returns the Axes. Raises ConfigurationError where there
    is nothing to draw.

    >>> draws = np.random.default_rng(0).normal(size=(2, 100, 3))
    >>> len(mixing({"weights": draws}, {"weights": ["read"] * 3}).get_yticklabels())
    3
    """
    paths: dict[str, Any] = {}
    words: dict[str, str] = {}
    for site, value in samples.items():
        value = as_array(np.asarray(value), f"samples of '{site}'")
        if value.ndim < 2 or value.shape[1] < 2:
            raise ConfigurationError(f"samples of '{site}' must have shape (chains, draws, ...), two draws at least.")
        for place in np.ndindex(value.shape[2:]):
            name = element_name(site, place)
            paths[name] = value[(slice(None), slice(None), *place)]
            words[name] = "" if verdicts is None else str(np.asarray(verdicts[site], object)[place])
    names = list(paths)[:max_elements]
    if not names:
        raise ConfigurationError("there is nothing to draw: samples is empty.")
    axes = new_axes(axes, figsize=(7.0, 0.8 + 0.8 * len(names)))
    draws = paths[names[0]].shape[1]
    times = np.linspace(0.0, 1.0, draws) if weights is None else np.cumsum(np.asarray(weights, float)[0])
    for row, name in enumerate(names):
        path = paths[name]
        spread = path.std() or 1.0
        for chain, values in enumerate(path):
            colour, _, style = STYLES[chain % len(STYLES)]
            heights = row - np.clip((values - path.mean()) / (5.0 * spread), -0.48, 0.48)
            axes.plot(times, heights, color=colour, lw=0.7, ls=style)
        axes.axhline(row + 0.5, color=GREY, linewidth=0.5)
        axes.text(1.02, row, words[name], transform=axes.get_yaxis_transform(), va="center", fontsize="small")
    named = Labels.of(labels, {site: np.asarray(value).shape[2:] for site, value in samples.items()}).named
    axes.set(yticks=range(len(names)), yticklabels=map(named, names), ylim=(len(names) - 0.5, -0.5), xlim=(0, 1))
    axes.set_xlabel("share of the draws" if weights is None else "time of the diffusion, as a share")
    return axes
