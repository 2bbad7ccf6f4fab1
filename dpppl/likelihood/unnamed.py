"""Effects without a name: values, such as `(mean + spread * z)[g]`, through which alone rows know several latents.

The likelihood is nearly quadratic in the effects and far from it in the latents, and only named values can be coordinates.
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax

from dpppl.jaxprs import REARRANGEMENTS, flattened, is_literal
from dpppl.model.arguments import Shapes
from dpppl.model.refusals import quoted
from dpppl.model.split import SplitModel
from dpppl.types import Atom, Equation, Traced

_SUMS, _PLACES = {"add", "sub", "add_any", "neg", "cumsum"}, {"gather", "dynamic_slice"}


class _Value(NamedTuple):
    """Latents that a value is made of, those of them in which it is not affine, entry by entry, whether latents are multiplied,
    the arrays of a row in it, whether these are in it as places only, all of one array, in tables of one length, and how many
    entries it has for all places."""

    latents: frozenset[str] = frozenset()
    curved: frozenset[str] = frozenset()
    is_product: bool = False
    rows: frozenset[Atom] = frozenset()
    looks_up: bool = True
    size: int = 1

    def gains(self, sizes: dict[str, int]) -> frozenset[str]:
        """The latents that it can take the place of: those in which it is affine and takes every value."""
        may = self.looks_up and (self.is_product or self.curved)
        return frozenset(n for n in self.latents - self.curved if may and sizes[n] >= self.size)


def cure_of(split: SplitModel, shapes: Shapes) -> str | None:
    """How to name such values, if there are any; `shapes`: those of the coordinates, among which named values may be."""
    shapes = split.latents | shapes
    program = flattened(jax.make_jaxpr(split.log_likelihood)(shapes, split.row, split.arguments.public)).jaxpr
    sizes, inputs = {name: shape.size for name, shape in shapes.items()}, dict(zip(sorted(shapes), program.invars))
    known = {v: _Value(frozenset({name}), size=v.aval.size) for name, v in inputs.items()}
    known |= {v: _Value(rows=frozenset({v})) for v in program.invars[len(shapes) : len(shapes) + len(split.row)]}
    ends: dict[Atom, frozenset[str]] = {}
    for equation in program.eqns:
        given = [_Value() if is_literal(v) else known.get(v, _Value()) for v in equation.invars]
        made = _made(equation, given)
        known |= {v: made if made.rows else made._replace(size=v.aval.size) for v in equation.outvars}
        ends |= {v: x.gains(sizes) for v, x in zip(equation.invars, given) if x.gains(sizes) and not made.gains(sizes)}
    reached = _reached(program, ends)
    found = [v for v, gains in ends.items() if v in reached and any(inputs[name] not in reached for name in gains)]
    made_of = [
        known[v].latents
        for v in found
        if all(known[v].latents == known[o].latents or not ends[v] & ends[o] for o in found)
    ]
    if not made_of:
        return None
    through = "; ".join(dict.fromkeys(quoted(sorted(latents)) for latents in made_of))
    return (
        f'name the value through which alone rows know sites {through}: effect = numpyro.deterministic("effect", ...), '
        "outside of the data plate, then effect[ids]"
    )


def _made(equation: Equation, given: list[_Value]) -> _Value:
    """Latents and rows that the outputs of an equation are made of."""
    name, own = equation.primitive.name, [value for value in given if value.latents]
    latents, rows = _union(v.latents for v in given), _union(v.rows for v in given)
    curved, is_product = _union(v.curved for v in own), any(v.is_product for v in own)
    looks_up = all(v.looks_up for v in own) and len({(v.rows, v.size) for v in own if v.rows}) <= 1
    if name in _PLACES and len(own) == 1 and given[0].latents:
        looks_up &= not given[0].rows
        curved |= frozenset() if rows else latents
    else:
        looks_up &= not any(v.rows for v in given if not v.latents)
        if name in ("mul", "div") or (name == "dot_general" and len(own) == 2):
            twice = given[0].latents & given[1].latents
            curved |= given[1].latents if name == "div" else twice
            is_product |= len(own) == 2
        elif name not in _SUMS | REARRANGEMENTS:
            curved, looks_up = latents, looks_up and not rows
    return _Value(latents, curved, is_product, rows, looks_up, max((v.size for v in own), default=1))


def _union(sets: Iterable[frozenset[Atom]]) -> frozenset[Atom]:
    return frozenset[Atom]().union(*sets)


def _reached(program: Traced, cut: Iterable[Atom]) -> set[Atom]:
    """The variables that the outputs depend on otherwise than through those of a `cut`."""
    needed, cut = {v for v in program.outvars if not is_literal(v)}, set(cut)
    for equation in reversed(program.eqns):
        if needed.difference(cut).intersection(equation.outvars):
            needed.update(v for v in equation.invars if not is_literal(v))
    return needed
