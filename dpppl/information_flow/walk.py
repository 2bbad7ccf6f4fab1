"""Follows values through a traced program: calls, branches, loops, effects; rows outside the door, and keys anywhere."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from dpppl.information_flow import keys
from dpppl.information_flow.keys import Key, Use
from dpppl.information_flow.primitives import group, is_higher_order, jaxpr_of, known, named
from dpppl.information_flow.values import Draw, Form, Lost, Number, Raw, Trail, Value, depends_on_rows, join

_MOST_PASSES = 30
_CLEAN = frozenset()
_SAME = group(
    "broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy", "stop_gradient", "transpose", "name"
)
_SQUARES = group("mul", "square", "abs")
_ADDING = group("add", "mul", "reduce_sum", "dot_general", "sqrt")
_PASSED = group("optimization_barrier", "device_put")
_CHOSEN = group("convert_element_type", "copy", "device_put", "sharding_constraint", "slice", "dynamic_slice", "name")


def has_kind(array, kind) -> bool:
    """Whether an array, or an abstract one, holds integers, say, or keys."""
    return hasattr(array, "dtype") and jax.dtypes.issubdtype(array.dtype, kind)


@dataclass(frozen=True, slots=True)
class Finding:
    """A way by which something private could leave. `kind`: one word; `what`: a sentence; `trail`: how it came there."""

    kind: str
    what: str
    trail: Trail | None = None


class Walk:
    """One pass over a program. `doors` maps a door's primitive to the parameter that holds its program."""

    def __init__(self, doors: dict, inside: Callable, allow_constant: Callable):
        self.doors, self.inside, self.allow_constant = doors, inside, allow_constant
        self.findings: list[Finding] = []
        self.uses: list[Use] = []
        self.door: Any = None  # the rules inside the door, while it is inside one
        self.entered: dict[int, Any] = {}
        self.equations: set[int] = set()
        self.constants: dict[int, Any] = {}
        self.strides: dict[Hashable, int] = {}
        self.turns: dict[Hashable, tuple[Number, int, int]] = {}
        self.devices: dict[Hashable, int] = {}
        self.control: list[Trail] = []
        self.branches: tuple[tuple[int, int], ...] = ()
        self.scope: tuple[int, ...] = ()
        self._numbers: dict[Hashable, int] = {}
        self._count = 0

    # Names of values

    def fresh(self) -> int:
        """A number that no other value has."""
        self._count += 1
        return -self._count - 1

    def number_of(self, *description) -> int:
        """The number of a value, equal for equal descriptions."""
        try:
            return self._numbers.setdefault(description, len(self._numbers))
        except TypeError:
            return self.fresh()

    def literal(self, literal) -> Value:
        """A number in the program text, or an array there."""
        value = literal.val
        if np.size(value) > 1:
            return self.constant(value)
        if has_kind(literal.aval, jax.dtypes.prng_key):
            return Value(ident=self.fresh())
        number = np.asarray(value)
        exact = Number(None, int(number)) if np.issubdtype(number.dtype, np.integer) else None
        low = float(number) if number.dtype.kind in "iufb" and number.size else None
        bounds = None if low is None else (low, low)
        return Value(number=exact, bounds=bounds, ident=self.number_of("literal", number.dtype.str, number.tobytes()))

    def constant(self, value) -> Value:
        """An array that the program captured: refused, unless it is allowed."""
        ident = self.number_of("constant", id(value))
        if isinstance(value, jax.core.Tracer):
            what = "a value of the surrounding computation is captured by a function that the door calls; pass it along"
            self.find("constant", what)
            return Value(Lost("captured"), ident=ident, trail=Trail("a captured value"))
        problem = self.allow_constant(value, self.door)
        shape = f"{np.shape(value)} {getattr(value, 'dtype', type(value).__name__)}"
        if problem:
            self.find("constant", f"a captured constant, {shape}, {problem}")
        self.constants[id(value)] = value
        if not hasattr(value, "dtype") or has_kind(value, jax.dtypes.prng_key):
            return Value(ident=ident)
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "iufb" or not numbers.size:
            return Value(ident=ident)
        low, high = float(numbers.min()), float(numbers.max())
        exact = Number(None, int(low)) if numbers.dtype.kind in "iu" and low == high else None
        return Value(number=exact, bounds=(low, high), ident=ident)

    # Programs

    def closed(self, closed, arguments) -> list[Value]:
        """A closed jaxpr: its outputs."""
        return self.open(closed.jaxpr, [self.constant(value) for value in closed.consts], arguments)

    def any(self, program, arguments) -> list[Value]:
        """A jaxpr, closed or open."""
        return self.closed(program, arguments) if hasattr(program, "consts") else self.open(program, [], arguments)

    def open(self, jaxpr, constants, arguments) -> list[Value]:
        """An open jaxpr: its outputs."""
        environment: dict[Any, Value] = dict(zip(jaxpr.constvars, constants))
        environment.update(zip(jaxpr.invars, arguments))

        def read(atom):
            return self.literal(atom) if isinstance(atom, Literal) else environment[atom]

        for equation in jaxpr.eqns:
            self.equations.add(id(equation))
            outputs = self.equation(equation, [read(atom) for atom in equation.invars])
            environment.update(zip(equation.outvars, outputs))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation, inputs: list[Value]) -> list[Value]:
        """One equation: its outputs."""
        primitive, groups = equation.primitive, known()
        if primitive in self.doors:
            return self.through_door(equation, inputs)
        if primitive in groups.calls:
            return self.call(equation, inputs)
        if primitive in groups.remat:
            with_scope, self.scope = self.scope, (*self.scope, id(equation))
            outputs = self.call(equation, inputs)
            self.scope = with_scope
            return outputs
        if primitive in groups.shard_map:
            return self.sharded(equation, inputs)
        if primitive is named("scan"):
            return self.scan(equation, inputs)
        if primitive is named("while"):
            return self.while_loop(equation, inputs)
        if primitive is named("cond"):
            return self.cond(equation, inputs)
        if primitive in _PASSED:
            return inputs
        return self.plain(equation, inputs)

    def call(self, equation, inputs) -> list[Value]:
        """A call of one program with the equation's inputs."""
        programs = [value for value in equation.params.values() if jaxpr_of(value) is not None]
        if len(programs) != 1 or len(jaxpr_of(programs[0]).invars) != len(inputs):
            return self.unknown(equation, inputs)
        return self.any(programs[0], inputs)

    # Equations without programs of their own

    def plain(self, equation, inputs: list[Value]) -> list[Value]:
        groups, primitive = known(), equation.primitive
        secrets = [value for value in inputs if value.secret or depends_on_rows(value.form)]
        effects = [effect for effect in equation.effects if type(effect).__name__ != "NamedAxisEffect"]
        if effects or primitive in groups.callbacks:
            if secrets or self.control:
                trail = secrets[0].trail if secrets else self.control[-1]
                what = "keys" if secrets and secrets[0].secret else "private rows"
                where = "is handed" if secrets else "runs or not depending on"
                self.find("effect", f"{primitive.name} {where} {what}", Trail(equation, trail))
        elif secrets and primitive not in groups.first_order and is_higher_order(equation):
            return self.unknown(equation, inputs)
        loops = _CLEAN.union(*(value.loops for value in inputs))
        names = tuple(value.ident for value in inputs)
        parameters = tuple(equation.params.values())
        idents = [self.number_of(primitive, parameters, names, k) for k in range(len(equation.outvars))]
        if primitive in groups.keys.draws:
            return self.draw(equation, inputs, idents[0], loops)
        forms = self.forms(equation, inputs, idents)
        secret = any(value.secret for value in inputs)
        trail = None
        if secrets:
            first = next((value for value in secrets if depends_on_rows(value.form)), secrets[0])
            lost = next((value for value in secrets if isinstance(value.form, Lost)), None)
            trail = lost.trail if self.door is not None and lost is not None else Trail(equation, first.trail)
        key = self.key(equation, inputs) if secret and len(idents) == 1 else None
        number = self.integer(equation, inputs) if len(idents) == 1 else None
        bounds = self.bounds(primitive, inputs) if inputs else None
        thin = primitive is named("concatenate") and all(np.shape(atom.aval)[-1] == 1 for atom in equation.invars)
        pieces = names if thin and equation.params["dimension"] == len(equation.outvars[0].aval.shape) - 1 else ()
        return [
            Value(
                form, secret, key, number, bounds, ident, loops,
                trail=trail if secret or depends_on_rows(form) else None, pieces=pieces,
            )
            for form, ident in zip(forms, idents)
        ]  # fmt: skip

    def forms(self, equation, inputs: list[Value], idents) -> list[Form]:
        """How the outputs depend on rows."""
        count = len(equation.outvars)
        if all(value.form is None for value in inputs):
            return [None] * count
        if self.door is not None:
            return self.door.forms(self, equation, inputs, idents)
        rows, primitive = [value for value in inputs if value.form is not None], equation.primitive
        chosen = primitive in _CHOSEN or (primitive is named("squeeze") and 0 not in equation.params["dimensions"])
        if chosen and isinstance(inputs[0].form, Raw) and len(rows) == 1:
            return [inputs[0].form] * count
        return [Lost("it is computed from private rows")] * count

    @staticmethod
    def bounds(primitive, inputs: list[Value]) -> tuple[float, float] | None:
        """Smallest and largest element, where that is easy: constants, and sums of squares."""
        first = inputs[0]
        if primitive in _SAME:
            return first.bounds
        if primitive is named("mul") and any(value.bounds == (0.0, 0.0) for value in inputs):
            return 0.0, 0.0
        if primitive in _SQUARES and len({value.ident for value in inputs}) == 1:
            return 0.0, np.inf
        if primitive in _ADDING and all(value.bounds is not None and value.bounds[0] >= 0.0 for value in inputs):
            return 0.0, np.inf
        return None

    def integer(self, equation, inputs: list[Value]) -> Number | None:
        """What is known of an integer that the equation computes."""
        aval, primitive = equation.outvars[0].aval, equation.primitive
        if not has_kind(aval, np.integer) or aval.dtype.itemsize < 4:
            return None
        if primitive is named("iota"):
            return Number(("iota", aval.shape[0]), 0) if len(aval.shape) == 1 else None
        if primitive is named("axis_index"):
            return Number(("axis", self.devices.get(equation.params["axis_name"])), 0)
        if not inputs:
            return None
        if primitive in _SAME:
            old = equation.invars[0].aval
            lengths = [[length for length in shape if length != 1] for shape in (np.shape(old), aval.shape)]
            reordered = primitive is named("transpose") or equation.params.get("dimensions") is not None
            aligned = np.size(old) == 1 or (lengths[0] == lengths[1] and not reordered)
            return self.known_integer(inputs[0]) if aligned and has_kind(old, np.integer) else None
        if primitive is named("add") or primitive is named("sub"):
            sign = 1 if primitive is named("add") else -1
            a, b = (self.known_integer(value) for value in inputs)
            if b.base is None:
                return Number(a.base, a.offset + sign * b.offset)
            if a.base is None and sign == 1:
                return Number(b.base, a.offset + b.offset)
        return None

    @staticmethod
    def known_integer(value: Value) -> Number:
        """What is known of an integer; at least that it is itself."""
        return value.number if value.number is not None else Number(("value", value.ident), 0)

    # Keys

    def key(self, equation, inputs: list[Value]) -> Key | None:
        """Which key the equation makes, or None if it cannot be followed."""
        source, groups, primitive = inputs[0], known().keys, equation.primitive
        if source.key is None or depends_on_rows(source.form):
            return None
        key, parameters, shape = source.key, equation.params, np.shape(equation.invars[0].aval)
        new_shape = np.shape(equation.outvars[0].aval)
        if primitive is groups.fold_in:
            return keys.fold_in(key, self.known_integer(inputs[1]), len(new_shape))
        if primitive is groups.split:
            return keys.split(key, tuple(parameters["shape"]))
        if primitive in groups.wrap:
            return key._replace(axes=key.axes[:-1]) if key.axes[-1:] == (keys.WORDS,) else None
        if primitive in groups.unwrap:
            return key._replace(axes=(*key.axes, keys.WORDS))
        if primitive in groups.same or primitive is groups.seed:
            return key
        if primitive is named("slice"):
            return keys.cut(key, parameters["start_indices"], parameters["limit_indices"], parameters["strides"], shape)
        if primitive is named("squeeze"):
            return keys.squeeze(key, [axis % len(shape) for axis in parameters["dimensions"]])
        if primitive is named("reshape") and parameters["dimensions"] is None:
            return keys.rearrange(key, shape, new_shape)
        if primitive is named("transpose"):
            return key._replace(axes=tuple(key.axes[axis] for axis in parameters["permutation"]))
        if primitive is named("broadcast_in_dim"):
            return keys.broadcast(key, shape, new_shape, parameters["broadcast_dimensions"])
        if primitive is named("dynamic_slice") and not any(value.secret for value in inputs[1:]):
            for axis, (length, index) in enumerate(zip(new_shape, inputs[1:])):
                if length == 1 and shape[axis] != 1:
                    key = keys.pick(key, axis, self.known_integer(index))
                elif length != shape[axis]:
                    return None
            return key
        return None

    def draw(self, equation, inputs, ident: int, loops) -> list[Value]:
        """Random numbers: public as long as their key is not drawn from again."""
        form: Form = None
        rows = next((value for value in inputs if depends_on_rows(value.form)), None)
        if rows is not None:
            form = self.forms(equation, inputs, [ident])[0]
        source = inputs[0]
        if source.secret:
            if source.key is None:
                self.find("key reuse", "a draw is made from a key that cannot be followed", Trail(equation, source.trail))
            else:
                self.uses.append(
                    Use(source.key, ident, equation, self.branches, self.scope, in_door=self.door is not None, loops=loops)
                )
            if self.door is not None and form is None:
                form = self.door.drawn(equation, source, ident)
        trail = Trail(equation, rows.trail) if rows is not None else None
        return [Value(form, ident=ident, loops=loops, trail=trail)]

    # What leaks wherever it is met

    def unknown(self, equation, inputs) -> list[Value]:
        """A primitive that holds programs in an unknown way."""
        secrets = [value for value in inputs if value.secret or depends_on_rows(value.form)]
        if secrets:
            self.find("unknown", f"{equation.primitive.name} is not known here: what it does with secrets cannot be "
                      "followed", Trail(equation, secrets[0].trail))  # fmt: skip
        form = Lost("it went through an unknown operation") if secrets else None
        trail = Trail(equation, secrets[0].trail) if secrets else None
        secret = any(value.secret for value in inputs)
        return [Value(form, secret, ident=self.fresh(), trail=trail) for _ in equation.outvars]

    def find(self, kind: str, what: str, trail: Trail | None = None) -> None:
        """Note a finding, once."""
        if all((kind, what) != (finding.kind, finding.what) for finding in self.findings):
            self.findings.append(Finding(kind, what, trail))

    # Branches and loops

    def decided_by(self, value: Value) -> Trail | None:
        """The trail of a branch or loop condition that depends on a secret."""
        if depends_on_rows(value.form) or value.secret:
            return Trail("a branch or a loop's end depends on it", value.trail)
        return None

    def under(self, predicate: Value, output: Value) -> Value:
        """An output of a branch or a loop whose course `predicate` decides."""
        if depends_on_rows(predicate.form):
            why = Lost("a branch or a loop depends on private rows")
            return output._replace(form=why, trail=self.decided_by(predicate), number=None, key=None, bounds=None)
        if isinstance(predicate.form, Draw) and output.form is None:
            output = output._replace(form=Draw(predicate.form.boxes, own=False))
        if predicate.secret:
            return output._replace(secret=True, key=None, trail=self.decided_by(predicate))
        return output

    def controlled(self, predicate: Value, run: Callable):
        """`run()`, with effects inside refused if the predicate is secret."""
        trail = self.decided_by(predicate)
        if trail is None:
            return run()
        self.control.append(trail)
        try:
            return run()
        finally:
            self.control.pop()

    def cond(self, equation, inputs) -> list[Value]:
        index, operands = inputs[0], inputs[1:]
        before, results = self.branches, []
        point = self.fresh()
        for number, branch in enumerate(equation.params["branches"]):
            self.branches = (*before, (point, number))
            results.append(self.controlled(index, lambda branch=branch: self.closed(branch, operands)))
        self.branches = before
        outputs = [self._either(values) for values in zip(*results)]
        return [self.under(index, value._replace(loops=value.loops | index.loops)) for value in outputs]

    def _either(self, values) -> Value:
        first = values[0]
        for other in values[1:]:
            same = first.ident == other.ident
            first = Value(
                join(first.form, other.form),
                first.secret or other.secret,
                first.key if first.key == other.key else None,
                first.number if first.number == other.number else None,
                first.bounds if first.bounds == other.bounds else None,
                first.ident if same else self.fresh(),
                first.loops | other.loops,
                first.trail or other.trail,
            )
        return first

    def scan(self, equation, inputs) -> list[Value]:
        parameters = equation.params
        num_constants, num_carry = parameters["num_consts"], parameters["num_carry"]
        constants, carry = inputs[:num_constants], inputs[num_constants : num_constants + num_carry]
        scanned, loop, length = inputs[num_constants + num_carry :], self.fresh(), parameters["length"]
        slices = [self.slice_of(value, loop) for value in scanned]

        def body(current):
            outputs = self.any(parameters["jaxpr"], [*constants, *current, *slices])
            return outputs[:num_carry], outputs[num_carry:]

        current, stacked = self.fixed_point(equation, loop, carry, body, length)
        return [*current, *(self.stack_of(value, loop) for value in stacked)]

    def while_loop(self, equation, inputs) -> list[Value]:
        parameters = equation.params
        num_cond, num_body = parameters["cond_nconsts"], parameters["body_nconsts"]
        cond_constants, body_constants = inputs[:num_cond], inputs[num_cond : num_cond + num_body]
        carry, loop = inputs[num_cond + num_body :], self.fresh()
        last = [Value()]

        def body(current):
            (predicate,) = self.any(parameters["cond_jaxpr"], [*cond_constants, *current])
            last[0] = predicate
            outputs = self.controlled(predicate, lambda: self.any(parameters["body_jaxpr"], [*body_constants, *current]))
            if self.door is not None:
                return self.door.under_loop(self, predicate, outputs), []
            return [self.under(predicate, value) for value in outputs], []

        current, _ = self.fixed_point(equation, loop, carry, body, None)
        if self.door is not None:
            return self.door.under_loop(self, last[0], current)
        return [self.under(last[0], value) for value in current]

    def fixed_point(self, equation, loop: int, carry, body: Callable, length: int | None):
        """Run the body until what is known of its state no longer changes; then the state and the other outputs."""
        current, avals = list(carry), [atom.aval for atom in equation.outvars]
        mark = self.mark()
        for _ in range(_MOST_PASSES):
            self.back_to(mark)
            outputs, others = body(current)
            pairs = zip(current, outputs, avals)
            following = [self.carried(("carry", loop, k), *values) for k, values in enumerate(pairs)]
            if [value._replace(trail=None) for value in following] == [value._replace(trail=None) for value in current]:
                break
            current = following
        else:
            self.find("unknown", "a loop could not be followed", Trail(equation))
        self.check_turns(equation, loop, carry, current, outputs, mark[0], length)
        after = [self.after_loop(loop, k, *values, length) for k, values in enumerate(zip(carry, current))]
        return after, others

    def mark(self) -> tuple:
        """Where the records stand."""
        return len(self.uses), len(self.findings), self.door.mark() if self.door is not None else None

    def back_to(self, mark: tuple) -> None:
        """Forget what was recorded since, because a loop's body is followed again."""
        del self.uses[mark[0] :], self.findings[mark[1] :]
        if self.door is not None:
            self.door.back_to(mark[2])

    def carried(self, name, before: Value, after: Value, aval) -> Value:
        """What is known of a loop's variable that is first `before`, and `after` a turn."""
        same, key, number = before.ident == after.ident, before.key, before.number
        if key != after.key and key is not None and key.root != name:
            is_raw = keys.WORDS in key.axes
            key = keys.root_key(name, aval.shape, is_raw) if after.key is not None else None
        if number != after.number and (number is None or number.base != name):
            number = Number(name, 0)
        return Value(
            join(before.form, after.form),
            before.secret or after.secret,
            key,
            number,
            before.bounds if before.bounds == after.bounds else None,
            before.ident if same else self.number_of(name),
            before.loops if same else before.loops | after.loops | {name[1]},
            before.trail or after.trail,
        )

    def check_turns(self, equation, loop: int, carry, current, outputs, mark: int, length: int | None) -> None:
        """Refuse noise that two turns of a loop draw from the same key."""
        if length == 1:
            return
        uses, moved = self.uses[mark:], {}
        for k, (first, value, after) in enumerate(zip(carry, current, outputs)):
            name = ("carry", loop, k)
            if value.number == Number(name, 0) and after.number is not None and after.number.base == name:
                self.strides[name] = abs(after.number.offset)
                self.turns[name] = (self.known_integer(first), after.number.offset, length)
            if value.key is not None and value.key.root == name:
                moved[name] = after.key
                noise = any(use.is_noise and use.key.root == name for use in uses)
                self.uses.append(Use(first.key, self.fresh(), equation, self.branches, self.scope, noise, hands_over=True))
        for use in uses:
            if use.key.root in moved:
                after = moved[use.key.root]
                evolves = after is not None and after.root == use.key.root and after.parts
                moves = evolves and keys.unrelated(use.key, after, lambda base: self.strides.get(base, 0))
            else:
                moves = any(isinstance(part, Number) and self.moves(part.base, loop) for part in use.key.parts)
            if use.is_noise and not moves:
                self.find("key reuse", "a loop may draw the same noise in several turns: fold the number of the step "
                          "into the key, or split it", Trail(use.step))  # fmt: skip
            elif use.in_door and self.door is None and loop not in use.loops:
                self.find("key reuse", "a loop chooses the same rows in every turn: fold the number of the step into the "
                          "key", Trail(use.step))  # fmt: skip

    def moves(self, base, loop: int) -> bool:
        """Whether the turns of a loop give a number of this base different values."""
        if not isinstance(base, tuple) or not self.strides.get(base):
            return False
        if base[1] == loop:
            return True
        if base not in self.turns:
            return False
        first, inner, length = self.turns[base]
        outer = self.strides.get(first.base, 0)
        return length is not None and outer >= abs(inner) * length and self.moves(first.base, loop)

    def after_loop(self, loop: int, k: int, first: Value, value: Value, length: int | None) -> Value:
        """A loop's variable when the loop has ended."""
        name = ("carry", loop, k)
        number, key = value.number, value.key
        if number is not None and number.base == name:
            number = None
            if length is not None and name in self.turns:
                start, step, _ = self.turns[name]
                number = Number(start.base, start.offset + step * length)
        if key is not None and key.root == name:
            key = key._replace(root=("after", loop, k))
        ident = value.ident if value.ident == first.ident else self.number_of("after", loop, k)
        return value._replace(number=number, key=key, ident=ident, loops=value.loops - {loop})

    def slice_of(self, value: Value, loop: int) -> Value:
        """What a turn of a loop sees of an array that it runs over."""
        base = ("slice", loop, value.ident)
        number = key = None
        if value.number is not None and isinstance(value.number.base, tuple) and value.number.base[0] == "iota":
            number, self.strides[base] = Number(base, value.number.offset), 1
        if value.key is not None:
            if value.key.axes[0] >= 0:
                self.strides[base] = 1
            key = keys.pick(value.key, 0, Number(base, 0))
            key = key._replace(axes=key.axes[1:])
        form = self.door.slice_of(value.form) if self.door is not None else value.form
        form = Lost("a row by itself") if isinstance(form, Raw) else form
        ident = self.number_of("slice", loop, value.ident)
        return value._replace(form=form, number=number, key=key, ident=ident, loops=value.loops | {loop})

    def stack_of(self, value: Value, loop: int) -> Value:
        """The outputs of all turns, stacked."""
        form = self.door.stack_of(value.form) if self.door is not None else value.form
        form = Lost("private rows") if isinstance(form, Raw) else form
        return value._replace(form=form, number=None, key=None, ident=self.fresh(), loops=value.loops - {loop})

    def sharded(self, equation, inputs) -> list[Value]:
        """A program that runs on every device: keys that all devices are given must not make noise."""
        loop, mesh = self.fresh(), equation.params.get("mesh")
        size, names = getattr(mesh, "size", 2), getattr(mesh, "axis_names", ())
        if len(names) == 1:
            self.devices[names[0]], self.strides["axis", loop] = loop, 1
        specs = equation.params.get("in_specs", ((),) * len(inputs))
        inside = []
        for value, spec in zip(inputs, specs):
            split_axes = [axis for axis, names in enumerate(spec) if names is not None and names != ()]
            key = value.key
            for axis in split_axes if key is not None else ():
                if key.axes[axis] >= 0:
                    base = ("shard", loop, value.ident)
                    self.strides[base] = 1
                    key = keys.pick(key, axis, Number(base, 0))
            ident = self.number_of("shard", loop, value.ident) if split_axes else value.ident
            inside.append(value._replace(key=key, ident=ident, loops=value.loops | ({loop} if split_axes else set())))
        mark = len(self.uses)
        outputs = self.call(equation, inside)
        for use in self.uses[mark:] if size > 1 else ():
            if use.is_noise and not any(isinstance(part, Number) and self.moves(part.base, loop) for part in use.key.parts):
                self.find("key reuse", "every device draws the same noise: give each its own key", Trail(use.step))
        return [value._replace(loops=value.loops - {loop}) for value in outputs]

    # The door

    def through_door(self, equation, inputs) -> list[Value]:
        """An access: its program is checked inside, and what comes out is public."""
        loops = _CLEAN.union(*(value.loops for value in inputs))
        if self.door is not None:
            self.find("door", "a door inside a door", Trail(equation))
            return [Value(ident=self.fresh()) for _ in equation.outvars]
        door = self.inside()
        before, self.scope, self.door = self.scope, (*self.scope, self.fresh()), door
        self.entered[id(equation)] = door
        program = equation.params[self.doors[equation.primitive]]
        arguments = [door.enter(self, value, atom.aval) for value, atom in zip(inputs, equation.invars)]
        outputs = self.closed(program, arguments)
        door.leave(self, outputs)
        self.scope, self.door = before, None
        return [Value(ident=self.fresh(), loops=loops) for _ in equation.outvars]
