"""The proof: labels for the inputs of a traced program, one walk through it, and what its outputs then hold."""

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

from dpppl.errors import ConfigurationError, PrivacyLeakError
from dpppl.information_flow.door import Inside
from dpppl.information_flow.facts import has_kind
from dpppl.information_flow.keys import conflicts, root_key
from dpppl.information_flow.primitives import TABLES, contents
from dpppl.information_flow.values import Lost, Raw, Trail, Value
from dpppl.information_flow.walk import Finding, Walk, describe

_doors: dict[Any, str] = {}

NOT_PROVED = (
    "the clipping norm (parts of a row may each have one), the noise multiplier and the distribution of the noise",
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
    """What was proved: no output depends on a private array but through a door, or tells of a key.

    Counts: `equations` read, `doors`, `outputs`, `private` arrays, `keys`. `constants`: captured arrays that were taken as
    public.
    """

    equations: int
    doors: int
    outputs: int
    private: int
    keys: int
    constants: tuple[str, ...] = ()

    def __str__(self):
        lines = [
            f"{self.outputs} output(s) depend on {self.private} private array(s) through {self.doors} door(s) only and "
            f"tell nothing of {self.keys} key(s); {self.equations} equations read."
        ]
        if self.constants:
            lines.append(f"Taken as public, captured arrays: {', '.join(self.constants)}.")
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

    The function is traced with `example_args` and `example_kwargs` (arrays, or `jax.ShapeDtypeStruct`s) and not run; a
    `jax.stages.Traced` is taken as it is. `private`: which arguments hold private rows, by position or name; every array
    in them, rows along its first axis. `keys`: which hold raw key data; typed keys are found without. `secret_outputs`:
    outputs that the caller keeps to itself and that may hold a key, by the end of their path, such as ".rng_key".
    `public_constants`: captured arrays that are public, also those of a likelihood, or True for all.

    Guarantee: on every path from a private row to an output, to a callback, or to whether one runs, the row is clipped,
    summed and noised inside the door; no two draws of noise use one key. Branches, loops and indices count as paths.
    `NOT_PROVED` lists what this does not say.
    Raises PrivacyLeakError, naming the output and the path, where this cannot be shown.

    >>> import jax.numpy as jnp
    >>> verify(lambda x, y: 2.0 * y, jnp.ones(3), jnp.ones(2), private="x").outputs
    1
    >>> verify(lambda x, y: y + x[0], jnp.ones(3), jnp.ones(2), private="x")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    dpppl.errors.PrivacyLeakError: output: a private row reaches it outside the door. Path: x -> ...
    """
    if isinstance(function, jax.stages.Traced):
        closed, outputs = function.jaxpr, function.out_info
        example_args, example_kwargs = _unflatten(function.in_tree)
    else:
        closed, outputs = _trace(function, example_args, example_kwargs)
    inputs = _inputs(_parameters(function), example_args, example_kwargs)
    captured = len(closed.jaxpr.invars) - len(inputs)  # versions of JAX make arguments of captured arrays
    if captured and public_constants is not True:
        what = f"{captured} captured arrays may hold private values: pass them as arguments"
        raise PrivacyLeakError(what, (Finding("constant", what),))
    return verify_jaxpr(
        closed,
        [captured + k for k in _chosen(inputs, private)],
        [captured + k for k in _chosen(inputs, keys)],
        input_names=[*("a captured array" for _ in range(captured)), *(name for name, _ in inputs)],
        output_names=[f"output{jax.tree_util.keystr(path)}" for path, _ in _leaves(outputs)],
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
    """`verify` for a ClosedJaxpr, and the numbers of its inputs that hold private rows or raw keys."""
    jaxpr = closed_jaxpr.jaxpr
    inputs = input_names or [f"input {k}" for k in range(len(jaxpr.invars))]
    outputs = output_names or [f"output {k}" for k in range(len(jaxpr.outvars))]
    walk = Walk(_doors, Inside, functools.partial(_problem_with, public_constants))
    values = [
        _label(walk, k, variable.aval, name, k in private_inputs, k in key_inputs)
        for k, (variable, name) in enumerate(zip(jaxpr.invars, inputs))
    ]
    results = walk.program(closed_jaxpr, values)
    for name, value in zip(outputs, results):
        if isinstance(value.form, Raw):
            walk.find("returned", f"{name}: private rows are returned as they are", value.trail)
        elif isinstance(value.form, Lost):
            walk.find("rows", f"{name}: a private row reaches it outside the door", value.trail)
        if value.secret and not name.endswith(tuple(secret_outputs)):
            walk.find("key", f"{name}: it holds key material", value.trail)
    for first, second, what in conflicts(walk.uses, walk.counters):
        walk.find("key reuse", what, Trail(second.step, Trail(first.step)))
    if walk.findings:
        raise PrivacyLeakError(_message(walk.findings), tuple(walk.findings))
    return ProofReport(
        equations=len(walk.equations),
        doors=len(walk.entered),
        outputs=len(results),
        private=len(set(private_inputs)),
        keys=sum(value.secret for value in values),
        constants=tuple(sorted(map(describe, walk.constants.values()))),
    )


def _label(walk: Walk, k: int, aval, name: str, is_private: bool, is_key: bool) -> Value:
    typed = has_kind(aval, jax.dtypes.prng_key)
    secret = typed or is_key
    key = root_key(("input", k), aval.shape, is_raw=not typed and len(aval.shape) > 0) if secret else None
    trail = Trail(name) if is_private or secret else None
    return Value(Raw(k) if is_private else None, secret, key, ident=walk.ident("input", k), trail=trail)


def _problem_with(public, value, door) -> str | None:
    """Why a captured array is refused, or None. Inside the door, zeros, ones and the library's own tables are not."""
    if public is True or any(value is one for one in public):
        return None
    if value is not None and not has_kind(value, jax.dtypes.prng_key):
        numbers = np.asarray(value)
        if any(isinstance(one, np.ndarray) and np.array_equal(numbers, one) for one in public):
            return None
        if door is not None and (contents(numbers) in TABLES or any(np.all(numbers == n) for n in (0, 1))):
            return None
    return "may hold private values: pass it as an argument, or declare it in public_constants"


# Tracing, and names of arguments


def _trace(function, args, kwargs):
    """(closed jaxpr, shapes of the outputs). Errors of tracing that tell of a leak are said as leaks."""
    errors = jax.errors
    try:
        return jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    except (
        errors.ConcretizationTypeError,
        errors.TracerArrayConversionError,
        errors.TracerIntegerConversionError,
        errors.NonConcreteBooleanIndexError,
    ) as error:
        what = f"the value of an argument decides in Python (a branch, a number, a NumPy array, a mask): {_line(error)}"
        kind, cure = "python", "Use jax.lax.cond or jnp.where, or bind public arguments with functools.partial."
    except NotImplementedError as error:
        if not any(door.name in str(error) for door in _doors):
            raise
        what = f"a derivative is taken through the door: {_line(error)}"
        kind, cure = "derivative", "It would be a second access that nobody charges."
    raise PrivacyLeakError(f"{what}. {cure}", (Finding(kind, what),)) from None


def _parameters(function) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def _unflatten(tree):
    return jax.tree.unflatten(tree, range(tree.num_leaves))


def _leaves(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


def _inputs(names: Sequence[str], args, kwargs) -> list[tuple[str, tuple]]:
    """For each array among the arguments: how to call it, and the positions and names of its argument."""
    positions: list[tuple[str, Any, tuple]] = [
        (names[k] if k < len(names) else f"argument {k}", argument, (k, names[k] if k < len(names) else k))
        for k, argument in enumerate(args)
    ]
    positions += [(name, argument, (name,)) for name, argument in sorted(kwargs.items())]
    return [
        (name + jax.tree_util.keystr(path), known)
        for name, argument, known in positions
        for path, _ in _leaves(argument)
    ]


def _chosen(inputs, which) -> list[int]:
    wanted = (which,) if isinstance(which, int | str) else tuple(which)
    for one in wanted:
        if not any(one in known for _, known in inputs):
            raise ConfigurationError(f"the function has no array argument {one!r}.")
    return [k for k, (_, known) in enumerate(inputs) if any(one in known for one in wanted)]


# Words


def _line(error) -> str:
    """The innermost line of the user's code, without values."""
    ours = os.path.dirname(os.path.dirname(__file__))
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(ours)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno} ({theirs[-1].name})" if theirs else "an unknown line"


def _message(findings: Sequence[Finding]) -> str:
    shown = [f"{finding.what}.{_path(finding.trail)}" for finding in findings[:5]]
    if len(findings) > 5:
        shown.append(f"... and {len(findings) - 5} more.")
    return "\n".join(shown)


def _path(trail: Trail | None) -> str:
    """The way of a secret, from the argument on, each source line once."""
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
    except Exception:  # these are only words: another version of JAX may have no such function
        where = ""
    return f"{where}: {name}" if where else name
