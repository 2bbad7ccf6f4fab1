"""The arguments of `dpppl.MCMC`, checked; its budget, cost and results."""

import warnings
from collections.abc import Sequence

import jax
import numpy as np
import numpyro.infer

from dpppl.errors import ConfigurationError
from dpppl.findings.counted_rows import CountedRows
from dpppl.findings.verdict import warn_of
from dpppl.mcmc.details import ChainDetails, chain_facts
from dpppl.mcmc.kernel import DPKernel
from dpppl.mcmc.outcome import Outcome, print_table
from dpppl.mcmc.planning import calibrated, checked_kernel, has_frame, prelude_of
from dpppl.mcmc.verdict import Reading
from dpppl.report.provenance import Start, Status
from dpppl.report.report import PrivacyReport
from dpppl.report.to_arviz import to_inference_data
from dpppl.runs.budget import Charge
from dpppl.runs.private_runner import Facts, Inputs, PrivateRunner
from dpppl.types import Foreign, Function, Tree
from dpppl.validation import checked, checked_call, plain, positive_integer


class MCMCSettings(PrivateRunner, numpyro.infer.MCMC):
    """Base of `dpppl.MCMC`, which documents the arguments."""

    _outcome: Outcome | None = None

    @checked_call
    def __init__(
        self,
        kernel: DPKernel,
        *,
        num_warmup: int,
        num_samples: int,
        num_chains: int = 1,
        thinning: int = 1,
        chain_method: str | Function = "parallel",
        progress_bar: bool = True,
        progress_rate: int | None = None,
        frame: bool | None = None,
        **common: Tree,
    ) -> None:
        PrivateRunner.__init__(self, **common)
        kernel = checked_kernel(kernel, self.privacy, self.checkpoint)
        thinning = positive_integer(thinning, name="thinning")
        if positive_integer(num_samples, name="num_samples") < thinning:
            raise ConfigurationError("num_samples must be at least thinning: one sample in this number is kept.")
        try:
            numpyro.infer.MCMC.__init__(
                self,
                kernel,
                num_warmup=plain(num_warmup),
                num_samples=plain(num_samples),
                num_chains=positive_integer(num_chains, name="num_chains"),
                thinning=thinning,
                chain_method=chain_method,
                progress_bar=progress_bar,
                progress_rate=progress_rate,
            )
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(f"{error}.") from None
        self.frame = frame
        self._has_frame = has_frame(frame, kernel, self.privacy, self.num_warmup + self.num_samples)
        self.num_data, self.noise_multiplier = kernel.num_data, kernel.noise_multiplier
        self._kernel: DPKernel | None = None
        self._counted: CountedRows | None = None
        self._inputs = Inputs()
        self._dims: dict[str, tuple[str, ...]] = {}

    def __repr__(self) -> str:
        steps = f"{self.num_chains} x ({self.num_warmup} + {self.num_samples}) steps"
        return f"MCMC of {self.sampler!r}: {steps}, {self._provenance.status}; {self.budget!r}"

    @checked
    def calibrated_kernel(self) -> DPKernel:
        """The kernel of all runs, with the noise multiplier and the step size that the budget gives. Looks at no data."""
        if self._kernel is None:  # found once: what was charged stays charged at its noise
            steps = self.num_warmup + self.num_samples
            self._kernel = calibrated(self.sampler, self.budget, steps, self.num_chains, self._has_frame)
        return self._kernel

    @checked
    def privacy_plan(self) -> PrivacyReport:
        """The report that the next `run` would add up to, without data. A model without a frame has fewer accesses."""
        kernel, resume = self.calibrated_kernel(), self._warmup_state
        first = 0 if resume is None else int(np.max(np.asarray(resume.i)))
        steps = self.num_samples + (self.num_warmup if resume is None else 0)
        charges = [*self._prelude(kernel), kernel.charge(first, steps, self.num_chains)]
        return self._planned(charges)

    def _prelude(self, kernel: DPKernel) -> list[Charge]:
        return prelude_of(kernel, self.num_chains * (self.num_warmup + self.num_samples), self._has_frame)

    @property
    def _first_start(self) -> Start:
        return self.sampler.start

    def _facts(self, charges: Sequence[Charge], status: Status) -> Facts:
        failed, measured = ((), None) if self._outcome is None else (self._outcome.failed, self._outcome.measured)
        return chain_facts(self.calibrated_kernel(), charges, self.num_chains, self._inputs, failed, measured)

    # Results of the last run

    def _ended(self, method: str) -> Outcome:
        if self._outcome is None:
            raise ConfigurationError(f"`run` must be called before `{method}`.")
        return self._outcome

    @property
    def verdict(self) -> Reading:
        """Whether the samples may be read: `.line()`, `.refusals`, and `.by_site`, a word for each element of each site.

        "read", "read the mean only", "biased by clipping", "prior", "do not read: too short", "do not read: still moving",
        "do not read: depends on ..." or "do not read: unstable", in constrained space. Computed from what was released, and from
        prior draws: free."""
        return self._ended("verdict").reading

    @checked
    def get_samples(self, group_by_chain: bool = False, *, allow_unconverged: bool = False) -> dict[str, jax.Array]:
        """Samples by site, constrained, (num_samples, ...). As in NumPyro.

        - **group_by_chain** - keep chains apart: (num_chains, num_samples, ...).
        - **allow_unconverged** - whether to return samples with elements that have not arrived without an UnconvergedWarning.
        """
        warn_of(self._ended("get_samples").refusals, "get_samples(allow_unconverged=True)", allow_unconverged)
        return super().get_samples(group_by_chain)

    @checked
    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, Tree]:
        """The `extra_fields` of the last run, by name. As in NumPyro.

        - **group_by_chain** - keep chains apart: (num_chains, num_samples, ...).
        """
        self._ended("get_extra_fields")
        return super().get_extra_fields(group_by_chain)

    @checked
    def get_weights(self) -> np.ndarray:
        """Weights of the collected samples in a posterior average, float64 (chains, draws), each chain summing to 1.

        A sample stands for the time of the steps since the one collected before it: with decreasing steps later
        samples count less (Li et al. 2019, section 3). Equal for a constant step and no thinning."""
        ended, kernel = self._ended("get_weights"), self.calibrated_kernel()
        step_sizes, _ = kernel.schedule(ended.first, ended.draws * ended.thinning)
        weights = kernel.sample_weight(step_sizes).reshape(ended.draws, ended.thinning).sum(axis=1)
        return np.tile(weights / weights.sum(), (np.size(ended.last_state.i), 1))

    @checked
    def verdicts(self) -> dict[str, np.ndarray]:
        """Return `verdict.by_site`, the name of which it will have from the next release on."""
        found = self._ended("verdicts").reading.by_site
        warnings.warn("mcmc.verdicts() is now mcmc.verdict.by_site.", DeprecationWarning, stacklevel=2)
        return found

    @checked
    def print_summary(self, prob: float = 0.9, exclude_deterministic: bool = True, max_rows: int = 10) -> None:
        """Print a table of elements with their verdicts, then the verdicts of all in words.

        - **prob** - probability of the interval between the quantiles.
        - **exclude_deterministic** - leave out deterministic sites.
        - **max_rows** - elements in the table.
        """
        ended = self._ended("print_summary")
        samples, words = self.get_samples(group_by_chain=True, allow_unconverged=True), ended.reading.words
        if exclude_deterministic:
            samples = {site: value for site, value in samples.items() if site in ended.last_state.z}
        print_table(samples, self.get_weights(), prob, words, max_rows)
        learned = {s: ended.reading.learned[s] for s in samples}
        found = Reading(words={s: words[s] for s in samples}, learned=learned, measured=ended.measured)
        details = self.privacy_report().details
        assert isinstance(details, ChainDetails)
        print("\n".join(found.lines))
        print(f"mixing budget: {details.mixing_line()}")

    @property
    def _args(self) -> tuple[object, ...]:  # arviz.from_numpyro reads it
        raise ConfigurationError("the arguments of a run are not kept, they hold the data: use mcmc.to_arviz().")

    @checked
    def to_arviz(self, *, allow_unconverged: bool = False, coords: Tree = None, dims: Tree = None) -> Foreign:
        """InferenceData (ArviZ 1: a DataTree) of the samples and their weights, with the privacy report as attributes.

        It holds no observed data and no log likelihood: both would be private rows. Needs the [arviz] extra.

        - **allow_unconverged** - as for `get_samples`.
        - **coords**, **dims** - labels of axes, and names of each site's axes, as ArviZ takes them; a plate's axis has its name.
        """
        self._ended("to_arviz")
        samples = jax.tree.map(np.asarray, self.get_samples(group_by_chain=True, allow_unconverged=allow_unconverged))
        stats = {"weight": self.get_weights()}
        return to_inference_data(samples, self.privacy_report(), self._dims, coords, dims, sample_stats=stats)
