"""Empirical lower bounds on epsilon: attack a kernel on your own model, and compare with what the report says."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.mcmc.kernel import DPKernel
from dpppl.random import as_key, secret_key

_CANARY_WEIGHT = 1e6
_BATCH = 10_000


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """`epsilon_lower`: at least this much is lost, with probability `confidence`; `epsilon_reported`: what the account
    says for the same accesses. `consistent` is False only if the account is refuted."""

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


def audit(
    kernel: DPKernel,
    *args,
    num_steps: int,
    delta: float,
    attack: str = "white_box",
    num_trials: int = 20_000,
    confidence: float = 0.95,
    rng_key=None,
    **kwargs,
) -> AuditResult:
    """Attack `num_steps` steps of `kernel` on the model called with these arguments.

    The first row becomes a canary whose gradient always reaches the clipping norm; all others contribute nothing, the
    worst case for the canary. Half of `num_trials` runs hold the canary and half have it zeroed out.
    "white_box": the attacker sees what the door returns at every step and uses the likelihood ratio. "black_box": the
    attacker sees the latents after the last step only.

    Returns a lower bound on epsilon at `delta` that holds with probability `confidence` (Clopper-Pearson intervals on
    held-out trials). Where every step sees every row, the white-box bound is on the parameter of Gaussian DP, converted
    to epsilon (Nasr et al. 2023, section 4): far tighter with few trials, and exact for a Gaussian mechanism.

    Needs a kernel whose noise is fixed, not "matched" to a target: use `mcmc.calibrated_kernel()`. An audit can refute
    an account and never prove one. It looks at the rows outside the door: use made-up rows.
    Raises ConfigurationError for arguments out of range.

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
    kernel = kernel.with_noise(None)
    kernel.bind(args, kwargs)
    rows, public = kernel.split.arrays(args, kwargs)
    key = secret_key() if rng_key is None else as_key(rng_key)
    score = partial(_white_box if attack == "white_box" else _black_box, kernel, rows, public, num_steps)
    scores = [
        _scores(score, present, jax.random.fold_in(key, i), num_trials // 2) for i, present in enumerate((1.0, 0.0))
    ]
    reported = kernel.report([(0, num_steps, 1)], delta=delta, key_origin="an audit", status="audited")
    gaussian = attack == "white_box" and kernel.mechanism.subsampling.rate == 1.0
    lower = _lower_bound(*scores, delta=delta, confidence=confidence, gaussian=gaussian)
    return AuditResult(
        epsilon_lower=lower,
        epsilon_reported=reported.epsilon_at(delta),
        delta=delta,
        confidence=confidence,
        num_trials=num_trials,
        attack=attack,
    )


def _scores(score, present: float, key, count: int) -> np.ndarray:
    batched = jax.jit(jax.vmap(partial(score, present)))
    keys = jax.random.split(key, count)
    return np.concatenate([np.asarray(batched(keys[i : i + _BATCH])) for i in range(0, count, _BATCH)])


def _likelihood(kernel, present, z, row, public):
    """The canary's log likelihood, steep enough to be clipped, or nothing; the other rows' is 0."""
    values, is_canary = row
    return _CANARY_WEIGHT * is_canary * present * kernel.split.log_likelihood(z, values, public)


def _start(kernel, public, key):
    return kernel._start(public, key, None)


def _canary_direction(kernel, rows, public, z):
    first = jax.tree.map(lambda x: x[0], rows)
    gradient = jax.grad(kernel.split.log_likelihood)(z, first, public)
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda leaf: leaf / norm, gradient)


def _along(direction, value):
    return sum(jnp.sum(d * v) for d, v in zip(jax.tree.leaves(direction), jax.tree.leaves(value)))


def _with_flags(rows):
    count = jax.tree.leaves(rows)[0].shape[0]
    return rows, jnp.zeros(count).at[0].set(1.0)


def _white_box(kernel, rows, public, num_steps, present, key):
    """Log likelihood ratio of all that the door returned, at the starting values."""
    z = _start(kernel, public, key).z
    direction = _canary_direction(kernel, rows, public, z)
    rate, norm = kernel.mechanism.subsampling.rate, kernel.mechanism.clipping.clipping_norm

    def access(total, step):
        _, sigma = kernel._at(step)
        likelihood = partial(_likelihood, kernel, present)
        seen = kernel.mechanism.noisy_sum(likelihood, z, _with_flags(rows), public, key, sigma, step)
        x = _along(direction, seen) / norm
        return total + jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + (x - 0.5) / sigma**2), None

    return jax.lax.scan(access, jnp.zeros(()), jnp.arange(num_steps))[0]


def _black_box(kernel, rows, public, num_steps, present, key):
    """How far the latents went along the canary's gradient by the last step."""
    state = _start(kernel, public, key)
    direction = _canary_direction(kernel, rows, public, state.z)
    attacked = kernel.with_noise(None)
    attacked._split, attacked._scales = _Attacked(kernel, present), {}

    def step(state, _):
        return attacked.step(state, rows=_with_flags(rows), public=public), None

    return _along(direction, jax.lax.scan(step, state, length=num_steps)[0].z)


class _Attacked:
    """A split model in which only the canary speaks."""

    def __init__(self, kernel, present):
        self.log_prior = kernel.split.log_prior
        self.log_likelihood = partial(_likelihood, kernel, present)


def _lower_bound(present, absent, *, delta: float, confidence: float, gaussian: bool) -> float:
    """Choose the best threshold on one half of the scores and evaluate it on the other, at `confidence` in all."""
    from scipy import stats

    from dpppl import accounting

    def rates(positive, negative, threshold, level):
        hits, alarms = int(np.sum(positive > threshold)), int(np.sum(negative > threshold))
        low = stats.beta.ppf(1 - level, hits, len(positive) - hits + 1) if hits else 0.0
        high = stats.beta.ppf(level, alarms + 1, len(negative) - alarms) if alarms < len(negative) else 1.0
        return low, high

    def bound(positive, negative, threshold, level):
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
