"""One way to run steps for every method: trace, prove, compile; then, chunk by chunk, charge, run, keep a checkpoint."""

import functools
import threading
import traceback
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tqdm.auto import tqdm

from dpppl import information_flow
from dpppl.information_flow.executables import Lowered
from dpppl.randomness import keys
from dpppl.runs import placing
from dpppl.runs.budget import Budget, Charge, Reservation
from dpppl.runs.checkpoint import Checkpoint, Progress
from dpppl.runs.provenance import KeyOrigin, claim
from dpppl.runs.report import PrivacyReport, announce

NUM_CHUNKS = 20
TRACING = threading.RLock()
"""NumPyro has one stack of handlers for all threads: models are traced by one thread at a time."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Method:
    """What a method of inference supplies: how it steps, and what of it is kept.

    `step(state, rows, public)`: one access; returns the next state and anything else to record. `num_steps`, and the
    `length` of a chunk. `empty(state)`: buffers for what a chunk records. `record(buffers, number, start, state, seen)`:
    buffers after step `number`, counted from the run's first, of a chunk that began at `start`. `kept(start, count)`:
    places in the buffers that a chunk has filled. `mapping`: how one chain's chunk becomes that of all in a state:
    None, "pmap", or a transform like jax.vmap.
    """

    step: Callable[[Any, Any, Any], tuple[Any, Any]]
    num_steps: int
    length: int
    empty: Callable[[Any], Any]
    record: Callable[[Any, Any, Any, Any, Any], Any]
    kept: Callable[[int, int], np.ndarray]
    mapping: Any = None

    def chunk(self, state: Any, rows: Any, public: Any, start: Any, count: Any) -> tuple[Any, Any]:
        """`count` steps from step `start` of the run: the state, and what was recorded."""

        def body(number: Any, carry: Any) -> Any:
            state, seen = self.step(carry[0], rows, public)
            return state, self.record(carry[1], number, start, state, seen)

        return lax.fori_loop(start, start + count, body, (state, self.empty(state)))

    def mapped_chunk(self, states: Any, *rest: Any) -> Any:
        """The same for all chains in `states`."""
        if self.mapping is None:
            return self.chunk(states, *rest)
        if self.mapping == "pmap":
            return jax.pmap(self.chunk, in_axes=(0, None, None, None, None))(states, *rest)
        return self.mapping(lambda state: self.chunk(state, *rest))(states)


@dataclass(frozen=True)
class Program:
    """A chunk, proved and compiled. `digest`: of its text, the versions and the device."""

    call: Callable[..., list[Any]]
    outputs: Any
    digest: str

    def __call__(self, *arguments: Any) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.outputs), self.call(*placing.placed(arguments)))


def prepare(function: Callable[..., Any], arguments: tuple[Any, ...], rows: int, *, quickly: bool = False) -> Program:
    """Trace `function` once, prove that argument number `rows` leaves through the door only, compile what was proved.

    Raises PrivacyLeakError; nothing has run or been charged by then. `quickly`: see `Lowered`."""
    return prepare_all([(function, arguments, quickly)], rows)[0]


def prepare_all(programs: Sequence[tuple[Callable[..., Any], tuple[Any, ...], bool]], rows: int) -> list[Program]:
    """The same for several functions with their arguments, which are compiled at the same time."""
    outputs, lowered = [], []
    for function, arguments, quickly in programs:
        closed, output = prove(function, arguments, rows)
        with TRACING:
            lowered.append(placing.lowered(closed, arguments, quickly))
        outputs.append(output)
    with ThreadPoolExecutor() as pool:
        compiled = list(pool.map(Lowered.compiled, lowered))
    return [Program(call, output, program.digest) for call, output, program in zip(compiled, outputs, lowered)]


def prove(function: Callable[..., Any], arguments: tuple[Any, ...], rows: int) -> tuple[Any, Any]:
    """The first two of `prepare`: the traced program and its outputs."""
    leaves, keystr = jax.tree_util.tree_leaves_with_path, jax.tree_util.keystr
    with TRACING:
        closed, outputs = jax.make_jaxpr(function, return_shape=True)(*arguments)
        private = [number for number, (path, _) in enumerate(leaves(arguments)) if path[0].idx == rows]
        names = [keystr(path) for path, _ in leaves(outputs)]
        information_flow.verify_jaxpr(
            closed, private, output_names=names, secret_outputs=(".rng_key",), public_constants=True
        )
    return closed, outputs


@dataclass(frozen=True)
class Run:
    """A run's key and name, its checkpoint file where one is kept, and the reservation of its steps where it has begun."""

    key: Any
    run_id: str
    checkpoint: Checkpoint | None = None
    reservation: Reservation | None = None

    @property
    def goes_on(self) -> bool:
        """Whether its key is used up for this run already, by itself or before it was resumed."""
        return self.reservation is not None or (self.checkpoint is not None and self.checkpoint.resumed)

    def reserved(self, budget: Budget, charges: Sequence[Charge], what: str) -> Reservation:
        """The charges of its steps, reserved as `what`, in place of what it has reserved for them."""
        if self.reservation is None:
            return budget.reserve_for(charges, what, self.run_id)
        return self.reservation.replanned(charges)

    @classmethod
    def opened(cls, rng_key: Any, path: Any) -> "Run":
        """A new run, or the one that the checkpoint at `path` holds, whose key is then used instead of `rng_key`."""
        key, run_id = keys.as_key(rng_key), uuid.uuid4().hex
        if path is None:
            return cls(key, run_id)
        checkpoint = Checkpoint(path, key, run_id)
        return cls(checkpoint.key, checkpoint.run_id, checkpoint)


