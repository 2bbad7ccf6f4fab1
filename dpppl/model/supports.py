"""Which responses a model's distributions cannot produce, and how to code responses instead."""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from dpppl.model import censoring
from dpppl.model.arguments import Arrays
from dpppl.model.refusals import quoted
from dpppl.model.split import SplitModel
from dpppl.model.structure import Site, is_observed, scalar_of, unmasked, unwrapped
from dpppl.types import Distribution, Tree

_SHARES, _COUNTS = type(constraints.simplex), type(constraints.multinomial(1))
_ROUNDED = 1e-3  # by how much the sum of rounded shares may differ from 1


def is_outside(split: SplitModel, z: Arrays, row: Arrays, public: Arrays) -> jax.Array:
    """Whether a row observes a finite value that its site's distribution cannot produce, or holds an index out of range. NaN and
    infinity do not count as values."""
    sites = [
        jnp.any(censoring.is_outside(s) & unmasked(s["fn"]))
        if censoring.is_censored(s["fn"])
        else _is_outside(s["fn"], jnp.asarray(s["value"]))
        for s in observed(split, z, row, public)
    ]
    out_of_range = split.is_out_of_range(z, row, public)
    return jnp.any(jnp.stack([*sites, jnp.zeros((), bool) if out_of_range is None else out_of_range]))


def observed(split: SplitModel, z: Arrays, row: Arrays, public: Arrays) -> list[Site]:
    """The sites that a row observes, without factors; arguments as for `is_outside`."""
    trace = split.visit_observed(lambda site: None, z, row, public, first_values(split))
    return [site for site in trace.values() if is_observed(site, split.data_plate)]


def first_values(split: SplitModel) -> Arrays:
    """Numbers of the first values of a row's latents that are summed out."""
    return dict.fromkeys(dict(split.summed), np.zeros((), int))


def codes(split: SplitModel) -> tuple[str, ...]:
    """For each observed site that does not take every real number, which values it takes and how to code others; and for each
    table that rows index, which ids; last, how arguments without a type are read. Looks at no data. Made when a run is bound to
    its arguments: before anything is charged."""
    found: dict[str, str] = {}

    def visit(z: Arrays, row: Arrays, public: Arrays) -> None:
        for site in observed(split, z, row, public):
            name, fn = site["name"], site["fn"]
            if "left_out" in site["infer"]:  # the model's own reason
                found[name] = site["infer"]["left_out"]
            elif not isinstance(scalar_of(fn.support), type(constraints.real)):
                found[name] = f"site '{name}': {_code(unwrapped(fn), scalar_of(fn.support))}"
            if censoring.is_censored(fn) and censoring.declared(site):
                agree = "times and indicators must agree with the declared censoring times"
                found[name] = f"{found[name]}; {agree}" if name in found else f"site '{name}': {agree}"

    jax.eval_shape(visit, split.latents, split.row, split.arguments.public)
    return (*dict.fromkeys(found.values()), *_ids(split), *split.arguments.by_entry)


def poisson_sites(split: SplitModel) -> tuple[str, ...]:
    """Names of the observed sites whose law is Poisson's."""
    found: list[str] = []

    def visit(z: Arrays, row: Arrays, public: Arrays) -> None:
        sites = observed(split, z, row, public)
        found[:] = [site["name"] for site in sites if isinstance(unwrapped(site["fn"]), dist.Poisson)]

    jax.eval_shape(visit, split.latents, split.row, split.arguments.public)
    return tuple(found)


def _ids(split: SplitModel) -> list[str]:
    """Which ids tables take."""
    lines = []
    for table in split.tables:
        sizes = {site: set(split.latents[site].shape) for site in table.sites if site in split.latents}
        own = {site for site in sizes if sizes[site].intersection(table.lengths)} or table.sites
        what = f"site {quoted(sorted(own))}" if own else "a table"
        if table.lengths:
            ranges = " and ".join(f"from 0 to {n - 1}" for n in table.lengths)
            first = f"pass id - 1 for ids 1 to {table.lengths[0]}" if len(table.lengths) == 1 else "count ids from 0"
            lines.append(f"ids that index {what} go {ranges}; {first}, and mask rows without an id")
    if split.tables and not lines:
        lines = ["numbers cast to integers must be finite and in the integers' range; mask rows where they are missing"]
    return [*dict.fromkeys(lines)]


