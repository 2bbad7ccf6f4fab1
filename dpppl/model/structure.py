"""Names, shapes and plates of a model's sites, from NumPyro's trace. Holds no array and no tracer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to

from dpppl.errors import UnsupportedModelError
from dpppl.jaxprs import abstract
from dpppl.model.quadrature import LOG_WEIGHTS, NODES, NUM_NODES
from dpppl.types import Distribution, Numbers, Tree

Site = dict[str, Tree]
Trace = Mapping[str, Site]
Shape = tuple[int, ...]


class Observed(NamedTuple):
    """Shapes of an observed site.

    - **value** - shape of its value.
    - **batch**, **event** - shapes of its distribution's batch and event axes.
    - **joint** - the distribution's name, where its event is not a product of scalars; else None.
    - **axes** - the value's axis of each plate around it, counted from the right."""

    value: Shape
    batch: Shape
    event: Shape
    joint: str | None
    axes: dict[str, int]


@dataclass
class Structure:
    """Names and shapes found by one abstract run on all rows.

    - **plates** - by plate, its size and its number of indices.
    - **latents** - shapes of unconstrained latents by site; None: discrete.
    - **supports** - the number of values that a latent site is summed over where it is one of rows; None: it cannot be.
    - **masked** - latent sites with a mask that may differ between rows.
    - **improper** - latent sites whose prior has no density that integrates to 1.
    - **joint** - names of distributions whose event is not a product of scalars, by latent site.
    - **observed** - observed sites.
    - **fixed** - sites that observe what depends on no row, outside of all plates.
    - **factors**, **deterministic** - names of such sites.
    - **params** - parameters by name.
    - **mutable** - mutable states by name, and whether they hold a random generator.
    - **plates_of** - the plates around each sample site.
    - **dims** - names of the batch axes of latents in plates."""

    plates: dict[str, tuple[int, int]] = field(default_factory=dict)
    latents: dict[str, jax.ShapeDtypeStruct | None] = field(default_factory=dict)
    supports: dict[str, int | None] = field(default_factory=dict)
    masked: list[str] = field(default_factory=list)
    improper: list[str] = field(default_factory=list)
    joint: dict[str, str] = field(default_factory=dict)
    observed: dict[str, Observed] = field(default_factory=dict)
    fixed: list[str] = field(default_factory=list)
    factors: list[str] = field(default_factory=list)
    deterministic: list[str] = field(default_factory=list)
    params: dict[str, object] = field(default_factory=dict)
    mutable: dict[str, bool] = field(default_factory=dict)
    plates_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace) -> "Structure":
        """The structure of a trace; the trace's values may be tracers."""
        structure = cls()
        for name, site in trace.items():
            if site["type"] == "plate":
                structure.plates[name] = (site["args"][0], site["value"].shape[0])
            elif site["type"] == "sample":
                structure.plates_of[name] = tuple(plates_of(site))
                if not site["is_observed"]:
                    structure.dims |= {name: dims_of(site)} if site["cond_indep_stack"] else {}
                    structure.latents[name] = _unconstrained(site)
                    structure.masked += [name] if is_masked(site) else []
                    structure.improper += [name] if isinstance(unwrapped(site["fn"]), dist.ImproperUniform) else []
                    structure.supports[name] = _num_values(site)
                    structure.joint |= {name: joint} if (joint := joint_name(site["fn"])) else {}
                elif is_factor(site):
                    structure.factors += [] if site["infer"].get("is_jacobian") else [name]
                else:
                    structure.observed[name] = _observed(site)
            elif site["type"] == "deterministic":
                structure.deterministic.append(name)
            elif site["type"] == "param":
                structure.params[name] = _made_up_param(site)
            elif site["type"] == "mutable":
                leaves = jax.tree.leaves(site["value"])
                structure.mutable[name] = any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves)
        return structure

    def data_plates(self, num_rows: int) -> list[str]:
        """The plates as long as the private arrays."""
        return [name for name, lengths in self.plates.items() if num_rows in lengths]

    def likelihood_sites(self) -> list[str]:
        """The observed sites or, where there are none, the factors inside plates."""
        return list(self.observed) or [name for name in self.factors if self.plates_of[name]]

    def notes(self, data_plate: str, returned: tuple[str, ...]) -> tuple[str, ...]:
        """Improper priors, and names that the model declares and a run leaves out: all but the deterministic sites `returned`."""
        notes = [
            f"the prior of site '{name}' is improper: where noise hides the data, nothing bounds it; write a proper one, such as "
            "dist.Normal(0, 10)."
            for name in self.improper
        ]
        size, length = self.plates[data_plate]
        if size != length:
            notes.append(
                f"the subsample_size of plate '{data_plate}' is ignored: a run's subsampling draws the rows of each step, "
                "and accounts for them."
            )
        if left_out := [name for name in self.deterministic if name not in returned]:
            notes.append(
                f"deterministic sites {', '.join(map(repr, left_out))} depend on rows, or on their number, and are not "
                "returned; numpyro.infer.Predictive computes them from the samples, for inputs that are not private."
            )
        return tuple(notes)

    def latents_that_follow_rows(self, more: "Structure") -> list[str]:
        """The latents that have another shape in `more`, the structure with another number of rows."""
        shapes = {name: latent.shape for name, latent in more.latents.items() if latent is not None}
        latents = {name: latent.shape for name, latent in self.latents.items() if latent is not None}
        return [name for name, shape in latents.items() if shapes.get(name, shape) != shape]


