"""What is known of a value in a traced program: how it depends on private rows and on keys."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple


class Trail(NamedTuple):
    """How a secret came here: an equation (or a few words) and the trail before it."""

    step: Any
    before: "Trail | None" = None


# How a value depends on private rows. None: not at all, or only through the door.


@dataclass(frozen=True, slots=True)
class Raw:
    """Private rows as they were passed in, or a part of them chosen without looking at them.

    `window`: how the rows of the part were chosen, step by step; empty: all of them, in order."""

    argument: int
    window: tuple = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """Computed from private rows in a way that is not, or not yet, private. `why` in words."""

    why: str = field(default="", compare=False)


class Axis(NamedTuple):
    """Where the rows are in an array: element p of `axis` belongs to row (p // inner) % rows."""

    axis: int
    inner: int
    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Inside the door: each row's part of the array is a function of that row alone, and of public values.

    `which`: equal for arrays whose rows stand in the same order. `stage`, on the way to a clipped row: "raw" (as they
    entered); "plain";
    "square" (at least the squared norm of the plain values `of`); "norm"; "lifted" (and away from zero); "inverse" (at
    most a constant over the norm); "capped" (and bounded itself); "short" and "long" (truth values: the norm is below a
    bound, or it is not); "clipped" (a plain value times the inverse of its norm); "bounded" (clipped, or capped, and a
    public value where the norm is not finite).
    `ident`: number of the plain value, kept by whatever only rearranges it. `along`: for each axis, along which axes of
    which plain values it runs, as pairs (ident, axis), axis -1 where several were merged; empty: along its own.
    """

    axes: tuple[Axis, ...]
    which: Hashable
    stage: str = "plain"
    of: frozenset = frozenset()
    ident: int = -1
    along: tuple[frozenset, ...] = ()

    def as_plain(self) -> "Rows":
        """The same rows, forgetting what was known of their size."""
        return Rows(self.axes, self.which)


@dataclass(frozen=True, slots=True)
class Sum:
    """Inside the door: a sum of bounded rows, without noise yet."""


@dataclass(frozen=True, slots=True)
class Noised:
    """Inside the door: such a sum with the door's noise, each element with its own."""


class Box(NamedTuple):
    """Part of one random draw: `spans`, (start, stop) along each of its axes, which lie along `axes` of the value (None
    where one element was picked)."""

    draw: int
    spans: tuple[tuple[int, int], ...]
    axes: tuple[int | None, ...]

    def meets(self, other: "Box") -> bool:
        """Whether the two share elements of a draw."""
        return self.draw == other.draw and all(a < d and c < b for (a, b), (c, d) in zip(self.spans, other.spans))


@dataclass(frozen=True, slots=True)
class Draw:
    """Inside the door: random numbers from a secret key. `own`: no two elements of the value share random bits."""

    boxes: tuple[Box, ...]
    own: bool = True


Form = Raw | Lost | Rows | Sum | Noised | Draw | None


class Number(NamedTuple):
    """An integer `base + offset`; base None: a constant."""

    base: Hashable
    offset: int


class Value(NamedTuple):
    """What is known of a variable.

    `form`: how it depends on rows. `secret`: whether it holds key material; `key`: which key exactly, if that could be
    followed. `number`: what is known of an integer. `bounds`: smallest and largest element of a constant. `ident`:
    equal for equal values. `loops`: the loops in which it may change. `trail`: how a secret came here. `pieces`: the
    idents of what a vector of indices was put together from.
    """

    form: Any = None
    secret: bool = False
    key: Any = None
    number: Number | None = None
    bounds: tuple[float, float] | None = None
    ident: int = -1
    loops: frozenset = frozenset()
    trail: Trail | None = None
    pieces: tuple[int, ...] = ()


def depends_on_rows(form: Form) -> bool:
    """Whether a form is not public: random numbers and noised sums are."""
    return isinstance(form, Raw | Lost | Rows | Sum)


def join(first: Form, second: Form) -> Form:
    """What is known of a value that is the one or the other."""
    if first == second:
        return first
    for form in (first, second):
        if isinstance(form, Lost):
            return form
    kinds = {type(first), type(second)}
    if len(kinds) == 1:
        return _join_alike(first, second)
    if Sum in kinds and not kinds & {Raw, Rows}:
        return Sum()
    other = second if first is None else first if second is None else None
    if isinstance(other, Rows):
        return other if other.stage == "bounded" else other.as_plain()
    if isinstance(other, Draw):
        return replace(other, own=False)
    return other if isinstance(other, Noised) else Lost("private rows, or something else")


def _join_alike(first, second) -> Form:
    if isinstance(first, Rows):
        if (first.axes, first.which) != (second.axes, second.which):
            return Lost("rows in one order or in another")
        same = (first.stage, first.along) == (second.stage, second.along)
        if not same or first.stage in ("raw", "plain"):
            return first.as_plain()
        return replace(first, of=first.of & second.of, ident=-1)
    if isinstance(first, Draw):
        return Draw(first.boxes + tuple(box for box in second.boxes if box not in first.boxes), own=False)
    return Lost("private rows")
