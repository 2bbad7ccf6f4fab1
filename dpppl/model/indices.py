"""Indices of rows that are out of range, and numbers of rows that no integer can be: such a row cannot be used.

JAX moves an index out of range to the last place, lets a negative one count from the end, and makes 0 of NaN: such a row would
count for another group. So the program of one row is followed once more: which of its numbers are made of such an index, as a
mask of the same shape. An entry that the model leaves out, by `jnp.where`, a mask or a weight of 0, does no harm.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import lax
from jax.extend.core import jaxpr_as_fun

from dpppl import jaxprs
from dpppl.jaxprs import CALLS, REARRANGEMENTS, abstract, bind, flattened, is_literal, open_jaxpr, programs
from dpppl.types import Atom, BySite, Equation, Function, Numbers, Traced, Tree

_NUMPYRO = os.path.join(os.path.dirname(numpyro.__file__), "")
_INLINED = {*CALLS, "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_COMPARES = {"lt", "le", "gt", "ge", "eq", "ne"}
_RANKS = {"argmin", "argmax", "sort", "top_k"}
_PLACES = ("gather", "dynamic_slice", "dynamic_update_slice", "clamp", "scatter")
_PRODUCTS = {"dot_general", "conv_general_dilated"}
_LINEAR = REARRANGEMENTS - {"convert_element_type"} | {"slice", "rev", "concatenate", "stack", "pad", "split", "cumsum"}


class IndexedTable(NamedTuple):
    """A table of the model that is indexed by a row.

    - **sites** - the latents that it is made of.
    - **lengths** - how many places it has along each axis that is indexed; empty for a cast of numbers to integers."""

    sites: frozenset[str]
    lengths: tuple[int, ...]


class _Seen(NamedTuple):
    """A value, None where latents enter it; whether the row does; the latents that do; which of its numbers an index out of range
    made, None where it cannot have; and which of them comparisons with NaN made: an integer of these is out of range, too."""

    value: Tree = None
    of_row: bool = False
    latents: frozenset[str] = frozenset()
    bad: Tree = None
    unsure: Tree = None


class _Place(NamedTuple):
    """Where an equation stands: the equations of its program by output, what branches are chosen by, and the equations around it,
    the outermost first. Found so far: tables outside of NumPyro's densities, and equations that gather at a row's index."""

    makers: dict[Atom, Equation]
    choices: set[Atom]
    inside: tuple[Equation, ...]
    tables: list[IndexedTable]
    gathers: list[Equation]

    def run(self, program: Traced, operands: Sequence[_Seen], *inside: Equation) -> list[_Seen]:
        """The outputs of a program in the equations `inside`, as far as they are known."""
        jaxpr = open_jaxpr(program)
        choosing = (e.invars[0] for e in jaxpr.eqns if e.primitive.name in ("cond", "select_n"))
        makers, choices = {v: e for e in jaxpr.eqns for v in e.outvars}, {v for v in choosing if not is_literal(v)}
        place = self._replace(makers=makers, choices=choices, inside=(*self.inside, *inside))
        known = lambda value, aval=None: _Seen(value)  # noqa: E731
        return jaxprs.walk(
            program, operands, lambda equation, given: _step(equation, given, place), known, jaxpr.outvars
        )


class Followed(NamedTuple):
    """A function of a row, and what is wrong with the row.

    - **value** - the function's value; NaN, its gradient included, for a row that is out of range.
    - **is_out** - whether an index of the row that is out of range, or an integer made of what is none, enters it; None where
      none can.
    - **tables** - what rows index outside of NumPyro's densities, whose supports say what these take."""

    value: jax.Array
    is_out: jax.Array | None
    tables: tuple[IndexedTable, ...]


