"""The arguments of a model's call: which arrays are private rows, which are public, and what is no array."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.jaxprs import abstract

Arrays = dict[str, Any]
Shapes = dict[str, jax.ShapeDtypeStruct]
Model = Callable[..., Any]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Public:
    """Marks a model argument, an array or a pytree of arrays, as not private.

    >>> import numpy as np
    >>> Public(np.ones(3)).value.shape
    (3,)
    """

    value: Any

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence[Any]) -> "Public":
        return cls(*children)


@dataclass(frozen=True, eq=False)
class Arguments:
    """A call's arguments without their arrays: where private rows, Public arrays and static values belong."""

    names: tuple[str, ...]
    num_positional: int
    treedef: Any
    leaves: tuple[tuple[str, bool], ...]  # label, under Public
    rows: Shapes
    public: Shapes
    static: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Arguments":
        """Those of the call `model(*args, **kwargs)`.

        Raises ConfigurationError for arrays that are neither rows nor `Public`, UnsupportedModelError where there is no
        private array."""
        names, values = _named(model, args, kwargs)
        leaves, treedef = _flatten(names, values)
        rows: Shapes = {}
        public: Shapes = {}
        static = {}
        for label, is_public, leaf in leaves:
            if not isinstance(leaf, (np.ndarray, jax.Array, jax.ShapeDtypeStruct)):
                static[label] = _checked_static(label, leaf)
            else:
                (public if is_public else rows)[label] = _shape_of(label, leaf)
        _check_rows(rows)
        marks = tuple((label, is_public) for label, is_public, _ in leaves)
        arguments = cls(tuple(names), len(args), treedef, marks, rows, public, static)
        _check_lists(names, values, arguments.num_rows)
        return arguments

    @property
    def num_rows(self) -> int:
        """The length of the private arrays' leading axis."""
        return int(next(iter(self.rows.values())).shape[0])

    def shapes(self, num_rows: int) -> Shapes:
        """Shapes and dtypes of the private arrays, if they had this many rows."""
        return {name: abstract((num_rows, *s.shape[1:]), s.dtype) for name, s in self.rows.items()}

    def arrays(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arrays, Arrays]:
        """The private rows and the Public arrays of another call, by label.

        Raises ConfigurationError if it has another structure or other shapes."""
        names, values = _named(model, args, kwargs)
        leaves, treedef = _flatten(names, values)
        marks = tuple((label, is_public) for label, is_public, _ in leaves)
        if (tuple(names), treedef, marks) != (self.names, self.treedef, self.leaves):
            raise ConfigurationError("the model's arguments have another structure than when the model was split.")
        found = {label: leaf for label, _, leaf in leaves}
        for label, expected in {**self.rows, **self.public}.items():
            if np.shape(found[label]) != expected.shape:
                raise ConfigurationError(
                    f"argument '{label}' has another shape than when the model was split: {np.shape(found[label])} "
                    f"instead of {expected.shape}."
                )
        for label, value in self.static.items():
            if found[label] is not value and not _same(found[label], value):
                raise ConfigurationError(f"argument '{label}' has another value than when the model was split.")
        with np.errstate(all="ignore"):  # a row too large for JAX's type must not show in a warning or an error
            rows = {label: jnp.asarray(found[label]) for label in self.rows}
        return rows, {label: jnp.asarray(found[label]) for label in self.public}

    def public_values(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arrays:
        """The Public arrays of the call as they were given, by label."""
        leaves, _ = _flatten(*_named(model, args, kwargs))
        return {label: leaf for label, _, leaf in leaves if label in self.public}

    def join(self, rows: Arrays, public: Arrays) -> tuple[list[Any], dict[str, Any]]:
        """`args` and `kwargs` for the model, with these arrays and the call's static values."""
        found = {**rows, **public, **self.static}
        values = jax.tree.unflatten(self.treedef, [found[label] for label, _ in self.leaves])
        return values[: self.num_positional], dict(
            zip(self.names[self.num_positional :], values[self.num_positional :])
        )


def _same(one: Any, other: Any) -> bool:
    """Whether two arguments that are no arrays are equal; what cannot be compared is not."""
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def _named(model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Names and values of the arguments: positional ones in order, keywords by name."""
    try:
        parameters = list(inspect.signature(model).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = names[: len(args)] + [f"args[{i}]" for i in range(len(names), len(args))]
    return names + sorted(kwargs), [*args, *(kwargs[name] for name in sorted(kwargs))]


def _flatten(names: list[str], values: list[Any]) -> tuple[list[tuple[str, bool, Any]], Any]:
    """(label, under Public, leaf) of every leaf, and the tree without its `Public` marks."""
    with_path, key = jax.tree_util.tree_flatten_with_path, jax.tree_util.keystr
    leaves = []
    for name, value in zip(names, values):
        for path, leaf in with_path(value, is_leaf=_is_public)[0]:
            inner = with_path(leaf.value if _is_public(leaf) else leaf)[0]
            leaves += [(name + key(path) + key(rest), _is_public(leaf), each) for rest, each in inner]
    unwrapped = jax.tree.map(lambda leaf: leaf.value if _is_public(leaf) else leaf, values, is_leaf=_is_public)
    return leaves, jax.tree.structure(unwrapped)


def _is_public(value: Any) -> bool:
    return isinstance(value, Public)


def _shape_of(label: str, array: Any) -> jax.ShapeDtypeStruct:
    try:
        shape: jax.ShapeDtypeStruct = jax.eval_shape(jnp.asarray, array)
    except TypeError:
        raise ConfigurationError(
            f"argument '{label}' is an array of dtype {array.dtype}; arrays are numbers."
        ) from None
    return shape


def _checked_static(label: str, value: Any) -> Any:
    """`value`, unless it is an array-like, which would count as a public setting."""
    is_array_like = hasattr(value, "__array__") or hasattr(value, "__jax_array__")
    if is_array_like and not isinstance(value, (np.generic, type)):
        raise ConfigurationError(f"argument '{label}' is a {type(value).__name__}; pass a NumPy or JAX array.")
    return value


def _check_rows(rows: Shapes) -> None:
    if not rows:
        raise UnsupportedModelError(
            "the model has no private argument: pass the data as array arguments, not by closure and not all of them "
            "wrapped in dpppl.Public."
        )
    for label, shape in rows.items():
        if not shape.shape:
            raise ConfigurationError(
                f"argument '{label}' is an array without rows; wrap it in dpppl.Public, or pass a Python number."
            )
        if shape.shape[0] == 0:
            raise ConfigurationError(f"argument '{label}' has no rows: its leading axis has length 0.")
    first, *others = rows
    for label in others:
        if rows[label].shape[0] != rows[first].shape[0]:
            raise ConfigurationError(
                f"arguments '{first}' of shape {rows[first].shape} and '{label}' of shape {rows[label].shape} have "
                "leading axes of different length; the leading axis of a private array is the data axis, and every "
                "other array is wrapped in dpppl.Public."
            )


def _check_lists(names: list[str], values: list[Any], num_rows: int) -> None:
    """Refuse lists of numbers that may be data: as Python numbers they would count as public settings."""

    def is_column(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and len(value) == num_rows and _all_numbers(value)

    for name, value in zip(names, values):
        for leaf in jax.tree.leaves(value, is_leaf=lambda v: is_column(v) or _is_public(v)):
            if is_column(leaf):
                raise ConfigurationError(
                    f"argument '{name}' holds a {type(leaf).__name__} of numbers as long as the data; pass it as an "
                    "array if it is data, in dpppl.Public if it is not."
                )


def _all_numbers(value: Any) -> bool:
    return all(isinstance(leaf, (int, float, complex, np.generic)) for leaf in jax.tree.leaves(value))
