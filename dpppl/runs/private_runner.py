"""Base class of `dpppl.MCMC`, `dpppl.SVI` and `dpppl.NoiseAware`: a budget, its report, and where rows and files lie."""

import inspect
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple, TypeVar

import jax
from jax.sharding import Mesh

from dpppl.accounting.unit import Unit
from dpppl.data.rows import checked_mesh, described
from dpppl.errors import ConfigurationError
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.model.laws import laws
from dpppl.model.split import SplitModel
from dpppl.model.units import grouped
from dpppl.randomness import keys
from dpppl.report import render
from dpppl.report.labels import Labels
from dpppl.report.provenance import KeyOrigin, Provenance, Start, Status
from dpppl.report.report import Details, MechanismFacts, PrivacyReport
from dpppl.runs.budget import Account, Budget, Charge, events_of
from dpppl.runs.checkpoint import Checkpoint, checked_path
from dpppl.runs.driver import TRACING
from dpppl.types import Function, Tree
from dpppl.validation import checked, checked_call, checked_fields, full_signature, optional, positive, positive_integer

T = TypeVar("T")


@checked_fields
@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy of all that one object runs: `privacy=dpppl.Privacy(...)` of `MCMC`, `SVI` and `NoiseAware`.

    Each has the same settings as keywords of its own, with `target_epsilon` and `target_delta` for the first two.

    - **epsilon**, **delta** - the budget: the object's runs and queries together are (epsilon, delta)-differentially private.
    - **noise_multiplier** - instead of a budget: noise sd in units of the clipping norm (of `NoiseAware`: 1 / mu).
    - **ledger** - a `dpppl.PrivacyLedger`, or the path of one, which all that is run on the same data shares.
    - **reserve** - the share of epsilon, in [0, 1), that calibrated runs leave for queries and later runs.
    - **unit** - name under which `run` gets one id a row: all rows with one id are then one record. None: a row is one.
    - **max_rows_per_unit** - how many rows of a unit are used at most. Without `unit`, a declaration that nobody has more rows:
      epsilon is then that of a group of this size.
    - **num_data** - the number of rows (of units), if it may be public.

    >>> privacy = Privacy(epsilon=1.0, delta=1e-5, unit="person", max_rows_per_unit=10)
    >>> privacy.reserve
    0.0
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    ledger: PrivacyLedger | str | os.PathLike[str] | None = None
    reserve: float = 0.0
    unit: Tree = None  # a name; `Unit.of` tells whoever passes ids where they belong
    max_rows_per_unit: int | None = None
    num_data: int | None = None


class Inputs(NamedTuple):
    """The model and the rows of a run, of which nothing is known before it.

    - **num_rows** - number of rows, None before the run.
    - **variables** - the private arguments and how many numbers a row has of each, in words.
    - **latents** - the model's latents and their numbers of elements, in words.
    - **laws** - of responses and latents, in words.
    - **assumed_public** - what is taken for public, in words."""

    num_rows: int | None = None
    variables: tuple[str, ...] = ()
    latents: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    assumed_public: tuple[str, ...] = ()

    @classmethod
    def of(cls, split: SplitModel | None) -> "Inputs":
        """Those of a model that was split for a run."""
        if split is None:
            return cls()
        told = lambda sizes: tuple(name if n == 1 else f"{name} ({n:,})" for name, n in sizes.items())  # noqa: E731
        of_row = {name: math.prod(shape.shape[1:]) for name, shape in split.arguments.rows.items()}
        of_site = {name: math.prod(shape.shape) for name, shape in split.latents.items()}
        with TRACING:
            return cls(split.num_rows, told(of_row), told(of_site), laws(split), split.assumed_public)


class ReportFacts(NamedTuple):
    """A method's facts for a report.

    - **method** - its name.
    - **mechanism** - the mechanism of an access.
    - **details** - what the method adds.
    - **inputs** - the model and the rows of the last run."""

    method: str
    mechanism: MechanismFacts
    details: Details
    inputs: Inputs = Inputs()

    def report(self, charges: Sequence[Charge], provenance: Provenance, **rest: Tree) -> PrivacyReport:
        """The report of some charges; `rest`: its other fields."""
        method, mechanism, details, inputs = self
        return PrivacyReport(
            method=method, mechanism=mechanism, details=details, **inputs._asdict(), events=events_of(charges),
            provenance=provenance, **rest,
        )  # fmt: skip


