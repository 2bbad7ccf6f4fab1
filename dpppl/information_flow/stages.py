"""How far an array is on its way from a row's gradient to a clipped row: see `values.Rows.stage`.

A row is clipped if it is multiplied by at most a constant over a norm that contains it, and replaced by a public value
where that norm is not finite. The constant is not checked.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpppl.information_flow.facts import has_kind
from dpppl.information_flow.primitives import group, named
from dpppl.information_flow.values import Rows, Value

_KEEPS = group("convert_element_type", "copy", "name", "stop_gradient", "device_put", "sharding_constraint")
_REARRANGES = group("reshape", "squeeze", "transpose", "broadcast_in_dim")
_STILL_BOUNDED = group(
    *"neg floor ceil round sign bitcast_convert_type clamp slice dynamic_slice abs reduce_sum split concatenate pad "
    "gather reduce_precision dynamic_update_slice add sub mul max min".split()
)
_BELOW, _OR_EQUAL = group("le", "lt"), group("le", "ge")


class Stage(NamedTuple):
    """`ident`: the number of the plain values if they are only rearranged, else None. `along`: see `values.Rows`."""

    name: str = "plain"
    of: frozenset = frozenset()
    ident: int | None = None
    along: tuple[frozenset, ...] = ()


_PLAIN = Stage()
_TINY = np.finfo(np.float64).tiny


def stage_of(equation, inputs: list[Value]) -> Stage:
    """The stage of an equation's outputs. At least one input has rows."""
    primitive = equation.primitive
    rows = [value for value in inputs if isinstance(value.form, Rows)]
    form = rows[0].form
    if primitive in _KEEPS or primitive in _REARRANGES:
        before, after = equation.invars[0].aval, equation.outvars[0].aval
        grows = np.size(before) < np.size(after) and form.stage in ("raw", "plain")
        rounded = before.dtype != after.dtype and not (_is_real(before) and _is_real(after))
        kept = form.stage == "bounded" if rounded else not grows
        return Stage(form.stage, form.of, _ident(rows[0]), _rearranged(equation, rows[0])) if kept else _PLAIN
    if primitive in _STILL_BOUNDED and all(is_bounded(value) for value in inputs):
        return Stage("bounded", form.of)
    rule = _RULES.get(primitive)
    found = rule(equation, *inputs) if rule is not None else None
    if found is None or found.name == "bounded" or found.along:
        return _PLAIN if found is None else found
    known = [_along(equation, v) for v in rows if found.name == "square" or not _is(v, "plain")]
    return found._replace(along=tuple(frozenset().union(*axis) for axis in zip(*known)))


# Which elements of a norm belong to which of a gradient


def _ident(value: Value) -> int:
    """The number of the plain value that a value is or rearranges."""
    return value.form.ident if value.form.ident != -1 else value.ident


def _along(equation, value: Value) -> tuple[frozenset, ...]:
    """`Rows.along` of an input that has the rank of the first one with rows."""
    rank = max(len(np.shape(atom.aval)) for atom in equation.invars)
    return value.form.along or tuple(frozenset({(_ident(value), axis)}) for axis in range(rank))


def _aligned(equation, factor: Value, value: Value, idents) -> bool:
    """Whether each element of `value` meets a factor or condition of a norm that contains it, of all these `idents`."""
    for length, *both in zip(np.shape(equation.outvars[0].aval), _along(equation, factor), _along(equation, value)):
        for ident in idents if length > 1 else ():
            there, here = ({axis for one, axis in pairs if one == ident} for pairs in both)
            if there and not (there & here) - {-1}:
                return False
    return True


def _rearranged(equation, value: Value) -> tuple[frozenset, ...]:
    """`Rows.along` after an equation that keeps the values."""
    along, primitive, parameters = _along(equation, value), equation.primitive, equation.params
    old, new = np.shape(equation.invars[0].aval), np.shape(equation.outvars[0].aval)
    if primitive in _KEEPS:
        return along
    if primitive is named("transpose"):
        return tuple(along[axis] for axis in parameters["permutation"])
    if primitive is named("broadcast_in_dim"):
        kept = {to: axis for axis, to in enumerate(parameters["broadcast_dimensions"]) if old[axis] == new[to]}
        return tuple(along[kept[axis]] if axis in kept else frozenset() for axis in range(len(new)))
    if primitive is named("squeeze"):
        gone = {axis % len(old) for axis in parameters["dimensions"]}
        return tuple(pairs for axis, pairs in enumerate(along) if axis not in gone)
    merged = frozenset((ident, -1) for pairs in along for ident, _ in pairs)
    in_order = parameters["dimensions"] is None
    places = {(np.prod(old[axis:]), old[axis]): pairs for axis, pairs in enumerate(along) if in_order}
    return tuple(
        frozenset() if length == 1 else places.get((np.prod(new[axis:]), length), merged)
        for axis, length in enumerate(new)
    )


