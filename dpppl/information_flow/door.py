"""Inside the door: rows stay apart until each is clipped, their sum meets nothing but the noise, and only that leaves."""

from dataclasses import replace

import numpy as np

from dpppl.information_flow.control import under
from dpppl.information_flow.equation import Misplaced
from dpppl.information_flow.facts import has_kind
from dpppl.information_flow.placement import is_elementwise, place
from dpppl.information_flow.primitives import SAMPLERS, crosses_devices, group, named
from dpppl.information_flow.stages import is_bounded, stage_of
from dpppl.information_flow.values import (
    Axis,
    Box,
    Draw,
    Form,
    Lost,
    Noised,
    Raw,
    Rows,
    Sum,
    Trail,
    Value,
    depends_on_rows,
    join,
)

_ADDS = group("add", "sub", "add_any", "add_jaxvals")
_LINEAR = _ADDS | group(
    *"convert_element_type copy reshape broadcast_in_dim squeeze slice transpose concatenate pad neg reduce_sum split "
    "dynamic_slice dynamic_update_slice name device_put sharding_constraint stack unstack".split()
)


class Inside:
    """The rules for one access. A Walk asks them for the forms of every equation in the door's program.

    `noise`: random numbers that were added to a sum; `mixed`: numbers of draws that met rows; `which`: the rows that
    entered, alike for every private array."""

    def __init__(self):
        self.noise: list[tuple[Box, Trail | None]] = []
        self.mixed: list[int] = []
        self.which: tuple = ()

    def mark(self) -> tuple[int, int]:
        """Where the records stand."""
        return len(self.noise), len(self.mixed)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Forget what was recorded since."""
        del self.noise[mark[0] :], self.mixed[mark[1] :]

    def enter(self, walk, value: Value, aval) -> Value:
        """An operand of the door, as its program sees it."""
        if value.form is None:
            return value
        if not isinstance(value.form, Raw) or not aval.shape:
            walk.find("door", "the door is given what was computed from private rows: one row could move every gradient",
                      value.trail)  # fmt: skip
            return value._replace(form=None)
        which = ("rows", aval.shape[0], value.form.window)
        self.which = self.which or which
        if self.which != which:
            walk.find("door", "the door is given different parts of the private rows: one row would stand in two places",
                      value.trail)  # fmt: skip
        rows = Rows((Axis(0, 1, aval.shape[0]),), which, "raw", ident=value.ident)
        return value._replace(form=rows)

    def leave(self, walk, outputs: list[Value]) -> None:
        """Check what comes out of the door."""
        for k, value in enumerate(outputs):
            where, form = f"output {k} of the door", value.form
            if value.secret:
                walk.find("key", f"{where} holds key material", value.trail)
            if isinstance(form, Draw):
                self._use_up(walk, form, value.trail)
            elif isinstance(form, Sum):
                walk.find("noise", f"{where} is a sum of rows without noise", value.trail)
            elif depends_on_rows(form):
                why = form.why if isinstance(form, Lost) else "rows leave it one by one"
                walk.find("door", f"{where} is no noised sum of clipped rows: {why}", value.trail)
        for box, trail in self.noise:
            if box.draw in self.mixed:
                walk.find("noise", "the same random numbers choose rows and make the noise", trail)

    def _use_up(self, walk, draw: Draw, trail: Trail | None) -> None:
        """Use random numbers as noise."""
        if not draw.own:
            walk.find("noise", "elements of the sum may share their noise", trail)
        if any(box.meets(other) for box in draw.boxes for other, _ in self.noise):
            walk.find("noise", "the same noise is added twice", trail)
        self.noise += [(box, trail) for box in draw.boxes]
        drawn = {box.draw for box in draw.boxes}
        for use in walk.uses:
            use.is_noise |= use.draw in drawn

    def drawn(self, equation, source: Value, ident: int) -> Draw:
        """What random bits from a secret key are."""
        shape = equation.outvars[0].aval.shape
        box = Box(ident, tuple((0, length) for length in shape), tuple(range(len(shape))))
        followed = source.key is not None and not source.key.is_repeated
        return Draw((box,), own=followed and equation.primitive in SAMPLERS)

    # Equations

    def forms(self, walk, equation, inputs: list[Value], idents) -> list[Form]:
        """How the outputs of an equation depend on rows, if an input does or is random."""
        kinds, count = {type(value.form) for value in inputs}, len(idents)
        lost = next((value.form for value in inputs if isinstance(value.form, Lost)), None)
        if lost is not None:
            return [lost] * count
        if crosses_devices(equation) and (Rows in kinds or Sum in kinds):
            return [Lost(f"devices exchange rows in {equation.primitive.name}")] * count
        if Sum in kinds:
            return [self._of_sum(walk, equation, inputs, kinds)] * count
        if Rows in kinds:
            return self._of_rows(equation, inputs, idents)
        if Noised in kinds:
            return [Lost("the noised sum meets random numbers again") if Draw in kinds else Noised()] * count
        return _of_draws(equation, inputs)

    def _of_sum(self, walk, equation, inputs: list[Value], kinds) -> Form:
        name = equation.primitive.name
        if Rows in kinds or Noised in kinds:
            return Lost("a sum without noise meets rows, or a sum that has its noise already")
        if Draw in kinds:
            if equation.primitive not in _ADDS:
                return Lost(f"the sum meets random numbers in {name}, not in an addition")
            k, draw = next((k, v.form) for k, v in enumerate(inputs) if isinstance(v.form, Draw))
            whole = np.shape(equation.invars[k].aval) == np.shape(equation.outvars[0].aval)
            noise = draw if whole else replace(draw, own=False)
            self._use_up(walk, noise, Trail(equation, next(v.trail for v in inputs if isinstance(v.form, Sum))))
            return Noised()
        sums = [isinstance(value.form, Sum) for value in inputs]
        where = {named("dynamic_slice"): 1, named("dynamic_update_slice"): 2}.get(equation.primitive, len(sums))
        old, new = equation.invars[0].aval, equation.outvars[0].aval
        if any(sums[where:]) or (old.dtype != new.dtype and not has_kind(new, np.floating)):
            return Lost(f"the sum of rows decides or is rounded in {name} before it has its noise")
        scaled = equation.primitive is named("mul") and sum(sums) == 1
        if equation.primitive in _LINEAR or scaled or (equation.primitive is named("div") and sums == [True, False]):
            return Sum()
        return Lost(f"the sum of rows goes through {name} before it has its noise")

    def _of_rows(self, equation, inputs: list[Value], idents) -> list[Form]:
        self.mixed += [box.draw for value in inputs if isinstance(value.form, Draw) for box in value.form.boxes]
        try:
            placed = place(equation, inputs)
        except Misplaced as problem:
            if not problem.in_sum:
                return [Lost(str(problem))] * len(idents)
            if all(is_bounded(value) for value in inputs):
                return [Sum()] * len(idents)
            return [Lost("rows are added up before each one is clipped")] * len(idents)
        stage = stage_of(equation, inputs)
        return [
            Rows(axes, which, stage.name, stage.of, ident if stage.ident is None else stage.ident, stage.along)
            for ident, (axes, which) in zip(idents, placed)
        ]

    # Loops

    def under_loop(self, predicate: Value, outputs: list[Value]) -> list[Value]:
        """The variables of a while loop. Where the condition is one for each row, JAX runs each row's own loop."""
        form, after = predicate.form, []
        for value in outputs:
            if isinstance(form, Rows) and isinstance(value.form, Rows | None):
                joined = join(value.form, form.as_plain())
                after.append(
                    value._replace(form=joined, number=None, bounds=None, trail=value.trail or predicate.trail)
                )
            else:
                after.append(under(predicate, value))
        return after

    @staticmethod
    def slice_of(form: Form) -> Form:
        """What a turn of a loop sees of an array over whose first axis it runs."""
        if isinstance(form, Rows):
            if any(axis.axis == 0 for axis in form.axes):
                return Lost("a loop runs over the rows")
            return replace(form.as_plain(), axes=tuple(axis._replace(axis=axis.axis - 1) for axis in form.axes))
        return replace(form, own=False) if isinstance(form, Draw) else form

    @staticmethod
    def stack_of(form: Form) -> Form:
        """The outputs of all turns along a new first axis."""
        if isinstance(form, Rows):
            return replace(form.as_plain(), axes=tuple(axis._replace(axis=axis.axis + 1) for axis in form.axes))
        return replace(form, own=False) if isinstance(form, Draw) else form


