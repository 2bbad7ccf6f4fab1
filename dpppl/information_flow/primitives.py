"""The primitives that the proof knows: as objects, because a name proves nothing."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive, primitives

_PLACES = (primitives, lax, lax.linalg)


@functools.cache
def named(name: str) -> Primitive | None:
    """JAX's own primitive of this name, or None in versions without it."""
    return next((vars(place)[f"{name}_p"] for place in _PLACES if f"{name}_p" in vars(place)), None)


def group(*names: str) -> frozenset[Primitive]:
    """The primitives of these names, as far as they exist."""
    return frozenset(found for found in map(named, names) if found is not None)


@functools.cache
def _public() -> frozenset[Primitive]:
    return frozenset(found for place in _PLACES for name, found in vars(place).items() if name.endswith("_p"))


def _traced(function: Callable[..., Any], *arguments: Any, inside: bool = False) -> frozenset[Primitive]:
    """Primitives without a public name, found in the trace of a public function; or inside what it traces to."""
    try:
        equations = jax.make_jaxpr(function)(*arguments).eqns
        equations = jaxpr_of(programs_in(equations[0])[0]).eqns if inside else equations
        found = {equation.primitive for equation in equations}
    except Exception:  # another version of JAX has another signature: then its primitive is unknown, and refused
        return frozenset()
    return frozenset(found) - _public()


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Primitives on random keys."""

    fold_in: Primitive | None
    split: Primitive | None
    draws: frozenset[Primitive]
    wrap: frozenset[Primitive]
    unwrap: frozenset[Primitive]
    same: frozenset[Primitive]


@dataclass(frozen=True, kw_only=True)
class Known:
    """Groups of primitives, by what the proof does with them.

    `plain`: outputs computed from inputs, element by element or not, and nothing else; `identities`: among them, those
    that pass their inputs on. `calls`: of one program. `loops`: of programs, by rules of their own. `callbacks`: of
    what is not JAX. `tables`: contents of arrays that JAX's own functions capture."""

    plain: frozenset[Primitive]
    identities: frozenset[Primitive]
    calls: frozenset[Primitive]
    loops: frozenset[Primitive]
    callbacks: frozenset[Primitive]
    shard_map: frozenset[Primitive]
    keys: Keys
    tables: frozenset[Any]


@functools.cache
def known() -> Known:
    """The groups, in this version of JAX."""
    from jax.experimental import io_callback

    one = np.float32(1.0)
    like = jax.ShapeDtypeStruct((), np.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("devices",))
    spec = jax.sharding.PartitionSpec()
    callbacks = (
        _traced(lambda x: jax.debug.print("{}", x), one)
        | _traced(lambda x: jax.debug.callback(lambda y: None, x), one)
        | _traced(lambda x: jax.pure_callback(lambda y: y, like, x), one)
        | _traced(lambda x: io_callback(lambda y: y, like, x), one)
        | _traced(lambda x: jax.ffi.ffi_call("dpppl", like)(x), one)
    )
    keys = Keys(
        fold_in=named("random_fold_in"),
        split=named("random_split"),
        draws=group("random_bits", "random_gamma"),
        wrap=_traced(lambda words: jax.random.wrap_key_data(words, impl="threefry2x32"), np.zeros(2, np.uint32)),
        unwrap=_traced(jax.random.key_data, key),
        same=_traced(jax.random.clone, key),
    )
    calls = group("jit", "pjit", "closed_call", "call", "custom_jvp_call", "custom_vjp_call", "remat")
    loops = group("scan", "while", "cond", "linear_solve")
    shard_map = _traced(jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec), one)
    specs = (spec, jax.sharding.PartitionSpec("devices"))
    psum = jax.shard_map(lambda x, y: lax.psum(x * y[0], "devices"), mesh=mesh, in_specs=specs, out_specs=spec)
    varying = _traced(psum, one, np.ones(1, np.float32), inside=True)
    platform = _traced(lambda x: lax.platform_dependent(x, cpu=lambda x: x, default=lambda x: x + 1), one)
    plain = _public() | keys.draws | keys.wrap | keys.unwrap | keys.same | varying | platform
    return Known(
        plain=plain - calls - loops - shard_map - callbacks,
        identities=group("optimization_barrier", "device_put", "copy", "sharding_constraint", "stop_gradient", "name")
        | frozenset(primitive for primitive in varying if primitive.name == "pvary"),
        calls=calls,
        loops=loops,
        callbacks=callbacks,
        shard_map=shard_map,
        keys=keys,
        tables=_tables(),
    )


def _tables() -> frozenset[Any]:
    """What JAX's own samplers capture."""
    try:
        key = jax.eval_shape(lambda: jax.random.key(0))
        sampled = jax.make_jaxpr(lambda key, n: jax.random.binomial(key, n, n))(key, np.float32(1.0))
        return frozenset(contents(np.asarray(array)) for array in constants_in(sampled))
    except Exception:  # another version of JAX: then the table is a captured array like any other
        return frozenset()


GENERATORS: set[Any] = set()
"""Types of random keys that an access may use: JAX's threefry, and what is registered."""


def register_generator(implementation: Any) -> None:
    """Let accesses use keys of this generator, this very object."""
    GENERATORS.add(implementation)


def has_named_generator(aval: Any) -> bool:
    """Whether a key's generator is threefry or a registered one: others, such as unsafe_rbg, have related children."""
    return aval.dtype in map(_key_type, ("threefry2x32", *GENERATORS))


@functools.cache
def _key_type(implementation: Any) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype


def is_key(array: Any) -> bool:
    """Whether an array, or an abstract one, holds typed random keys."""
    return hasattr(array, "dtype") and bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def contents(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Equal for equal arrays."""
    return array.shape, array.dtype.str, array.tobytes()


def effects_of(equation: Any) -> list[Any]:
    """What an equation does besides computing; that it names an axis of a mesh is no effect."""
    return [effect for effect in equation.effects if type(effect).__name__ != "NamedAxisEffect"]


def crosses_devices(equation: Any) -> bool:
    """Whether an equation names an axis of a mesh, along which values of other devices may come in."""
    if any(type(effect).__name__ == "NamedAxisEffect" for effect in equation.effects):
        return True
    names = [equation.params.get(name, ()) for name in ("axes", "axis_name")]
    return any(
        not isinstance(n, int | np.integer) for one in names for n in (one if isinstance(one, tuple) else (one,))
    )


def jaxpr_of(value: Any) -> Any:
    """The open jaxpr in an equation's parameter, or None."""
    value = getattr(value, "jaxpr", value)
    return value if hasattr(value, "eqns") else None


def programs_in(equation: Any) -> list[Any]:
    """The jaxprs in an equation's parameters."""
    parts: list[Any] = []
    for parameter in equation.params.values():
        parts.extend(parameter if isinstance(parameter, tuple | list) else (parameter,))
    return [part for part in parts if jaxpr_of(part) is not None]


def equations_in(program: Any) -> Iterator[Any]:
    """All equations of a program, those of programs inside included."""
    for equation in jaxpr_of(program).eqns:
        yield equation
        for inner in programs_in(equation):
            yield from equations_in(inner)


def constants_in(program: Any) -> Iterator[Any]:
    """The arrays that a program and those inside it captured."""
    yield from getattr(program, "consts", ())
    for equation in equations_in(program):
        for inner in programs_in(equation):
            yield from getattr(inner, "consts", ())
