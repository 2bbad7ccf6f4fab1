"""From the arguments of a run to an objective, without data."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer import autoguide

from dpppl.access.clipping import Centred
from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.information_flow.executables import run_once
from dpppl.jaxprs import Dependence
from dpppl.model.arguments import name_of
from dpppl.model.handlers import explained
from dpppl.model.initialization import prior_scales
from dpppl.model.refusals import FLAT, MISSING_CURE, NUMBER, STATEFUL, check_captured, check_effects
from dpppl.model.responses import Responses
from dpppl.model.row_independence import is_alike
from dpppl.model.split import SplitModel
from dpppl.model.structure import plates_of
from dpppl.model.supports import codes, count
from dpppl.model.units import responses_of, split_in_units
from dpppl.svi import guides
from dpppl.svi.elbo import Objective, check_params
from dpppl.svi.settings import SVISettings
from dpppl.types import Foreign, Function, Tree

Arrays = guides.Arrays
Sites = dict[str, dict[str, Tree]]
_MOST_NUMBERS = 2**16
"""The most numbers in the gradients of all responses of a row of a model that is not wide."""


def bind_objective(
    svi: SVISettings, key: jax.Array, args: tuple[object, ...], kwargs: dict[str, object], init_params: Arrays | None = None,
) -> tuple[Objective, dict[str, Tree]]:  # fmt: skip
    """The objective of a run with these arguments, and the unconstrained starting values of its parameters.

    The user's guide is set up, too, so that its own methods work.
    Guarantee: nothing depends on the values of private rows. Raises ConfigurationError or UnsupportedModelError."""
    split = split_in_units(svi.model, args, kwargs, data_plate=svi.data_plate, variational=True)
    _, public = split.arrays(args, kwargs)
    guide_key, model_key = jax.random.split(key)
    with explained(), guides.guide_explained(svi.guide, split):
        guide, guide_sites = _set_up(svi.guide, split, public, guide_key)
        of_model = handlers.replay(guides.SitesAlone(svi.model, split, public), guide_sites)
        model_sites = _trace(of_model, model_key, {})
    if mutable := [name for name, site in guide_sites.items() if site["type"] == "mutable"]:
        raise UnsupportedModelError(f"the guide's site '{mutable[0]}' is {STATEFUL}")
    own = {name: site for name, site in model_sites.items() if _is_param(site)}
    params = own | {name: site for name, site in guide_sites.items() if _is_param(site)}
    params |= {} if init_params is None else _supplied(init_params, params)
    captured = split.assumed_public
    if isinstance(guide, autoguide.AutoGuide):
        if split.local:
            raise UnsupportedModelError(
                f"site '{split.local[0]}' is a latent of each row, for which an AutoGuide would hold parameters of "
                "each row; write a guide that computes its distribution from the row (amortised). If it stands for missing "
                f"values, {MISSING_CURE}"
            )
        guides.check_sites(guide_sites, split)
    else:
        values = {name: site["value"] for name, site in params.items()}
        guides.check_shapes(guide_sites, model_sites, split)
        captured = (*captured, *_check_written_guide(guide, split, public, guide_key, values))
    if not params:
        raise ConfigurationError(
            "neither the guide nor the model has a parameter to fit; write numpyro.param('mu_loc', 0.0) in the guide, or take "
            f"numpyro.infer.autoguide.AutoNormal({name_of(svi.model)})."
        )
    reads_rows = bool(split.local or own)
    if reads_rows:
        _check_reads_rows(svi, split, [*own])
    transforms = {name: biject_to(site["kwargs"].get("constraint", constraints.real)) for name, site in params.items()}
    phi = {name: jax.tree.map(transforms[name].inv, site["value"]) for name, site in params.items()}
    phi = jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), phi)
    guides.adopt(svi.guide, guide)
    responses, scale = None, None
    if isinstance(svi.clipping, Centred):
        responses = responses_of(split, svi.clipping.num_draws, public)
        scale = wide_scale(split, public, responses) if svi.may_be_wide else None
    return Objective(
        split, guide, transforms, svi.loss, svi.num_particles, reads_rows, captured, responses if scale is None else None,
        shapes_of(params), wide_scale=scale, codes=codes(split),
    ), phi  # fmt: skip


def wide_scale(split: SplitModel, public: Tree, responses: Responses) -> float | None:
    """The median prior sd of the latents of a wide model, None of others."""
    members = 1 + responses.num_draws if responses.supports is None else count(responses.supports)
    if members * sum(latent.size for latent in split.latents.values()) <= _MOST_NUMBERS:
        return None
    return float(np.median(np.hstack([np.ravel(s) for s in prior_scales(split, public).values()])))


def shapes_of(params: Sites) -> dict[str, Tree]:
    """Shapes of parameters by name."""
    return {name: jax.tree.map(np.shape, site["value"]) for name, site in params.items()}


def _supplied(init_params: Tree, params: Sites) -> Sites:
    """The parameters' sites with the user's own constrained values. Raises ConfigurationError for values that do not fit."""
    check_params(init_params, shapes_of(params), "init_params", needs_all=False)
    found = {}
    for name, given in init_params.items():
        site, shapes = params[name], shapes_of(params)[name]
        try:
            value = jax.tree.map(lambda x: jnp.asarray(x, float), given)
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"init_params: parameter '{name}' is no number; give floats of shape {shapes}."
            ) from None
        constraint = site["kwargs"].get("constraint", constraints.real)
        inside = [jnp.all(jnp.isfinite(leaf)) & jnp.all(constraint(leaf)) for leaf in jax.tree.leaves(value)]
        if not all(isinstance(fits, jax.core.Tracer) or fits for fits in inside):
            raise ConfigurationError(
                f"init_params: parameter '{name}' is not finite or outside of its constraint, {type(constraint).__name__}; give "
                "constrained values."
            )
        found[name] = site | {"value": value}
    return found


def _set_up(guide: object, split: SplitModel, public: Arrays, key: jax.Array) -> tuple[Foreign, Sites]:
    """A copy of `guide`, set up, and its sites.

    Where an AutoGuide starts, NumPyro evaluates the model's density and its gradient, an operation at a time. So the copy's model
    has no density at first, and one program evaluates the prior's. If that is not finite, NumPyro sets another copy up with the
    density: it looks for another start, or says what is wrong."""
    for has_density in (False, True):
        copied = guides.without_data(guide, split, public, has_density)
        sites = _trace(guides.data_free(copied, split, public), key, {})
        if _starts_where_finite(copied, split, public):
            break
    return copied, sites


def _starts_where_finite(guide: object, split: SplitModel, public: Arrays) -> bool:
    """Whether the prior's density and gradient are finite where an AutoGuide starts; True where NumPyro does not ask."""
    if not isinstance(guide, autoguide.AutoGuide):
        return True
    z: dict[str, Tree] = {}
    for part in guides.parts_of(guide):
        is_point = isinstance(part, autoguide.AutoDelta)  # which keeps its starts constrained
        inverse = lambda n, x, part=part: biject_to(part.prototype_trace[n]["fn"].support).inv(x)  # noqa: E731
        z |= {n: inverse(n, x) if is_point else x for n, x in vars(part).get("_init_locs", {}).items()}
    if any(isinstance(value, jax.core.Tracer) for value in z.values()):
        return True
    if z.keys() != split.latents.keys():
        return False
    density = run_once(jax.value_and_grad(split.log_prior), z, public)
    return all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(density))


