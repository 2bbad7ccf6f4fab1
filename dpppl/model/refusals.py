"""Errors for models that cannot be split by rows. Each names the site, the cause and the cure, never a value."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from dpppl import jaxprs
from dpppl.errors import ConfigurationError, UnsupportedModelError, warn
from dpppl.information_flow.rules import Kind, kind_of
from dpppl.model.arguments import quoted as quoted
from dpppl.model.quadrature import NUM_NODES
from dpppl.model.structure import Observed, Site, Structure, scalar_of, unwrapped
from dpppl.types import Distribution, Traced, Tree

MANY = (
    'pass many sequences as rows: arrays of shape (num_sequences, T), numpyro.plate("data", num_sequences), and each '
    "sequence observed whole (.to_event(1))."
)
"""The remedy for time series."""
MASK_CURE = (
    "leave them out of the density: with numpyro.handlers.mask(mask=ok): numpyro.sample('y', ..., obs=jnp.where(ok, y, 0.0)), ok "
    "an argument of its own."
)
"""The remedy for latents that stand for missing values."""
MISSING_CURE = (
    "for a covariate with missing values write x = numpyro.sample('x', dist.Normal(mu, sigma), obs=x, obs_mask=ok) in the data "
    "plate, ok an argument of its own."
)
"""How to model missing covariates."""
FLAT = 'use clipping="flat", with a dpppl kernel or dpppl.SVI'
"""The cure for responses that cannot be simulated: what is not centred needs none."""
STATEFUL = (
    "mutable state (batch norm, spectral norm, running statistics), which is changed by the rows that a layer sees; use a layer "
    "without state: flax.nnx.LayerNorm or GroupNorm instead of BatchNorm, and weights that are divided by their norm where they "
    "are used, x @ (kernel / jnp.linalg.norm(kernel)), instead of SpectralNorm or WeightNorm."
)
"""Why mutable state is refused, and the cure."""
_GENERATOR = (
    "holds a random generator as mutable state (dropout): build a layer that drops nothing without one, as "
    "flax.nnx.Dropout(rate, deterministic=True) with rngs left out; for dropout use dpppl.AutoDropout with dpppl.SVI."
)
CONTROL_FLOW = (
    "the model uses numpyro.contrib.control_flow, whose sample sites cannot be split by rows. If each row is a "
    "sequence already, carry the recursion with jax.lax.scan and write one site for all times, in the data plate, "
    "with .to_event(1); discrete states are summed out on the way, with numpyro.factor. If all data are one series, "
    f"rows must be independent: {MANY}"
)
"""The error for sites inside NumPyro's own scan and cond."""

CHANGES = (
    "the model is another one each time it is called: it changes what is outside of it (a list that it appends to, a counter, an "
    "iterator) or draws numbers of Python's or NumPy's; make all that it changes inside the model, anew in each call."
)
"""Why a model that changes from call to call is refused, and the cure."""
NUMBER = (
    "the {} depends on the number of rows (x.shape[0], or a plate of that size around a latent); pass a public number as an "
    "argument instead."
)
"""The error for what is computed for one row, and is another thing for all rows."""
_MOST_COMBINATIONS, _MOST_NODES = 1024, 256
_FEW = 6
"""Largest number of single numbers that a model may capture, however few rows there are; NumPyro makes some of them."""
_OF_LIBRARIES = 40  # largest number of different numbers that libraries write into a model's program
_MANY_WRITTEN = 100  # largest number of numbers in a model's program, however few rows there are
_SERIES = f"rows must be independent, and this is one series; {MANY}"
_MULTINOMIAL = "dist.Multinomial(total_count=1, logits=logits)"
_HINT = "The steps of one time series are no rows: pass many sequences, one a row."

More = Callable[[], Structure | None]
"""The structure of the same model called with one more row; None where it cannot be."""


