"""The arguments of `dpppl.NoiseAware`, checked; its budget, and what its runs have left."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dpppl.accounting.planning import LEAST_SIGNAL
from dpppl.errors import ConfigurationError
from dpppl.model.arguments import name_of
from dpppl.model.responses import NUM_DRAWS
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.report.provenance import Start, Status
from dpppl.report.report import MechanismFacts
from dpppl.row_statistics.coordinates import Coordinates
from dpppl.row_statistics.plan import ReleasePlan, plan_of
from dpppl.row_statistics.releases import MECHANISM, Released
from dpppl.row_statistics.weights import Weights
from dpppl.runs.budget import Account, Charge
from dpppl.runs.private_runner import PrivateRunner, ReportFacts
from dpppl.types import Function, Tree
from dpppl.validation import Fixed, checked_call, optional, positive, positive_integer

CLIPPING = "centred on what the model expects of a row; every release in units of its bound, so at most 1 a row"
WIDTHS = ("model", "sandwich")


@dataclass(frozen=True, kw_only=True)
class NoiseAwareDetails:
    """The report's lines about a noise-aware run.

    - **num_accesses** - of one run.
    - **verdict** - of the last run, by its end."""

    num_accesses: int
    verdict: NoiseAwareVerdict | None = None

    def rows(self) -> list[tuple[str, str]]:
        kinds = "looks at scores and curvatures, histograms where bounds are not given, and scalars"
        of_run = [] if self.verdict is None else self.verdict.rows()
        return [("accesses", f"{self.num_accesses} a run: {kinds}; all charged"), *of_run]

    def warnings(self) -> list[str]:
        if self.verdict is None:
            return []
        return [*(f"Do not read the samples: {line}" for line in self.verdict.refusals), *self.verdict.doubts]

    def assumptions(self) -> list[str]:
        return [
            "The posterior is for data that the model describes; its clipping is centred on the model's own responses.",
            "Bounds were found from private histograms, or given; the verdict counts, with noise, the rows that say nothing.",
        ]


class NoiseAwareSettings(Fixed, PrivateRunner):
    """The arguments of `dpppl.NoiseAware`, checked, and what changes: what the last run has released and found."""

    _first_start = Start.PRIOR_MEAN
    _NO_ARGUMENT: ClassVar = {
        name: "every access of NoiseAware looks at all rows, since at equal epsilon subsampling would only raise the "
        f"noise of its averaged gradients; leave {name} out."
        for name in ("subsampling", "batch_size")
    }

    @checked_call
    def __init__(
        self, model: Function, *, clipping_norm: float | None = None, curvature_bound: float | None = None,
        coordinates: Sequence[str] | None = None, num_samples: int = 2_000, num_draws: int = NUM_DRAWS,
        data_plate: str | None = None, progress_bar: bool = True, width: str | None = None, weights: str | None = None,
        max_weight: float | None = None, **common: Tree,
    ) -> None:  # fmt: skip
        super().__init__(**common)
        self._check_one_noise()
        self.model, self.data_plate, self.progress_bar = model, data_plate, progress_bar
        self.weights = Weights.of(weights, max_weight)
        if self.weights is not None and (width == "model" or self.unit.ids is not None):
            raise ConfigurationError(
                'weights make the likelihood a pseudo-likelihood of single rows: leave width out, or give width="sandwich", '
                "and leave unit out."
            )
        self.width = width or ("model" if self.weights is None else "sandwich")
        if self.width not in WIDTHS:
            raise ConfigurationError(f'width is "model" or "sandwich", got {self.width!r}.')
        norm = optional(positive, clipping_norm, name="clipping_norm")
        self.bounds = Bounds(norm=norm, curvature=optional(positive, curvature_bound, name="curvature_bound"))
        named: Tree = (coordinates,) if isinstance(coordinates, str) else coordinates
        if not (named is None or (isinstance(named, list | tuple) and all(isinstance(name, str) for name in named))):
            raise ConfigurationError(
                f"coordinates is a {type(named).__name__}; give names of sites, coordinates=['w'], or leave it out."
            )
        self.coordinates: tuple[str, ...] | None = None if named is None else tuple(named)
        self.num_samples = positive_integer(num_samples, name="num_samples")
        self.num_draws = positive_integer(num_draws, name="num_draws")
        self._coordinates: Coordinates | None = None
        self._samples: dict[str, Tree] | None = None
        self._verdict: NoiseAwareVerdict | None = None
        self._releases: Released | None = None
        self._mixture: Mixture | None = None

    def __repr__(self) -> str:
        return f"NoiseAware of {name_of(self.model)}: {self._provenance.status}; {self.budget!r}"

    @property
    def num_chains(self) -> int:  # arviz.from_numpyro reads it
        raise ConfigurationError(
            "NoiseAware gives its samples as one chain. For ArviZ use noise_aware.to_arviz(); the arguments "
            "of a run are not kept, they hold the data."
        )

    @property
    def most_scores(self) -> float:
        return float("inf") if self.width == "sandwich" else float(self.rows_per_unit)

    @property
    def rows_per_unit(self) -> int:
        return 1 if self.unit.ids is None else self.unit.max_rows

    def _facts(self, charges: Sequence[Charge], status: Status) -> ReportFacts:
        mechanism = replace(MechanismFacts.of(MECHANISM, self._inputs.num_rows), clipping=CLIPPING)
        verdict = None if status is Status.PLANNED else self._verdict
        made = [len(each.noise_multipliers) for each in charges if each.is_steps] or [self.plan_for().num_accesses]
        details = NoiseAwareDetails(num_accesses=made[-1], verdict=verdict)
        return ReportFacts("NoiseAware", mechanism, details, self._inputs)

    def plan_for(self, dimension: int = 1, num_rows: float = float("inf")) -> ReleasePlan:
        return plan_of(None in (self.bounds.norm, self.bounds.curvature), dimension, num_rows)


def run_charge(settings: NoiseAwareSettings, account: Account, num_rows: float = float("inf")) -> tuple[Charge, float]:
    """A run's charge at the noise that its account gives, and that noise as 1 / mu. Refuses noise that drowns so many rows."""
    charge_at = lambda scale: Charge(MECHANISM, settings.plan_for().noise_multipliers(scale))  # noqa: E731
    noise = settings.noise_multiplier
    scale = account.calibrate(charge_at) if noise is None else noise
    check_budget(scale, num_rows)
    return charge_at(scale), scale


def check_budget(scale: float, num_rows: float) -> None:
    """Raise ConfigurationError for noise, `scale` = 1 / mu, that drowns all that so many rows together can say."""
    if num_rows < LEAST_SIGNAL * scale:
        raise ConfigurationError(
            f"this budget can tell nothing of {num_rows:,} rows: its noise is as large as what {scale:,.0f} rows say when "
            f"all agree, and {LEAST_SIGNAL:g} times as many are the least. Raise the budget (mu is {1.0 / scale:.2g}, and must "
            f"be {LEAST_SIGNAL / num_rows:.2g} or more) or use more rows; nothing was run and nothing was charged."
        )