def followed(function: Function, z: BySite, row: Tree, public: Tree) -> Followed:
    """`function(z, row, public)`, a scalar, and whether the row is out of range.

    >>> effect = lambda z, row, public: jnp.where(row["used"], z["u"][row["id"]], 0.0)
    >>> z, rows = {"u": jnp.zeros(3)}, ((2, True), (3, True), (3, False), (-1, True))
    >>> [bool(followed(effect, z, {"id": i, "used": used}, ()).is_out) for i, used in rows]
    [False, True, False, True]
    """
    program = jax.make_jaxpr(function)(z, row, public)
    leaves = jax.tree.leaves((z, row, public))
    names = [name for name in sorted(z) for _ in jax.tree.leaves(z[name])]
    count, of_row = len(names), len(jax.tree.leaves(row))
    seen = [_Seen(latents=frozenset({name})) for name in names]
    seen += [_Seen(leaf, k < of_row) for k, leaf in enumerate(leaves[count:])]
    place = _Place({}, set(), (), [], [])
    [output] = place.run(program, seen)
    tables = tuple(dict.fromkeys(place.tables))
    if output.bad is None:
        return Followed(jaxpr_as_fun(program)(*leaves)[0], None, tables)

    def inside(equation: Equation, operands: Sequence[Tree]) -> list[Tree] | None:
        """At the last place in place of none, so that the derivative is not dropped."""
        if any(equation is gather for gather in place.gathers):
            moved = {"mode": lax.GatherScatterMode.CLIP, "fill_value": None}
            return bind(equation.replace(params=equation.params | moved), operands)
        is_kept = equation.primitive.name in CALLS - {"jit", "pjit"}
        return bind(equation, operands) if is_kept else None

    value, is_out = jaxpr_as_fun(flattened(program, inside))(*leaves)[0], jnp.any(output.bad)
    return Followed(value * jnp.where(is_out, jnp.nan, jnp.ones((), value.dtype)), is_out, tables)


def _step(equation: Equation, operands: Sequence[_Seen], place: _Place) -> list[_Seen]:
    """The outputs of an equation, as far as they are known."""
    name, inner = equation.primitive.name, next(programs(equation), None)
    if not any(operand.of_row for operand in operands):
        return _outputs(equation, operands)
    index = _counted_from_the_end(equation, place)
    if index is not None and operands[index].of_row and operands[index].value is not None:
        return [operands[index]]
    if name in _INLINED and inner is not None:
        outputs = place.run(inner, operands, equation)
        if _searches(equation):  # the place of NaN in a sorted table, `jnp.searchsorted(table, number)`, is none
            number, is_of_row = operands[1].value, operands[1].of_row
            if is_of_row and number is not None and jnp.issubdtype(jnp.result_type(number), jnp.inexact):
                outputs = [output._replace(bad=_either(jnp.isnan(number), output.bad)) for output in outputs]
        return outputs
    marks = [operand.bad for operand in operands], [operand.unsure for operand in operands]
    if _compares(equation):
        unsure = _either(*(jnp.isnan(x.value) for x in operands if x.of_row and x.value is not None), *marks[1])
        return [x._replace(unsure=unsure) for x in _outputs(equation, operands, _passed(equation, operands, marks[0]))]
    within = (each for program in programs(equation) for each in jaxprs.equations(program))
    is_marked = any(mark is not None for mark in (*marks[0], *marks[1]))
    if not is_marked and not any(_may_be_out(each) or _compares(each) for each in (equation, *within)):
        return _outputs(equation, operands)
    if name == "scan":
        return _scan(equation, operands, place)
    if name == "cond":
        return _cond(equation, operands, place)
    found = _out_of_range(equation, operands, place), _passed(equation, operands, marks[0])
    masks, unsure = [mask for mask in found if mask is not None], _passed(equation, operands, marks[1])
    return _outputs(equation, operands, [_either(*each) for each in zip(*masks)], unsure)


def _outputs(
    equation: Equation, operands: Sequence[_Seen], bad: Sequence[Tree] | None = None, unsure: Sequence[Tree] | None = None
) -> list[_Seen]:  # fmt: skip
    """The outputs of an equation, computed where no latent enters. An integer that is unsure is bad."""
    values, none = [operand.value for operand in operands], [None] * len(equation.outvars)
    known = none if any(value is None for value in values) else bind(equation, values)
    of_row, latents = any(x.of_row for x in operands), frozenset().union(*(x.latents for x in operands))
    found = []
    for value, b, s, variable in zip(known, bad or none, unsure or none, equation.outvars):
        b, s = (_either(b, s), None) if jnp.issubdtype(variable.aval.dtype, jnp.integer) else (b, s)
        found.append(_Seen(value, of_row, latents, b, s))
    return found


def _either(*masks: Tree) -> Tree:
    found = [mask for mask in masks if mask is not None]
    return sum(found[1:], start=found[0]) if found else None


def _mask(bad: Tree, shape: tuple[int, ...]) -> jax.Array:
    return jnp.zeros(shape, bool) if bad is None else jnp.broadcast_to(bad, shape)


# Where a number goes wrong


