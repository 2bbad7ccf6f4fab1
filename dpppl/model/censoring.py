"""Censored responses: the joint law of a time and of whether it is censored.

NumPyro's censored distributions give the density of a row whose indicator is known. The law of both needs the time at which a
row would have been censored, also of a row that was not. A site declares it: `infer={"censored_by": ...}` holds an array or a
number, a public distribution, the name of another censored site, or a tuple of these, of which the first to occur counts. An
interval-censored site declares its inspection times, `infer={"inspected_at": ...}`, (n, K) or (K,). NumPyro ignores both.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from dpppl.model.samplers import drawn
from dpppl.model.structure import Site, layers, unwrapped
from dpppl.types import Distribution, Tree

_LEFT, _INTERVAL = dist.LeftCensoredDistribution, dist.IntervalCensoredDistribution
_KINDS = (dist.RightCensoredDistribution, _LEFT, _INTERVAL)
_ROUNDED = 1e-3  # relative difference that rounding may make between a censored time and its declared limit


class Censored(NamedTuple):
    """A censored site's response.

    - **value** - the time, (...); of an interval its ends, (..., 2).
    - **indicators** - of each row whether it is censored, (...); of an interval, whether from the left and from the right."""

    value: jax.Array
    indicators: tuple[object, ...]


class Uncensored(NamedTuple):
    """A draw of a site before censoring.

    - **time** - the time, (...).
    - **limits** - where it would be censored, or its inspection times; names of other sites stay."""

    time: Tree
    limits: tuple[object, ...]


def is_censored(fn: Distribution) -> bool:
    """Whether a distribution, without its masks and added axes, is one of NumPyro's censored ones."""
    return isinstance(unwrapped(fn), _KINDS)


def is_interval(fn: Distribution) -> bool:
    """Whether it is the interval-censored one."""
    return isinstance(unwrapped(fn), _INTERVAL)


def declared(site: Site) -> tuple[Tree, ...]:
    """The parts of a site's declaration; empty where it has none."""
    parts = site["infer"].get("inspected_at" if is_interval(site["fn"]) else "censored_by")
    return () if parts is None else tuple(parts) if isinstance(parts, tuple | list) else (parts,)


def leaves(site: Site) -> list[Tree]:
    """All arrays and numbers of a site's declaration."""
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(declared(site)) if not isinstance(leaf, str)]


def own(site: Site) -> Tree:
    """The response that a site observes: a `Censored`, or another site's value."""
    fn, value = site["fn"], site["value"]
    if not is_censored(fn):
        return value
    indicators = _indicators(fn)
    if is_interval(fn):  # an end that counts for nothing may be infinite
        lower, upper = (jnp.asarray(value)[..., k] for k in (0, 1))
        left, right = indicators
        value = jnp.stack([jnp.where(left & ~right, upper, lower), jnp.where(right & ~left, lower, upper)], axis=-1)
    return Censored(value, indicators)


def blank(site: Site, value: jax.Array) -> Tree:
    """`value` as the response of a site, of a censored one with indicators that depend on nothing."""
    if not is_censored(site["fn"]):
        return value
    return Censored(value, tuple(jnp.zeros_like(indicator) for indicator in _indicators(site["fn"])))


def with_indicators(fn: Distribution, indicators: tuple[object, ...]) -> Distribution:
    """The distribution of a censored site with other indicators, masks kept."""
    *outer, inner = layers(fn)
    found = type(inner)(inner.base_dist, *indicators)
    found._support = inner.support  # NumPyro's Levy loses its own where a censored law holds it
    for layer in reversed(outer):
        if isinstance(layer, dist.MaskedDistribution):
            found = found.mask(layer._mask)
        elif isinstance(layer, dist.Independent):
            found = found.to_event(layer.reinterpreted_batch_ndims)
    return found


