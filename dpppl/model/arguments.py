"""The arguments of a model's call: private rows, public arrays, and arguments that are not arrays."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpppl.data.disk import on_disk
from dpppl.data.rows import sharded
from dpppl.data.sources import Source, fitted
from dpppl.errors import ConfigurationError, DPPPLError, UnsupportedModelError
from dpppl.jaxprs import abstract
from dpppl.model import public_values
from dpppl.model.array_likes import ARRAYS, read_by_entry, with_arrays
from dpppl.types import Function, Tree
from dpppl.validation import a, check_bound, checked_fields

Arrays = dict[str, Tree]
Shapes = dict[str, jax.ShapeDtypeStruct]
Model = Function
_MOST_TOLD = 12
_MOST_NUMBERS = 6  # largest number of arguments that may be single numbers, however few rows there are


@jax.tree_util.register_pytree_node_class
@checked_fields
@dataclass(frozen=True)
class Public:
    """Marks a model argument as not private.

    - **value** - an array or a pytree of arrays.

    >>> import numpy as np
    >>> Public(np.ones(3)).value.shape
    (3,)
    """

    value: Tree

    def __post_init__(self) -> None:
        if isinstance(self.value, Public):
            object.__setattr__(self, "value", self.value.value)

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence[Tree]) -> "Public":
        return cls(*children)


@dataclass(frozen=True, eq=False)
class Arguments:
    """A call's arguments without their arrays: where private rows, Public arrays and static values belong.

    - **names** - the names of the call's arguments.
    - **num_positional** - how many of them were given by position.
    - **treedef** - the structure of all arguments.
    - **leaves** - for each leaf its label, and whether it stands under Public.
    - **rows**, **public** - shapes of private and Public arrays, by label.
    - **static** - arguments that are not arrays, by label: settings, and values marked as Public.
    - **missing** - arguments that are None, given or by default.
    - **by_entry** - sentences on arguments that are read entry by entry; see `read_by_entry`."""

    names: tuple[str, ...]
    num_positional: int
    treedef: jax.tree_util.PyTreeDef
    leaves: tuple[tuple[str, bool], ...]  # label, under Public
    rows: Shapes
    public: Shapes
    static: dict[str, object] = field(repr=False)
    missing: tuple[str, ...] = ()
    by_entry: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> "Arguments":
        """The arguments of the call `model(*args, **kwargs)`.

        Raises ConfigurationError for arrays that are neither rows nor `Public`, and for other objects that are neither settings
        nor `Public`. Raises UnsupportedModelError where there is no private array."""
        names, values = _named(model, args, kwargs)
        with _without_values():
            for name, value in zip(names, values):
                public_values.check_marked(name, value, lambda leaf: isinstance(leaf, ARRAYS), _is_public)
            leaves, treedef = _flatten(names, values)
        rows: Shapes = {}
        public: Shapes = {}
        static = {}
        for label, is_public, leaf in leaves:
            if is_public and isinstance(leaf, Source):
                raise ConfigurationError(f"argument '{label}' is public and on disk: Public arrays are held in memory.")
            if not isinstance(leaf, ARRAYS):
                static[label] = leaf
            else:
                (public if is_public else rows)[label] = _shape_of(label, leaf)
        left_out = (n for n, p in _signature(model).parameters.items() if p.default is None and n not in names)
        missing = (*(n for n, value in zip(names, values) if value is None), *left_out)
        _check_rows(rows, static, missing)
        marks = tuple((label, is_public) for label, is_public, _ in leaves)
        by_entry = tuple(read_by_entry(names, [*args, *(kwargs[name] for name in sorted(kwargs))], _is_public))
        found = cls(tuple(names), len(args), treedef, marks, rows, public, static, missing, by_entry)
        numbers = sum(public_values.is_setting(x) and not isinstance(x, str | None) for x in values)
        if numbers >= max(_MOST_NUMBERS, found.num_rows):
            raise ConfigurationError(
                f"{numbers} arguments are single numbers, as many as there are rows, which may be the rows themselves: pass "
                "them as one array, wrapped in dpppl.Public if it is not private."
            )
        return found

    @property
    def num_rows(self) -> int:
        """The length of the private arrays' leading axis."""
        return int(next(iter(self.rows.values())).shape[0])

    @property
    def unequal(self) -> str | None:
        """The error for private arrays whose leading axes differ in length, with its cure; None if they agree."""
        lengths = [shape.shape[0] for shape in self.rows.values()]
        if len(set(lengths)) == 1:
            return None
        whole = [shape.shape[0] for label, shape in self.rows.items() if label.isidentifier()]
        most = max(lengths, key=lambda length: (lengths.count(length), whole.count(length), length))
        found, cures = [], []
        for length in dict.fromkeys(lengths):
            labels = [label for label, shape in self.rows.items() if shape.shape[0] == length]
            found.append(f"{quoted(labels)} {'has' if len(labels) == 1 else 'have'} {length}")
        for label, shape in self.rows.items():
            if shape.shape[0] != most and shape.shape[1:] == (most,):
                cures.append(f" '{label}' has shape {shape.shape}: pass {label}.T.")
            elif 2 * min(shape.shape[0], most) <= max(shape.shape[0], most):
                cures.append(
                    f" If '{label}' is the same for all rows, as a table by group, pass dpppl.Public({label})."
                )
        return (
            f"the arguments have different numbers of rows: {', '.join(found)}. Entry i of each array belongs to row i: pass the "
            f"same rows of each, in one order.{''.join(cures)}"
        )

    @property
    def words(self) -> str:
        """Names, types and shapes of the arguments, for errors."""
        shapes = {**self.rows, **self.public}
        found = [f"{label} {s.dtype}[{', '.join(map(str, s.shape))}]" for label, s in shapes.items()]
        found += [f"{label} {type(value).__name__}, no array" for label, value in self.static.items()]
        found += [f"{name} None" for name in self.missing]
        return "; ".join([*found[:_MOST_TOLD], *["..."] * (len(found) > _MOST_TOLD)])

    @property
    def assumed_public(self) -> tuple[str, ...]:
        """Name and type of each argument that is not private."""
        leaves = [*self.static.items(), *self.public.items()]
        return public_values.described(self.names, leaves, self.treedef.children())

    def shapes(self, num_rows: int) -> Shapes:
        """Shapes and dtypes of the private arrays, if they had this many rows."""
        return {name: abstract((num_rows, *s.shape[1:]), s.dtype) for name, s in self.rows.items()}

    def arrays(
        self, model: Model, args: tuple[object, ...], kwargs: dict[str, object], mesh: Mesh | None = None
    ) -> tuple[Tree, Arrays]:
        """The private rows and the Public arrays of another call, by label; `Rows` where rows are sharded over devices, by
        `mesh` or as they came.

        Raises ConfigurationError if it has another structure or other shapes."""
        names, values = _named(model, args, kwargs)
        leaves, treedef = _flatten(names, values)
        marks = tuple((label, is_public) for label, is_public, _ in leaves)
        if (tuple(names), treedef, marks) != (self.names, self.treedef, self.leaves):
            raise ConfigurationError("the model's arguments have another structure than when the model was split.")
        found = {label: leaf for label, _, leaf in leaves}
        for label, expected in {**self.rows, **self.public}.items():
            shape = _shape_of(label, found[label]).shape if isinstance(found[label], ARRAYS) else None
            if shape != expected.shape:
                is_now = "no array" if shape is None else f"an array of shape {shape}"
                raise ConfigurationError(
                    f"argument '{label}' is {is_now}; when the model was split, it was an array of shape {expected.shape}."
                )
        for label, value in self.static.items():
            if not (found[label] is value or _same(found[label], value)):
                raise ConfigurationError(f"argument '{label}' has another value than when the model was split.")
        with np.errstate(all="ignore"):  # a row too large for JAX's type must not show in a warning or an error
            given = {label: found[label] for label in self.rows}
            rows: Tree = on_disk(given, mesh) or sharded(given, mesh) or jax.device_put(jax.tree.map(_held, given))
        return rows, {label: jnp.asarray(found[label]) for label in self.public}

    def public_values(self, model: Model, args: tuple[object, ...], kwargs: dict[str, object]) -> Arrays:
        """The Public arrays of the call as they were given, by label."""
        leaves, _ = _flatten(*_named(model, args, kwargs))
        return {label: leaf for label, _, leaf in leaves if label in self.public}

    def join(self, rows: Arrays, public: Arrays) -> tuple[list[Tree], dict[str, Tree]]:
        """`args` and `kwargs` for the model, with these arrays and the call's static values."""
        found = {**rows, **public, **self.static}
        values = jax.tree.unflatten(self.treedef, [found[label] for label, _ in self.leaves])
        count = self.num_positional
        return values[:count], dict(zip(self.names[count:], values[count:]))


