"""Whether a run has arrived, from the noisy gradients that it released: free, and without losses.

Noise is independent from step to step. So the noisy gradients of a parameter whose true gradient is zero are white: low
frequencies (of a discrete cosine transform over the steps) have the power of high ones. Where the optimiser drifts, low
frequencies have more, because the gradient keeps its sign. At an optimum they have less: gradients add up to the
displacement of the parameter, which stays bounded. High frequencies measure privacy noise, subsampling and guide draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.findings.counted_rows import BIASED, IGNORED, ClippedRows, CountedRows
from dpppl.findings.finding import REFUSED, Finding, Found, Verdict, care, few, findings_of, note, refused, sites_with
from dpppl.findings.learned import LEARNED, PARTLY, PRIOR
from dpppl.output import aligned
from dpppl.report.labels import NO_LABELS, Labels
from dpppl.types import Tree

ARRIVED, MOVING, UNDECIDED, DIVERGED = "arrived", "still moving", "too few steps to tell", "not finite"
IN_PART, HIDDEN, MEAN = "hidden in part", "hidden by noise", "read the mean only"
FALSE_ALARM, TAIL = 0.01, 0.5
NARROWED = 1.25
"""By this factor a guide may be narrower than the frame for want of correlations."""
_MIN_LENGTH, _SLOW, _SLOWEST, _SETTLED = 40, 8, 2, 1e-4
_MORE, _DATA = "use a larger epsilon or more rows", "check masks, the coding of the data and clipping_norm"
_FINDINGS = (
    note(ARRIVED, "nothing moves beyond its noise"),
    care(BIASED, "nothing moves beyond its noise, but the optimum is that of clipped gradients"),
    care(IN_PART, f"noise hides some of it, and what has arrived may move with that: {_MORE}, and scale the columns"),
    care(PRIOR, f"nothing was learned: the posterior is the prior; {_MORE}, and {_DATA}"),
    refused(HIDDEN, f"noise in the locations is as large as the guide's sds: {_MORE}, and scale the columns"),
    refused(MOVING, "run longer, or raise the learning rate"),
    refused(UNDECIDED, "noise hides whether anything moves"),
    refused(DIVERGED, "lower the learning rate"),
)
"""The finding on a run with one of these verdicts."""

Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class ParameterConvergence:
    """One parameter's verdict from its noisy gradients.

    - **name** - the parameter's name.
    - **verdict** - as for a run, or "hidden by noise".
    - **slow_power** - power of the eight slowest cosines of its noisy gradients in the tail, divided by the power of the fast
      ones; a mean over entries. It is about 1 without a force, above 1 if the parameter drifts, below 1 if it is held.
    - **p_value** - probability, without a pull, that the two slowest cosines are as strong."""

    name: str
    verdict: str
    slow_power: float = np.nan
    p_value: float = np.nan

    def __str__(self) -> str:
        return f"{self.verdict:<{len(HIDDEN)}}  slow changes {self.slow_power:.3g} x noise"


def arrived(run: "Convergence") -> Found:
    """Whether the run has arrived; of ignored rows `of_rows` says more."""
    short = f"the tail holds {run.num_iterates} iterates, {_MIN_LENGTH} are needed. Run longer or lower thinning."
    for own in _FINDINGS:
        if own.words == run.verdict:
            yield own if run.num_iterates >= _MIN_LENGTH else replace(own, cure=short)


def too_narrow(run: "Convergence") -> Found:
    """The correlations that a guide without any cannot hold."""
    factors = {site: float(np.max(factor)) for site, factor in run.narrowed.items() if np.any(factor > NARROWED)}
    if factors:
        sites, most = few([*factors]), f"with sds up to {max(factors.values()):.2g} times the guide's"
        yield care(MEAN, f"the guide cannot hold {sites}: correlated, {most}; take AutoMultivariateNormal", sites)


def of_rows(run: "Convergence") -> Found:
    """Clipped rows, and rows that do not inform the posterior."""
    if run.clipped is not None:
        yield note(str(run.clipped))
    if run.counted is not None:
        yield from run.counted.findings
    yield from run.metric_findings


@dataclass(frozen=True, kw_only=True, repr=False)
class Convergence(Verdict):
    """Whether the tail of a run has arrived; `str()` is the text.

    - **verdict** - "arrived", "prior" (nothing was learned), "biased by clipping" (it has arrived elsewhere), "hidden in part"
      (noise hides some latents, and others may depend on them), "hidden by noise" (all latents), "still moving", "do not read:
      rows are ignored", "too few steps to tell" or "not finite".
    - **parameters** - the same for each parameter, regardless of clipping.
    - **num_iterates** - number of kept gradients in the tail; 40 are needed.
    - **clipped** - share of clipped rows in the last half of the run, None where it was not counted.
    - **counted** - rows that do not inform the posterior, None where they were not counted.
    - **latents** - by site, "learned", "partly", "prior" or "hidden by noise" for each unconstrained element; "read the mean
      only" where a guide without correlations is too narrow.
    - **narrowed** - by what such a guide is narrower than the frame, of each element by site; empty for other guides.
    - **metric_findings** - findings of the frame: clipping, misfit, latents known together only; see `Metric`.
    - **labels** - of elements."""

    verdict: str
    parameters: tuple[ParameterConvergence, ...]
    num_iterates: int
    clipped: ClippedRows | None = None
    counted: CountedRows | None = None
    latents: Mapping[str, Array] = field(default_factory=dict)
    narrowed: Mapping[str, Array] = field(default_factory=dict)
    metric_findings: Sequence[Finding] = ()
    labels: Labels = NO_LABELS

    otherwise = "nothing moves beyond its noise"

    @property
    def findings(self) -> list[Finding]:
        return self.by_label(findings_of(self, arrived, too_narrow, of_rows))

    @property
    def by_site(self) -> Mapping[str, Array]:
        """How much the data informed each unconstrained element: `latents`; "do not read" where the run is refused."""
        refused = {site: np.full(np.shape(words), REFUSED, object) for site, words in self.latents.items()}
        return refused if self.refusals else self.latents

    def __str__(self) -> str:
        first, *rest = map(str, self.findings)
        shown = self.parameters if self.num_iterates >= _MIN_LENGTH else ()
        parameters = [f"  {line}" for line in aligned([(p.name, str(p)) for p in shown])]
        counts = [(word, *sites_with(word, self.latents)) for word in (LEARNED, PARTLY, MEAN, PRIOR, HIDDEN)]
        latents = ", ".join(f"{count} {word} ({sites})" for word, count, sites in counts if count)
        learned = self.labels.named(f"latents: {latents}") if latents and not self.refusals else ""
        return "\n".join(filter(None, [f"convergence: {first}", *parameters, learned, *rest]))


def tail_of(trajectory: Tree, tail: float) -> Tree:
    """The last share `tail` of a trajectory, a pytree of leaves (number kept, ...).

    Raises ConfigurationError unless 0 < tail <= 1."""
    if not 0.0 < tail <= 1.0:
        raise ConfigurationError("tail is the share of the trajectory to use, in (0, 1].")
    length = len(jax.tree.leaves(trajectory)[0])
    return jax.tree.map(lambda x: x[length - max(1, round(tail * length)) :], trajectory)


def convergence(
    gradients: Mapping[str, object], clipped: ClippedRows | None = None, counted: CountedRows | None = None,
    latents: Mapping[str, Array] | None = None, by_parameter: bool = True, framed: bool = False,
    narrowed: Mapping[str, Array] | None = None, metric_findings: Sequence[Finding] = (),
) -> Convergence:  # fmt: skip
    """The verdict on a run's tail from its noisy gradients, leaves (number kept, ...) by parameter.

    A parameter is "still moving" if its two slowest cosines are stronger than noise explains, all its numbers together or
    one of them (F tests, Bonferroni over numbers and parameters): 1 % of runs at most where nothing pulls. One that does not
    move and was pulled, since its gradients over the whole run or the slow ones of the tail are not white (1 % each), has
    "arrived": no optimiser could tell from these gradients that the optimum is elsewhere. Any other is "hidden by noise".

    The run has the verdict of what moves, else of what has arrived, unless more rows were `clipped` than an unbiased posterior
    bears or rows that were `counted` are ignored; "too few steps to tell" if all is hidden, or with fewer than 40 gradients in
    the tail. A run that has learned nothing of any of the `latents` is "prior". One that has "arrived", while noise hides
    others, has "hidden in part": latents, or parameters if the verdict is `by_parameter`. A `framed` run started within a few
    sds of the posterior, and the default optimiser can step over several: what does not move has arrived, and a Newton step of
    each of the `latents` says how well.

    Numbers of a parameter may have dependent noise: how many independent ones they are worth is estimated from the fast cosines
    (Satterthwaite 1946). Numbers whose mean gradient has fallen below 1e-4 of the largest of the run count as arrived. Assumes
    noise that is independent between steps; with Partition that of rows cancels over an epoch, which hides drifts below it."""
    latents, narrowed = latents or {}, narrowed or {}
    leaves = jax.tree_util.tree_flatten_with_path(dict(gradients))[0]
    named = {path[0].key + jax.tree_util.keystr(path[1:]): np.asarray(leaf, np.float64) for path, leaf in leaves}
    # The last one may be a mean over fewer steps.
    named = {name: x.reshape(len(x), math.prod(x.shape[1:]))[:-1] for name, x in sorted(named.items())}
    tails = tail_of(named, TAIL)
    parameters = tuple(_parameter(name, x, tails[name], FALSE_ALARM / len(named), framed) for name, x in named.items())
    found = {p.verdict for p in parameters}
    verdict = next((v for v in (DIVERGED, MOVING, ARRIVED) if v in found), UNDECIDED)
    num_iterates = len(next(iter(tails.values())))
    words = np.concatenate([np.ravel(found) for found in latents.values()] or [np.zeros(0)]).astype(str)
    if len(words) and np.all(words == PRIOR) and verdict != DIVERGED and num_iterates >= _MIN_LENGTH:
        verdict = PRIOR
    elif verdict == ARRIVED and counted is not None and counted.refusals:
        verdict = IGNORED
    elif verdict == ARRIVED and clipped is not None and clipped.is_biased:
        verdict = BIASED
    elif verdict == ARRIVED and (HIDDEN in words or (by_parameter and HIDDEN in found)):
        verdict = HIDDEN if len(words) and set(words) <= {HIDDEN, PRIOR} else IN_PART
    held = {site: np.where(found == HIDDEN, HIDDEN, MEAN) for site, found in latents.items()}
    shown = {s: np.where(narrowed.get(s, 1.0) > NARROWED, held[s], found) for s, found in latents.items()}
    return Convergence(
        verdict=verdict, parameters=parameters, num_iterates=num_iterates, clipped=clipped, counted=counted, latents=shown,
        narrowed=narrowed, metric_findings=metric_findings,
    )  # fmt: skip


def _parameter(name: str, whole: Array, tail: Array, false_alarm: float, framed: bool) -> ParameterConvergence:
    """The verdict on one parameter, from gradients (steps, numbers)."""
    if not np.all(np.isfinite(whole)):
        return ParameterConvergence(name=name, verdict=DIVERGED)
    if len(tail) < _MIN_LENGTH:
        return ParameterConvergence(name=name, verdict=UNDECIDED)
    halves = np.abs([half.mean(axis=0) for half in np.array_split(tail, 2)]).max(axis=0)
    unsettled = halves > _SETTLED * np.abs(whole).max(axis=0)
    if not unsettled.any():
        return ParameterConvergence(name=name, verdict=ARRIVED, slow_power=0.0, p_value=1.0)
    slow_power, p_value, p_held = _whiteness(tail[:, unsettled])
    pulled = framed or min(_whiteness(whole[:, unsettled])[1], p_held) < FALSE_ALARM
    verdict = MOVING if p_value < false_alarm else ARRIVED if pulled else HIDDEN
    return ParameterConvergence(name=name, verdict=verdict, slow_power=slow_power, p_value=p_value)


def _whiteness(gradients: Array) -> tuple[float, float, float]:
    """Of gradients (steps, numbers): the power of slow cosines over that of fast ones, and the chances, were they white,
    of as much in the slowest and of as little in the slow ones."""
    from scipy import fft, stats

    power, num_fast = fft.dct(gradients, axis=0, norm="ortho") ** 2, len(gradients) - _SLOW
    relative = power / np.maximum(power[_SLOW:].mean(axis=0), np.finfo(float).tiny)
    mean = relative.mean(axis=1)
    unbiased = 1.0 - 2.0 / num_fast  # the mean of an F variable is num_fast / (num_fast - 2)
    slow, slowest = unbiased * mean[:_SLOW].mean(), unbiased * mean[:_SLOWEST].mean()
    variance = mean[_SLOW:].var(ddof=1) * num_fast / stats.chi2.ppf(0.05, num_fast)  # of one cosine; an upper bound
    freedom = min(max(2.0 / max(variance, 1e-300), 1.0), gradients.shape[1])
    together = stats.f.sf(slowest, _SLOWEST * freedom, num_fast * freedom)
    alone = gradients.shape[1] * stats.f.sf(relative[:_SLOWEST].mean(axis=0).max(), _SLOWEST, num_fast)
    held = stats.f.cdf(slow, _SLOW * freedom, num_fast * freedom)
    return float(slow), float(min(1.0, 2.0 * together, 2.0 * alone)), float(held)