def listed(sites: Sequence[Site], most: int) -> dict[str, np.ndarray] | None:
    """The values of each site, where all are scalars of few values, and at most so many jointly."""
    found = {}
    for site in sites:
        fn = site["fn"]
        if not fn.has_enumerate_support or math.prod(site["value"].shape) != 1:
            return None
        try:
            with jax.ensure_compile_time_eval():
                found[site["name"]] = np.asarray(fn.enumerate_support(expand=False)).ravel()
        except Exception:  # a support that is not known before the run
            return None
    return found if count(found) <= most else None


def count(values: Mapping[str, np.ndarray]) -> int:
    """How many joint values sites with these values have."""
    return math.prod(map(len, values.values()))


def _is_outside(fn: Distribution, value: Tree) -> jax.Array:
    support, mask = scalar_of(fn.support), jnp.asarray(unmasked(fn))
    entries = jnp.broadcast_to(mask, jnp.broadcast_shapes(mask.shape, value.shape))
    is_finite = jnp.all(jnp.isfinite(value) | ~entries)
    if isinstance(support, _SHARES):
        rounded = (value >= 0.0) & (jnp.abs(jnp.sum(value, axis=-1, keepdims=True) - 1.0) < _ROUNDED)
        return jnp.any(~rounded & entries) & is_finite
    if isinstance(support, _COUNTS):
        return jnp.any(~support(value) & jnp.any(entries, axis=-1)) & is_finite
    if support.event_dim:
        return jnp.zeros((), bool)
    outside = jnp.any(~support(value) & jnp.isfinite(value) & entries)
    if support.is_discrete:
        return outside
    # A density may be 0 on the boundary of a closed support, as Beta's is at 0 and 1.
    bounds = [getattr(support, name) for name in ("lower_bound", "upper_bound") if hasattr(support, name)]
    on_boundary = jnp.any(jnp.stack([jnp.any((value == bound) & entries) for bound in bounds] or [jnp.zeros((), bool)]))
    return outside | (on_boundary & jnp.any(jnp.isneginf(fn.log_prob(value))))


def _code(fn: Distribution, support: Distribution) -> str:
    name = type(fn).__name__
    if isinstance(support, type(constraints.boolean)):
        return f"{name} takes 0 and 1; pass (y + 1) / 2 for responses -1 and 1, and y - 1 for responses 1 and 2"
    if isinstance(support, _SHARES):
        return f"{name} takes shares that add up to 1; divide each row by its sum"
    if isinstance(support, _COUNTS):
        return f"{name} takes whole numbers that add up to total_count; pass total_count=y.sum(-1), or mask others"
    if isinstance(support, type(constraints.integer_interval(0, 1))):
        if "Categorical" in name or name.startswith("Ordered"):
            return f"{name} takes classes 0 to K - 1; pass y - 1 for classes 1 to K"
        if "total_count" in fn.arg_constraints:
            return f"{name} takes whole numbers from 0 to its total_count; pass counts, not shares"
        return f"{name} takes whole numbers within its bounds; widen these, or round or mask others"
    if support.is_discrete:
        least = {type(constraints.positive_integer): " from 1", type(constraints.nonnegative_integer): " from 0"}
        return f"{name} takes whole numbers{least.get(type(support), '')}; round or mask others, or use a continuous distribution"
    if isinstance(support, type(constraints.unit_interval)):
        return f"{name} takes numbers between 0 and 1, neither included; divide percentages by 100, and move 0 and 1 inside"
    if isinstance(support, type(constraints.positive) | type(constraints.nonnegative)):
        return f"{name} takes positive numbers; correct or mask others, or use a distribution of all real numbers"
    if isinstance(support, type(constraints.circular)):
        return f"{name} takes angles from -pi to pi; pass jnp.arctan2(jnp.sin(y), jnp.cos(y))"
    return f"{name} does not take every real number; check the bounds of its support, and correct or mask others"