def _of_draws(equation, inputs: list[Value]) -> list[Form]:
    """Functions of random numbers; element by element or part by part, they keep apart what was apart."""
    shapes = [np.shape(atom.aval) for atom in equation.outvars]
    if equation.primitive is named("mul") and any(value.bounds == (0.0, 0.0) for value in inputs):
        return [None]
    draws = [
        (value.form, np.shape(atom.aval)) for value, atom in zip(inputs, equation.invars) if value.form is not None
    ]
    if len(draws) == 1:
        moved = _moved(equation, draws[0][0], shapes)
        if moved is not None:
            return moved
    boxes = [box for draw, _ in draws for box in draw.boxes]
    apart = not any(a.meets(b) for k, a in enumerate(boxes) for b in boxes[:k])  # else they may cancel
    aligned = is_elementwise(equation.primitive) and all(draw.own and shape == shapes[0] for draw, shape in draws)
    return [Draw(tuple(dict.fromkeys(boxes)), own=aligned and apart)] * len(shapes)


def _moved(equation, draw: Draw, shapes) -> list[Form] | None:
    """Parts and rearrangements of one array of random numbers."""
    primitive, parameters = equation.primitive, equation.params
    shape = np.shape(equation.invars[0].aval)
    if primitive is named("slice"):
        return [_part(draw, parameters["start_indices"], parameters["limit_indices"])]
    if primitive is named("split"):
        axis, stops = parameters["axis"], np.cumsum(parameters["sizes"])
        starts = stops - np.asarray(parameters["sizes"])
        ends = [([0] * len(shape), list(shape)) for _ in stops]
        for (low, high), start, stop in zip(ends, starts, stops):
            low[axis], high[axis] = int(start), int(stop)
        return [_part(draw, low, high) for low, high in ends]
    if primitive in group("squeeze", "reshape", "transpose", "broadcast_in_dim"):
        if np.prod(shapes[0]) > np.prod(shape):
            return [replace(draw, own=False)]
        to = _axes_after(equation, shape, shapes[0])
        return [replace(draw, boxes=tuple(b._replace(axes=tuple(to.get(a) for a in b.axes)) for b in draw.boxes))]
    return None


def _axes_after(equation, shape, new_shape) -> dict:
    """Where each axis goes; not there: it has length 1, or is broken up."""
    if equation.primitive is named("transpose"):
        return {old: new for new, old in enumerate(equation.params["permutation"])}
    if equation.primitive is named("broadcast_in_dim"):
        return dict(enumerate(equation.params["broadcast_dimensions"]))
    old, new = ([axis for axis, length in enumerate(s) if length != 1] for s in (shape, new_shape))
    reordered = equation.primitive is named("reshape") and equation.params["dimensions"] is not None
    return dict(zip(old, new)) if not reordered and [shape[a] for a in old] == [new_shape[a] for a in new] else {}


def _part(draw: Draw, starts, stops) -> Draw:
    boxes = []
    for box in draw.boxes:
        spans = [
            (low, high) if axis is None else (low + starts[axis], low + stops[axis])
            for (low, high), axis in zip(box.spans, box.axes)
        ]
        boxes.append(box._replace(spans=tuple(spans)))
    return replace(draw, boxes=tuple(boxes))