def draw(site: Site, key: jax.Array) -> Uncensored:
    """Draw a site's time and its limits."""
    keys = jax.random.split(key, 1 + len(parts := declared(site)))
    shape = _shape(site["fn"])

    def limit(part: Distribution, key: jax.Array) -> Tree:
        return drawn(part.expand(shape), key) if isinstance(part, dist.Distribution) else part

    base = unwrapped(site["fn"]).base_dist
    return Uncensored(drawn(base.expand(shape), keys[0]), tuple(map(limit, parts, keys[1:])))


def provisional(site: Site, draws: Mapping[str, Tree]) -> Censored:
    """`observed`, or the uncensored time where a site that it names has not been drawn."""
    named = [part for part in declared(site) if isinstance(part, str)]
    if all(part in draws for part in named):
        return observed(site, draws)
    return blank(site, draws[site["name"]].time)


def observed(site: Site, draws: Mapping[str, Tree]) -> Censored:
    """A site's response, from the `draws` of all censored sites by name."""
    time, limits = draws[site["name"]]
    fn = site["fn"]
    if is_interval(fn):
        return _inspected(time, jnp.asarray(limits[0]))
    is_left = isinstance(unwrapped(fn), _LEFT)
    limits = [draws[part].time if isinstance(part, str) else jnp.asarray(part) for part in limits]
    combined = jnp.maximum if is_left else jnp.minimum
    limit = limits[0]
    for other in limits[1:]:
        limit = combined(limit, other)
    return Censored(combined(time, limit), (time < limit if is_left else time > limit,))


def is_outside(site: Site) -> Tree:
    """Whether a censored site observes finite values that cannot occur: outside the distribution's support, or against the
    declared limits. A censored row may lie on the support's boundary. The result has the value's shape, or broadcasts to it."""
    fn, (value, indicators) = site["fn"], own(site)
    support = unwrapped(fn).support
    touches = lambda x: support(x) | (x == getattr(support, "lower_bound", x))  # noqa: E731
    if is_interval(fn):
        lower, upper = value[..., 0], value[..., 1]
        outside = ~(touches(lower) & touches(upper) & (lower <= upper)) & jnp.isfinite(lower) & jnp.isfinite(upper)
        return outside[..., None]
    (is_hidden,) = indicators
    outside = ~jnp.where(is_hidden, touches(value), support(value))
    sign = -1.0 if isinstance(unwrapped(fn), _LEFT) else 1.0
    parts = declared(site)
    limits = [jnp.asarray(part) for part in parts if not isinstance(part, str | dist.Distribution)]
    for limit in limits:
        slack = _ROUNDED * jnp.abs(limit)
        outside |= ~(sign * value <= sign * limit + slack)  # NaN, too
        if len(parts) == 1:
            outside |= is_hidden & (sign * value < sign * limit - slack)
    return outside & jnp.isfinite(value)


def _inspected(time: Tree, visits: Tree) -> Censored:
    """The interval between two inspections that a time falls in. Inspections at infinity do not take place."""
    visits = jnp.broadcast_to(visits, (*time.shape, visits.shape[-1]))
    before = visits < time[..., None]
    lower = jnp.max(jnp.where(before, visits, -jnp.inf), axis=-1)
    upper = jnp.min(jnp.where(before, jnp.inf, visits), axis=-1)
    left, right = ~jnp.isfinite(lower), ~jnp.isfinite(upper)
    ends = jnp.where(left, upper, lower), jnp.where(right, lower, upper)
    known = ~jnp.isnan(time) & ~jnp.any(jnp.isnan(visits), axis=-1)
    return Censored(jnp.where(known[..., None], jnp.stack(ends, axis=-1), jnp.nan), (left, right))


def _indicators(fn: Distribution) -> tuple[Tree, ...]:
    inner = unwrapped(fn)
    found = (inner.left_censored, inner.right_censored) if is_interval(fn) else (inner.censored,)
    return tuple(jnp.broadcast_to(indicator, _shape(fn)) for indicator in found)


def _shape(fn: Distribution) -> tuple[int, ...]:
    """Of the times."""
    shape = (*fn.batch_shape, *fn.event_shape)
    return shape[:-1] if is_interval(fn) else shape
