"""The primitives that the proof knows, the kind of each, and rules for integers and keys.

Primitives are compared as objects: a name proves nothing. A rule gives an output's number and key from an equation and what is
known of its inputs. Integers are exact modulo 2**32. The results of primitives without a rule are unknown.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive, primitives

from dpppl import jaxprs
from dpppl.information_flow.lattice import LOST, Key, Number, Step, Value, axis, number_of
from dpppl.jaxprs import is_key
from dpppl.randomness import chacha
from dpppl.types import Equation, Function, Tree

Kind = Enum("Kind", "PLAIN IDENTITY DRAW CALL SCAN WHILE DEVICES CALLBACK UNKNOWN")
"""Kinds of primitives, in this order: computes outputs from inputs and nothing else; passes inputs on; draws from a key; runs
one program, once, a fixed number of times, until a condition fails, or on every device; calls code outside JAX; unknown."""
_PLACES = (primitives, lax, lax.linalg)
_NAMES = {
    Kind.IDENTITY: ("optimization_barrier", "device_put", "copy", "sharding_constraint", "stop_gradient", "name"),
    Kind.DRAW: ("random_bits", "random_gamma"),
    Kind.CALL: ("jit", "closed_call", "call", "custom_jvp_call", "custom_vjp_call", "remat"),
    Kind.SCAN: ("scan",),
    Kind.WHILE: ("while",),
}
Found = tuple[Number | None, Key | None]


@functools.cache
def named(name: str) -> Primitive | None:
    """JAX's own primitive of this name, or None in versions without it."""
    return next((vars(place)[f"{name}_p"] for place in _PLACES if f"{name}_p" in vars(place)), None)


def kind_of(primitive: Primitive) -> Kind:
    """The kind of a primitive, in this version of JAX."""
    return _kinds().get(primitive, Kind.UNKNOWN)


@functools.cache
def _kinds() -> dict[Any, Kind]:
    with ThreadPoolExecutor(1) as pool:  # where no trace and no mesh is around, whoever asks first
        return pool.submit(_found_kinds).result()


def _found_kinds() -> dict[Any, Kind]:
    public = {value for place in _PLACES for name, value in vars(place).items() if name.endswith("_p")}
    kinds: dict[Any, Kind] = dict.fromkeys(public, Kind.PLAIN)
    kinds |= {named(name): kind for kind, names in _NAMES.items() for name in names}

    one, like = np.ones(1, np.float32), jax.ShapeDtypeStruct((1,), np.float32)
    mesh, here = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("i",)), jax.sharding.PartitionSpec("i")
    mapped = functools.partial(jax.shard_map, mesh=mesh, out_specs=here)
    traced: list[tuple[Kind, Function, Any]] = [  # what has no public name, in the trace of what has
        (Kind.PLAIN, lambda words: jax.random.wrap_key_data(words, impl="threefry2x32"), np.zeros(2, np.uint32)),
        (Kind.PLAIN, jax.random.key_data, key_of("threefry2x32")),
        (Kind.PLAIN, jax.random.clone, key_of("threefry2x32")),
        (Kind.PLAIN, lambda x: jnp.empty(1), one),
        (Kind.PLAIN, lambda x: lax.platform_dependent(x, cpu=lambda x: x, default=lambda x: x + 1), one),
        (Kind.CALL, jax.checkpoint(jnp.sin), one),
        (Kind.CALL, lambda x: jnp.nonzero(x, size=1)[0], one),
        (Kind.DEVICES, mapped(lambda x: x, in_specs=here), one),
        (Kind.IDENTITY, lambda x: mapped(lambda x, y: x * y, in_specs=(jax.sharding.PartitionSpec(), here))(x, x), one),
        (Kind.PLAIN, mapped(lambda x: lax.psum(x, "i") * x, in_specs=here), one),
        (Kind.CALLBACK, lambda x: jax.debug.print("{}", x), one),
        (Kind.CALLBACK, lambda x: jax.debug.callback(lambda y: None, x), one),
        (Kind.CALLBACK, lambda x: jax.pure_callback(lambda y: y, like, x), one),
        (Kind.CALLBACK, lambda x: io_callback(lambda y: y, like, x), one),
        (Kind.CALLBACK, lambda x: jax.ffi.ffi_call("dpppl", like)(x), one),
    ]
    for kind, function, argument in traced:
        found = {equation.primitive for equation in _equations(function, argument)}
        kinds |= dict.fromkeys(found - set(kinds), kind)
    return kinds


def _equations(function: Function, argument: object) -> list[Tree]:
    try:
        return list(jaxprs.equations(jax.make_jaxpr(function)(argument)))
    except Exception:  # another version of JAX has another signature: then its primitive is unknown, and refused
        return []


def is_table(value: Tree) -> bool:
    """Whether a captured array is one of those that JAX's own samplers capture, by its contents."""
    return not is_key(value) and np.size(value) <= 64 and _contents(value) in _tables()


@functools.cache
def _tables() -> frozenset[Any]:
    sampled = jax.make_jaxpr(lambda key, n: jax.random.binomial(key, n, n))(key_of("threefry2x32"), np.float32(1.0))
    return frozenset(map(_contents, jaxprs.constants(sampled)))


def _contents(array: jax.Array) -> tuple[Any, ...]:
    return np.shape(array), str(array.dtype), np.asarray(array).tobytes()


def key_of(generator: object) -> Any:
    """A key, abstractly."""
    return jax.eval_shape(functools.partial(jax.random.key, 0, impl=generator))


