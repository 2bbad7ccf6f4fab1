"""How much the data informed each latent of a guide, and which ones noise hides: from noisy gradients and draws."""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import autoguide

from dpppl.findings.learned import PRIOR, SMALLEST_SHARE, Learned, distance
from dpppl.frame.metric import Metric
from dpppl.information_flow.executables import run_once
from dpppl.model.initialization import number_of_draws, prior_draws
from dpppl.svi.dropout import AutoDropout
from dpppl.svi.elbo import Objective
from dpppl.svi.guides import parts_of
from dpppl.svi.verdict import HIDDEN, TAIL, tail_of
from dpppl.types import BySite, Tree

LARGEST_ERROR, LARGEST_DISTANCE, _GROWING, _MOST_ROWS = 0.6, 1.2, 2.5, 200
_LEAST_CURVATURE = 0.05  # of the guide's precision; noise can hide the whole curvature

Array = np.ndarray


def learned_latents(
    objective: Objective, public: Tree, phi: BySite, gradients: BySite
) -> tuple[dict[str, Array], bool]:
    """By site, "learned", "partly", "prior" or "hidden by noise" for each unconstrained element of the latents; and whether
    every element has a location and a spread. Only these show whether noise hides it. `gradients`: (number kept, ...).

    "prior": the guide has the prior's spread and location; a point stayed at the prior's median, and no gradient could have
    moved it. "hidden by noise", so that neither is known to come from the data: the location is uncertain by more than .6 of
    the guide's sds, its optimum may be more than 1.2 of them away, or the spread still grows (2.5 standard errors).
    The location is uncertain by the guide's variance times the standard error of the gradient's mean over the tail. The
    optimum is one Newton step away, at that mean plus its standard error. The curvature is (1 - g) / variance, with g the
    spread's gradient in the logarithm of the sd (Opper and Archambeau 2009)."""

    def draws(phi: BySite, key: jax.Array, public: Tree) -> Tree:
        return jax.vmap(lambda key: objective.draw(phi, key, public)[1])(jax.random.split(key, count))

    count = number_of_draws(objective.split.latents)
    drawn, prior = run_once(draws, phi, jax.random.key(0), public), prior_draws(objective.split, public, False)
    both = gradients, _spread_gradients(objective, phi, gradients)
    places, spreads = (by_site(objective.guide, found) for found in both)
    words, is_all = dict[str, Array](), True
    if (metric := objective.metric) is not None:
        places = _along_the_covariance(metric, places)
    for site, expected in prior.items():
        values = np.asarray(drawn[site], np.float64)
        words[site] = Learned.of(values, float(count), expected).words
        is_point = np.ptp(values, axis=0) == 0.0
        is_all &= site in places and not np.any(is_point)
        if site not in places:
            continue
        gradient = np.asarray(places[site], np.float64)
        gradient = gradient.reshape(len(gradient), *expected.shape[1:])
        spread = np.std(values, axis=0)
        pull, error = _mean_and_error(gradient)
        if metric is not None:  # steps of 2 / t: a mean over the run, of 4 / 3 of the least variance
            error *= (2.0 / 3.0) ** 0.5
        is_hidden = spread * error > LARGEST_ERROR
        if metric is not None:
            is_hidden |= metric.hides(site)
        if site in spreads:
            growth, growth_error = _mean_and_error(np.asarray(spreads[site], np.float64).reshape(gradient.shape))
            is_hidden |= growth > _GROWING * growth_error
            own = error if metric is None else 0.0  # else noise in the pull is that in the location
            step = spread * (np.abs(pull) + own) / np.maximum(1.0 - growth, _LEAST_CURVATURE)
            is_hidden |= step > LARGEST_DISTANCE
        middle = np.median(expected, axis=0)
        moves = np.maximum(
            np.abs(values[0] - middle), distance(expected, middle) ** 2 * np.mean(gradient**2, axis=0) ** 0.5
        )
        is_still = is_point & (moves < SMALLEST_SHARE**0.5 * distance(expected, middle))
        words[site] = np.where(is_still, PRIOR, np.where(is_hidden, HIDDEN, words[site]))
    return words, is_all


def _along_the_covariance(metric: Metric, places: BySite) -> dict[str, Tree]:
    """By site, gradients g of locations as (S g) / diag(S), S the covariance of a frame: those of latents that did not depend on
    each other and had the same Newton step."""
    covariance = metric.covariance
    return metric.split(np.asarray(metric.vector(places), np.float64) @ covariance / np.diag(covariance))


def _mean_and_error(gradient: Array) -> tuple[Array, Array]:
    """The mean of a gradient (steps, ...) over the tail, and its standard error, (...)."""
    tail = tail_of(gradient, TAIL)
    return np.mean(tail, axis=0), (np.var(tail, axis=0) / len(tail)) ** 0.5


def _spread_gradients(objective: Objective, phi: BySite, gradients: BySite) -> dict[str, Tree]:
    """Gradients in the logarithm of each latent's spread, under the name of its location, (steps, elements): those of guides
    with a parameter for the scale of each latent, or with a Cholesky factor of at most 200 rows."""

    def ways(phi: BySite) -> Tree:
        """Changes of unconstrained parameters that change the logarithm of one spread by 1."""
        found = {}
        is_auto = isinstance(objective.guide, autoguide.AutoGuide)
        for name, value in objective.constrain(phi).items() if is_auto else ():
            move = lambda way, name=name, value=value: jax.jvp(objective.transforms[name].inv, (value,), (way,))[1]  # noqa: E731
            if name.endswith("_scale"):
                found[name] = move(value)
            elif name.endswith("_scale_tril") and len(value) <= _MOST_ROWS:
                found[name] = jax.vmap(lambda row, move=move, value=value: move(row[:, None] * value))(
                    jnp.eye(len(value))
                )
        return found

    spreads = {}
    for name, way in run_once(ways, phi).items():
        gradient, way = np.asarray(gradients[name], np.float64), np.asarray(way, np.float64)
        place = name.removesuffix("_tril").removesuffix("scale") + "loc"
        spreads[place] = gradient * way if name.endswith("_scale") else gradient @ way.T
    return {place: gradient for place, gradient in spreads.items() if place in gradients}


def by_site(guide: object, gradients: BySite) -> dict[str, jax.Array]:
    """By site, what `gradients` hold under the names of locations, of a guide whose draws are a location and noise."""
    found: dict[str, Tree] = {}
    for part in parts_of(guide):
        name = f"{getattr(part, 'prefix', '')}_loc"
        if isinstance(part, autoguide.AutoContinuous) and name in gradients:
            found |= jax.vmap(part._unpack_latent)(gradients[name])
        elif isinstance(part, autoguide.AutoNormal | autoguide.AutoDelta) and not isinstance(part, AutoDropout):
            found |= {site: gradients[f"{site}_{name}"] for site in part._init_locs if f"{site}_{name}" in gradients}
    return found
