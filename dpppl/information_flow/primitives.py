"""The primitives that the proof knows: as objects, because a name proves nothing."""

import functools
from types import SimpleNamespace

import jax
import numpy as np
from jax import lax
from jax.extend.core import primitives

_PLACES = (primitives, lax, lax.linalg)


@functools.cache
def named(name: str):
    """JAX's own primitive of this name, or None in versions without it."""
    return next((vars(place)[f"{name}_p"] for place in _PLACES if f"{name}_p" in vars(place)), None)


def group(*names: str) -> frozenset:
    """The primitives of these names, as far as they exist."""
    return frozenset(found for found in map(named, names) if found is not None)


SAMPLERS = set(group("random_bits"))
"""Draws from a key, the first input, each element of which has random bits of its own."""


def register_sampler(primitive) -> None:
    """Take `primitive`, this very object, for such a draw; what it does inside is trusted."""
    SAMPLERS.add(primitive)


TABLES: set[tuple] = set()
"""Contents of arrays that the door may capture."""


def contents(array) -> tuple:
    """Equal for equal arrays."""
    return array.shape, array.dtype.str, array.tobytes()


def register_table(array: np.ndarray) -> None:
    """Let doors capture these numbers, which were computed from public ones."""
    TABLES.add(contents(array))


def _traced(function, *arguments, inside: bool = False) -> frozenset:
    """Primitives without a public name, found in the trace of a public function; or inside what it traces to."""
    try:
        equations = jax.make_jaxpr(function)(*arguments).eqns
        equations = jaxpr_of(programs_in(equations[0])[0]).eqns if inside else equations
        found = {equation.primitive for equation in equations}
    except Exception:  # another version of JAX has another signature: then its primitive is unknown, and refused
        return frozenset()
    return frozenset(found) - _public()


@functools.cache
def _public() -> frozenset:
    return frozenset(found for place in _PLACES for name, found in vars(place).items() if name.endswith("_p"))


@functools.cache
def known() -> SimpleNamespace:
    """Groups of primitives, by what the proof does with them."""
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
    keys = SimpleNamespace(
        fold_in=named("random_fold_in"),
        split=named("random_split"),
        seed=named("random_seed"),
        draws=group("random_bits", "random_gamma"),
        wrap=_traced(lambda words: jax.random.wrap_key_data(words, impl="threefry2x32"), np.zeros(2, np.uint32)),
        unwrap=_traced(jax.random.key_data, key),
        same=_traced(jax.random.clone, key)
        | group("copy", "device_put", "sharding_constraint", "stop_gradient", "name"),
    )
    calls = group("jit", "pjit", "closed_call", "call", "custom_jvp_call", "custom_vjp_call")
    remat = group("remat")
    shard_map = _traced(jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec), one)
    specs = (spec, jax.sharding.PartitionSpec("devices"))
    psum = jax.shard_map(lambda x, y: lax.psum(x * y[0], "devices"), mesh=mesh, in_specs=specs, out_specs=spec)
    varying = _traced(psum, one, np.ones(1, np.float32), inside=True) - shard_map
    random = {keys.fold_in, keys.split, keys.seed} | keys.draws | keys.wrap | keys.unwrap | keys.same
    return SimpleNamespace(
        callbacks=callbacks,
        calls=calls,
        remat=remat,
        shard_map=shard_map,
        keys=keys,
        first_order=(_public() | random | varying)
        - calls
        - remat
        - shard_map
        - callbacks
        - group("scan", "while", "cond"),
    )


def crosses_devices(equation) -> bool:
    """Whether an equation names an axis of a mesh, along which values of other devices may come in."""
    if any(type(effect).__name__ == "NamedAxisEffect" for effect in equation.effects):
        return True
    names = [equation.params.get(name, ()) for name in ("axes", "axis_name")]
    return any(
        not isinstance(n, int | np.integer) for one in names for n in (one if isinstance(one, tuple) else (one,))
    )


def jaxpr_of(value):
    """The open jaxpr in an equation's parameter, or None."""
    value = getattr(value, "jaxpr", value)
    return value if hasattr(value, "eqns") else None


def _parts(equation):
    for parameter in equation.params.values():
        yield from parameter if isinstance(parameter, tuple | list) else (parameter,)


def programs_in(equation) -> list:
    """The jaxprs in an equation's parameters."""
    return [part for part in _parts(equation) if jaxpr_of(part) is not None]
