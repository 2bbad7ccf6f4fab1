"""The primitives that the proof knows, the kind of each, and rules for integers and keys.

Primitives are compared as objects: a name proves nothing. Integers are exact modulo 2**32. The results of primitives without
a rule are unknown.
"""

import functools
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive, primitives

from dpppl import jaxprs
from dpppl.errors import ConfigurationError
from dpppl.information_flow.lattice import LOST, Integer, Key, Step, Value, axis, number_of
from dpppl.information_flow.leaks import Leak, Trail, leak
from dpppl.jaxprs import is_key
from dpppl.randomness import chacha
from dpppl.types import Equation, Function, Traced, Tree
from dpppl.validation import a, checked

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


@functools.cache
def named(name: str) -> Primitive | None:
    """JAX's own primitive of this name, or None in versions without it."""
    return next((vars(place)[f"{name}_p"] for place in _PLACES if f"{name}_p" in vars(place)), None)


_names = "slice squeeze unstack broadcast_in_dim add convert_element_type iota random_fold_in random_split".split()
_FOLLOWED = {named(name): name for name in _names}


def kind_of(primitive: Primitive) -> Kind:
    """The kind of a primitive, in this version of JAX."""
    return _kinds().get(primitive, Kind.UNKNOWN)


@functools.cache
def _kinds() -> dict[Primitive | None, Kind]:
    with ThreadPoolExecutor(1) as pool:  # where no trace and no mesh is around, whoever asks first
        return pool.submit(_found_kinds).result()


