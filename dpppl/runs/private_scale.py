"""Location and scale of private columns as a charged query, for columns in their own units."""

import math
import os
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from dpppl import accounting
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic
from dpppl.access.mechanism import Mechanism
from dpppl.access.norm_histogram import MISSING, SIZE, Norms, in_bin
from dpppl.accounting.events import GaussianEvent
from dpppl.data.rows import checked_mesh
from dpppl.errors import ConfigurationError, UnconvergedWarning, warn
from dpppl.findings.counted_rows import stands_out
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.model.arguments import Arguments
from dpppl.randomness import keys
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.driver import TRACING, on_host, prepare
from dpppl.runs.session import Request, Run, session
from dpppl.subsampling import FullBatch
from dpppl.types import Function, Tree
from dpppl.validation import checked, positive

_LARGE, _FAR = 0.99, 2.0
"""The quantile of sizes that bounds a column, and how far from its centre, in these bounds, rows count."""
_SIZES, _SUM, _DISTANCES = range(3)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateScale:
    """Noised locations and scales of columns, and their cost.

    - **location**: about the mean of each column, (d,).
    - **scale**: about the standard deviation of each column, (d,), to within a factor of 1.5 where it `is_resolved`.
    - **noise_sd**: standard deviation of the noise in `location`, (d,).
    - **is_resolved**: whether values stand out of the noise, (d,); elsewhere raise the budget, or write a public constant.
    - **events**: what was asked of the data, for `dpppl.accounting`.
    - **missing**: noised shares of values that are not finite, (d,); they count in neither.

    >>> found = PrivateScale(
    ...     location=np.array([55.0]), scale=np.array([20.0]), noise_sd=np.array([0.4]), is_resolved=np.array([True]), events=()
    ... )
    >>> float(found.scale[0])
    20.0
    """

    location: np.ndarray
    scale: np.ndarray
    noise_sd: np.ndarray
    is_resolved: np.ndarray
    events: tuple[GaussianEvent, ...] = field(repr=False)
    missing: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @checked
    def epsilon_at(self, delta: float) -> float:
        """Epsilon of this query alone at a delta in (0, 1)."""
        return accounting.epsilon(self.events, delta)


