"""The first accesses of a run: a frame's, which are NoiseAware's at a share of the budget, and the histogram of norms.

`locate` makes them and returns what they found: where the posterior is and how wide, the norms, and the rows that say nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from dpppl.access.norm_histogram import Norms
from dpppl.accounting.unit import Unit
from dpppl.data.rows import number_of
from dpppl.errors import ConfigurationError, UnsupportedModelError, concluding
from dpppl.findings.counted_rows import CountedRows
from dpppl.frame.metric import Metric
from dpppl.model.split import SplitModel
from dpppl.noise_aware import posterior
from dpppl.noise_aware.binding import BoundModel, bind_split
from dpppl.noise_aware.bounds import Bounds
from dpppl.noise_aware.conclusion import run_recipe_for
from dpppl.noise_aware.curvature import unsaturated
from dpppl.noise_aware.measured import Widths
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.recipe import RecipeOutcome
from dpppl.noise_aware.settings import NoiseAwareSettings, check_budget
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.randomness import keys
from dpppl.row_statistics.coordinates import MOST_FULL, Prior
from dpppl.row_statistics.matrices import positive_part, posterior_covariance, root_of
from dpppl.row_statistics.plan import plan_of
from dpppl.row_statistics.releases import MECHANISM, Accesses, Released, prepared
from dpppl.row_statistics.shared_law import statistics_of
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.driver import OWN_NORM, TRACING, RunPlan, prove
from dpppl.runs.histogram import Histogram, histogram_charge
from dpppl.runs.session import Run, Session, session
from dpppl.types import Function, Tree

SHARE = 0.16
"""The share of a run's cost, in mu^2, that the frame spends."""
FEWEST_STEPS, MOST_LATENTS = 200, 500
"""Fewer steps than the first have no frame by default, and models with more latents than the second."""
_NOISELESS, _DRAWS, _FARTHEST = 1e-2, 1_000, 5.0
_UNSURE = 2.0  # standard errors of a curvature that a frame adds to it
_HIDDEN = 3.0  # standard errors of a curvature that noise may have made
_WIDER = 5.0  # where the sd of a latent is so many times as wide without what noise may have made, its scale is unknown
_NEGLIGIBLE = 0.1
"""Posterior sds that clipping may move a frame by: the run's own gradients replace those of a frame."""


def frame_charge(noise_multiplier: float, num_steps: int, neighboring_relation: str | None = None) -> Charge:
    """The cost of the frame of a run on full batches, by the noise multiplier and the relation of its steps."""
    scale = noise_multiplier * ((1.0 - SHARE) / (SHARE * num_steps)) ** 0.5
    return Charge(
        MECHANISM, plan_of().noise_multipliers(scale), is_frame=True, neighboring_relation=neighboring_relation
    )


class RunCharges(NamedTuple):
    """The costs of a run, in order.

    - **frame**, **histogram** - of a frame, and of the histogram of norms, None where it has none.
    - **steps** - of the steps of all chains."""

    frame: Charge | None
    histogram: Charge | None
    steps: Charge

    @classmethod
    def of(cls, steps: Charge, noise_multiplier: float, has_frame: bool) -> "RunCharges":
        """Of a run whose norm comes from a histogram."""
        num_steps, relation = steps.chains * steps.num_steps, steps.mechanism.subsampling.neighboring_relation
        frame = frame_charge(noise_multiplier, num_steps, relation) if has_frame else None
        return cls(frame, histogram_charge(noise_multiplier, num_steps, steps.mechanism), steps)

    def listed(self, *steps: Charge) -> list[Charge]:
        """In order; `steps`: in place of its own."""
        return [charge for charge in (self.frame, self.histogram, *(steps or [self.steps])) if charge is not None]


def inverse_mu_of(charge: Charge) -> float:
    """1 / mu of the charge of a frame."""
    return float(charge.noise_multipliers[0] / plan_of().noise_multipliers(1.0)[0])


def frame_line(charges: Sequence[Charge]) -> str | None:
    """The report's line about the accesses of a frame; None without one. Shares are of mu^2, for full batches."""
    cost = lambda found: sum(c.chains * float(np.sum(c.noise_multipliers**-2.0)) for c in found)  # noqa: E731
    frame = [charge for charge in charges if charge.is_frame and charge.num_steps]
    if not frame:
        return None
    return f"{sum(c.num_steps for c in frame)} accesses, {cost(frame) / cost(charges):.0%} of the cost in mu^2"