def drive(
    run: Run,
    method: Method,
    legs: Sequence[Any],
    rows: Any,
    public: Any,
    budget: Budget,
    charges: Sequence[Charge],
    begin: Callable[[KeyOrigin], PrivacyReport],
    *,
    what: str,
    settings: tuple[int, ...] = (),
    notes: Sequence[str] = (),
    print_cost: bool = True,
    progress_bar: bool = False,
    describe: Callable[[int], str],
) -> list[tuple[Any, Any]]:
    """Run all steps of each leg (chains that run together), of which charge number i is that of leg i.

    In this order: the program is traced, proved and compiled; the charges are reserved as `what`; the key is used up;
    `begin(origin of the key)` notes that the run begins and reports it, and its cost is printed; then each chunk is
    charged before it starts. Up to `begin` a refusal leaves all as it was. Returns, for each leg, its last states
    without keys and what was recorded. With a checkpoint that holds a part of the run, goes on from there; `settings`
    must then be the same."""
    number = np.asarray(0, np.int32)
    program = prepare(method.mapped_chunk, (legs[0], rows, public, number, number), rows=1)
    if run.checkpoint is not None:
        settings_ = np.array([method.num_steps, *settings])
        digest = placing.digest(program, method.mapped_chunk, (legs[0], rows, public, number, number))
        run.checkpoint.bind(digest, (placing.contents(rows), public, list(legs), settings_))
    before = budget.events
    with run.reserved(budget, charges, what) as reservation:
        report = begin(claim(run.key, again=run.goes_on))
        if run.reservation is None:  # else it was announced before the clipping norm was looked for
            announce(report, before, notes, print_cost)
        total = method.num_steps * len(legs)
        with tqdm(total=total, disable=not progress_bar, desc=describe(0)) as bar:
            finished = _chunks(method, program, legs, rows, public, reservation, run.checkpoint, bar, describe)
    if run.checkpoint is not None:
        run.checkpoint.remove()
    return [(placing.on_one(state._replace(rng_key=None), rows), recorded) for state, recorded in finished]


def _chunks(
    method: Method, program: Program, legs: Sequence[Any], rows: Any, public: Any, reservation: Reservation,
    checkpoint: Checkpoint | None, bar: Any, describe: Callable[[int], str],
) -> list[tuple[Any, Any]]:  # fmt: skip
    finished: list[tuple[Any, Any]] = []
    axis = 0 if method.mapping is None else 1
    at = Progress(0, 0, legs[0], []) if checkpoint is None else checkpoint.begun(program.outputs[1], legs, finished)
    for leg in range(len(legs)):
        over = method.num_steps if leg < at.leg else at.done
        if over:
            reservation.charge(leg, over)
            bar.update(over)
        if leg < at.leg:
            continue
        state, parts = at.state, list(at.parts)
        for start in range(at.done, max(1, method.num_steps), method.length):
            count = min(method.length, method.num_steps - start)
            reservation.charge(leg, start + count)
            counts = (np.asarray(value, np.int32) for value in (start, count))
            state, buffers = jax.block_until_ready(program(state, rows, public, *counts))
            parts.append(jax.tree.map(functools.partial(_take, method.kept(start, count), axis), buffers))
            if checkpoint is not None:
                checkpoint.save(Progress(leg, start + count, state, parts), finished)
            bar.set_description(describe(start + count), refresh=False)
            bar.update(count)
        recorded = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *parts)
        finished.append((state, recorded))
        at = Progress(leg + 1, 0, legs[min(leg + 1, len(legs) - 1)], [])
    return finished


def forgetful(function: Callable[P, R]) -> Callable[P, R]:
    """Inside, JAX's checks of values are off; what is raised holds no argument in the frames of its traceback."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with jax.debug_nans(False), jax.debug_infs(False):
                return function(*args, **kwargs)
        except BaseException as error:
            del args, kwargs
            _clear(error)
            raise

    return wrapper


def _clear(error: BaseException) -> None:
    seen, left = set[int](), [error]
    while left:
        error = left.pop()
        seen.add(id(error))
        if error.__traceback__ is not None:
            traceback.clear_frames(error.__traceback__)
        left += [e for e in (error.__cause__, error.__context__) if e is not None and id(e) not in seen]


def _take(places: np.ndarray, axis: int, leaf: Any) -> np.ndarray:
    return np.take(np.asarray(leaf), places, axis=axis)


def set_places(buffer: Any, place: Any, values: Any) -> Any:
    """Each leaf of `buffer` with the leaf of `values` at `place` along its leading axis."""
    return jax.tree.map(
        lambda b, x: lax.dynamic_update_index_in_dim(b, jnp.asarray(x, b.dtype), place, 0), buffer, values
    )