def plates_of(site: Site) -> list[str]:
    """The plates around a site."""
    return [frame.name for frame in site["cond_indep_stack"]]


def dims_of(site: Site) -> tuple[str, ...]:
    """Names of the batch axes of a site's value: those of their plates."""
    names = {int(frame.dim): frame.name for frame in site["cond_indep_stack"]}
    count = len(jnp.shape(site["value"])) - site["fn"].event_dim
    return tuple(names.get(axis - count, f"{site['name']}_dim_{axis}") for axis in range(count))


def plate_dim(site: Site, plate: str) -> int:
    """The batch axis of a plate around a site, counted from the right."""
    return next(int(frame.dim) for frame in site["cond_indep_stack"] if frame.name == plate)


def is_factor(site: Site) -> bool:
    """Whether a site is numpyro.factor's."""
    return bool(site["infer"].get("is_auxiliary", False))


def is_observed(site: Site, plate: str) -> bool:
    """Whether a site of a trace observes a value in this plate, and is no factor."""
    return site["type"] == "sample" and bool(site["is_observed"]) and not is_factor(site) and plate in plates_of(site)


def scalar_of(support: Distribution) -> Tree:
    """A support without the axes that were made part of an event."""
    while isinstance(support, dist.constraints.independent):
        support = support.base_constraint
    return support


def transform_of(site: Site) -> Tree:
    """The bijection from unconstrained values to a latent site's support.

    Raises UnsupportedModelError where there is none."""
    try:
        return biject_to(site["fn"].support)
    except NotImplementedError:
        raise UnsupportedModelError(
            f"site '{site['name']}' has a support without a bijection from real vectors; sample an unconstrained site "
            "and map it with numpyro.deterministic."
        ) from None


def unconstrained_shape(site: Site, transform: Distribution) -> Shape:
    """The shape of a continuous latent site's unconstrained value."""
    return tuple(transform.inverse_shape(site["kwargs"]["sample_shape"] + site["fn"].shape()))


def _unconstrained(site: Site) -> jax.ShapeDtypeStruct | None:
    if site["fn"].support.is_discrete:
        return None
    return abstract(transform_of(site).inverse_shape(jnp.shape(site["value"])), jnp.result_type(float))


def _num_values(site: Site) -> int | None:
    """The number of values that a latent site is tried at, or None where it cannot be summed out."""
    fn = site["fn"]
    if fn.event_shape:
        return None
    if not fn.support.is_discrete:
        return NUM_NODES if _is_normal(fn) else None
    return int(fn.enumerate_support(expand=False).shape[0]) if fn.has_enumerate_support else None


