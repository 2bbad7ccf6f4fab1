"""Random keys, followed through splits, folds and indexing, so that no two draws of noise share one."""

from collections.abc import Callable, Hashable, Mapping
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
    return Key(
        key.root, (*key.parts, *(Span(0, n) for n in shape)), (*key.axes, *range(first, first + len(shape)))
    )


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


def differ(first: Number | Span, second: Number | Span, stride: Callable[[Hashable], int]) -> bool:
    """Whether two parts are certainly different. `stride`: by how much a base moves in each turn of its loop, or 0."""
    if isinstance(first, Span) and isinstance(second, Span):
        return first.stop <= second.start or second.stop <= first.start
    if isinstance(first, Number) and isinstance(second, Number):
        if first.base != second.base:
            return False
        step = stride(first.base)
        difference = (first.offset - second.offset) % 2**32  # folded in as 32 bits
        return difference != 0 if step == 0 else (first.offset - second.offset) % step != 0
    number, span = (first, second) if isinstance(first, Number) else (second, first)
    assert isinstance(number, Number) and isinstance(span, Span)
    return number.base is None and not span.start <= number.offset < span.stop


def unrelated(first: Key, second: Key, stride: Callable[[Hashable], int]) -> bool:
    """Whether neither key is certainly the other one, or above it."""
    return first.root != second.root or any(differ(a, b, stride) for a, b in zip(first.parts, second.parts))


def conflicts(uses: list[Use], strides: Mapping[Hashable, int]):
    """Pairs of uses of one key, in words: where one of them is the door's noise, pairs that may be."""

    def stride(base):
        return strides.get(base, 0)

    for number, second in enumerate(uses):
        for first in uses[:number]:
            if first.excludes(second) or unrelated(first.key, second.key, stride):
                continue
            if first.is_noise or second.is_noise:
                yield first, second, "the door's noise and another draw may come from the same key"
            elif first.key.parts == second.key.parts and not (first.hands_over or second.hands_over):
                if first.draw != second.draw or first.scope == second.scope:
                    yield first, second, "two random draws come from the same key"
