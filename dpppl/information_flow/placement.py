"""Where the rows stand in the outputs of an equation, given where they stand in its inputs.

Every rule answers for one kind of primitive; an equation in which rows meet raises Misplaced. A primitive without a rule
is taken to keep rows apart, as `jax.vmap` promises, where its shapes allow one reading only; the proof's report names
it.
"""

import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

from dpppl.information_flow.primitives import group, named
from dpppl.information_flow.values import Axis, Rows, Value

_ELEMENTWISE = group(
    *"abs acos acosh add add_any add_jaxvals and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type "
    "cbrt ceil clamp clz complex conj convert_element_type copy cos cosh device_put digamma div eq erf erf_inv erfc exp "
    "exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max "
    "min mul mulhi name ne neg nextafter not or polygamma population_count pow real reduce_precision "
    "regularized_incomplete_beta rem round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta "
    "random_fold_in random_bits random_split random_gamma random_seed".split()
)
"""The last line's keep the axes of their keys and add new ones at the end."""


class Misplaced(Exception):
    """Rows meet. `in_sum`: and do so by being added up."""

    def __init__(self, message: str, in_sum: bool = False):
        super().__init__(message)
        self.in_sum = in_sum


class Placed(NamedTuple):
    """For each output, the rows' axes and their order. `trusted`: there was no rule."""

    outputs: list[tuple[tuple[Axis, ...], Hashable]]
    trusted: bool = False


def is_elementwise(primitive) -> bool:
    """Whether element k of the output is a function of elements k of the inputs."""
    return primitive in _ELEMENTWISE


def place(equation, inputs: list[Value]) -> Placed:
    """Where the rows stand in the outputs. At least one input has rows, the others have none."""
    forms = [value.form if isinstance(value.form, Rows) else None for value in inputs]
    rows = [form for form in forms if form is not None]
    if len({form.which for form in rows}) > 1:
        raise Misplaced(f"rows in different orders meet in {equation.primitive.name}")
    rule = _RULES.get(equation.primitive)
    if equation.primitive in _ELEMENTWISE:
        if len({form.axes for form in rows}) > 1:
            raise Misplaced(f"rows along different axes meet in {equation.primitive.name}")
        shapes = [variable.aval.shape for variable in equation.outvars]
        for atom, form in zip(equation.invars, forms):
            for axis in form.axes if form is not None else ():
                if any(shape[axis.axis] != atom.aval.shape[axis.axis] for shape in shapes):
                    raise Misplaced(f"a row is copied in {equation.primitive.name}")
        return Placed([(rows[0].axes, rows[0].which)] * len(shapes))
    if rule is None:
        return _by_shape(equation, rows)
    return rule(_Equation(equation, inputs, forms))


class _Equation:
    """An equation, with shapes and forms at hand."""

    def __init__(self, equation, inputs, forms):
        self.name, self.params = equation.primitive.name, equation.params
        self.inputs, self.forms = inputs, forms
        self.shapes = [tuple(atom.aval.shape) for atom in equation.invars]
        self.new_shapes = [tuple(atom.aval.shape) for atom in equation.outvars]

    @property
    def first(self) -> Rows:
        return next(form for form in self.forms if form is not None)

    def everywhere(self, axes) -> Placed:
        """All outputs have the rows along these axes, in the order of the first input that has any."""
        return Placed([(tuple(sorted(axes)), self.first.which)] * len(self.new_shapes))

    def same_axes(self) -> tuple[Axis, ...]:
        axes = {form.axes for form in self.forms if form is not None}
        if len(axes) > 1:
            raise Misplaced(f"rows along different axes meet in {self.name}")
        return axes.pop()

    def only_first(self, count: int = 1) -> None:
        """Refuse rows in inputs other than the first `count`, such as indices."""
        if any(form is not None for form in self.forms[count:]):
            raise Misplaced(f"a row decides where {self.name} looks")

    def off(self, *dimensions) -> Placed:
        """The rows stay where they are, if none stand along these axes."""
        axes = self.same_axes()
        rank = len(self.shapes[0])
        if {axis.axis for axis in axes} & {dimension % rank for dimension in dimensions}:
            raise Misplaced(f"rows meet in {self.name}")
        return self.everywhere(axes)


