"""`verify`: label the inputs of a traced program, interpret it abstractly, and judge what its outputs may hold."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.extend.core import Primitive

from dpppl import jaxprs
from dpppl.errors import ConfigurationError
from dpppl.information_flow.lattice import Data, Value, conflicts, unknown
from dpppl.information_flow.leaks import CURE, Leak, Trail, describe, leak, user_line
from dpppl.information_flow.rules import given_key, is_followed
from dpppl.information_flow.walk import Roles, Walk
from dpppl.jaxprs import is_key
from dpppl.types import Function, Numbers, Traced, Tree
from dpppl.validation import a, checked

_FEW_NUMBERS = 100  # largest number of single numbers in a program, however few rows there are
_doors: dict[Primitive, Callable[[Tree], Roles]] = {}

NOT_PROVED = (
    "the computation of an access on its rows: subsampling, clipping, sum, noise (the library's own code, tested), and the "
    "noise multiplier it is given",
    "that keys are secret, unpredictable, different from each other, and new in every run, and that the children of a "
    "threefry or ChaCha20 key are unrelated",
    "rounding: the arithmetic is taken as exact",
    "what the caller computed on the data before, and constants that were declared public",
    "time, memory, and the number of rows, which the program's shapes show",
)
"""Claims that a ProofReport does not make."""


@checked
def register_door(primitive: Primitive, roles: Callable[[Tree], Roles]) -> None:
    """Make `primitive`, this very object, a door; `roles(parameters)` says what the operands of an equation are.

    This is for a primitive that clips rows and adds noise, and for nothing else: the proof trusts it.

    >>> from dpppl.information_flow import Roles
    >>> from jax.extend.core import Primitive
    >>> roles = Roles(rows=(2,), key=0, step=1, chains=0, streams=(), program=None)
    >>> register_door(Primitive("my_door"), lambda parameters: roles)
    """
    _doors[primitive] = roles


@dataclass(frozen=True, kw_only=True)
class ProofReport:
    """The result of a proof: outputs depend on private arrays through doors only, and reveal nothing about keys.

    - **equations** - number of equations read, those of a row's program left out.
    - **doors**, **outputs**, **private**, **keys** - numbers of accesses, outputs, private arrays and keys.
    - **constants** - captured arrays that were taken as public, in words.

    >>> proof = ProofReport(equations=1, doors=0, outputs=1, private=1, keys=0)
    >>> NOT_PROVED[0] in str(proof)
    True
    """

    equations: int
    doors: int
    outputs: int
    private: int
    keys: int
    constants: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.outputs} output(s) depend on {self.private} private array(s) through {self.doors} door(s) only and "
            f"reveal nothing about {self.keys} key(s); {self.equations} equations read."
        ]
        if self.constants:
            lines.append(f"Taken as public, {len(self.constants)} captured array(s): {', '.join(self.constants)}.")
        return "\n".join([*lines, f"Not proved: {'; '.join(NOT_PROVED)}."])


@checked
def verify(
    function: Function | jax.stages.Traced, *example_args: Tree, private: int | str | Sequence[int | str],
    secret_outputs: Sequence[str] = (), public_constants: object = (), **example_kwargs: Tree,
) -> ProofReport:  # fmt: skip
    """Prove that the outputs of `function` depend on its private arguments only through the door.

    - **function** - traced and not run; a `jax.stages.Traced` is taken as it is.
    - **example_args**, **example_kwargs** - arrays, or `jax.ShapeDtypeStruct`s. Keys are typed ones (`jax.random.key`), and found
      by that.
    - **private** - which arguments hold private rows, by position or name (of a `Traced` by name); every array in them, rows
      along its first axis.
    - **secret_outputs** - outputs that the caller keeps to itself and that may hold a key, by the end of their path, such as
      ".rng_key".
    - **public_constants** - captured arrays that are public, also those of a likelihood, or True for all.

    Guarantee: private rows enter nothing but accesses through the door, as they are; nothing else depends on them:
    outputs, branches, trip counts, callbacks, or whether one runs. No two accesses, in any iteration, branch, chain or
    device, share a key and a step, and nothing else is drawn from the keys of accesses, nor do keys leave. The code of
    an access keeps rows apart by construction. `NOT_PROVED` lists the limits of this statement.
    Raises PrivacyLeakError, naming the output, the path and the cure, where this cannot be shown.

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
        names = closed.jaxpr.debug_info.arg_names  # its arguments have lost their positions: static ones are left out
        inputs: list[Tree] = [(name, (name, re.split(r"[\[.]", name)[0])) for name in names]
    elif not callable(function):
        raise ConfigurationError(f"verify takes a function of JAX, and {a(type(function).__name__)} is given.")
    else:
        closed, outputs = _trace(function, example_args, example_kwargs)
        inputs = _inputs(function, example_args, example_kwargs)
    captured = len(closed.jaxpr.invars) - len(inputs)  # versions of JAX make arguments of captured arrays
    if captured and public_constants is not True:
        raise leak(Leak("constant", f"{captured} captured arrays may hold private values: pass them as arguments"))
    wanted = (private,) if isinstance(private, int | str) else tuple(private)
    if not all(any(one in known for _, known in inputs) for one in wanted):
        arrays = ", ".join(f"'{name}'" for name, _ in inputs)
        raise ConfigurationError(
            f"private names arrays among the arguments, by name or position (what is traced: by name), and one is neither; the "
            f"arrays are {arrays}."
        )
    return verify_jaxpr(
        closed, [captured + k for k, (_, known) in enumerate(inputs) if any(one in known for one in wanted)],
        input_names=[*("a captured array" for _ in range(captured)), *(name for name, _ in inputs)],
        output_names=[f"output{path}" for path in _paths(outputs)], secret_outputs=secret_outputs,
        public_constants=public_constants,
    )  # fmt: skip


