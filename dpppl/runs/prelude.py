"""The phase of a run that chooses its clipping norm: a private histogram of gradient norms, charged like every access."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access import norm_histogram
from dpppl.access.mechanism import Mechanism
from dpppl.access.norm_histogram import Norms, gradient_norm, histogram_mechanism, noisy_histogram
from dpppl.data.rows import number_of
from dpppl.errors import concluding
from dpppl.findings.counted_rows import CountedRows
from dpppl.model.initialization import prior_scales
from dpppl.model.split import SplitModel
from dpppl.model.supports import codes
from dpppl.model.units import is_outside
from dpppl.randomness import keys
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.driver import TRACING, Begin, Plan, Program, prepare, prove
from dpppl.runs.session import Request, Run, session
from dpppl.types import BySite, Function, Tree

_UNSURE, _NEGLIGIBLE = 3.0, 1e-3  # sd, in octaves, of where norms are expected; a part of the rows' information
SHARE = 0.01
"""The share of a run's cost, in mu^2, that the histogram spends."""


def histogram_charge(noise_multiplier: float, num_steps: int, mechanism: Mechanism) -> Charge:
    """The cost of the histogram of a run of `num_steps` steps of all chains together. The run's mu^2, which only decides the
    share, is num_steps / noise_multiplier^2; with Poisson rows and many steps as below."""
    inverse, rate = noise_multiplier**-2.0, mechanism.subsampling.rate
    cost = num_steps * (inverse if rate == 1.0 else rate**2 * math.expm1(min(inverse, 50.0)))
    noise = ((1.0 - SHARE) / (SHARE * max(cost, 1e-12))) ** 0.5
    relation, door = mechanism.subsampling.neighboring_relation, histogram_mechanism(mechanism.discretise)
    return Charge(door, np.array([noise]), is_query=True, neighboring_relation=relation)


def _same(z: Tree) -> Tree:
    return z


@dataclass(frozen=True)
class NormPhase:
    """The histogram of a run.

    - **plan** - the run's own steps, at any norm. They are reserved first.
    - **statistic** - `statistic(at, row, public)`, the bin of a row's gradient norm; see `norm_histogram.gradient_norm`.
    - **start**, **scales** - where the run starts, and the standard deviations of the prior.
    - **codes** - for each observed site the values that its distribution takes; see `supports.codes`.
    - **histogram** - its cost.
    - **choose** - `choose(norms, scale)` is given the private norms and `scale`, once they were charged: what is kept of the
      phase, a metric too, is kept by it alone."""

    plan: Plan
    statistic: Function
    start: BySite
    scales: BySite
    codes: tuple[str, ...]
    histogram: Charge
    choose: Callable[[Norms, float], None]

    @classmethod
    def starting(
        cls, z: BySite, split: SplitModel, plan: Plan, histogram: Charge, choose: Callable[[Norms, float], None],
        metric: Tree = None, is_white: bool = True, marked: Function = _same,
    ) -> "NormPhase":  # fmt: skip
        """The phase of a run that starts at the unconstrained latents z.

        - **metric** - has `coordinates(z)`, in which gradients are clipped, and their inverse, `latents(u)`; None: z itself.
        - **is_white** - whether the posterior is nearly white in a metric: scales are then 1.
        - **marked** - see `Mechanism.marked`."""
        coordinates, latents = (_same, _same) if metric is None else (metric.coordinates, metric.latents)
        log_likelihood = marked(lambda u, *rest: split.log_likelihood(latents(u), *rest))
        statistic = gradient_norm(log_likelihood, lambda u, *rest: is_outside(split, latents(u), *rest))
        with TRACING:
            if metric is None or not is_white:
                scales = coordinates(prior_scales(split, plan.public))
            else:
                scales = {site: np.ones(latent.shape) for site, latent in split.latents.items()}
            return cls(plan, statistic, coordinates(z), scales, codes(split), histogram, choose)

    def program(self, key: jax.Array) -> tuple[Program, tuple[Tree, ...]]:
        """The access of a run with this key as a program, proved, and its arguments."""
        noise, discretise = float(self.histogram.noise_multipliers[0]), self.histogram.mechanism.discretise

        def query(z: BySite, rows: Tree, public: Tree, key: jax.Array) -> Tree:
            return noisy_histogram(
                self.statistic, z, rows, public, key=key, noise_multiplier=noise, discretise=discretise
            )

        arguments = (self.at(), self.plan.rows, self.plan.public, keys.stream(key, "norms"))
        return prepare(query, arguments, rows=1, quickly=True), arguments

    @property
    def scale(self) -> float:
        """The median standard deviation of the prior."""
        return float(np.median(np.concatenate([np.ravel(scale) for scale in self.scales.values()])))

    def at(self) -> Tree:
        """The points at which gradients are taken: the start, and half a prior sd from it in two opposite directions."""
        rng = np.random.default_rng(0)
        half = {site: 0.5 * scale * rng.choice([-1.0, 1.0], np.shape(scale)) for site, scale in self.scales.items()}
        # Not at the start itself: NumPyro's Bernoulli, for one, has another gradient at logits of exactly 0.
        far = {site: jnp.stack([z + half[site], z - half[site]]).astype(z.dtype) for site, z in self.start.items()}
        return {"start": jax.tree.map(lambda z: z + 1e-4, self.start), "far": far}

    def found(self, counts: np.ndarray, noise_std: float) -> tuple[Norms, CountedRows]:
        """The norms, and the rows that have none, from noised counts."""
        scale, num_rows = self.scale, number_of(self.plan.rows)
        norms = Norms.fitted(counts, noise_std, num_rows, (-float(np.log2(scale)), _UNSURE), scale, _NEGLIGIBLE)
        bins = dict(silent=norm_histogram.SILENT, missing=norm_histogram.MISSING, outside=norm_histogram.OUTSIDE)
        shares = {kind: float(counts[number]) / num_rows for kind, number in bins.items()}
        octaves = norms.error if norms.are_hidden else None
        return norms, CountedRows(**shares, std=noise_std / num_rows, codes=self.codes, octaves=octaves)


