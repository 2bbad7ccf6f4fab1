"""Empirical lower bounds on epsilon: attack a kernel or SVI on your own model, and compare with what the report says."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import Adaptive
from dpppl.access.mechanism import Mechanism
from dpppl.data.disk import in_memory
from dpppl.errors import ConfigurationError
from dpppl.mcmc.kernel import DPKernel
from dpppl.model.units import grouped
from dpppl.randomness.keys import as_key, secret_key, stream
from dpppl.runs.driver import forgetful
from dpppl.runs.unit import Unit
from dpppl.subsampling import FullBatch
from dpppl.svi.by_hand import set_up
from dpppl.svi.runner import SVI

_CANARY, _CANARY_WEIGHT = "(canary)", 1e6
_BATCH = 10_000


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What an audit found. `consistent` is False only if the account is refuted.

    - **epsilon_lower** - lower bound on epsilon, true with probability `confidence`.
    - **epsilon_reported** - what the account says for the same accesses.
    - **delta** - of both.
    - **confidence** - probability that the bound is true.
    - **num_trials** - runs that were attacked.
    - **attack** - name of the attack.

    >>> AuditResult(
    ...     epsilon_lower=0.7, epsilon_reported=1.0, delta=1e-5, confidence=0.99, num_trials=1_000, attack="loss"
    ... ).consistent
    True
    """

    epsilon_lower: float
    epsilon_reported: float
    delta: float
    confidence: float
    num_trials: int
    attack: str

    @property
    def consistent(self) -> bool:
        """Whether the lower bound stays below what is reported."""
        return self.epsilon_lower <= self.epsilon_reported


