"""Price a run by the Bayesian accountant, from gradients of sampled rows at the positions that the run has released.

Not private: the price is computed from rows without noise. It is no part of any report."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpppl
from dpppl.access.clipping import Flat
from dpppl.access.mechanism import Mechanism
from dpppl.data.disk import Draw, OnDisk
from dpppl.data.rows import number_of, of_one_process, placement_of
from dpppl.errors import ConfigurationError, warn
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING, clears_tracebacks
from dpppl.subsampling import FullBatch, Poisson
from dpppl.svi.result import SVIResult
from dpppl.validation import positive_integer
from examples.papers.bayesian_accountant import BayesianAccountant, BayesianSpent

_NOT_PRIVATE = (
    "the Bayesian epsilon is computed from private rows without noise, holds for rows like the data's only, and is no "
    "differential privacy: keep it beside the report, and publish it only where that has been agreed."
)


def bayesian_spent(
    charge: Charge, gradient: Callable[..., Any], positions: Mapping[int, Any], rows: Any, public: Any, *,
    num_rows: int, delta: float,
) -> BayesianSpent:  # fmt: skip
    """The cost of one charge's accesses to typical rows.

    - **charge**: the accesses of a run, of all its chains.
    - **gradient**: `gradient(position, row, public, key)`, what the mechanism clips of one row; the key is for draws that are
      independent from row to row and from access to access.
    - **positions**: by number of the access, from 0, the position it took place at, with a leading axis of chains. Accesses
      that are left out, such as those of a warmup that was not collected, count as if every row had the clipping norm.
    - **rows**, **public**: the private rows, leading axis N, and the Public arrays of the model.
    - **num_rows**: how many distinct rows to draw, at random.
    - **delta**: of `BayesianAccountant`.

    Guarantee: none of differential privacy. Raises ConfigurationError for clipping that is not flat, and for subsampling
    that is neither Poisson nor of full batches.
    """
    mechanism, subsampling = charge.mechanism, charge.mechanism.subsampling
    if type(mechanism.clipping) is not Flat:
        raise ConfigurationError(
            'the Bayesian accountant needs clipping="flat" with a number for clipping_norm: it compares a row with its absence.'
        )
    if not isinstance(subsampling, FullBatch | Poisson):
        raise ConfigurationError("the Bayesian accountant needs dpppl.Poisson(rate) or dpppl.FullBatch().")
    total = number_of(of_one_process(rows, "bayesian_spent"))
    num_rows = min(positive_integer(num_rows, name="num_rows"), total)
    rng = np.random.default_rng()
    drawn = np.sort(rng.choice(total, num_rows, replace=False))
    key = jax.random.key(int(rng.integers(2**32)))
    accountant = BayesianAccountant(
        noise_multipliers=np.repeat(charge.noise_multipliers, charge.chains),
        sampling_rate=float(subsampling.rate),
        delta=delta,
    )
    warn(_NOT_PRIVATE)
    with TRACING:
        is_on_disk = isinstance(placement_of(rows), OnDisk)
        sampled = Draw(rows.placement)(drawn) if is_on_disk else jax.tree.map(lambda x: x[drawn], rows)
        lengths = _lengths(mechanism, gradient)

        def norms() -> Iterator[np.ndarray]:
            for number in range(charge.num_steps):
                for chain in range(charge.chains):
                    if number not in positions:
                        yield np.ones(num_rows)
                        continue
                    position = jax.tree.map(lambda x: jnp.asarray(x)[chain], positions[number])  # noqa: B023
                    keys = jax.random.split(jax.random.fold_in(key, number * charge.chains + chain), num_rows)
                    yield np.asarray(lengths(position, sampled, public, keys), np.float64)

        return accountant.spent(norms())


def kept_positions(iterates: Any, first: int, thinning: int, num_steps: int) -> dict[int, Any]:
    """By number of the access, the position it took place at: that after as many steps.

    - **iterates**: positions (chains, draws, ...); the first after `first + thinning` steps, then one every `thinning`.
    - **num_steps**: accesses a chain; the last position is nobody's.
    """
    draws = jax.tree.leaves(iterates)[0].shape[1]
    numbers = first + thinning * np.arange(1, draws + 1)
    return {
        int(number): jax.tree.map(lambda x: x[:, place], iterates)  # noqa: B023
        for place, number in enumerate(numbers)
        if number < num_steps
    }


def _lengths(mechanism: Mechanism, gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Of (position, rows, public, keys): how far each row moves an access, as a share of its sensitivity; (rows,)."""
    norm, share = mechanism.clipping.clipping_norm, mechanism.count_share

    @jax.jit
    def lengths(position: Any, rows: Any, public: Any, keys: Any) -> Any:
        found = jax.vmap(gradient, (None, 0, None, 0))(position, rows, public, keys)
        squares = sum(jnp.sum(jnp.reshape(leaf, (leaf.shape[0], -1)) ** 2, axis=1) for leaf in jax.tree.leaves(found))
        ratio = jnp.nan_to_num(jnp.sqrt(squares) / norm, nan=1.0)
        return jnp.sqrt((1.0 - share) * jnp.minimum(ratio, 1.0) ** 2 + share)  # a counted row also moves the count

    return lengths


