"""Samples, weights and verdicts of the last run of `dpppl.MCMC`."""

import warnings
from typing import Any

import jax
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.mcmc.details import ChainDetails
from dpppl.mcmc.outcome import Outcome
from dpppl.mcmc.settings import MCMCSettings
from dpppl.mcmc.summary import print_table
from dpppl.mcmc.verdict import Reading, verdict_lines
from dpppl.report.to_arviz import to_inference_data
from dpppl.report.verdict import warn_of


class ChainResults(MCMCSettings):
    """Base of `dpppl.MCMC`: results of the chains that it runs."""

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

    def get_samples(self, group_by_chain: bool = False, *, allow_unconverged: bool = False) -> dict[str, Any]:
        """Samples by site, constrained, (num_samples, ...). As in NumPyro.

        - **group_by_chain** - keep chains apart: (num_chains, num_samples, ...).
        - **allow_unconverged** - whether to return samples with elements that have not arrived without an UnconvergedWarning.
        """
        refused = self._ended("get_samples").refused
        lines = [f"elements of {', '.join(refused[:6])} have not arrived; see mcmc.verdict."] if refused else []
        warn_of(lines, "get_samples(allow_unconverged=True)", allow_unconverged)
        return super().get_samples(group_by_chain)

    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, Any]:
        """The `extra_fields` of the last run, by name. As in NumPyro.

        - **group_by_chain** - keep chains apart: (num_chains, num_samples, ...).
        """
        self._ended("get_extra_fields")
        return super().get_extra_fields(group_by_chain)

    def get_weights(self) -> np.ndarray:
        """Weights of the collected samples in a posterior average, float64 (chains, draws), each chain summing to 1.

        A sample stands for the time of the steps since the one collected before it: with decreasing steps later
        samples count less (Li et al. 2019, section 3). Equal for a constant step and no thinning."""
        ended, kernel = self._ended("get_weights"), self.calibrated_kernel()
        step_sizes, _ = kernel.schedule(ended.first, ended.draws * ended.thinning)
        weights = kernel.sample_weight(step_sizes).reshape(ended.draws, ended.thinning).sum(axis=1)
        return np.tile(weights / weights.sum(), (np.size(ended.last_state.i), 1))

    def verdicts(self) -> dict[str, np.ndarray]:
        """Return `verdict.by_site`, the name of which it will have from the next release on."""
        found = self._ended("verdicts").reading.by_site
        warnings.warn("mcmc.verdicts() is now mcmc.verdict.by_site.", DeprecationWarning, stacklevel=2)
        return found

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
        for line in verdict_lines(found):
            print(line)
        print(f"mixing budget: {details.mixing_line()}")

    @property
    def _args(self) -> Any:  # arviz.from_numpyro reads it
        raise ConfigurationError("the arguments of a run are not kept, they hold the data: use mcmc.to_arviz().")

    def to_arviz(self, *, allow_unconverged: bool = False) -> Any:
        """InferenceData (ArviZ 1: a DataTree) of the samples and their weights, with the privacy report as attributes.

        It holds no observed data and no log likelihood: both would be private rows. Needs the [arviz] extra.

        - **allow_unconverged** - as for `get_samples`.
        """
        self._ended("to_arviz")
        samples = jax.tree.map(np.asarray, self.get_samples(group_by_chain=True, allow_unconverged=allow_unconverged))
        return to_inference_data(samples, self.privacy_report(), sample_stats={"weight": self.get_weights()})
