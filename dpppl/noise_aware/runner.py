"""Calibrated private posteriors: noisy gradients and curvatures, and the posterior given what these say."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions.transforms import IndependentTransform

from dpppl.errors import ConclusionError, ConfigurationError, concluding
from dpppl.findings.finding import warn_of
from dpppl.noise_aware import conclusion
from dpppl.noise_aware.binding import BoundModel, bind
from dpppl.noise_aware.publishing import likelihood_of
from dpppl.noise_aware.recipe import RecipeOutcome
from dpppl.noise_aware.settings import NoiseAwareSettings, run_charge
from dpppl.noise_aware.verdict import NoiseAwareVerdict
from dpppl.published.likelihood import Likelihood
from dpppl.published.priors import Prior, Sensitivity
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, Start, Status
from dpppl.report.report import PrivacyReport
from dpppl.report.to_arviz import halves, to_inference_data
from dpppl.row_statistics.releases import Accesses, Released, prepared
from dpppl.row_statistics.shared_law import statistics_of
from dpppl.runs import placing
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING, on_host
from dpppl.runs.duration import Duration
from dpppl.runs.private_runner import after_run
from dpppl.runs.progress import bar_for
from dpppl.runs.session import Request, Run, session
from dpppl.types import Distribution, Document, Tree
from dpppl.validation import checked

_AGAIN = "sample_again(dpppl.secret_key(), ...) with the arguments of run makes samples and verdict of it at no cost"
_GOES_ON = "once the cause is mended, run with the same arguments goes on from there if it has a checkpoint"
_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"  # without a rate: phases differ too much


class NoiseAware(NoiseAwareSettings):
    """A private posterior that is calibrated at every epsilon: as wide as the data, the clipping and the noise make it.

    The run releases noisy gradients and curvatures of the likelihood, clipped without bias around what the model itself
    expects, and then samples from the posterior given these releases: exact prior times a normal surrogate that counts
    the privacy noise, the sampling of the data and the error of the curvature.

    - **model** - a NumPyro model with one data plate, proper priors, at most 10,000 coordinates (above 200, curvatures are
      released in blocks), and responses that can be simulated (no factor in the data plate).
    - **privacy** - a `dpppl.Privacy` that holds the budget and all that goes with it, instead of the next keywords.
    - **target_epsilon**, **target_delta** - the budget of this object, all of which one run uses but for `reserve`.
    - **noise_multiplier** - instead of a target: 1 / mu of mu-Gaussian differential privacy, for each run.
    - **clipping_norm**, **curvature_bound** - bounds on a row's score and curvature, in the coordinates of each look, in the
      first of which the prior is white. None: found from charged private histograms.
    - **coordinates** - the sites, by name, in which the likelihood is measured: all those through which it depends on
      latents, be they latents or deterministic sites (`effects = numpyro.deterministic("effects", mu + tau * z)`), outside
      of the data plate and real. None: found.
    - **num_samples** - posterior samples.
    - **num_draws** - responses drawn for each row from the model, where they are too many to list.
    - **num_data** - the number of rows, declared before the run; it is public in any case.
    - **data_plate** - the name of the rows' plate, where two fit.
    - **ledger** - a `dpppl.PrivacyLedger`, or the path of one, which all that is run on the same data shares.
    - **unit**, **max_rows_per_unit** - as for `dpppl.MCMC`: whose rows together the guarantee is for.
    - **reserve** - the share of the target, in [0, 1), that is kept for queries and later runs.
    - **checkpoint** - path of a file that lets a run that was killed go on where it was, with the same numbers and no second
      charge, on as many devices. It holds the run's key: keep it secret.
    - **print_cost** - whether to print a line with the cost before a run.
    - **mesh** - a jax.sharding.Mesh to shard rows over, as for `dpppl.MCMC`.
    - **name**, **labels** - of the analysis, for report and ledger; of elements, for all output: {"w": ["age", "smoker=yes"]}.
    - **width** - "model" (the default), or "sandwich": intervals that cover the pseudo-true value where the model is wrong.
    - **weights**, **max_weight** - the name under which `run` gets a private column of survey weights, and their public cap. A
      row's clipped score is multiplied by min(weight, cap) / cap, so sensitivity stays as it is; the width is a sandwich.
      Rows whose weight is negative or not finite are left out.
    - **progress_bar** - whether to show the phase of the run and how many of its accesses are made.

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

    @checked
    def privacy_plan(self) -> PrivacyReport:
        """The report that the next `run` would add up to, without data."""
        return self._planned([run_charge(self, self.budget.account())[0]])

    @on_host
    def run(self, rng_key: jax.Array, *args: Tree, **kwargs: Tree) -> None:
        """Make all releases and sample from the posterior given them; prints what it will cost first.

        - **rng_key** - one key, used once; take it from `dpppl.secret_key()`.
        - **args**, **kwargs** - the model's arguments; arrays are private rows unless marked `dpppl.Public`."""
        checkpoint, account = self._resumed()
        run = Run.opened(rng_key, checkpoint)
        bound = bind(self, args, kwargs, run.key)
        rows, public, coordinates, dimension = bound.rows, bound.public, bound.coordinates, bound.coordinates.dimension
        charge, scale = run_charge(self, account, bound.split.num_rows)
        self._label(bound.split)
        with TRACING:
            prior, is_normal = coordinates.prior(public, keys.stream(run.key, "prior"))
        account.admit([charge])
        responses, access_key = bound.responses, keys.stream(run.key, "accesses")
        statistics = statistics_of(responses, coordinates.latents, prior.first(), self.weights, self.most_scores)
        num_accesses = len(charge.noise_multipliers)
        with bar_for(num_accesses, visible=self.progress_bar, bar_format=_BAR) as bar:
            programs = prepared(statistics, access_key, rows, public, dimension)
            digest = ",".join(program.digest for program in programs.values())
            if run.checkpoint is not None:
                settings = charge.noise_multipliers, repr((self.bounds, self.width))
                run.checkpoint.hold(run.key, run.run_id, digest, (placing.contents(rows), public, prior, settings))
            num_gradients = num_accesses * bound.split.num_rows
            duration = Duration.of(bound.split, num_gradients, bound.responses, coordinates.moves)
            request = Request(
                what="NoiseAware", charges=[charge], rows=rows, notes=bound.notes, print_cost=self.print_cost,
                duration=duration.line(is_normal),
                program=digest, shared=dict(settings=charge.noise_multipliers, public_arrays=public),
                begin=partial(self._begin, bound),
            )  # fmt: skip
            with ExitStack() as stack:
                with bar.external_write_mode():
                    opened = stack.enter_context(session(run, request, self.budget))
                charging = partial(opened.charge, 0), charge.noise_multipliers, run.checkpoint
                made = Accesses(programs, access_key, rows, public, *charging)
                self._releases = Released(prior, is_normal, scale, [], public)
                with concluding("the posterior", _AGAIN, lambda: len(self.releases.values) == num_accesses, _GOES_ON):
                    found = conclusion.run_recipe_for(
                        self, bound, self._releases, made.asker(self._releases.values, bar)
                    )
            bar.set_description("posterior")
            self._conclude(bound, found, keys.stream(run.key, "posterior"))
        opened.processes.enter("end", run.forget)

    @on_host
    def sample_again(self, rng_key: jax.Array, *args: Tree, **kwargs: Tree) -> None:
        """Samples and verdict anew, from `releases` alone: at no cost, and without a look at private values.

        - **rng_key** - a key for the samples.
        - **args**, **kwargs** - those of `run`; of private arrays only shapes and dtypes count, and which rows share an id.

        Raises ConfigurationError before `run`, and where that was interrupted before it had made all accesses."""
        self._sample_again(rng_key, args, kwargs, False)

    @on_host
    def sample_model_width(self, rng_key: jax.Array, *args: Tree, **kwargs: Tree) -> None:
        """Repeat `sample_again` by the model's variance of scores, also after width="sandwich"; the same arguments. Raises
        ConfigurationError with `weights`, of whose squares the model's variance is made, and these are not released."""
        if self.weights is not None:
            raise ConfigurationError("weights make the likelihood a pseudo-likelihood, which has no model-based width.")
        self._sample_again(rng_key, args, kwargs, True)

    def _sample_again(self, rng_key: jax.Array, args: Tree, kwargs: Tree, is_modelled: bool) -> None:
        key, releases = keys.as_key(rng_key), self.releases
        bound, given = bind(self, args, kwargs, key), after_run(self._coordinates, "sample_again").split.arguments.words
        if bound.split.arguments.words != given:
            raise ConfigurationError(f"give arguments of run's shapes, {given}; got {bound.split.arguments.words}.")
        found = conclusion.run_recipe_for(self, bound, releases, releases.asker())
        self._conclude(bound, found, keys.stream(key, "posterior"), is_modelled)

    def _begin(self, bound: BoundModel, charges: Sequence[Charge], origin: KeyOrigin) -> PrivacyReport:
        self._coordinates, self._samples, self._verdict, self._mixture = bound.coordinates, None, None, None
        return self._begun(bound.split, Start.PRIOR_MEAN, bound.rows, charges, origin)

    def _conclude(self, bound: BoundModel, found: RecipeOutcome, key: jax.Array, is_modelled: bool = False) -> None:
        """Samples from what a recipe `found`, then the verdict; `is_modelled`: whether scores vary as the model has it."""
        with concluding("samples", _AGAIN):
            given = self, bound, self.releases, found
            found_posterior, samples = conclusion.drawn_posterior(*given, key, is_modelled)
            self._mixture, self._samples, self._verdict = found_posterior.mixture, samples, None
            self._provenance = self._provenance.ended(Status.COMPLETE)
        with concluding("the verdict", f"get_samples(allow_unconverged=True) returns the samples, and {_AGAIN}"):
            self._verdict = conclusion.judged(*given, found_posterior, self._names)

    @property
    def releases(self) -> Released:
        """All that the last run has released so far, with its prior; it pickles."""
        return after_run(self._releases, "releases")

    @property
    def verdict(self) -> NoiseAwareVerdict:
        """The verdict on the last run, from its releases."""
        if self._verdict is None and self._samples is not None:
            raise ConclusionError(
                "the verdict of the last run could not be computed; sample_again tries it once more, for free."
            )
        return after_run(self._verdict, "verdict")

    @checked
    def get_samples(self, group_by_chain: bool = False, *, allow_unconverged: bool = False) -> dict[str, Tree]:
        """Samples by site, (num_samples, ...), as `numpyro.infer.MCMC.get_samples`; deterministic sites of latents too.

        - **group_by_chain** - whether to put an axis of length 1 first.
        - **allow_unconverged** - whether to return samples that the verdict refuses without an UnconvergedWarning."""
        found = after_run(self._samples, "get_samples")
        warn_of(lambda: self.verdict.refusals, "get_samples(allow_unconverged=True)", allow_unconverged)
        return jax.tree.map(lambda x: x[None] if group_by_chain else x, found)

    @checked
    def print_summary(self, prob: float = 0.9, exclude_deterministic: bool = True) -> None:
        """NumPyro's summary table, then the verdict, and what of each latent was learned from the data.

        - **prob** - the mass of the intervals.
        - **exclude_deterministic** - whether to leave out deterministic sites."""
        after_run(self._samples, "print_summary")
        self._print_name()
        found = self.get_samples(group_by_chain=True, allow_unconverged=True)
        latents = {} if self._coordinates is None else self._coordinates.split.latents
        kept = [name for name in found if not exclude_deterministic or name in latents]
        conclusion.print_conclusion({name: np.asarray(found[name]) for name in kept}, self.verdict, prob, self._labels)

    @checked
    def bayes_factor(self, element: str, value: float = 0.0, *, allow_unconverged: bool = False) -> float:
        """Compute the Bayes factor of the point null `element` = `value` against the model; above 1 it favours the null.

        The ratio of posterior to prior density at the value (Dickey 1971), both in closed form: the posterior is a mixture of
        normal laws and counts the privacy noise. Free: a function of the releases and public values.

        - **element** - a latent, with its index or label where it is an array: "mu", "weights[2]", "w[0,1]".
        - **value** - the null's value, in the latent's own unit.
        - **allow_unconverged** - whether to answer without an UnconvergedWarning where the verdict refuses the posterior.

        Assumes that nuisance latents have the same prior under the null as in the model given the null. Of many elements some
        look significant by chance: give each null higher prior odds, or use `uncertainty.discoveries`.
        Raises ConfigurationError before `run`, and for a model whose unconstrained priors are not normal."""
        name = "bayes_factor"
        mixture = after_run(self._mixture, name)
        coordinates, releases = after_run(self._coordinates, name), after_run(self._releases, name)
        names = [*map(self._names.named, coordinates.names())]
        element = self._names.named(element)
        if not releases.is_normal or element not in names:
            known = f"elements: {', '.join(names[:6])}" if releases.is_normal else "the coordinates have other priors"
            raise ConfigurationError(
                "bayes_factor needs the name of a latent's element, in a model whose priors are all normal (or log-normal); "
                f"{known}."
            )
        warn_of(lambda: self.verdict.refusals, "bayes_factor(..., allow_unconverged=True)", allow_unconverged)
        number, prior = names.index(element), releases.prior
        split, site, transforms = coordinates.split, [*coordinates.site_of.values()][number], {}

        def visit(site: Document, transform: Distribution) -> Tree:
            transforms[site["name"]] = transform
            return jnp.zeros(split.latents[site["name"]].shape)

        with TRACING:
            split.visit_latents(visit, split.placeholder_public() if releases.public is None else releases.public)
            transform = transforms[site]
            while isinstance(transform, IndependentTransform):
                transform = transform.base_transform
            if transform.domain.event_dim:
                raise ConfigurationError(
                    f"the elements of '{site}' depend on each other: bayes_factor has no value for one alone."
                )
            place = float(transform.inv(jnp.asarray(value, float)))
        if not np.isfinite(place):
            raise ConfigurationError(f"value is outside the support of '{site}'.")
        variance = float(prior.variance[number])
        before = -0.5 * ((place - prior.mean[number]) ** 2 / variance + np.log(2.0 * np.pi * variance))
        return float(np.exp(mixture.log_density(number, place) - before))

    @checked
    def likelihood(self, name: str = "the owner", *, allow_unconverged: bool = False) -> Likelihood:
        """The likelihood of the latents given the releases: an object to publish, which needs neither the rows nor the model.

        - **name** - of the owner, for reports of pooled likelihoods.
        - **allow_unconverged** - whether to give it without an UnconvergedWarning where the verdict refuses the posterior.

        Others multiply it by priors of their own, or by likelihoods of other owners (`dpppl.pool`). Free: a function of the
        releases and public values. Raises ConfigurationError before `run`, and, naming the site, for a support that a file cannot
        name."""
        if not (name and name.isprintable()):
            raise ConfigurationError("name is the owner's, in printable letters: likelihood('Hospital A').")
        mixture, coordinates = after_run(self._mixture, "likelihood"), after_run(self._coordinates, "likelihood")
        warn_of(lambda: self.verdict.refusals, "likelihood(..., allow_unconverged=True)", allow_unconverged)
        return likelihood_of(coordinates, mixture, self.releases.public, self.privacy_report(), self.verdict, name)

    @checked
    def sensitivity(
        self, rng_key: jax.Array, priors: Mapping[str, Prior], num_samples: int = 2_000, prob: float = 0.9,
        *, allow_unconverged: bool = False,
    ) -> Sensitivity:  # fmt: skip
        """Compare posteriors under several priors, at no cost: `Likelihood.sensitivity` of `likelihood()`.

        - **rng_key**, **priors**, **num_samples**, **prob**, **allow_unconverged** - see there, and `likelihood`."""
        found = self.likelihood(allow_unconverged=allow_unconverged).sensitivity(rng_key, priors, num_samples, prob)
        return replace(found, rows=tuple(r._replace(element=self._labels.named(r.element)) for r in found.rows))

    @checked
    def to_arviz(self, *, allow_unconverged: bool = False, coords: Tree = None, dims: Tree = None) -> Tree:
        """InferenceData (ArviZ 1: a DataTree) of the samples, with the privacy report as attributes; without observed data and
        log likelihood, which would be private rows. Draws are given as two chains, from which ArviZ computes r-hat. Needs the
        [arviz] extra.

        - **allow_unconverged** - whether to take samples that the verdict refuses without an UnconvergedWarning.
        - **coords**, **dims** - labels of axes, and names of each site's axes, as ArviZ takes them; a plate's axis has its name.
        """
        after_run(self._samples, "to_arviz")
        found = halves(self.get_samples(allow_unconverged=allow_unconverged))
        return to_inference_data(found, self.privacy_report(), self._dims, coords, dims, self._labels)
