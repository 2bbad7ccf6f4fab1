"""Plans a budget before any data are touched: noise, steps, learning, widths of intervals, memory and time.

One direction of the latents is followed. A row's log likelihood has curvature `row_curvature` along it, so the data have
L = num_data * row_curvature. T accesses of noise multiplier s at rate q, clipping norm C, tell the gradient along it with
variance (C / m)^2, m = q sqrt(T) / s (mu itself on full batches). So

    where the likelihood's mode lies is known with variance 1 / L + (C / (m L))^2: *learned* above L = (C / m)^2;
    a chain whose Langevin noise is the privacy noise runs for a time of 2 (m / C)^2: *explored* above L = 50 (C / m)^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpppl.accounting import calibration, looks, privacy_spent
from dpppl.accounting.events import GaussianEvent
from dpppl.errors import ConfigurationError
from dpppl.output import aligned
from dpppl.validation import a, checked, positive, positive_integer

CHARGED = 1.00011
"""A run charges a little more than its noise multiplier says, for floating-point sums: planned noise is larger by this."""
FRICTION = {"DPSGHMC": 0.1, "DPSGNHT": 0.1}
MOST_LATENTS, LEAST_SIGNAL = 10_000, 5.0
"""Of NoiseAware: the most coordinates, and the least rows in units of the noise of all its releases together."""
READ = 0.14
"""The most noise, in square roots of the number of rows, of runs whose verdict can be "read"; see `least_read`."""
_EXPLORED, Z90 = 50.0, 1.6448536269514722


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to spend the budget.

    - **method**, **rate**, **num_steps** - which, the sampling rate of an access, and accesses in all.
    - **noise_multiplier**, **epsilon** - of an access, and of all, at the plan's delta.
    - **step_size**, **diffusion_time** - of chains, None for others.
    - **learned_above**, **explored_above** - curvatures of one row from which a direction is learned, and by a chain explored.
    - **interval** - width of a 90 % interval that counts the noise of the run, along the direction planned for.
    - **coverage** - of the 90 % intervals that the method itself reports; None where a chain is too short to report one.
    - **row_gradients**, **seconds** - gradients of single rows in all, and the time that they take.
    - **call** - Python that runs it on `model` and `data`, a tuple of arguments."""

    method: str
    rate: float
    num_steps: int
    noise_multiplier: float
    epsilon: float
    step_size: float | None
    diffusion_time: float | None
    learned_above: float
    explored_above: float | None
    interval: float
    coverage: float | None
    row_gradients: float
    seconds: float
    call: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The result of `plan`. `str(plan)` is a table; `dpppl.contrib.plotting.plan_picture(plan)` draws it.

    - **num_data**, **target_delta**, **row_curvature**, **clipping_norm**, **prior_sd** - what it is for.
    - **interval_without_privacy** - the width that a 90 % interval would have without noise.
    - **options** - all that were considered, narrowest honest interval first.
    - **recommended**, **reason** - one of them, or None where none can work, and why.
    - **warnings** - what is wrong with the budget itself.
    - **least_epsilon**, **least_num_data** - from which on runs of NoiseAware are read, as a rule, all else being the same.

    >>> isinstance(plan(num_data=1_000, target_epsilon=1.0, target_delta=1e-6, rates=(1.0,)), Plan)
    True
    """

    num_data: int
    target_delta: float
    row_curvature: float
    clipping_norm: float
    prior_sd: float
    interval_without_privacy: float
    options: tuple[Option, ...]
    recommended: Option | None
    reason: str
    warnings: tuple[str, ...] = ()
    least_epsilon: float = math.nan
    least_num_data: float = math.nan

    @checked
    def width_at(self, row_curvature: float, option: Option | None = None) -> float:
        """Width of an honest 90 % interval along a direction of another curvature a row; None: without privacy."""
        if not isinstance(option, Option | None):
            raise ConfigurationError(
                f"option is {a(type(option).__name__)}; give one of plan.options, as plan.options[0]."
            )
        noise = 0.0 if option is None else option.learned_above * self.num_data
        return _width(self.num_data * row_curvature, self.prior_sd, noise)

    @property
    def read_from(self) -> str:
        """The least epsilon and the fewest rows, in words."""
        rows = f"{float(f'{self.least_num_data:.2g}'):,.0f}"
        epsilon = f"{self.least_epsilon:.2g}"
        return (
            f"where the model is right a run is read from epsilon {epsilon} on, or at this budget from {rows} rows on"
        )

    def __str__(self) -> str:
        number, options = (lambda value: "" if value is None else f"{value:.3g}"), self.options
        columns = [
            ["method", *(o.method + " *" * (o is self.recommended) for o in options)],
            ["rate", *(f"{o.rate:g}" for o in options)],
            ["steps", *(str(o.num_steps) for o in options)],
            ["noise/norm", *(number(o.noise_multiplier) for o in options)],
            ["step size", *(number(o.step_size) for o in options)],
            ["diffusion time", *(number(o.diffusion_time) for o in options)],
            ["learned above", *(number(o.learned_above) for o in options)],
            ["explored above", *(number(o.explored_above) for o in options)],
            ["90 % width", *(number(o.interval) for o in options)],
            ["covers", *("too short" if o.coverage is None else f"{100 * o.coverage:.0f} %" for o in options)],
            ["seconds", *(number(o.seconds) for o in options)],
        ]
        lines = aligned([*zip(*columns)])
        return "\n".join([
            f"{self.num_data:,} rows, delta {self.target_delta:g}, clipping norm {self.clipping_norm:.3g}; one direction of "
            f"curvature {self.row_curvature:g} a row, prior sd {self.prior_sd:g}: 90 % width "
            f"{self.interval_without_privacy:.3g} without privacy",
            *lines,
            "rate: share of the rows of a step; noise/norm: sd of the noise in clipping norms; diffusion time: in 1 / curvature; "
            "learned above: curvature of a row from which on noise is below the sampling of the data; explored above: that from "
            "which on a chain shows spreads; covers: what 90 % intervals do; seconds: of gradients alone (compiling: 5 to 60).",
            f"NoiseAware: {self.read_from}.",
            *(f"Warning: {line}" for line in self.warnings),
            self.reason,
            *([] if self.recommended is None else [self.recommended.call]),
        ])  # fmt: skip


@checked
def plan(
    *, num_data: int, target_delta: float, target_epsilon: float | None = None, target_advantage: float | None = None,
    num_latents: int = 10, row_curvature: float = 0.2, prior_sd: float = 1.0, clipping_norm: float | None = None,
    rates: Sequence[float] = (1.0, 0.1, 0.01), num_steps: Sequence[int] = (400, 2000), simulates: bool = True,
    rows_per_second: float = 1e6,
) -> Plan:  # fmt: skip
    """Compare the methods at a budget, and name the one to take. Looks at no data.

    - **num_data** - rows, or persons where the unit is a person.
    - **target_delta**, and **target_epsilon** or **target_advantage** - the budget of one run.
    - **num_latents** - coordinates of all latents that the likelihood depends on.
    - **prior_sd** - prior standard deviation of the latents.
    - **row_curvature** - curvature of one row's log likelihood along the direction to plan for: 1 / variance for a normal
      mean, about .2 times the squared covariate for a logistic weight.
    - **clipping_norm** - of a row's gradient; by default the .9 quantile of its norm if it is normal with as much curvature along
      each latent, which is what "auto" looks for.
    - **rates**, **num_steps** - of the chains and of SVI that are considered. NoiseAware sets its own.
    - **simulates** - whether the model's responses can be simulated, which NoiseAware needs: no `factor` in the data plate.
    - **rows_per_second** - gradients of single rows that your machine computes a second, for `Option.seconds`.

    Guarantee: each option, run by its `call`, costs at most the target epsilon. A call for a target advantage asks for the
    epsilon of steps that have it: at a rate of 1 the run meets the advantage. Below, accesses of all rows besides the steps have
    another advantage at that epsilon, and that of runs was up to 1.2 % of the target above it: `report.risk` has a run's.
    Widths and coverages are the theory of this module, for rows that the model describes and a likelihood that is quadratic: a
    forecast, not a promise.
    Raises ConfigurationError for numbers out of range.

    >>> found = plan(num_data=20_000, target_epsilon=1.0, target_delta=1e-5, rates=(1.0,))
    >>> found.recommended.method, round(found.recommended.interval / found.interval_without_privacy, 2)
    ('NoiseAware', 1.04)
    >>> print(found.recommended.call)
    inference = dpppl.NoiseAware(model, target_epsilon=1, target_delta=1e-05)
    inference.run(dpppl.secret_key(), *data)
    """
    privacy_spent.check_delta(target_delta)
    if (target_epsilon is None) == (target_advantage is None):
        raise ConfigurationError("give target_epsilon or target_advantage, not both.")
    given = {"num_data": num_data, "num_latents": num_latents, "row_curvature": row_curvature, "prior_sd": prior_sd}
    given |= {"rows_per_second": rows_per_second, "clipping_norm": 1.0 if clipping_norm is None else clipping_norm}
    for n in num_steps:
        positive_integer(n, name="num_steps")
    for rate in rates:
        if not 1e-12 <= positive(rate, name="rates") <= 1:
            raise ConfigurationError("rates must be sampling rates from 1e-12 to 1, such as (1.0, 0.1).")
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise ConfigurationError(f"{name} must be positive and finite, got {value!r}.")
    if clipping_norm is None:
        from scipy.stats import chi2

        clipping_norm = math.sqrt(row_curvature * float(chi2.ppf(0.9, num_latents)))
    norm = float(clipping_norm)
    problem = _Problem(num_data, target_delta, row_curvature, prior_sd, norm, rows_per_second)
    options = []
    whole = _priced(target_epsilon, target_advantage, target_delta, 1.0, 1)
    if num_latents <= MOST_LATENTS and simulates and num_data >= LEAST_SIGNAL * whole[0]:
        options.append(problem.noise_aware(*whole, num_latents))
    for rate in rates:
        for count in num_steps:
            noise, epsilon = _priced(target_epsilon, target_advantage, target_delta, rate, count)
            options += problem.by_steps(rate, int(count), noise, epsilon)
    options.sort(key=lambda option: (option.interval, option.method != "NoiseAware", option.row_gradients))
    least_epsilon, least_num_data = least_read(num_data, whole[0], target_delta)
    recommended, reason = _recommend(options, problem, whole[0], num_latents, simulates)
    warnings = []
    if target_delta >= 1 / num_data:
        warnings.append(
            f"delta is not below 1 / number of rows = {1 / num_data:.2g}: a mechanism may publish whole rows."
        )
    if whole[1] > privacy_spent.LARGEST_MEANINGFUL_EPSILON:
        warnings.append("an epsilon above 100 is not a meaningful guarantee.")
    return Plan(
        num_data=num_data, target_delta=target_delta, row_curvature=row_curvature, clipping_norm=norm, prior_sd=prior_sd,
        interval_without_privacy=problem.width(math.inf), options=tuple(options), recommended=recommended, reason=reason,
        warnings=tuple(warnings), least_epsilon=least_epsilon, least_num_data=least_num_data,
    )  # fmt: skip


def least_read(num_data: float, noise_multiplier: float, delta: float) -> tuple[float, float]:
    """Epsilon from which on runs of NoiseAware with these rows are read, and the rows from which on those with this noise are.

    Below, the verdict is "read with care": noise hides the ranks of responses, which check the model. Logistic regressions of 3
    and 10 coefficients, with 1,000 to 16,000 rows at epsilon .1 to 2, were read up to .134, and with care from .15 on."""
    event = GaussianEvent(noise_multipliers=((READ * math.sqrt(num_data), 1),))
    return privacy_spent.epsilon(event, delta), (noise_multiplier / READ) ** 2


@dataclass(frozen=True)
class _Problem:
    num_data: int
    delta: float
    row_curvature: float
    prior_sd: float
    norm: float
    rows_per_second: float

    def width(self, information: float) -> float:
        """Width of an honest 90 % interval; `information` is m."""
        noise = (self.norm / information) ** 2
        return _width(self.num_data * self.row_curvature, self.prior_sd, noise)

    def _option(self, method: str, information: float, rate: float, count: int, **fields: object) -> Option:
        rows = rate * count * self.num_data
        learned = (self.norm / information) ** 2 / self.num_data
        explored = _EXPLORED * learned if method.startswith("DPSG") else None
        return Option(
            method=method, rate=rate, num_steps=count, learned_above=learned, explored_above=explored,
            interval=self.width(information), row_gradients=rows, seconds=rows / self.rows_per_second, **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    def noise_aware(self, noise: float, epsilon: float, num_latents: int) -> Option:
        squared_norm = self.norm**2 / self.row_curvature
        added = looks.added_variance(num_latents, self.num_data, noise, squared_norm)
        information = self.norm / math.sqrt(added * self.num_data * self.row_curvature)
        call = f"inference = dpppl.NoiseAware(model, {self._target(epsilon)})\ninference.run(dpppl.secret_key(), *data)"
        return self._option(
            "NoiseAware", information, 1.0, looks.ACCESSES, noise_multiplier=noise,
            epsilon=epsilon, step_size=None, diffusion_time=None, coverage=0.9, call=call,
        )  # fmt: skip

    def by_steps(self, rate: float, count: int, noise: float, epsilon: float) -> list[Option]:
        """The three chains, and SVI."""
        information = rate * math.sqrt(count) / noise
        honest, said = self.width(information), self.width(math.inf)
        time = 2 * (information / self.norm) ** 2
        unit = time / (2 * count)  # of the overdamped step, without its factor 2
        steps = {
            "DPSGLD": 2 * unit,
            "DPSGHMC": 2 * FRICTION["DPSGHMC"] * unit,
            "DPSGNHT": math.sqrt(2 * FRICTION["DPSGNHT"] * unit),
        }
        is_explored = self.row_curvature * self.num_data * time >= 2 * _EXPLORED
        sampling = "" if rate == 1 else f", subsampling=dpppl.Poisson({rate:g})"
        common = {"noise_multiplier": noise, "epsilon": epsilon}
        found = [
            self._option(
                method, information, rate, count, step_size=step, diffusion_time=time,
                coverage=0.9 if is_explored else None, call=self._chain(method, sampling, count, epsilon), **common,
            )
            for method, step in steps.items()
        ]  # fmt: skip
        call = (
            f"inference = dpppl.SVI(model, numpyro.infer.autoguide.AutoNormal(model){sampling}, {self._target(epsilon)})\n"
            f"result = inference.run(dpppl.secret_key(), {count}, *data)"
        )
        coverage = math.erf(Z90 * said / honest / math.sqrt(2))
        svi = self._option(
            "SVI", information, rate, count, step_size=None, diffusion_time=None, coverage=coverage, call=call, **common
        )
        return [*found, svi]

    def _chain(self, method: str, sampling: str, count: int, epsilon: float) -> str:
        warmup = count // 2
        return (
            f"inference = dpppl.MCMC(dpppl.{method}(model{sampling}), num_warmup={warmup}, num_samples={count - warmup}, "
            f"{self._target(epsilon)})\ninference.run(dpppl.secret_key(), *data)"
        )

    def _target(self, epsilon: float) -> str:
        return f"target_epsilon={epsilon:.10g}, target_delta={self.delta:g}"


def _width(curvature: float, prior_sd: float, noise: float) -> float:
    """Width of a 90 % interval, where data of this curvature tell the gradient with noise of this variance."""
    return 2 * Z90 / math.sqrt(prior_sd**-2 + 1 / (1 / curvature + noise / curvature**2))


def _priced(
    target_epsilon: float | None, target_advantage: float | None, delta: float, rate: float, count: int
) -> tuple[float, float]:
    """The noise multiplier of so many accesses, and the epsilon to ask a run for."""

    def event(sigma: float) -> GaussianEvent:
        return GaussianEvent(noise_multipliers=((sigma / CHARGED, count),), sampling_rate=rate)

    if target_epsilon is not None:
        return calibration.calibrate_noise_multiplier(event, target_epsilon, delta), float(target_epsilon)
    assert target_advantage is not None
    noise = calibration.calibrate_advantage(event, target_advantage)
    return noise, privacy_spent.epsilon(event(noise), delta)


def _recommend(
    options: Sequence[Option], problem: _Problem, scale: float, num_latents: int, simulates: bool
) -> tuple[Option | None, str]:
    """`scale`: 1 / mu of one access of all rows."""
    rows = problem.num_data
    if rows < LEAST_SIGNAL * scale:
        return None, (
            f"No method can work: the noise is as large as what {scale:,.0f} rows say when all agree, and {rows:,} are there. "
            f"Ask for a larger epsilon (mu of {LEAST_SIGNAL / rows:.2g}, this is {1 / scale:.2g}), or for more rows."
        )
    without = problem.width(math.inf)
    first = next((option for option in options if option.method == "NoiseAware"), None)
    if first is not None:
        near_prior = first.interval > 0.7 * 2 * Z90 * problem.prior_sd
        wider = f"intervals will be {first.interval / without:.2f} times as wide as without privacy"
        learns = "this direction will stay near the prior" if near_prior else wider
        why = "its intervals count the privacy noise at every epsilon, with no steps to set"
        return first, f"Take NoiseAware: {why}; {learns}."
    why = (
        f"{num_latents:,} latents are more than NoiseAware's {MOST_LATENTS:,}"
        if num_latents > MOST_LATENTS
        else "NoiseAware needs responses that can be simulated"
    )
    chains = [option for option in options if option.method.startswith("DPSG") and option.coverage is not None]
    if chains:
        best = min(chains, key=lambda option: (option.interval, option.row_gradients, option.method != "DPSGLD"))
        return best, f"Take {best.method}: {why}, and a chain explores this direction."
    best = min((o for o in options if o.method == "SVI"), key=lambda o: (round(o.interval, 6), o.row_gradients))
    return best, (
        f"Take SVI: {why}, and no chain explores this direction. Read its means: of its 90 % intervals "
        f"{100 * (best.coverage or 0):.0f} % will hold."
    )
