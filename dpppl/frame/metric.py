"""Coordinates in which a posterior is nearly white: where chains move and guides are fitted, once a frame was released."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.findings.counted_rows import of_information
from dpppl.findings.directions import add_up, known_together
from dpppl.findings.finding import Finding, Found, Level, care, note
from dpppl.noise_aware.verdict import MOST_MOVED, NoiseAwareVerdict, against, misfit
from dpppl.types import Numbers, Tree
from dpppl.validation import element_name

Array = np.ndarray
_SHARE = 0.1
_DOUBT = 0.65  # of the chi-squared at which a model is wrong: a tenth of right models
_UNSEEN = 4.0  # posterior sds: a misfit that may move estimates by more and is not seen, is a doubt


@dataclass(frozen=True, eq=False)
class Metric:
    """u of z = centre + root u, for unconstrained latents z, by site. Values may have leading axes.

    - **shapes** - shapes of latents by site, in the order of the vectors.
    - **centre** - (d,).
    - **root** - (d, d), lower triangular, of the covariance.
    - **kept** - the share of the likelihood's curvature that clipped scores keep: their sum divided by it is unbiased around the
      mode.
    - **information** - the trace of the likelihood's curvature in u; None: 1 for each latent.
    - **informed** - the share of the information that clipped scores hold, as far as the histogram of norms shows it.
    - **cut** - the part of scores that was clipped, over scores, by root mean squares.
    - **fit** - NoiseAware's verdict on the accesses that the frame came from, None without such.
    - **unknown** - the latents whose scale noise hid from the frame, (d,); None: none of them."""

    shapes: Mapping[str, tuple[int, ...]]
    centre: Array
    root: Array
    kept: float = 1.0
    information: float | None = None
    informed: float = 1.0
    cut: float = 0.0
    fit: NoiseAwareVerdict | None = None
    unknown: Array | None = None

    @cached_property
    def inverse(self) -> Array:
        return np.linalg.inv(self.root)

    @property
    def covariance(self) -> Array:
        """The covariance of z where u is white, (d, d)."""
        return self.root @ self.root.T

    @property
    def given_others(self) -> Array:
        """The sd of each latent given all others, (d,)."""
        found: Array = np.sum(self.inverse**2, axis=0) ** -0.5
        return found

    @property
    def narrowed(self) -> dict[str, Array]:
        """By what a normal law without correlations is narrower than this one, of each latent, by site."""
        return self.split(np.sqrt(np.diag(self.covariance)) / self.given_others)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings on a run that clips scores in these coordinates: how much of the information it holds, how far the model's
        misfit, as ranks of responses showed it to the frame, moves estimates, and latents that are known only together."""
        names = [element_name(site, i) for site, shape in self.shapes.items() for i in np.ndindex(*shape)]
        known = add_up(known_together(names, self.covariance))
        return (*self._moved(), *of_information(self.informed), *([note(known)] if known else []))

    def _moved(self) -> Found:
        if self.fit is None or not self.cut:
            return
        run = replace(self.fit, cut=self.cut, unseen=self.cut * self.fit.unseen)
        if run.unseen > _UNSEEN:  # where the frame failed, most responses are next to impossible
            run = replace(run, impossible=(0.0, 0.0))
        for doubt in misfit(run, _UNSEEN):
            yield replace(doubt, level=Level.CARE) if doubt.level == Level.REFUSED and run.moved < MOST_MOVED else doubt
        if run.is_wrong and not against(run) and (lines := against(run, _DOUBT)):
            what = f"the model may be wrong: {'; '.join(lines)}; clipping may move estimates by {run.moved:.1f} posterior sd"
            yield care(what, "use a richer model, a larger epsilon, or dpppl.NoiseAware, which clips less.")

    @property
    def start(self) -> dict[str, Array]:
        return dict(self.split(jnp.asarray(self.centre, float)))

    def coordinates(self, z: Tree) -> dict[str, Tree]:
        """The coordinates u of z, by site."""
        return self.split((self.vector(z) - self.centre.astype(np.float32)) @ self.inverse.T.astype(np.float32))

    def latents(self, u: Tree) -> dict[str, Tree]:
        return self.split(self.vector(u) @ self.root.T.astype(np.float32) + self.centre.astype(np.float32))

    def gradient(self, gradient: Tree) -> dict[str, Tree]:
        """The gradient in z where this is the one in u."""
        return self.split(self.vector(gradient) @ self.inverse.astype(np.float32))

    def least(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Of each latent, the least value of the coordinates that have a tenth of its variance; all by site."""
        flat = np.concatenate([np.ravel(values[site]) for site in self.shapes]).astype(float)
        shares = self.root**2 / np.sum(self.root**2, axis=1, keepdims=True)
        return self.split(np.min(np.where(shares > _SHARE, flat, np.inf), axis=1))

    def hides(self, site: str) -> Array:
        """Which elements of a latent are `unknown`."""
        unknown = np.zeros(len(self.centre), bool) if self.unknown is None else self.unknown
        return np.asarray(self.split(unknown)[site])

    def vector(self, z: Tree) -> jax.Array:
        """The vectors (..., d) of values by site."""
        site, shape = next(iter(self.shapes.items()))
        leading = np.shape(z[site])[: np.ndim(z[site]) - len(shape)]
        return jnp.concatenate(
            [jnp.reshape(z[s], (*leading, math.prod(own))) for s, own in self.shapes.items()], axis=-1
        )

    def split(self, vector: Numbers) -> dict[str, Tree]:
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])
        parts = zip(self.shapes.items(), [0, *ends], ends)
        return {site: vector[..., a:b].reshape((*vector.shape[:-1], *shape)) for (site, shape), a, b in parts}
