"""Parameters of a guide that start at a frame and move in its metric; the guide and its parameters stay the user's."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import autoguide
from numpyro.optim import _NumPyroOptim

from dpppl.frame.metric import Metric
from dpppl.types import BySite, Distribution, Foreign, Function, Tree

BY_SITE = (autoguide.AutoNormal, autoguide.AutoDelta)
TOGETHER = (autoguide.AutoDiagonalNormal, autoguide.AutoMultivariateNormal)
_FIRST, _MOST, _SPREADS = 0.2, 0.5, 0.3
_MARK = "dpppl frame"


NAMES = "a guide that is " + ", ".join(kind.__name__ for kind in (*BY_SITE, *TOGETHER))


def moves(guide: object) -> bool:
    """Whether the parameters of a guide move linearly with the latents: those of the guides in `NAMES`."""
    return type(guide) in (*BY_SITE, *TOGETHER)


@dataclass(frozen=True, eq=False)
class Movement:
    """Unconstrained parameters phi of a guide as a linear change of others, which are those of the same guide of u.

    Locations are moved by the frame. A Cholesky factor is multiplied by its root; scales of single latents, of which none
    can hold a correlation, by the sds given all others.

    - **metric** - the frame, of locations by the names of their parameters.
    - **transforms** - from unconstrained to constrained parameters, by name."""

    metric: Metric
    transforms: Mapping[str, Distribution]

    @classmethod
    def of(cls, metric: Metric, guide: Foreign, transforms: Mapping[str, Distribution]) -> "Movement":
        """The one of a guide that is set up."""
        if isinstance(guide, BY_SITE):
            shapes = {f"{site}_{guide.prefix}_loc": shape for site, shape in metric.shapes.items()}
            return cls(Metric(shapes, metric.centre, metric.root), transforms)
        places = guide._unpack_latent(np.arange(len(metric.centre)))
        order = np.argsort(np.concatenate([np.ravel(places[site]) for site in metric.shapes]))
        root = np.linalg.cholesky(metric.covariance[np.ix_(order, order)])
        return cls(Metric({f"{guide.prefix}_loc": order.shape}, metric.centre[order], root), transforms)

    def start(self) -> dict[str, Tree]:
        """Parameters phi of the frame's own normal law, or of its centre."""
        found: dict[str, Tree] = dict(self.metric.start)
        for name, transform in self.transforms.items():
            if name.endswith("_scale_tril"):
                found[name] = transform.inv(jnp.asarray(self.metric.root, float))
            elif name.endswith("_scale"):
                found[name] = transform.inv(jnp.asarray(self._sds(name), float))
        return found

    def outside(self, psi: BySite) -> dict[str, Tree]:
        """phi of the parameters psi of the guide of u."""
        return self._moved(psi, self.metric.latents, self.metric.root, lambda value, sds: value * sds)

    def inside(self, phi: BySite) -> dict[str, Tree]:
        return self._moved(phi, self.metric.coordinates, self.metric.inverse, lambda value, sds: value / sds)

    def _moved(self, params: BySite, locations: Function, matrix: np.ndarray, scaled: Function) -> dict[str, Tree]:
        found = dict(locations({name: params[name] for name in self.metric.shapes}))
        for name, transform in self.transforms.items():
            if name.endswith("_scale_tril"):
                found[name] = transform.inv(jnp.asarray(matrix, float) @ transform(params[name]))
            elif name.endswith("_scale"):
                sds = jnp.asarray(self._sds(name), float)
                found[name] = transform.inv(scaled(transform(params[name]), sds))
        return found

    def _sds(self, name: str) -> np.ndarray:
        found: np.ndarray = self.metric.split(self.metric.given_others)[name.removesuffix("scale") + "loc"]
        return found


def is_of(optim_state: Tree, optim: object) -> bool:
    """Whether an optimiser's state is of its frame, or of none as it; of a traced one whether both have one."""
    mark = optim_state[1].get(_MARK) if isinstance(optim_state[1], dict) else None
    own = getattr(optim, "mark", None)
    return (mark is None) == (own is None) if isinstance(mark, jax.core.Tracer) else mark == own


class MovedOptimizer(_NumPyroOptim):
    """Gradient steps in the parameters of the guide of u, in which the ELBO's curvature is about 1 wherever the frame is right.

    Step number t is 2 / (t + num_steps / 5): late gradients count more, and the noise of all is averaged. So a run spans about
    3.6 relaxation times whatever its budget, and no number changes by more than .5 in a step. Spreads, which a frame knows better
    than noisy gradients do, move by .3 of that. Its pickle holds the two arguments.

    - **num_steps** - length of the run.
    - **movement** - from these to the guide's own parameters.
    - **mark** - of the frame, in its states: those of another frame have other parameters."""

    def __init__(self, num_steps: int, movement: Movement) -> None:
        def update(number: Tree, gradients: Tree, psi: Tree) -> Tree:
            size = 2.0 / (number + _FIRST * num_steps)
            _, pullback = jax.vjp(movement.outside, psi)
            sizes = {name: size * (1.0 if name in movement.metric.shapes else _SPREADS) for name in psi}
            moved = pullback(gradients)[0]
            return {name: psi[name] - jnp.clip(sizes[name] * moved[name], -_MOST, _MOST) for name in psi} | {
                _MARK: psi[_MARK]
            }

        metric = movement.metric
        digest = hashlib.sha256(metric.centre.tobytes() + metric.root.tobytes()).digest()
        self.mark = float(int.from_bytes(digest[:3], "big"))
        super().__init__(lambda: (lambda phi: movement.inside(phi) | {_MARK: self.mark}, update, movement.outside))
        self.num_steps, self.movement = num_steps, movement

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.num_steps, self.movement)
