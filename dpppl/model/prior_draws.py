"""Draws from a model's prior, to compare a posterior with."""

import math
from typing import Any

import jax
import numpy as np

from dpppl.information_flow.executables import run_once
from dpppl.model.initialization import initial_values
from dpppl.model.split import SplitModel

_MOST, _FEWEST, _NUMBERS = 1_000, 32, 2**22
_IMPROPER = 1e4  # the scale of an improper prior


def number_of_draws(shapes: Any) -> int:
    """1,000, and fewer where a draw has many numbers.

    - **shapes** - of one draw, a pytree.
    """
    size = sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(shapes))
    return max(_FEWEST, min(_MOST, _NUMBERS // max(1, size)))


def drawn_from_prior(split: SplitModel, public: Any, key: Any, count: int, then: Any = None) -> dict[str, jax.Array]:
    """Unconstrained latents by site, drawn from the prior, (count, ...); a site with an improper prior is constant.

    - **split** - the model.
    - **public** - the model's Public arrays.
    - **key** - a key of the draws.
    - **count** - number of draws.
    - **then** - `then(latents, public)`, what is returned of a draw instead.

    Guarantee: the draws do not depend on the private rows, which are not an argument.
    """

    def one(key: Any, public: Any) -> Any:
        z = initial_values(split, public, key, "prior_sample")
        return z if then is None else then(z, public)

    def several(key: Any, public: Any) -> Any:
        return jax.vmap(one, (0, None))(jax.random.split(key, count), public)

    found: dict[str, jax.Array] = run_once(several, key, public)
    return found


def prior_draws(split: SplitModel, public: Any, is_constrained: bool = True) -> dict[str, np.ndarray]:
    """Prior draws by site, (draws, ...): those of the latents and of the deterministic sites that depend on latents only.

    The draws are the same in each call; see `drawn_from_prior`.

    - **split** - the model.
    - **public** - the model's Public arrays.
    - **is_constrained** - False: unconstrained latents, without deterministic sites.
    """
    then = split.constrain if is_constrained else None
    count = number_of_draws(split.latents if then is None else jax.eval_shape(then, split.latents, public))
    drawn = drawn_from_prior(split, public, jax.random.key(0), count, then)
    return {site: np.asarray(value, np.float64) for site, value in drawn.items()}


def prior_scales(split: SplitModel, public: Any) -> dict[str, np.ndarray]:
    """Robust standard deviations of the unconstrained latents under the prior, by site.

    - **split** - the model.
    - **public** - the model's Public arrays.
    """

    def scale(values: np.ndarray) -> np.ndarray:
        found = 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
        return np.where(found > 0.0, found, _IMPROPER)

    return {site: scale(values) for site, values in prior_draws(split, public, is_constrained=False).items()}
