"""The two parts of the ELBO and their gradients.

ELBO = E_q[sum of the rows' log likelihoods] + E_q[log p(z) - log q(z)]. Only the first part sees data, through the
door. The second is NumPyro's own ELBO of the model without its rows: exact, neither clipped nor noised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO, autoguide
from numpyro.infer.util import compute_log_probs, transform_fn

from dpppl.access.centring import unnumbered
from dpppl.access.mechanism import ROW_NUMBER
from dpppl.errors import ConfigurationError
from dpppl.frame.metric import Metric
from dpppl.model.responses import Responses
from dpppl.model.split import SplitModel
from dpppl.model.structure import plates_of
from dpppl.randomness import keys
from dpppl.svi.dropout import AutoDropout
from dpppl.svi.guides import data_free, on_rows, unconstrained
from dpppl.types import BySite, Foreign, Function, Tree


class RowSum(NamedTuple):
    """The sum of row gradients that a step needs.

    - **log_likelihood** - `log_likelihood(position, row, public)`, of one row: the mean over particles, or that of one particle
      where each draws responses of its own.
    - **to_latents** - `to_latents(position, public)`: the latents there, and the model's Public arrays.
    - **position**, **public** - where the gradient is taken, and what else enters it.
    - **direction** - `direction(noisy, rate)`: the ascent direction in phi, from the noisy sum, like `position`."""

    log_likelihood: Function
    to_latents: Function
    position: BySite
    public: Tree
    direction: Function


def check_params(given: Tree, shapes: Mapping[str, Tree], name: str = "params", needs_all: bool = True) -> None:
    """Raise ConfigurationError for parameters of other names or shapes than a guide has; `needs_all`: no fewer ones will do."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{name} is a {type(given).__name__}; give a dict of constrained values by parameter: {sorted(shapes)}."
        )
    if (unknown := sorted(map(str, given.keys() - shapes.keys()))) or (needs_all and shapes.keys() - given.keys()):
        raise ConfigurationError(f"{name} names {unknown or sorted(given)}, but the parameters are {sorted(shapes)}.")
    for parameter in given:
        if (shape := jax.tree.map(np.shape, given[parameter])) != shapes[parameter]:
            raise ConfigurationError(
                f"{name}: parameter '{parameter}' has shape {shape}; give one of shape {shapes[parameter]}."
            )


