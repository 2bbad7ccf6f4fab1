"""Values that never depend on data: draws from the prior, and starting values (prior medians, prior draws, or the user's own)."""

import math
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import infer

from dpppl.errors import ConfigurationError
from dpppl.information_flow.executables import run_once
from dpppl.information_flow.row_free import proved
from dpppl.model.split import SplitModel
from dpppl.model.structure import Site, unwrapped
from dpppl.types import Distribution, Function, Tree

STRATEGIES = ("prior_median", "prior_sample")
_MOST, _FEWEST, _NUMBERS = 1_000, 32, 2**22
_IMPROPER = 1e4  # the scale of an improper prior
_OF_NUMPYRO = {
    getattr(infer, f"init_to_{x}"): f"init_to_{x}" for x in "value median uniform sample feasible mean".split()
}
_CURE = (
    "a start (init_strategy, init_params) is 'prior_median', 'prior_sample', a dict of unconstrained values by site, such as "
    "{'mu': 0.3}, or one of numpyro.infer's init_to_value(values={'mu': 0.3}), of constrained values, init_to_median, "
    "init_to_uniform and init_to_sample."
)
Strategy = str | Mapping[str, Tree] | Function


def checked_strategy(strategy: Tree) -> Strategy:
    """`strategy`, where `initial_values` takes it. Raises ConfigurationError.

    NumPyro's strategies are read as they are called: what each does with a site without data is known, what another function
    does is not."""
    if isinstance(strategy, str) and strategy in STRATEGIES:
        return strategy
    if isinstance(strategy, Mapping) or of_numpyro(strategy) is not None:
        return strategy
    raise ConfigurationError(_CURE)


def of_numpyro(strategy: object) -> str | None:
    """The name of a strategy of NumPyro's, with or without its settings; None of anything else."""
    return _OF_NUMPYRO.get(strategy.func if isinstance(strategy, partial) else strategy) if callable(strategy) else None


def initial_values(
    split: SplitModel, public: dict[str, object], key: jax.Array, strategy: Strategy = "prior_median"
) -> dict[str, jax.Array]:
    """Unconstrained starting values by latent site; may be mapped over `key`.

    "prior_median": the median of each site given the medians of those before it, in closed form where there is one,
    else of 1,000 prior draws. "prior_sample": one draw from the prior. Improper priors start at 0, unconstrained.
    A dict holds the user's own unconstrained values, as NumPyro's `init_params` does. NumPyro's own strategies are given each
    latent site as NumPyro gives it, and their values, constrained, are mapped to unconstrained space.

    Guarantee: the values do not depend on the private rows, which are not an argument.
    Raises ConfigurationError for an unknown strategy, and for a dict that does not fit the latent sites."""
    if isinstance(strategy, Mapping):
        return _checked(split, strategy)
    if callable(checked_strategy(strategy)):
        values = getattr(strategy, "keywords", {}).get("values", {})  # of init_to_value
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"init_to_value takes values={{'site': value}}, not a {type(values).__name__}.")
        if unknown := sorted(map(str, values.keys() - split.latents.keys())):
            raise ConfigurationError(
                f"init_to_value names {unknown}, but the latent sites are {sorted(split.latents)}; name one of those."
            )
    start = proved(partial(_from_prior, split, strategy=strategy), public, key, num_rows=None)
    return start(public, key)


def _checked(split: SplitModel, values: Mapping[str, Tree]) -> dict[str, jax.Array]:
    if values.keys() != split.latents.keys():
        raise ConfigurationError(
            f"initial values are given for {sorted(values)}, but the latent sites are {sorted(split.latents)}."
        )
    for name, latent in split.latents.items():
        value, shape = values[name], np.shape(values[name])
        is_known = not isinstance(value, jax.core.Tracer)
        is_number = not is_known or np.asarray(value).dtype.kind in "biuf"
        for is_refused, words in (
            (not is_number, f"is no number; give unconstrained numbers: {{'{name}': 0.3}}"),
            (shape != latent.shape, f"has shape {shape}, but its unconstrained shape is {latent.shape}"),
            (is_known and is_number and not np.all(np.isfinite(value)), "is not finite"),
        ):
            if is_refused:
                raise ConfigurationError(f"the initial value of site '{name}' {words}.")
    return {name: jnp.asarray(values[name], latent.dtype) for name, latent in split.latents.items()}