def _check_reads_rows(svi: SVISettings, split: SplitModel, params: list[str]) -> None:
    """Refuse settings that do not fit latents of rows, or parameters of the model, with these names."""
    if svi.gradient == "aligned":
        local = f"site '{split.local[0]}' is a latent of each row" if split.local else ""
        what = local or f"site '{params[0]}' is a parameter of the model"
        prior = "" if local else ", or give it a prior (random_nnx_module, random_flax_module, numpyro.sample)"
        raise UnsupportedModelError(
            f"{what}, and gradients of common latents, which the default clips, do not reach it: write "
            f'dpppl.SVI(model, guide, gradient="per_parameter", clipping_norm=1.0, ...){prior}.'
        )
    if split.summed:
        raise UnsupportedModelError(
            f"site '{split.summed[0][0]}' is a latent of each row in a model with continuous ones or parameters "
            "of the model; sum it out by hand (numpyro.distributions.MixtureSameFamily)."
        )
    if isinstance(svi.clipping, Centred):
        raise UnsupportedModelError(
            "the guide draws latents of rows, or the model has parameters, so that the common latents alone do not decide "
            f"what else a row might have been; {FLAT}."
        )


def _trace(function: Function, key: jax.Array, params: Arrays) -> Sites:
    sites: Sites = handlers.trace(handlers.substitute(handlers.seed(function, key), data=params)).get_trace()
    return sites


