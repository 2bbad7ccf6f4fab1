"""One way to run steps for every method: trace, prove, compile; then, chunk by chunk, charge, run, record, keep a checkpoint."""

import ctypes
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl import information_flow
from dpppl.errors import ConfigurationError, concluding, forgetting
from dpppl.information_flow.executables import Lowered
from dpppl.processes import messages
from dpppl.runs import placing, watching
from dpppl.runs.budget import Budget
from dpppl.runs.checkpoint import Checkpoint, Progress
from dpppl.runs.progress import bar_for
from dpppl.runs.session import Request, Run, Session, session
from dpppl.types import Document, Foreign, Function, Numbers, Tree

NUM_CHUNKS = 20
_GOES_ON = "run with the same arguments makes the results of its checkpoint at no cost"
OWN_NORM = "with a norm of your own, as clipping_norm=1.0, a run needs none of these"
TRACING = threading.RLock()
"""NumPyro has one stack of handlers for all threads: models are traced by one thread at a time."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of inference, for the driver: how it steps, and which values are recorded.

    - **step** - `step(state, rows, public)`: one access; returns the next state and anything else that it has seen.
    - **num_steps**, **length** - steps of a run, and the most of a chunk.
    - **last** - `last(state)`: values that are recorded after the last of each `thinning` steps.
    - **mean** - `mean(state)`: values like those that a step has seen, of which means over `thinning` steps are recorded. A chunk
      then has whole multiples of these.
    - **discarded**, **thinning** - steps of which nothing is recorded, and of how many others each record is.
    - **mapping** - how one chain's chunk becomes that of all chains in a state: None, "pmap", or a transform like jax.vmap."""

    step: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
    num_steps: int
    length: int
    last: Function
    mean: Function = lambda state: None
    discarded: int = 0
    thinning: int = 1
    mapping: Tree = None

    def chunk(self, state: Tree, rows: Tree, public: Tree, start: Numbers, count: Numbers) -> tuple[Tree, Tree]:
        """`count` steps from step `start` of the run: the state, and what was recorded, last values and means."""
        slots, base = self.length // self.thinning + 2, jnp.maximum(start - self.discarded, 0) // self.thinning

        def body(number: jax.Array, carry: Tree) -> Tree:
            state, (last, means) = carry
            state, seen = self.step(state, rows, public)
            since = number - self.discarded
            place = jnp.where(since < 0, slots, since // self.thinning - base)  # the last place is dropped

            def put(buffer: jax.Array, value: object) -> jax.Array:
                return lax.dynamic_update_index_in_dim(buffer, jnp.asarray(value, buffer.dtype), place, 0)

            def add(buffer: jax.Array, value: jax.Array) -> jax.Array:
                of_last = self.num_steps - self.discarded - since // self.thinning * self.thinning
                share = 1.0 / jnp.minimum(self.thinning, of_last)
                return buffer.at[place].add((share * value).astype(buffer.dtype))

            return state, (jax.tree.map(put, last, self.last(state)), jax.tree.map(add, means, seen))

        shapes = jax.eval_shape(lambda state: (self.last(state), self.mean(state)), state)
        empty = jax.tree.map(lambda s: jnp.zeros((slots + 1, *s.shape), s.dtype), shapes)
        return lax.fori_loop(start, start + count, body, (state, empty))

    def filled(self, start: int, count: int) -> np.ndarray:
        """Places of the records that a chunk has completed."""
        since = np.arange(start, start + count) - self.discarded
        is_last = (since % self.thinning == self.thinning - 1) | (since == self.num_steps - self.discarded - 1)
        return since[(since >= 0) & is_last] // self.thinning - max(start - self.discarded, 0) // self.thinning

    def mapped_chunk(self, states: Tree, *rest: Tree) -> Tree:
        """`chunk` for all chains in `states`."""
        if self.mapping is None:
            return self.chunk(states, *rest)
        if self.mapping == "pmap":
            return jax.pmap(self.chunk, in_axes=(0, None, None, None, None))(states, *rest)
        return self.mapping(lambda state: self.chunk(state, *rest))(states)


@dataclass(frozen=True)
class Program:
    """A chunk, proved and compiled.

    - **call** - the compiled program, from leaves to leaves.
    - **outputs** - shapes of its results.
    - **digest** - of its text, the versions and the device."""

    call: Callable[..., list[Tree]]
    outputs: Tree
    digest: str

    def __call__(self, *arguments: object) -> Tree:
        return jax.tree.unflatten(jax.tree.structure(self.outputs), placing.ran(self.call, arguments))


def prepare(function: Function, arguments: tuple[object, ...], rows: int, *, quickly: bool = False) -> Program:
    """Trace `function` once, prove that argument number `rows` leaves through the door only, compile what was proved.

    Raises PrivacyLeakError; nothing has run or been charged by then. `quickly`: see `Lowered`."""
    return prepare_all([(function, arguments, quickly)], rows)[0]


def prepare_all(programs: Sequence[tuple[Function, tuple[Tree, ...], bool]], rows: int) -> list[Program]:
    """`prepare` for several functions with their arguments, compiled at the same time."""
    outputs, lowered, digests, audit = [], [], [], watching.watcher()
    for function, arguments, quickly in programs:
        closed, output = prove(function, arguments, rows)
        with TRACING:
            program = placing.lowered(closed, arguments, quickly)
            digests.append(program.digest)
            if audit is not None:
                program = placing.lowered(audit.program(closed, program.digest), arguments, quickly, kept=False)
        lowered.append(program)
        outputs.append(output)
    _give_back()
    with ThreadPoolExecutor() as pool:
        compiled = list(pool.map(Lowered.compiled, lowered))
    _give_back()
    return [Program(call, output, digest) for call, output, digest in zip(compiled, outputs, digests)]


def _give_back() -> None:
    """Return freed memory, which glibc keeps, to the system: after compiling a sixth of a network's peak."""
    getattr(ctypes.CDLL(None) if sys.platform == "linux" else None, "malloc_trim", int)(0)


def prove(function: Function, arguments: tuple[object, ...], rows: int) -> tuple[Tree, Tree]:
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


@dataclass(frozen=True, kw_only=True)
class RunPlan(Request):
    """The plan of a run, fixed before any data are looked at: what it requests, with a charge for each group, and its steps.

    - **method** - how it steps, and what of it is kept.
    - **chain_groups** - first states of the chains that run together, for one group after another.
    - **public** - the model's Public arrays.
    - **settings** - numbers that must be the same where a checkpoint is resumed.
    - **progress_bar** - whether to show it.
    - **describe** - `describe(steps done)`, the progress bar's text."""

    method: Method
    chain_groups: Sequence[object]
    public: Tree
    settings: tuple[int, ...] = ()
    progress_bar: bool = False
    describe: Callable[[int], str]

    @property
    def shared_values(self) -> Document:
        """Values that all processes must share, by name."""
        settings = [self.what, repr(self.method.num_steps), repr(self.settings), *map(repr, self.charges)]
        noise = [charge.noise_multipliers for charge in self.charges]
        return dict(settings=[settings, noise], public_arrays=self.public, starting_values=list(self.chain_groups))

    @property
    def arguments(self) -> tuple[Tree, ...]:
        """Arguments of a chunk of no steps of the first group, for tracing it."""
        number = np.asarray(0, np.int32)
        return self.chain_groups[0], self.rows, self.public, number, number


def drive(run: Run, plan: RunPlan, budget: Budget, conclude: Function, opened: Session | None = None) -> Tree:
    """Run all steps of each group of chains. Returns `conclude(last states without keys, records)`, each by group; until that is
    done the run keeps its checkpoint.

    The program is traced, proved and compiled before a session opens. An `opened` session has planned these steps as its last
    charges. Each chunk is charged before it starts. With a checkpoint that holds a part of the run, goes on from there."""
    total = plan.method.num_steps * len(plan.chain_groups)
    with ExitStack() as stack:
        bar = stack.enter_context(bar_for(total, visible=plan.progress_bar))
        with concluding("the program of the steps", "", lambda: False, OWN_NORM) if opened else nullcontext():
            program = prepare(plan.method.mapped_chunk, plan.arguments, rows=1)
        if run.checkpoint is not None:
            settings = np.array([plan.method.num_steps, *plan.settings])
            digest = placing.program_digest(program, plan.method.mapped_chunk, plan.arguments)
            contents = placing.contents(plan.rows), plan.public, list(plan.chain_groups), settings
            run.checkpoint.hold(run.key, run.run_id, digest, contents)
        if opened is None:
            with bar.external_write_mode():
                request = replace(plan, program=program.digest, shared=plan.shared_values)
                opened = stack.enter_context(session(run, request, budget))
        else:
            opened.processes.agree(run.key, program.digest, **plan.shared_values)
        finished = _chunks(plan, program, opened.last(plan.charges), run.checkpoint, bar)
    is_kept = run.checkpoint is not None
    with concluding("the results", _GOES_ON, lambda: is_kept, "with checkpoint='run.npz' a run keeps what it released"):
        states = [placing.on_one(state._replace(rng_key=None), plan.rows) for state, _ in finished]
        found = conclude(states, [recorded for _, recorded in finished])
    opened.processes.enter("end", run.forget)
    return found


def _chunks(
    plan: RunPlan, program: Program, opened: Session, checkpoint: Checkpoint | None, bar: Foreign
) -> list[tuple[Tree, Tree]]:
    method, groups = plan.method, plan.chain_groups
    finished: list[tuple[Tree, Tree]] = []
    axis = 0 if method.mapping is None else 1
    progress = Progress(0, 0, groups[0], [])
    if checkpoint is not None:
        progress = checkpoint.begun(program.outputs[1], groups, finished)
        if not checkpoint.resumed:  # a run that is killed in its first chunk goes on, too
            checkpoint.write(jax.tree.leaves(progress.state))
    bar.unpause()
    bar.set_description(plan.describe(0))
    for group in range(len(groups)):
        over = method.num_steps if group < progress.group else progress.done
        if over:
            opened.charge(group, over)
            bar.update(over)
        if group < progress.group:
            continue
        state, parts = progress.state, list(progress.parts)
        for start in range(progress.done, max(1, method.num_steps), method.length):
            count = min(method.length, method.num_steps - start)
            opened.charge(group, start + count)
            counts = (np.asarray(value, np.int32) for value in (start, count))
            state, buffers = jax.block_until_ready(program(state, plan.rows, plan.public, *counts))
            places = method.filled(start, count)
            parts.append(jax.tree.map(lambda leaf: np.take(np.asarray(leaf), places, axis=axis), buffers))  # noqa: B023
            if checkpoint is not None:
                checkpoint.save(Progress(group, start + count, state, parts), finished)
            bar.set_description(plan.describe(start + count), refresh=False)
            bar.update(count)
        recorded = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *parts)
        finished.append((state, recorded))
        progress = Progress(group + 1, 0, groups[min(group + 1, len(groups) - 1)], [])
    return finished


