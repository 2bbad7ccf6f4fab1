"""`clipping_norm="auto"`: a norm from one private histogram of gradients' norms at the start, charged like all else."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from dpppl.access.mechanism import Mechanism
from dpppl.access.norm_histogram import Norms, histogram_mechanism, noisy_histogram
from dpppl.data.rows import number_of
from dpppl.randomness import keys
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.driver import Run, prepare
from dpppl.runs.provenance import KeyOrigin, claim

SHARE = 0.01
"""The share of a run's cost, in mu^2, that the histogram spends."""
QUANTILE, MARGIN = 0.99, 1.25
CENTRED_QUANTILE, KEPT, CENTRED_MARGIN = 0.9, 0.6, 4.0


def histogram_charge(noise_multiplier: float, num_steps: int, mechanism: Mechanism) -> Charge:
    """What the histogram of a run of so many steps, all chains together, at this noise costs.

    The run's mu^2 is num_steps / noise_multiplier^2, with Poisson rows rate^2 num_steps (exp(noise_multiplier^-2) - 1)
    in the limit of many steps, which only decides the share: the account is exact."""
    inverse, rate = noise_multiplier**-2.0, mechanism.subsampling.rate
    cost = num_steps * (inverse if rate == 1.0 else rate**2 * math.expm1(min(inverse, 50.0)))
    noise = ((1.0 - SHARE) / (SHARE * max(cost, 1e-12))) ** 0.5
    relation, door = mechanism.subsampling.neighboring_relation, histogram_mechanism(mechanism.discretise)
    return Charge(door, np.array([noise]), is_query=True, neighboring_relation=relation)


def private_norms(
    statistic: Callable[..., Any], z: Any, rows: Any, public: Any, run: Run, budget: Budget, histogram: Charge,
    charges: Sequence[Charge], begin: Callable[[KeyOrigin], None], choose: Callable[[Norms], None], *, what: str,
) -> Run:  # fmt: skip
    """Let `choose` have the norms of all rows by `statistic(z, row, public)` (see `norms.in_bin`), from one access, charged
    first. Returns the run, which has its `charges` reserved as `what` since before that access.

    The program is proved before, and the run's key is used up here; `begin(origin of the key)` notes that the run begins. What
    the run itself may be refused for is to be asked before, too."""
    key, noise = keys.stream(run.key, "norms"), float(histogram.noise_multipliers[0])
    discretise = histogram.mechanism.discretise

    def query(z: Any, rows: Any, public: Any, key: Any) -> Any:
        return noisy_histogram(statistic, z, rows, public, key=key, noise_multiplier=noise, discretise=discretise)

    arguments = (z, rows, public, key)
    program = prepare(query, arguments, rows=1, quickly=True)
    with contextlib.ExitStack() as held:
        steps = held.enter_context(budget.reserve_for(charges, what, run.run_id))
        with budget.reserve_for([histogram], "clipping norm", f"{run.run_id}.norms") as reservation:
            begin(claim(run.key, again=run.goes_on))
            reservation.charge(0, 1)
            counts = np.asarray(jax.block_until_ready(program(*arguments)))
        choose(Norms.fitted(counts, noise, number_of(rows)))
        held.pop_all()  # the run's own steps come next
    return replace(run, reservation=steps)


@contextlib.contextmanager
def after_histogram(run: Run) -> Iterator[None]:
    """Inside, what fails gives back what the run reserved and says that the histogram, if there was one, stays charged."""
    if run.reservation is None:
        yield
        return
    with run.reservation:
        try:
            yield
        except BaseException as error:
            error.add_note(
                "Before this, the histogram that the clipping norm came from was charged: see privacy_report()."
            )
            raise


def chosen_norm(norms: Norms, is_centred: bool, affordable: float = 0.0) -> float:
    """To four digits, a norm that few rows exceed: 1.25 times the .99 quantile. Centred clipping biases nothing, but loses what
    it clips: it takes what is `affordable`, if that is no more than four times the .99 quantile, and clips at most a tenth of the
    rows, or what keeps 60 % of their squared norms.

    >>> from dpppl.access.norm_histogram import NUM_BINS
    >>> counts = np.zeros(NUM_BINS); counts[17:20] = 200.0, 600.0, 200.0      # norms around 2^(-18 + 18.5)
    >>> norms = Norms.fitted(counts, 5.0, 1000)
    >>> chosen_norm(norms, is_centred=False), chosen_norm(norms, is_centred=True), chosen_norm(norms, True, 3.2)
    (4.601, 2.414, 3.2)
    """
    norm = MARGIN * norms.high_quantile(QUANTILE)
    if is_centred:
        least = max(norms.quantile(CENTRED_QUANTILE), _keeping(norms, KEPT))
        norm = max(least, min(affordable, CENTRED_MARGIN * norms.high_quantile(QUANTILE)))
    return float(f"{norm:.4g}")


def _squared(norms: Norms, norm: float) -> float:
    """The mean of rows' squared norms, clipped to this one, and to the .99 quantile: beyond it a fit's tail is a guess."""
    longest = min(norm, norms.high_quantile(QUANTILE))
    return norms.mean(lambda x: np.minimum(x, longest) ** 2)


def _keeping(norms: Norms, share: float) -> float:
    """The norm that keeps this share of the rows' squared norms."""
    candidates = 2.0**norms.edges
    kept = [_squared(norms, norm) for norm in candidates]
    return float(np.interp(share * kept[-1], kept, candidates))


def affordable_norm(norms: Norms, num_latents: int, num_rows: int, diffusion_time: float) -> float:
    """The norm at which a chain can still explore most directions, where its `diffusion_time` is that at norm 1.

    The time falls with the square of the norm; 100 / time is the smallest curvature that may be read (`mixing_line`). Rows'
    squared norms, summed and divided by `num_latents`, are that of an average direction; as they are longer at the start
    than later, and directions differ, 32 times as much is asked for.

    >>> norms = Norms(np.array([-0.5, 0.5]), np.array([1.0]), 0.0)                 # all of length 1
    >>> affordable_norm(norms, num_latents=5, num_rows=10_000, diffusion_time=1.0)
    0.7905694150420949
    """
    curvature = num_rows * _squared(norms, np.inf) / num_latents
    return float((diffusion_time * curvature / (32.0 * 100.0)) ** 0.5)