@functools.cache
def _generators() -> frozenset[Any]:
    """The types of keys of the generators whose children are unrelated, and which draw for each key by itself."""
    return frozenset(key_of(generator).dtype for generator in ("threefry2x32", chacha.chacha20))


def other_generators(equation: Equation) -> bool:
    """Whether an equation has to do with keys of another generator than threefry2x32 and ChaCha20."""
    return any(is_key(v.aval) and v.aval.dtype not in _generators() for v in (*equation.invars, *equation.outvars))


def effects_of(equation: Equation) -> list[Tree]:
    """The effects of an equation besides computing; that it names an axis of a mesh is no effect."""
    return [effect for effect in equation.effects if type(effect).__name__ != "NamedAxisEffect"]


def is_unset(equation: Equation) -> bool:
    """Whether an equation gives memory as it is, which holds what was there before; by JAX's name for it, to refuse it."""
    return equation.primitive.name == "empty" and any(v.aval.size for v in equation.outvars)


def crosses_devices(equation: Equation) -> bool:
    """Whether an equation names an axis of a mesh, along which values of other devices may come in."""
    axes = jax.tree.leaves([equation.params.get(name) for name in ("axes", "axis_name")])
    if any(not isinstance(axis, int | np.integer) for axis in axes):
        return True
    return kind_of(equation.primitive) is Kind.DEVICES or len(effects_of(equation)) < len(equation.effects)


def is_followed(aval: object) -> bool:
    """Whether an array's elements are integers that do not wrap before 2**32."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits >= 32


def constant(value: Tree) -> Number | None:
    """A number that stands in the program."""
    return Number(int(np.asarray(value).item())) if is_followed(value) and np.size(value) == 1 else None


def given_key(root: Any, aval: Any) -> Key | None:
    """The key, or array of different keys, that a program is given."""
    elements = (Step(("element", k), number_of(axis(k))) for k in range(len(aval.shape)))
    return Key(root, tuple(elements)) if is_key(aval) else None


def _slice(equation: Equation, inputs: Sequence[Value]) -> Found:
    """Neighbouring elements, or the one that is left."""
    starts, new = enumerate(equation.params["start_indices"]), equation.outvars[0].aval.shape
    if set(equation.params["strides"] or ()) - {1}:
        return None, LOST
    part = inputs[0].renamed({axis(k): Number(n) if new[k] == 1 else number_of(axis(k), n) for k, n in starts})
    return part.number, part.key


def _squeeze(equation: Equation, inputs: Sequence[Value]) -> Found:
    """Without axes of length 1."""
    gone, rank = equation.params["dimensions"], len(equation.invars[0].aval.shape)
    left = enumerate(k for k in range(rank) if k not in gone)
    part = inputs[0].renamed({axis(k): Number(0) for k in gone} | {axis(k): number_of(axis(n)) for n, k in left})
    return part.number, part.key


def _unstack(equation: Equation, inputs: Sequence[Value]) -> list[Found]:
    """The elements along an axis, each an output: how newer JAX unpacks."""
    gone, rank = equation.params["axis"], len(equation.invars[0].aval.shape)
    left = {axis(k): number_of(axis(k - (k > gone))) for k in range(rank)}
    parts = [inputs[0].renamed(left | {axis(gone): Number(n)}) for n in range(len(equation.outvars))]
    return [(part.number, part.key) for part in parts]


def _broadcast(equation: Equation, inputs: Sequence[Value]) -> Found:
    """One number for all chains. (One key would be a key twice.)"""
    return (None if equation.invars[0].aval.shape else inputs[0].number), LOST


def _add(equation: Equation, inputs: Sequence[Value]) -> Found:
    """A constant added."""
    first, second = (value.number for value in inputs)
    if first is None or second is None or (first.terms and second.terms):
        return None, LOST
    return first.plus(second), LOST


def _convert(equation: Equation, inputs: Sequence[Value]) -> Found:
    """To another type: the same modulo 2**32."""
    return (inputs[0].number if is_followed(equation.outvars[0].aval) else None), LOST


def _iota(equation: Equation, inputs: Sequence[Value]) -> Found:
    """0, 1, 2, ..."""
    aval = equation.outvars[0].aval
    return (number_of(axis(0)) if is_followed(aval) and len(aval.shape) == 1 else None), LOST


def _fold_in(equation: Equation, inputs: Sequence[Value]) -> Found:
    """The child of a number: of each key by its own, of each by one, or of one by each."""
    key, number = inputs[0].key, inputs[1].number
    of_key, of_number = (v.aval.shape for v in equation.invars)
    if key in (None, LOST) or number is None or (of_key and of_number and of_key != of_number):
        return None, LOST
    return None, key._replace(path=(*key.path, Step(("fold",), number)))


def _split(equation: Equation, inputs: Sequence[Value]) -> Found:
    """The given number of children, along a new last axis."""
    key, shape, rank = inputs[0].key, tuple(equation.params["shape"]), len(equation.invars[0].aval.shape)
    if key in (None, LOST) or len(shape) != 1:
        return None, LOST
    return None, key._replace(path=(*key.path, Step(("split", *shape), number_of(axis(rank)))))


RULES: dict[Any, Callable[[Equation, Sequence[Value]], Found | list[Found]]] = {
    named("slice"): _slice, named("squeeze"): _squeeze, named("unstack"): _unstack, named("broadcast_in_dim"): _broadcast,
    named("add"): _add, named("convert_element_type"): _convert, named("iota"): _iota, named("random_fold_in"): _fold_in,
    named("random_split"): _split,
}  # fmt: skip
