"""The private histogram of gradient norms, from which a run chooses its clipping norm: its cost, its program, what it says."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access import norm_histogram
from dpppl.access.mechanism import Mechanism
from dpppl.access.norm_histogram import Norms, gradient_norm, histogram_mechanism, noisy_histogram
from dpppl.findings.counted_rows import CountedRows
from dpppl.model.initialization import prior_scales
from dpppl.model.split import SplitModel
from dpppl.model.supports import codes
from dpppl.model.units import is_outside
from dpppl.randomness import keys
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING, Program, prepare
from dpppl.types import BySite, Function, Tree

_UNSURE, _NEGLIGIBLE = 3.0, 1e-3  # sd, in octaves, of where norms are expected; a part of the rows' information
SHARE = 0.01
"""The share of a run's cost, in mu^2, that the histogram spends."""


def histogram_charge(noise_multiplier: float, num_steps: int, mechanism: Mechanism) -> Charge:
    """The cost of the histogram of a run of `num_steps` steps of all chains together: a share of the run's mu^2. That is
    num_steps / noise_multiplier^2 here; of Poisson rows, what it is for many steps."""
    inverse, rate = noise_multiplier**-2.0, mechanism.subsampling.rate
    cost = num_steps * (inverse if rate == 1.0 else rate**2 * math.expm1(min(inverse, 50.0)))
    noise = ((1.0 - SHARE) / (SHARE * max(cost, 1e-12))) ** 0.5
    relation, door = mechanism.subsampling.neighboring_relation, histogram_mechanism(mechanism.discretise)
    return Charge(door, np.array([noise]), is_query=True, neighboring_relation=relation)


def _same(z: Tree) -> Tree:
    return z


@dataclass(frozen=True)
class Histogram:
    """The histogram of a run's gradient norms, before it is made.

    - **statistic** - `statistic(at, row, public)`, the bin of a row's gradient norm; see `norm_histogram.gradient_norm`.
    - **start**, **scales** - where the run starts, and the standard deviations of the prior.
    - **codes** - for each observed site the values that its distribution takes; see `supports.codes`.
    - **charge** - its cost."""

    statistic: Function
    start: BySite
    scales: BySite
    codes: tuple[str, ...]
    charge: Charge

    @classmethod
    def starting(
        cls, z: BySite, split: SplitModel, public: Tree, charge: Charge, space: Tree = None, is_white: bool = False,
        marked: Function = _same,
    ) -> "Histogram":  # fmt: skip
        """The histogram of a run that starts at the unconstrained latents z.

        - **space** - has `coordinates(z)`, in which gradients are clipped, and their inverse, `latents(u)`; None: z itself.
        - **is_white** - whether the posterior is nearly white there: scales are then 1.
        - **marked** - see `Mechanism.marked`."""
        coordinates, latents = (_same, _same) if space is None else (space.coordinates, space.latents)
        log_likelihood = marked(lambda u, *rest: split.log_likelihood(latents(u), *rest))
        statistic = gradient_norm(log_likelihood, lambda u, *rest: is_outside(split, latents(u), *rest))
        with TRACING:
            if is_white:
                scales = {site: np.ones(latent.shape) for site, latent in split.latents.items()}
            else:
                scales = coordinates(prior_scales(split, public))
            return cls(statistic, coordinates(z), scales, codes(split), charge)

    @property
    def noise_multiplier(self) -> float:
        return float(self.charge.noise_multipliers[0])

    def program(self, key: jax.Array, rows: Tree, public: Tree) -> tuple[Program, tuple[Tree, ...]]:
        """The access of a run with this key as a program, proved, and its arguments."""
        noise, discretise = self.noise_multiplier, self.charge.mechanism.discretise

        def query(z: BySite, rows: Tree, public: Tree, key: jax.Array) -> Tree:
            return noisy_histogram(
                self.statistic, z, rows, public, key=key, noise_multiplier=noise, discretise=discretise
            )

        arguments = (self.at(), rows, public, keys.stream(key, "norms"))
        return prepare(query, arguments, rows=1, quickly=True), arguments

    @property
    def scale(self) -> float:
        """The median standard deviation of the prior."""
        return float(np.median(np.concatenate([np.ravel(scale) for scale in self.scales.values()])))

    def at(self) -> Tree:
        """The points at which gradients are taken: the start, and half a prior sd from it in two opposite directions."""
        rng = np.random.default_rng(0)
        half = {site: 0.5 * scale * rng.choice([-1.0, 1.0], np.shape(scale)) for site, scale in self.scales.items()}
        # Not at the start itself: NumPyro's Bernoulli, for one, has another gradient at logits of exactly 0.
        far = {site: jnp.stack([z + half[site], z - half[site]]).astype(z.dtype) for site, z in self.start.items()}
        return {"start": jax.tree.map(lambda z: z + 1e-4, self.start), "far": far}

    def found(self, counts: np.ndarray, num_rows: int) -> tuple[Norms, CountedRows]:
        """The norms of so many rows, and the rows that have none, from noised counts."""
        scale, noise_std = self.scale, self.noise_multiplier
        norms = Norms.fitted(counts, noise_std, num_rows, (-float(np.log2(scale)), _UNSURE), scale, _NEGLIGIBLE)
        bins = dict(silent=norm_histogram.SILENT, missing=norm_histogram.MISSING, outside=norm_histogram.OUTSIDE)
        shares = {kind: float(counts[number]) / num_rows for kind, number in bins.items()}
        octaves = norms.error if norms.are_hidden else None
        return norms, CountedRows(**shares, std=noise_std / num_rows, codes=self.codes, octaves=octaves)
