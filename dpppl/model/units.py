"""Units larger than a row: the rows of a person, padded to k and masked, are one record whose log likelihood is their sum.

Arrays are rearranged on the host, before the door: row i of unit u goes to place u * k + i. Places that a unit does not fill
repeat its first row, and a mask takes away their effect. Which rows are kept of a unit with more than k depends on draws of its
own rows only.
"""

import inspect
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpppl.data.disk import in_memory
from dpppl.data.entries import entries_of, is_missing
from dpppl.data.rows import arrays_of, of_one_process, sharded
from dpppl.data.sources import Source
from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.jaxprs import abstract
from dpppl.model import supports
from dpppl.model.arguments import Arguments, Arrays, Model, Public, Shapes
from dpppl.model.array_likes import check_indices
from dpppl.model.handlers import Observe
from dpppl.model.indices import IndexedTable
from dpppl.model.refusals import FLAT
from dpppl.model.responses import Responses
from dpppl.model.split import SplitModel, split_model
from dpppl.model.structure import Trace
from dpppl.types import Foreign, Tree
from dpppl.validation import a

MASK = "(rows of the unit)"
"""Label of the mask among a unit's arrays, (k,), and of all masks among the arguments of a call, (U, k)."""


def parts(of_rows: SplitModel, unit: Arrays) -> tuple[Arrays, jax.Array]:
    """The arrays of a unit's rows, and the mask."""
    return {name: unit[name] for name in of_rows.arguments.rows}, unit[MASK]


@dataclass(frozen=True, eq=False)
class UnitSplit(SplitModel):
    """A split whose "row" is a unit: arrays (k, ...) and the mask. Fields are those of `SplitModel`, and:

    - **max_rows** - k, the largest number of rows that is kept of a unit.
    - **of_rows** - the split of single rows. Prior and latents look at no rows: they are the model's own.

    `num_rows` is the number of units."""

    max_rows: int = field(kw_only=True)
    of_rows: SplitModel = field(kw_only=True)

    def arrays(self, args: tuple[Tree, ...], kwargs: dict[str, Tree], mesh: Mesh | None = None) -> tuple[Tree, Arrays]:
        """The units' arrays (U, k, ...) with the mask (U, k), and the Public arrays, of a call as `grouped` made it."""
        if MASK not in kwargs:
            raise ConfigurationError("this object's unit is larger than a row: give the ids of rows, as run does.")
        rows, public = self.of_rows.arrays(args, _without_mask(kwargs))
        in_memory(rows, "a unit of privacy with several rows")
        shape = self.num_rows, self.max_rows
        units = {n: x.reshape(*shape, *x.shape[1:]) for n, x in rows.items()} | {MASK: jnp.asarray(kwargs[MASK])}
        return sharded(units, mesh) or units, public

    @partial(jax.jit, static_argnums=0, inline=True)
    def log_likelihood(self, z: Arrays, row: Arrays, public: Arrays, responses: object = None) -> jax.Array:
        """The log likelihood of one unit, a scalar; `responses` by site, (k, ...)."""
        rows, mask = parts(self.of_rows, row)
        axes = None, 0, None, None if responses is None else 0
        each = jax.vmap(self.of_rows.log_likelihood, axes)(z, rows, public, responses)
        return jnp.sum(jnp.where(mask, each, 0.0))

    @property
    def tables(self) -> tuple[IndexedTable, ...]:
        """Those that rows index."""
        return self.of_rows.tables

    def visit_observed(self, visit: Observe, z: Arrays, row: Arrays, public: Arrays, assignment: Arrays) -> Trace:
        """On the unit's first row."""
        first = {name: x[0] for name, x in parts(self.of_rows, row)[0].items()}
        return self.of_rows.visit_observed(visit, z, first, public, assignment)

    @property
    def row(self) -> Shapes:
        """Shapes and dtypes of one unit."""
        rows = {n: abstract((self.max_rows, *s.shape), s.dtype) for n, s in self.of_rows.row.items()}
        return rows | {MASK: abstract((self.max_rows,), np.dtype(bool))}


