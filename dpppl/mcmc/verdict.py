"""What may be read of each site: from samples, steps and counts that a run has released. Free."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

READ, SHORT, UNSTABLE, CLIPPED = "read", "do not read: too short", "do not read: unstable", "biased by clipping"
_FEWEST = 50
SMALLEST_SIZE, LARGEST_R_HAT, LARGEST_EXCESS = 50.0, 1.1, 0.5

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of a run. `step_size`: the largest that was used after the search, smallest over chains. `excess`: by latent site,
    the largest share by which steps widen the positions' variance beyond the samples'. `clipped`, `clipped_error`: the
    share of the rows that were clipped while samples were taken, and its noise's sd; None where not measured. `is_centred`:
    whether clipping was, so that it biases nothing."""

    step_size: float
    excess: Mapping[str, float]
    clipped: float | None = None
    clipped_error: float | None = None
    is_centred: bool = False

    @property
    def over_long(self) -> tuple[str, ...]:
        """Sites whose steps are too long, or not finite."""
        return tuple(site for site, excess in self.excess.items() if not excess <= LARGEST_EXCESS)

    def is_biased(self, num_rows: int) -> bool:
        """Whether clipping was not centred and clipped more rows than a posterior of so many hides: above N^(-1/2)."""
        if self.is_centred or self.clipped is None or self.clipped_error is None:
            return False
        return self.clipped - 2.0 * self.clipped_error > num_rows**-0.5

    def clipping_line(self) -> str | None:
        """The share of clipped rows in words."""
        if self.clipped is None or self.clipped_error is None:
            return None
        share = min(1.0, max(0.0, self.clipped))
        return f"about {share:.1%} ± {self.clipped_error:.1%} of rows were clipped while samples were taken"


def measure(
    midpoints: Mapping[str, Any], positions: Mapping[str, Any] | None, clipped: Any, step_size: float, thinning: int
) -> Measured:
    """From collected unconstrained midpoints and positions (None: not kept), (chains, draws, ...) by site, and the running
    sums of `DPKernel`'s states, (chains, draws, 2) or None.

    With m the midpoint of z and the one before, Var z = Var m + E (z - m)^2; means over chains and draws."""
    excess = {}
    for site, value in midpoints.items():
        middle = np.asarray(value, np.float64)
        off = middle if positions is None else np.asarray(positions[site], np.float64)
        finite = bool(np.all(np.isfinite(middle)) and np.all(np.isfinite(off)))
        if finite and middle.shape[1] >= _FEWEST:
            with np.errstate(all="ignore"):
                ratio = np.mean((off - middle) ** 2, axis=(0, 1)) / np.mean(np.var(middle, axis=1), axis=0)
            excess[site] = float(np.nan_to_num(ratio).max(initial=0.0))
        else:
            excess[site] = 0.0 if finite else np.inf
    if clipped is None or np.shape(clipped)[1] < 2:
        return Measured(step_size=step_size, excess=excess)
    sums = np.asarray(clipped, np.float64)
    share, variance = ((sums[:, -1] - sums[:, 0]) / ((sums.shape[1] - 1) * thinning)).mean(axis=0)
    error = (variance / ((sums.shape[1] - 1) * thinning * sums.shape[0])) ** 0.5
    return Measured(step_size=step_size, excess=excess, clipped=float(share), clipped_error=float(error))


def verdicts(samples: Mapping[str, Any], measured: Measured, num_rows: int) -> dict[str, Array]:
    """For each element of each site, constrained, {site: (chains, draws, ...)}: one of the four above.

    "too short": fewer than 50 effective samples in all, or a split R-hat above 1.1. "unstable": the step is so long that
    positions spread 1.5 times as wide as the samples (variances), or values are not finite; a site computed from others has the
    worst of theirs. "biased by clipping": more rows were clipped than N^(-1/2) of them."""
    biased, found = measured.is_biased(num_rows), {}
    for site, value in samples.items():
        value = np.asarray(value, np.float64)
        unstable = site in measured.over_long or (site not in measured.excess and bool(measured.over_long))
        words = np.full(value.shape[2:], CLIPPED if biased else READ, dtype=object)
        words[~_long_enough(value)] = SHORT
        words[~np.all(np.isfinite(value), axis=(0, 1)) | unstable] = UNSTABLE
        found[site] = words
    return found


def _long_enough(value: Array) -> Array:
    """Whether each element of (chains, draws, ...) has enough effective samples."""
    if value.shape[1] < 4:
        return np.zeros(value.shape[2:], bool)
    with np.errstate(all="ignore"):
        still = np.ptp(value, axis=(0, 1)) == 0.0
        size, r_hat = effective_sample_size(value), split_gelman_rubin(value)
    return np.asarray(still | ((size >= SMALLEST_SIZE) & (r_hat <= LARGEST_R_HAT)))


def verdict_lines(found: Mapping[str, Array], measured: Measured, num_rows: int) -> list[str]:
    """The verdicts in some sentences, with what to do about them."""
    words = np.concatenate([np.ravel(v) for v in found.values()])
    cures = {
        READ: "",
        SHORT: "the budget bounds the diffusion time: more rows, a larger epsilon or a smaller clipping_norm",
        UNSTABLE: f"steps of {measured.step_size:.3g} are too long: raise num_samples, which shortens matched steps, or "
        "give a smaller step_size",
        CLIPPED: "the posterior is biased unless clipping is centred: raise clipping_norm",
    }
    lines = []
    for verdict, cure in cures.items():
        if count := int(np.sum(words == verdict)):
            sites = [site for site, v in found.items() if np.any(v == verdict)]
            named = ", ".join(sites[:6]) + (", ..." if len(sites) > 6 else "")
            lines.append(f"{verdict}: {count} of {len(words)} ({named}){'; ' + cure if cure else ''}")
    if line := measured.clipping_line():
        biased = measured.is_biased(num_rows)
        lines.append(line + (": the posterior is biased unless clipping is centred" if biased else ""))
    return lines
