"""The privacy report: what was spent, under which conditions, and what is not covered."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from dpppl import accounting
from dpppl.accounting.events import GaussianEvent
from dpppl.errors import ConfigurationError

RELATIONS = {
    "zero_out": "add or remove one row, N public (zero-out)",
    "add_or_remove_one": "add or remove one row",
    "replace_one": "replace one row",
}

SUPPLIED = "supplied by the user: assumed independent of the data"
_LATTICE = "floating-point lattice attacks on continuous noise"
NOT_COVERED = (
    "preprocessing and tuning that looked at the data before or between runs (standardisation, vocabularies, class "
    "counts, the choice of hyperparameters)",
    _LATTICE,
    "side channels (time, memory)",
    "predictions for, or scores of, private rows: Predictive or log_likelihood evaluated on them is a new release",
    "utility: clipping changes the likelihood, so inference targets a clipped pseudo-posterior",
)

_SHOWN_DELTAS = (1e-5, 1e-6, 1e-8)
_CHAIN_FIELDS = {
    "num_chains", "target_temperature", "temperatures", "step_sizes", "diffusion_time", "temperature_note",
    "row_curvature", "preconditioned", "failed_chains", "readable_curvature", "temperature",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PrivacyReport:
    """A privacy guarantee with its conditions. `str(report)` is the text; every number is computed from `events`.

    `events`: what was asked of the data. `delta`: the delta chosen, or None. `details`: what to say of a method
    without chains, in place of the lines on chains. The other fields describe the run.

    Guarantee: `epsilon_at(delta)` is an upper bound: the run is (epsilon, delta)-differentially private for one row
    under the stated relation, if the stated assumptions hold.
    """

    method: str
    events: tuple[GaussianEvent, ...]
    delta: float | None
    num_data: int | None
    neighboring_relation: str
    clipping: str
    clipping_norm: float
    subsampling: str
    sampling_rate: float
    num_steps: int
    key_origin: str
    status: str
    num_chains: int = 1
    target_temperature: float = math.nan
    temperatures: tuple[float, float] = (math.nan, math.nan)
    step_sizes: tuple[float, float] = (math.nan, math.nan)
    diffusion_time: float = 0.0
    temperature_note: str | None = None
    row_curvature: float | None = None
    preconditioned: bool = False
    assumed_public: tuple[str, ...] = ()
    initial_values: str = "prior median"
    batch_cap: int | None = None
    failed_chains: tuple[int, ...] = ()
    details: tuple[tuple[str, str], ...] | None = None
    more_assumptions: tuple[str, ...] = ()

    @cached_property
    def spent(self) -> accounting.PrivacySpent | None:
        """Epsilon at the chosen delta with the accountant that gave it; None where no delta was chosen."""
        return None if self.delta is None else self._spent(self.delta)

    def _spent(self, delta: float) -> accounting.PrivacySpent:
        accounting.accountants.check_delta(delta)
        if not self.events:
            return accounting.PrivacySpent(0.0, delta, "no access", True)
        return accounting.spent(self.events, delta)

    @property
    def epsilon(self) -> float | None:
        """Epsilon at the chosen delta; None where no delta was chosen."""
        return None if self.spent is None else self.spent.epsilon

    def epsilon_at(self, delta: float) -> float:
        """Epsilon at another delta in (0, 1)."""
        return self._spent(delta).epsilon

    def epsilon_for_group(self, group_size: int, delta: float | None = None) -> float:
        """Epsilon when the unit of privacy is `group_size` rows, at `delta` or the chosen one."""
        delta = self.delta if delta is None else delta
        if delta is None:
            raise ConfigurationError("give delta: none was chosen for this run.")
        return accounting.group_epsilon(self.events, delta, group_size) if self.events else 0.0

    @property
    def num_accesses(self) -> int:
        """Number of events the accountant composes: one a step, but one an epoch for a partition."""
        return sum(event.num_accesses for event in self.events)

    @property
    def noise_multipliers(self) -> tuple[float, float]:
        """Smallest and largest noise multiplier of an access, slack taken off."""
        values = [sigma for event in self.events for sigma, _ in event.noise_multipliers]
        return (min(values), max(values)) if values else (math.nan, math.nan)

    @property
    def failure_probability(self) -> float:
        """Total probability, over all accesses, that sampling was not exact."""
        return sum(event.failure_probability for event in self.events)

    @property
    def readable_curvature(self) -> float:
        """Posterior curvature below which the spread of the samples is not the posterior's: 100 / diffusion time."""
        return 100.0 / self.diffusion_time if self.diffusion_time > 0 else math.inf

    def assumptions(self) -> list[str]:
        """Every assumption behind the numbers, one sentence each."""
        lines = [
            "The unit of privacy is one row; rows are independent units (one person's several rows are a group).",
            "The number of rows is public: it decides array shapes, running time and the cap on a step's rows.",
            "Gaussian noise is treated as a real number; it is drawn in float64 from 53 random bits."
            if not self.is_discrete
            else "The noise is a discrete Gaussian, drawn and added in whole numbers; it needs unpredictable random bits only.",
            "The sensitivity is clipping_norm * 1.0001: the floating-point slack is accounted for in the noise.",
            f"Random keys: {self.key_origin}.",
            f"Starting values: {self.initial_values}.",
            "Hyperparameters, the model's code and arguments that are not arrays are public.",
            "What is composed was planned in advance: no run, query or setting was chosen by the results of others here.",
        ]
        if self.assumed_public:
            lines.append("Arrays that the model captured are assumed public: " + ", ".join(self.assumed_public) + ".")
        return lines + list(self.more_assumptions)

    def warnings(self) -> list[str]:
        """What a reader must not overlook."""
        lines = []
        if self.spent is not None and not self.spent.meaningful:
            lines.append("This epsilon is no meaningful guarantee.")
        if self.delta is not None and self.num_data is not None and self.delta >= 1.0 / self.num_data:
            lines.append(
                f"delta is not below 1 / num_data = {1 / self.num_data:.2g}: a mechanism may publish whole rows."
            )
        if self.row_curvature is not None and self.num_data is not None:
            bound = self.step_sizes[1] * self.num_data * self.row_curvature
            if not bound < 2.0:
                lines.append(
                    f"h * N * L = {bound:.3g} is not below 2, so the chain may be unstable: raise num_samples, which "
                    "makes the matched step smaller at no cost in privacy."
                )
        if self.failed_chains:
            lines.append(
                "Chains with values that are not finite: "
                + ", ".join(map(str, self.failed_chains))
                + ". They stay charged; lower the step size (raise num_samples) or change the prior."
            )
        return lines

    def temperature_line(self) -> str:
        """What is known about the temperature at which the chain samples."""
        low, high = self.temperatures
        if self.temperature_note is not None:
            return self.temperature_note
        line = f"{_range(low, high)} from the noise (target {self.target_temperature:g}): "
        rate = self.sampling_rate
        if rate == 1.0:
            return line + "exact but for discretisation, since every step sees every row"
        line += "a lower bound, minibatch noise adds to it; "
        if self.num_data is None:
            return line + "declare num_data to have the condition rate * N * (1 - rate) << noise_multiplier^2 checked"
        ratio = rate * self.num_data * (1.0 - rate) / self.noise_multipliers[0] ** 2
        verdict = "negligible" if ratio < 0.05 else "not shown to be negligible: raise the rate or the noise multiplier"
        return line + f"rate * N * (1 - rate) / noise_multiplier^2 = {ratio:.3g}, so that noise is {verdict}"

    @property
    def is_discrete(self) -> bool:
        """Whether all noise was discrete, so that floating point cannot betray it."""
        return bool(self.events) and all(event.discrete for event in self.events)

    def not_covered(self) -> list[str]:
        """What the guarantee does not speak of."""
        return [line for line in NOT_COVERED if not (line == _LATTICE and self.is_discrete)]

    def mixing_line(self) -> str:
        """Which posterior spreads the run was long enough to show."""
        space = "preconditioned" if self.preconditioned else "unconstrained"
        curvature = self.readable_curvature
        return (
            f"total diffusion time {self.diffusion_time:.3g} a chain; where the posterior's curvature is below "
            f"{curvature:.3g} (its sd above {curvature**-0.5:.3g}, {space}), the spread of the samples must not be "
            "read as the posterior's"
        )

    def rows(self) -> list[tuple[str, str]]:
        """The report as pairs of a name and a text."""
        if self.spent is None:
            headline = [
                (f"epsilon at delta {delta:g}", f"{self._spent(delta).epsilon:.4g} ({self._spent(delta).accountant})")
                for delta in _SHOWN_DELTAS
            ]
        else:
            headline = [
                ("epsilon", f"{self.spent.epsilon:.4g}"),
                ("delta", f"{self.spent.delta:g}"),
                ("accountant", self.spent.accountant),
            ]
        cap = "" if self.batch_cap is None else f"; cap {self.batch_cap} rows"
        return [
            ("method", f"{self.method}, {self.status}"),
            *headline,
            ("neighbouring data sets", RELATIONS[self.neighboring_relation]),
            ("unit of privacy", "one row"),
            ("subsampling", self.subsampling + cap),
            ("sampling failure", f"{self.failure_probability:.2g} in total, charged to delta"),
            ("clipping", self.clipping),
            ("noise multiplier", _range(*self.noise_multipliers)),
            *(self.chain_rows() if self.details is None else self.details),
        ]

    def chain_rows(self) -> list[tuple[str, str]]:
        """What there is to say of chains."""
        return [
            ("steps", f"{self.num_steps} (all chains, warmup and thinned steps included), each an access of the data"),
            ("chains", str(self.num_chains)),
            ("step size", _range(*self.step_sizes)),
            ("temperature", self.temperature_line()),
            ("mixing budget", self.mixing_line()),
        ]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows())
        lines = ["Privacy report", *(f"  {name:<{width}}  {text}" for name, text in self.rows())]
        for title, sentences in (
            ("Warnings", self.warnings()),
            ("Assumptions", self.assumptions()),
            ("Not covered", self.not_covered()),
        ):
            if sentences:
                lines += [title, *(f"  - {sentence}" for sentence in sentences)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Every field and every number, as plain JSON values."""
        described: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        described["events"] = [{f.name: getattr(event, f.name) for f in fields(event)} for event in self.events]
        spent = self.spent
        described |= {  # the derived numbers
            "epsilon": None if spent is None else spent.epsilon,
            "accountant": None if spent is None else spent.accountant,
            "epsilon_at": {f"{delta:g}": self.epsilon_at(delta) for delta in _SHOWN_DELTAS},
            "unit": "one row",
            "num_accesses": self.num_accesses,
            "noise_multipliers": self.noise_multipliers,
            "failure_probability": self.failure_probability,
            "readable_curvature": self.readable_curvature,
            "temperature": self.temperature_line(),
            "warnings": self.warnings(),
            "assumptions": self.assumptions(),
            "not_covered": self.not_covered(),
        }
        if self.details is not None:
            described |= {"details": dict(self.details)}
            described = {name: value for name, value in described.items() if name not in _CHAIN_FIELDS}
        return described

    def to_json(self) -> str:
        """`to_dict` as JSON text; numbers that are not finite become strings."""
        return json.dumps(_plain(self.to_dict()), indent=2, allow_nan=False)


def _plain(value):
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _range(low: float, high: float) -> str:
    return f"{low:.6g}" if math.isclose(low, high, rel_tol=1e-5) else f"{low:.4g} to {high:.4g}"


def and_also(earlier: str | None, now: str) -> str:
    """The facts of several runs, each said once."""
    return now if earlier is None or earlier == now else earlier if now in earlier else f"{earlier}, and {now}"