def clears_tracebacks(function: Callable[P, R]) -> Callable[P, R]:
    """The function, `forgetting`, with JAX's checks of values off inside; ProcessError where its programs could not run."""

    @functools.wraps(function)
    def unchecked(*args: P.args, **kwargs: P.kwargs) -> R:
        messages.check_not_forked()
        with jax.debug_nans(False), jax.debug_infs(False):
            return function(*args, **kwargs)

    return forgetting(unchecked)


def is_traced(arguments: Tree) -> bool:
    """Whether JAX traces this call. An argument that is not a pytree of arrays is refused later."""
    try:
        given = jax.tree.leaves(arguments)
    except Exception:
        given = []
    return any(isinstance(leaf, jax.core.Tracer) for leaf in (jnp.zeros(()), *given))


def on_host(function: Callable[P, R]) -> Callable[P, R]:
    """`clears_tracebacks`, for what charges and prints. Raises ConfigurationError inside of transforms such as jax.jit, and for
    arguments that the function does not have or lacks."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            shown = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
            known = ", ".join(map(str, shown))
            raise ConfigurationError(f"{function.__qualname__}: {error}; call it as ({known}).") from None
        if is_traced((args, kwargs)):
            raise ConfigurationError(
                f"{function.__qualname__} was called inside jax.jit, jax.vmap or another transform of JAX. It charges each "
                "access, and a compiled function would repeat it uncharged, with equal noise. Call it from Python, in a loop "
                "for several runs: for y in data_sets: mcmc.run(dpppl.secret_key(), y)."
            )
        return function(*args, **kwargs)

    return clears_tracebacks(checked)
