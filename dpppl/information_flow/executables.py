"""Compiled programs, kept for the process by the digest of their text: runs of the same shapes compile once.

A program holds no arguments: each call passes rows and keys. A caller that must prove a program proves it at each trace,
whether or not the compiled program is kept.
"""

import hashlib
import math
import threading
from collections import OrderedDict
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, jaxpr_as_fun

from dpppl import jaxprs
from dpppl.jaxprs import is_key
from dpppl.types import Function, Tree

MOST = 128
"""Number of programs kept, those used last. Each holds memory maps, of which a process may have 65,530."""

_FEW = 4 * 10**6

_kept: OrderedDict[str, Function] = OrderedDict()
_lock = threading.Lock()


class Lowered:
    """A traced program, ready to be compiled.

    - **closed** - the program.
    - **leaves** - arguments like those that it will be called with.
    - **quickly** - whether to compile in half of the time, to run more slowly, if it takes and gives few numbers.
    - **shardings** - arguments of `jax.jit` that say where arguments and results lie: then results are the same for any number
      of CPUs.
    - **kept** - whether the compiled program may be kept.
    - **devices** - text about the devices for the digest; None: the list of devices.

    `digest` is that of its text, with shapes and types, of the values of the arrays that it captured, of the versions, and of the
    devices."""

    def __init__(
        self, closed: Any, leaves: Any, quickly: bool = False, shardings: Any = None, devices: str | None = None,
        kept: bool = True,
    ) -> None:  # fmt: skip
        self._lowered = jax.jit(jaxpr_as_fun(closed), **(shardings or {})).lower(*leaves)
        captured = list(jaxprs.constants(closed))
        is_simple = not (quickly or any(map(_divides, jaxprs.equations(closed))))
        quickly = quickly and jax.default_backend() == "cpu" and is_small(*closed.in_avals, *closed.out_avals)
        self._options: Any = {"xla_backend_optimization_level": 0} if quickly else None
        if shardings and jax.default_backend() == "cpu" and not is_simple:
            # else XLA divides otherwise for one device than for several; it costs rows a third more time
            self._options = {"xla_disable_hlo_passes": "algsimp"}
        self._kept = kept and not any(map(is_key, captured))
        facts = [
            self._lowered.as_text(),
            *map(version, ("jax", "jaxlib", "numpyro", "dpppl")),
            devices or str(jax.devices()),
        ]
        facts += [str(closed.in_avals), str(closed.out_avals), *map(_digest_of, captured)]
        self._placements = [str(shardings), *map(_placement, leaves)]
        self.digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def compiled(self) -> Function:
        """The program, compiled now or before with the same settings of JAX, for arrays on the same devices."""
        of_thread = [getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_device")]
        name = str(
            (self.digest, self._options, self._placements, of_thread, sorted(jax.config.values.items(), key=str))
        )
        with _lock:
            if self._kept and name in _kept:
                _kept.move_to_end(name)
                return _kept[name]
        call: Function = self._lowered.compile(self._options)
        if self._kept:
            with _lock:
                _kept[name] = call
                while len(_kept) > MOST:
                    _kept.popitem(last=False)
        return call


def is_small(*arrays: Any) -> bool:
    """Whether so few numbers enter and leave a program that compiling it takes longer than running it."""
    return sum(math.prod(np.shape(array)) for array in arrays) < _FEW


def _divides(equation: JaxprEqn) -> bool:
    """Whether it divides by what is not a number of the program, which XLA may do by the inverse or not."""
    return equation.primitive.name == "div" and not jaxprs.is_literal(equation.invars[1])


def compiled(function: Function, *arguments: object, quickly: bool = True) -> Function:
    """`function`, compiled for arguments like these, or found among the programs kept."""
    closed, outputs = jax.make_jaxpr(function, return_shape=True)(*arguments)
    call = Lowered(closed, jax.tree.leaves(arguments), quickly).compiled()
    return lambda *given: jax.tree.unflatten(jax.tree.structure(outputs), call(*jax.tree.leaves(given)))


def run_once(function: Function, *arguments: object, quickly: bool = True) -> Tree:
    """`jax.jit(function)(*arguments)`, of a program that may be kept, but not the function."""
    return compiled(function, *arguments, quickly=quickly)(*arguments)


def _placement(leaf: jax.Array) -> str:
    """Where an array lies, device by device: meshes of other devices are written alike."""
    sharding = getattr(leaf, "sharding", None)
    return str(sharding) if sharding is None else str((sharding, sharding.devices_indices_map(leaf.shape)))


def _digest_of(value: Any) -> str:
    """A digest of a captured array."""
    value = jax.random.key_data(value) if is_key(value) else value
    array = np.asarray(value)
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
