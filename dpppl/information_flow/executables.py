"""Compiled programs, kept for the process by the digest of their text: runs of the same shapes compile once.

A program holds no arguments: each call passes rows and keys. A caller that must prove a program proves it at each trace,
whether or not the compiled program is kept.
"""

import contextlib
import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib.metadata import version

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from dpppl import jaxprs
from dpppl.jaxprs import is_key
from dpppl.types import Atom, Function, Traced, Tree

MOST = 128
"""Number of programs kept, and of functions, those used last. Each holds memory maps, of which a process may have 65,530."""

_FEW = 10**7
# Compiles in half of the time, to programs that run as fast. Other versions may not know the option.
_LEAN = {"xla_cpu_use_fusion_emitters": False} if version("jaxlib").startswith("0.10.") else {}
_QUICK = _LEAN | {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
_ONE = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}  # one thread: it takes long to wake another
_STEPS = _LEAN and _LEAN | _ONE | {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
_DERIVATIVES = {"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd"}
_kept: OrderedDict[Hashable, Function] = OrderedDict()
_functions: OrderedDict[Hashable, Function] = OrderedDict()
_lock = threading.Lock()
_version = cache(version)


class Lowered:
    """A traced program, ready to be compiled.

    - **closed**, **leaves** - the program, and arguments like those that it will be called with.
    - **quickly** - whether to compile in a third of the time, to run more slowly, if it takes and gives few numbers.
    - **shardings** - arguments of `jax.jit` that say where arguments and results lie: then results are the same for any number
      of CPUs.
    - **kept** - whether the compiled program may be kept.
    - **devices** - text about the devices for the digest; None: the list of devices.

    `digest`: of its text, shapes and types, of the arrays that it captured, of the versions, and of the devices."""

    def __init__(
        self, closed: Traced, leaves: Tree, quickly: bool = False, shardings: dict[str, Tree] | None = None,
        devices: str | None = None, kept: bool = True,
    ) -> None:  # fmt: skip
        captured = list(jaxprs.constants(closed))
        self._kept = kept and not any(map(is_key, captured))
        function: Function = jaxpr_as_fun(closed)
        if self._kept:  # the same function for equal programs, which JAX then lowers once
            with contextlib.suppress(TypeError):  # of a form without a hash
                function = _latest(_functions, _form(closed), function)
        self._lowered = jax.jit(function, **(shardings or {})).lower(*leaves)
        on_cpu = jax.default_backend() == "cpu"
        few = on_cpu and is_small(*closed.in_avals, *closed.out_avals)
        self._options: dict[str, Tree] | None = (_QUICK if quickly else _STEPS) if few else None
        divisors = (e.invars[1] for e in jaxprs.equations(closed) if e.primitive.name == "div")
        if shardings and on_cpu and (quickly or not all(map(jaxprs.is_literal, divisors))):
            # else XLA divides otherwise for one device than for several; it costs rows a third more time
            self._options = {"xla_disable_hlo_passes": "algsimp"}
        versions = map(_version, ("jax", "jaxlib", "numpyro", "dpppl"))
        facts = [self._lowered.as_text(), *versions, devices or str(jax.devices())]
        facts += [str(closed.in_avals), str(closed.out_avals), *map(digest_of, captured)]
        placed = [(getattr(leaf, "sharding", None), leaf) for leaf in leaves]  # other devices' meshes are written alike
        self._placements = [str(shardings), *(str(s and (s, s.devices_indices_map(x.shape))) for s, x in placed)]
        self.digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def compiled(self) -> Function:
        """The program, compiled now or before with the same settings of JAX, for arrays on the same devices."""
        of_thread = [getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_device")]
        settings = sorted(jax.config.values.items(), key=str)
        name = str((self.digest, self._options, self._placements, of_thread, settings))
        with _lock:
            found = _kept.get(name) if self._kept else None
        call: Function = found or self._lowered.compile(self._options)
        return _latest(_kept, name, call) if self._kept else call


def _latest(kept: OrderedDict[Hashable, Function], name: Hashable, function: Function) -> Function:
    """The function kept under a name, else this one, which is kept now; the one used least recently leaves."""
    with _lock:
        function = kept.setdefault(name, function)
        kept.move_to_end(name)
        while len(kept) > MOST:
            kept.popitem(last=False)
    return function


def clear() -> None:
    """Forget all programs: what is called next is lowered and compiled again."""
    with _lock:
        _kept.clear()
        _functions.clear()


def is_small(*arrays: Tree) -> bool:
    """Whether so few numbers enter and leave a program that compiling it takes longer than running it."""
    return sum(math.prod(np.shape(array)) for array in arrays) < _FEW


def compiled(function: Function, *arguments: object, quickly: bool = True) -> Function:
    """`function`, compiled for arguments like these, or found among the programs kept."""
    closed, outputs = jax.make_jaxpr(function, return_shape=True)(*arguments)
    call = Lowered(closed, jax.tree.leaves(arguments), quickly).compiled()
    return lambda *given: jax.tree.unflatten(jax.tree.structure(outputs), call(*jax.tree.leaves(given)))


def run_once(function: Function, *arguments: object, quickly: bool = True) -> Tree:
    """`jax.jit(function)(*arguments)`, of a program that may be kept, but not the function."""
    return compiled(function, *arguments, quickly=quickly)(*arguments)


def _form(value: Tree, differentiated: bool = False) -> Hashable:
    """A program, or a parameter of an equation, as what Python can compare: equal for programs that compute the same.

    Rules of derivatives are left out, but in the fields of a dataclass, such as an access: lowering it may differentiate."""
    part = partial(_form, differentiated=differentiated)
    if (jaxpr := jaxprs.open_jaxpr(value)) is not None:
        numbers: dict[Atom, int] = {}

        def of(variables: Sequence[Atom]) -> Hashable:
            literal, number = jaxprs.is_literal, lambda v: numbers.setdefault(v, len(numbers))
            return tuple((digest_of(v.val) if literal(v) else number(v), v.aval) for v in variables)

        lines: list[Hashable] = [of((*jaxpr.constvars, *jaxpr.invars))]
        for e in jaxpr.eqns:
            settings = ((n, part(x)) for n, x in e.params.items() if differentiated or n not in _DERIVATIVES)
            lines.append((e.primitive, e.ctx, of(e.invars), of(e.outvars), *settings))
        return str(type(value)), *lines, of(jaxpr.outvars), part(tuple(getattr(value, "consts", ())))
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return digest_of(value)
    if isinstance(value, float | complex):
        return repr(value)
    if isinstance(value, tuple | list):
        return type(value), *map(part, value)
    if isinstance(value, dict):
        return dict, *zip(value, map(part, value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(_form(getattr(value, field.name), True) for field in fields(value))
    return type(value), value


def digest_of(value: Tree) -> str:
    """A digest of an array, or of a key of JAX's."""
    array = np.asarray(jax.random.key_data(value) if is_key(value) else value)
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
