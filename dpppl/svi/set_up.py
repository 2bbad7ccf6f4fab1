"""A guide set up, and its sites found, as one compiled program instead of an operation at a time."""

import functools
import gc
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpyro.infer import autoguide

from dpppl.information_flow.executables import run_once
from dpppl.model.split import SplitModel
from dpppl.svi.guides import Arrays, parts_of

_MOST_OBJECTS = 100_000
_PLAIN = (
    types.ModuleType,
    type,
    types.BuiltinFunctionType,
    types.CodeType,
    np.ndarray,
    np.generic,
    str,
    bytes,
    int,
    float,
)


def set_up(guide: Any, split: SplitModel, public: Arrays, sites: Callable[..., Any], *keys: Any) -> Any:
    """`sites(*keys)`, NumPyro's traces, which sets up the parts of `guide` that are AutoGuides. Compiled, where the values that
    these then hold can be put in the places of the tracers; where not, or where one is not finite, one operation at a time."""
    parts = [part for part in (guide, *parts_of(guide)) if isinstance(part, autoguide.AutoGuide)]
    before, kept = [dict(vars(part)) for part in parts], list[Any]()

    def traced(*keys: Any) -> Any:
        found = sites(*keys)
        params = [site for trace in found for site in trace.values() if site["type"] == "param"]
        places = _places([[site["kwargs"].get("constraint") for site in params], *map(vars, parts)])
        kept[:] = found, params, places
        z = {name: value for part in parts for name, value in vars(part).get("_init_locs", {}).items()}
        density = split.log_prior(z, public) if z.keys() == split.latents.keys() else np.zeros(())
        return [tracer for _, tracer in places], [site["value"] for site in params], density

    try:
        values, of_params, density = run_once(traced, *keys)
        is_done = all(map(_is_finite, jax.tree.leaves((values, of_params, density))))
    except Exception:  # which tells more where values are known
        is_done = False
    if not is_done:
        for part, state in zip(parts, before):
            part.__dict__ = state
        return sites(*keys)
    found, params, places = kept
    for (put, _), value in zip(places, values):
        put(value)
    for site, value in zip(params, of_params):
        site["value"] = value
    return found


def _is_finite(value: Any) -> bool:
    return not jax.numpy.issubdtype(value.dtype, np.inexact) or bool(np.all(np.isfinite(value)))


def _places(root: Any) -> list[tuple[Callable[[Any], None], Any]]:
    """The tracers that can be reached, and for each a function that puts something else in its place.

    Raises ValueError for one that stays where it is, as in a tuple, and for very many objects."""
    seen: dict[int, Any] = {}
    found, left = [], [root]
    while left:
        one = left.pop()
        if isinstance(one, (*_PLAIN, jax.Array)) or id(one) in seen:
            continue
        seen[id(one)] = one
        for put, inner in _inside(one):
            if not isinstance(inner, jax.core.Tracer):
                left.append(inner)
            elif put is None or len(seen) > _MOST_OBJECTS:
                raise ValueError("a tracer that stays")
            else:
                found.append((put, inner))
    return found


def _inside(one: Any) -> list[tuple[Callable[[Any], None] | None, Any]]:
    if isinstance(one, dict):
        return [(functools.partial(one.__setitem__, key), value) for key, value in one.items()]
    if isinstance(one, list):
        return [(functools.partial(one.__setitem__, number), value) for number, value in enumerate(one)]
    if isinstance(one, types.CellType):
        empty = one == types.CellType()
        return [] if empty else [(functools.partial(setattr, one, "cell_contents"), one.cell_contents)]
    if isinstance(one, types.FunctionType):  # not the module around it
        return [(None, value) for value in (*(one.__closure__ or ()), *(one.__defaults__ or ()), one.__dict__)]
    if isinstance(one, functools.partial):
        return [(None, value) for value in (one.func, *one.args, one.keywords)]
    if hasattr(one, "__dict__"):
        return [(None, vars(one))]
    return [(None, value) for value in gc.get_referents(one)]
