"""From the arguments of a run to an objective: the model split, the guide set up, both without data."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from numpyro import handlers
from numpyro.distributions import biject_to, constraints

from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.model import split_model
from dpppl.svi.elbo import Objective
from dpppl.svi.guides import check_sites, data_free, without_data


def bind_objective(svi, key, args, kwargs, init_params=None) -> tuple[Objective, dict[str, Any]]:
    """The objective of a run with these arguments, and the unconstrained starting values of its parameters.

    Guarantee: nothing depends on the values of private rows. Raises ConfigurationError or UnsupportedModelError."""
    split = split_model(svi.model, args, kwargs, data_plate=svi.data_plate)
    _, public = split.arrays(args, kwargs)
    guide = without_data(svi.guide, split, public)
    seeded = handlers.seed(data_free(guide, split, public), key)
    trace = handlers.trace(handlers.substitute(seeded, data=init_params or {})).get_trace()
    check_sites(trace, split)
    params = {name: site for name, site in trace.items() if site["type"] == "param"}
    if unknown := sorted(set(init_params or {}) - set(params)):
        raise ConfigurationError(f"init_params names {unknown}, but the parameters are {sorted(params)}.")
    transforms = {name: biject_to(site["kwargs"].get("constraint", constraints.real)) for name, site in params.items()}
    phi = {name: transforms[name].inv(site["value"]) for name, site in params.items()}
    phi = jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), phi)
    return Objective(split, guide, transforms, svi.loss, svi.num_particles), phi