def zeros(shapes: Shapes) -> Arrays:
    """Arrays of zeros of these shapes."""
    return {name: jnp.zeros(s.shape, s.dtype) for name, s in shapes.items()}


def quoted(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return " and ".join(f"'{name}'" for name in names)


def name_of(model: object) -> str:
    """The name of a model or a guide, for print."""
    return str(getattr(model, "__name__", type(model).__name__))


def _same(one: object, other: object) -> bool:
    """Whether two arguments that are not arrays are equal; False where they cannot be compared."""
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def _signature(model: Model) -> inspect.Signature:
    """A model's signature; that of a function of anything where it shows none."""
    try:
        return inspect.signature(model)
    except (TypeError, ValueError):
        return inspect.signature(lambda *args, **kwargs: None)


def _named(model: Model, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[list[str], list[Tree]]:
    """Names and values of the arguments: positional ones in order, keywords by name; array-likes as arrays."""
    signature = _signature(model)
    what = f"'{getattr(model, '__name__', 'model')}' does not take the arguments that the call has for it"
    check_bound(signature, args, kwargs, what, list(signature.parameters), {})
    names = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = names[: len(args)] + [f"args[{i}]" for i in range(len(names), len(args))] + sorted(kwargs)
    values = [*args, *(kwargs[name] for name in sorted(kwargs))]
    with _without_values():
        for name, value in zip(names, values):
            public_values.check_nesting(name, value)
        return names, with_arrays(names, values, _is_public)


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    """Re-raise what other libraries say about an argument, which may hold values, in words that hold none."""
    try:
        yield
    except DPPPLError:
        raise
    except Exception:
        raise ConfigurationError(
            "an argument of the model cannot be read as arrays of numbers; pass NumPy or JAX arrays, or a dict of them by name."
        ) from None


def _flatten(
    names: list[str], values: Sequence[object]
) -> tuple[list[tuple[str, bool, Tree]], jax.tree_util.PyTreeDef]:
    """(label, under Public, leaf) of every leaf, and the tree without its `Public` marks."""
    with_path, key = jax.tree_util.tree_flatten_with_path, jax.tree_util.keystr
    leaves = []
    for name, value in zip(names, values):
        for path, leaf in with_path(value, is_leaf=_is_public)[0]:
            inner = with_path(leaf.value if _is_public(leaf) else leaf)[0]
            leaves += [(name + key(path) + key(rest), _is_public(leaf), each) for rest, each in inner]
    unwrapped = jax.tree.map(lambda leaf: leaf.value if _is_public(leaf) else leaf, values, is_leaf=_is_public)
    return leaves, jax.tree.structure(unwrapped)


def _held(array: jax.Array) -> Tree:
    """An array of NumPy's in the type that JAX holds it in."""
    return fitted(array, jax.dtypes.canonicalize_dtype(array.dtype)) if isinstance(array, np.ndarray) else array


def _is_public(value: object) -> bool:
    return isinstance(value, Public)


def _shape_of(label: str, array: Tree) -> jax.ShapeDtypeStruct:
    if isinstance(array, Source):
        if array.dtype == object:
            raise ConfigurationError(
                f"argument '{label}' is a table: choose columns by their names, source[NAME] or source[[NAME, OTHER]]."
            )
        array = jax.ShapeDtypeStruct(array.shape, array.dtype)
    try:
        shape: jax.ShapeDtypeStruct = jax.eval_shape(jnp.asarray, array)
    except TypeError:
        raise ConfigurationError(
            f"argument '{label}' is an array of dtype {array.dtype.type.__name__}; arrays are numbers: pass "
            f"{label}.astype('float32') if it holds numbers, and code classes as 0, 1, ..."
        ) from None
    return shape


def _check_rows(rows: Shapes, static: dict[str, object], missing: Sequence[str]) -> None:
    if not rows:
        kinds = [f"'{label}' is {a(type(value).__name__)}" for label, value in static.items()]
        kinds += [f"'{name}' is None" for name in missing]
        raise UnsupportedModelError(
            "the call has no private argument: pass the data as array arguments, not by closure and not all of them "
            f"wrapped in dpppl.Public{' (no array: ' + ', '.join(kinds) + ')' if kinds else ''}."
        )
    for label, shape in rows.items():
        is_key = jnp.issubdtype(shape.dtype, jax.dtypes.prng_key)
        for is_refused, words in (
            (is_key, "is a random key, and no data: run takes one key, before the data."),
            (0 in shape.shape[1:], f"has shape {shape.shape}: rows without a number, no columns."),
            (not shape.shape, "is an array without rows; wrap it in dpppl.Public, or pass a Python number."),
            (shape.shape[:1] == (0,), "has no rows: its leading axis has length 0."),
        ):
            if is_refused:
                raise ConfigurationError(f"argument '{label}' {words}")