def coupled_message(name: str, what: str, structure: Structure, more: Structure | None) -> str:
    """Message for a site whose log likelihood, or observed value, on a batch is not that of each row by itself."""
    if what == "likelihood" and name in structure.observed and more is not None:
        site, longer = structure.observed[name], more.observed[name].batch
        own = {axis + len(site.event) for axis in site.axes.values()}
        if any(site.batch[axis] != longer[axis] for axis in range(-len(site.batch), 0) if axis not in own):
            return (
                f"the distribution of site '{name}' has shape {site.batch}: one of its parameters has shape (n, 1) and "
                "broadcasts, each row against all; give it shape (n,), such as logits[:, 0], or weights of shape (D,) "
                "instead of (D, 1)."
            )
    subject = "its log likelihood is" if what == "likelihood" else "its observed value is"
    return (
        f"site '{name}' couples the rows, or depends on their number or position (a mean or a standard deviation over "
        f"rows, random numbers, x.shape[0], the row before, an array indexed by the plate): on a batch {subject} not that of "
        "each row by itself; pass what belongs to one row as an unmarked argument and what is publicly known of all rows as "
        f"a dpppl.Public one. {_HINT}"
    )


def latent_of_each_row_message(name: str, joint: str | None) -> str:
    """Message for a latent outside the data plate whose shape follows the number of rows; `joint` as in `Structure`."""
    if joint is None:
        return (
            f"site '{name}' is a latent of each row, one value for each, which could not be released without revealing the "
            "row. Where rows are independent given the other latents, integrate it out by hand, or write it inside the "
            "data plate and run dpppl.SVI with a guide that computes it from the row. One time series, or a Gaussian "
            "process, is no set of independent rows: pass many sequences, one a row, or use a finite basis "
            "(numpyro.contrib.hsgp)."
        )
    return f"site '{name}' ({joint}) is one draw that ties all rows together: {_tied(joint)}"


def _tied(joint: str) -> str:
    """Why one distribution over all rows cannot be, and the cure."""
    if joint.startswith("Multivariate"):
        return (
            "rows must be independent given the latents that they share; for a Gaussian process use a finite basis "
            "(numpyro.contrib.hsgp), whose weights all rows share."
        )
    return _SERIES


def check_structure(structure: Structure, variational: bool = False) -> None:
    """Refuse the kinds of site that no split supports."""
    for name, is_generator in structure.mutable.items():
        raise UnsupportedModelError(f"site '{name}' {_GENERATOR if is_generator else f'is {STATEFUL}'}")
    for name, value in structure.params.items():
        if jax.tree.leaves(value) and not variational:
            raise UnsupportedModelError(
                f"site '{name}' is a numpyro.param, which would stay at its initial value; give it a prior "
                "(numpyro.sample, numpyro.handlers.lift, random_flax_module) or pass it as an argument."
            )


def check_lengths(unequal: str | None, explore: Callable[[], Structure]) -> None:
    """Refuse private arrays that are `unequal`, in words; where no plate is around what is observed, for what they are."""
    if unequal is None:
        return
    try:
        structure = explore()
        alone = [name for name in structure.likelihood_sites() if not structure.plates_of[name]]
    except Exception:  # only asked to explain the refusal
        alone = []
    if alone:
        raise UnsupportedModelError(
            f"site '{alone[0]}' is observed outside any numpyro.plate: {_SERIES} {unequal[0].upper()}{unequal[1:]}"
        )
    raise ConfigurationError(unequal)


def find_data_plate(
    structure: Structure, num_rows: int, data_plate: str | None, more: More, missing: Sequence[str]
) -> str:
    """The one plate as long as the private arrays and around every observed site, or the error that says why not.

    - **missing** - arguments that are None."""
    sites, fits = structure.likelihood_sites(), structure.data_plates(num_rows)
    if not sites and structure.factors:
        raise UnsupportedModelError(
            f"nothing is observed, and factor site '{structure.factors[0]}' is outside the data plate; write it in "
            'numpyro.plate("data", x.shape[0]), one value a row.'
        )
    if not sites:
        free = [name for name in structure.latents if set(fits) & set(structure.plates_of[name])]
        what = f"{quoted(missing)} {'is' if len(missing) == 1 else 'are'} None; " if missing else ""
        where = f" in site {quoted(free[:1])}" if free and not missing else ""
        raise UnsupportedModelError(
            f"the model has no observed site: {what}pass the private array that it observes{where} (obs=y inside the data plate)."
        )
    if data_plate is not None:
        if data_plate not in fits:
            known = f"give data_plate='{fits[0]}'" if fits else "leave it out"
            raise ConfigurationError(
                f"data_plate {data_plate!r} is not a plate of the model as long as its arrays; {known}."
            )
        fits = [data_plate]
    for name in sites:
        if not set(fits) & set(structure.plates_of[name]):
            raise UnsupportedModelError(_outside_message(structure, name, num_rows, more))
    around_all = [name for name in fits if all(name in structure.plates_of[site] for site in sites)]
    if not around_all:
        raise UnsupportedModelError(
            f"sites {quoted(sites)} are observed in different plates, so there is more than one data plate; "
            "observe them in one numpyro.plate, or in plates of one name."
        )
    if len(around_all) > 1:
        raise ConfigurationError(
            f"plates {quoted(around_all)} are both as long as the private arrays and around every observed site; "
            f"say which one holds the rows: data_plate='{around_all[0]}'."
        )
    for name, site in structure.observed.items():
        _check_observed_axis(name, site, around_all[0], structure.plates[around_all[0]][1])
    return around_all[0]


