"""The privacy report: what was spent, under which conditions, and what is not covered."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Protocol

from dpppl import accounting
from dpppl.access.mechanism import Mechanism
from dpppl.accounting.events import GaussianEvent
from dpppl.accounting.unit import ROW, Unit
from dpppl.errors import ConfigurationError
from dpppl.ledger.book import Events
from dpppl.ledger.report import CombinedRisk
from dpppl.report import render, risk
from dpppl.report.provenance import KeySource, Provenance, Status
from dpppl.report.version import VERSION
from dpppl.validation import checked

_LATTICE = "floating-point lattice attacks on continuous noise"
_CLIPPED = "utility: clipping changes the likelihood, so inference targets a clipped pseudo-posterior"
_CENTRED = "utility: centred clipping leaves estimates unbiased for data that the model describes; others move them"
ASSUMED_PUBLIC = "What the model captured, and its arguments that are not private, are assumed public: "
NOT_COVERED = (
    "preprocessing and tuning that looked at the data before or between runs (standardisation, vocabularies, class "
    "counts, the choice of hyperparameters)",
    _LATTICE,
    "side channels (time, memory)",
    "predictions for, or scores of, private rows: Predictive or log_likelihood evaluated on them is a new release",
    _CLIPPED,
)

SHOWN_DELTAS = (1e-5, 1e-6, 1e-8)
_MOST_NAMES = 20


class Details(Protocol):
    """A method's part of the report: a frozen dataclass with these."""

    def rows(self) -> list[tuple[str, str]]:
        """Lines of the report: pairs of a name and a text."""

    def warnings(self) -> list[str]:
        """Warnings that a reader must not overlook."""

    def assumptions(self) -> list[str]:
        """Assumptions behind the numbers that are this method's own."""