def is_bounded(value: Value) -> bool:
    """Whether a sum over rows may take it: a bounded row, or no row."""
    return not isinstance(value.form, Rows) or value.form.stage == "bounded"


def _is_real(aval) -> bool:
    return has_kind(aval, np.floating)


def _is(value: Value, *stages: str) -> bool:
    if not isinstance(value.form, Rows):
        return False
    return value.form.stage in stages or (value.form.stage == "raw" and "plain" in stages)


def _is_public(value: Value, least: float = -np.inf) -> bool:
    """No row and no draw; and, if `least` is given, a constant with no element below it."""
    if value.form is not None:
        return False
    return least == -np.inf or (value.bounds is not None and value.bounds[0] >= least)


_NORMS, _FACTORS = ("norm", "lifted"), ("inverse", "capped")


def _contains(equation, norm: Value, value: Value) -> bool:
    """Whether each plain element meets the norm of a part that contains it."""
    return _ident(value) in norm.form.of and _aligned(equation, norm, value, (_ident(value),))


def _is_zero(value: Value) -> bool:
    return value.bounds == (0.0, 0.0)


def _mul(equation, a: Value, b: Value):
    if _is(a, "plain") and _is(b, "plain") and a.ident == b.ident and _is_real(equation.outvars[0].aval):
        return Stage("square", frozenset({_ident(a)}))
    for one, other in ((a, b), (b, a)):
        if _is(one, "plain") and _is(other, *_FACTORS) and _contains(equation, other, one):
            return Stage("clipped", other.form.of, along=other.form.along)
        scaled = ("inverse", "capped", "clipped") if _is_zero(other) else ("norm", "inverse", "capped", "clipped")
        if _is(one, *scaled) and _is_public(other):
            return Stage(one.form.stage, one.form.of)
        if _is(one, "square") and _is_public(other, least=1.0):
            return Stage("square", one.form.of)
    return None


def _power(equation, a: Value):
    if equation.params.get("y", 2) == 2 and _is(a, "plain") and _is_real(equation.outvars[0].aval):
        return Stage("square", frozenset({_ident(a)}))
    return None


def _root(equation, a: Value):
    return Stage("norm", a.form.of) if _is(a, "square") else None


def _inverse_root(equation, a: Value):
    return Stage("inverse", a.form.of) if _is(a, "square") else None


def _add(equation, a: Value, b: Value):
    if _is(a, "square") and _is(b, "square"):
        return Stage("square", a.form.of | b.form.of)
    for one, other in ((a, b), (b, a)):
        if _is(one, "square", *_NORMS) and _is_public(other, least=0.0):
            lifted = _is(one, *_NORMS) and _is_public(other, least=_TINY)
            return Stage("lifted" if lifted else one.form.stage, one.form.of)
    return None


def _max(equation, a: Value, b: Value):
    one, other = (a, b) if isinstance(a.form, Rows) else (b, a)
    if not (_is(one, "square", *_NORMS) and _is_public(other)):
        return None
    lifted = _is(one, *_NORMS) and _is_public(other, least=_TINY)
    return Stage("lifted" if lifted else one.form.stage, one.form.of)


def _min(equation, a: Value, b: Value):
    one, other = (a, b) if isinstance(a.form, Rows) else (b, a)
    return Stage("capped", one.form.of) if _is(one, *_FACTORS) and _is_public(other) else None


def _div(equation, a: Value, b: Value):
    if _is_public(a) and _is(b, *_NORMS):
        return Stage("capped" if _is(b, "lifted") else "inverse", b.form.of)
    if _is(a, "plain") and _is(b, *_NORMS) and _contains(equation, b, a):
        return Stage("clipped", b.form.of, along=b.form.along)
    if _is(a, "norm", "inverse", "capped", "clipped", "bounded") and _is_public(b):
        return Stage(a.form.stage, a.form.of)
    return None