def _outside_message(structure: Structure, name: str, num_rows: int, more: More) -> str:
    """Why no plate as long as the private arrays is around an observed site, and what to do."""
    site, longer = structure.observed.get(name), more()
    if longer is not None:
        latents = structure.latents_that_follow_rows(longer)
    else:  # the model fixes the number of rows
        latents = [n for n, latent in structure.latents.items() if latent is not None and num_rows in latent.shape]
    for latent in latents:
        return latent_of_each_row_message(latent, structure.joint.get(latent))
    if site is not None and site.joint is not None and num_rows in site.event:
        return f"site '{name}' is one {site.joint} of all rows together: {_tied(site.joint)}"
    more_values = () if longer is None or name not in longer.observed else longer.observed[name].value
    pairs = zip(site.value, more_values) if site is not None and len(more_values) == len(site.value) else ()
    if lag := max((num_rows - a for a, b in pairs if b == a + 1 and a < num_rows), default=0):
        return f"site '{name}' observes {num_rows - lag} of the {num_rows} rows, each given others: {_SERIES}"
    where = f"site '{name}' is observed outside the data plate"
    lengths = {plate: structure.plates[plate][1] for plate in structure.plates_of[name]}
    if lengths:
        found = " and ".join(f"'{plate}' of length {length}" for plate, length in lengths.items())
        return (
            f"{where}: around it is plate {found}, but the private arrays have {num_rows} rows, the length of their "
            f"leading axis, and the data plate is as long. {_HINT}"
        )
    if site is not None and not site.value:
        return (
            f"{where}: one number, of one row or of all; observe an array with one value a row, once, in "
            'numpyro.plate("data", x.shape[0]).'
        )
    opened = ', opened by "with"' if structure.data_plates(num_rows) else ""
    single = ", without .to_event" if site is not None and num_rows in site.event else ""
    return (
        f'{where}; wrap it in numpyro.plate("data", x.shape[0]){opened}{single}, the plate as long as the private arrays, '
        "whose rows must be independent (the steps of one time series are not)."
    )


_MOST_OUTSIDE = 2.0  # sds of a prior above 0, below which more than a fiftieth of it is no parameter
_ROUNDED = 1e-3  # by how much the sum of rounded shares may differ from 1
_ONE, _POSITIVE = type(constraints.unit_interval), type(constraints.greater_than(0.0))
_ORDERED = "dist.TransformedDistribution(dist.Normal(0, 2).expand([2]), dist.transforms.OrderedTransform())"
_KINDS: dict[type, tuple[str, str]] = {
    _ONE: ("between 0 and 1", ", or write jax.nn.sigmoid({})"),
    _POSITIVE: ("positive", ", or write jnp.exp({})"),
    type(constraints.integer_greater_than(0)): ("a whole number that is not negative", ""),
    type(constraints.open_interval(0.0, 1.0)): ("within its bounds", ""),
    type(constraints.ordered_vector): ("in increasing order", f", such as {_ORDERED}"),
    type(constraints.lower_cholesky): ("lower triangular with a positive diagonal, the factor of a covariance", ""),
    type(constraints.simplex): ("shares that add up to 1", ", or write jax.nn.softmax({})"),
    type(constraints.real): ("a number, not NaN", ""),
}
"""By the first kind of NumPyro's constraints that a parameter is of: what it must be, and how to make it of a latent."""
_INTERVALS = type(constraints.interval(0.0, 1.0)) | type(constraints.integer_interval(0, 1))