def _by_shape(equation, rows) -> Placed:
    outputs = []
    for variable in equation.outvars:
        shape, places = variable.aval.shape, {form.axes for form in rows}
        axes = places.pop() if len(places) == 1 else ()
        if not axes or any(a.inner != 1 or a.axis >= len(shape) or shape[a.axis] != a.rows for a in axes):
            found = [axis for axis, length in enumerate(shape) if length == rows[0].axes[0].rows]
            if len(found) != 1 or len(rows[0].axes) != 1:
                raise Misplaced(f"rows cannot be followed through {equation.primitive.name}")
            axes = (Axis(found[0], 1, rows[0].axes[0].rows),)
        outputs.append((axes, rows[0].which))
    return Placed(outputs, trusted=True)


def _reshape(e: _Equation) -> Placed:
    """Numbered through in order, a row's elements are those with (number // stride) % rows == row, in any shape."""
    order = list(e.params["dimensions"] or range(len(e.shapes[0])))  # a transposition comes first
    old, new = _strides([e.shapes[0][axis] for axis in order]), _strides(e.new_shapes[0])
    axes = []
    for axis in e.first.axes:
        stride = axis.inner * old[order.index(axis.axis)]
        for target, (unit, length) in enumerate(zip(new, e.new_shapes[0])):
            whole = unit * length
            if unit <= stride and stride * axis.rows <= whole and stride % unit == whole % (stride * axis.rows) == 0:
                axes.append(Axis(target, stride // unit, axis.rows))
                break
        else:
            raise Misplaced("a reshape breaks up the rows")
    return e.everywhere(axes)


def _strides(shape) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _broadcast(e: _Equation) -> Placed:
    where, axes = e.params["broadcast_dimensions"], e.first.axes
    if any(e.shapes[0][a.axis] != e.new_shapes[0][where[a.axis]] for a in axes):
        raise Misplaced("a row is copied")
    return e.everywhere(a._replace(axis=int(where[a.axis])) for a in axes)


def _squeeze(e: _Equation) -> Placed:
    return _without(e, e.params["dimensions"])


def _transpose(e: _Equation) -> Placed:
    to = list(e.params["permutation"])
    return e.everywhere(a._replace(axis=to.index(a.axis)) for a in e.first.axes)


def _without(e: _Equation, dimensions) -> Placed:
    gone = sorted({int(d) % len(e.shapes[0]) for d in dimensions})
    axes = e.same_axes()
    if any(a.axis in gone for a in axes):
        raise Misplaced(f"rows meet in {e.name}", in_sum=e.name == "reduce_sum")
    return e.everywhere(a._replace(axis=a.axis - sum(d < a.axis for d in gone)) for a in axes)


def _dot(e: _Equation) -> Placed:
    (contracted, batch) = e.params["dimension_numbers"]
    sides = []
    for form, shape, summed, paired in zip(e.forms, e.shapes, contracted, batch):
        free = [axis for axis in range(len(shape)) if axis not in summed and axis not in paired]
        sides.append((form, list(summed), list(paired), free))
    if any(form is not None and any(a.axis in summed for a in form.axes) for form, summed, _, _ in sides):
        raise Misplaced("rows meet in dot_general", in_sum=sum(form is not None for form in e.forms) == 1)
    axes, offset = set(), len(sides[0][2])
    for form, _, paired, free in sides:
        for a in form.axes if form is not None else ():
            target = paired.index(a.axis) if a.axis in paired else offset + free.index(a.axis)
            axes.add(a._replace(axis=target))
        offset += len(free)
    both = [form for form in e.forms if form is not None]
    if len(both) == 2 and any(a.axis >= len(sides[0][2]) for a in axes):
        raise Misplaced("each row meets every other in dot_general")
    return e.everywhere(axes)


def _conv(e: _Equation) -> Placed:
    """`jax.vmap` puts rows into a batch or feature axis, and groups the features (or batches) so that rows do not meet."""
    numbers = e.params["dimension_numbers"]
    groups = {numbers.lhs_spec[1]: e.params["feature_group_count"], numbers.lhs_spec[0]: e.params["batch_group_count"]}
    out_batch, out_feature = numbers.out_spec[:2]
    left, right = (set(form.axes) if form is not None else set() for form in e.forms)
    to_left, to_right = set(), set()
    for a in left:
        count = groups.get(a.axis, 0)
        if a.axis == numbers.lhs_spec[0] and count == 1:
            to_left.add(a._replace(axis=out_batch))
        elif count and a.inner % (e.shapes[0][a.axis] // count) == 0:
            runs = a.inner // (e.shapes[0][a.axis] // count)
            to_left.add(Axis(out_feature, runs * (e.new_shapes[0][out_feature] // count), a.rows))
        else:
            raise Misplaced("rows meet in a convolution", in_sum=not right)
    for a in right:
        if a.axis != numbers.rhs_spec[0]:
            raise Misplaced("rows meet in a convolution", in_sum=not left)
        to_right.add(a._replace(axis=out_feature))
    if to_left and to_right and to_left != to_right:
        raise Misplaced("rows along different axes meet in a convolution")
    return e.everywhere(to_left | to_right)


def _slice(e: _Equation) -> Placed:
    starts, stops, steps = (e.params[name] for name in ("start_indices", "limit_indices", "strides"))
    chosen = [(start, stop, 1 if steps is None else steps[k]) for k, (start, stop) in enumerate(zip(starts, stops))]
    whole = [(start, stop, step) == (0, n, 1) for (start, stop, step), n in zip(chosen, e.shapes[0])]
    return _chosen(e, whole, tuple(chosen))


def _dynamic_slice(e: _Equation) -> Placed:
    e.only_first()
    whole = [a == b for a, b in zip(e.shapes[0], e.new_shapes[0])]
    return _chosen(e, whole, tuple(value.ident for value in e.inputs[1:]))


def _chosen(e: _Equation, whole, how) -> Placed:
    """Part of an array: where it is a part of the rows, the order changes."""
    axes, which = [], e.first.which
    for a in e.first.axes:
        if not whole[a.axis]:
            if a.inner != 1 or a.rows != e.shapes[0][a.axis]:
                raise Misplaced("a slice cuts through rows")
            which = ("part", which, how[a.axis], e.new_shapes[0][a.axis])
            a = a._replace(rows=e.new_shapes[0][a.axis])
        axes.append(a)
    return Placed([(tuple(axes), which)])


def _update(e: _Equation) -> Placed:
    if any(form is not None for form in e.forms[2:]):
        raise Misplaced("a row decides where dynamic_update_slice writes")
    axes = e.same_axes()
    if any(e.shapes[0][a.axis] != e.shapes[1][a.axis] for a in axes):
        raise Misplaced("dynamic_update_slice writes rows over others")
    return e.everywhere(axes)


def _pad(e: _Equation) -> Placed:
    e.only_first()
    return e.off(*(axis for axis, how in enumerate(e.params["padding_config"]) if tuple(how) != (0, 0, 0)))


def _gather(e: _Equation) -> Placed:
    numbers, (operand, indices, *_) = e.params["dimension_numbers"], e.forms
    rank = len(e.new_shapes[0])
    batch = [axis for axis in range(rank) if axis not in numbers.offset_dims]
    inside = [
        axis
        for axis in range(len(e.shapes[0]))
        if axis not in numbers.collapsed_slice_dims and axis not in numbers.operand_batching_dims
    ]
    axes, which = set(), e.first.which
    for a in indices.axes if indices is not None else ():
        axes.add(Axis(batch[a.axis], a.inner, a.rows))
    for a in operand.axes if operand is not None else ():
        if a.inner != 1 or a.rows != e.shapes[0][a.axis]:
            raise Misplaced("a gather cuts through rows")
        if a.axis in numbers.operand_batching_dims:
            place = numbers.operand_batching_dims.index(a.axis)
            axes.add(Axis(batch[numbers.start_indices_batching_dims[place]], 1, a.rows))
        elif indices is not None:
            raise Misplaced("a row decides which rows are looked up")
        elif a.axis in numbers.collapsed_slice_dims or e.params["slice_sizes"][a.axis] != a.rows:
            size, place = e.params["slice_sizes"][a.axis], list(numbers.start_index_map).index(a.axis)
            axes |= {Axis(axis, 1, e.new_shapes[0][axis]) for axis in batch}
            if a.axis in inside:
                axes.add(Axis(numbers.offset_dims[inside.index(a.axis)], 1, size))
            which = ("part", which, (e.inputs[1].pieces or (e.inputs[1].ident,))[place], size)
        else:
            axes.add(Axis(numbers.offset_dims[inside.index(a.axis)], 1, a.rows))
    if indices is not None and operand is not None and len(axes) != len(indices.axes):
        raise Misplaced("rows along different axes meet in gather")
    return Placed([(tuple(sorted(axes)), which)])


def _scatter(e: _Equation) -> Placed:
    numbers, (operand, indices, updates) = e.params["dimension_numbers"], e.forms
    looped = list(numbers.operand_batching_dims)
    window = [a for a in range(len(e.shapes[0])) if a not in numbers.inserted_window_dims and a not in looped]
    scattered = [axis for axis in range(len(e.shapes[2])) if axis not in numbers.update_window_dims]

    def from_indices(a: Axis) -> Axis:
        if a.axis not in numbers.scatter_indices_batching_dims:
            raise Misplaced(f"rows meet in {e.name}", in_sum="add" in e.name)
        return a._replace(axis=looped[numbers.scatter_indices_batching_dims.index(a.axis)])

    places = []
    if operand is not None:
        places.append(operand.axes)
        moved = set(numbers.scatter_dims_to_operand_dims)
        if any(a.axis in moved or (a.axis not in looped and indices is not None) for a in operand.axes):
            raise Misplaced(f"{e.name} writes over rows")
    if indices is not None:
        places.append(tuple(from_indices(a) for a in indices.axes))
    if updates is not None:
        found = []
        for a in updates.axes:
            if a.axis in scattered:
                found.append(from_indices(a._replace(axis=scattered.index(a.axis))))
                continue
            target = window[list(numbers.update_window_dims).index(a.axis)]
            if target in numbers.scatter_dims_to_operand_dims or indices is not None:
                raise Misplaced(f"rows meet in {e.name}")
            found.append(a._replace(axis=target))
        places.append(tuple(found))
    if len({tuple(sorted(axes)) for axes in places}) > 1:
        raise Misplaced(f"rows along different axes meet in {e.name}")
    return e.everywhere(places[0])


def _matrix(e: _Equation) -> Placed:
    axes = e.same_axes()
    if any(a.axis >= len(shape) - 2 for form, shape in zip(e.forms, e.shapes) if form is not None for a in axes):
        raise Misplaced(f"rows meet in {e.name}")
    return e.everywhere(axes)


def _triangular(e: _Equation) -> Placed:
    """The right-hand sides are independent of each other: rows may stand along their axis, or along leading ones."""
    matrix, sides = e.forms
    free = len(e.shapes[1]) - (1 if e.params["left_side"] else 2)
    leading = len(e.shapes[1]) - 2
    if matrix is not None and any(a.axis >= leading for form in (matrix, sides or matrix) for a in form.axes):
        raise Misplaced("rows meet in triangular_solve")
    if sides is not None and any(leading <= a.axis != free for a in sides.axes):
        raise Misplaced("rows meet in triangular_solve")
    return e.everywhere(e.same_axes())


def _fft(e: _Equation) -> Placed:
    rank = len(e.shapes[0])
    return e.off(*range(rank - len(e.params["fft_lengths"]), rank))


_Rule = Callable[[_Equation], Placed]
_RULES: dict = {
    named(name): rule
    for rule, names in (
        (_reshape, "reshape"),
        (_broadcast, "broadcast_in_dim"),
        (_squeeze, "squeeze"),
        (_transpose, "transpose"),
        (lambda e: _without(e, e.params["axes"]), "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or"),
        (lambda e: _without(e, e.params["axes"]), "reduce_xor argmax argmin"),
        (_dot, "dot_general"),
        (_conv, "conv_general_dilated"),
        (_slice, "slice"),
        (_dynamic_slice, "dynamic_slice"),
        (_update, "dynamic_update_slice"),
        (_pad, "pad"),
        (_gather, "gather"),
        (_scatter, "scatter scatter_add scatter_mul scatter_min scatter_max scatter_sub"),
        (_triangular, "triangular_solve"),
        (_matrix, "cholesky eigh svd qr lu householder_product schur"),
        (_fft, "fft"),
        (lambda e: e.off(e.params["axis"]), "cumsum cumprod cummax cummin cumlogsumexp split"),
        (lambda e: e.off(e.params["dimension"]), "sort concatenate"),
        (lambda e: e.off(*e.params["dimensions"]), "rev"),
        (lambda e: e.off(e.params.get("axis", -1), e.params.get("operand_axis", -1)), "top_k"),
    )
    for name in names.split()
}