def _is_param(site: Arrays) -> bool:
    return site["type"] == "param" and bool(jax.tree.leaves(site["value"]))


def _check_written_guide(
    guide: Foreign, split: SplitModel, public: Arrays, key: jax.Array, params: Arrays
) -> tuple[str, ...]:
    """A guide written by hand reads rows for their own latents only, does not depend on their number, as it is run on one row,
    and has no parameters of rows.

    Returns the arrays that it captured, in words."""

    leaves, tree = jax.tree.flatten(params)
    init: dict[str, Sites] = {}

    def drawn(leaves: Arrays, rows: Arrays) -> dict[str, Arrays]:
        """Draws of common latents and their log densities; parameters of the distributions of latents of rows."""
        given = jax.tree.unflatten(tree, [leaves[str(i)] for i in range(len(leaves))])
        init["sites"] = _trace(guides.on_rows(guide, split, rows, public, hide_rows=False), key, given)
        samples = {name: site for name, site in init["sites"].items() if site["type"] == "sample"}
        common = {name: s for name, s in samples.items() if split.data_plate not in plates_of(s)}
        return {
            "common": {name: [s["value"], s["fn"].log_prob(s["value"])] for name, s in common.items()},
            "local": {name: jax.tree.leaves(s["fn"]) for name, s in samples.items() if name not in common},
        }

    def at_start(rows: Arrays) -> dict[str, Arrays]:
        """The parameters as they start."""
        sites = _trace(guides.on_rows(guide, split, rows, public, hide_rows=False), key, {})
        init["params"] = {name: site for name, site in sites.items() if _is_param(site)}
        return {"start": {name: site["value"] for name, site in init["params"].items()}}

    def at(num_rows: int) -> Dependence:
        given = {str(i): leaf for i, leaf in enumerate(leaves)}
        return Dependence(drawn, params=given, row=split.arguments.shapes(num_rows))

    with explained():
        three, whole, one = at(3), at(split.num_rows), at(1)
        start, starts = (Dependence(at_start, row=split.arguments.shapes(n)) for n in (1, split.num_rows))
    check_effects(starts.program, "guide")
    captured = check_captured(starts.program, {split.num_rows}, "guide")
    guides.check_sites(init["sites"], split)
    for name, site in init["params"].items():
        shape = jax.tree.map(np.shape, params.get(name, site["value"]))
        if jax.tree.map(np.shape, site["value"]) != shape:
            raise UnsupportedModelError(
                f"the guide's parameter '{name}' has entries for single rows; compute what belongs to a row from the "
                "row (amortised), by a function whose parameters all rows share."
            )
    if any(kind == "row" for kind, _ in one.inputs("common")):
        raise UnsupportedModelError(
            "the guide computes latents that all rows share from rows, outside the mechanism; let them depend on "
            "parameters only, numpyro.param('loc', 0.0) instead of y.mean()."
        )
    of_number = [f"site '{n}'" for n in one.names("common") if one.text("common", n) != whole.text("common", n)]
    local = (n for n in one.names("local") if not is_alike(three, whole, "local", n, split.num_rows))
    of_number += [f"site '{name}'" for name in local]
    of_number += [
        f"start of parameter '{n}'" for n in start.names("start")
        if not starts.inputs("start", n) and start.text("start", n) != starts.text("start", n)
    ]  # fmt: skip
    if of_number:
        raise UnsupportedModelError(NUMBER.format(f"guide's {of_number[0]}"))
    return captured
