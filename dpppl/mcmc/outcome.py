"""The results of a run of chains, from its releases, and their summary table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConclusionError
from dpppl.findings.counted_rows import CountedRows
from dpppl.findings.finding import Level, few, ranked, refused
from dpppl.mcmc.chains import Chains, not_finite
from dpppl.mcmc.kernel import DPKernel
from dpppl.mcmc.measured import Arrival, MeasuredChains, measure
from dpppl.mcmc.verdict import ChainVerdict, mixing, reading, refused_alone
from dpppl.model.initialization import prior_draws
from dpppl.report.labels import NO_LABELS, Labels
from dpppl.runs.driver import TRACING
from dpppl.types import BySite, Function, Tree
from dpppl.validation import element_name, fraction


@dataclass(frozen=True, kw_only=True)
class ChainOutcome:
    """The results of a run.

    - **last_state** - last states, a batch of them for several chains; without keys.
    - **samples** - the fields that the caller wants, leaves (chains, draws, ...), by name.
    - **measured** - step size, excess width, moving sites and clipped rows of the run, and which elements still move or are held
      by the posterior; None before `judged`.
    - **failed** - numbers of the chains with values that are not finite.
    - **weights** - of the samples, (chains, draws); see `MCMC.get_weights`.
    - **sites** - samples of all sites, those included that the caller leaves out.
    - **prior** - makes prior draws of these sites; None in a pickle.
    - **labels** - of elements of latents, unconstrained."""

    last_state: Tree
    samples: dict[str, Tree]
    failed: tuple[int, ...]
    weights: np.ndarray
    sites: BySite
    prior: Callable[[], dict[str, np.ndarray]] | None
    measured: tuple[MeasuredChains, Arrival] | None = None
    labels: Labels = NO_LABELS

    @classmethod
    def of(
        cls, chains: Chains, last: Sequence[Tree], records: Sequence[Tree], constrain: Function
    ) -> tuple["ChainOutcome", BySite]:
        """Results from what the driver returns, without what is measured of them, and the records of all chains.

        - **last**, **records** - last states and records of each group of chains.
        - **constrain** - `constrain(latents of all samples, public)`, to constrained space."""
        call, kernel = chains.call, chains.bound.kernel
        named = [(state, dict(zip(chains.fields, kept))) for state, (kept, _) in zip(last, records)]
        states, collected = named[0] if call.together else jax.tree.map(lambda *leaves: np.stack(leaves), *named)
        if call.num_chains == 1:
            collected = jax.tree.map(lambda leaf: leaf[None], collected)
        first = call.first + call.discarded
        steps = kernel.schedule(first, call.num_collected * call.thinning)
        times = kernel.diffusion_time(steps[0], kernel.noise_std(*steps))
        weights = np.reshape(times, (call.num_collected, call.thinning)).sum(axis=1)
        weights = np.ones_like(weights) if np.all(weights == weights[:1]) else weights  # equal to the last digit
        samples = {name: jax.tree.map(jnp.asarray, collected[name]) for name in call.fields}
        constrained = constrain(collected[DPKernel.sample_field], call.public)
        split, public = chains.bound.split, jax.tree.map(np.array, call.public)  # a copy: no argument is kept
        samples[DPKernel.sample_field] = {site: v for site, v in constrained.items() if site not in call.removed}
        found = cls(
            last_state=states, samples=samples,
            failed=not_finite(states.z, call.num_chains), weights=np.tile(weights / weights.sum(), (call.num_chains, 1)),
            sites=dict(constrained), prior=lambda: prior_draws(split, public),
        )  # fmt: skip
        return found, collected

    def judged(self, chains: Chains, collected: BySite, counted: CountedRows | None = None) -> "ChainOutcome":
        """These results with what is measured of the records `collected`; `counted`: see `MeasuredChains`, where it is known."""
        first = chains.call.first + chains.call.discarded
        with TRACING:
            measured, arrival = measure(chains.bound, self.last_state, collected, first, chains.call.thinning)
        return replace(self, measured=(measured if counted is None else replace(measured, counted=counted), arrival))

    @property
    def _measured(self) -> tuple[MeasuredChains, Arrival]:
        if self.measured is None:
            raise ConclusionError(
                "the verdict of the last run could not be computed; get_samples(allow_unconverged=True) returns its samples."
            )
        return self.measured

    @cached_property
    def reading(self) -> ChainVerdict:
        """Which elements may be read."""
        assert self.prior is not None
        with TRACING:
            found = reading(self.sites, *self._measured, self.prior())
            return replace(found, labels=self.labels)

    @cached_property
    def refusals(self) -> list[str]:
        """Why the samples should not be read: what was measured of the rows, a misfit of the model, and
        `refused_alone`."""
        (measured, arrival), counted = self._measured, self._measured[0].counted
        sites = refused_alone(self.sites, measured, arrival)
        alone = [refused(f"elements of {few(sites)} have not arrived; see mcmc.verdict.")] if sites else []
        every = ranked([*([] if counted is None else counted.findings), *measured.metric_findings, *alone])
        return [self.labels.named(str(each)) for each in every if each.level == Level.REFUSED]

    def __getstate__(self) -> dict[str, object]:
        assert self.reading  # a pickle holds it instead of the model
        return vars(self) | {"prior": None}


def print_table(
    samples: Tree, weights: np.ndarray, prob: float, verdicts: Mapping[str, np.ndarray], max_rows: int, labels: Labels
) -> None:  # fmt: skip
    """Print weighted mean, sd and quantiles and the verdict of the first `max_rows` elements; n_eff and r_hat ignore the
    weights.

    `samples`: {site: (chains, draws, ...)}; `weights`: (chains, draws); `verdicts`: {site: words (...)}."""
    flat = weights.reshape(-1) / weights.sum()
    prob = fraction(prob, name="prob")
    low, high = (1.0 - prob) / 2.0, (1.0 + prob) / 2.0
    header = ["mean", "std", "median", f"{low:.1%}", f"{high:.1%}", "n_eff", "r_hat"]
    lines, left = list[list[str]](), 0
    for site, value in samples.items():
        value = np.asarray(value, np.float64)
        elements = list(np.ndindex(value.shape[2:]))
        shown, left = elements[: max_rows - len(lines)], left + len(elements[max(0, max_rows - len(lines)) :])
        for index in shown:
            draws = value[(slice(None), slice(None), *index)]
            mean = flat @ draws.ravel()
            with np.errstate(all="ignore"):
                std = np.sqrt(flat @ (draws.ravel() - mean) ** 2)
                quantiles = np.quantile(draws, (0.5, low, high), weights=weights / weights.sum(), method="inverted_cdf")
                columns = [mean, std, *quantiles, *mixing(draws)]
            lines.append(
                [
                    labels.named(element_name(site, index)),
                    *(f"{float(column):.2f}" for column in columns),
                    str(verdicts[site][index]),
                ]
            )
    width = max((len(line[0]) for line in lines), default=0)
    print("\n" + " " * width + "".join(f"{title:>10}" for title in header) + "  verdict")
    for name, *numbers, verdict in lines:
        print(f"{name:>{width}}" + "".join(f"{number:>10}" for number in numbers) + f"  {verdict}")
    if left:
        print(f"... and {left} more: print_summary(max_rows=...), verdict.by_site")
    if np.ptp(weights) > 1e-6 * weights.max():
        print("mean, std and quantiles are weighted; n_eff and r_hat are not")
    print()
