"""Which guides are safe, how they are set up without data, and MC Dropout."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import autoguide, init_to_median

from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.model import SplitModel
from dpppl.model_handlers import BindPlate

_READ_DATA = {
    autoguide.AutoLaplaceApproximation: "AutoMultivariateNormal",
    autoguide.AutoDAIS: "AutoMultivariateNormal or AutoIAFNormal",
    autoguide.AutoSemiDAIS: "a hand-written amortised guide",
    autoguide.AutoSurrogateLikelihoodDAIS: "AutoMultivariateNormal or AutoIAFNormal",
}


class AutoDropout(autoguide.AutoDelta):
    """MC Dropout as a guide: the latents are theta * m / (1 - rate), with masks m of zeros and ones.

    `rate`: the probability that a unit is dropped. `sites`: the latent sites it acts on; by default those with at least
    two axes (weights of layers). A mask holds one number for each input unit, the second last axis of a site; each
    number of a site with one axis has its own. The objective is E[log likelihood] + log prior(theta), as in MC Dropout;
    posterior draws use fresh masks. For use with dpppl.SVI.

    Raises ConfigurationError unless 0 < rate < 1. Reference: Gal, Ghahramani (2016), section 3.

    >>> from numpyro import sample, distributions as dist
    >>> AutoDropout(lambda x: sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2)), rate=0.5).rate
    0.5
    """

    def __init__(self, model, *, rate: float, sites=None, prefix="auto", init_loc_fn=init_to_median):
        if not (isinstance(rate, int | float) and 0.0 < rate < 1.0):
            raise ConfigurationError("AutoDropout: rate is the probability of dropping a unit, in (0, 1).")
        self.rate, self.sites = float(rate), None if sites is None else tuple(sites)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)

    def _setup_prototype(self, *args, **kwargs):
        super()._setup_prototype(*args, **kwargs)
        dropped = [name for name, value in self._init_locs.items() if jnp.ndim(value) > 1]
        self.sites = tuple(dropped) if self.sites is None else self.sites
        if not self.sites or not set(self.sites) <= set(self._init_locs):
            raise ConfigurationError(f"AutoDropout: sites must be some of the latent sites {sorted(self._init_locs)}.")
        for name in self.sites:
            support = self.prototype_trace[name]["fn"].support
            if not _is_real(support):
                raise ConfigurationError(f"AutoDropout: site '{name}' is not real-valued and cannot be dropped to 0.")

    def drop(self, values: Mapping[str, Any], rng_key) -> dict[str, Any]:
        """`values` by site with fresh masks."""
        assert self.sites is not None
        keep, dropped = 1.0 - self.rate, dict(values)
        for site_key, name in zip(jax.random.split(rng_key, len(self.sites)), self.sites):
            shape = jnp.shape(values[name])
            units = (*shape[:-1], 1) if len(shape) > 1 else shape
            dropped[name] = values[name] * jax.random.bernoulli(site_key, keep, units) / keep
        return dropped

    def sample_posterior(self, rng_key, params, *args, sample_shape=(), **kwargs):
        values = {name: params[f"{name}_{self.prefix}_loc"] for name in self._init_locs}
        count = 1
        for length in sample_shape:
            count *= length
        draws = jax.vmap(lambda key: self._postprocess(self.drop(values, key)))(jax.random.split(rng_key, count))
        return jax.tree.map(lambda leaf: leaf.reshape(*sample_shape, *leaf.shape[1:]), draws)

    def _postprocess(self, values):
        unconstrained = {n: biject_to(self.prototype_trace[n]["fn"].support).inv(v) for n, v in values.items()}
        return self._postprocess_fn(unconstrained)

    def __call__(self, *args, **kwargs):
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        with handlers.block(hide=list(self._init_locs)):
            values = super().__call__(*args, **kwargs)
        key = numpyro.prng_key()
        dropped = values if key is None else self.drop(values, key)
        return {
            name: numpyro.sample(name, dist.Delta(value, event_dim=jnp.ndim(value))) for name, value in dropped.items()
        }


def check_guide(guide) -> None:
    """Refuse guides that read data, or have been called on them."""
    parts = list(guide) if isinstance(guide, autoguide.AutoGuideList) else [guide]
    for part in parts:
        for kind, instead in _READ_DATA.items():
            if isinstance(part, kind):
                raise ConfigurationError(
                    f"{kind.__name__} evaluates the likelihood of the data outside the mechanism; use {instead}."
                )
    for part in [guide, *parts]:
        if isinstance(part, autoguide.AutoGuide) and part.prototype_trace is not None:
            raise ConfigurationError(
                f"this {type(part).__name__} was already set up, so its starting values may depend on data; pass a new "
                "one that was not called yet."
            )
        if not callable(part):
            raise ConfigurationError("the guide must be a callable with NumPyro sites, or one of NumPyro's AutoGuides.")


def on_rows(function: Callable, split: SplitModel, rows, public, hide_rows: bool = True) -> Callable:
    """`function`, a model or a guide, run on `rows` alone, each counted once, whatever it is called with.

    With `hide_rows` all sites of rows are hidden, and so are deterministic sites that depend on rows."""
    args, kwargs = split.arguments.join(rows, public)
    num_rows = jax.tree.leaves(rows)[0].shape[0]

    def hidden(site):
        if not hide_rows or site["type"] not in ("sample", "plate", "deterministic"):
            return False
        if site["type"] == "deterministic":
            return site["name"] not in split.deterministic
        return site["name"] == split.data_plate or split.data_plate in plates_of(site)

    def run(*_, **__):
        with numpyro.validation_enabled(False), handlers.block(hide_fn=hidden), BindPlate(split.data_plate, num_rows):
            return function(*args, **kwargs)

    return run


def data_free(function: Callable, split: SplitModel, public) -> Callable:
    """`function`, a model or a guide, run on one made-up row, of ones; all sites of rows are hidden."""
    return on_rows(function, split, jax.tree.map(jnp.ones_like, split.placeholder_rows()), public)


def without_data(guide, split: SplitModel, public):
    """A copy of `guide` that is set up on made-up rows and the prior alone, when it is first called."""
    if not isinstance(guide, autoguide.AutoGuide):
        return guide
    prepared = copy.copy(guide)
    if isinstance(guide, autoguide.AutoGuideList):
        prepared._guides = [without_data(part, split, public) for part in guide]
    prepared.model = data_free(guide.model, split, public)
    prepared._prototype_frames, prepared._prototype_frame_full_sizes = {}, {}
    return prepared


def unconstrained(guide, traces: Mapping[str, Any], params: Mapping[str, Any], split: SplitModel) -> dict[str, Any]:
    """The unconstrained latents of one guide draw, from the traces of guide and model and the unconstrained params."""
    trace, z = traces["guide"], dict[str, Any]()
    for part in guide if isinstance(guide, autoguide.AutoGuideList) else [guide]:
        if isinstance(part, autoguide.AutoContinuous):
            z |= part._unpack_latent(trace[f"_{part.prefix}_latent"]["value"])
        elif isinstance(part, autoguide.AutoDelta):
            z |= {name: params[f"{name}_{part.prefix}_loc"] for name in part._init_locs}
        elif isinstance(part, autoguide.AutoNormal):
            z |= {name: site["intermediates"][0][0] for name, site in trace.items() if site.get("intermediates")}
    for name in split.latents.keys() - z.keys():
        z[name] = biject_to(traces["model"][name]["fn"].support).inv(trace[name]["value"])
    return {name: jnp.reshape(z[name], latent.shape) for name, latent in split.latents.items()}


def _is_real(support) -> bool:
    return getattr(support, "base_constraint", support) is dist.constraints.real


def check_sites(trace: Mapping[str, Any], split: SplitModel) -> None:
    """The guide must draw the model's latents, each once, as a differentiable function of its parameters."""
    sites = {name: s for name, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
    drawn = {name for name, site in sites.items() if not site["infer"].get("is_auxiliary")}
    expected = {*split.latents, *split.local}
    if drawn != expected:
        raise ConfigurationError(
            "the guide and the model have different latent sites: missing from the guide "
            f"{sorted(expected - drawn)}, unknown to the model {sorted(drawn - expected)}."
        )
    for name, site in sites.items():
        if (split.data_plate in plates_of(site)) != (name in split.local):
            raise ConfigurationError(
                f"site '{name}' is inside the data plate '{split.data_plate}' in one of guide and model only."
            )
        if not site["fn"].has_rsample:
            raise UnsupportedModelError(
                f"the guide's site '{name}' ({type(site['fn']).__name__}) has no reparametrised samples (rsample); "
                "draw it from a reparametrised distribution, such as a transformed Normal."
            )


def plates_of(site) -> list[str]:
    """The plates around a site."""
    return [frame.name for frame in site["cond_indep_stack"]]