def _found_kinds() -> dict[Primitive | None, Kind]:
    public = {value for place in _PLACES for name, value in vars(place).items() if name.endswith("_p")}
    kinds: dict[Primitive | None, Kind] = dict.fromkeys(public, Kind.PLAIN)
    kinds |= {named(name): kind for kind, names in _NAMES.items() for name in names}

    one, like = np.ones(1, np.float32), jax.ShapeDtypeStruct((1,), np.float32)
    mesh, here = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("i",)), jax.sharding.PartitionSpec("i")
    mapped = functools.partial(jax.shard_map, mesh=mesh, out_specs=here)
    traced: list[tuple[Kind, Function, Tree]] = [  # what has no public name, in the trace of what has
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
        try:
            found = {equation.primitive for equation in jaxprs.equations(jax.make_jaxpr(function)(argument))}
        except Exception:  # another version of JAX has another signature: then its primitive is unknown, and refused
            continue
        kinds |= dict.fromkeys(found - set(kinds), kind)
    return kinds


def is_table(value: Tree) -> bool:
    """Whether a captured array is one of those that JAX's own samplers capture, by its contents."""
    return not is_key(value) and np.size(value) <= 64 and _contents(value) in _tables()


@functools.cache
def _tables() -> frozenset[Hashable]:
    sampled = jax.make_jaxpr(lambda key, n: jax.random.binomial(key, n, n))(key_of("threefry2x32"), np.float32(1.0))
    return frozenset(map(_contents, jaxprs.constants(sampled)))


def _contents(array: jax.Array) -> tuple[object, ...]:
    return np.shape(array), str(array.dtype), np.asarray(array).tobytes()


def key_of(generator: object) -> jax.ShapeDtypeStruct:
    """A key, abstractly."""
    return jax.eval_shape(functools.partial(jax.random.key, 0, impl=generator))


@functools.cache
def _generators() -> frozenset[Hashable]:
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


@checked
def check_row_program(program: Traced) -> None:
    """Raise PrivacyLeakError for a jaxpr that does more than compute its outputs from one row and public values.

    `jax.vmap` of what is left keeps rows apart by construction: every operation is JAX's own, with JAX's own rule of
    batching; none talks to other devices or to Python, and none has an effect. (The incomplete beta function, whose loop XLA
    would run over all rows at once, has a loop of its own: `row_program/incomplete_beta.py`.) Random bits come from
    threefry2x32 and ChaCha20 alone: others draw all rows' bits from the first row's key (rbg), or run code that is not in the
    program.

    >>> check_row_program(jax.make_jaxpr(lambda z, row: -0.5 * (row - z) ** 2)(0.0, 1.0).jaxpr)
    """
    if jaxprs.open_jaxpr(program) is None:
        raise ConfigurationError(f"program is {a(type(program).__name__)}; give jax.make_jaxpr(function)(*args).jaxpr.")
    for equation in jaxprs.equations(program):
        if (problem := problem_with(equation)) is not None:
            what = f"the likelihood of a row calls {equation.primitive.name}{problem[1]}"
            raise leak(Leak(problem[0], what, Trail(equation)))


def problem_with(equation: Equation) -> tuple[str, str] | None:
    """The side effect of an equation, as a kind of finding and in words; None if it only computes."""
    kind, effects = kind_of(equation.primitive), effects_of(equation)
    if kind is Kind.CALLBACK or effects:
        return "effect", ": it may only compute; print and call outside"
    if is_unset(equation):
        return "effect", ", whose memory may hold anything: use jnp.zeros"
    axes = jax.tree.leaves([equation.params.get(name) for name in ("axes", "axis_name")])
    names_axis = len(effects) < len(equation.effects) or any(not isinstance(k, int | np.integer) for k in axes)
    if kind is Kind.DEVICES or names_axis:  # along which values of other devices may come in
        return "door", ", by which devices could exchange rows: leave it out"
    if kind is Kind.UNKNOWN:
        return "unknown", ", which is not known here: its rule of batching could mix rows. Use operations of JAX"
    if other_generators(equation) or equation.primitive in (named("rng_bit_generator"), named("rng_uniform")):
        what = " with a random generator whose draws for one row may depend on others: use threefry2x32 or ChaCha20"
        return "noise", what
    return None


# Integers and keys


def is_followed(aval: object) -> bool:
    """Whether an array's elements are integers that do not wrap before 2**32."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits >= 32


def constant(value: Tree) -> Integer | None:
    """A number that stands in the program."""
    return Integer(int(np.asarray(value).item())) if is_followed(value) and np.size(value) == 1 else None


def given_key(root: Hashable, aval: Tree) -> Key | None:
    """The key, or array of different keys, that a program is given."""
    elements = (Step(("element", k), number_of(axis(k))) for k in range(len(aval.shape)))
    return Key(root, tuple(elements)) if is_key(aval) else None


def followed(equation: Equation, inputs: Sequence[Value]) -> Sequence[tuple[Integer | None, Key | None]]:
    """The number and the key in each output, as far as they are known."""
    out: Tree = next((v.aval for v in equation.outvars), None)
    parameters, shapes = equation.params, [v.aval.shape for v in equation.invars]
    first = inputs[0] if inputs else Value()
    lost = [(None, LOST)] * len(equation.outvars)

    def part(*replaced: dict[Tree, Integer]) -> Sequence[tuple[Integer | None, Key | None]]:
        return [(value.number, value.key) for value in map(first.renamed, replaced)]

    match _FOLLOWED.get(equation.primitive):
        case "slice":  # neighbouring elements, or the one that is left
            if set(parameters["strides"] or ()) - {1}:
                return lost
            starts = enumerate(parameters["start_indices"])
            return part({axis(k): Integer(n) if out.shape[k] == 1 else number_of(axis(k), n) for k, n in starts})
        case "squeeze":  # without axes of length 1
            gone = parameters["dimensions"]
            left = enumerate(k for k in range(len(shapes[0])) if k not in gone)
            return part({axis(k): Integer(0) for k in gone} | {axis(k): number_of(axis(n)) for n, k in left})
        case "unstack":  # the elements along an axis, each an output: how newer JAX unpacks
            gone = parameters["axis"]
            moved = {axis(k): number_of(axis(k - (k > gone))) for k in range(len(shapes[0]))}
            return part(*(moved | {axis(gone): Integer(n)} for n in range(len(equation.outvars))))
        case "broadcast_in_dim":  # one number for all chains; one key would be a key twice
            return [(None if shapes[0] else first.number, LOST)]
        case "add" if first.number and (second := inputs[1].number) and not (first.number.terms and second.terms):
            return [(first.number.plus(second), LOST)]
        case "convert_element_type":  # the same modulo 2**32
            return [(first.number if is_followed(out) else None, LOST)]
        case "iota":
            return [(number_of(axis(0)) if is_followed(out) and len(out.shape) == 1 else None, LOST)]
        case "random_fold_in":  # the child of a number: of each key by its own, of each by one, or of one by each
            number, (of_key, of_number) = inputs[1].number, shapes
            if first.key in (None, LOST) or number is None or (of_key and of_number and of_key != of_number):
                return lost
            return [(None, Key(first.key.root, (*first.key.path, Step(("fold",), number))))]
        case "random_split":  # the given number of children, along a new last axis
            shape = tuple(parameters["shape"])
            if first.key in (None, LOST) or len(shape) != 1:
                return lost
            step = Step(("split", *shape), number_of(axis(len(shapes[0]))))
            return [(None, Key(first.key.root, (*first.key.path, step)))]
    return lost