def measure_norms(
    run: Run, phase_in: Callable[[Tree], NormPhase], budget: Budget, begin: Begin, located: Tree = None
) -> tuple[Run, CountedRows]:
    """Measure the norms of all rows' gradients by one access, charged first. Returns the run, whose steps are reserved, and the
    counts of its rows that have no norm.

    The budget must pay for all of it, and all programs are proved, those of the steps too, before anything is charged. The run's
    key is used up here. The caller goes on inside `after_histogram`.

    - **phase_in** - `phase_in(metric)`: the histogram's phase in a metric that was located, or in None, without one. The latter
      is what is proved beforehand.
    - **located** - accesses in the same session that find the metric, or None: their `charge`, the `digest` of their programs,
      and `metric(before)`, which makes them, each charged first by `before(number of accesses so far)`."""
    phase = phase_in(None)
    plan, charges = phase.plan, [*([] if located is None else [located.charge]), phase.histogram]
    every = [*charges, *plan.charges]
    budget.admit(every, run.run_id)
    prove(plan.method.mapped_chunk, plan.arguments, rows=1)
    program, arguments = phase.program(run.key)
    noises = [charge.noise_multipliers for charge in every]
    request = Request(
        what="clipping norm" if located is None else "frame and clipping norm", charges=charges, rows=plan.rows,
        program=program.digest + ("" if located is None else located.digest),
        shared=dict(settings=noises, public_arrays=plan.public, starting_values=phase.start), notes=plan.notes,
        begin=partial(begin, plan.rows, every), print_cost=plan.print_cost, later=(run.run_id, plan.what, plan.charges),
    )  # fmt: skip
    own_norm = "with a norm of your own, as clipping_norm=1.0, a run needs none of these"
    failing = concluding("the clipping norm", "", lambda: False, own_norm)
    with session(replace(run, run_id=f"{run.run_id}.norms"), request, budget) as opened, failing:
        if located is not None:
            phase = phase_in(located.metric(partial(opened.charge, 0)))
            program, arguments = phase.program(run.key)
        opened.charge(len(charges) - 1, 1)
        counts = np.asarray(jax.block_until_ready(program(*arguments)))
        norms, counted = phase.found(counts, float(phase.histogram.noise_multipliers[0]))
        phase.choose(norms, phase.scale)
    return replace(run, reservation=opened.later), counted


@contextlib.contextmanager
def after_histogram(run: Run) -> Iterator[None]:
    """Inside, a failure gives back what the run reserved and says that the histogram, if there was one, stays charged."""
    if run.reservation is None:
        yield
        return
    with run.reservation:
        try:
            yield
        except BaseException as error:
            error.add_note("The histogram that the clipping norm came from was charged before: see privacy_report().")
            raise