@partial(jax.jit, static_argnames=("split", "strategy"))
def _from_prior(split: SplitModel, public: dict[str, object], key: jax.Array, strategy: object) -> dict[str, jax.Array]:
    z: dict[str, jax.Array] = {}

    def visit(site: Site, transform: Distribution) -> jax.Array:
        latent = split.latents[site["name"]]
        site_key = jax.random.fold_in(key, len(z))
        value = jnp.broadcast_to(_start(site, transform, site_key, strategy), latent.shape)
        z[site["name"]] = jnp.where(jnp.isfinite(value), value, 0.0).astype(latent.dtype)
        return z[site["name"]]

    split.visit_latents(visit, public)
    return z


def _start(site: Site, transform: Distribution, key: jax.Array, strategy: object) -> jax.Array:
    """The unconstrained start of one site, given those before it."""
    sample_shape = site["kwargs"]["sample_shape"]
    try:
        if callable(strategy):
            value = strategy(site | {"value": None, "kwargs": site["kwargs"] | {"rng_key": key}})
            value = value if isinstance(value, jax.core.Tracer) else np.asarray(value, float)
            expected = sample_shape + site["fn"].shape()
            if jnp.shape(value) != expected:
                raise ConfigurationError(
                    f"the initial value of site '{site['name']}' has shape {jnp.shape(value)}; give one of shape {expected}, "
                    "constrained."
                )
            with jax.ensure_compile_time_eval():
                inside = jnp.all(site["fn"].support(value))
            if not isinstance(inside, jax.core.Tracer) and not inside:
                raise ConfigurationError(
                    f"the initial value of site '{site['name']}' is outside of its support, {site['fn'].support}; init_to_value "
                    "takes constrained values."
                )
            return transform.inv(jnp.asarray(value))
        if strategy == "prior_sample":
            return transform.inv(site["fn"].sample(key, sample_shape))
        median = _closed_form_median(site["fn"])
        if median is not None:
            return transform.inv(jnp.broadcast_to(median, sample_shape + site["fn"].shape()))
        return jnp.median(transform.inv(site["fn"].sample(key, (_MOST, *sample_shape))), axis=0)
    except NotImplementedError:  # an improper prior cannot be sampled
        return jnp.zeros(())


def _closed_form_median(distribution: Distribution) -> Tree:
    """The median of a distribution of scalars, or None where NumPyro has no quantile function for it."""
    distribution = unwrapped(distribution)
    if distribution.event_dim:
        return None
    try:
        return distribution.icdf(0.5)
    except (NotImplementedError, ImportError):  # some quantile functions need tensorflow_probability
        return None


def number_of_draws(shapes: Tree) -> int:
    """1,000, and fewer where a draw has many numbers.

    - **shapes** - of one draw, a pytree."""
    size = sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(shapes))
    return max(_FEWEST, min(_MOST, _NUMBERS // max(1, size)))


def drawn_from_prior(
    split: SplitModel, public: Tree, key: jax.Array, count: int, then: Function | None = None
) -> dict[str, jax.Array]:
    """Unconstrained latents by site, drawn from the prior, (count, ...); a site with an improper prior is constant.

    - **then** - `then(latents, public)`, what is returned of a draw instead.

    Guarantee: the draws do not depend on the private rows, which are not an argument."""

    def one(key: jax.Array, public: Tree) -> Tree:
        z = initial_values(split, public, key, "prior_sample")
        return z if then is None else then(z, public)

    def several(key: jax.Array, public: Tree) -> Tree:
        return jax.vmap(one, (0, None))(jax.random.split(key, count), public)

    return run_once(several, key, public)


def prior_draws(split: SplitModel, public: Tree, is_constrained: bool = True) -> dict[str, np.ndarray]:
    """Prior draws by site, (draws, ...): those of the latents and of the deterministic sites that depend on latents only.

    The draws are the same in each call; see `drawn_from_prior`.

    - **is_constrained** - False: unconstrained latents, without deterministic sites."""
    then = split.constrain if is_constrained else None
    count = number_of_draws(split.latents if then is None else jax.eval_shape(then, split.latents, public))
    drawn = drawn_from_prior(split, public, jax.random.key(0), count, then)
    return {site: np.asarray(value, np.float64) for site, value in drawn.items()}


def prior_scales(split: SplitModel, public: Tree) -> dict[str, np.ndarray]:
    """Robust standard deviations of the unconstrained latents under the prior, by site."""

    def scale(values: np.ndarray) -> np.ndarray:
        found = 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
        return np.where(found > 0.0, found, _IMPROPER)

    return {site: scale(values) for site, values in prior_draws(split, public, is_constrained=False).items()}
