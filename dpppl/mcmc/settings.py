"""The arguments of `dpppl.MCMC`, checked; its budget, and what it has cost."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpyro.infer

from dpppl.errors import ConfigurationError
from dpppl.mcmc.details import chain_facts
from dpppl.mcmc.kernel import DPKernel
from dpppl.mcmc.outcome import Outcome
from dpppl.mcmc.planning import calibrated, checked_kernel, histogram_of
from dpppl.report.counted_rows import CountedRows
from dpppl.report.provenance import Start, Status
from dpppl.report.report import PrivacyReport
from dpppl.runs.budget import Charge
from dpppl.runs.private_runner import Facts, PrivateRunner
from dpppl.validation import checked_call, plain, positive_integer


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
        chain_method: Any = "parallel",
        progress_bar: bool = True,
        progress_rate: int | None = None,
        **common: Any,
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
        self.num_data, self.noise_multiplier = kernel.num_data, kernel.noise_multiplier
        self._kernel: DPKernel | None = None
        self._counted: CountedRows | None = None
        self._ran_on: tuple[int | None, tuple[str, ...]] = (None, ())

    def __repr__(self) -> str:
        steps = f"{self.num_chains} x ({self.num_warmup} + {self.num_samples}) steps"
        return f"MCMC of {self.sampler!r}: {steps}, {self._provenance.status}; {self.budget!r}"

    def calibrated_kernel(self) -> DPKernel:
        """The kernel of all runs, with the noise multiplier and the step size that the budget gives. Looks at no data."""
        if self._kernel is None:  # found once: what was charged stays charged at its noise
            self._kernel = calibrated(self.sampler, self.budget, self.num_warmup + self.num_samples, self.num_chains)
        return self._kernel

    def privacy_plan(self) -> PrivacyReport:
        """The report that the next `run` would add up to, without data."""
        kernel, resume = self.calibrated_kernel(), self._warmup_state
        first = 0 if resume is None else int(np.max(np.asarray(resume.i)))
        steps = self.num_samples + (self.num_warmup if resume is None else 0)
        charges = [*self._histogram(kernel), kernel.charge(first, steps, self.num_chains)]
        return self._planned(charges)

    def _histogram(self, kernel: DPKernel) -> list[Charge]:
        return histogram_of(kernel, self.num_chains * (self.num_warmup + self.num_samples))

    @property
    def _first_start(self) -> Start:
        return self.sampler.start

    def _facts(self, charges: Sequence[Charge], status: Status) -> Facts:
        failed, measured = ((), None) if self._outcome is None else (self._outcome.failed, self._outcome.measured)
        return chain_facts(self.calibrated_kernel(), charges, self.num_chains, *self._ran_on, failed, measured)
