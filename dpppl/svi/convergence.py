"""Whether a run has arrived, from the noisy gradients that it released: free, and without losses.

Noise is independent from step to step. So the noisy gradients of a parameter whose true gradient is zero are white: low
frequencies (of a discrete cosine transform over the steps) have the power of high ones. Where the optimiser drifts, low
frequencies have more, because the gradient keeps its sign. At an optimum they have less: gradients add up to the
displacement of the parameter, which stays bounded. High frequencies measure privacy noise, subsampling and guide draws.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import autoguide

from dpppl.errors import ConfigurationError
from dpppl.findings.counted_rows import BIASED, IGNORED, ClippedRows, CountedRows
from dpppl.findings.learned import LEARNED, PARTLY, PRIOR, SMALLEST_SHARE, Learned, distance
from dpppl.findings.verdict import REFUSED, Finding, Found, Verdict, care, few, found, note, refused, sites_with
from dpppl.frame.metric import Metric
from dpppl.information_flow.executables import run_once
from dpppl.model.initialization import number_of_draws, prior_draws
from dpppl.svi.elbo import Objective
from dpppl.svi.guides import AutoDropout, parts_of
from dpppl.types import BySite, Tree

ARRIVED, MOVING, UNDECIDED, DIVERGED = "arrived", "still moving", "too few steps to tell", "not finite"
IN_PART, HIDDEN, MEAN = "hidden in part", "hidden by noise", "read the mean only"
FALSE_ALARM, TAIL = 0.01, 0.5
NARROWED = 1.25
"""By this factor a guide may be narrower than the frame for want of correlations."""
_MIN_LENGTH, _SLOW, _SLOWEST, _SETTLED = 40, 8, 2, 1e-4
LARGEST_ERROR, LARGEST_DISTANCE, _GROWING, _MOST_ROWS = 0.6, 1.2, 2.5, 200
_LEAST_CURVATURE = 0.05  # of the guide's precision; noise can hide the whole curvature
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
    slow_power: float
    p_value: float

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


@dataclass(frozen=True, kw_only=True)
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
    - **narrowed** - by what such a guide is narrower than the frame, of each element by site; empty for other guides."""

    verdict: str
    parameters: tuple[ParameterConvergence, ...]
    num_iterates: int
    clipped: ClippedRows | None = None
    counted: CountedRows | None = None
    latents: Mapping[str, Array] = field(default_factory=dict)
    narrowed: Mapping[str, Array] = field(default_factory=dict)

    otherwise = "nothing moves beyond its noise"

    @property
    def findings(self) -> list[Finding]:
        """See `Verdict`."""
        return found(self, arrived, too_narrow, of_rows)

    @property
    def by_site(self) -> Mapping[str, Array]:
        """How much the data informed each unconstrained element: `latents`; "do not read" where the run is refused."""
        refused = {site: np.full(np.shape(words), REFUSED, object) for site, words in self.latents.items()}
        return refused if self.refusals else self.latents

    def __str__(self) -> str:
        first, *rest = map(str, self.findings)
        width = max((len(p.name) for p in self.parameters), default=0)
        parameters = [f"  {p.name:<{width}}  {p}" for p in self.parameters if self.num_iterates >= _MIN_LENGTH]
        counts = [(word, *sites_with(word, self.latents)) for word in (LEARNED, PARTLY, MEAN, PRIOR, HIDDEN)]
        latents = ", ".join(f"{count} {word} ({sites})" for word, count, sites in counts if count)
        learned = f"latents: {latents}" if latents and not self.refusals else ""
        return "\n".join(filter(None, [f"convergence: {first}", *parameters, learned, *rest]))


def tail_of(trajectory: Tree, tail: float) -> Tree:
    """The last share `tail` of a trajectory, a pytree of leaves (number kept, ...).

    Raises ConfigurationError unless 0 < tail <= 1."""
    if not 0.0 < tail <= 1.0:
        raise ConfigurationError("tail is the share of the trajectory to use, in (0, 1].")
    length = len(jax.tree.leaves(trajectory)[0])
    return jax.tree.map(lambda x: x[length - max(1, round(tail * length)) :], trajectory)


