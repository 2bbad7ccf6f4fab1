"""Where the rows stand after slices, look-ups and updates. A part of the rows counts as another order of them."""

import math

from dpppl.information_flow.equation import Equation, Misplaced, Placed
from dpppl.information_flow.values import Axis, Draw


def static_slice(e: Equation) -> Placed:
    """`lax.slice`."""
    starts, stops, steps = (e.params[name] for name in ("start_indices", "limit_indices", "strides"))
    chosen = [(start, stop, 1 if steps is None else steps[k]) for k, (start, stop) in enumerate(zip(starts, stops))]
    whole = [(start, stop, step) == (0, n, 1) for (start, stop, step), n in zip(chosen, e.shapes[0])]
    return _chosen(e, whole, tuple(chosen))


def dynamic_slice(e: Equation) -> Placed:
    """`lax.dynamic_slice` at places that no row decides."""
    e.only_first()
    whole = [a == b for a, b in zip(e.shapes[0], e.new_shapes[0])]
    return _chosen(e, whole, tuple(value.ident for value in e.inputs[1:]))


def _chosen(e: Equation, whole, how) -> Placed:
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


def update(e: Equation) -> Placed:
    """`lax.dynamic_update_slice` at places that no row decides."""
    if any(form is not None for form in e.forms[2:]):
        raise Misplaced("a row decides where dynamic_update_slice writes")
    axes = e.same_axes()
    if any(e.shapes[0][a.axis] != e.shapes[1][a.axis] for a in axes):
        raise Misplaced("dynamic_update_slice writes rows over others")
    return e.everywhere(axes)


def pad(e: Equation) -> Placed:
    """`lax.pad`, along other axes."""
    e.only_first()
    return e.off(*(axis for axis, how in enumerate(e.params["padding_config"]) if tuple(how) != (0, 0, 0)))


def gather(e: Equation) -> Placed:
    """Look-ups: of rows' parts by public or each row's own numbers, of rows as they entered by random ones."""
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
            looped = numbers.start_indices_batching_dims
            parts = math.prod(e.new_shapes[0][axis] for k, axis in enumerate(batch) if k not in looped)
            if parts > 1 and (operand.stage != "raw" or not isinstance(e.inputs[1].form, Draw)):
                raise Misplaced("rows are looked up: only the subsampling may, before anything is computed from them")
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


def scatter(e: Equation) -> Placed:
    """Updates: of each row's part by public or the row's own numbers."""
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