class Claim(NamedTuple):
    """A condition on a model, and the error where it does not hold.

    - **message** - the error.
    - **holds** - whether numbers fulfil the condition.
    - **numbers** - these, perhaps traced.
    - **same** - two traced values, or none: the condition is one only if the first is the second, or that in another shape."""

    message: str
    holds: Callable[..., bool]
    numbers: tuple[Tree, ...]
    same: tuple[Tree, ...] = ()


def claims(trace: Mapping[str, Site]) -> Iterator[Claim]:
    """Conditions on parameters of a model's distributions, and on priors of latents that are such parameters, that are open yet.

    Raises UnsupportedModelError where a number that is written in the model breaks one, and for a latent that is a constant."""
    sites = [site for site in trace.values() if site["type"] == "sample" and not site["infer"].get("is_auxiliary")]
    latents = [site for site in sites if not site["is_observed"]]
    for name, fn in ((site["name"], unwrapped(site["fn"])) for site in latents):
        if type(fn).__name__ == "Delta":
            raise UnsupportedModelError(
                f"latent '{name}' is a Delta, which is a constant: write its value in the model."
            )
    on_reals = [site for site in latents if isinstance(scalar_of(site["fn"].support), type(constraints.real))]
    for claim in (claim for site in sites for claim in _claims(site, on_reals)):
        if any(isinstance(number, jax.core.Tracer) for number in (*claim.numbers, *claim.same)):
            yield claim
        elif not claim.holds(*map(np.asarray, claim.numbers)):
            raise UnsupportedModelError(claim.message)


def _claims(site: Site, latents: Sequence[Site]) -> Iterator[Claim]:
    for fn in _laws(site["fn"]):
        for name, constraint in fn.arg_constraints.items():
            constraint, value = scalar_of(constraint), vars(fn).get(name)
            kind = next((kind for kind in _KINDS if isinstance(constraint, kind)), None)
            if kind is None or not isinstance(value, int | float | np.ndarray | np.generic | jax.Array):
                continue
            words, cure = _KINDS[kind]
            what = f"parameter '{name}' of site '{site['name']}' ({type(fn).__name__}) must be {words}"
            message = f"{what}: correct the constant or the Public array that gives it."
            yield Claim(message, partial(_is_inside, constraint), (value,))
            for latent in latents if cure and isinstance(value, jax.core.Tracer) else ():
                if np.size(latent["value"]) != np.size(value):
                    continue
                message = (
                    f"the {name} of site '{site['name']}' is latent '{latent['name']}', whose prior is not {words}: give it one "
                    f"that is{cure.format(latent['name'])}."
                )
                try:
                    moments = latent["fn"].mean, latent["fn"].variance
                except Exception:  # a law without moments
                    continue
                yield Claim(message, partial(_is_mostly_inside, kind), moments, (value, latent["value"]))
    if isinstance(support := scalar_of(site["fn"].support), _INTERVALS):
        message = f"the lower bound of site '{site['name']}' is above its upper one: exchange them."
        yield Claim(message, lambda low, high: bool(np.all(low <= high)), (support.lower_bound, support.upper_bound))


def _laws(fn: Distribution) -> Iterator[Distribution]:
    """A distribution, and those that it is made of."""
    yield fn
    for value in vars(fn).values():
        for inner in value if isinstance(value, list | tuple) else (value,):
            if isinstance(inner, dist.Distribution):
                yield from _laws(inner)


def _is_inside(constraint: Tree, value: np.ndarray) -> bool:
    if isinstance(constraint, type(constraints.real)):
        return not np.any(np.isnan(value))  # -inf is a logit of 0
    if isinstance(constraint, type(constraints.simplex)):
        return bool(np.all(value >= 0.0) and np.all(np.abs(np.sum(value, axis=-1) - 1.0) < _ROUNDED))
    return bool(np.all(constraint(value)))