@dataclass(frozen=True, eq=False)
class Objective:
    """An ELBO split in two. Methods take `phi`, the guide's parameters, unconstrained; directions ascend.

    - **split** - the model's log prior and one row's log likelihood.
    - **guide** - the guide, set up without data.
    - **transforms** - from unconstrained to constrained parameters, by name.
    - **loss** - NumPyro's ELBO, for the prior and the entropy.
    - **num_particles** - guide draws a step.
    - **reads_rows** - whether the guide draws latents of rows, or the model has parameters.
    - **captured** - arrays that model and guide captured, in words.
    - **responses** - the model's distribution of a row's responses, for centred clipping; else None.
    - **shapes** - of the constrained parameters, by name.
    - **metric** - the frame in which aligned gradients are clipped and noised, None without one.
    - **wide_scale** - the median prior sd of the latents of a wide model, None of others.
    - **codes** - which values the observed sites take; see `supports.codes`."""

    split: SplitModel
    guide: Foreign = field(repr=False)
    transforms: Mapping[str, Tree] = field(repr=False)
    loss: Foreign
    num_particles: int
    reads_rows: bool = False
    captured: tuple[str, ...] = ()
    responses: Responses | None = None
    shapes: Mapping[str, Tree] = field(default_factory=dict)
    metric: Metric | None = None
    wide_scale: float | None = None
    codes: tuple[str, ...] = ()

    def constrain(self, phi: BySite) -> dict[str, jax.Array]:
        """The parameters as NumPyro's users see them."""
        return dict(transform_fn(self.transforms, phi))

    def sample(self, params: Tree, rng_key: jax.Array, num_samples: int, public: Tree) -> dict[str, jax.Array]:
        """Draws of the latents that all rows share, constrained, by site."""

        def one(key: jax.Array) -> Tree:
            guide = handlers.seed(data_free(self.guide, self.split, public), key)
            trace = handlers.trace(handlers.substitute(guide, data=dict(params))).get_trace()
            return {name: trace[name]["value"] for name in self.split.latents}

        return jax.vmap(one)(jax.random.split(rng_key, num_samples))

    def draw(self, phi: BySite, key: jax.Array, public: Tree) -> Tree:
        """One guide draw: (its term of E[log p(z) - log q(z)], its unconstrained latents z)."""
        traces: dict[str, Tree] = {}

        def recorded(name: str, function: Function) -> Tree:
            def run() -> Tree:
                with handlers.trace() as traces[name]:
                    return function()

            return run

        params = self.constrain(phi)
        dropout = isinstance(self.guide, AutoDropout)
        guide = (lambda *args, **kwargs: autoguide.AutoDelta.__call__(self.guide)) if dropout else self.guide
        model, guide = (data_free(function, self.split, public) for function in (self.split.model, guide))
        if type(self.loss) is Trace_ELBO:  # its own sum is over a set of names, whose order is another in each process
            of_model, of_guide = jax.random.split(key)
            log_q, traces["guide"] = compute_log_probs(handlers.seed(guide, of_guide), (), {}, params)
            replayed = handlers.replay(handlers.seed(model, of_model), traces["guide"])
            log_p, traces["model"] = compute_log_probs(replayed, (), {}, params)
            prior = sum(log_p.values(), start=jnp.zeros(())) - sum(log_q.values())
        else:
            prior = -self.loss.loss(key, params, recorded("model", model), recorded("guide", guide))
        z = unconstrained(self.guide, traces, phi, self.split)
        return prior, self.guide.drop(z, jax.random.fold_in(key, 1)) if dropout else z

    def draws(self, phi: BySite, key: jax.Array, public: Tree) -> Tree:
        """The mean of the prior terms of all particles, and their latents, stacked where there is more than one."""
        if self.num_particles == 1:
            return self.draw(phi, key, public)
        subkeys = jax.random.split(key, self.num_particles)
        prior, z = jax.vmap(self.draw, (None, 0, None))(phi, subkeys, public)
        return jnp.mean(prior), z

    def aligned(self, phi: BySite, key: jax.Array, public: Tree) -> RowSum:
        """The sum of row gradients with respect to the latents.

        The latents of all particles are the coordinates of one vector, clipped jointly; pulling the noisy sum back
        through the guide is post-processing. The derivative of log q(g(phi, eps); phi) is the total one."""
        (prior, z), pullback = jax.vjp(lambda phi: self.draws(phi, key, public), phi)
        metric = self.metric

        def direction(noisy: BySite, rate: float) -> Tree:
            if metric is not None:
                noisy = jax.tree.map(lambda leaf: leaf / metric.kept, metric.gradient(noisy))
            per_particle = jax.tree.map(lambda leaf: leaf / (rate * self.num_particles), noisy)
            return pullback((jnp.ones_like(prior), per_particle))[0]

        of_rows = self._sum_over_particles if self.responses is None else self.split.log_likelihood
        if metric is None:
            return RowSum(of_rows, lambda z, public: (z, public), z, public, direction)
        of_u = lambda u, *rest: of_rows(metric.latents(u), *rest)  # noqa: E731
        return RowSum(of_u, lambda u, public: (metric.latents(u), public), metric.coordinates(z), public, direction)

    def per_parameter(self, phi: BySite, key: jax.Array, public: Tree) -> RowSum:
        """The sum of row gradients with respect to phi itself."""
        prior = jax.grad(lambda phi: self.draws(phi, key, public)[0])(phi)
        direction = lambda noisy, rate: jax.tree.map(lambda exact, leaf: exact + leaf / rate, prior, noisy)  # noqa: E731
        latents = lambda phi, given: (self.draws(phi, given[1], given[0])[1], given[0])  # noqa: E731
        return RowSum(self.mean_log_likelihood, latents, phi, (public, key), direction)

    def _sum_over_particles(self, z: BySite, row: Tree, public: Tree, responses: object = None) -> jax.Array:
        if self.num_particles == 1:
            return self.split.log_likelihood(z, row, public, responses)
        return jnp.sum(jax.vmap(self.split.log_likelihood, (0, None, None, None))(z, row, public, responses))

    def mean_log_likelihood(self, phi: BySite, row: Tree, public_and_key: Tree, responses: object = None) -> jax.Array:
        """The row's part of the ELBO, a mean over particles: its log likelihood, and the terms of its own latents."""
        public, key = public_and_key
        if self.reads_rows:
            return self._local_terms(phi, row, public, key)
        _, z = self.draws(phi, key, public)
        return self._sum_over_particles(z, row, public, responses) / self.num_particles

    def _local_terms(self, phi: BySite, row: Tree, public: Tree, key: jax.Array) -> jax.Array:
        """log p(row, its latents | z) - log q(its latents | row), a mean over particles.

        All rows share the draws of z; each draws its own latents, by its public number."""
        params = self.constrain(phi)
        rows = {label: jnp.asarray(value)[None] for label, value in unnumbered(row).items()}

        def particle(key: jax.Array) -> Tree:
            common = handlers.seed(data_free(self.guide, self.split, public), key)
            trace = handlers.trace(handlers.substitute(common, data=params)).get_trace()
            fixed = params | {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}
            row_key = jax.random.fold_in(keys.stream(key, "local"), row[ROW_NUMBER])
            guide = handlers.seed(on_rows(self.guide, self.split, rows, public, hide_rows=False), row_key)
            log_q, drawn = compute_log_probs(guide, (), {}, fixed)
            model = on_rows(self.split.model, self.split, rows, public, hide_rows=False)
            log_p, sites = compute_log_probs(handlers.replay(model, drawn), (), {}, params)
            inside = [name for name in log_p if self.split.data_plate in plates_of(sites[name])]
            return sum(log_p[name] for name in inside) - sum(log_q[name] for name in self.split.local)

        subkeys = [key] if self.num_particles == 1 else jax.random.split(key, self.num_particles)
        return sum(particle(k) for k in subkeys) / self.num_particles


def checked_loss(guide: object, loss: object = None) -> Foreign:
    """`loss`, an ELBO of NumPyro with one particle; by default the one whose KL terms are in closed form where these are
    right whatever the model: for mean-field guides. Raises ConfigurationError for others."""
    if loss is None:
        loss = TraceMeanField_ELBO() if type(guide) is autoguide.AutoNormal else Trace_ELBO()
    is_one = isinstance(loss, Trace_ELBO | TraceMeanField_ELBO) and loss.num_particles == 1 and loss.sum_sites
    if not is_one or getattr(loss, "multi_sample_guide", False):
        raise ConfigurationError(
            "loss must be NumPyro's Trace_ELBO() or TraceMeanField_ELBO() with one particle, such as Trace_ELBO(); use SVI's own "
            "num_particles."
        )
    return loss