@checked
def verify_jaxpr(
    closed_jaxpr: Traced, private_inputs: Sequence[int], *, input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None, secret_outputs: Sequence[str] = (), public_constants: object = (),
) -> ProofReport:  # fmt: skip
    """`verify` for a ClosedJaxpr.

    - **closed_jaxpr** - the program.
    - **private_inputs** - numbers of its inputs that hold private rows.
    - **input_names**, **output_names** - names of inputs and outputs, for messages.
    - **secret_outputs**, **public_constants** - as for `verify`.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> verify_jaxpr(jax.make_jaxpr(lambda x, y: 2.0 * y)(jnp.ones(3), jnp.ones(2)), [0]).outputs
    1
    """
    if any(not name for name in secret_outputs):
        raise ConfigurationError("secret_outputs: an empty name would be the end of every output's path.")
    if not hasattr(closed_jaxpr, "jaxpr"):
        raise ConfigurationError(
            f"closed_jaxpr is {a(type(closed_jaxpr).__name__)}; give jax.make_jaxpr(function)(*args), or use verify."
        )
    variables, out = closed_jaxpr.jaxpr.invars, closed_jaxpr.jaxpr.outvars
    if any(k not in range(len(variables)) for k in private_inputs):
        raise ConfigurationError(f"private_inputs are numbers of the program's inputs, from 0 to {len(variables) - 1}.")
    inputs = input_names or [f"input {k}" for k in range(len(variables))]
    outputs = output_names or [f"output {k}" for k in range(len(out))]
    if len(inputs) != len(variables) or len(outputs) != len(out):
        raise ConfigurationError(
            f"input_names and output_names must name each of the {len(variables)} inputs and {len(out)} outputs."
        )
    lengths = {v.aval.shape[0] for k, v in enumerate(variables) if k in private_inputs and v.aval.shape}
    walk = Walk(_doors, lambda value: _problem_with(public_constants, value, lengths))
    count = max(jaxprs.count_numbers(closed_jaxpr, walk.programs))
    if lengths and count >= max(_FEW_NUMBERS, min(lengths)):
        walk.find("constant", f"{count} single numbers stand in the program, as many as there are rows, which may be the rows "
                  "themselves: pass them as one array, as an argument")  # fmt: skip
    values = []
    for k, (aval, name) in enumerate(zip((v.aval for v in variables), inputs)):
        key, data = given_key(k, aval), Data.ROWS if k in private_inputs else Data.PUBLIC
        number = unknown(len(aval.shape)) if is_followed(aval) else None
        values.append(Value(data, key, number, Trail(name) if data is Data.ROWS or key is not None else None))
    results = walk.program(closed_jaxpr, values)
    for name, value in zip(outputs, results):
        if value.data is Data.ROWS:
            walk.find("returned", f"{name}: private rows are returned as they are", value.trail)
        elif value.data is Data.DERIVED:
            walk.find("rows", f"{name}: a private row reaches it outside the door", value.trail)
        if value.key is not None and not name.endswith(tuple(secret_outputs)):
            walk.find("key", f"{name}: it holds key material", value.trail)
    for first, second in conflicts(walk.uses):
        what = "two accesses may share a key and step: give each its own"
        if first is second:
            what = "two turns, chains or devices may share the key and step of an access: give each its own"
        if not (first.streams and second.streams):
            what = ("an access and another draw may come from the same key: give the draw a key of its own, "
                    "jax.random.fold_in(key, number of its name), or split the key first")  # fmt: skip
        walk.find("key reuse", f"{what}. {CURE}", Trail(second.equation, Trail(first.equation)))
    if walk.findings:
        raise leak(*walk.findings)
    equations = {id(equation): equation for equation in jaxprs.equations(closed_jaxpr)}
    return ProofReport(
        equations=len(equations), doors=sum(equation.primitive in _doors for equation in equations.values()),
        outputs=len(results), private=len(set(private_inputs)), keys=sum(value.key is not None for value in values),
        constants=tuple(sorted(map(describe, walk.constants.values()))),
    )  # fmt: skip