def _counted_from_the_end(equation: Equation, place: _Place) -> int | None:
    """The operand i of `select(i < 0, i + n, i)`, as JAX writes for each index: from a row, i < 0 is out of range.

    Where users write it by `jnp.where` themselves they mean it."""
    if equation.primitive.name == "select_n" and len(equation.invars) == 3:
        which, index, moved = equation.invars
    elif place.inside and place.inside[-1].params.get("name") == "_take" and equation.params.get("name") == "_where":
        which, moved, index = equation.invars
    else:
        return None
    below, added = (place.makers.get(v) if not is_literal(v) else None for v in (which, moved))
    if below is None or added is None or below.primitive.name != "lt" or added.primitive.name != "add":
        return None

    def unconverted(v: Atom) -> Atom:
        maker = None if is_literal(v) else place.makers.get(v)
        return v if maker is None or maker.primitive.name != "convert_element_type" else unconverted(maker.invars[0])

    is_zero = is_literal(below.invars[1]) and not np.any(below.invars[1].val)
    is_same = unconverted(index) is unconverted(below.invars[0]) is unconverted(added.invars[0])
    return equation.invars.index(index) if is_zero and is_same else None


def _searches(equation: Equation) -> bool:
    return equation.params.get("name") == "searchsorted"


def _may_be_out(equation: Equation) -> bool:
    return equation.primitive.name.startswith(_PLACES) or _casts(equation)


def _compares(equation: Equation) -> bool:
    """Whether an equation compares numbers of which one may be NaN: a number with itself asks whether it is."""
    first, *others = equation.invars
    is_compared = equation.primitive.name in _COMPARES and jnp.issubdtype(first.aval.dtype, jnp.inexact)
    return is_compared and first is not others[0]


def _casts(equation: Equation) -> bool:
    """Whether an equation makes integers of numbers that no integer of this type need be."""
    if equation.primitive.name in _RANKS:
        places = any(jnp.issubdtype(v.aval.dtype, jnp.integer) for v in equation.outvars)
        return places and jnp.issubdtype(equation.invars[0].aval.dtype, jnp.inexact)
    if equation.primitive.name != "convert_element_type":
        return False
    given, made = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    if jnp.issubdtype(given, jnp.inexact):
        return made == jnp.bool or jnp.issubdtype(made, jnp.integer)
    integers = jnp.issubdtype(given, jnp.integer) and jnp.issubdtype(made, jnp.integer)
    return integers and jnp.iinfo(made).bits < jnp.iinfo(given).bits


def _out_of_range(equation: Equation, operands: Sequence[_Seen], place: _Place) -> list[Tree] | None:
    """Which outputs an index of the row that is out of range makes; None where there is none."""
    name, parameters, shape = equation.primitive.name, equation.params, equation.outvars[0].aval.shape
    if _casts(equation) and operands[0].value is not None:
        _note(equation, frozenset(), place, ())
        if name in _RANKS:  # the places of NaN among others, and theirs, mean nothing
            axis = next(parameters[key] for key in ("axes", "axis", "dimension") if key in parameters)
            has_nan = jnp.any(jnp.isnan(operands[0].value), axis=axis, keepdims=not name.startswith("arg"))
            places = [jnp.issubdtype(v.aval.dtype, jnp.integer) for v in equation.outvars]
            return [jnp.broadcast_to(has_nan, v.aval.shape) if p else None for v, p in zip(equation.outvars, places)]
        return [_not_an_integer(jnp.asarray(operands[0].value), equation.outvars[0].aval.dtype)]
    if name == "clamp" and equation.outvars[0] in place.choices and operands[1].value is not None:
        low, index, high = (operand.value for operand in operands)
        if is_literal(equation.invars[2]):
            _note(equation, frozenset(), place, [int(high)])
        return [(index < low) | (index > high)]
    if name in ("dynamic_slice", "dynamic_update_slice"):
        first = 1 if name == "dynamic_slice" else 2
        sizes = parameters["slice_sizes"] if first == 1 else equation.invars[1].aval.shape
        starts, table = operands[first:], equation.invars[0].aval.shape
        lengths = [size - window for size, window in zip(table, sizes)]
        known = [(s, n) for s, n in zip(starts, lengths) if s.of_row and s.value is not None]
        found = [_either(_outside(s.value, n), s.bad) for s, n in known]
        if not found:
            return None
        _note(equation, operands[0].latents, place, [n for n, s in zip(lengths, starts) if s.of_row])
        return [jnp.broadcast_to(jnp.any(jnp.stack(found)), shape)]
    if name != "gather" and not name.startswith("scatter"):
        return None
    index = operands[1]
    if not index.of_row or index.value is None:
        return None
    numbers, table = parameters["dimension_numbers"], equation.invars[0].aval.shape
    if name == "gather":
        if not _is_filled(equation):
            place.gathers.append(equation)
        axes, window, batched = numbers.start_index_map, parameters["slice_sizes"], numbers.offset_dims
    else:
        axes, batched = numbers.scatter_dims_to_operand_dims, numbers.update_window_dims
        gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        sizes = iter([equation.invars[2].aval.shape[k] for k in batched])
        window = [1 if k in gone else next(sizes) for k in range(len(table))]
    lengths = [table[k] - window[k] for k in axes]
    _note(equation, operands[0].latents, place, lengths)
    below, above = _outside(index.value, 0, True), _outside(index.value, np.asarray(lengths))
    out = _either(below if name == "gather" and _is_filled(equation) else above, index.bad).any(-1)
    if name == "gather":
        return [lax.broadcast_in_dim(out, shape, [k for k in range(len(shape)) if k not in batched])]
    added = equation.invars[2].aval.shape
    out = lax.broadcast_in_dim(out, added, [k for k in range(len(added)) if k not in batched])
    if operands[2].value is not None:
        out &= operands[2].value != 0
    return [jnp.broadcast_to(jnp.any(out), shape)]


