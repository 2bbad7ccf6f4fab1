"""Random keys, followed through splits, folds and indexing, so that no two draws of noise share one."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpppl.information_flow.values import Number

WORDS, REPEATED, MIXED = -1, -2, -3
"""Axes of a key array that name no part: the words of raw key data, equal keys, and different keys in any order."""


class Span(NamedTuple):
    """All of start .. stop-1."""

    start: int
    stop: int


class Key(NamedTuple):
    """A key, or an array of keys: which children, from a root. Axis k of the array runs along part `axes[k]`."""

    root: Hashable
    parts: tuple[Number | Span, ...] = ()
    axes: tuple[int, ...] = ()

    @property
    def is_repeated(self) -> bool:
        """Whether the array holds a key more than once."""
        return REPEATED in self.axes


def root_key(root: Hashable, shape: tuple[int, ...], is_raw: bool) -> Key:
    """The key, or array of different keys, that a program is given. `is_raw`: the last axis holds the words."""
    lengths = shape[:-1] if is_raw else shape
    axes = (*range(len(lengths)), *((WORDS,) if is_raw else ()))
    return Key(root, tuple(Span(0, n) for n in lengths), axes)


def fold_in(key: Key, data: Number, rank: int) -> Key:
    """`rank`: that of the result; where the data alone have an axis, keys may repeat."""
    return Key(key.root, (*key.parts, data), (*key.axes, *(REPEATED,) * (rank - len(key.axes))))


def split(key: Key, shape: tuple[int, ...]) -> Key:
    """Children 0, 1, ... along new axes."""
    first = len(key.parts)
    return Key(key.root, (*key.parts, *(Span(0, n) for n in shape)), (*key.axes, *range(first, first + len(shape))))


def pick(key: Key, axis: int, index: Number) -> Key:
    """One element along an axis, which stays, with length 1."""
    part = key.axes[axis]
    if part < 0:
        return key
    span = key.parts[part]
    if isinstance(span, Number):
        return key
    picked = Number(index.base, index.offset + span.start)
    return key._replace(parts=(*key.parts[:part], picked, *key.parts[part + 1 :]))


def cut(key: Key, starts, stops, strides, shape) -> Key | None:
    """A slice."""
    if any(stride != 1 for stride in strides or ()):
        return None
    for axis, (start, stop) in enumerate(zip(starts, stops)):
        part = key.axes[axis]
        if (start, stop) == (0, shape[axis]) or part in (REPEATED, MIXED):
            continue
        if part == WORDS:
            return None
        span = key.parts[part]
        if isinstance(span, Span):
            smaller = Span(span.start + start, span.start + stop)
            key = key._replace(parts=(*key.parts[:part], smaller, *key.parts[part + 1 :]))
    return key


def squeeze(key: Key, dimensions) -> Key:
    """Without axes of length 1."""
    for axis in dimensions:
        part = key.axes[axis]
        if part >= 0 and isinstance(key.parts[part], Span):
            key = pick(key, axis, Number(None, 0))
    return key._replace(axes=tuple(part for axis, part in enumerate(key.axes) if axis not in dimensions))


def rearrange(key: Key, shape, new_shape) -> Key | None:
    """A reshape."""
    if tuple(shape) == tuple(new_shape):
        return key
    if WORDS in key.axes:
        return None
    key = squeeze(key, [axis for axis, length in enumerate(shape) if length == 1])
    left = [length for length in new_shape if length != 1]
    if [length for length in shape if length != 1] != left:
        repeated = key.is_repeated
        return key._replace(axes=(REPEATED if repeated else MIXED,) * len(new_shape))
    parts = iter(key.axes)
    return key._replace(axes=tuple(MIXED if length == 1 else next(parts) for length in new_shape))


def broadcast(key: Key, shape, new_shape, dimensions) -> Key:
    """Copies along new axes."""
    axes = [REPEATED if length > 1 else MIXED for length in new_shape]
    for axis, target in enumerate(dimensions):
        if shape[axis] == new_shape[target]:
            axes[target] = key.axes[axis]
    return key._replace(axes=tuple(axes))


@dataclass(slots=True)
class Use:
    """Random bits drawn from a key, or the hand-over of a key to a loop that draws from what is below it.

    `draw`: equal for draws of equal bits. `branches`: the (branch point, branch) pairs around it, which exclude each
    other. `scope`: the rematerialisations and doors around it, where an equal draw repeats an earlier one. `is_noise`:
    the door adds it to a sum of rows.
    """

    key: Key
    draw: int
    step: Any
    branches: tuple[tuple[int, int], ...] = ()
    scope: tuple[int, ...] = ()
    is_noise: bool = False
    in_door: bool = False
    hands_over: bool = False
    loops: frozenset = frozenset()

    def excludes(self, other: "Use") -> bool:
        """Whether only one of the two happens."""
        branches = dict(self.branches)
        return any(point in branches and branches[point] != branch for point, branch in other.branches)


class Counters:
    """Numbers that loops change. `strides`: by how much a base moves in each turn of its loop. `turns`: (start, step,
    length) of loops' counters, by base; length None: not known."""

    def __init__(self):
        self.strides: dict[Hashable, int] = {}
        self.turns: dict[Hashable, tuple[Number, int, int | None]] = {}

    def unrelated(self, first: Key, second: Key) -> bool:
        """Whether neither key can be the other one, or above it."""
        return first.root != second.root or any(self._differ(a, b) for a, b in zip(first.parts, second.parts))

    def _differ(self, first: Number | Span, second: Number | Span) -> bool:
        """Whether two parts are certainly different, whatever turns they are met in."""
        if isinstance(first, Number) and isinstance(second, Number) and first.base == second.base:
            step = self.strides.get(first.base, 0)
            difference = first.offset - second.offset
            return difference % 2**32 != 0 if step == 0 else difference % step != 0  # folded in as 32 bits
        (base, low, high), (other, lowest, highest) = self._reach(first), self._reach(second)
        room = self.strides.get(base, 2**32)  # both move on by this much, or their 32 bits begin again
        return base == other and (high < lowest or highest < low) and max(highest, high) - min(lowest, low) < room

    def _reach(self, part: Number | Span) -> tuple[Hashable, int, int]:
        """(base, smallest, largest offset) in all turns."""
        if isinstance(part, Span):
            return None, part.start, part.stop - 1
        start, step, length = self.turns.get(part.base, (part, 0, None))
        if length is None:
            return part.base, part.offset, part.offset
        base, low, high = self._reach(Number(start.base, start.offset + part.offset))
        return base, low + min(0, step * (length - 1)), high + max(0, step * (length - 1))

    def moves(self, key: Key, loop: int) -> bool:
        """Whether the turns of a loop give a key different parts."""
        return any(isinstance(part, Number) and self._moves(part.base, loop) for part in key.parts)

    def _moves(self, base, loop: int) -> bool:
        if not self.strides.get(base):
            return False
        if base[1] == loop or base not in self.turns:
            return base[1] == loop
        start, step, length = self.turns[base]  # of a loop inside, whose range must fit between two turns of this one
        room = self.strides.get(start.base, 0)
        fits = length is not None and room >= abs(step) * length and room % step == 0
        return fits and self._moves(start.base, loop)


def conflicts(uses: list[Use], counters: Counters) -> Iterator[tuple[Use, Use, str]]:
    """(first, second, what is wrong with the two) for uses of one key; with noise, for uses that may be of one key."""
    for number, second in enumerate(uses):
        for first in uses[:number]:
            if first.excludes(second) or counters.unrelated(first.key, second.key):
                continue
            if first.is_noise or second.is_noise:
                yield first, second, "the door's noise and another draw may come from the same key"
            elif first.key.parts == second.key.parts and not (first.hands_over or second.hands_over):
                if first.draw != second.draw or first.scope == second.scope:
                    yield first, second, "two random draws come from the same key"