def checked_frame(frame: bool | None, fits: dict[str, bool]) -> bool:
    """Whether a run with these settings starts at a frame, which is the default where all `fits`, by what is asked for.

    Raises ConfigurationError where the user asks for a frame that does not fit."""
    missing = [name for name, is_so in fits.items() if not is_so]
    if frame and missing:
        raise ConfigurationError(f"frame=True goes with {', '.join(missing)}: change that, or leave frame out.")
    return not missing if frame is None else frame


@dataclass(frozen=True, kw_only=True, eq=False)
class Locator:
    """The accesses of a frame before they are made: programs, proved.

    - **settings** - those of a `NoiseAware` that makes them.
    - **bound** - the model with the arguments.
    - **prior**, **is_normal** - of the latents.
    - **charge** - the cost.
    - **programs** - by name.
    - **key** - of the frame."""

    settings: NoiseAwareSettings
    bound: BoundModel
    prior: Prior
    is_normal: bool
    charge: Charge
    programs: Tree
    key: jax.Array

    def metric(self, before: Callable[[int], None]) -> Metric:
        """Make the accesses; the frame that they give."""
        noises, bound = self.charge.noise_multipliers, self.bound
        made = Accesses(self.programs, keys.stream(self.key, "accesses"), bound.rows, bound.public, before, noises)
        released = Released(self.prior, self.is_normal, inverse_mu_of(self.charge), [])
        stage = run_recipe_for(self.settings, bound, released, made.asker(), Bounds(negligible=_NEGLIGIBLE))
        sites, num_rows = bound.coordinates.shapes, bound.split.num_rows
        names, of_units = bound.coordinates.names(), (num_rows, self.settings.rows_per_unit)
        fit = NoiseAwareVerdict.from_releases(
            stage, stage.belief, self.prior, names, *of_units, sampled=1.0
        )  # sds without noise
        fit = replace(fit, poisson=bound.poisson, widths=Widths())
        if set(sites) == set(bound.split.latents):
            shapes = {site: bound.split.latents[site].shape for site in sites}
            centre, root, information, unknown = _normal(stage, self.prior)
            return Metric(shapes, centre, root, information=information, fit=fit, unknown=unknown)
        law = stage.surrogate
        law = law._replace(noise_variance=_NOISELESS * law.noise_variance, curvature=law.curvature.as_model())
        mixture, key = Mixture.of(law, self.prior), keys.stream(self.key, "draws")
        with TRACING:
            z, _ = posterior.draw(bound.coordinates, mixture, self.is_normal, bound.public, key, _DRAWS)
        points = np.concatenate(
            [np.reshape(np.asarray(z[s], float), (_DRAWS, -1)) for s in bound.split.latents], axis=1
        )
        middle, half = posterior.middles_and_widths(points)
        points = np.clip(points, middle - _FARTHEST * half, middle + _FARTHEST * half)
        shapes = {site: latent.shape for site, latent in bound.split.latents.items()}
        return Metric(shapes, points.mean(axis=0), np.linalg.cholesky(np.atleast_2d(np.cov(points.T))), fit=fit)


