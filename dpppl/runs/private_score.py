"""The mean score of private rows as a charged query."""

import math
import os
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpppl import accounting
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.accounting.events import GaussianEvent
from dpppl.accounting.unit import ROW
from dpppl.data.rows import checked_mesh
from dpppl.errors import ConfigurationError, warn
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.model.arguments import Arguments, name_of
from dpppl.model.handlers import explained, failing_explained
from dpppl.model.refusals import check_captured
from dpppl.randomness import keys
from dpppl.runs.budget import Budget
from dpppl.runs.driver import TRACING, on_host
from dpppl.runs.query import Query, noisy_query, query_charge
from dpppl.types import Function, Tree
from dpppl.validation import checked, fraction, plain

_SQUARES = 0.5
"""Weight of a row's squared score relative to its score in one access."""
_SURE = 4.0
"""Standard deviations of the noise above which scores are said to be NaN: in 1 of 30,000 queries by chance."""


@dataclass(frozen=True, kw_only=True)
class PrivateScore:
    """A noised mean score of private rows, and what it cost.

    - **mean**: the mean over rows of clipped scores, with noise; unbiased, so it may lie outside of the range.
    - **noise_sd**: standard deviation of that noise.
    - **num_rows**: the number of rows, which is public.
    - **sampling_sd**: standard error of the mean for the population that rows are drawn from; None where it was not asked for.
    - **nan_share**: share of the rows whose score is NaN, with noise of sd `2 noise_sd / (high - low)`; from the same access.
    - **events**: what was asked of the data, for `dpppl.accounting`.
    - **assumed_public**: what the score captured, and its public arguments, in words.
    - **name**: of the query.

    >>> score = PrivateScore(mean=0.2, noise_sd=0.03, num_rows=1_000, sampling_sd=0.04, events=())
    >>> [round(end, 3) for end in score.interval(0.9)]
    [0.118, 0.282]
    """

    mean: float
    noise_sd: float
    num_rows: int
    sampling_sd: float | None
    events: tuple[GaussianEvent, ...] = field(repr=False)
    assumed_public: tuple[str, ...] = ()
    nan_share: float = 0.0
    name: str | None = None

    @checked
    def epsilon_at(self, delta: float) -> float:
        """Epsilon of this query alone at a delta in (0, 1)."""
        return accounting.epsilon(self.events, delta)

    @checked
    def interval(self, probability: float = 0.9) -> tuple[float, float]:
        """Compute a normal interval of the population's mean score, which counts noise and sampling.

        Raises ConfigurationError where `measure_spread` was not asked for."""
        from scipy.special import ndtri

        error = self._standard_error
        probability = fraction(probability, name="probability")
        half = float(ndtri(0.5 + 0.5 * probability)) * error
        return self.mean - half, self.mean + half

    @checked
    def p_value(self, mean: float = 0.0) -> float:
        """Compute the two-sided normal p-value of a population mean, which counts noise and sampling; see `interval`."""
        from scipy.special import ndtr

        return float(2.0 * ndtr(-abs(self.mean - mean) / self._standard_error))

    @property
    def _standard_error(self) -> float:
        """Of the mean, by noise and sampling. Raises ConfigurationError where `measure_spread` was not asked for."""
        if self.sampling_sd is None:
            raise ConfigurationError("an interval needs the spread of scores: private_score(..., measure_spread=True).")
        return math.hypot(self.noise_sd, self.sampling_sd)

    def __str__(self) -> str:
        relation = ROW.relation(self.events[0].neighboring_relation)
        called = "" if self.name is None else f"{self.name}: "
        return (
            f"{called}{self.mean:.4g}, with noise of sd {self.noise_sd:.2g}; {self.num_rows} rows; epsilon "
            f"{self.epsilon_at(1e-5):.4g} at delta 1e-05, {relation}"
        )


@dataclass(frozen=True)
class ModelScore:
    """A score by a model, which gets two more arguments, in front.

    - **function**: the score of (the row's number, which is public; (args, kwargs) whose rows keep an axis of length 1)."""

    function: Function

    def __call__(self, *args: object, **kwargs: object) -> Tree:
        return self.function(*args, **kwargs)