def convergence(
    gradients: Mapping[str, object],
    tail: float = TAIL,
    clipped: ClippedRows | None = None,
    counted: CountedRows | None = None,
    latents: Mapping[str, Array] | None = None,
    by_parameter: bool = True,
    framed: bool = False,
    narrowed: Mapping[str, Array] | None = None,
) -> Convergence:
    """The verdict on a run's tail from its noisy gradients, leaves (number kept, ...) by parameter.

    A parameter is "still moving" if its two slowest cosines are stronger than noise explains, all its numbers together or
    one of them (F tests, Bonferroni over numbers and parameters). The chance of that where nothing pulls is at most 1 %
    for the whole run; it is far less where the parameters are held. A parameter that does not move and was pulled, since
    its gradients over the whole run or the slow ones of the tail are not white (1 % each), has "arrived": no optimiser
    could tell from these gradients that the optimum is elsewhere. Any other is "hidden by noise". The run has the verdict of
    what moves, else of what has arrived, unless more rows were `clipped` than an unbiased posterior bears or rows that were
    `counted` are ignored; "too few steps to
    tell" if all is hidden, or with fewer than 40 gradients in the tail. A run that has learned nothing of any of the
    `latents` is "prior". One that has "arrived", while noise hides others, has "hidden in part": latents, or parameters if
    the verdict is `by_parameter`. Where the run is `framed`, it started within a few sds of the posterior, and the default
    optimiser can step over several: what does not move has arrived, and a Newton step of each of the `latents` says how well.

    The numbers of a parameter may have dependent noise: how many independent ones they are worth is estimated from the
    fast cosines (Satterthwaite 1946). Numbers whose mean gradient has fallen below 1e-4 of the largest that the run saw
    count as arrived, whatever the noise. Assumes noise that is independent between steps; with Partition that of rows
    cancels over an epoch, which hides drifts below it. The objective is the clipped one, and the optimum a local one.
    """
    named = {
        name + jax.tree_util.keystr(path): np.asarray(leaf, np.float64).reshape(
            len(leaf), math.prod(np.shape(leaf)[1:])
        )[:-1]
        for name, tree in gradients.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }  # the last one may be a mean over fewer steps
    tails = tail_of(named, tail)
    parameters = tuple(
        _parameter(name, named[name], tails[name], FALSE_ALARM / len(named), framed) for name in sorted(named)
    )
    found = {p.verdict for p in parameters}
    verdict = next((v for v in (DIVERGED, MOVING, ARRIVED) if v in found), UNDECIDED)
    num_iterates = len(next(iter(tails.values())))
    words = np.concatenate([np.ravel(found) for found in (latents or {}).values()] or [np.zeros(0)]).astype(str)
    if len(words) and np.all(words == PRIOR) and verdict != DIVERGED and num_iterates >= _MIN_LENGTH:
        verdict = PRIOR
    elif verdict == ARRIVED and counted is not None and counted.refusals:
        verdict = IGNORED
    elif verdict == ARRIVED and clipped is not None and clipped.is_biased:
        verdict = BIASED
    elif verdict == ARRIVED and (HIDDEN in words or (by_parameter and HIDDEN in found)):
        verdict = HIDDEN if len(words) and set(words) <= {HIDDEN, PRIOR} else IN_PART
    return Convergence(
        verdict=verdict,
        parameters=parameters,
        num_iterates=num_iterates,
        clipped=clipped,
        counted=counted,
        latents={
            site: np.where((narrowed or {}).get(site, 1.0) > NARROWED, np.where(found == HIDDEN, HIDDEN, MEAN), found)
            for site, found in (latents or {}).items()
        },
        narrowed=narrowed or {},
    )


def _parameter(name: str, whole: Array, tail: Array, false_alarm: float, framed: bool) -> ParameterConvergence:
    """The verdict on one parameter, from gradients (steps, numbers)."""
    if not np.all(np.isfinite(whole)):
        return ParameterConvergence(name=name, verdict=DIVERGED, slow_power=np.nan, p_value=np.nan)
    if len(tail) < _MIN_LENGTH:
        return ParameterConvergence(name=name, verdict=UNDECIDED, slow_power=np.nan, p_value=np.nan)
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


def learned_latents(
    objective: Objective, public: Tree, phi: BySite, gradients: BySite
) -> tuple[dict[str, Array], bool]:
    """By site, "learned", "partly", "prior" or "hidden by noise" for each unconstrained element of the latents; and whether
    every element has a location and a spread. Only these show whether noise hides it.

    - "prior": the guide has the prior's spread and location.
    - "hidden by noise", so that neither is known to come from the data: the location is uncertain by more than .6 of the
      guide's sds, its optimum may be more than 1.2 of them away, or the spread still grows (2.5 standard errors).

    The location is uncertain by the guide's variance times the standard error of the gradient's mean over the tail;
    noise-aware parameters are wider by as much. The optimum is one Newton step away, at the gradient's mean plus its
    standard error. The curvature is (1 - g) / variance, with g the spread's gradient in the logarithm of the sd (Opper and
    Archambeau 2009). A point is "prior" where it stayed at the prior's median and no gradient could have moved it.

    - **objective** - the ELBO, with the guide.
    - **phi** - the guide's unconstrained parameters.
    - **gradients** - noisy gradients by parameter, (number kept, ...).
    """

    def draws(phi: BySite, key: jax.Array, public: Tree) -> Tree:
        return jax.vmap(lambda key: objective.draw(phi, key, public)[1])(jax.random.split(key, count))

    count = number_of_draws(objective.split.latents)
    drawn, prior = run_once(draws, phi, jax.random.key(0), public), prior_draws(objective.split, public, False)
    places, spreads = (
        by_site(objective.guide, found) for found in (gradients, _spread_gradients(objective, phi, gradients))
    )
    if objective.metric is not None:
        places = _along_the_covariance(objective.metric, places)
    words, is_all = dict[str, Array](), True
    for site, expected in prior.items():
        values = np.asarray(drawn[site], np.float64)
        words[site] = Learned.of(values, float(count), expected).words
        is_point = np.ptp(values, axis=0) == 0.0
        is_all &= site in places and not np.any(is_point)
        if site not in places:
            continue
        gradient = np.asarray(places[site], np.float64).reshape(-1, *expected.shape[1:])
        spread = np.std(values, axis=0)
        pull, error = _mean_and_error(gradient)
        if objective.metric is not None:  # steps of 2 / t: a mean over the run, of 4 / 3 of the least variance
            error *= (2.0 / 3.0) ** 0.5
        is_hidden = spread * error > LARGEST_ERROR
        if site in spreads:
            growth, growth_error = _mean_and_error(np.asarray(spreads[site], np.float64).reshape(gradient.shape))
            is_hidden |= growth > _GROWING * growth_error
            own = error if objective.metric is None else 0.0  # else noise in the pull is that in the location
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
        for name, value in objective.constrain(phi).items():
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
        gradient, place = (
            np.asarray(gradients[name], np.float64),
            name.removesuffix("_tril").removesuffix("scale") + "loc",
        )
        way = np.asarray(way, np.float64)
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