@clears_tracebacks
def chain_spent(
    mcmc: dpppl.MCMC, *args: Any, num_rows: int = 1000, delta: float = 1e-10, **kwargs: Any
) -> BayesianSpent:
    """Estimate the cost of the last run of an MCMC to rows like the data's, by the Bayesian accountant.

    - **mcmc** - an MCMC that ran with `extra_fields=("z",)`.
    - **args**, **kwargs** - those of `run`.
    - **num_rows** - number of rows to look at, drawn at random.
    - **delta** - delta of the accountant; steps that were not collected count at the clipping norm.

    Guarantee: none of differential privacy.
    Raises ConfigurationError for clipping that is not flat, and other subsampling than Poisson or full batches."""
    positions = mcmc.get_extra_fields(group_by_chain=True).get("z")
    if positions is None:
        raise ConfigurationError('chain_spent needs the positions of the chains: mcmc.run(..., extra_fields=("z",)).')
    last = mcmc.last_state
    with TRACING:
        bound = mcmc.calibrated_kernel().bind(args, kwargs)
        rows, public = bound.split.arrays(args, kwargs)
    # a search for step sizes looks at the data elsewhere than at its positions
    searched = int(np.max(last.search.until)) if bound.kernel.searches else 0
    chains, draws = jax.tree.leaves(positions)[0].shape[:2]
    steps = int(np.max(last.i))
    kept = kept_positions(jax.tree.map(jnp.asarray, positions), steps - draws * mcmc.thinning, mcmc.thinning, steps)
    gradient = jax.grad(bound.log_likelihood)
    return bayesian_spent(
        bound.kernel.charge(0, steps, chains),
        lambda z, row, public, key: gradient(bound.coordinates(z), row, public),
        {number: position for number, position in kept.items() if number >= searched},
        rows, public, num_rows=num_rows, delta=delta,
    )  # fmt: skip


@clears_tracebacks
def svi_spent(
    svi: dpppl.SVI, result: SVIResult, *args: Any, num_rows: int = 1000, delta: float = 1e-10, **kwargs: Any
) -> BayesianSpent:
    """Estimate the cost of a run of SVI to rows like the data's, by the Bayesian accountant.

    - **svi** - an SVI.
    - **result** - of this object's last run; the more iterates it keeps, the better: steps between them count at the
      clipping norm.
    - **args**, **kwargs** - those of `run`.
    - **num_rows**, **delta** - as in `bayesian_spent`.

    Guide draws are private no more than parameters are; fresh ones stand for those that were made, one a row and step.
    Raises ConfigurationError for clipping that is not flat, subsampling that is neither Poisson nor of full batches, and
    a guide that draws latents of rows."""
    charge = next(charge for charge in reversed(svi.budget.charged) if not charge.is_query)
    objective, trajectory = svi.objective(), result.trajectory
    if objective.reads_rows:
        raise ConfigurationError("svi_spent needs a model and guide whose latents all rows share.")
    rows, public = objective.split.arrays(args, kwargs)
    kept = jax.tree.leaves(trajectory)[0].shape[0]
    thinning = -(-charge.num_steps // kept)

    def aligned(phi: Any, row: Any, public: Any, key: Any) -> Any:
        _, z = objective.draws(phi, key, public)
        return jax.grad(objective._sum_over_particles)(z, row, public)

    def per_parameter(phi: Any, row: Any, public: Any, key: Any) -> Any:
        return jax.grad(objective.mean_log_likelihood)(phi, row, (public, key))

    iterates = jax.tree.map(lambda x: np.asarray(x)[None], trajectory)
    positions = kept_positions(iterates, 0, thinning, charge.num_steps)
    of = {"aligned": aligned, "per_parameter": per_parameter}[svi.gradient]
    return bayesian_spent(charge, of, positions, rows, public, num_rows=num_rows, delta=delta)
