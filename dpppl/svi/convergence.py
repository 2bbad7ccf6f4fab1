"""Whether a run has arrived, from the noisy gradients that it released: free, and without losses.

Noise is independent from step to step. So the noisy gradients of a parameter that nothing pulls are white: slow cosines
of them (a discrete cosine transform over the tail) have the power of fast ones. Where the optimiser still drifts, slow
cosines have more, because the gradient keeps its sign. Where it is held at an optimum they have less: their sum is the
way that the parameter went, which stays bounded. Fast cosines measure privacy noise, subsampling and guide draws alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpppl.errors import ConfigurationError

ARRIVED, MOVING, UNDECIDED, DIVERGED = "arrived", "still moving", "too few steps to tell", "not finite"
FALSE_ALARM, FALSE_ARRIVAL = 0.01, 0.05
_MIN_LENGTH, _SLOW, _SLOWEST, _SETTLED = 40, 8, 2, 1e-4


@dataclass(frozen=True, kw_only=True)
class ParameterConvergence:
    """Of one parameter. `slow_power`: power of the eight slowest cosines of its noisy gradients over that of the fast
    ones, a mean over its numbers: 1 if nothing pulls, above if it drifts, below if it is held. `p_value`: chance of the
    two slowest being as strong where nothing pulls."""

    name: str
    verdict: str
    slow_power: float
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Whether the tail of a run has arrived; `str()` is the text.

    `verdict`: "arrived", "still moving", "too few steps to tell" or "not finite". `parameters`: the same for each
    parameter. `num_iterates`: how many kept gradients of the tail it is made from; 40 are needed.
    """

    verdict: str
    parameters: tuple[ParameterConvergence, ...]
    num_iterates: int

    def __str__(self) -> str:
        if self.num_iterates < _MIN_LENGTH:
            why = f"; the tail holds {self.num_iterates} iterates, {_MIN_LENGTH} are needed. Run longer or lower thinning."
            return f"convergence: {self.verdict}{why}"
        lines = [f"convergence: {self.verdict}{_ADVICE[self.verdict]}"]
        width = max((len(p.name) for p in self.parameters), default=0)
        for p in self.parameters:
            lines.append(f"  {p.name:<{width}}  {p.verdict:<{len(UNDECIDED)}}  slow changes {p.slow_power:.3g} x noise")
        return "\n".join(lines)


_ADVICE = {
    ARRIVED: "; more steps of this kind would not move it beyond its noise.",
    MOVING: "; run longer, or raise the learning rate.",
    UNDECIDED: "; what they move is less than their noise hides. Run longer, or raise the learning rate.",
    DIVERGED: "; lower the learning rate.",
}


def tail_of(trajectory: Any, tail: float) -> Any:
    """The last share `tail` of a trajectory, a pytree of leaves (number kept, ...).

    Raises ConfigurationError unless 0 < tail <= 1."""
    if not 0.0 < tail <= 1.0:
        raise ConfigurationError("tail is the share of the trajectory to use, in (0, 1].")
    length = len(jax.tree.leaves(trajectory)[0])
    return jax.tree.map(lambda x: x[length - max(1, round(tail * length)) :], trajectory)


def convergence(gradients: Mapping[str, Any], tail: float = 0.5) -> Convergence:
    """What the noisy gradients of a run, leaves (number kept, ...) by parameter, say of its tail.

    "still moving": in some parameter the two slowest cosines are stronger than noise explains, together or in one number
    of it (F tests, Bonferroni over numbers and parameters). Chance where nothing pulls: at most 1 % in all; far less
    where the parameters are held. "arrived": in every parameter the eight slowest have less than half the power of the
    fast ones, which has a chance of at most 5 % a parameter where nothing pulls. That takes a tail of about 10 times the
    time in which the optimiser forgets where it was, and of 40 for a parameter that is a single number. Anything else,
    and fewer than 40 gradients in the tail, is "too few steps to tell".

    The numbers of a parameter may have dependent noise: how many independent ones they are worth is estimated from the
    fast cosines (Satterthwaite 1946). Numbers whose mean gradient has fallen below 1e-4 of the largest that the
    run saw count as arrived, whatever the noise. Assumes noise that is independent between steps; with Partition the
    noise of rows cancels over an epoch, so that a run whose other noise is small may be called held too early.
    It speaks of the clipped objective, and of the optimum that was found.
    """
    named = {
        name + jax.tree_util.keystr(path): np.asarray(leaf, np.float64).reshape(len(leaf), -1)[:-1]
        for name, tree in gradients.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }  # the last may be a mean over fewer steps
    length = len(next(iter(tail_of(named, tail).values())))
    parameters = []
    for name, all_of_it in sorted(named.items()):
        of_tail = all_of_it[len(all_of_it) - length :]
        if not np.all(np.isfinite(all_of_it)):
            verdict, power, p_value = DIVERGED, np.nan, np.nan
        elif length < _MIN_LENGTH:
            verdict, power, p_value = UNDECIDED, np.nan, np.nan
        else:
            power, p_value, p_low = _whiteness(of_tail, np.abs(all_of_it).max(axis=0))
            held = power < 0.5 and p_low < FALSE_ARRIVAL
            verdict = MOVING if p_value * len(named) < FALSE_ALARM else ARRIVED if held else UNDECIDED
        parameters.append(ParameterConvergence(name=name, verdict=verdict, slow_power=power, p_value=p_value))
    found = {p.verdict for p in parameters}
    verdict = next((v for v in (DIVERGED, MOVING, UNDECIDED) if v in found), ARRIVED)
    return Convergence(verdict=verdict, parameters=tuple(parameters), num_iterates=length)


def _whiteness(gradients: np.ndarray, largest: np.ndarray) -> tuple[float, float, float]:
    """Of gradients (steps, numbers): slow power over fast, the chance of more in the slowest, and of less in the slow."""
    from scipy import fft, stats

    halves = np.abs([half.mean(axis=0) for half in np.array_split(gradients, 2)]).max(axis=0)
    gradients = gradients[:, halves > _SETTLED * largest]
    if not gradients.size:
        return 0.0, 1.0, 0.0
    power, num_fast = fft.dct(gradients, axis=0, norm="ortho") ** 2, len(gradients) - _SLOW
    relative = power / np.maximum(power[_SLOW:].mean(axis=0), np.finfo(float).tiny)
    mean = relative.mean(axis=1)
    slow, slowest = mean[:_SLOW].mean() * (1.0 - 2.0 / num_fast), mean[:_SLOWEST].mean() * (1.0 - 2.0 / num_fast)
    # 95 % bound on the variance of one cosine, from which 2 / variance degrees of freedom
    variance = mean[_SLOW:].var(ddof=1) * num_fast / stats.chi2.ppf(0.05, num_fast)
    freedom = min(max(2.0 / max(variance, 1e-300), 1.0), gradients.shape[1])
    together = stats.f.sf(slowest, _SLOWEST * freedom, num_fast * freedom)
    alone = gradients.shape[1] * stats.f.sf(relative[:_SLOWEST].mean(axis=0).max(), _SLOWEST, num_fast)
    p_low = stats.f.cdf(slow, _SLOW * freedom, num_fast * freedom)
    return float(slow), float(min(1.0, 2.0 * together, 2.0 * alone)), float(p_low)