@on_host
@checked
def private_score(
    rng_key: jax.Array, score: Function, *args: object, bounds: tuple[float, float],
    target_epsilon: float | None = None, target_delta: float | None = None, noise_multiplier: float | None = None,
    ledger: PrivacyLedger | str | os.PathLike[str] | None = None, mesh: jax.sharding.Mesh | None = None,
    measure_spread: bool = False, name: str | None = None, **kwargs: object,
) -> PrivateScore:  # fmt: skip
    """The mean over private rows of a score, each clipped to `bounds`, with Gaussian noise: one charged access of all rows.

    - **rng_key**: a key of its own, from `dpppl.secret_key()`; used once.
    - **score**: `score(*args, **kwargs)` of one row, a number, written in JAX; it gets what follows without the leading axis.
    - **args**, **kwargs**: arrays (N, ...) are private rows; wrap posterior samples and all else in `dpppl.Public`.
    - **bounds**: (low, high), chosen without looking at the rows; a score that is NaN counts as the middle.
    - **target_epsilon**, **target_delta**: the noise is the least that meets them, and they bound the query.
    - **noise_multiplier**: instead, the noise's sd in units of (high - low) / 2, half the range.
    - **ledger**: a `dpppl.PrivacyLedger` of the data that hold these rows, or its path; charged before the access.
    - **mesh**: a `jax.sharding.Mesh` to shard rows over, as for `dpppl.MCMC`.
    - **measure_spread**: whether the same access also sums squares, for `interval`: the noise is 12 % larger at equal cost.
    - **name**: of the query, for its result and the ledger.

    *Guarantee*: (epsilon, delta)-DP for adding or removing one row, where N is public (zero-out), as `epsilon_at` of the
    result says. The noise of the mean has sd `noise_multiplier * (high - low) / (2 N)`. Without a ledger nothing counts
    this query together with others.

    Raises ConfigurationError for wrong arguments, UnsupportedModelError for a score that captures rows or has side
    effects, PrivacyLeakError for one that does more than compute, BudgetExceededError, and KeyReuseError; then nothing
    was charged.

    >>> import dpppl, numpy as np
    >>> x, y = np.linspace(-1.0, 1.0, 1_000), np.repeat([0.0, 1.0], 500)
    >>> weight = dpppl.Public(np.array(3.0))
    >>> def brier(weight, x, y):
    ...     return (jax.nn.sigmoid(weight * x) - y) ** 2
    >>> found = dpppl.private_score(dpppl.secret_key(), brier, weight, x, y, bounds=(0.0, 1.0), noise_multiplier=4.0)
    >>> found.noise_sd, round(found.epsilon_at(1e-5), 2)  # 4 times 1/2 over 1,000
    (0.002, 0.93)
    """
    low, high = checked_range(bounds)
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    arguments = Arguments.of(score, args, kwargs)
    budget, key = Budget(target_epsilon, target_delta, ledger=ledger, name=name), keys.as_key(rng_key)
    statistic, captured = traced_score(score, arguments, low, high, measure_spread)
    rows, public = arguments.arrays(score, args, kwargs, checked_mesh(mesh))
    if noise_multiplier is None and target_epsilon is None:
        raise ConfigurationError("give target_epsilon and target_delta, or noise_multiplier.")
    what = f"private_score({name_of(score)})"
    bound = half * math.hypot(1.0, _SQUARES) if measure_spread else half
    query = Query(statistic=statistic, bound=bound, rows=rows, public=public, what=what)
    charge = query_charge(query, budget, noise_multiplier)
    if target_delta is not None and target_delta * arguments.num_rows >= 1.0:
        warn("target_delta is not below 1 / number of rows: a mechanism may publish whole rows.")
    total, *squares, nones = noisy_query(query, charge, key, budget) / arguments.num_rows
    noise_sd = float(charge.noise_multipliers[0]) * bound / arguments.num_rows
    if nones > _SURE * noise_sd:
        warn(
            f"the score is NaN for about {nones / half:.0%} of the rows (noise of sd {noise_sd / half:.1%}), which count as the "
            "middle of the bounds: say what they count as, jnp.where(jnp.isnan(score), low, score), or leave them out.",
            UserWarning,
            charged=True,
        )
    sampling_sd = None
    if squares:  # the variance is raised by one sd of its noise, so that noise seldom hides it
        variance = squares[0] * half / _SQUARES - total**2 + noise_sd * half / _SQUARES
        sampling_sd = float(np.sqrt(np.clip(variance, 0.0, half**2) / arguments.num_rows))
    return PrivateScore(
        mean=float(middle + total), noise_sd=noise_sd, num_rows=arguments.num_rows, sampling_sd=sampling_sd,
        nan_share=float(nones / half), events=budget.events, assumed_public=(*captured, *arguments.assumed_public),
        name=name,
    )  # fmt: skip


def traced_score(
    score: Function, arguments: Arguments, low: float, high: float, measure_spread: bool = False
) -> tuple[Function, tuple[str, ...]]:
    """The clipped score of one row, less the middle of its range; its square, in units of half the range, where asked for; and
    half the range where the score is NaN, which is no longer than other rows'. Also what the score captures.

    Looks at shapes alone. Raises ConfigurationError and UnsupportedModelError."""
    if arguments.unequal:
        raise ConfigurationError(arguments.unequal)

    def statistic(row: Tree, public: Tree) -> jax.Array:
        values, keywords = arguments.join({name: row[name] for name in arguments.rows}, public)
        of_row = score
        if isinstance(score, ModelScore):
            batch = arguments.join({name: row[name][None] for name in arguments.rows}, public)
            of_row = partial(score, row[ROW_NUMBER], batch)
        found = jnp.asarray(of_row(*values, **keywords), float)
        if found.ndim:
            raise ConfigurationError(f"the score of a row must be a number, got shape {found.shape}.")
        half, is_none = (high - low) / 2.0, jnp.isnan(found)
        centred = jnp.where(is_none, 0.0, jnp.clip(found, low, high) - (low + high) / 2.0)
        squares = [_SQUARES * centred**2 / half] if measure_spread else []
        return jnp.stack([centred, *squares, jnp.where(is_none, half, 0.0)])  # a row is in the last entry or the others

    one = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in arguments.rows.items()}
    one[ROW_NUMBER] = jax.ShapeDtypeStruct((), np.int32)
    with TRACING, failing_explained(arguments.words, "score of one row"), explained("score"):
        program = jax.make_jaxpr(statistic)(one, arguments.public)
    return statistic, check_captured(program, {arguments.num_rows}, "score")


def checked_range(bounds: Tree) -> tuple[float, float]:
    """Raises ConfigurationError unless `bounds` is a pair (low, high) of finite numbers, low < high."""
    try:
        low, high = (float(plain(bound)) for bound in bounds)
    except (TypeError, ValueError):
        raise ConfigurationError("bounds must be a pair (low, high) of numbers.") from None
    if not (low < high and math.isfinite(high - low)):
        raise ConfigurationError("bounds must be finite, and low below high.")
    return low, high