def _observed(site: Site) -> Observed:
    fn = site["fn"]
    axes = {frame.name: frame.dim - len(fn.event_shape) for frame in site["cond_indep_stack"]}
    return Observed(jnp.shape(site["value"]), fn.batch_shape, fn.event_shape, joint_name(fn), axes)


def joint_name(distribution: Distribution) -> str | None:
    """The name of a distribution whose event is not a product of scalars."""
    innermost = unwrapped(distribution)
    return type(innermost).__name__ if innermost.event_shape else None


def layers(distribution: Distribution) -> Iterator[Distribution]:
    """A distribution, the one inside of its mask or added axes, the one inside of that, and so on."""
    yield distribution
    while isinstance(distribution, (dist.Independent, dist.ExpandedDistribution, dist.MaskedDistribution)):
        distribution = distribution.base_dist
        yield distribution


def unwrapped(distribution: Distribution) -> Tree:
    """A distribution without its masks and added axes."""
    *_, innermost = layers(distribution)
    return innermost


def is_masked(site: Site) -> bool:
    """Whether a mask that may differ between rows is on a site."""
    return any(isinstance(fn, dist.MaskedDistribution) and not isinstance(fn._mask, bool) for fn in layers(site["fn"]))


def unmasked(fn: Distribution) -> Tree:
    """Which entries of a value count under a distribution's masks, broadcast to the value's shape."""
    found: Tree = True
    for layer in layers(fn):
        if isinstance(layer, dist.MaskedDistribution):
            mask = jnp.asarray(layer._mask)
            found &= mask.reshape(mask.shape + (1,) * (mask.ndim > 0) * len(layer.event_shape))
    return found


def _is_normal(fn: Distribution) -> bool:
    fn = unwrapped(fn)
    if isinstance(fn, dist.TransformedDistribution):
        one_to_one = all(t.domain.event_dim == t.codomain.event_dim == 0 for t in fn.transforms)
        return one_to_one and not fn.event_shape and type(unwrapped(fn.base_dist)) is dist.Normal
    return type(fn) is dist.Normal


def _made_up_param(site: Site) -> Tree:
    """A value of the param site's shape, inside its constraint."""
    transform = biject_to(site["kwargs"].get("constraint", dist.constraints.real))
    shapes = jax.tree.map(lambda x: abstract(jnp.shape(x), jnp.result_type(x)), site["value"])
    if isinstance(shapes, jax.ShapeDtypeStruct):
        shapes = abstract(transform.inverse_shape(shapes.shape), shapes.dtype)
    rng = np.random.default_rng(0)
    with jax.ensure_compile_time_eval():
        return jax.tree.map(lambda s: transform(jnp.asarray(0.1 * rng.standard_normal(s.shape), s.dtype)), shapes)


def value_at(site: Site, number: Numbers) -> jax.Array:
    """The value with this number; of a continuous site at node t, the transform of loc + scale t."""
    fn = unwrapped(site["fn"])
    if fn.support.is_discrete:
        return fn.enumerate_support(expand=False)[number]
    transforms = fn.transforms if isinstance(fn, dist.TransformedDistribution) else []
    normal = unwrapped(fn.base_dist) if transforms else fn
    value = normal.loc + normal.scale * jnp.asarray(NODES, jnp.result_type(float))[number]
    for transform in transforms:
        value = transform(value)
    return value


def log_prob_of(site: Site) -> jax.Array:
    """The log probability of a site's value, scaled. Whole numbers of a law on the reals become floats."""
    value = site["value"]
    if jnp.issubdtype(jnp.result_type(value), jnp.integer) and not site["fn"].support.is_discrete:
        value = jnp.asarray(value, float)
    log_prob: jax.Array = site["fn"].log_prob(value)
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def log_weight(site: Site, number: jax.Array) -> jax.Array:
    """The log weight of the value with this number, in the shape of the site's value. Masks of the latent itself do not count:
    a latent of which nothing depends is summed to 1."""
    if site["fn"].support.is_discrete:
        return log_prob_of(site | {"fn": unwrapped(site["fn"])})
    return jnp.broadcast_to(jnp.asarray(LOG_WEIGHTS, jnp.result_type(float))[number], jnp.shape(site["value"]))
