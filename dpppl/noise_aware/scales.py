"""Findings on scales: of columns, in which noise may hide a direction, and of many values, which may come out too small."""

from collections.abc import Sequence

import numpy as np

from dpppl.noise_aware.prior import Known

HIDDEN = 40.0
MANY, BLURRED = 20, 0.5


def unknown_scale(hidden: float) -> str | None:
    """A finding on columns whose scale the run has not found; `hidden`: see `Release.hidden`."""
    if hidden < HIDDEN:
        return None
    return (
        f"noise hides a direction of the latents that the data may know {hidden:,.0f} times as well as the prior does, while "
        "another one is well known: some columns are in units of their own (years, euros), or nearly constant; write "
        "(x - centre) / scale in the model, with public constants or those of dpppl.private_scale, or raise the budget."
    )


def blurred(found: Known, names: Sequence[str]) -> tuple[str, ...]:
    """The sites of at least 20 coordinates whose means have an sd of less than twice their median sd."""
    sites = np.array([name.split("[")[0] for name in names])
    members = {str(site): np.flatnonzero(sites == site) for site in dict.fromkeys(sites)}
    sd = np.sqrt(found.variance)
    return tuple(
        site
        for site, own in members.items()
        if len(own) >= MANY and np.median(sd[own]) > BLURRED * np.std(found.mean[own])
    )
