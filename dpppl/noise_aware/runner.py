"""Calibrated private posteriors: noisy gradients and curvatures, and the posterior given what these say."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from numpyro.diagnostics import print_summary

from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.information_flow.row_free import proved
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.model.arguments import name_of
from dpppl.model.responses import NUM_DRAWS, Responses
from dpppl.model.split import SplitModel
from dpppl.model.units import grouped, responses_of, split_in_units
from dpppl.noise_aware import posterior, progress
from dpppl.noise_aware.coordinates import MOST_FULL, Coordinates
from dpppl.noise_aware.details import NoiseAwareDetails
from dpppl.noise_aware.plan import Plan, default_plan, wide_plan
from dpppl.noise_aware.posterior import Mixture
from dpppl.noise_aware.recipe import Bounds, run_recipe
from dpppl.noise_aware.releases import MECHANISM, Released, Releases, prepared
from dpppl.noise_aware.statistics import RowStatistics
from dpppl.noise_aware.symmetry import symmetries
from dpppl.noise_aware.verdict import Verdict
from dpppl.randomness import keys
from dpppl.runs.budget import Budget, Charge, events_of
from dpppl.runs.driver import TRACING, Run, forgetful
from dpppl.runs.provenance import KeyOrigin, Provenance, Start, Status, claim
from dpppl.runs.report import MechanismFacts, PrivacyReport, announce, to_inference_data
from dpppl.runs.unit import Unit
from dpppl.subsampling import FullBatch, Subsampling
from dpppl.validation import Fixed, checked_call, positive, positive_integer

T = TypeVar("T")
MOST_LATENTS = 10_000
LEAST_SIGNAL = 5.0  # rows, in units of the noise of all releases together
CLIPPING = "centred on what the model expects of a row; every release in units of its bound, so at most 1 a row"


class _Bound(NamedTuple):
    """A model with its arguments; `symmetric`: what of its latents may change places; `constrain`: of (latents of
    all samples, public), as it was proved."""

    split: SplitModel
    coordinates: Coordinates
    responses: Responses
    rows: Any
    public: Any
    symmetric: tuple[str, ...]
    constrain: Callable[..., Any]


class NoiseAware(Fixed):
    """A private posterior that is calibrated at every epsilon: as wide as the data, the clipping and the noise make it.

    The run releases noisy gradients and curvatures of the likelihood, clipped without bias around what the model itself
    expects, and then samples from the posterior given these releases: exact prior times a normal surrogate that counts
    the privacy noise, the sampling of the data and the error of the curvature.

    `model`: a NumPyro model with one data plate, proper priors, at most 10,000 coordinates (above 200, curvatures are
    released in blocks), and responses that can be simulated (no factor in the data plate). `target_epsilon`,
    `target_delta`: the budget of this object, all of which one run uses but for the share `reserve`; or
    `noise_multiplier`, the inverse of mu of mu-Gaussian differential privacy, for each run. `clipping_norm`,
    `curvature_bound`: bounds on a row's score and curvature, with latents in units of their prior sd; found from charged
    private histograms if not given.
    `coordinates`: the sites, by name, in which the likelihood is measured: all those through which it depends on latents,
    be they latents or deterministic sites (`effects = numpyro.deterministic("effects", mu + tau * z)`), outside of the data
    plate and real; found if not given.
    `num_samples`: posterior samples. `ledger`, `print_cost`, `data_plate`, `num_data`, `unit`,
    `max_rows_per_unit`: as for `dpppl.MCMC`. `progress_bar`: show
    the phase of the run and how many of its accesses are made.

    Guarantee: every access is charged before it is made; samples, verdict and report are functions of the mechanism's
    outputs and public values. A wrong model or a likelihood far from quadratic makes samples wrong, not public; the
    verdict says what of this the releases show.
    Raises ConfigurationError, UnsupportedModelError or BudgetExceededError before any data are touched or charged.
    Full batches only: for the same privacy, subsampling gives gradients more noise, never less.

    Reference: bounded-influence scores, Künsch, Stefanski, Carroll (1989); noise-aware private inference, Bernstein and
    Sheldon (2019), here for arbitrary models.

    >>> import dpppl, jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> noise_aware = dpppl.NoiseAware(model, target_epsilon=1.0, target_delta=1e-5)
    >>> noise_aware.run(dpppl.secret_key(), 0.5 + jax.random.normal(jax.random.key(1), (1000,)))
    This run will spend epsilon = 0.9995 at delta = 1e-05: add or remove one row, N public (zero-out).
    >>> noise_aware.get_samples()["mu"].shape
    (2000,)
    """

    @checked_call
    def __init__(
        self,
        model: Callable[..., Any],
        *,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        noise_multiplier: float | None = None,
        clipping_norm: float | None = None,
        curvature_bound: float | None = None,
        coordinates: Sequence[str] | None = None,
        subsampling: Subsampling | None = None,
        num_samples: int = 2_000,
        num_draws: int = NUM_DRAWS,
        num_data: int | None = None,
        data_plate: str | None = None,
        ledger: PrivacyLedger | str | os.PathLike[str] | None = None,
        unit: str | None = None,
        max_rows_per_unit: int | None = None,
        reserve: float = 0.0,
        print_cost: bool = True,
        progress_bar: bool = True,
    ) -> None:
        if not (subsampling is None or isinstance(subsampling, FullBatch)):
            raise ConfigurationError(
                "NoiseAware looks at all rows in every access: at equal epsilon, subsampling would only raise the noise of "
                "its averaged gradients. Leave subsampling out."
            )
        if (target_epsilon is None) == (noise_multiplier is None):
            raise ConfigurationError("give either noise_multiplier or target_epsilon with target_delta.")
        self.model, self.data_plate, self.print_cost, self.progress_bar = model, data_plate, print_cost, progress_bar
        self.noise_multiplier = (
            None if noise_multiplier is None else positive(noise_multiplier, name="noise_multiplier")
        )
        self.bounds = Bounds(
            norm=None if clipping_norm is None else positive(clipping_norm, name="clipping_norm"),
            curvature=None if curvature_bound is None else positive(curvature_bound, name="curvature_bound"),
        )
        named = (coordinates,) if isinstance(coordinates, str) else coordinates
        self.coordinates = None if named is None else tuple(named)
        self.num_samples = positive_integer(num_samples, name="num_samples")
        self.num_draws = positive_integer(num_draws, name="num_draws")
        self.num_data = None if num_data is None else positive_integer(num_data, name="num_data")
        self.unit = Unit.of(unit, max_rows_per_unit)
        self.budget = Budget(target_epsilon, target_delta, ledger=ledger, reserve=reserve, unit=self.unit)
        self._provenance = Provenance()
        self._coordinates: Coordinates | None = None
        self._samples: dict[str, Any] | None = None
        self._verdict: Verdict | None = None
        self._releases: Released | None = None

    def __repr__(self) -> str:
        return f"NoiseAware of {name_of(self.model)}: {self._provenance.status}; {self.budget!r}"

    @property
    def num_chains(self) -> int:  # arviz.from_numpyro reads it
        raise ConfigurationError(
            "NoiseAware has no chains: its samples are independent draws. For ArviZ use noise_aware.to_arviz(); the arguments "
            "of a run are not kept, they hold the data."
        )

    # Budget

    def _plan(self, dimension: int = 1) -> Plan:
        plan = default_plan if dimension <= MOST_FULL else wide_plan
        return plan(None in (self.bounds.norm, self.bounds.curvature))

    def _charge(self, dimension: int = 1) -> tuple[Charge, float]:
        """A run's charge at the noise that the budget gives, and that noise as 1 / mu. Looks at no data."""
        charge_at = lambda scale: Charge(MECHANISM, self._plan(dimension).noise_multipliers(scale))  # noqa: E731
        scale = self.budget.calibrate(charge_at) if self.noise_multiplier is None else self.noise_multiplier
        return charge_at(scale), scale

    def privacy_plan(self) -> PrivacyReport:
        """The report that the next `run` would add up to, without data: the same for models of any width."""
        charges = [*self.budget.charged, self._charge()[0]]
        return self._report(charges, self._provenance.and_now(Status.PLANNED, start=Start.PRIOR_MEAN), None)

    def privacy_report(self) -> PrivacyReport:
        """What everything run so far has cost, an interrupted run included; its details hold the verdict."""
        return self._report(self.budget.charged, self._provenance, self._verdict)

    def _report(self, charges: Any, provenance: Provenance, verdict: Verdict | None) -> PrivacyReport:
        split = None if self._coordinates is None else self._coordinates.split
        num_rows = None if split is None else split.num_rows
        return PrivacyReport(
            method="NoiseAware",
            events=events_of(charges),
            delta=self.budget.target_delta,
            mechanism=replace(MechanismFacts.of(MECHANISM, num_rows), clipping=CLIPPING),
            provenance=provenance,
            details=NoiseAwareDetails(num_accesses=self._plan().num_accesses, verdict=verdict),
            num_data=self.num_data,
            num_rows=num_rows,
            assumed_public=() if split is None else split.assumed_public,
            ledger=self.budget.ledger_line(),
            unit=self.unit,
        )

    # Running

    @forgetful
    def run(self, rng_key: Any, *args: Any, **kwargs: Any) -> None:
        """Make all releases and sample from the posterior given them; prints what it will cost first.

        `rng_key`: one key, used once; take it from `dpppl.secret_key()`. Arrays among the arguments are private unless
        marked `dpppl.Public`."""
        run = Run.opened(rng_key, None)
        bound = self._bind(*self._grouped(args, kwargs, run.key))
        split, coordinates, responses, rows, public, *_ = bound
        charge, scale = self._charge(coordinates.dimension)
        check_budget(scale, split.num_rows)
        with TRACING:
            prior, is_normal = coordinates.prior(public, keys.stream(run.key, "prior"))
        self.budget.admit([charge], run.run_id)
        statistics = RowStatistics(responses, coordinates.latents, prior.geometry())
        access_key = keys.stream(run.key, "accesses")
        with progress.bar(len(charge.noise_multipliers), visible=self.progress_bar) as bar:
            programs = prepared(statistics, access_key, rows, public, coordinates.dimension)
            before = self.budget.events
            with self.budget.reserve_for([charge], "NoiseAware", run.run_id) as reservation:
                origin = claim(run.key)
                with bar.external_write_mode():
                    announce(self._begin(origin, coordinates, charge), before, split.notes, self.print_cost)
                made = Releases(programs, access_key, rows, public, lambda count: reservation.charge(0, count))
                self._releases = Released(prior, is_normal, scale, [])
                ask = progress.shown(self._releases.recorded(made.asker()), bar)
                found = self._recipe(bound, self._releases, ask)
            bar.set_description("posterior")
            self._conclude(bound, self._releases, found, keys.stream(run.key, "posterior"))

    @forgetful
    def sample_again(self, rng_key: Any, *args: Any, **kwargs: Any) -> None:
        """Samples and verdict anew, from `releases` alone: at no cost, and without a look at the data.

        Arguments are those of `run`; of private arrays only shapes and dtypes count. Raises ConfigurationError before `run`,
        and where that was interrupted before it had made all accesses."""
        own = keys.as_key(rng_key)
        releases, bound = self.releases, self._bind(*self._grouped(args, kwargs, own))
        key = keys.stream(own, "posterior")
        self._conclude(bound, releases, self._recipe(bound, releases, releases.asker()), key)

    def _grouped(self, args: Any, kwargs: Any, key: Any) -> Any:
        return grouped(self.model, args, kwargs, self.unit.ids, self.unit.max_rows, keys.stream(key, "units"))

    @property
    def _rows_per_unit(self) -> int:
        return 1 if self.unit.ids is None else self.unit.max_rows

    def _bind(self, args: Any, kwargs: Any) -> _Bound:
        """Looks at no private values. Raises UnsupportedModelError and ConfigurationError."""
        with TRACING:
            split = split_in_units(self.model, args, kwargs, data_plate=self.data_plate)
            rows, public = split.arrays(args, kwargs)
            coordinates = Coordinates.of(split, public, self.coordinates)
            if coordinates.dimension > MOST_LATENTS:
                raise ConfigurationError(
                    f"{coordinates.dimension} coordinates enter the likelihood, and no posterior width is promised for more "
                    f"than {MOST_LATENTS:,}; use dpppl.SVI."
                )
            responses = responses_of(split, self.num_draws)
            if responses.scaled:
                raise UnsupportedModelError(
                    f"the log probability of site '{responses.scaled[0]}' is scaled, and NoiseAware takes each response for one "
                    "observation, as its width must; leave the scale out, or use dpppl.DPSGLD or dpppl.SVI."
                )
            shapes = {n: jax.ShapeDtypeStruct((self.num_samples, *s.shape), s.dtype) for n, s in split.latents.items()}
            constrain = proved(jax.vmap(split.constrain, (0, None)), shapes, public, num_rows=split.num_rows)
            proved(split.log_prior, split.latents, public, num_rows=split.num_rows)
            symmetric = symmetries(coordinates, responses, public)
        return _Bound(split, coordinates, responses, rows, public, symmetric, constrain)

    def _recipe(self, bound: _Bound, releases: Released, ask: Any) -> Any:
        plan = self._plan(bound.coordinates.dimension)
        num_rows, redrawn = bound.split.num_rows, bound.responses.redrawn
        return run_recipe(
            ask, plan, releases.scale, releases.prior, self.bounds, num_rows, redrawn, self._rows_per_unit
        )

    def _conclude(self, bound: _Bound, releases: Released, found: Any, key: Any) -> None:
        """The verdict on what a recipe `found`, and samples."""
        (stages, scalars), coordinates, prior = found, bound.coordinates, releases.prior
        scalar_std = float(self._plan(coordinates.dimension).noise_multipliers(releases.scale)[-1])
        mixture = Mixture.of(stages[-1].surrogate, prior)
        names, num_rows = coordinates.names(), bound.split.num_rows
        self._verdict = Verdict.of(stages, mixture.moments(), scalars, scalar_std, prior, names, num_rows)
        with TRACING:
            z, problem = posterior.draw(coordinates, mixture, releases.is_normal, bound.public, key, self.num_samples)
            of_model: Any = dict(
                symmetric=bound.symmetric, observed=bound.responses.observed, in_units=self._rows_per_unit > 1
            )
            self._verdict = replace(self._verdict, sampler=problem, through=coordinates.through, **of_model)
            self._samples = bound.constrain(z, bound.public)
        self._provenance = self._provenance.ended(Status.COMPLETE)

    def _begin(self, origin: KeyOrigin, coordinates: Coordinates, charge: Charge) -> PrivacyReport:
        self._coordinates, self._samples, self._verdict = coordinates, None, None
        self._provenance = self._provenance.and_now(Status.INTERRUPTED, origin, Start.PRIOR_MEAN)
        return self._report([charge], self._provenance, None)

    # Results

    @property
    def releases(self) -> Released:
        """All that the last run has released so far, with its prior; it pickles."""
        return _found(self._releases, "releases")

    @property
    def verdict(self) -> Verdict:
        """What the releases say of the last run."""
        return _found(self._verdict, "verdict")

    def get_samples(self, group_by_chain: bool = False, *, allow_unconverged: bool = False) -> dict[str, Any]:
        """Samples by site, (num_samples, ...), as `numpyro.infer.MCMC.get_samples`; deterministic sites of latents too.

        Raises ConfigurationError where the verdict refuses them, unless `allow_unconverged`."""
        found = _found(self._samples, "get_samples")
        if self.verdict.refusals and not allow_unconverged:
            raise ConfigurationError(
                f"the samples should not be read: {self.verdict.refusals[0]} get_samples(allow_unconverged=True) returns "
                "them all the same."
            )
        return jax.tree.map(lambda x: x[None] if group_by_chain else x, found)

    def print_summary(self, prob: float = 0.9, exclude_deterministic: bool = True) -> None:
        """NumPyro's summary table, then the verdict, and what of each latent was learned from the data."""
        _found(self._samples, "print_summary")
        samples = self.get_samples(group_by_chain=True, allow_unconverged=True)
        latents: Any = {} if self._coordinates is None else self._coordinates.split.latents
        kept = {n: np.asarray(x) for n, x in samples.items() if not exclude_deterministic or n in latents}
        print_summary(kept, prob=prob, group_by_chain=True)
        verdict = self.verdict
        print(f"verdict: {verdict.line()}")
        for line in [*verdict.refusals, *verdict.doubts][1:] + [*filter(None, [verdict.released])]:
            print(f"verdict: {line}")
        shares = verdict.share_learned()
        for word in ("learned", "partly", "prior"):
            names = [name for name, found in shares if found == word]
            if names:
                shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
                print(f"{word}: {shown}")

    def to_arviz(self, *, allow_unconverged: bool = False) -> Any:
        """ArviZ InferenceData of the samples, with the privacy report as attributes; no data, no log likelihood."""
        _found(self._samples, "to_arviz")
        samples = self.get_samples(group_by_chain=True, allow_unconverged=allow_unconverged)
        return to_inference_data({site: np.asarray(x) for site, x in samples.items()}, self.privacy_report())


def check_budget(scale: float, num_rows: int) -> None:
    """Raise ConfigurationError for noise, `scale` = 1 / mu, that drowns all that so many rows together can say."""
    if num_rows < LEAST_SIGNAL * scale:
        raise ConfigurationError(
            f"this budget can tell nothing of {num_rows:,} rows: its noise is as large as what {scale:,.0f} rows say when "
            f"all agree, and {LEAST_SIGNAL:g} times as many are the least. Raise the budget (mu is {1.0 / scale:.2g}, and must "
            f"be {LEAST_SIGNAL / num_rows:.2g} or more) or use more rows; nothing was run and nothing was charged."
        )


def _found(result: T | None, name: str) -> T:
    """A result, where there is one."""
    if result is None:
        raise ConfigurationError(f"`run` must be called before `{name}`.")
    return result