def _outside(index: Numbers, last: Tree, only_below: bool = False) -> jax.Array:
    index = jnp.asarray(index).astype(jnp.promote_types(jnp.result_type(index), jnp.int32))
    return index < 0 if only_below else (index < 0) | (index > last)


def _is_filled(equation: Equation) -> bool:
    """Whether users gave a number for places out of range: `x.at[i].get(mode="fill", fill_value=0)`."""
    fill, dtype = equation.params["fill_value"], equation.outvars[0].aval.dtype
    if fill is None or equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP or np.isnan(fill):
        return False
    if not jnp.issubdtype(dtype, jnp.integer):
        return True
    return fill != (jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.iinfo(dtype).max)


def _not_an_integer(x: jax.Array, dtype: np.dtype) -> jax.Array:
    if dtype == jnp.bool:
        return jnp.isnan(x)
    low, high = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    if jnp.issubdtype(x.dtype, jnp.integer):
        return (x < max(low, jnp.iinfo(x.dtype).min)) | (x > min(high, jnp.iinfo(x.dtype).max))
    whole = jnp.trunc(x)
    return ~((whole >= float(low)) & (whole < float(high) + 1.0))


def _note(equation: Equation, sites: frozenset[str], place: _Place, lengths: Sequence[int]) -> None:
    first = next(iter(place.inside), equation)  # JAX traces the inside of a call once for all callers
    outermost = jaxprs.source_of(first)
    if not outermost.startswith(_NUMPYRO) and not any(map(_searches, place.inside)):
        place.tables.append(IndexedTable(sites, tuple(int(n) + 1 for n in lengths)))


# How it goes on


def _passed(equation: Equation, operands: Sequence[_Seen], bad: Sequence[Tree]) -> Sequence[Tree] | None:
    """Which outputs are made of operands that are bad."""
    name = equation.primitive.name
    shapes, values = [v.aval.shape for v in equation.outvars], [operand.value for operand in operands]
    if all(b is None for b in bad):
        return None
    dtypes = [v.aval.dtype for v in equation.invars]
    marks: list[Tree] = [None if b is None else jnp.broadcast_to(b, v.aval.shape) for b, v in zip(bad, equation.invars)]

    def of(given: Sequence[jax.Array]) -> list[jax.Array]:
        return [output > 0 for output in bind(equation, given)]

    def filled(k: int, mark: Tree) -> jax.Array:
        return jnp.zeros(equation.invars[k].aval.shape, dtypes[k]) if mark is None else mark.astype(dtypes[k])

    if name == "select_n" and values[0] is not None:
        return [_either(lax.select_n(values[0], *(_mask(mark, shapes[0]) for mark in marks[1:])), bad[0])]
    if name in ("mul", "and", "or") and (name != "or" or dtypes[0] == jnp.bool):
        counts = [True if value is None else value != (name == "or") for value in values]
        both = [None if mark is None else mark & other for mark, other in zip(marks, reversed(counts))]
        both += [marks[0] & marks[1]] if all(mark is not None for mark in marks) else []
        return [jnp.broadcast_to(_either(*both), shapes[0])]
    if name in _PRODUCTS:
        counts = [jnp.ones(v.aval.shape, bool) if x is None else x != 0 for v, x in zip(equation.invars, values)]
        counts = [_either(c, mark) for c, mark in zip(counts, marks)]
        pairs = [(marks[0], counts[1]), (counts[0], marks[1])]
        some = [of([filled(0, a), filled(1, b)]) for a, b in pairs if a is not None and b is not None]
        return [_either(*each) for each in zip(*some)]
    if name in _LINEAR:
        return of([filled(k, mark) for k, mark in enumerate(marks)])
    if name in ("gather", "dynamic_slice") and all(value is not None for value in values[1:]):
        return of([filled(0, marks[0]), *values[1:]])
    if "axes" in equation.params and len(bad) == 1:
        axes, value = equation.params["axes"], values[0]
        if dtypes[0] == jnp.bool and value is not None:  # one that is sure decides, for argmax and argmin the first
            sure = (value if name in ("reduce_or", "argmax") else ~value) & ~marks[0]
            decided = jnp.cumsum(sure, axes[0]) if name.startswith("arg") else jnp.any(sure, axes, keepdims=True)
            marks[0] &= ~decided.astype(bool)
        return [jnp.any(marks[0], axis=axes)]
    if _is_elementwise(equation):
        return [jnp.broadcast_to(_either(*bad), shape) for shape in shapes]
    some = _either(*(jnp.any(b) for b in bad if b is not None))
    return [jnp.broadcast_to(some, shape) for shape in shapes]


