"""Proves on a traced program that nothing leaves it that depends on private rows, but through the door."""

import functools
import inspect
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import source_info_util

from dpppl.errors import PrivacyLeakError
from dpppl.information_flow.door import Inside
from dpppl.information_flow.keys import conflicts, root_key
from dpppl.information_flow.values import Lost, Raw, Trail, Value
from dpppl.information_flow.walk import Finding, Walk, has_kind

_doors: dict[Any, str] = {}

NOT_PROVED = (
    "the clipping norm, the noise multiplier and the distribution of the noise",
    "that random rows are drawn with the stated probabilities, each at most once",
    "that keys are secret, unpredictable, different from each other, and new in every run",
    "rounding: the arithmetic is taken as exact",
    "what the caller computed on the data before, and constants that were declared public",
    "time, memory, and what the program's shapes tell of the number of rows",
)
"""What a ProofReport does not say."""


def register_door(primitive, program: str = "program") -> None:
    """Make `primitive`, this very object, a door; its parameter `program` is the ClosedJaxpr that it runs."""
    _doors[primitive] = program


@dataclass(frozen=True, kw_only=True)
class ProofReport:
    """What was proved: of `outputs` outputs, none depends on one of `private` private arrays but through `doors` doors.

    `equations`: how many were read, each once. `constants`: shapes of captured arrays that were taken as public.
    `trusted`: primitives inside a door that have no rule here and were taken to keep rows apart, as `jax.vmap` promises.
    """

    equations: int
    doors: int
    outputs: int
    private: int
    keys: int
    constants: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()

    def __str__(self):
        lines = [
            f"{self.outputs} outputs depend on {self.private} private arrays through {self.doors} door(s) only, and tell "
            f"nothing of {self.keys} key(s): {self.equations} equations read."
        ]
        if self.constants:
            lines.append(f"Taken as public, captured arrays: {', '.join(self.constants)}.")
        if self.trusted:
            lines.append(f"Taken to keep rows apart, as jax.vmap promises: {', '.join(self.trusted)}.")
        return "\n".join([*lines, f"Not proved: {'; '.join(NOT_PROVED)}."])


def verify(
    function,
    *example_args,
    private: int | str | Sequence[int | str],
    keys: int | str | Sequence[int | str] = (),
    secret_outputs: Sequence[str] = (),
    public_constants: Any = (),
    **example_kwargs,
) -> ProofReport:
    """Prove that the outputs of `function` depend on its private arguments only through the door.

    The function is traced with `example_args` and `example_kwargs` (arrays, or `jax.ShapeDtypeStruct`s) and not run.
    `private`: which arguments hold private rows, by position or name; every array in them. `keys`: which hold raw key
    data; typed keys are found without. `secret_outputs`: outputs that the caller keeps to itself and that may hold a
    key, by the end of their path, such as ".rng_key". `public_constants`: captured arrays that are public, or True for
    all.

    Guarantee: on every path from a private row to an output, to a callback or to whether one runs, the row is clipped,
    summed and noised inside the door; equal keys make no two draws of noise. Branches, loops and indices count as paths.
    `NOT_PROVED` lists what this does not say.
    Raises PrivacyLeakError, naming the output and the path, if this cannot be shown.

    >>> import jax, jax.numpy as jnp
    >>> print(verify(lambda x, y: 2.0 * y, jnp.ones(3), jnp.ones(2), private=0).outputs)
    1
    >>> verify(lambda x, y: y + x[0], jnp.ones(3), jnp.ones(2), private="x")
    Traceback (most recent call last):
    ...
    dpppl.errors.PrivacyLeakError: output: a private row reaches it outside the door. ...
    """
    arguments = (example_args, example_kwargs)
    names = _argument_names(function, example_args, example_kwargs)
    try:
        closed, outputs = jax.make_jaxpr(function, return_shape=True)(*example_args, **example_kwargs)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError,
            jax.errors.TracerIntegerConversionError) as error:  # fmt: skip
        raise PrivacyLeakError(
            f"the function uses the value of an argument in Python (a branch, a number, a NumPy array): {_line(error)}. "
            "Use jax.lax.cond or jnp.where, or bind public arguments with functools.partial.",
            (Finding("python", "the value of an argument is used in Python"),),
        ) from None
    except NotImplementedError as error:
        if not any(door.name in str(error) for door in _doors):
            raise
        raise PrivacyLeakError(
            f"a derivative is taken through the door: {_line(error)}. It would be a second access that nobody charges.",
            (Finding("derivative", "a derivative is taken through the door"),),
        ) from None
    private, keys = ((one,) if isinstance(one, int | str) else tuple(one) for one in (private, keys))
    leaves = [(names(path), path) for path, _ in jax.tree_util.tree_leaves_with_path(arguments)]
    chosen = [[k for k, (_, path) in enumerate(leaves) if names.matches(path, one)] for one in (private, keys)]
    return verify_jaxpr(
        closed,
        *chosen,
        input_names=[name for name, _ in leaves],
        output_names=_output_names(outputs),
        secret_outputs=secret_outputs,
        public_constants=public_constants,
    )