def _is_mostly_inside(kind: type, mean: np.ndarray, variance: np.ndarray) -> bool:
    """Whether at most a fiftieth of a prior on the real line is outside; of one of many numbers, none is thought to be inside."""
    if kind not in (_ONE, _POSITIVE):
        return False
    reach = _MOST_OUTSIDE * np.sqrt(variance)
    return not np.any((mean - reach < 0.0) | ((mean + reach > 1.0) & (kind is _ONE)))


def check_shape(site: Site) -> None:
    """Refuse an observed value whose shape does not go with that of its distribution."""
    fn, value = site["fn"], np.shape(site["value"])
    one_hot = "Categorical" in type(unwrapped(fn)).__name__ and len(value) == 1 + len(fn.shape())
    try:
        np.broadcast_shapes(value, fn.shape())
    except ValueError:
        pass
    else:
        if not (one_hot and site["is_observed"]):
            return
    cure = "give both one shape: (n,) for one number a row, (n, k) with .to_event(1) for k"
    if one_hot:
        cure = f"labels are numbers of classes: observe y.argmax(-1) in place of one-hot rows, or {_MULTINOMIAL}"
    raise UnsupportedModelError(
        f"site '{site['name']}' observes an array of shape {value} under a {type(unwrapped(fn)).__name__} of shape "
        f"{fn.shape()}; {cure}."
    )


def _check_observed_axis(name: str, site: Observed, data_plate: str, length: int) -> None:
    """Refuse observed values that broadcast along the data plate, each against all rows."""
    axis = site.axes[data_plate]
    found = site.value[axis] if len(site.value) >= -axis else 1
    if found == length:
        return
    cure = "observe one value a row"
    if axis == -1 and site.value == (length, 1):
        cure = "observe y[:, 0], of shape (n,), instead of y of shape (n, 1)"
        if site.batch == (length, length):
            cure = "make the last axis part of a row's event, with .to_event(1) on the distribution, or " + cure
    if length in site.event:
        cure = "leave out .to_event, which makes one event of all rows"
    if site.value == (length,) and site.event == (1,):
        cure = "observe y[:, None], of shape (n, 1), instead of y of shape (n,)"
    raise UnsupportedModelError(
        f"site '{name}' observes an array of shape {site.value} under a distribution of shape "
        f"{(*site.batch, *site.event)}, which would broadcast each value against all {length} rows of plate "
        f"'{data_plate}'; {cure}."
    )