@dataclass(frozen=True, eq=False)
class UnitResponses(Responses):
    """The distribution of a unit's responses: those of its rows, drawn jointly. Values are by site, (m, k, ...).

    Fields are those of `Responses`, and:

    - **of_rows** - the responses of single rows."""

    of_rows: Responses = field(kw_only=True)

    def own(self, z: Arrays, row: Arrays, public: Arrays) -> None:
        """None."""

    def size_of(self, row: Arrays) -> jax.Array:
        """How many numbers the unit's rows observe."""
        return jnp.sum(parts(self.of_rows.split, row)[1]) * self.of_rows.size

    def is_outside(self, z: Arrays, row: Arrays, public: Arrays) -> jax.Array:
        """Whether any of the rows observes what its site's support does not hold."""
        return is_outside(self.split, z, row, public)

    def totals(self, z: Arrays, row: Arrays, public: Arrays, values: Arrays) -> jax.Array:
        """Sums over the rows, (1 + m,)."""
        rows, mask = parts(self.of_rows.split, row)
        each = jax.vmap(self.of_rows.totals, (None, 0, None, 1))(z, rows, public, values)
        return jnp.sum(jnp.where(mask[:, None], each, 0.0), axis=0)

    def draw(self, z: Arrays, row: Arrays, public: Arrays, key: jax.Array, count: tuple[int, ...] = ()) -> Arrays:
        rows, mask = parts(self.of_rows.split, row)
        of_row = lambda row, key: self.of_rows.draw(z, row, public, key, count)  # noqa: E731
        return jax.vmap(of_row, out_axes=len(count))(rows, jax.random.split(key, mask.shape[0]))


def split_in_units(
    model: Model, args: tuple[object, ...], kwargs: dict[str, Tree], *, data_plate: str | None = None, variational: bool = False,
) -> SplitModel:  # fmt: skip
    """`split_model`, and in units where `grouped` made the arguments.

    Raises UnsupportedModelError, naming the site, for a latent of each row or of each unit."""
    if MASK not in kwargs:
        return split_model(model, args, kwargs, data_plate=data_plate, variational=variational)
    num_units, max_rows = np.shape(kwargs[MASK])
    try:
        inner = split_model(model, args, _without_mask(kwargs), data_plate=data_plate, variational=variational)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"{error} (The unit is larger than a row: the model sees {num_units * max_rows:,} rows, {max_rows} a unit, and its "
            "data plate takes its size from them, as in x.shape[0].)"
        ) from None
    of_row = [(n, "a latent of each row") for n in inner.local] + [(n, "a parameter") for n in inner.params]
    for name, what in of_row:
        raise UnsupportedModelError(
            f"site '{name}' is {what}, which is not supported where the unit is larger than a row; marginalise the latent, give "
            "the parameter a prior, or leave unit out."
        )
    for name, latent in inner.latents.items():
        if num_units > 1 and num_units in latent.shape:
            raise UnsupportedModelError(
                f"site '{name}' has as many entries as there are units: only one person's rows inform "
                "each entry, and the noise hides any one person. Marginalise it (a person's responses are then correlated), or "
                "leave it out."
            )
    own = {f.name: getattr(inner, f.name) for f in fields(SplitModel)} | {"num_rows": num_units}
    return UnitSplit(**own, max_rows=max_rows, of_rows=inner)


def is_outside(split: SplitModel, z: Arrays, row: Arrays, public: Arrays) -> jax.Array:
    """`supports.is_outside`; for a unit, whether any of its rows is outside."""
    if not isinstance(split, UnitSplit):
        return supports.is_outside(split, z, row, public)
    rows, mask = parts(split.of_rows, row)
    of_row = partial(supports.is_outside, split.of_rows)
    return jnp.any(mask & jax.vmap(of_row, (None, 0, None))(z, rows, public))