@on_host
@checked
def private_scale(
    rng_key: jax.Array, x: jax.Array, *, target_epsilon: float | None = None, target_delta: float | None = None,
    noise_multiplier: float | None = None, ledger: PrivacyLedger | str | os.PathLike[str] | None = None,
    mesh: jax.sharding.Mesh | None = None, name: str | None = None,
) -> PrivateScale:  # fmt: skip
    """Estimate where private columns lie and how widely they spread: three charged accesses of all rows.

    The accesses are a histogram of log2 |x| by column, a sum of clipped values, and a histogram of log2 |x - location|. Write the
    result into the model as constants: `(x - found.location) / found.scale`.

    - **rng_key**: a key of its own, from `dpppl.secret_key()`; used once.
    - **x**: private columns, (N,) or (N, d). A value that is not finite counts as 0 in the location, not in the scale; a warning
      says how many.
    - **target_epsilon**, **target_delta**: the noise is the least that meets them, and they bound the query.
    - **noise_multiplier**: instead, the noise sd of each access in units of its sensitivity, sqrt d.
    - **ledger**, **name**: a `dpppl.PrivacyLedger` of these rows or its path, charged before each access; the query's name there.
    - **mesh**: a `jax.sharding.Mesh` to shard rows over, as for `dpppl.MCMC`.

    *Guarantee*: (epsilon, delta)-DP for adding or removing one row, where N is public (zero-out), as `epsilon_at` of the
    result says. Without a ledger nothing counts this query together with others.

    Raises ConfigurationError for wrong arguments, BudgetExceededError, and KeyReuseError; then nothing was charged.

    >>> import dpppl, numpy as np
    >>> age = np.linspace(20.0, 90.0, 5_000, dtype=np.float32)
    >>> found = dpppl.private_scale(dpppl.secret_key(), age, target_epsilon=0.3, target_delta=1e-5)
    >>> bool(abs(found.location[0] - 55.0) < 20.0), bool(10.0 < found.scale[0] < 50.0)
    (True, True)
    """
    if (noise_multiplier is None) == (target_epsilon is None):
        raise ConfigurationError("give target_epsilon and target_delta, or noise_multiplier.")
    arguments = Arguments.of(_columns, (x,), {})
    if len(arguments.rows) != 1:
        raise ConfigurationError("x must be one array of private rows, (N,) or (N, d).")
    ((label, column),) = arguments.rows.items()
    if len(column.shape) > 2:
        raise ConfigurationError(f"x has shape {column.shape}: give columns, (N,) or (N, d).")
    width = int(np.prod(column.shape[1:]))
    budget, run = Budget(target_epsilon, target_delta, ledger=ledger, name=name), Run.opened(rng_key)
    rows, _ = arguments.arrays(_columns, (x,), {}, checked_mesh(mesh))
    mechanism = Mechanism(clipping=Flat(float(np.sqrt(width))), subsampling=FullBatch())
    charge_at = lambda sigma: Charge(mechanism, np.full(3, sigma), is_query=True)  # noqa: E731
    sigma = budget.account().calibrate(charge_at) if noise_multiplier is None else noise_multiplier
    charge = charge_at(positive(sigma, name="noise_multiplier"))
    statistic = lambda state, row, _: _statistic(state, jnp.reshape(row[label], (width,)))  # noqa: E731

    def program(state: Tree, rows: Tree, key: jax.Array) -> Tree:
        settings: dict[str, Tree] = dict(key=key, noise_multiplier=float(sigma), step=state["kind"])
        return noisy_statistic(mechanism, statistic, state, rows, {}, **settings).total

    key = keys.stream(run.key, "query")
    state = {"kind": np.int32(0), "centre": np.zeros(width, np.float32), "bound": np.ones(width, np.float32)}
    budget.account().admit([charge])
    with TRACING:
        compiled = prepare(program, (state, rows, key), rows=1)
    request = Request(
        what="private_scale", charges=[charge], rows=rows, program=compiled.digest, print_cost=False,
        shared=dict(settings=charge.noise_multipliers, public_arrays={}),
    )  # fmt: skip
    with session(run, request, budget) as opened:

        def ask(kind: int, **known: object) -> np.ndarray:
            opened.charge(0, kind + 1)
            new = {name: np.asarray(value, np.float32) for name, value in known.items()}
            return np.asarray(compiled(state | new | {"kind": np.int32(kind)}, rows, key), np.float64)

        noise, num_rows = float(sigma) * np.sqrt(width), arguments.num_rows
        found = _found(ask, noise, num_rows, budget)
    share = float(np.max(found.missing))
    if stands_out(share, noise / num_rows):
        read = "".join(f". {sentence[0].upper()}{sentence[1:]}" for sentence in arguments.by_entry)
        words = f"{min(share, 1.0):.1%} ± {noise / num_rows:.1%} of the values of a column are missing or not finite"
        warn(f"{words}, and count neither in its location nor in its scale{read}.", UnconvergedWarning, charged=True)
    return found


def _columns(x: jax.Array) -> jax.Array:
    return x


def _statistic(state: Tree, x: jax.Array) -> jax.Array:
    """The numbers that a row releases, (d, SIZE), at most sqrt d long: the bins of sizes, but for values of 0; or, in the
    first place of each column, the value in units of the bound; or the bins of distances from the centre."""
    x = x.astype(jnp.float32)
    inside = jnp.where(jnp.isfinite(x), jnp.clip(x / state["bound"], -1.0, 1.0), 0.0)
    sums = jnp.zeros((len(x), SIZE)).at[:, 0].set(inside)
    bins = jax.vmap(in_bin)(jnp.abs(x - state["centre"]))
    return jnp.where(state["kind"] == _SUM, sums, bins)


def _found(ask: Function, noise: float, num_rows: int, budget: Budget) -> PrivateScale:
    """Make the three accesses, each of noise sd `noise` in each number."""

    def fitted(counts: np.ndarray) -> list[Norms]:
        return [Norms.fitted(own, noise, num_rows) for own in counts]

    counts = ask(_SIZES)
    sizes = fitted(counts)
    bound = np.array([own.quantile(_LARGE if own.error < 1.0 else 0.5) for own in sizes])
    noise_sd = bound * noise / num_rows
    location = np.clip(ask(_SUM, bound=bound)[:, 0] / num_rows, -1.0, 1.0) * bound
    distances = fitted(ask(_DISTANCES, centre=location))
    scale = [
        math.sqrt(own.share * own.mean(lambda r: np.minimum(r, _FAR * far) ** 2))  # noqa: B023
        for own, far in zip(distances, bound)
    ]
    resolved = np.array([max(a.error, b.error) < 1.0 for a, b in zip(sizes, distances)])
    return PrivateScale(
        location=location, scale=np.maximum(scale, noise_sd), noise_sd=noise_sd, is_resolved=resolved, events=budget.events,
        missing=counts[:, MISSING] / num_rows,
    )  # fmt: skip
