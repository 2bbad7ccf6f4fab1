"""How much the data informed each element of a posterior, and which elements depend on others that have not arrived.

Both compare released draws with draws from the prior: no access, and no cost. Elements are compared by normal scores under
the prior: the rank of a value among prior draws, as a standard normal quantile. A posterior that is the prior has scores with
mean 0 and variance 1, whatever the tails of the prior and the scale of the latent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

WORDS = LEARNED, PARTLY, PRIOR = "learned", "partly", "prior"
SMALLEST_SHARE, LARGEST_PART, _ERRORS = 0.1, 0.5, 2.0
MOST_NAMED, _NAMED_FROM, _COLUMNS = 3, 0.1, 1_024

Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Learned:
    """How much the data informed each element of a site.

    - **share** - 1 - (posterior variance) / (prior variance), of normal scores.
    - **words** - "learned" above .5, "prior" where spread and location are the prior's, else "partly"."""

    share: Array
    words: Array

    @classmethod
    def of(cls, values: Array, sizes: Array | float, prior: Array) -> "Learned":
        """Compare posterior draws (draws, ...), of which so many are independent, by element, with prior draws.

        A share of less than .1 counts as none, and so does a shift of less than .1^(1/2) prior sds, which the same share
        would explain. Both limits are wider by two standard errors."""
        scores, variance = normal_scores(values, prior)
        error = _ERRORS * (1.0 / np.maximum(sizes, 1.0) + 1.0 / len(prior)) ** 0.5
        left = np.var(scores, axis=0) / variance
        is_wide = left * np.exp(2.0**0.5 * error) >= 1.0 - SMALLEST_SHARE
        is_prior = is_wide & (np.abs(np.mean(scores, axis=0)) <= SMALLEST_SHARE**0.5 + error) & is_proper(prior)
        words = np.where(is_prior, PRIOR, np.where(left < 1.0 - LARGEST_PART, LEARNED, PARTLY)).astype(object)
        return cls(share=1.0 - left, words=words)


def word_of(share: float) -> str:
    """The word for an element of which data tell this share of the prior's variance."""
    return PRIOR if share < SMALLEST_SHARE else LEARNED if share > 1.0 - LARGEST_PART else PARTLY


def is_proper(prior: Array) -> Array:
    """Whether prior draws (draws, ...) of each element differ: those of an improper prior do not."""
    return np.asarray(np.ptp(prior, axis=0) > 0.0)


def distance(prior: Array, middle: Array) -> Array:
    """Median distance of prior draws (draws, ...) from `middle` (...), as an sd: that of a normal prior around its mean."""
    return np.asarray(np.median(np.abs(prior - middle), axis=0) / 0.6745)


def normal_scores(values: Array, prior: Array) -> tuple[Array, float]:
    """Normal scores (draws, ...) of values (draws, ...) under the prior of these draws (any number, ...), and their variance
    where the values come from the prior, too."""
    from scipy.special import ndtri

    count, both = len(prior), np.concatenate([prior, values])
    order = np.argsort(both, axis=0, kind="stable")
    below = np.empty_like(order)
    np.put_along_axis(below, order, np.cumsum(order < count, axis=0), axis=0)
    quantiles = ndtri((np.arange(count + 1) + 0.5) / (count + 1))
    return quantiles[below[count:]], float(np.var(quantiles))


@dataclass(frozen=True, kw_only=True)
class Partner:
    """Elements of a latent site that have not arrived.

    - **site** - name of the site.
    - **values** - draws (draws, elements).
    - **reach** - how far each element may be from the mean of its draws, infinity for an improper prior, (elements,)."""

    site: str
    values: Array
    reach: Array

    @classmethod
    def of(cls, site: str, values: Array, prior: Array) -> "Partner":
        """Elements that may be as far away as the prior is, from draws (draws, elements) of posterior and prior."""
        reach = distance(prior, np.mean(values, axis=0))
        return cls(site=site, values=values, reach=np.where(is_proper(prior), reach, np.inf))


def shifts(values: Array, widths: Array, sizes: Array, partners: Iterable[Partner]) -> dict[str, Array]:
    """By site of the partners: mean square of the shift of each element, in its widths, if the partners were anywhere in
    their priors, (elements,).

    An element follows a partner that it depends on. The slope of its draws on the partner's, times the partner's reach, is
    the shift. Its error is that of a slope whose residuals are as correlated as the element's draws, and is added: a shift
    counts unless the draws exclude it.

    - **values** - draws (draws, elements).
    - **widths** - posterior sds (elements,).
    - **sizes** - effective numbers of draws (elements,).
    - **partners** - elements that have not arrived."""
    centred = (values - np.mean(values, axis=0)) / widths
    noise, found = np.mean(centred**2, axis=0) / np.maximum(sizes, 1.0), {}
    for partner in partners:
        moved = partner.values - np.mean(partner.values, axis=0)
        with np.errstate(all="ignore"):
            scaled = moved * (partner.reach / np.mean(moved**2, axis=0))
            error = np.sum(partner.reach**2 / np.mean(moved**2, axis=0)) * noise
        squares = np.where(np.isfinite(error), error, np.inf)
        for first in range(0, scaled.shape[1], _COLUMNS):
            open_ = squares <= 1.0  # beyond 1 the sum decides nothing more
            part = scaled[:, first : first + _COLUMNS]
            squares[open_] += np.sum((centred[:, open_].T @ part / len(values)) ** 2, axis=1)
        found[partner.site] = squares
    return found


def named(squares: Mapping[str, Array], element: int) -> str:
    """The sites that an element depends on, at most three, in words."""
    by_site = {site: float(values[element]) for site, values in squares.items()}
    largest = max(by_site.values())
    least = _NAMED_FROM * min(largest, 1e300)
    sites = [site for site in sorted(by_site, key=lambda s: -by_site[s]) if by_site[site] >= least]
    return ", ".join(sites[:MOST_NAMED]) + (", ..." if len(sites) > MOST_NAMED else "")
