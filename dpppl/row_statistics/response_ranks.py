"""How well a model fits its rows, from one access: ranks of responses among those that the model gives in their place.

Ranks by surprise (minus the log probability) show distributions that are too narrow or of another shape. Ranks by value show
means that are wrong: summed with signs that follow the rows' covariates they have mean zero where the model is right, and not
where a quadratic term, or another link, is missing (Pregibon 1980). Their third moment shows distributions that are more or less
skewed than the model's, which clipped scores are sensitive to (Neyman 1937).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.row_statistics.accesses import NUM_AXES
from dpppl.row_statistics.basis import Basis
from dpppl.row_statistics.matrices import Array, times
from dpppl.types import Numbers, Scalar, Tree

FIT, LINK, SKEW = 0.6, 0.6, 0.32
"""By what two moments of ranks by surprise are multiplied, the signed ranks by value, and the third moment of these, so that all
numbers of a row are about 1 long at most. A row that says nothing, or whose response is next to impossible, has one number only.
The door clips to length 1: sensitivity needs no more, and longer rows lose that part of their ranks. Ascent over laws found 1.009
for 16 listed responses and 3 flags, 1.016 for 256, where one response has three quarters and the row's own is the next likely and
the lowest; and 1.4 where the model expects most of its own responses to be next to impossible."""
_IMPOSSIBLE_LOG_RATIO, _SDS = 12.0, 5.0
"""A response whose log probability is so much below the mean of those that the model gives is next to impossible: of a
normal law, five sds away. A sum over more numbers of a row has a larger sd."""
SURE = 9.66  # chi-squared of 2 degrees: one run in 125 by chance
_TIED = 1e-3
_TYPICAL = 0.05  # departures of moments on real data, in sds of a row's
OUTSIDE, MISSING = 1, 2  # places in `numbers` of responses outside the support, and of others with no finite score
# The most: of a continuous rank's two moments, of the rank by value, and of its third moment.
_VARIANCES = (1 / 12 + 1 / 28, 1 / 3 + 1 / 7, 1.0, 0.16)


class Order(NamedTuple):
    """The order of `numbers`: a response next to impossible, OUTSIDE, MISSING; two moments of ranks by surprise; variances of
    these, of ranks by value and of their third moment; flags; ranks by value along each direction; their third moment.

    - **num_flags**, **num_directions** - how many of these there are."""

    num_flags: int
    num_directions: int

    @property
    def size(self) -> int:
        return 10 + self.num_flags + self.num_directions

    def parts(self, values: Array) -> list[Array]:
        return np.split(values, np.cumsum([3, 2, 4, *self]))


def variance_unit(num_flags: int) -> float:
    """By what variances and flags, that many, are multiplied, which are released with ranks."""
    return 0.12 if num_flags == 2 else 0.105


def ranks(likelier: jax.Array, weights: jax.Array) -> jax.Array:
    """Of the members of a set with `weights` (m,), each one's rank less 1/2, (m,). `likelier` (m, m): of the one numbered by
    the column below the one numbered by the row: 1, 0, or 1/2 where they tie."""
    return likelier @ weights - 0.5


def moments_of_rank(log_probs: jax.Array, weights: jax.Array) -> tuple[Tree, Tree]:
    """Two moments of a response's rank by surprise less what the model expects of them, and their variances under the model.
    The first member is the real response; ranks of equals are halved.

    With P1 and P3 Legendre's polynomials of the rank, which have mean 0 where the model is right (Neyman 1937), (P1 + P3) / 2
    for tails and P1 - P3 for shoulders: jointly at most 1.23 long, of one response with three quarters and many others."""
    u = ranks(jnp.clip(0.5 + (log_probs - log_probs[:, None]) / _TIED, 0.0, 1.0), weights)
    moments = jnp.stack([10.0 * u**3 - 0.5 * u, 5.0 * u - 20.0 * u**3])
    centred = moments - (moments @ weights)[:, None]
    return centred[:, 0], centred**2 @ weights


def skewness(by_value: jax.Array, weights: jax.Array) -> jax.Array:
    """Legendre's third polynomial of ranks by value less its expectation under the model, (m,), in units of the most that this
    may be: of ranks t in [-1, 1] of responses with probabilities p the expectation is -2.5 sum p^3 t, at most .264."""
    moments = 20.0 * by_value**3 - 3.0 * by_value
    return (moments - moments @ weights) / 1.264


def impossible(log_probs: jax.Array, weights: jax.Array, size: Scalar = 1) -> tuple[jax.Array, jax.Array]:
    """Whether the real response, the first, is next to impossible under the model: 1 or 0, less the model's expectation. `size`:
    of how many numbers it consists; half of a chi-squared law of as many degrees has the sd sqrt(size / 2)."""
    least = _IMPOSSIBLE_LOG_RATIO + _SDS * (jnp.sqrt(size / 2.0) - np.sqrt(0.5))
    found = (log_probs @ weights - log_probs > least).astype(log_probs.dtype)
    return found[0], found[0] - found @ weights


class Ranks(NamedTuple):
    """The ranks of a row, or of a unit.

    - **possible** - whether the response is not next to impossible; **departure** - see `impossible`.
    - **moments**, **variances** - see `moments_of_rank`; the variances (4,) in the `Order`, under the model or squares of a unit.
    - **by_value** - signed ranks by value along directions, and their third moment, (k + 1,), in units of `LINK` and `SKEW`.
    - **signed** - the rank by value."""

    possible: jax.Array
    departure: jax.Array
    moments: jax.Array
    variances: jax.Array
    by_value: jax.Array
    signed: jax.Array


def ranked(log_probs: jax.Array, values: jax.Array, weights: jax.Array, squares: jax.Array, size: Scalar) -> Ranks:
    """The ranks of a row; the arguments are those of `numbers`."""
    log_probs = jnp.clip(jnp.nan_to_num(log_probs, nan=-jnp.inf), -1e30, 1e30)  # differences of infinities are none
    moments, variances = moments_of_rank(log_probs, weights)
    signed = ranks(0.5 + 0.5 * jnp.sign(values[:, None] - values), weights)
    skewed = skewness(signed, weights)
    signed /= jnp.maximum(jnp.max(jnp.abs(signed)), 1e-6)  # of a likely and an unlikely response the latter's is 1
    # The variance of the row's responses is in all squares, and no sign should follow it alone.
    signs = jnp.where(squares > (1.0 + jnp.mean(squares)) / 2.0, 1.0, -1.0)
    by_value = jnp.append(signed[0] * signs * (LINK / np.sqrt(len(squares))), skewed[0] * SKEW)
    variances = jnp.concatenate([variances, jnp.stack([signed**2 @ weights, skewed**2 @ weights])])
    is_impossible, departure = impossible(log_probs, weights, size)
    return Ranks(is_impossible == 0.0, departure, moments, variances, by_value, signed[0])


def ranked_unit(rows: Ranks, mask: jax.Array) -> Ranks:
    """The ranks of a unit: sums over its rows (k, ...) that the `mask` keeps, over k^(1/2).

    Given what came before it, a row's ranks have mean zero, so sums have it, too, where the number of a unit's rows depends on
    what they observe: the rows of a person who is followed up to an event. Ranks of totals, among totals of as many rows, do
    not. Squares stand for variances, since rows of a unit may be correlated: of both moments, of the sum of ranks by value, and
    the sum of their squares, as much on average where rows are independent."""
    counts, root = mask & rows.possible, np.sqrt(len(mask))
    total = lambda each: jnp.sum(jnp.where(counts[:, None], each, 0.0), axis=0) / root  # noqa: E731
    moments, by_value = total(rows.moments), total(rows.by_value)
    signed = total(rows.signed[:, None])[0]
    variances = jnp.concatenate([moments**2, jnp.stack([signed**2, total(rows.signed[:, None] ** 2)[0] / root])])
    departure = jnp.sum(jnp.where(mask, rows.departure, 0.0)) / len(mask)
    return Ranks(jnp.array(True), departure, moments, variances, by_value, signed)


def numbers(
    log_probs: jax.Array, values: jax.Array, weights: jax.Array, squares: jax.Array, flags: jax.Array, speaks: jax.Array,
    is_outside: jax.Array, size: Scalar = 1,
) -> jax.Array:  # fmt: skip
    """The numbers that a row releases, in their `Order`; of their length see `FIT`. `Fit.from_sums` reads their sums.

    - **log_probs**, **values**, **weights** - of its real response and m others of the model's, (1 + m,).
    - **squares** - (k,), see `Directions`.
    - **flags** - (2,), whether its score and its curvature were clipped, or (3,): and whether it has missing values.
    - **speaks** - whether its score is finite.
    - **is_outside** - whether its response is outside the model's support, so that its score is not finite.
    - **size** - how many numbers it observes."""
    return assembled(ranked(log_probs, values, weights, squares, size), flags, speaks, is_outside)


def assembled(
    found: Ranks, flags: jax.Array, speaks: jax.Array, is_outside: jax.Array, share: Numbers | float = 1.0
) -> jax.Array:
    """`numbers` of what was `ranked`.

    - **share** - the row's survey weight in units of the cap, in [0, 1]: moments and ranks are multiplied by it, and their
      variances by its square."""
    possible, departure, moments, variances, by_value, _ = found
    with_flags = jnp.concatenate([share**2 * variances, flags.astype(variances.dtype)])
    fits = jnp.concatenate([FIT * moments * share, variance_unit(len(flags)) * with_flags, by_value * share])
    silent = jnp.stack([is_outside, ~speaks & ~is_outside]).astype(fits.dtype)
    counts = jnp.where(speaks, departure * share, 0.0)[None], jnp.where(speaks, 0.0, silent)
    return jnp.concatenate([*counts, jnp.where(speaks & possible, fits, 0.0)])


class Directions(NamedTuple):
    """Directions in which rows are compared: from the prior mean to the fit, then along single coordinates.

    - **columns** - (d, k), in u. The mean over rows of the model's variance of a score's component along each is 1: in a
      regression this is the square of the linear predictor, or of a column, over its mean.
    - **coordinates** - those of the single ones."""

    columns: Array
    coordinates: tuple[int, ...]

    @classmethod
    def of(cls, basis: Basis, centre: Array, curvature: Array, num_rows: int) -> "Directions":
        """To the `centre` (k, b), and along the NUM_AXES coordinates in which it lies farthest from u = 0, in prior sds; all
        divided by their lengths by the `curvature` (k, b, b) of one row."""
        away = np.abs(basis.to_latents(centre)) / basis.scales
        farthest = np.sort(np.argsort(-away, kind="stable")[:NUM_AXES])
        axes = np.zeros((len(farthest), len(away)))
        axes[np.arange(len(farthest)), farthest] = 1.0
        every = np.concatenate([centre[None], basis.to_u(axes)])
        squares = np.maximum(np.sum(every * times(curvature, every), axis=(1, 2)) / num_rows, 1e-30)
        return cls((basis.layout.scattered(every) / np.sqrt(squares)[:, None]).T, tuple(map(int, farthest)))


class Scalars(NamedTuple):
    """Noised scalars.

    - **values** - noised sums of `numbers`.
    - **coordinates** - of their `Directions`.
    - **std** - standard deviation of the noise of each."""

    values: Array
    coordinates: tuple[int, ...]
    std: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How well rows fit: the released sums, decoded. Shares are of all rows.

    - **outside**, **missing** - shares of rows whose response is outside the model's support, and of others with no finite score.
    - **share_std** - sd of the noise of these shares.
    - **impossible** - the share of responses that the model finds next to impossible, and its standard error.
    - **clipped** - shares of rows whose score and whose curvature was clipped, and the sd of their noise.
    - **gaps** - the share of rows with missing values that the model sums out or masks, and the sd of its noise, or None.
    - **rank** - the mean rank of responses, by surprise, among those that the model gives in their place, .5 where it is right,
      with its standard error.
    - **fit** - how far the moments of that rank are from the model's, and the same in squared standard errors, chi-squared with 2
      degrees of freedom.
    - **link** - by which coordinate ranks of responses by value change most ("" for the fitted values), how far their signed mean
      is from 0, its square in squared standard errors, and how many means were compared.
    - **skew** - how far the third moment of ranks by value is from the model's, and its square in squared standard errors.
    - **moments** - departures as in `fit` (two) and in `skew`, their standard errors, and the variances of one row's, (3, 3).
    - **harm** - by how many posterior sds a departure as in `fit`, as in `link`, and as in `skew` moves estimates at most, if
      all scores were clipped.
    - **squared_harm** - the squares of `harm` that are expected, the largest: departures are believed to be `_TYPICAL` sds, and
      what was released moves that as far as its noise allows.
    - **alike** - of units, by what the variance of sums of ranks by value is multiplied where rows are as they are and not
      independent, and the standard error of that.
    - **tails** - how sure it is that responses have other tails than the model's: from 0 at .6 of a sure chi-squared to 1.
    - **unseen** - the sds by which a departure moves estimates, at most, that `fit` shows in half of the runs."""

    outside: float = 0.0
    missing: float = 0.0
    share_std: float = 0.0
    impossible: tuple[float, float] = (0.0, 0.0)
    clipped: tuple[float, float, float] = (0.0, 0.0, 0.0)
    gaps: tuple[float, float] | None = None
    rank: tuple[float, float] = (0.5, 0.0)
    fit: tuple[float, float] = (0.0, 0.0)
    link: tuple[str, float, float, int] = ("", 0.0, 0.0, 1)
    skew: tuple[float, float] = (0.0, 0.0)
    moments: tuple[tuple[float, ...], ...] = ((0.0,) * 3, (1.0,) * 3, (1.0,) * 3)
    harm: tuple[float, ...] = (0.0, 0.0, 0.0)
    squared_harm: float = 0.0
    unseen: float = 0.0
    tails: float = 0.0
    alike: tuple[float, float] = (1.0, 0.0)

    @classmethod
    def from_sums(
        cls, values: Sequence[float] | Array, noise_std: float, num_rows: int, excess: float, along: Sequence[str],
        sampled: float = 1.0, rows_per_unit: int = 1,
    ) -> "Fit":  # fmt: skip
        """From released sums over `num_rows` rows.

        - **noise_std** - sd of the noise of each sum.
        - **excess** - how far off the truth the point may be, squared, in sds of a posterior without noise: moments scatter more.
        - **sampled** - the largest share, over directions, of the posterior's variance that the sampling of data makes.
        - **along** - names of the coordinates along which rows were compared.
        - **rows_per_unit** - the most rows of a unit. Its ranks are means over so many; rows that it lacks count as right."""
        num_flags = len(values) - Order(0, len(along)).size
        unit, length = variance_unit(num_flags), LINK / np.sqrt(len(along))
        values, std = np.asarray(values, np.float64) / num_rows, noise_std / num_rows
        shares, moments, variances, flags, links, skews = Order(num_flags, len(along)).parts(values)
        root = np.sqrt(rows_per_unit)  # see `ranked_unit`
        units = root * np.array([FIT, FIT, length, SKEW])
        (unlikely, outside, missing), skew = shares, skews[0] / units[3]
        moments, links, stds = moments / units[0], links / units[2], std / units
        alike = (1.0, 0.0) if rows_per_unit == 1 else _alike(variances[2], variances[3], std, num_rows)
        if rows_per_unit > 1:  # the skewness of a rank has half of its variance
            variances = np.append(variances[:2], np.max(variances[2:]) * np.array([1.0, 0.5]))
        # Scores explain no more of the moments than there is; off the truth, these have other means by as much.
        variances = np.minimum(_VARIANCES, (np.maximum(variances, 0.0) + 2.0 * std) / (unit * rows_per_unit))
        stds = np.sqrt(stds**2 + variances / num_rows * (1.0 + excess))
        farthest = int(np.argmax(np.abs(links)))
        departures = np.array([*moments, links[farthest], skew])
        # Of all other distributions that give these means, the nearest moves the scores most where they are proportional.
        tilts = departures**2 / np.maximum(variances, 1e-12)
        unseen = np.sqrt(num_rows * np.max(stds[:2] ** 2 / np.maximum(variances[:2], 1e-12)))
        prior = _TYPICAL**2 * np.maximum(variances, 1e-12)
        gain = prior / (prior + stds**2)
        believed = ((gain * departures) ** 2 + (1.0 - gain) * prior) / np.maximum(variances, 1e-12)
        by_surprise = np.array([0.5, 0.25])  # a rank is half of one moment and a quarter of the other
        chi_squared = (departures / stds) ** 2
        flags = np.clip(flags / unit, 0.0, 1.0)
        return cls(
            outside=float(outside), missing=float(missing), share_std=std,
            impossible=(float(unlikely), float(np.sqrt(std**2 + max(unlikely, 0.0) / num_rows))),
            clipped=(float(flags[0]), float(flags[1]), std / unit),
            gaps=(float(flags[2]), std / unit) if num_flags > 2 else None,
            rank=(0.5 + float(by_surprise @ moments), float(np.linalg.norm(by_surprise * stds[:2]))),
            fit=(float(np.linalg.norm(moments)), float(np.sum(chi_squared[:2]))),
            link=(along[farthest], float(links[farthest]), float(chi_squared[2]), len(links)),
            skew=(float(skew), float(chi_squared[3])),
            moments=tuple(tuple(map(float, x[[0, 1, 3]])) for x in (departures, stds, np.maximum(variances, 1e-12))),
            harm=tuple(float(np.sqrt(num_rows * x)) * sampled**0.5 for x in (np.sum(tilts[:2]), *tilts[2:])),
            squared_harm=float(num_rows * sampled * max(np.sum(believed[:2]) / 2.0, *believed[2:])),
            tails=float(np.clip(2.5 * max(np.sum(chi_squared[:2]), chi_squared[3]) / SURE - 1.5, 0.0, 1.0)),
            unseen=(SURE * sampled) ** 0.5 * float(unseen), alike=alike,
        )  # fmt: skip


def _alike(summed: float, alone: float, std: float, num_rows: int) -> tuple[float, float]:
    """The `alike` of a `Fit`, from the release's numbers; `std`: of their noise."""
    least = 2.0 * std  # else noise hides it
    ratio = float(summed / max(alone, least))
    spread = np.hypot(std / max(alone, least), ratio * np.sqrt(2.0 / num_rows))  # of the square of a nearly normal sum
    return ratio, float(np.hypot(spread, ratio * std / max(alone, least)))


def certain(chance: float) -> float:
    """The chi-squared of 1 degree of freedom that is exceeded with this probability."""
    from scipy.special import ndtri

    return float(ndtri(chance / 2.0) ** 2)