def verify_jaxpr(
    closed_jaxpr,
    private_inputs: Sequence[int],
    key_inputs: Sequence[int] = (),
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    secret_outputs: Sequence[str] = (),
    public_constants: Any = (),
) -> ProofReport:
    """`verify` for a program that is traced already: a ClosedJaxpr, and which of its inputs are private or raw keys."""
    jaxpr = closed_jaxpr.jaxpr
    inputs = input_names or [f"input {k}" for k in range(len(jaxpr.invars))]
    outputs = output_names or [f"output {k}" for k in range(len(jaxpr.outvars))]
    walk = Walk(_doors, Inside, functools.partial(_problem_with_constant, public_constants))
    values = [
        _input(walk, k, atom.aval, name, k in private_inputs, k in key_inputs)
        for k, (atom, name) in enumerate(zip(jaxpr.invars, inputs))
    ]
    results = walk.closed(closed_jaxpr, values)
    for name, value in zip(outputs, results):
        if isinstance(value.form, Raw):
            walk.find("returned", f"{name}: private rows are returned as they are", value.trail)
        elif isinstance(value.form, Lost):
            walk.find("rows", f"{name}: a private row reaches it outside the door", value.trail)
        if value.secret and not name.endswith(tuple(secret_outputs)):
            walk.find("key", f"{name}: it holds key material", value.trail)
    for first, second, what in conflicts(walk.uses, walk.strides):
        walk.find("key reuse", what, Trail(second.step, Trail(first.step)))
    if walk.findings:
        raise PrivacyLeakError(_message(walk.findings), tuple(walk.findings))
    return ProofReport(
        equations=len(walk.equations),
        doors=len(walk.entered),
        outputs=len(results),
        private=len(set(private_inputs)),
        keys=sum(value.secret for value in values),
        constants=tuple(sorted(f"{np.shape(c)} {getattr(c, 'dtype', '')}".strip() for c in walk.constants.values())),
        trusted=tuple(sorted(set().union(*(door.trusted for door in walk.entered.values())))),
    )


def _input(walk: Walk, k: int, aval, name: str, is_private: bool, is_key: bool) -> Value:
    ident = walk.number_of("input", k)
    typed = has_kind(aval, jax.dtypes.prng_key)
    secret = is_key or typed
    key = root_key(("input", k), aval.shape, is_raw=not typed and len(aval.shape) > 0) if secret else None
    trail = Trail(name) if is_private or secret else None
    return Value(Raw(k) if is_private else None, secret, key, ident=ident, trail=trail)


def _problem_with_constant(public, value, door) -> str | None:
    """Why a captured array is refused, or None. Inside the door only arrays that may hold a number for each row are."""
    shape = np.shape(value)
    if public is True or any(value is one for one in (public if public is not True else ())):
        return None
    if door is not None:
        uniform = not shape or np.asarray(value).size == 0 or bool(np.all(value == np.ravel(value)[0]))
        if uniform or door.num_rows not in shape:
            return None
        return "inside the door is as long as the rows: pass it as an argument"
    return "may hold private values: pass it as an argument, or declare it in public_constants"


# Words


class _argument_names:
    """Names of the leaves of (args, kwargs), by the function's parameters, and which belong to an argument."""

    def __init__(self, function, args, kwargs):
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
        extra = [f"{rest[0]}[{k}]" if rest else f"argument {k}" for k in range(max(0, len(args) - len(named)))]
        self.names = [*named[: len(args)], *extra]
        self.kwargs = kwargs

    def __call__(self, path) -> str:
        which, first, *inside = path
        name = self.names[first.idx] if which.idx == 0 else str(first.key)
        return f"{name}{jax.tree_util.keystr(tuple(inside))}"

    def matches(self, path, chosen) -> bool:
        which, first, *_ = path
        if which.idx == 1:
            return first.key in chosen
        return first.idx in chosen or self.names[first.idx] in chosen


def _output_names(outputs) -> list[str]:
    return [f"output{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(outputs)]


def _line(error) -> str:
    """The innermost line of user code of an exception, without values."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = os.path.dirname(os.path.dirname(__file__))
    theirs = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(ours)]
    frame = theirs[-1] if theirs else None
    return f"{frame.filename}:{frame.lineno} ({frame.name})" if frame is not None else "an unknown line"


def _message(findings: Sequence[Finding]) -> str:
    shown = [f"{finding.what}.{_path(finding.trail)}" for finding in findings[:5]]
    if len(findings) > 5:
        shown.append(f"... and {len(findings) - 5} more.")
    return "\n".join(shown)


def _path(trail: Trail | None) -> str:
    """The way of a secret, from argument to leak, each source line once."""
    steps: list[str] = []
    while trail is not None:
        step = trail.step if isinstance(trail.step, str) else _source(trail.step)
        if not steps or steps[-1] != step:
            steps.append(step)
        trail = trail.before
    steps.reverse()
    if len(steps) > 8:
        steps = [*steps[:3], "...", *steps[-4:]]
    return f" Path: {' -> '.join(steps)}." if steps else ""


def _source(equation) -> str:
    name = equation.primitive.name
    try:
        where = source_info_util.summarize(equation.source_info)
        return f"{where}: {name}" if where else name
    except Exception:  # only words: any other version of JAX may answer otherwise
        return name
