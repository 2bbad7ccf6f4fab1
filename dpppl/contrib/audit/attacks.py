"""Empirical lower bounds on epsilon: attack a method on your own model, and compare with what the report says."""

import contextlib
import copy
import inspect
import io
import warnings
from typing import Any

import jax
import numpy as np

from dpppl import accounting
from dpppl.accounting.unit import Unit
from dpppl.contrib.audit import bounds
from dpppl.contrib.audit.by_hand import by_hand
from dpppl.contrib.audit.canaries import ManyCanaries, Recorded
from dpppl.contrib.audit.result import AuditResult
from dpppl.errors import ConfigurationError
from dpppl.mcmc.kernel import DPKernel
from dpppl.mcmc.runner import MCMC
from dpppl.model.units import grouped
from dpppl.noise_aware.runner import NoiseAware
from dpppl.randomness.keys import as_key, claims_apart, secret_key, stream
from dpppl.runs.driver import clears_tracebacks
from dpppl.runs.watching import watched_by
from dpppl.svi.runner import SVI
from dpppl.types import Function, Tree
from dpppl.validation import checked, optional, positive_integer


@clears_tracebacks
@checked
def audit(
    audited: DPKernel | SVI | MCMC | NoiseAware | Function, *args: object, num_steps: int | None = None, delta: float,
    attack: str = "white_box", canaries: str = "gradient", num_trials: int = 20_000, confidence: float = 0.95,
    rng_key: jax.Array | None = None, unit: str | None = None, max_rows_per_unit: int | None = None, **kwargs: object,
) -> AuditResult:  # fmt: skip
    """Attack a method on the model called with these arguments.

    Canaries are rows whose gradient always reaches the clipping norm; all other rows contribute nothing, the worst case for a
    canary. Many-run attacks have one canary, the first row, which half of the runs hold; the other half has it zeroed out. A
    one-run attack has a canary in every row, in or out by a fair coin of its own.

    - **audited** - a kernel, or an SVI, for `num_steps` steps; an MCMC or a NoiseAware; or `runner(rng_key, *args)`, which makes
      new objects and runs them, queries included.
    - **args**, **kwargs** - the model's arguments, with made-up rows, or with rows of the auditor's own.
    - **num_steps** - steps of a run of a kernel or an SVI.
    - **delta** - delta of the bound.
    - **attack** - "white_box": the attacker sees what the door returns at every step and uses the likelihood ratio. "black_box":
      the latents, or SVI's parameters, after the last step only; for kernels and SVI with a noise multiplier. "one_run": as
      white_box, with many canaries in one run (Steinke, Nasr, Jagielski 2023).
    - **canaries** - of a one-run attack: "gradient", or "row", where rows add their own clipped gradients.
    - **num_trials** - number of runs of the other attacks.
    - **confidence** - probability that the bound is true.
    - **rng_key** - key of the trials; None: a new one.
    - **unit**, **max_rows_per_unit** - of a kernel or an SVI, as for `dpppl.MCMC`: all rows of an id are a canary. Other objects
      have their own.

    Returns a lower bound on epsilon at `delta` that holds with probability `confidence`: Clopper-Pearson intervals on held-out
    trials, or the bound of Mahloujifar, Melis, Chaudhuri (2025) for one run. Where every step sees every row, the bound is on the
    parameter of Gaussian DP, converted to epsilon (Nasr et al. 2023, section 4).

    An audit can refute an account and never prove one. It looks at the rows outside the door: never publish what it finds on
    private rows. White-box attacks of kernels, and of SVI without a target, take the starting values of all steps.
    Raises ConfigurationError for arguments out of range, for rows on disk or sharded, for objects with a ledger.

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
    _check(audited, attack, canaries, num_trials, confidence, num_steps)
    key = secret_key() if rng_key is None else as_key(rng_key)
    of = Unit.of(unit, max_rows_per_unit)
    is_fixed = isinstance(audited, DPKernel | SVI) and audited.noise_multiplier is not None
    canary = None
    if isinstance(audited, DPKernel | SVI) and (attack == "black_box" or (attack == "white_box" and is_fixed)):
        args, kwargs = grouped(audited.model, args, kwargs, of.ids, of.max_rows, stream(key, "units"))
        events, gaussian, scores = by_hand(audited, args, kwargs, key, num_steps, attack, num_trials)
    else:
        seed = int(np.asarray(jax.random.key_data(stream(key, "canaries"))).ravel()[0])
        watcher: Any = ManyCanaries(kind=canaries, seed=seed) if attack == "one_run" else Recorded()
        runner = _runner(audited, num_steps, of)
        with (
            watched_by(watcher), claims_apart(), warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            runner(stream(key, "run"), *args, **kwargs)
        if not watcher.charges:
            raise ConfigurationError("the runner made no access: it has to run an MCMC, SVI, NoiseAware or query.")
        events, gaussian = watcher.events, watcher.sees_all
        if attack == "one_run":
            canary, scores = watcher.coins, (watcher.scores[watcher.coins], watcher.scores[~watcher.coins])
        else:
            scores = watcher.attacked(num_trials, seed)
    settings: Any = dict(delta=delta, confidence=confidence, gaussian=gaussian and attack != "black_box")
    reported = accounting.epsilon(events, delta)
    if canary is not None:
        lower, strongest = bounds.one_run(watcher.scores, canary, reported=reported, **settings)
    else:
        perfect = np.ones_like(scores[0]), np.zeros_like(scores[1])
        lower, strongest = (bounds.many_runs(*pair, **settings) for pair in (scores, perfect))
    thresholds = np.quantile(np.concatenate(scores), np.linspace(0.0, 1.0, 50))
    present, absent = ([float(np.mean(values > t)) if len(values) else 0.0 for t in thresholds] for values in scores)
    return AuditResult(
        epsilon_lower=lower, epsilon_reported=reported, epsilon_strongest=strongest, delta=delta, confidence=confidence,
        num_trials=num_trials if canary is None else 1, num_canaries=1 if canary is None else len(canary), attack=attack,
        audited="runner" if inspect.isfunction(audited) else type(audited).__name__, events=tuple(events),
        points=tuple(zip(absent, present)),
    )  # fmt: skip


def _check(audited: Any, attack: str, canaries: str, num_trials: int, confidence: float, num_steps: Any) -> None:
    if attack not in ("white_box", "black_box", "one_run") or canaries not in ("gradient", "row"):
        raise ConfigurationError('attack must be "white_box", "black_box" or "one_run", canaries "gradient" or "row".')
    if canaries == "row" and attack != "one_run":
        raise ConfigurationError('canaries="row" is for attack="one_run".')
    if not 0.5 < confidence < 1.0:
        raise ConfigurationError("confidence must be in (0.5, 1), such as 0.95.")
    if num_trials < 100:
        raise ConfigurationError("num_trials must be at least 100.")
    optional(positive_integer, num_steps, name="num_steps")
    is_stepped = isinstance(audited, DPKernel | SVI)
    if not (is_stepped or isinstance(audited, MCMC | NoiseAware) or callable(audited)):
        raise ConfigurationError("audit attacks kernels of dpppl, SVI, MCMC, NoiseAware, and a runner(rng_key, *args).")
    if not is_stepped and num_steps is not None and inspect.isfunction(audited):
        raise ConfigurationError(
            "num_steps is for a kernel or an SVI, and a function is taken as runner(rng_key, *args): for a NumPyro model give "
            "its kernel, audit(dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=3.0), y, num_steps=10, delta=1e-5)."
        )
    if is_stepped != (num_steps is not None):
        raise ConfigurationError(
            "give num_steps with a kernel or an SVI, and with nothing else: audit(kernel, y, num_steps=10, delta=1e-5)."
        )
    if attack == "black_box" and not is_stepped:
        raise ConfigurationError('attack="black_box" is for kernels and SVI; use "white_box" or "one_run".')
    if getattr(getattr(audited, "budget", None), "ledger", None) is not None:
        raise ConfigurationError(
            "an audit runs on made-up rows, which no ledger counts: leave out the object's ledger=."
        )


def _runner(audited: Any, num_steps: object, of: Unit) -> Function:
    """`runner(rng_key, *args)` of anything that is audited."""
    settings: Any = dict(unit=of.ids, max_rows_per_unit=of.max_rows) if of.ids is not None else {}
    if isinstance(audited, DPKernel):
        return MCMC(copy.copy(audited), num_warmup=0, num_samples=num_steps, progress_bar=False, **settings).run
    if settings:
        raise ConfigurationError("give unit= and max_rows_per_unit= to the object that is audited.")
    if not isinstance(audited, SVI | MCMC | NoiseAware):
        return audited
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a budget that is copied
        own: Tree = copy.deepcopy(audited)
    return own.run if num_steps is None else lambda key, *args, **kwargs: own.run(key, num_steps, *args, **kwargs)