def _is_elementwise(equation: Equation) -> bool:
    """Whether an equation computes each number from those in the same place: if it is one of single numbers, too."""
    if len({v.aval.shape for v in (*equation.invars, *equation.outvars)} - {()}) > 1:
        return False
    scalars = [abstract((), v.aval.dtype) for v in equation.invars]
    try:
        jax.eval_shape(lambda *given: equation.primitive.bind(*given, **equation.params), *scalars)
    except Exception:  # its parameters name axes
        return False
    return True


def _cond(equation: Equation, operands: Sequence[_Seen], place: _Place) -> list[_Seen]:
    """All branches are followed; where the choice is known, its own counts."""
    choice, *rest = operands
    ways = [place.run(branch, rest, equation) for branch in equation.params["branches"]]
    outputs = _outputs(equation, operands)
    for number, output in enumerate(outputs):
        shape = equation.outvars[number].aval.shape

        def chosen(marks: Sequence[Tree], shape: tuple[int, ...] = shape) -> Tree:
            if choice.value is None or all(mark is None for mark in marks):
                return _either(*marks)
            return jnp.stack([_mask(mark, shape) for mark in marks])[jnp.clip(choice.value, 0, len(marks) - 1)]

        bad = _either(chosen([way[number].bad for way in ways]), None if choice.bad is None else jnp.any(choice.bad))
        unsure = chosen([way[number].unsure for way in ways])
        outputs[number] = output._replace(bad=None if bad is None else jnp.broadcast_to(bad, shape), unsure=unsure)
    return outputs


def _scan(equation: Equation, operands: Sequence[_Seen], place: _Place) -> list[_Seen]:
    """The same loop, over what is known and over masks."""
    inner, (first, num_carry) = equation.params["jaxpr"], jaxprs.scan_parts(equation)
    latents = frozenset().union(*(operand.latents for operand in operands))
    is_unsure = any(x.unsure is not None for x in operands) or any(map(_compares, jaxprs.equations(inner)))

    def marked(seen: _Seen, v: Atom) -> tuple[Tree, Tree, Tree]:
        return seen.value, _mask(seen.bad, v.aval.shape), _mask(seen.unsure, v.aval.shape) if is_unsure else None

    given = [marked(*each) for each in zip(operands, equation.invars)]
    start, slices = tuple(given[first : first + num_carry]), tuple(given[first + num_carry :])

    def body(carry: Tree, each: Tree) -> tuple[Tree, Tree]:
        parts = [_Seen(value, True, latents, *masks) for value, *masks in (*carry, *each)]
        outputs = place.run(inner, [*operands[:first], *parts], equation)
        pairs = [marked(*each) for each in zip(outputs, open_jaxpr(inner).outvars)]
        return tuple(pairs[:num_carry]), tuple(pairs[num_carry:])

    element = jax.tree.map(lambda x: x[0], slices)
    while True:  # what latents enter in one iteration they enter in all later ones
        after = jax.eval_shape(body, start, element)[0]
        kept = tuple((None if b[0] is None else a[0], *a[1:]) for a, b in zip(start, after))
        if all(a[0] is b[0] for a, b in zip(kept, start)):
            break
        start = kept
    options = {name: equation.params[name] for name in ("length", "reverse")}
    carried, stacked = lax.scan(body, start, slices, **options)
    return [_Seen(value, True, latents, *masks) for value, *masks in (*carried, *stacked)]