def check_sites(
    structure: Structure, data_plate: str, variational: bool = False
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Refuse latents and plates that do not fit the data plate; name the latents of rows: of guides, and those summed out."""
    local, summed = list[str](), list[tuple[str, int]]()
    for name, (size, length) in structure.plates.items():
        if name != data_plate and size != length:
            raise UnsupportedModelError(
                f"plate '{name}' subsamples, but only the data plate '{data_plate}' may; remove its subsample_size."
            )
    for name, latent in structure.latents.items():
        of_rows, values = data_plate in structure.plates_of[name], structure.supports[name]
        if of_rows and variational and latent is not None and (values is None or name not in structure.masked):
            local.append(name)
        elif of_rows and values is not None and structure.plates_of[name] == (data_plate,):
            summed.append((name, values))
        elif of_rows:
            raise UnsupportedModelError(of_row_message(name, latent is None, data_plate))
        elif latent is None:
            raise UnsupportedModelError(
                f"site '{name}' is a global discrete latent, which has no gradient; sum it out by hand "
                "(numpyro.distributions.MixtureSameFamily, or numpyro.factor with a logsumexp)."
            )
    combinations, names = math.prod(size for _, size in summed), quoted([name for name, _ in summed])
    is_continuous = any(structure.latents[name] is not None for name, _ in summed)
    if combinations > (most := _MOST_NODES if is_continuous else _MOST_COMBINATIONS):
        raise UnsupportedModelError(
            f"the latents of a row, {names}, have {combinations} joint values, too many to sum out (at most {most}, "
            f"and each continuous one has {NUM_NODES}); use fewer, or sum some out by hand."
        )
    return tuple(local), tuple(summed)


def of_row_message(name: str, is_discrete: bool, data_plate: str) -> str:
    """Why a latent of each row cannot be summed out, and the cures."""
    base = name.removesuffix("_unobserved")
    masked = f" If nothing depends on '{base}', {MASK_CURE}" if base != name else ""
    if base != name and not is_discrete:
        return (
            f"site '{name}' stands for missing values of '{base}' and cannot be summed out: it needs one number a row, a finite "
            f"support or a normal law or a transform of one (dist.LogNormal), and the data plate '{data_plate}' as its only "
            f"plate; give '{base}' such a law.{masked}"
        )
    if is_discrete:
        return (
            f"site '{name}' is a discrete latent of each row that cannot be summed out: it needs a finite "
            f"support and the data plate '{data_plate}' as its only plate; sum it out by hand "
            f"(numpyro.distributions.MixtureSameFamily, or numpyro.factor with a logsumexp).{masked}"
        )
    return (
        f"site '{name}' is a continuous latent of each row, which MCMC could not release without revealing "
        "the row; integrate it out by hand, move it out of the data plate if it is global, or run dpppl.SVI "
        "with a guide that computes it from the row. If each row sums up a group, as a school or a player, pass what was "
        "summed up, one observation a row, and the groups' latents outside of the data plate: theta[group]. If it stands "
        f"for missing values, it is summed out where it is one number a row under a normal law, or a transform of one "
        f"(dist.LogNormal), and the data plate '{data_plate}' is its only plate: {MISSING_CURE}"
    )


def check_latents(structure: Structure) -> None:
    """Refuse models with nothing to infer."""
    if not any(latent is not None and latent.size for latent in structure.latents.values()) and not structure.params:
        given = quoted((*structure.fixed, *structure.observed, *structure.factors))
        raise UnsupportedModelError(
            f"the model has no continuous latent site, so there is nothing to infer: {given} have their values given; give "
            "what is to be inferred a prior, by numpyro.sample without obs, and leave it out of handlers.condition."
        )


def check_captured(program: object, lengths: set[int], what: str = "model") -> tuple[str, ...]:
    """Refuse captured arrays as long as the data, and as many numbers as rows; describe the other ones."""
    described, numbers, many = [], 0, []
    for value in jaxprs.constants(program):
        if np.size(value) <= 1:  # a number, often one that NumPyro reshaped
            numbers += not jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
            continue
        axes = ["N" if axis in lengths else str(axis) for axis in np.shape(value)]
        description = f"{value.dtype}[{', '.join(axes)}]"
        if "N" in axes:
            raise UnsupportedModelError(
                f"the {what} captures an array {description} with an axis as long as the data plate (a closure, a "
                "default, functools.partial, numpyro.handlers.condition); pass it as an argument of the model, wrapped in "
                "dpppl.Public if it is not private. If the model makes it itself, use jax.numpy instead of NumPy."
            )
        described.append(description)
        many += [f"an array {description}"] * (np.size(value) in lengths)
    own, nonzero, different = jaxprs.count_numbers(program)
    least, written = min(lengths), max(own, different)
    if numbers >= max(_FEW, least) or written >= max(_MANY_WRITTEN, least):
        raise UnsupportedModelError(
            f"the {what} captures {max(numbers, written)} single numbers, as many as there are rows, which may be the "
            "rows themselves (a closure, a list, functools.partial); pass them as one array, an argument of the model, "
            "wrapped in dpppl.Public if it is not private."
        )
    if shown := max(nonzero, different - _OF_LIBRARIES):
        described.append(f"{shown} number{'s' * (shown > 1)}")
        many += [f"{shown} single numbers"] * (shown >= max(2 * _FEW, least))
    if many:
        cure = "They are public: if they are the rows, pass them as one array, an argument of the model."
        warn(f"the {what} captures {' and '.join(many)}, at least as many numbers as there are rows. {cure}")
    return tuple(dict.fromkeys(described))


def check_effects(program: Traced, what: str = "model") -> None:
    """Refuse side effects and rules that see all rows at once, of a model, a guide or a score."""
    if program.effects or any(kind_of(e.primitive) is Kind.CALLBACK for e in jaxprs.equations(program)):
        raise UnsupportedModelError(
            f"the {what} has a side effect (jax.debug.print, a callback, checkify), which would show private values, or "
            "bring them in; remove it."
        )
    if any(equation.primitive.name == "custom_vmap_call" for equation in jaxprs.equations(program)):
        raise UnsupportedModelError(
            f"the {what} uses jax.custom_batching.custom_vmap, whose rule would see all rows at once; remove it."
        )