@dataclass(frozen=True, kw_only=True)
class MechanismFacts:
    """The mechanism, in words and numbers.

    - **clipping** - the rule, in words.
    - **clipping_norm** - its norm.
    - **subsampling** - the scheme, in words.
    - **sampling_rate** - the expected share of rows in a step.
    - **neighboring_relation** - the relation that it is accounted under.
    - **batch_cap** - the cap on a step's rows, where there is one."""

    clipping: str
    clipping_norm: float
    subsampling: str
    sampling_rate: float
    neighboring_relation: str
    batch_cap: int | None = None

    @classmethod
    def of(cls, mechanism: Mechanism, num_rows: int | None = None) -> "MechanismFacts":
        """Facts of a mechanism, with a declared or visible number of rows."""
        subsampling = mechanism.subsampling
        return cls(
            clipping=mechanism.clipping.describe(), clipping_norm=mechanism.clipping.clipping_norm,
            subsampling=subsampling.describe(), sampling_rate=subsampling.rate,
            neighboring_relation=mechanism.neighboring_relation,
            batch_cap=None if num_rows is None else subsampling.batch_cap(num_rows),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PrivacyReport:
    """A privacy guarantee with its conditions. `str(report)` is the text; every number is computed from `events`.

    - **method** - name of the method.
    - **events** - what was asked of the data, GaussianEvents (or a SelectionEvent).
    - **delta** - the delta chosen, or None.
    - **mechanism** - clipping, subsampling and relation.
    - **provenance** - origins of keys and starting values, and how far the run got.
    - **details** - what the method adds.
    - **num_data** - the declared number of rows.
    - **num_rows** - number of rows of the arrays that ran.
    - **variables**, **latents** - the private arguments with their numbers of a row, and the model's latents with their elements.
    - **laws** - of the model's responses and latents, in words.
    - **assumed_public** - what the model captured, and its arguments that are not private, by name and type.
    - **ledger** - the ledger's own words, where there is one.
    - **left_out** - what was run and is not in the numbers, said first.
    - **unit** - what a unit of privacy is.
    - **placement** - where the rows lay, in words, if not on one device.
    - **name** - of the analysis.
    - **combined_risk** - what all runs of the ledger let an attacker know.

    Guarantee: `epsilon_at(delta)` is an upper bound: the run is (epsilon, delta)-differentially private for one unit of privacy
    (`unit`) under the stated relation, if the stated assumptions hold."""

    method: str
    events: Events
    delta: float | None
    mechanism: MechanismFacts
    provenance: Provenance
    details: Details
    num_data: int | None = None
    num_rows: int | None = None
    variables: tuple[str, ...] = ()
    latents: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    assumed_public: tuple[str, ...] = ()
    ledger: str | None = None
    left_out: tuple[str, ...] = ()
    unit: Unit = ROW
    placement: str | None = None
    name: str | None = None
    combined_risk: CombinedRisk | None = None

    @property
    def status(self) -> Status:
        """How far the run got."""
        return self.provenance.status

    @cached_property
    def spent(self) -> accounting.PrivacySpent | None:
        """Epsilon at the chosen delta with the accountant that gave it; None where no delta was chosen."""
        return None if self.delta is None else self._spent(self.delta)

    def _spent(self, delta: float) -> accounting.PrivacySpent:
        accounting.privacy_spent.check_delta(delta)
        if not self.events:
            return accounting.PrivacySpent(0.0, delta, "no access", True)
        return accounting.spent(self.events, delta, group_size=self.unit.group_size)

    @property
    def epsilon(self) -> float | None:
        """Epsilon at the chosen delta; None where no delta was chosen."""
        return None if self.spent is None else self.spent.epsilon

    @checked
    def epsilon_at(self, delta: float) -> float:
        """Epsilon at another delta in (0, 1)."""
        return self._spent(delta).epsilon

    @checked
    def epsilon_for_group(self, group_size: int, delta: float | None = None) -> float:
        """Epsilon for `group_size` rows of one person, at `delta` or the chosen one; of units, in a run with ids."""
        delta = self.delta if delta is None else delta
        if delta is None:
            raise ConfigurationError("give delta: none was chosen for this run.")
        return accounting.group_epsilon(self.events, delta, group_size) if self.events else 0.0

    @property
    def risk(self) -> accounting.TradeOff:
        """Limits on attacks: error rates, advantage, mu."""
        return risk.trade_off(self.events, self.unit.group_size)

    @property
    def headline(self) -> str:
        """The meaning of the guarantee for one person, in a sentence."""
        sentence = risk.headline(self.risk.advantage, self.mechanism.neighboring_relation, self.unit.max_rows)
        if self.status is Status.PLANNED:
            sentence = f"If it runs as planned: {sentence[0].lower()}{sentence[1:]}"
        guessable = any(key.source is KeySource.SEED for key in self.provenance.keys)
        return sentence + " This holds only against those who cannot guess the random key." * guessable

    @property
    def num_accesses(self) -> int:
        """Number of events the accountant composes: one a step, but one an epoch for a partition."""
        return sum(event.num_accesses for event in self.events)

    @property
    def noise_multipliers(self) -> tuple[float, float]:
        """Smallest and largest noise multiplier of an access, slack taken off."""
        return noise_range(self.events)

    @property
    def failure_probability(self) -> float:
        """Total probability, over all accesses, that sampling was not exact."""
        return sum(event.failure_probability for event in self.events)

    @property
    def is_discrete(self) -> bool:
        """Whether all noise was discrete, so that floating point cannot betray it."""
        return bool(self.events) and all(event.discrete for event in self.events)

    def assumptions(self) -> list[str]:
        """Every assumption behind the numbers, one sentence each."""
        lines = [
            *self.unit.assumptions(),
            "Gaussian noise is treated as a real number; it is drawn in float64, two numbers from 128 random bits."
            if not self.is_discrete
            else "The noise is a discrete Gaussian, drawn and added in whole numbers; it needs unpredictable random bits only.",
            "The sensitivity is clipping_norm * 1.0001: the floating-point slack is accounted for in the noise.",
            "A row whose gradient is not finite (a missing value, say) adds nothing to a step.",
            f"Random keys: {self.provenance.key_origin}.",
            f"Starting values: {self.provenance.initial_values}.",
            "Hyperparameters, the model's code and arguments that are not arrays are public.",
            "What is composed was planned in advance: no run, query or noise multiplier was chosen by the results of others "
            "here; norms and step sizes may follow from what was released.",
            self.ledger
            or "Nothing else looks at these data: what other objects and other days spend adds to this, and no ledger "
            "counts it (dpppl.PrivacyLedger).",
        ]
        if self.placement:
            lines.append(f"{self.placement[0].upper()}{self.placement[1:]}.")
        if self.assumed_public:
            lines.append(ASSUMED_PUBLIC + ", ".join(self.assumed_public) + ".")
        return lines + self.details.assumptions()

    def warnings(self) -> list[str]:
        """Warnings that a reader must not overlook."""
        lines = list(self.left_out)
        if self.spent is not None and not self.spent.meaningful:
            lines.append("This epsilon is not a meaningful guarantee.")
        if warning := self.delta_warning():
            lines.append(warning)
        return lines + self.details.warnings()

    @property
    def num_units(self) -> int | None:
        """The declared number of rows (of units), or that of the arrays that ran."""
        return self.num_rows if self.num_data is None else self.num_data

    def delta_warning(self) -> str | None:
        """A warning about a delta that is not below 1 / number of rows, or None."""
        rows = self.num_units
        if self.delta is None or rows is None or self.delta < 1.0 / rows:
            return None
        return f"delta is not below 1 / number of rows = {1 / rows:.2g}: a mechanism may publish whole rows."

    def not_covered(self) -> list[str]:
        """Limits of the guarantee."""
        clipping = self.mechanism.clipping
        dropped = [_LATTICE] * self.is_discrete + [_CLIPPED] * clipping.startswith("none")
        lines = [line for line in NOT_COVERED if line not in dropped]
        return [_CENTRED if line == _CLIPPED and clipping.startswith("centred") else line for line in lines]

    def rows(self) -> list[tuple[str, str]]:
        """The report as pairs of a name and a text."""
        if self.spent is None:
            headline = [
                (f"epsilon at delta {delta:g}", f"{self._spent(delta).epsilon:.4g} ({self._spent(delta).accountant})")
                for delta in SHOWN_DELTAS
            ]
        else:
            headline = [
                ("epsilon", f"{self.spent.epsilon:.4g}"),
                ("delta", f"{self.spent.delta:g}"),
                ("accountant", self.spent.accountant),
            ]
        cap = "" if self.mechanism.batch_cap is None else f"; cap {self.mechanism.batch_cap} rows"
        return [
            *([] if self.name is None else [("name", self.name)]),
            ("method", f"{self.method}, {self.status}"),
            *self._of_data(),
            *headline,
            *risk.risk_rows(self.risk),
            *([] if self.combined_risk is None else [("all runs of the ledger", str(self.combined_risk))]),
            ("neighbouring data sets", self.unit.relation(self.mechanism.neighboring_relation)),
            ("unit of privacy", self.unit.describe()),
            ("trust", "whoever runs this sees the data (central); all others see what is released"),
            ("subsampling", self.mechanism.subsampling + cap),
            ("sampling failure", f"{self.failure_probability:.2g} in total, charged to delta"),
            ("clipping", self.mechanism.clipping),
            ("noise multiplier", show_range(*self.noise_multipliers)),
            *self.details.rows(),
        ]

    def _of_data(self) -> list[tuple[str, str]]:
        """Lines on the data and the model."""
        named = [
            ("variables", self.variables),
            ("latents of the model", self.latents),
            ("laws of the model", self.laws),
        ]
        lines = [(name, _listed(values)) for name, values in named if values]
        return lines if self.num_units is None else [("records", f"{self.num_units:,}; this number is public"), *lines]

    def sections(self) -> list[tuple[str, list[str]]]:
        """Titles and sentences below the rows."""
        found = self.warnings(), self.assumptions(), self.not_covered()
        titled = zip(("Warnings", "Assumptions", "Not covered"), found)
        return [(title, sentences) for title, sentences in titled if sentences]

    def __str__(self) -> str:
        return render.text(self.headline, self.rows(), self.sections())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return render.summary(self.headline, self.rows(), self.sections())

    @checked
    def to_dict(self, about: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Every field and every number, as plain JSON values; docs/report-schema.json describes them.

        - **about** - what only people know, by the names in `dpppl.report.render.ABOUT`. Numbers that are not finite are strings.
        """
        spent = self.spent
        document = asdict(self) | {
            "schema_version": render.SCHEMA_VERSION,
            "headline": self.headline,
            "about": render.about_of(about),
            "versions": {"dpppl": VERSION} | {name: version(name) for name in ("dp-accounting", "numpyro", "jax")},
            "provenance": {
                "status": self.status,
                "key_origin": self.provenance.key_origin,
                "initial_values": self.provenance.initial_values,
            },
            "epsilon": None if spent is None else spent.epsilon,
            "accountant": None if spent is None else spent.accountant,
            "epsilon_at": {f"{delta:g}": self.epsilon_at(delta) for delta in SHOWN_DELTAS},
            "unit": self.unit.describe(),
            "num_accesses": self.num_accesses,
            "noise_multipliers": self.noise_multipliers,
            "failure_probability": self.failure_probability,
            "risk": risk.risk_numbers(self.risk),
            "comparisons": risk.comparisons(
                self.events, SHOWN_DELTAS[1] if self.delta is None else self.delta, self.unit.group_size, self.unit.noun
            ),
            "rows": self.rows(),
            "warnings": self.warnings(),
            "assumptions": self.assumptions(),
            "not_covered": self.not_covered(),
        }
        return render.json_value(document)

    @checked
    def to_json(self, about: Mapping[str, str] | None = None) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(about), indent=2, allow_nan=False)


def _listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = [f"and {len(names) - _MOST_NAMES:,} more"] * (len(names) > _MOST_NAMES)
    return ", ".join([*names[:_MOST_NAMES], *more])


def noise_range(events: tuple[GaussianEvent, ...]) -> tuple[float, float]:
    """Smallest and largest noise multiplier of the events; NaN where there is none."""
    values = [sigma for event in events for sigma, _ in event.noise_multipliers]
    return (min(values), max(values)) if values else (math.nan, math.nan)


def show_range(low: float, high: float) -> str:
    """Two numbers, or one where they are the same."""
    return f"{low:.6g}" if math.isclose(low, high, rel_tol=1e-5) else f"{low:.4g} to {high:.4g}"
