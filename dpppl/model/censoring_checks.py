"""Whether a model says of each censored response when it would have been censored."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from dpppl.errors import UnsupportedModelError
from dpppl.model import censoring, supports
from dpppl.model.arguments import Arrays
from dpppl.model.own_values import entering
from dpppl.model.refusals import FLAT
from dpppl.model.split import SplitModel
from dpppl.model.structure import Site, unwrapped
from dpppl.types import Distribution, Tree

_COLUMN = "the censoring time of every row, also of those that were not censored"
_CURE = (
    f'infer={{"censored_by": end}}, with end an argument that holds {_COLUMN}, a public number, a public distribution, or the '
    "name of a site of censoring times (docs/survival.md)"
)


def check_declarations(split: SplitModel, sites: Sequence[Site]) -> None:
    """Refuse observed sites of rows, from an abstract run, where the law of the response is not complete."""
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
                f"{cure if censoring.is_interval(site['fn']) else _CURE} in its numpyro.sample, or {FLAT}."
            )
        for part in parts:
            _check_part(site, part, censored)
        if censoring.is_interval(site["fn"]) and len(parts) > 1:
            raise UnsupportedModelError(f"site '{name}' has two arrays of inspection times; join them in one.")
    if censored:
        _check_inputs(split, list(censored))


def _check_part(site: Site, part: Distribution, censored: dict[str, Site]) -> None:
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
    if isinstance(part, int | float):
        support = unwrapped(site["fn"]).support
        with jax.ensure_compile_time_eval():
            inside = support(part)
        if not isinstance(inside, jax.core.Tracer) and not inside:
            raise UnsupportedModelError(f"censored_by of site '{name}' lies outside of its support: give a {support}.")


def _check_inputs(split: SplitModel, names: Sequence[str]) -> None:
    """Refuse limits that depend on latents, or on what their own site observes."""
    shapes = split.latents, split.row, split.arguments.public

    def limits_of(name: str, z: Arrays, row: Arrays, public: Arrays) -> Tree:
        blank = lambda site: censoring.blank(site, jnp.zeros_like(site["value"]))  # noqa: E731
        return censoring.leaves(split.visit_observed(blank, z, row, public, supports.first_values(split))[name])

    def observed(name: str, z: Arrays, row: Arrays, public: Arrays) -> Tree:
        trace = split.visit_observed(lambda site: None, z, row, public, supports.first_values(split))
        return jax.tree.leaves(censoring.own(trace[name]))

    for name in names:
        latents, limits, _ = entering(partial(limits_of, name), *shapes)
        if latents:
            raise UnsupportedModelError(
                f"the censoring law of site '{name}' depends on the latent '{latents[0]}', which no censoring time informs; "
                "write a site for the censoring times, numpyro.sample('dropout', dist.RightCensoredDistribution(law, ~censored), "
                f'obs=time, infer={{"censored_by": "{name}"}}), and name it: infer={{"censored_by": "dropout"}}.'
            )
        for number in range(len(jax.eval_shape(partial(observed, name), *shapes))):
            own = set(entering(lambda *given: observed(name, *given)[number], *shapes)[1])  # noqa: B023
            if own and own.issubset(limits):
                raise UnsupportedModelError(
                    f"the censoring times of site '{name}' are computed from argument '{min(own)}', which the site "
                    f"observes, so they are known of censored rows only. Give {_CURE}."
                )
