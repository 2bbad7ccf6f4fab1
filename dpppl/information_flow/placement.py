"""Where the rows stand in the outputs of an equation, given where they stand in its inputs.

Every rule answers for one kind of primitive; an equation in which rows meet, or without a rule, raises Misplaced.
"""

import math
from collections.abc import Callable

from dpppl.information_flow import indexing
from dpppl.information_flow.equation import Equation, Misplaced, Placed
from dpppl.information_flow.primitives import group, named
from dpppl.information_flow.values import Axis, Rows, Value

_ELEMENTWISE = group(
    *"abs acos acosh add add_any add_jaxvals and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type "
    "cbrt ceil clamp clz complex conj convert_element_type copy cos cosh device_put digamma div eq eq_to erf erf_inv erfc "
    "exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt "
    "lt_to max min mul mulhi name ne neg nextafter not or polygamma population_count pow real reduce_precision "
    "regularized_incomplete_beta rem round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta "
    "random_fold_in random_bits random_split random_gamma random_seed".split()
)
"""The last line's keep the axes of their keys and add new ones at the end."""


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
        raise Misplaced(f"{equation.primitive.name} is not known to keep rows apart")
    return rule(Equation(equation, inputs, forms))


def _reshape(e: Equation) -> Placed:
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


def _broadcast(e: Equation) -> Placed:
    where, axes = e.params["broadcast_dimensions"], e.first.axes
    if any(e.shapes[0][a.axis] != e.new_shapes[0][where[a.axis]] for a in axes):
        raise Misplaced("a row is copied")
    return e.everywhere(a._replace(axis=int(where[a.axis])) for a in axes)


def _squeeze(e: Equation) -> Placed:
    return _without(e, e.params["dimensions"])


def _transpose(e: Equation) -> Placed:
    to = list(e.params["permutation"])
    return e.everywhere(a._replace(axis=to.index(a.axis)) for a in e.first.axes)


def _without(e: Equation, dimensions) -> Placed:
    gone = sorted({int(d) % len(e.shapes[0]) for d in dimensions})
    axes = e.same_axes()
    if any(a.axis in gone for a in axes):
        raise Misplaced(f"rows meet in {e.name}", in_sum=e.name == "reduce_sum")
    return e.everywhere(a._replace(axis=a.axis - sum(d < a.axis for d in gone)) for a in axes)


def _dot(e: Equation) -> Placed:
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


def _conv(e: Equation) -> Placed:
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


def _triangular(e: Equation) -> Placed:
    """The right-hand sides are independent of each other: rows may stand along their axis, or along leading ones."""
    matrix, sides = e.forms
    free = len(e.shapes[1]) - (1 if e.params["left_side"] else 2)
    leading = len(e.shapes[1]) - 2
    if matrix is not None and any(a.axis >= leading for form in (matrix, sides or matrix) for a in form.axes):
        raise Misplaced("rows meet in triangular_solve")
    if sides is not None and any(leading <= a.axis != free for a in sides.axes):
        raise Misplaced("rows meet in triangular_solve")
    return e.everywhere(e.same_axes())


def _window(e: Equation) -> Placed:
    """Windows may reach over any axis but the rows'."""
    sizes, steps, padding = (e.params[name] for name in ("window_dimensions", "window_strides", "padding"))
    axes = e.same_axes()
    if any((sizes[a.axis], steps[a.axis], tuple(padding[a.axis])) != (1, 1, (0, 0)) for a in axes):
        raise Misplaced(f"rows meet in {e.name}")
    return e.everywhere(axes)


def _matrix(e: Equation) -> Placed:
    return _leading(e, len(e.shapes[0]) - 2)


def _leading(e: Equation, count: int) -> Placed:
    """Rows stand along the first `count` axes only, over which the operation is repeated."""
    axes = e.same_axes()
    if any(a.axis >= count for a in axes):
        raise Misplaced(f"rows meet in {e.name}")
    return e.everywhere(axes)


def _stack(e: Equation) -> Placed:
    return e.everywhere(a._replace(axis=a.axis + (a.axis >= e.params["axis"])) for a in e.same_axes())


def _tile(e: Equation) -> Placed:
    return e.off(*(axis for axis, times in enumerate(e.params["reps"]) if times != 1))


def _fft(e: Equation) -> Placed:
    rank = len(e.shapes[0])
    return e.off(*range(rank - len(e.params["fft_lengths"]), rank))


_Rule = Callable[[Equation], Placed]
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
        (indexing.static_slice, "slice"),
        (indexing.dynamic_slice, "dynamic_slice"),
        (indexing.update, "dynamic_update_slice"),
        (indexing.pad, "pad"),
        (indexing.gather, "gather"),
        (indexing.scatter, "scatter scatter_add scatter_mul scatter_min scatter_max scatter_sub"),
        (_triangular, "triangular_solve"),
        (_window, "reduce_window_max reduce_window_min reduce_window_sum reduce_window select_and_scatter_add"),
        (_window, "select_and_gather_add"),
        (_matrix, "cholesky cholesky_update eig eigh svd qr lu householder_product schur hessenberg ormqr"),
        (_matrix, "symmetric_product tridiagonal"),
        (lambda e: _leading(e, len(e.shapes[0]) - 1), "tridiagonal_solve lu_pivots_to_permutation"),
        (_stack, "stack"),
        (lambda e: _without(e, [e.params["axis"]]), "unstack"),
        (_tile, "tile"),
        (lambda e: _without(e, e.params["dimensions"]), "reduce"),
        (lambda e: e.off(e.params["reduction_dimension"]), "approx_top_k"),
        (_fft, "fft"),
        (lambda e: e.off(e.params["axis"]), "cumsum cumprod cummax cummin cumlogsumexp split"),
        (lambda e: e.off(e.params["dimension"]), "sort concatenate"),
        (lambda e: e.off(*e.params["dimensions"]), "rev"),
        (lambda e: e.off(e.params.get("axis", -1), e.params.get("operand_axis", -1)), "top_k"),
    )
    for name in names.split()
}