@forgetful
def audit(
    audited: DPKernel | SVI,
    *args: Any,
    num_steps: int,
    delta: float,
    attack: str = "white_box",
    num_trials: int = 20_000,
    confidence: float = 0.95,
    rng_key: Any = None,
    unit: str | None = None,
    max_rows_per_unit: int | None = None,
    **kwargs: Any,
) -> AuditResult:
    """Attack `num_steps` steps of a kernel, or of SVI, on the model called with these arguments.

    The first row becomes a canary whose gradient always reaches the clipping norm; all others contribute nothing, the
    worst case for the canary. Half of the runs hold the canary and half have it zeroed out.

    - **audited** - a kernel, or an SVI.
    - **args**, **kwargs** - the model's arguments, with made-up rows.
    - **num_steps** - steps of a run.
    - **delta** - delta of the bound.
    - **attack** - "white_box": the attacker sees what the door returns at every step, taken from the starting values, and
      uses the likelihood ratio; "black_box": the latents, or SVI's parameters, after the last step only.
    - **num_trials** - number of runs.
    - **confidence** - probability that the bound is true.
    - **rng_key** - key of the trials; None: a new one.
    - **unit**, **max_rows_per_unit** - as for `dpppl.MCMC`: all rows of the first id are the canary.

    Returns a lower bound on epsilon at `delta` that holds with probability `confidence` (Clopper-Pearson intervals on
    held-out trials). Where every step sees every row, the white-box bound is on the parameter of Gaussian DP, converted
    to epsilon (Nasr et al. 2023, section 4): far tighter with few trials, and exact for a Gaussian mechanism.

    Needs noise that is fixed, not to be found from a target: use `mcmc.calibrated_kernel()`, or give `noise_multiplier`
    to SVI. An audit can refute an account and never prove one. It looks at the rows outside the door: use made-up rows.
    Raises ConfigurationError for arguments out of range, and for adaptive clipping.

    >>> import dpppl, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=5.0)
    >>> result = audit(kernel, jnp.arange(1.0, 5.0), num_steps=10, delta=1e-5)
    >>> 0.5 * result.epsilon_reported < result.epsilon_lower <= result.epsilon_reported
    True
    """
    if attack not in ("white_box", "black_box"):
        raise ConfigurationError('attack must be "white_box" or "black_box".')
    if not 0.5 < confidence < 1.0 or num_trials < 100 or num_steps < 1:
        raise ConfigurationError("audit needs confidence in (0.5, 1), at least 100 trials and at least one step.")
    if not isinstance(audited, DPKernel | SVI) or isinstance(audited.mechanism.clipping, Adaptive):
        raise ConfigurationError("audit attacks dpppl's kernels and dpppl.SVI, except with adaptive clipping.")
    key = secret_key() if rng_key is None else as_key(rng_key)
    of = Unit.of(unit, max_rows_per_unit)
    args, kwargs = grouped(audited.model, args, kwargs, of.ids, of.max_rows, stream(key, "units"))
    target = _target(audited, args, kwargs, stream(key, "start"))
    reported = target.audited.privacy_report(target.state._replace(i=np.int32(num_steps))).epsilon_at(delta)
    score = partial(_white_box if attack == "white_box" else _black_box, target, num_steps)
    batched = jax.jit(jax.vmap(score, in_axes=(None, 0)))
    keys = jax.random.split(stream(key, "trials"), (2, num_trials // 2))
    scores = [
        np.concatenate([batched(present, half[i : i + _BATCH]) for i in range(0, len(half), _BATCH)])
        for present, half in zip((1.0, 0.0), keys)
    ]
    gaussian = attack == "white_box" and target.mechanism.subsampling.rate == 1.0
    return AuditResult(
        epsilon_lower=_lower_bound(*scores, delta=delta, confidence=confidence, gaussian=gaussian),
        epsilon_reported=reported,
        delta=delta,
        confidence=confidence,
        num_trials=num_trials,
        attack=attack,
    )


@dataclass(frozen=True)
class _Target:
    """The attacked method: its mechanism, first state and step, and what its last state shows an attacker."""

    audited: Any
    mechanism: Mechanism
    state: Any
    step: Callable[..., Any]
    position: Callable[..., Any]

    def attacked(self, state: Any, present: Any, **changes: Any) -> Any:
        """The next state where only the canary speaks, if it is `present`, and what was seen: see `_Canary`."""
        seen: list[tuple[Any, ...]] = []
        canary = _Canary(**(vars(self.mechanism) | changes), present=present, seen=seen)
        return self.step(canary, state), *seen[0]


def _target(audited: DPKernel | SVI, args: Any, kwargs: Any, key: Any) -> _Target:
    own = copy.copy(audited)
    if isinstance(own, SVI):
        start, noise = set_up(own, key, args, kwargs), own.noise_multiplier
        objective = own.objective()
        rows, public = objective.arrays(args, kwargs)
        in_memory(rows, "an audit")

        def step(mechanism: Any, state: Any) -> Any:
            return own._step(objective, mechanism, noise)(state, rows, public)[0]

        return _Target(own, own.mechanism, start, step, own.get_params)
    own.check_norm()
    start, bound = own.init(key, 0, None, args, kwargs), own.bind(args, kwargs)
    rows, public = bound.split.arrays(args, kwargs)
    in_memory(rows, "an audit")

    def move(mechanism: Any, state: Any) -> Any:
        return replace(bound, kernel=own.copy(mechanism=mechanism)).step(state, rows=rows, public=public)

    return _Target(own, own.mechanism, start, move, lambda state: state.z)


@dataclass(frozen=True, kw_only=True)
class _Canary(Mechanism):
    """A mechanism to which only the first row, the canary, contributes: a gradient that is always clipped.

    - **present** - whether it does.
    - **seen** - takes what each access returned, along the canary's gradient and in units of the norm, and its noise.
    """

    present: Any
    seen: list[Any]

    def noisy_sum(self, log_likelihood: Any, z: Any, rows: Any, public: Any, **settings: Any) -> Any:
        return self._attacked(super().noisy_sum, log_likelihood, jax.grad(log_likelihood), z, rows, public, **settings)

    def noisy_statistic(self, statistic: Any, z: Any, rows: Any, public: Any, **settings: Any) -> Any:
        if _CANARY in rows:  # from `noisy_sum`
            return super().noisy_statistic(statistic, z, rows, public, **settings)
        return self._attacked(super().noisy_statistic, statistic, statistic, z, rows, public, **settings)

    def _attacked(
        self, access: Any, function: Any, direction: Any, z: Any, rows: Any, public: Any, **settings: Any
    ) -> Any:
        """`access` of `function(z, row, public)`, times the canary's weight; `direction`: where the canary pushes."""

        def canary(z: Any, row: Any, public: Any) -> Any:
            row = dict(row)
            weight = row.pop(_CANARY)
            return jax.tree.map(lambda leaf: weight * leaf, function(z, row, public))

        weights = jnp.zeros(len(next(iter(rows.values())))).at[0].set(_CANARY_WEIGHT * self.present)
        noisy = access(canary, z, {**rows, _CANARY: weights}, public, **settings)
        number = settings.get("number")
        first = jax.tree.map(lambda x: x[0], rows) | ({} if number is None else {number: 0})
        along = _along(direction(z, first, public), noisy.total)
        self.seen.append((along / self.clipping.clipping_norm, settings["noise_multiplier"]))
        return noisy


def _along(direction: Any, value: Any) -> Any:
    """The part of `value` in this direction; both are pytrees of one structure."""
    inner = lambda a, b: sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))  # noqa: E731
    return inner(direction, value) / jnp.sqrt(inner(direction, direction))


