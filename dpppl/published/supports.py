"""Supports of latent sites, in words that a file holds."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpyro.distributions import biject_to, constraints

from dpppl.errors import ConfigurationError
from dpppl.types import BySite, Distribution, Tree
from dpppl.validation import element_name

_PLAIN = (
    "real", "positive", "nonnegative", "unit_interval", "circular", "softplus_positive", "simplex", "ordered_vector",
    "positive_ordered_vector", "corr_cholesky", "corr_matrix", "lower_cholesky", "scaled_unit_lower_cholesky",
    "softplus_lower_cholesky", "positive_definite",
)  # fmt: skip
_BOUNDED = {
    "interval": ("lower_bound", "upper_bound"), "open_interval": ("lower_bound", "upper_bound"),
    "greater_than": ("lower_bound",), "greater_than_eq": ("lower_bound",), "less_than": ("upper_bound",),
}  # fmt: skip
KINDS = {name: 0 for name in _PLAIN} | {name: len(bounds) for name, bounds in _BOUNDED.items()}
"""The supports that a file may name, all of `numpyro.distributions.constraints`, and how many bounds each has."""


class Site(NamedTuple):
    """A site whose values the likelihood takes.

    - **name**, **shape** - of a value.
    - **kind**, **bounds** - the support, a name of `KINDS`, and its bounds."""

    name: str
    shape: tuple[int, ...]
    kind: str = "real"
    bounds: tuple[float, ...] = ()

    @classmethod
    def from_support(cls, name: str, shape: Sequence[int], support: Distribution) -> "Site":
        """The site with this support. Raises ConfigurationError for a support that a file cannot name."""
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        for kind in KINDS:
            known = getattr(constraints, kind)
            if type(support) is (known if kind in _BOUNDED else type(known)):
                bounds = [np.unique(np.asarray(getattr(support, bound))) for bound in _BOUNDED.get(kind, ())]
                if all(len(bound) == 1 for bound in bounds):
                    return cls(name, tuple(shape), kind, tuple(float(bound[0]) for bound in bounds))
        raise ConfigurationError(
            f"the support of site '{name}' is not one that a file can name: sample an unconstrained site in its place, "
            f"numpyro.sample('{name}_raw', dist.Normal(0, 1)), and map it with numpyro.deterministic('{name}', ...)."
        )

    @property
    def transform(self) -> Distribution:
        """The bijection from unconstrained values."""
        support = getattr(constraints, self.kind)
        return biject_to(support(*self.bounds) if self.bounds else support)

    @property
    def size(self) -> int:
        """The number of unconstrained elements."""
        return math.prod(self.transform.inverse_shape(self.shape))

    @property
    def words(self) -> str:
        """The shape and the support, in words."""
        return f"{list(self.shape)} {self.kind}{self.bounds or ''}"

    def unconstrained(self, value: Tree) -> jax.Array:
        """Elements (..., size) of values (..., *shape)."""
        lead = np.shape(value)[: np.ndim(value) - len(self.shape)]
        return self.transform.inv(value).reshape(*lead, self.size)


def dimension_of(sites: Sequence[Site]) -> int:
    """The number of coordinates, which are the unconstrained elements of all sites in order."""
    return sum(site.size for site in sites)


def coordinates(sites: Sequence[Site], values: BySite) -> jax.Array:
    """The coordinates (..., d) of values by site, (..., *shape) each. Raises ConfigurationError for values that do not fit."""
    names = [site.name for site in sites]
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"give values by site, a dict with {names}; got a {type(values).__name__}.")
    if missing := [name for name in names if name not in values]:
        raise ConfigurationError(f"the likelihood is one of {names}, and no value is given for {missing}: add it.")
    given = {name: jax.numpy.asarray(values[name], float) for name in names}
    leads = {}
    for site in sites:
        shape = given[site.name].shape
        split = len(shape) - len(site.shape)
        if split < 0 or shape[split:] != site.shape:
            raise ConfigurationError(
                f"a value of site '{site.name}' has shape {site.shape}, after axes that all sites share; got {shape}."
            )
        leads[site.name] = shape[:split]
    try:
        lead = np.broadcast_shapes(*leads.values())
    except ValueError:
        raise ConfigurationError(f"the leading axes of sites do not fit together: {leads}.") from None
    parts = [site.unconstrained(given[site.name]) for site in sites]
    return jax.numpy.concatenate([jax.numpy.broadcast_to(x, (*lead, x.shape[-1])) for x in parts], axis=-1)


def element_names(site: Site) -> list[str]:
    """The names of a site's elements: "w[0]", or the site itself where it has one."""
    return [element_name(site.name, place) for place in np.ndindex(*site.shape)]
