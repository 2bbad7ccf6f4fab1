"""Steps that a caller takes one by one: each state steps once, in the process whose `init` made it.

Two steps from one state have equal noise, so that on different data their difference has none.
"""

import hashlib
import os
import threading

import jax
import numpy as np

from dpppl.errors import ConfigurationError, KeyReuseError
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin
from dpppl.runs.driver import is_traced
from dpppl.runs.session import claim
from dpppl.types import Tree

_NEW = "make a new state by init(dpppl.secret_key(), ..., init_params=get_params(state))"
_next: dict[str, tuple[int, int]] = {}  # of each key's name: the process whose init took it, and the next step
_lock = threading.Lock()


def check_eager(what: str, *values: object) -> None:
    """Raise ConfigurationError inside a function that JAX traces: it runs any number of times, and nobody can count."""
    if is_traced(values):
        raise ConfigurationError(
            f"{what} inside jax.jit, lax.scan, lax.map, jax.vmap or another transformation cannot be counted. Call it by "
            "itself (a step is compiled), or take many steps at once: run(rng_key, num_steps, ...), and in pieces "
            "run(rng_key, num_steps, ..., init_state=result.state)."
        )


def begin(key: jax.Array) -> KeyOrigin:
    """Claim the key of a first state. Raises KeyReuseError if it was used."""
    origin = claim(key)
    with _lock:
        _next[name_in_ledger(key)] = os.getpid(), 0
    return origin


def take(key: jax.Array, step: int) -> None:
    """Claim step number `step` of a key. Raises KeyReuseError if it, or a later one, was taken, or the key is not of here."""
    name = name_in_ledger(key)
    with _lock:
        process, first = _next.get(name, (0, 0))
        if process != os.getpid():
            raise KeyReuseError(
                "this state comes from another process (a fork or a saved state) or not from init: whether its step was "
                "taken there cannot be known, and on changed data equal noise could be subtracted. Go on by "
                f"run(rng_key, num_steps, ..., init_state=state), which takes a new key, or {_NEW}."
            )
        if step < first:
            raise KeyReuseError(
                "this state was updated before: a second step would have the same noise, which on changed data cancels. "
                f"Go on from the state that the last update returned, or {_NEW}."
            )
        if step >= 2**31 - 1:
            raise ConfigurationError(f"states count up to 2^31 - 1 steps: {_NEW}.")
        _next[name] = process, step + 1


def name_in_ledger(key: jax.Array) -> str:
    """A name for the steps of a key, for a ledger. The key cannot be computed from it."""
    return "steps " + hashlib.sha256(b"single steps" + np.asarray(jax.random.key_data(key)).tobytes()).hexdigest()[:32]


def key_of(state: Tree) -> jax.Array:
    """The key of a state that steps. Raises ConfigurationError for a state that `run` returned."""
    if state.rng_key is None:
        raise ConfigurationError(
            "a state that run returned holds no key: go on by run(rng_key, num_steps, ..., init_state=state), or "
            f"{_NEW}."
        )
    return keys.as_key(state.rng_key)