def _white_box(target: _Target, num_steps: int, present: Any, key: Any) -> Any:
    """Log likelihood ratio of all that the door returned, at the starting values."""
    state, rate = target.state._replace(rng_key=key), target.mechanism.subsampling.rate

    def access(total: Any, number: Any) -> Any:
        _, x, sigma = target.attacked(state._replace(i=number), present)
        return total + jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + (x - 0.5) / sigma**2), None

    return jax.lax.scan(access, jnp.zeros(()), jnp.arange(num_steps))[0]


def _black_box(target: _Target, num_steps: int, present: Any, key: Any) -> Any:
    """How far the run went to where the canary pushes in the first step: there the noise, the same twice, cancels."""
    state = target.state._replace(rng_key=key)
    pushed, free = (target.position(target.attacked(state, p, subsampling=FullBatch())[0]) for p in (1.0, 0.0))
    run = jax.lax.scan(lambda state, _: (target.attacked(state, present)[0], None), state, length=num_steps)[0]
    return _along(jax.tree.map(jnp.subtract, pushed, free), target.position(run))


def _lower_bound(present: Any, absent: Any, *, delta: float, confidence: float, gaussian: bool) -> float:
    """Choose the best threshold on one half of the scores and evaluate it on the other, at `confidence` in all."""
    from scipy import stats

    from dpppl import accounting

    def rates(positive: Any, negative: Any, threshold: Any, level: Any) -> Any:
        hits, alarms = int(np.sum(positive > threshold)), int(np.sum(negative > threshold))
        low = stats.beta.ppf(1 - level, hits, len(positive) - hits + 1) if hits else 0.0
        high = stats.beta.ppf(level, alarms + 1, len(negative) - alarms) if alarms < len(negative) else 1.0
        return low, high

    def bound(positive: Any, negative: Any, threshold: Any, level: Any) -> Any:
        true_low, false_high = rates(positive, negative, threshold, level)
        if not gaussian:
            return math.log((true_low - delta) / false_high) if true_low > delta and false_high > 0 else 0.0
        mu = stats.norm.isf(false_high) - stats.norm.isf(true_low) if 0 < true_low and false_high < 1 else 0.0
        if mu <= 0:
            return 0.0
        return accounting.epsilon(accounting.GaussianEvent(noise_multipliers=((1.0 / mu, 1),)), delta, "gaussian")

    level = 1 - (1 - confidence) / 2
    best = 0.0
    half_present, half_absent = len(present) // 2, len(absent) // 2
    for positive, negative in ((present, absent), (-absent, -present)):
        first, second = (
            (positive[:half_present], positive[half_present:]),
            (negative[:half_absent], negative[half_absent:]),
        )
        candidates = np.quantile(np.concatenate([first[0], second[0]]), np.linspace(0.02, 0.999, 50))
        threshold = max(candidates, key=lambda t: bound(first[0], second[0], t, level))
        best = max(best, bound(first[1], second[1], threshold, 1 - (1 - level) / 2))
    return max(0.0, best)
