"""Refuses censored sites that do not say when rows are censored. Looks at no data."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from dpppl.errors import UnsupportedModelError
from dpppl.jaxprs import depends_on
from dpppl.model import censoring, supports
from dpppl.model.arguments import Arrays
from dpppl.model.split import SplitModel
from dpppl.model.structure import Site, unwrapped

_COLUMN = "the censoring time of every row, also of those that were not censored"
_CURE = (
    f'infer={{"censored_by": end}}, with end an argument that holds {_COLUMN}, a public number, a public distribution, or the '
    "name of a site of censoring times (docs/survival.md)"
)


def check_declarations(split: SplitModel, sites: Sequence[Site], flat: str) -> None:
    """Raise UnsupportedModelError, with the site and the cure, where the law of a site's response is not complete.

    - **split** - the model.
    - **sites** - its observed sites of rows, from an abstract run.
    - **flat** - the cure that works for any model."""
    censored = {site["name"]: site for site in sites if censoring.is_censored(site["fn"])}
    for site in sites:
        name, kind = site["name"], type(unwrapped(site["fn"])).__name__
        if name not in censored:
            if {"censored_by", "inspected_at"} & set(site["infer"]):
                raise UnsupportedModelError(
                    f"site '{name}' declares censoring times and has a {kind}, which no censoring enters; observe it under "
                    f"dist.RightCensoredDistribution(dist.{kind}(...), censored)."
                )
            continue
        if not (parts := censoring.declared(site)):
            cure = 'infer={"inspected_at": visits}, with visits the times of all inspections, (n, K) or (K,)'
            raise UnsupportedModelError(
                f"site '{name}' has a {kind}, which does not say when an uncensored row would have been censored; write "
                f"{cure if censoring.is_interval(site['fn']) else _CURE} in its numpyro.sample, or {flat}."
            )
        for part in parts:
            _check_part(site, part, censored)
        if censoring.is_interval(site["fn"]) and len(parts) > 1:
            raise UnsupportedModelError(f"site '{name}' has two arrays of inspection times; join them in one.")
    if censored:
        _check_inputs(split, list(censored))


def _check_part(site: Site, part: Any, censored: dict[str, Site]) -> None:
    name, is_interval = site["name"], censoring.is_interval(site["fn"])
    if isinstance(part, str) and not is_interval:
        other = censored.get(part)
        is_alike = other is not None and type(unwrapped(other["fn"])) is type(unwrapped(site["fn"]))
        if part == name or other is None or not is_alike or name not in censoring.declared(other):
            raise UnsupportedModelError(
                f"site '{name}' is censored by site '{part}', which must be a site of the same kind that names it in return: "
                f"numpyro.sample('{part}', dist.{type(unwrapped(site['fn'])).__name__}(law, ~censored), obs=..., "
                f'infer={{"censored_by": "{name}"}}).'
            )
        return
    times = jnp.shape(site["value"])[:-1] if is_interval else jnp.shape(site["value"])
    if isinstance(part, dist.Distribution) and not is_interval and not part.event_shape:
        shape = part.batch_shape
    elif isinstance(part, str | dist.Distribution) or (is_interval and not jnp.ndim(part)):
        wanted = "the times of all inspections, (n, K) or (K,)" if is_interval else "a distribution of one number"
        raise UnsupportedModelError(f"site '{name}' declares its censoring by a {type(part).__name__}; give {wanted}.")
    else:
        shape = jnp.shape(part)[:-1] if is_interval else jnp.shape(part)
    try:
        fits = jnp.broadcast_shapes(shape, times) == times
    except ValueError:
        fits = False
    if not fits:
        raise UnsupportedModelError(
            f"the declared censoring times of site '{name}' do not have one entry a row; pass them as an argument of the model, "
            "of shape (n,), or give one public number."
        )


def _check_inputs(split: SplitModel, names: Sequence[str]) -> None:
    """Refuse limits that depend on latents, or on what their own site observes."""
    shapes = split.latents, split.row, split.arguments.public

    def sites(replaced: bool) -> Any:
        def visit(site: Site) -> Any:
            return censoring.blank(site, jnp.zeros_like(site["value"])) if replaced else None

        def function(z: Arrays, row: Arrays, public: Arrays) -> dict[str, Any]:
            trace = split.visit_observed(visit, z, row, public, supports.first_values(split))
            return {
                name: censoring.leaves(trace[name]) if replaced else jax.tree.leaves(censoring.own(trace[name]))
                for name in names
            }

        return function

    for name in names:
        of_z, of_row, _ = depends_on(lambda *given: sites(True)(*given)[name], *shapes)  # noqa: B023
        if latents := [latent for latent, is_used in of_z.items() if is_used]:
            raise UnsupportedModelError(
                f"the censoring law of site '{name}' depends on the latent '{latents[0]}', which no censoring time informs; "
                "write a site for the censoring times, numpyro.sample('dropout', dist.RightCensoredDistribution(law, ~censored), "
                f'obs=time, infer={{"censored_by": "{name}"}}), and name it: infer={{"censored_by": "dropout"}}.'
            )
        limits = {argument for argument, is_used in of_row.items() if is_used}
        count = len(jax.eval_shape(lambda *given: sites(False)(*given)[name], *shapes))  # noqa: B023
        for number in range(count):
            of_row = depends_on(lambda *given: sites(False)(*given)[name][number], *shapes)[1]  # noqa: B023
            observed = {argument for argument, is_used in of_row.items() if is_used}
            if observed and observed <= limits:
                raise UnsupportedModelError(
                    f"the censoring times of site '{name}' are computed from argument '{min(observed)}', which the site "
                    f"observes, so they are known of censored rows only. Give {_CURE}."
                )