class PrivateRunner(ABC):
    """Base of what runs private inference. Its arguments mean the same in each.

    - **privacy** - a `Privacy`; or, instead of it, its settings one by one:
    - **target_epsilon**, **target_delta**, **noise_multiplier** - see `Privacy`.
    - **ledger**, **reserve**, **unit**, **max_rows_per_unit**, **num_data** - see `Privacy`.
    - **checkpoint** - path of a file that lets a run that was killed go on where it was, with the same numbers and no second
      charge. It holds the run's keys: keep it secret.
    - **print_cost** - whether to print a line with the cost before a run.
    - **mesh** - a jax.sharding.Mesh to shard rows over.
    - **name** - of the analysis, for the cost line, report and ledger.
    - **labels** - of elements, public, by site: {"weights": ["age", "smoker=yes"]}. Summary, verdict, report and ArviZ show them.

    Raises ConfigurationError for settings that do not fit together."""

    __signature__: ClassVar[inspect.Signature]
    _first_start: Start
    """Where the first values of a first run come from."""

    def __init_subclass__(cls, **settings: object) -> None:
        super().__init_subclass__(**settings)
        cls.__signature__ = full_signature(cls)

    @checked_call
    def __init__(
        self, *, privacy: Privacy | None = None, target_epsilon: float | None = None,
        target_delta: float | None = None, noise_multiplier: float | None = None,
        ledger: PrivacyLedger | str | os.PathLike[str] | None = None, reserve: float = 0.0, unit: str | None = None,
        max_rows_per_unit: int | None = None, num_data: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None, print_cost: bool = True, mesh: Mesh | None = None,
        name: str | None = None, labels: Mapping[str, Sequence[object]] | None = None,
    ) -> None:  # fmt: skip
        short = Privacy(
            epsilon=target_epsilon, delta=target_delta, noise_multiplier=noise_multiplier, ledger=ledger, reserve=reserve,
            unit=unit, max_rows_per_unit=max_rows_per_unit, num_data=num_data,
        )  # fmt: skip
        self.privacy = short if privacy is None else _alone(privacy, short)
        self.unit = Unit.of(self.privacy.unit, self.privacy.max_rows_per_unit)
        target = self.privacy.epsilon, self.privacy.delta
        self.name, self.labels = name, labels
        self.budget = Budget(
            *target, ledger=self.privacy.ledger, reserve=self.privacy.reserve, unit=self.unit, name=name
        )
        self.noise_multiplier = optional(positive, self.privacy.noise_multiplier, name="noise_multiplier")
        self.num_data = optional(positive_integer, self.privacy.num_data, name="num_data")
        self.checkpoint, self.print_cost, self.mesh = checked_path(checkpoint), print_cost, checked_mesh(mesh)
        self._labels = self._names = Labels()  # of elements, and of those that have them unconstrained, too
        self._placement: str | None = None
        self._inputs, self._dims = Inputs(), dict[str, tuple[str, ...]]()
        self._provenance = Provenance()

    def _check_one_noise(self) -> None:
        """Raise ConfigurationError unless either a target or a noise multiplier is given."""
        if (self.privacy.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigurationError("give either noise_multiplier or target_epsilon with target_delta.")

    def _resumed(self) -> tuple[Checkpoint | None, Account]:
        """The checkpoint, and the account without the charges of the run that it holds, which are those of the steps to come."""
        checkpoint = None if self.checkpoint is None else Checkpoint(self.checkpoint)
        return checkpoint, self.budget.account("" if checkpoint is None else checkpoint.run_id)

    def grouped(self, model: Function, args: Tree, kwargs: Tree, key: jax.Array) -> tuple[Tree, Tree]:
        """The model's arguments in units, where these are larger than a row. The run's `key` decides which rows are kept."""
        return grouped(model, args, kwargs, self.unit.ids, self.unit.max_rows, keys.stream(key, "units"))

    def _label(self, split: SplitModel) -> None:
        """Keep `labels` for the elements of this model. Raises ConfigurationError where they do not fit."""
        if self.labels is None:
            return
        constrained = jax.eval_shape(split.constrain, split.latents, split.arguments.public)
        self._labels = Labels.of(self.labels, {site: shape.shape for site, shape in constrained.items()})
        self._names = self._labels.fitting({site: shape.shape for site, shape in split.latents.items()})

    def _print_name(self) -> None:
        if self.name is not None:
            print(f"{self.name}:")

    @abstractmethod
    def _facts(self, charges: Sequence[Charge], status: Status) -> ReportFacts:
        """The method's facts for a report of these charges, of runs at this status."""

    def _begun(
        self, split: SplitModel, start: Start | None, rows: Tree, charges: Sequence[Charge], origin: KeyOrigin
    ) -> PrivacyReport:
        """Note that a run begins; the report of its charges alone."""
        self._inputs, self._dims, self._placement = Inputs.of(split), split.dims, described(rows)
        self._provenance = self._provenance.and_now(Status.INTERRUPTED, origin, start)
        return self._report(charges, self._provenance)

    def _report(self, charges: Sequence[Charge], provenance: Provenance) -> PrivacyReport:
        """The report of some charges."""
        return self._facts(charges, provenance.status).report(
            charges, provenance, delta=self.budget.target_delta, num_data=self.num_data, ledger=self.budget.ledger_line(),
            unit=self.unit, placement=self._placement, name=self.name, combined_risk=self.budget.combined_risk(),
        )  # fmt: skip

    def _planned(self, charges: Sequence[Charge], start: Start | None = None) -> PrivacyReport:
        """The report that a next run with these charges would add up to."""
        provenance = self._provenance.and_now(Status.PLANNED, start=start or self._first_start)
        return self._report([*self.budget.charged, *charges], provenance)

    @checked
    def privacy_report(self) -> PrivacyReport:
        """The cost of everything run so far: interrupted runs and queries included."""
        start = None if self._provenance.starts else self._first_start
        return self._report(self.budget.charged, self._provenance.and_now(self._provenance.status, start=start))

    def _repr_html_(self) -> str:
        """For notebooks: the runner in words, and its privacy report."""
        return render.cell(repr(self), self.privacy_report()._repr_html_())


def after_run(result: T | None, name: str) -> T:
    """A result of the last run; `name`: what asks for it. Raises ConfigurationError before `run`."""
    if result is None:
        raise ConfigurationError(f"`run` must be called before `{name}`.")
    return result


def _alone(privacy: object, short: Privacy) -> Privacy:
    """The privacy. Raises ConfigurationError where its settings are given one by one, too."""
    if not isinstance(privacy, Privacy):
        raise ConfigurationError(
            f"privacy is a {type(privacy).__name__}; give privacy=dpppl.Privacy(epsilon=1.0, delta=1e-5)."
        )
    if twice := [field.name for field in fields(Privacy) if getattr(short, field.name) != field.default]:
        raise ConfigurationError(
            f"privacy=dpppl.Privacy(...) is given, and {', '.join(twice)} outside: give all to Privacy(..., {twice[0]}=...)."
        )
    return privacy
