"""The subsampled Gaussian mechanism: what one access of the rows computes, and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access import ghost_sum
from dpppl.access.clipping import COUNT_SENSITIVITY, NUM_COUNTS, SLACK, Flat, with_count
from dpppl.access.drawn import from_first, rows_of_step
from dpppl.access.exact_sum import sum_of_rows
from dpppl.accounting.events import GaussianEvent, round_down
from dpppl.accounting.relations import relation_of
from dpppl.data.disk import of_row
from dpppl.data.rows import Placement, devices_of
from dpppl.errors import ConfigurationError
from dpppl.randomness import discrete_gaussian as discrete
from dpppl.randomness import keys, normal
from dpppl.row_program.hoist import Marked
from dpppl.row_program.materialize import Statistic, materialize
from dpppl.subsampling import Poisson, Subsampling
from dpppl.types import Function, Tree

ACCOUNTED = (1.0 - 4e-6) / (1.0 + SLACK)
"""Share of a noise multiplier that the account uses: less the slack of the sensitivity and of rounding on the device."""

ROW_NUMBER = "(row number)"
"""Label of a row's place in its step, a public number, which gives the row draws of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mechanism:
    """The subsampled Gaussian mechanism on clipped per-row gradients.

    `M(z) = sum over drawn rows of clip(grad log_likelihood(z, row)) + clipping_norm * noise_multiplier * xi`, xi standard normal.

    - **clipping** - how a row's gradient is bounded.
    - **subsampling** - which rows an access draws.
    - **strategy** - "auto", "vmap", "microbatch" or "ghost": how rows' gradients are summed.
    - **discretise** - whether to round clipped rows to a grid and to draw xi from a discrete Gaussian on it: integers
      throughout. The noise's standard deviation is 2^31 grid steps. Norms are lowered by the most that rounding can add.
    - **count_share** - the share of an access's cost, in noise_multiplier^-2, of counts of rows, released with the sum as one
      event; the sum's noise is then larger by (1 - count_share)^(-1/2).

    Guarantee: one call is one access of `event`; the un-noised sum exists nowhere outside. Nothing is scaled by the
    number of rows drawn."""

    clipping: Flat
    subsampling: Subsampling
    strategy: str = "auto"
    discretise: bool = False
    count_share: float = 0.0

    def __post_init__(self) -> None:
        if self.strategy not in ("auto", "vmap", "microbatch", "ghost"):
            raise ConfigurationError('gradient_strategy must be "auto", "vmap", "microbatch" or "ghost".')
        if self.strategy == "ghost" and self.discretise:
            raise ConfigurationError(
                'gradient_strategy="ghost" adds products of floating-point numbers, which discretise=True cannot round row '
                'by row; use "auto".'
            )

    @property
    def counts(self) -> bool:
        """Whether an access also returns a count."""
        return self.count_share > 0.0

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise in a coordinate of the sum, for a noise multiplier of 1."""
        return self.clipping.clipping_norm / (1.0 - self.count_share) ** 0.5

    @property
    def count_std(self) -> float:
        """Standard deviation of the noise in each count, for a noise multiplier of 1."""
        return COUNT_SENSITIVITY / self.count_share**0.5 if self.counts else float("nan")

    def marked(self, log_likelihood: Function) -> Function:
        """The log likelihood of a row, `Marked` where rows that are not finite are counted and gradients are formed."""
        return Marked(log_likelihood) if self.counts and self.strategy != "ghost" else log_likelihood

    def access(
        self, statistic: Function, rows: Tree, number: str | None, key: jax.Array, noise_multiplier: jax.Array,
        step: jax.Array, forms: ghost_sum.Forms | None = None, placement: Placement | None = None,
    ) -> Tree:  # fmt: skip
        """The door's computation: subsample, clip the statistic of each row, sum, and add noise.

        - **statistic** - `statistic(row)`; with `forms`, factors of a gradient, which are weighted so that it is clipped.
        - **rows** - private arrays (N, ...); of several devices, those of this one.
        - **number** - name under which a row holds its place among those of the step, or None.
        - **key**, **noise_multiplier**, **step** - as for `door.noisy_statistic`.
        - **forms** - how the statistic gives the factors of a gradient, or None.
        - **placement** - where rows are sharded over devices or on disk; all devices return the same."""
        drawn = rows_of_step(self.subsampling, keys.stream(key, "subsampling"), step, rows, number, placement)
        clip = with_count(self.clipping) if self.counts else self.clipping.clip
        like = jax.eval_shape(statistic, one_of(rows, number, placement)) if forms is None else forms.like
        placement = devices_of(placement)
        if self.counts:
            like = like, jnp.zeros(NUM_COUNTS)
        leaves, tree = jax.tree.flatten(like)
        sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
        with jax.enable_x64(True):
            scales, norms, steps = self._scales(noise_multiplier.astype(jnp.float64), sizes)
        steps = None if steps is None else jax.tree.unflatten(tree, steps)
        if forms is not None:
            total = ghost_sum.clipped_sum(statistic, forms, drawn, self.clipping, self.counts, placement)
        else:
            of_row = Statistic.of(statistic)
            if self.counts:
                of_row = of_row.then(lambda gradients: (gradients, jnp.zeros(NUM_COUNTS)))
            total = sum_of_rows(of_row, drawn, clip, strategy=self.strategy, steps=steps, placement=placement)
        noise_key = jax.random.fold_in(keys.stream(key, "noise"), step)
        settings = jax.tree.leaves(total), scales, norms, [leaf.dtype for leaf in leaves]
        rounded = lambda: normal.added(discrete.discrete_normal(noise_key, sum(sizes)), *settings)  # noqa: E731
        noisy = rounded if self.discretise else lambda: normal.noised(noise_key, *settings)
        with jax.enable_x64(True):  # stored, so that what is made of it does not depend on how devices were added up
            stored = noisy if placement is None else lambda: materialize(noisy, total)
            return jax.tree.unflatten(tree, from_first(stored, placement))

    def _scales(self, noise_multiplier: jax.Array, sizes: Sequence[int]) -> tuple[Tree, Tree, Tree]:
        """For each leaf: the noise's scale, by what to multiply the noised sum, and by what rows before they are
        rounded to whole numbers (None for all if they are not)."""
        norms: list[Tree] = [np.float64(self.clipping.clipping_norm)] * len(sizes)
        scales = [noise_multiplier] * len(sizes)
        if self.counts:  # the count is the last leaf
            share, norms[-1] = self.count_share, np.float64(1.0)
            scales = [noise_multiplier / np.sqrt(1.0 - share)] * (len(sizes) - 1)
            scales += [noise_multiplier * COUNT_SENSITIVITY / np.sqrt(share)]
        if not self.discretise:
            return scales, norms, None
        rounding = 0.5 * np.sqrt(sum(sizes)) * noise_multiplier / discrete.STD  # the norm that rounding may add
        steps = [jnp.maximum(0.0, 1.0 - rounding) * discrete.STD / scale for scale in scales]
        return [1] * len(sizes), [norm * scale / discrete.STD for norm, scale in zip(norms, scales)], steps

    def sensitivity(self, neighboring_relation: str) -> float:
        """Largest L2 change of the clipped sum between neighbours, without floating-point slack.

        >>> from dpppl.subsampling import FullBatch
        >>> Mechanism(clipping=Flat(2.0), subsampling=FullBatch()).sensitivity("replace_one")
        4.0
        """
        return self.clipping.clipping_norm * relation_of(neighboring_relation).sensitivity

    @property
    def neighboring_relation(self) -> str:
        """The relation that the report states: rows are held in arrays whose length is visible, so N is public."""
        return self.subsampling.neighboring_relation

    def event(self, noise_multipliers: object, first: int = 0, repeats: int = 1) -> GaussianEvent:
        """The charges for accesses number first, first + 1, ... with these noise multipliers, `repeats` times (chains).

        They are lowered by 4e-6, so that rounding on the device cannot make the account too small."""
        values = np.asarray(noise_multipliers, np.float64)
        accounted = np.tile(self.subsampling.accounted(values, first), repeats)
        sampling = discrete.FAILURE_PROBABILITY if self.discretise else 0.0
        num_values = 64 if self.subsampling.event_fields else 4096  # the exact Gaussian formula takes any number
        return GaussianEvent(
            noise_multipliers=round_down(accounted * ACCOUNTED, num_values),
            neighboring_relation=self.neighboring_relation,
            failure_probability=(self.subsampling.failure_probability + sampling) * values.size * repeats,
            discrete=self.discretise,
            **self.subsampling.event_fields,
        )

    def with_norm(self, clipping_norm: float) -> "Mechanism":
        """The same mechanism with another norm."""
        return replace(self, clipping=replace(self.clipping, clipping_norm=clipping_norm))

    def with_overflow_probability(self, probability: float) -> "Mechanism":
        """The same mechanism with another bound on a step's overflow."""
        if not isinstance(self.subsampling, Poisson):
            return self
        return replace(self, subsampling=replace(self.subsampling, overflow_probability=probability))


def one_of(rows: Tree, number: str | None, placement: Placement | None) -> Tree:
    """Shapes and types of one row, with its place among those of the step under this name.

    - **rows** - private arrays (N, ...).
    - **number** - that name, or None.
    - **placement** - where rows are sharded or on disk."""
    row = jax.tree.map(lambda x: of_row(x, placement), rows)
    return row if number is None else {**row, number: jax.ShapeDtypeStruct((), np.int32)}
