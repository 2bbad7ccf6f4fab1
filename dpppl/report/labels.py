"""Labels of the elements of sites, in place of their numbers, in all that is printed about a run."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.types import Tree
from dpppl.validation import element_name

_CURE = 'labels={"weights": ["age", "smoker=yes"]}'


@dataclass(frozen=True)
class Labels:
    """Labels of elements.

    - **axes** - by site, the labels along each of its axes.

    >>> labels = Labels.of({"w": ["age", "smoker=yes"]}, {"w": (2,)})
    >>> labels.named("'w[1]' is learned, v[1] is not")
    "'w[smoker=yes]' is learned, v[1] is not"
    """

    axes: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Tree, shapes: Mapping[str, tuple[int, ...]]) -> "Labels":
        """Labels by site: a list for its last axis, or a list of lists for its last axes.

        - **shapes** - of the elements of each site that may have labels.

        Raises ConfigurationError, naming the site, for labels that do not fit."""
        if not (given is None or isinstance(given, Mapping)):
            raise ConfigurationError(f"labels is a {type(given).__name__}; give a list by site: {_CURE}.")
        axes = {}
        for site, own in (given or {}).items():
            if site not in shapes:
                raise ConfigurationError(
                    f"labels name '{site}', which is no latent; the sites are {', '.join(shapes)}."
                )
            if isinstance(own, str) or not hasattr(own, "__len__"):
                raise ConfigurationError(f"labels of '{site}' are a {type(own).__name__}; give a list: {_CURE}.")
            is_one = not len(own) or any(isinstance(each, str) or not hasattr(each, "__len__") for each in own)
            lists = [tuple(map(str, each)) for each in ([own] if is_one else own)]
            shape, sizes = tuple(shapes[site]), tuple(map(len, lists))
            if shape[len(shape) - len(sizes) :] != sizes or any(len(set(each)) < len(each) for each in lists):
                raise ConfigurationError(
                    f"labels of '{site}' are {' x '.join(map(str, sizes))}, and its elements have the shape {shape}: give a "
                    "label of its own for each entry of the last axis, or a list of such lists for several axes."
                )
            numbers = [tuple(map(str, range(size))) for size in shape[: len(shape) - len(sizes)]]
            axes[str(site)] = (*numbers, *lists)
        return cls(axes)

    def fitting(self, shapes: Mapping[str, tuple[int, ...]]) -> "Labels":
        """Those of sites that have these shapes, or none of them: an unconstrained simplex has fewer elements."""
        return Labels(
            {s: own for s, own in self.axes.items() if shapes.get(s, tuple(map(len, own))) == tuple(map(len, own))}
        )

    def named(self, text: str) -> str:
        """A text with labels in place of the numbers of elements, as in "w[1]"."""
        if not self.axes:
            return text
        sites = "|".join(map(re.escape, self.axes))
        return re.sub(rf"(?<![\w.])({sites})\[(\d+(?:, ?\d+)*)\]", self._one, text)

    def _one(self, found: re.Match[str]) -> str:
        own, places = self.axes[found[1]], [int(place) for place in found[2].split(",")]
        if len(own) != len(places) or any(place >= len(labels) for place, labels in zip(places, own)):
            return found[0]
        return f"{found[1]}[{','.join(labels[place] for labels, place in zip(own, places))}]"

    def apart(self, samples: Mapping[str, Tree]) -> dict[str, Tree]:
        """Samples by site (chains, draws, ...), with the elements of sites that have labels one by one, by their names."""
        found: dict[str, Tree] = {}
        for site, value in samples.items():
            places = np.ndindex(*np.shape(value)[2:]) if site in self.axes else ()
            found |= {self.named(element_name(site, i)): value[:, :, *i] for i in places} or {site: value}
        return found

    def coords(
        self, plates: Mapping[str, Sequence[str]], sites: Collection[str]
    ) -> tuple[dict[str, Tree], dict[str, list[str]]]:
        """`coords` and `dims` of ArviZ for `sites`; `plates`: by site, names of its leading axes, kept where labels agree."""
        coords: dict[str, Tree] = {}
        dims: dict[str, list[str]] = {}
        for site, own in self.axes.items():
            if site not in sites:
                continue
            names = [*plates.get(site, ()), *(f"{site}_dim_{k}" for k in range(len(plates.get(site, ())), len(own)))]
            dims[site] = [
                n if coords.get(n, one) == one else f"{site}_dim_{k}" for k, (n, one) in enumerate(zip(names, own))
            ]
            coords |= dict(zip(dims[site], own))
        return coords, dims


NO_LABELS = Labels()
