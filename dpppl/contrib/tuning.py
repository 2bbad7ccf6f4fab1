"""Private selection of settings: a random number of private runs, each with a private score; only the best is released."""

import io
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from dpppl.access.clipping import Flat
from dpppl.access.mechanism import Mechanism
from dpppl.accounting import SelectionEvent
from dpppl.errors import BudgetExceededError, ConfigurationError
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.mcmc.runner import MCMC
from dpppl.model.arguments import Arguments, Public
from dpppl.noise_aware.binding import bind
from dpppl.noise_aware.runner import NoiseAware
from dpppl.noise_aware.settings import run_charge
from dpppl.processes import messages
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, Provenance, Start, Status
from dpppl.report.report import PrivacyReport
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.driver import on_host
from dpppl.runs.private_score import checked_range, private_score, traced_score
from dpppl.runs.session import Request, Run, session
from dpppl.subsampling import FullBatch
from dpppl.svi.runner import SVI
from dpppl.types import Function, Tree
from dpppl.validation import checked, positive

Runner = MCMC | SVI | NoiseAware
_DRAWS = 1_000  # of a guide


@dataclass(frozen=True, kw_only=True)
class TuningDetails:
    """The selection's lines of a report.

    - **num_candidates**: how many settings there were to choose from.
    - **mean_runs**, **shape**: of the distribution of the number of runs, as in `tune`.
    - **score_noise**: noise multiplier of a run's score.
    """

    num_candidates: int
    mean_runs: float
    shape: float | None
    score_noise: float

    def rows(self) -> list[tuple[str, str]]:
        """See `Details`."""
        distribution = "Poisson" if self.shape is None else f"truncated negative binomial, shape {self.shape:g}"
        number = f"secret, drawn: {distribution}, {self.mean_runs:g} expected; the best alone is released"
        return [
            ("candidates", f"{self.num_candidates}, each run drawing one at random"),
            ("number of runs", number),
            ("score", f"noised, noise multiplier {self.score_noise:g}, in the account"),
        ]

    def warnings(self) -> list[str]:
        """See `Details`."""
        return []

    def assumptions(self) -> list[str]:
        """See `Details`."""
        return [
            "The number of runs stays secret: running time reveals it, so nobody may see it (Papernot, Steinke 2022)."
        ]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best of the runs.

    - **settings**: the candidate, None where a Poisson number of runs was none.
    - **samples**: posterior samples by site, as the method's own `get_samples` gives them; of SVI 1,000 draws of the guide.
    - **score**: its noised mean score.
    - **report**: what all of it cost. The costs that single runs have by themselves are not those of a winner.

    >>> Tuned(settings=0.05, samples=None, score=-0.61, report=None).settings
    0.05
    """

    settings: Tree
    samples: dict[str, jax.Array] | None = field(repr=False)
    score: float
    report: PrivacyReport = field(repr=False)


@on_host
@checked
def tune(
    rng_key: jax.Array, candidates: Sequence[Any], make: Callable[[Any], Runner], score: Function, *args: object,
    bounds: tuple[float, float], score_noise: float, mean_runs: float = 10.0, shape: float | None = 1.0,
    target_epsilon: float | None = None, target_delta: float | None = None, name: str | None = None,
    ledger: PrivacyLedger | str | os.PathLike[str] | None = None, print_cost: bool = True, **kwargs: Tree,
) -> Tuned:  # fmt: skip
    """Choose settings by private runs on the data themselves, at the price of a few of them.

    - **rng_key**: one key, used once; take it from `dpppl.secret_key()`.
    - **candidates**: settings to choose from, of any kind, chosen without looking at the data.
    - **make**: from a candidate to a new MCMC, SVI or NoiseAware, with noise or a target of its own and no ledger.
    - **score**: `score(samples, *args, **kwargs)` of one row, a number, the higher the better; `samples` are posterior samples by
      site, the rest that row of the arguments, without the leading axis.
    - **args**, **kwargs**: the model's arguments; arrays are private rows unless marked `dpppl.Public`.
    - **bounds**, **score_noise**: of the score, as `bounds` and `noise_multiplier` of `dpppl.private_score`.
    - **mean_runs**, **shape**: expected number of runs, and its distribution: 1 for the geometric, 0 for the logarithmic,
      others for truncated negative binomials, None for Poisson.
    - **target_epsilon**, **target_delta**: refuse what would cost more; to meet a target, solve for the candidates' noise with
      `accounting.calibrate_noise_multiplier` and `accounting.SelectionEvent`.
    - **ledger**: counts the whole of it, before the first run.
    - **print_cost**, **name**: whether to print the cost before the first run; the choice's name, also for report and ledger.

    *Guarantee*: all that is returned is (epsilon, delta)-DP as `report` says, however many candidates there are; runs that lose
    are forgotten. Prints nothing of single runs. The running time reveals the number of runs, which must stay secret.

    Raises ConfigurationError or BudgetExceededError before any data are touched and before anything is charged.

    Reference: Papernot, Steinke (2022), Hyperparameter tuning with Renyi differential privacy.

    >>> import dpppl, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> def make(norm):
    ...     kernel = dpppl.DPSGLD(model, clipping_norm=norm, noise_multiplier=40.0)
    ...     return dpppl.MCMC(kernel, num_warmup=10, num_samples=10, progress_bar=False)
    >>> def score(samples, y):
    ...     return -((y - samples["mu"].mean()) ** 2)
    >>> found = tune(dpppl.secret_key(), [1.0, 3.0], make, score, jnp.ones(500), bounds=(-4.0, 0.0), score_noise=10.0,
    ...              mean_runs=2.0, target_epsilon=3.0, target_delta=1e-5)
    This run will spend epsilon = 0.9377 at delta = 1e-05: add or remove one row, N public (zero-out).
    >>> found.settings in (1.0, 3.0), round(found.report.epsilon, 2)
    (True, 0.94)
    """
    if messages.count() > 1:
        raise ConfigurationError("tune runs in a program of one process.")
    key, budget = keys.as_key(rng_key), Budget(target_epsilon, target_delta, ledger=ledger, name=name)
    runners = [_checked(make(candidate)) for candidate in candidates]
    if not runners:
        raise ConfigurationError("candidates is empty: there is nothing to choose from.")
    noise, (low, high) = positive(score_noise, name="score_noise"), checked_range(bounds)
    scored = Mechanism(clipping=Flat(1.0), subsampling=FullBatch())
    of_score, plans = scored.event(np.array([noise])), [_plan(runner, args, kwargs) for runner in runners]
    event = SelectionEvent(
        candidates=tuple(dict.fromkeys((*plan.events, of_score) for plan in plans)), mean=float(mean_runs), shape=shape
    )
    report = PrivacyReport(
        method="tune", events=(event,), delta=target_delta, mechanism=plans[0].mechanism, provenance=Provenance(),
        details=TuningDetails(num_candidates=len(runners), mean_runs=float(mean_runs), shape=shape, score_noise=noise),
        ledger=budget.ledger_line(), name=name,
    )  # fmt: skip
    if target_epsilon is not None and (report.epsilon or 0.0) > target_epsilon:
        raise BudgetExceededError(
            f"the selection costs epsilon {report.epsilon:.4g} at delta {target_delta:g}, and the target is {target_epsilon:g}: "
            "give the candidates or the score more noise, or expect fewer runs. Nothing was run and nothing was charged."
        )
    for runner in runners:
        samples = Public(_zeros(runner, args, kwargs))
        traced_score(score, Arguments.of(score, (samples, *args), kwargs), low, high)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(keys.stream(key, "selection"))).ravel())
    best: tuple[float, Any, Any] = (-np.inf, None, None)
    provenance = Provenance()

    def begin(_: object, origin: KeyOrigin) -> PrivacyReport:
        nonlocal provenance
        provenance = provenance.and_now(Status.COMPLETE, origin, Start.SUPPLIED)
        return report

    charges = [Charge(scored, np.array([noise]), selection=event)]
    request = Request(what="tune", charges=charges, rows=None, program="", begin=begin, print_cost=print_cost)
    with session(Run.opened(key), request, budget) as opened:
        opened.charge(0, 1)
        for number in range(event.draw(rng)):
            chosen = int(rng.integers(len(candidates)))
            own = jax.random.fold_in(keys.stream(key, "runs"), number)
            # output of single runs would reveal how many there were
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runner = _checked(make(candidates[chosen]))
                if _plan(runner, args, kwargs).events != plans[chosen].events:
                    raise ConfigurationError(
                        "make must give an object of the same cost whenever it is called with a candidate."
                    )
                drawn = _samples(runner, own, args, kwargs)
                settings: Any = dict(bounds=bounds, noise_multiplier=noise)
                found = private_score(keys.stream(own, "score"), score, Public(drawn), *args, **settings, **kwargs)
            if found.mean > best[0]:
                best = found.mean, candidates[chosen], drawn
    done = replace(report, provenance=provenance, ledger=budget.ledger_line())
    return Tuned(settings=best[1], samples=best[2], score=best[0], report=done)


def _checked(runner: object) -> Runner:
    if not isinstance(runner, Runner):
        raise ConfigurationError(f"make gives a {type(runner).__name__}; it must give a dpppl.MCMC, SVI or NoiseAware.")
    if runner.budget.ledger is not None:
        raise ConfigurationError("make must give objects without a ledger: give it to tune, which charges all at once.")
    if runner.unit.max_rows > 1:
        raise ConfigurationError("tune is for rows as the unit of privacy; leave unit and max_rows_per_unit out.")
    if runner.budget.charged:
        raise ConfigurationError("make must give a new object for each run; this one has run already.")
    return runner


def _plan(runner: Runner, args: Tree, kwargs: Tree) -> PrivacyReport:
    """The cost of a run. SVI takes other steps of wide models, and knows one by its arguments. Looks at no data."""
    if isinstance(runner, SVI):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runner.init(keys.secret_key(), *args, **kwargs)
    return runner.privacy_plan()


def _zeros(runner: Runner, args: Tree, kwargs: Tree) -> dict[str, np.ndarray]:
    """Zeros in the shapes of one run's samples. Refuses the arguments that the run would refuse. Looks at no data."""
    if isinstance(runner, SVI):  # its plan has bound it
        split, count = runner.objective().split, _DRAWS
    elif isinstance(runner, MCMC):
        split = runner.calibrated_kernel().bind(args, kwargs).split
        count = runner.num_samples // runner.thinning * runner.num_chains
    else:
        bound, count = bind(runner, args, kwargs, keys.secret_key()), runner.num_samples
        run_charge(runner, runner.budget.account(), (split := bound.split).num_rows)
    sites = jax.eval_shape(split.constrain, split.latents, split.arguments.public)
    names = split.latents if isinstance(runner, SVI) else sites
    return {name: np.zeros((count, *sites[name].shape), sites[name].dtype) for name in names}


def _samples(runner: Any, key: jax.Array, args: Tree, kwargs: Tree) -> dict[str, Any]:
    """Samples of one run."""
    if isinstance(runner, SVI):
        result: Any = runner.run(key, None, *args, **kwargs)
        params = result.averaged_params(allow_unconverged=True)
        return dict(result.objective.sample(params, keys.stream(key, "samples"), _DRAWS, result.public))
    runner.run(key, *args, **kwargs)
    return runner.get_samples(allow_unconverged=True)