def _normal(stage: RecipeOutcome, prior: Prior) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """The posterior mean of a stage; the root of the covariance that goes with its curvature: no direction is worse than the
    prior, and the privacy noise in the gradient, which the run's own gradients replace, does not count; the trace of the
    curvature where this covariance is white; and the latents whose scale noise hides, (d,).

    A frame too wide along a column makes its rows long, and has them clipped; one too narrow costs only time. So the curvature
    is what clipping and noise may hide of it."""
    basis, place, law = stage.surrogate.basis, stage.surrogate.basis.layout.place, stage.surrogate.curvature
    root, width = root_of(basis.covariance_of_u(prior.covariance(basis))), law.vectors.shape[-2]
    unsure = np.sqrt(np.max(np.diagonal(law.error(np.eye(width)), axis1=-2, axis2=-1)) / width) * np.eye(width)
    information = unsaturated(positive_part(law.mean), law.ratio)

    def covariance_of(h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The posterior covariance of u, and of latents, where the likelihood has this curvature."""
        found = posterior_covariance(h, root)
        spread = basis.covariance_of_latents(found)[0]
        covariance = spread[np.ix_(place, place)] * np.outer(basis.scales, basis.scales)
        return found, (covariance + covariance.T) / 2.0

    found, narrow = covariance_of(information + _UNSURE * unsure)
    wide = covariance_of(positive_part(information - _HIDDEN * unsure))[1]
    unknown = np.diag(wide) > _WIDER**2 * np.diag(narrow)
    return stage.belief.mean, np.linalg.cholesky(narrow), float(np.sum(information * found)), unknown


def locator(
    key: jax.Array, model: Function, split: SplitModel, rows: Tree, public: Tree, charge: Charge, unit: Unit
) -> Locator:
    """The accesses of a frame for a model that was split for its arguments, proved; looks at no data, charges nothing.

    Raises ConfigurationError or UnsupportedModelError for a model or a budget that has no frame.

    - **key**, **unit** - of the run; **charge** - see `frame_charge`.
    - **rows**, **public** - the arrays among the arguments."""
    size, scale = sum(latent.size for latent in split.latents.values()), inverse_mu_of(charge)
    if size > MOST_LATENTS:
        raise ConfigurationError(f"frame=True needs a model of at most {MOST_LATENTS} latents: leave it out.")
    max_rows = unit.max_rows if unit.ids else None
    settings = NoiseAwareSettings(model, noise_multiplier=scale, unit=unit.ids, max_rows_per_unit=max_rows)
    bound = bind_split(settings, split, rows, public)
    coordinates = bound.coordinates
    if coordinates.dimension > MOST_FULL or bound.symmetric:
        raise ConfigurationError(
            f"frame=True needs a likelihood of at most {MOST_FULL} numbers, and latents that cannot change places: leave it out."
        )
    check_budget(scale, bound.split.num_rows)
    own = keys.stream(key, "frame")
    with TRACING:
        prior, is_normal = coordinates.prior(bound.public, keys.stream(own, "prior"))
    statistics = statistics_of(bound.responses, coordinates.latents, prior.first(), None, settings.most_scores)
    programs = prepared(statistics, keys.stream(own, "accesses"), bound.rows, bound.public, coordinates.dimension)
    return Locator(
        settings=settings, bound=bound, prior=prior, is_normal=is_normal, charge=charge, programs=programs, key=own
    )  # fmt: skip


def locator_or_none(is_asked: bool, key: jax.Array, *rest: Tree) -> Locator | None:
    """`locator(key, *rest)`; None for a model that has no frame, unless the user asked for one."""
    try:
        return locator(key, *rest)
    except (ConfigurationError, UnsupportedModelError):
        if is_asked:
            raise
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Located:
    """The findings of the first accesses of a run.

    - **metric** - where the posterior is and how wide, None without a frame.
    - **norms** - of all rows' gradients at the start, in the metric where there is one.
    - **scale** - the median standard deviation of the prior there.
    - **counted** - the rows that do not inform the posterior."""

    metric: Metric | None
    norms: Norms
    scale: float
    counted: CountedRows


@contextmanager
def locate(
    run: Run, plan: RunPlan, budget: Budget, histogram_in: Callable[[Metric | None], Histogram], locator: Locator | None = None
) -> Iterator[tuple[Session, Located]]:  # fmt: skip
    """Open the session of a run and make its first accesses, each charged before; yield the session and what they found.

    All programs are proved before anything is charged. The session's last charges are the steps'. Only norm and metric depend on
    what is found, the cost does not.

    - **plan** - the run's steps, at any norm and without a metric.
    - **histogram_in** - the histogram of norms in a metric, or without one, which is what is proved beforehand.
    - **locator** - the accesses that find the metric, or None."""
    histogram, rows, public = histogram_in(None), plan.rows, plan.public
    frame, of_frame = ([], {}) if locator is None else ([locator.charge], locator.programs)
    charges = [*frame, histogram.charge, *plan.charges]
    prove(plan.method.mapped_chunk, plan.arguments, rows=1)
    program, arguments = histogram.program(run.key, rows, public)
    digest = ",".join(each.digest for each in (program, *of_frame.values()))
    with session(run, replace(plan, charges=charges, program=digest, shared=plan.shared_values), budget) as opened:
        metric = None
        failing = partial(concluding, "the clipping norm", "", lambda: False, OWN_NORM)
        with failing():
            if locator is not None:
                metric = locator.metric(partial(opened.charge, 0))
                histogram = histogram_in(metric)
                program, arguments = histogram.program(run.key, rows, public)
            opened.charge(len(frame), 1)
            counts = np.asarray(jax.block_until_ready(program(*arguments)))
        try:
            with failing():
                norms, counted = histogram.found(counts, number_of(rows))
            yield opened, Located(metric=metric, norms=norms, scale=histogram.scale, counted=counted)
        except BaseException as error:
            error.add_note("The histogram that the clipping norm came from was charged before: see privacy_report().")
            raise
