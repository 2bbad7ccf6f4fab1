"""The result of a private SVI run: parameters, iterates, convergence, posterior draws, cost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import autoguide
from numpyro.infer.util import transform_fn

from dpppl.errors import ConfigurationError
from dpppl.findings.counted_rows import ClippedRows, CountedRows
from dpppl.findings.finding import warn_of
from dpppl.information_flow.row_free import proved
from dpppl.randomness import keys
from dpppl.report import render
from dpppl.report.labels import NO_LABELS, Labels
from dpppl.report.report import PrivacyReport
from dpppl.report.to_arviz import halves, to_inference_data
from dpppl.runs.driver import TRACING
from dpppl.svi.elbo import Objective, check_params
from dpppl.svi.guides import parts_of
from dpppl.svi.latents import learned_latents
from dpppl.svi.noise_aware_params import noise_aware_params
from dpppl.svi.verdict import TAIL, Convergence, convergence, tail_of
from dpppl.types import BySite, Foreign, Tree
from dpppl.validation import checked, positive_integer

_MOST_NUMBERS = 10_000_000
_FUNCTIONS = ("objective", "public")
"""Fields that a pickle of a result leaves out: functions, and the public arrays that they use."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SVIResult:
    """The result of a private SVI run. All of it is private output, covered by `privacy_report()`.

    - **last_params** - constrained parameters of the last step, by name; `params` are the averaged ones to use.
    - **state** - the last `SVIState`, without its key: `init_state` of a run that goes on.
    - **trajectory** - unconstrained iterates by parameter, (number kept, ...).
    - **gradients** - noisy ascent directions by parameter, averaged between kept iterates, (number kept, ...).
    - **transforms** - from unconstrained to constrained parameters, by name.
    - **report** - the privacy report when the run ended.
    - **clipped** - share of clipped rows in the last half of the run, None where it was not counted.
    - **counted** - rows that do not inform the posterior, None where they were not counted.
    - **objective**, **public** - what draws from the guide need; a pickle leaves them out.
    - **labels** - of elements, constrained.

    There are no losses. Draw from an unpickled result's `params` with the guide, which has a pickle of its own."""

    last_params: dict[str, jax.Array]
    state: Tree
    trajectory: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    transforms: Mapping[str, Tree]
    report: PrivacyReport
    clipped: ClippedRows | None = None
    counted: CountedRows | None = None
    objective: Objective | None = None
    public: BySite | None = None
    labels: Labels = NO_LABELS

    @property
    def guide(self) -> Foreign:
        """The fitted guide, set up without data; the user's own works as well. None in a pickle."""
        return None if self.objective is None else self.objective.guide

    @cached_property
    def params(self) -> dict[str, jax.Array]:
        """`averaged_params()`: constrained parameters by name."""
        return self.averaged_params()

    @cached_property
    def convergence(self) -> Convergence:
        """Whether the run has arrived, and what was learned, from its noisy gradients, its count of clipped rows and draws of
        guide and prior. Free."""
        latents: Tree = None
        is_all = False
        finite = all(np.all(np.isfinite(x)) for x in jax.tree.leaves(self.trajectory))
        if finite and self.objective is not None and self.objective.split.latents and not self.objective.split.local:
            phi = jax.tree.map(lambda x: jnp.mean(x, axis=0), tail_of(self.trajectory, TAIL))
            with TRACING:
                latents, is_all = learned_latents(self.objective, self.public or {}, phi, self.gradients)
        metric = None if self.objective is None else self.objective.metric
        is_mean_field = isinstance(self.guide, autoguide.AutoNormal | autoguide.AutoDiagonalNormal)
        found = convergence(
            self.gradients, clipped=self.clipped, counted=self.counted, latents=latents, by_parameter=not is_all,
            framed=metric is not None, narrowed=metric.narrowed if metric is not None and is_mean_field else None,
            metric_findings=() if metric is None else metric.findings,
        )  # fmt: skip
        shapes = {} if self.objective is None else {s: x.shape for s, x in self.objective.split.latents.items()}
        return replace(found, labels=self.labels.fitting(shapes))

    @property
    def verdict(self) -> Convergence:
        """Whether the parameters may be read: `.line()`, `.by_site`, `.refusals`; the same as `convergence`."""
        return self.convergence

    @cached_property
    def _refusals(self) -> list[str]:
        """Refusals that follow from the noisy gradients alone; none where there are very many numbers."""
        if self.objective is None:  # in a pickle
            return self.convergence.refusals
        if sum(np.size(leaf) for leaf in jax.tree.leaves(self.gradients)) > _MOST_NUMBERS:
            return []
        metric = self.objective.metric
        return convergence(
            self.gradients, clipped=self.clipped, counted=self.counted, framed=metric is not None,
            metric_findings=() if metric is None else metric.findings,
        ).refusals  # fmt: skip

    @property
    def losses(self) -> Tree:
        """There are none."""
        raise AttributeError(
            "there are no losses: each would be another look at the data. result.convergence says, for free, whether the "
            "run has arrived; svi.estimate_elbo is a charged query."
        )

    @checked
    def privacy_report(self) -> PrivacyReport:
        """The cost of everything that its SVI object had run when this run ended."""
        return self.report

    @checked
    def averaged_params(self, tail: float = 0.5, *, allow_unconverged: bool = False) -> dict[str, jax.Array]:
        """Constrained parameters, averaged unconstrained over the last share `tail` of the trajectory.

        - **tail** - the share of the trajectory, in (0, 1].
        - **allow_unconverged** - whether to return parameters of a run that has not arrived without an UnconvergedWarning. (Of a
          run that keeps more than ten million numbers `verdict` alone says it.)

        Averaging is free and takes out most of the privacy noise, if the optimiser has arrived (Polyak, Juditsky 1992).
        Where it still moves, the average is behind the last iterate. Networks and flows are averaged like the rest: all
        iterates of a tail lie in one basin, unless the learning rate is large enough to leave it."""
        averages = jax.tree.map(lambda x: jnp.mean(x, axis=0), tail_of(self.trajectory, tail))
        warn_of(lambda: self._refusals, "averaged_params(allow_unconverged=True)", allow_unconverged)
        constrain = proved(
            lambda phi: dict(transform_fn(self.transforms, phi)), averages, num_rows=self.report.num_rows
        )
        found: dict[str, Tree] = constrain(averages)
        return found

    @checked
    def noise_aware_params(self, tail: float = 0.5) -> dict[str, jax.Array]:
        """Parameters of a Gaussian guide whose location is corrected, and whose spread widened, for the noise it saw.

        - **tail** - the share of the trajectory to measure noise on, in (0, 1].

        Near the optimum a step's gradient in the location m is A (m* - m) + noise, where A is the inverse of the guide's own
        covariance S. So m + S g, from averages over the tail of iterates and gradients, estimates m* with covariance V = S
        Var(g) S, whether or not the iterates have arrived. Var(g), measured over the tail, includes privacy noise, subsampling
        and guide draws. Before the run, m* has the prior's mean and the prior's covariance minus S. This Gaussian and the
        estimate are combined by Bayes' rule; the returned covariance is S plus the posterior covariance of m*. S is taken to be
        no wider than the prior, and so is the result: noise also makes the guide's own spread wander.

        Assumes: a posterior close to Gaussian over the tail's iterates; independent noise from step to step; a guide
        covariance that has converged (its own error is not counted); a prior like the Gaussian of its moments; for
        AutoNormal and AutoDiagonalNormal a diagonal A. Clipping bias is not in it. A guide that is still too wide enters
        squared: the result is shrunk to the prior and predicts worse than `averaged_params`. Run until spreads no longer
        depend on where they started. A guide whose spread privacy noise has made too narrow does more harm: the result is
        too narrow, too. Warns where a spread's logarithm moves by more than .25 over the tail (standard deviation).
        For AutoNormal, AutoDiagonalNormal and AutoMultivariateNormal.
        Reference: the model of the gradients is that of Alrawajfeh, Jälkö, Honkela (2025), arXiv 2410.19371, who infer A
        and m* from the gradients alone; here A comes from the guide. Jälkö, Prediger, Honkela, Kaski (2023) infer the
        noise from the iterates."""
        objective = self._with_functions("noise_aware_params")
        with TRACING:
            return noise_aware_params(
                objective, self.public or {}, tail_of(self.trajectory, tail), tail_of(self.gradients, tail)
            )

    @checked
    def sample_posterior(
        self, rng_key: jax.Array, num_samples: int, params: BySite | None = None
    ) -> dict[str, jax.Array]:
        """Draws from the guide at `params` (by default the averaged ones), by site, leading axis `num_samples`.

        - **rng_key** - a key of the draws.
        - **num_samples** - number of draws.
        - **params** - constrained parameters by name; None: the averaged ones."""
        num_samples = positive_integer(num_samples, name="sample_posterior(rng_key, num_samples): num_samples")
        objective, params = self._with_functions("sample_posterior"), dict(self.params if params is None else params)
        rng_key = keys.as_key(rng_key)
        check_params(params, objective.shapes)

        def draws(rng_key: jax.Array, params: Tree, public: Tree) -> dict[str, jax.Array]:
            if all(isinstance(part, autoguide.AutoGuide) for part in parts_of(self.guide)):
                # NumPyro's AutoDelta hands raw key data to `seed`, which takes those of threefry.
                key = keys.threefry(rng_key) if isinstance(self.guide, autoguide.AutoDelta) else rng_key
                return dict(self.guide.sample_posterior(key, params, sample_shape=(num_samples,)))
            return objective.sample(params, rng_key, num_samples, public)

        with TRACING:
            given = rng_key, params, self.public or {}
            found: dict[str, Tree] = proved(draws, *given, num_rows=None)(*given)
            return found

    @checked
    def to_arviz(
        self, rng_key: jax.Array, num_samples: int = 1000, params: BySite | None = None, *, coords: Tree = None,
        dims: Tree = None,
    ) -> Foreign:  # fmt: skip
        """InferenceData (ArviZ 1: a DataTree) of posterior draws, with the privacy report as attributes. Needs `dpppl[arviz]`.

        - **rng_key** - a key of the draws.
        - **num_samples** - number of draws.
        - **params** - constrained parameters by name; None: the averaged ones.
        - **coords**, **dims** - labels of axes, and names of each site's axes, as ArviZ takes them; a plate's axis has its name.

        Draws are independent; they are given as two chains, from which ArviZ computes r-hat. It holds no observed data and no log
        likelihood: both would be private rows."""
        draws = halves(self.sample_posterior(rng_key, num_samples, params))
        dims_of_plates = self._with_functions("to_arviz").split.dims
        return to_inference_data(draws, self.report, dims_of_plates, coords, dims, self.labels)

    def __repr__(self) -> str:
        epsilon, delta, name = self.report.epsilon, self.report.delta, self.report.name
        called = "" if name is None else f" '{name}'"
        cost = "" if epsilon is None else f", epsilon {epsilon:.4g} at delta {delta:g}"
        shapes = [f"{name} {_shape(value)}" for name, value in self.last_params.items()]
        return f"SVIResult{called}: {int(self.state.i)} steps{cost}\n{self.convergence}\nparams: {', '.join(shapes)}"

    def _repr_html_(self) -> str:
        return render.cell(repr(self), self.report._repr_html_())

    def __getstate__(self) -> dict[str, object]:
        assert self.convergence  # a pickle holds it instead of the functions
        return {name: value for name, value in vars(self).items() if name not in _FUNCTIONS}

    def _with_functions(self, name: str) -> Objective:
        if self.objective is None:
            raise ConfigurationError(
                f"{name} needs the guide, which a pickled or copied result does not hold. Use your own, set up by "
                "svi.init(rng_key, *args) or pickled by itself: guide.sample_posterior(rng_key, result.params, "
                "sample_shape=(num_samples,)), or Predictive(guide, params=result.params, num_samples=...)."
            )
        return self.objective


def _shape(value: jax.Array) -> str:
    """Shape of a parameter, for printing."""
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(value)]
    is_leaf = jax.tree_util.all_leaves([value])
    return str(np.shape(value)) if is_leaf else f"({sum(sizes):,} numbers in {len(sizes)} arrays)"