def _compare(equation, a: Value, b: Value):
    small, large = (a, b) if equation.primitive in _BELOW else (b, a)
    infinite = equation.primitive in _OR_EQUAL and large.bounds is not None and large.bounds[1] == np.inf
    if _is(small, "square", *_NORMS) and _is_public(large) and not infinite:
        return Stage("short", small.form.of)
    return None


def _finite(equation, a: Value):
    return Stage("short", a.form.of) if _is(a, "square", *_NORMS) else None


def _and(equation, a: Value, b: Value):
    of = frozenset().union(*(value.form.of for value in (a, b) if _is(value, "short")))
    return Stage("short", of) if of else None


def _or(equation, a: Value, b: Value):
    of = frozenset().union(*(value.form.of for value in (a, b) if _is(value, "long")))
    return Stage("long", of) if of else None


def _not(equation, a: Value):
    opposite = {"short": "long", "long": "short"}.get(a.form.stage)
    return Stage(opposite, a.form.of) if opposite is not None else None


def _select(equation, condition: Value, *cases: Value):
    if all(_is_public(case) or _is(case, "bounded") for case in cases):
        return Stage("bounded")
    kept = {"short": 1, "long": 0}.get(condition.form.stage, None) if isinstance(condition.form, Rows) else None
    if len(cases) == 2 and kept is not None and _is_public(cases[1 - kept]) and _is(cases[kept], "clipped", "capped"):
        of = cases[kept].form.of
        if of <= condition.form.of and _aligned(equation, condition, cases[kept], of):
            return Stage("bounded", cases[kept].form.of)
    clipped = [case for case in cases if _is(case, "clipped")]
    if len(clipped) == 1 and all(_is_public(case) for case in cases if case is not clipped[0]):
        return Stage("clipped", clipped[0].form.of, along=clipped[0].form.along)
    return None


def _reduce_sum(equation, a: Value):
    if not _is(a, "square"):
        return None
    gone = equation.params["axes"]
    return Stage("square", a.form.of, along=tuple(p for axis, p in enumerate(a.form.along) if axis not in gone))


def _dot(equation, a: Value, b: Value):
    if all(is_bounded(value) for value in (a, b)) and not (_is(a, "bounded") and _is(b, "bounded")):
        return Stage("bounded")
    (summed, others_summed), (paired, others_paired) = equation.params["dimension_numbers"]
    shapes = [np.shape(atom.aval) for atom in equation.invars]
    free = [
        [axis for axis in range(len(shape)) if axis not in (*gone, *both)]
        for shape, gone, both in zip(shapes, (summed, others_summed), (paired, others_paired))
    ]
    nowhere: frozenset = frozenset()
    if _is(a, "square") and _is_public(b, least=1.0):
        return Stage(
            "square", a.form.of, along=(*(a.form.along[k] for k in (*paired, *free[0])), *(nowhere for _ in free[1]))
        )
    if _is(b, "square") and _is_public(a, least=1.0):
        along = [b.form.along[k] for k in (*others_paired, *free[1])]
        return Stage(
            "square", b.form.of, along=(*along[: len(paired)], *(nowhere for _ in free[0]), *along[len(paired) :])
        )
    same = (tuple(summed), tuple(paired)) == (tuple(others_summed), tuple(others_paired))
    if (
        _is(a, "plain")
        and _is(b, "plain")
        and a.ident == b.ident
        and same
        and not free[0]
        and _is_real(equation.invars[0].aval)
    ):
        own = _along(equation, a)
        return Stage("square", frozenset({_ident(a)}), along=tuple(own[axis] for axis in paired))
    return None


_NAMED: dict[str, Callable] = {
    "mul": _mul, "square": _power, "integer_pow": _power, "sqrt": _root, "rsqrt": _inverse_root, "add": _add,
    "max": _max, "min": _min, "div": _div, "le": _compare, "lt": _compare, "ge": _compare, "gt": _compare,
    "is_finite": _finite, "and": _and, "or": _or, "not": _not, "select_n": _select, "reduce_sum": _reduce_sum,
    "dot_general": _dot,
}  # fmt: skip
_RULES = {named(name): rule for name, rule in _NAMED.items()}