def _problem_with(public: Tree, value: Numbers, lengths: set[int]) -> str | None:
    """Why a captured array is refused, or None."""
    if public is True:
        long = lengths.intersection(np.shape(value))
        return "has an axis as long as the private rows: pass it as an argument" if long else None
    alike = lambda one: isinstance(one, np.ndarray) and np.array_equal(np.asarray(value), one)  # noqa: E731
    if any(value is one or (not is_key(value) and alike(one)) for one in public):
        return None
    return "may hold private values: pass it as an argument, or declare it in public_constants"


def _trace(function: Function, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Traced:
    """(closed jaxpr, shapes of the outputs). Errors of tracing that tell of a leak are said as leaks."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigurationError(f"the function does not take these example arguments: {error}.") from None
    except ValueError:  # a built-in function, which has no signature
        pass
    try:
        return jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    except jaxprs.VALUE_ERRORS as error:
        what = f"the value of an argument decides in Python (a branch, a number, a NumPy array, a mask): {user_line(error)}"
        kind, cure = "python", "Use jax.lax.cond or jnp.where, or bind public arguments with functools.partial"
    except NotImplementedError as error:
        if not any(door.name in str(error) for door in _doors):
            raise
        what = f"a derivative is taken through the door: {user_line(error)}"
        kind, cure = "derivative", "It would be a second access that nobody charges"
    raise leak(Leak(kind, f"{what}. {cure}")) from None


def _inputs(function: Function, args: Tree, kwargs: Tree) -> list[Tree]:
    """A name of each array among the arguments, and by what its argument is known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names += [f"argument {k}" for k in range(len(names), len(args))]
    given: list[Tree] = [(name, argument, (name, k)) for k, (name, argument) in enumerate(zip(names, args))]
    given += [(name, argument, (name,)) for name, argument in sorted(kwargs.items())]
    return [(name + path, known) for name, argument, known in given for path in _paths(argument)]


def _paths(tree: Tree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
