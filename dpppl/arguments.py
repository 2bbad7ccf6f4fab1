"""The arguments of a model's call: which arrays are private rows, which are public, and what is no array."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl import model_checks as checks
from dpppl.errors import ConfigurationError

Arrays = dict[str, Any]
Shapes = dict[str, jax.ShapeDtypeStruct]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Public:
    """Marks a model argument, an array or a pytree of arrays, as not private.

    >>> import numpy as np
    >>> Public(np.ones(3)).value.shape
    (3,)
    """

    value: Any

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, children):
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
    def of(cls, model: Callable, args: tuple, kwargs: dict) -> "Arguments":
        names, values = _named(model, args, kwargs)
        leaves, treedef = _flatten(names, values)
        rows: Shapes = {}
        public: Shapes = {}
        static = {}
        for label, is_public, leaf in leaves:
            if not isinstance(leaf, (np.ndarray, jax.Array, jax.ShapeDtypeStruct)):
                static[label] = checks.check_static(label, leaf)
            else:
                (public if is_public else rows)[label] = checks.shape_of(label, leaf)
        checks.check_rows(rows)
        marks = tuple((label, is_public) for label, is_public, _ in leaves)
        arguments = cls(tuple(names), len(args), treedef, marks, rows, public, static)
        checks.check_lists(names, values, arguments.num_rows, Public)
        return arguments

    @property
    def num_rows(self) -> int:
        return next(iter(self.rows.values())).shape[0]

    def arrays(self, model: Callable, args: tuple, kwargs: dict) -> tuple[Arrays, Arrays]:
        names, values = _named(model, args, kwargs)
        leaves, treedef = _flatten(names, values)
        marks = tuple((label, is_public) for label, is_public, _ in leaves)
        if (tuple(names), treedef, marks) != (self.names, self.treedef, self.leaves):
            raise ConfigurationError("the model's arguments have another structure than when the model was split.")
        found = {label: leaf for label, _, leaf in leaves}
        for label, expected in {**self.rows, **self.public}.items():
            if np.shape(found[label]) != expected.shape:
                raise ConfigurationError(f"argument '{label}' has another shape than when the model was split.")
        with np.errstate(all="ignore"):  # a row too large for JAX's type must not show in a warning or an error
            rows = {label: jnp.asarray(found[label]) for label in self.rows}
        return rows, {label: jnp.asarray(found[label]) for label in self.public}

    def public_values(self, model: Callable, args: tuple, kwargs: dict) -> Arrays:
        leaves, _ = _flatten(*_named(model, args, kwargs))
        return {label: leaf for label, _, leaf in leaves if label in self.public}

    def join(self, rows: Arrays, public: Arrays) -> tuple[list, dict]:
        found = {**rows, **public, **self.static}
        values = jax.tree.unflatten(self.treedef, [found[label] for label, _ in self.leaves])
        return values[: self.num_positional], dict(
            zip(self.names[self.num_positional :], values[self.num_positional :])
        )


def _named(model: Callable, args: tuple, kwargs: dict) -> tuple[list[str], list]:
    """Names and values of the arguments: positional ones in order, keywords by name."""
    try:
        parameters = list(inspect.signature(model).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = names[: len(args)] + [f"args[{i}]" for i in range(len(names), len(args))]
    return names + sorted(kwargs), [*args, *(kwargs[name] for name in sorted(kwargs))]


def _flatten(names: list[str], values: list) -> tuple[list[tuple[str, bool, Any]], Any]:
    """(label, under Public, leaf) of every leaf, and the tree without its `Public` marks."""
    with_path, key = jax.tree_util.tree_flatten_with_path, jax.tree_util.keystr
    leaves = []
    for name, value in zip(names, values):
        for path, leaf in with_path(value, is_leaf=_is_public)[0]:
            inner = with_path(leaf.value if _is_public(leaf) else leaf)[0]
            leaves += [(name + key(path) + key(rest), _is_public(leaf), each) for rest, each in inner]
    unwrapped = jax.tree.map(lambda leaf: leaf.value if _is_public(leaf) else leaf, values, is_leaf=_is_public)
    return leaves, jax.tree.structure(unwrapped)


def _is_public(value) -> bool:
    return isinstance(value, Public)