def public_values(split: SplitModel, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Arrays:
    """The Public arrays of a call as they were given, by label; rows may be in units."""
    return split.arguments.public_values(split.model, args, _without_mask(kwargs))


def responses_of(split: SplitModel, num_draws: int, public: Arrays, may_share: bool = False) -> Responses:
    """`Responses.of`, and of units where the split is in units."""
    if not isinstance(split, UnitSplit):
        return Responses.of(split, num_draws, may_share, public)
    responses = Responses.of(split.of_rows, num_draws, public=public)
    if responses.missing:
        raise UnsupportedModelError(
            f"site '{responses.missing[0]}' stands for missing values, which are not supported with centred clipping where the "
            f"unit is larger than a row; leave unit out, or {FLAT}."
        )
    like = responses.scaled, responses.observed, responses.from_one_key
    return UnitResponses(split, num_draws, None, *like, of_rows=responses)


def grouped(
    model: Model, args: tuple[object, ...], kwargs: dict[str, object], ids: str | None, max_rows: int, key: jax.Array
) -> tuple[tuple[Tree, ...], dict[str, Tree]]:
    """The arguments of a call with the rows of each unit next to each other, (U * k, ...), and their MASK (U, k).

    - **model**, **args**, **kwargs** - the model and the arguments of its call.
    - **ids** - name of the argument that holds one hashable id a row; None where rows are the units. Rows without an id (None,
      NaN, a tuple that holds one of these, what cannot be hashed) are left out.
    - **max_rows** - the most rows of a unit that are kept, k.
    - **key** - decides which rows of a larger unit are kept.

    Raises ConfigurationError, which shows no id."""
    if ids is None or MASK in kwargs:
        return args, kwargs
    if ids not in kwargs:
        is_own = ids in inspect.signature(model).parameters
        cure = f", and another name than that of the model's argument, unit='{ids}_id'" if is_own else ""
        raise ConfigurationError(f"the unit of privacy is a {ids}: give {ids}=..., one id for each row{cure}.")
    rest = {name: value for name, value in kwargs.items() if name != ids}
    arguments = Arguments.of(model, args, rest)
    found, public = arguments.arrays(model, args, rest)
    rows = arrays_of(in_memory(of_one_process(found, "grouping rows by id"), f"a unit of privacy that is a {ids}"))
    codes = _codes(ids, kwargs[ids])
    values = [*args, *(rest[name] for name in sorted(rest)), kwargs[ids]]
    check_indices([*arguments.names, ids], values, lambda value: isinstance(value, Public))
    for label, x in rows.items():
        if len(x) != len(codes):
            raise ConfigurationError(
                f"{ids} has {len(codes):,} ids, and '{label}' has {len(x):,} rows: give one id for each row."
            )
    two = jnp.ravel(jax.random.key_data(jax.random.fold_in(key, 0)))[:2]
    words = np.asarray(jax.random.bits(jax.random.wrap_key_data(two, impl="threefry2x32"), (8,), np.uint32))
    index, mask = _places(codes, max_rows, np.random.default_rng(words).random(len(codes)))
    if not len(mask):
        raise ConfigurationError(
            f"no row has a {ids}: give a number, a string or a tuple for each row; None and NaN are none."
        )
    taken = {n: np.take(np.asarray(x), index.ravel(), axis=0) for n, x in rows.items()}
    static = {
        n: Public(arguments.static[n]) for n, is_public in arguments.leaves if is_public and n in arguments.static
    }
    marked = replace(arguments, static=arguments.static | static)
    new_args, new_kwargs = marked.join(taken, {n: Public(x) for n, x in public.items()})
    return tuple(new_args), new_kwargs | {MASK: mask}


def _codes(name: str, ids: Foreign) -> np.ndarray:
    """Numbers of units in order of their first row, (R,); -1 where there is no id, or one that cannot be hashed."""
    known: dict[object, int] = {}

    def code(entry: object) -> int:
        try:
            return -1 if is_missing(entry) else known.setdefault(entry, len(known))
        except Exception:  # it cannot be hashed
            return -1

    shape: tuple[int, ...] = ()
    try:
        shape = tuple(map(int, getattr(ids, "shape", ())))
        if isinstance(ids, str | bytes | Mapping | Set | Source | Public) or len(shape) > 1:
            raise TypeError
        return np.asarray([code(entry) for entry in entries_of(ids)], np.int64)
    except Exception:  # what it says may hold ids
        raise ConfigurationError(
            f"{name} must hold one hashable id for each row, in an array or a list in memory: numbers, strings or tuples, as of "
            f"list(zip(first, second)); got {a(type(ids).__name__)}{f' of shape {shape}' if shape else ''}."
        ) from None


def _places(codes: np.ndarray, max_rows: int, order: np.ndarray) -> tuple[Tree, Tree]:
    """Which row stands at each place, (U, k), and which places a unit fills: the first k of its rows by `order`."""
    rows = np.lexsort((order, codes))
    rows = rows[codes[rows] >= 0]
    units = codes[rows]
    starts = np.flatnonzero(np.diff(units, prepend=-1))
    rank = np.arange(len(rows)) - starts[units]
    index = np.repeat(rows[starts][:, None], max_rows, axis=1)
    mask, kept = np.zeros(index.shape, bool), rank < max_rows
    places = units[kept], rank[kept]
    index[places], mask[places] = rows[kept], True
    return index, mask


def _without_mask(kwargs: dict[str, object]) -> dict[str, Tree]:
    return {name: value for name, value in kwargs.items() if name != MASK}
