"""The arguments of `dpppl.MCMC`, checked; its budget, and what it has cost."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpyro.infer

from dpppl.data.sharded import checked_mesh
from dpppl.errors import ConfigurationError
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.mcmc.details import chain_report
from dpppl.mcmc.kernel import DPKernel
from dpppl.mcmc.outcome import Outcome
from dpppl.mcmc.planning import calibrated, check_kernel, histogram_of
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.checkpoint import checked_path
from dpppl.runs.counted_rows import CountedRows
from dpppl.runs.provenance import Provenance, Status
from dpppl.runs.report import PrivacyReport
from dpppl.runs.unit import Unit
from dpppl.validation import checked_call, plain, positive_integer


class MCMCSettings(numpyro.infer.MCMC):
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
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        ledger: PrivacyLedger | str | os.PathLike[str] | None = None,
        reserve: float = 0.0,
        checkpoint: str | os.PathLike[str] | None = None,
        unit: str | None = None,
        max_rows_per_unit: int | None = None,
        chain_method: Any = "parallel",
        progress_bar: bool = True,
        progress_rate: int | None = None,
        print_cost: bool = True,
        mesh: Any = None,
    ) -> None:
        check_kernel(kernel, target_epsilon, checkpoint)
        thinning = positive_integer(thinning, name="thinning")
        if positive_integer(num_samples, name="num_samples") < thinning:
            raise ConfigurationError("num_samples must be at least thinning: one sample in so many is kept.")
        try:
            super().__init__(
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
        self.unit = Unit.of(unit, max_rows_per_unit)
        self.budget = Budget(target_epsilon, target_delta, ledger=ledger, reserve=reserve, unit=self.unit)
        self.checkpoint, self.print_cost, self.mesh = checked_path(checkpoint), print_cost, checked_mesh(mesh)
        self._kernel: DPKernel | None = None
        self._counted: CountedRows | None = None
        self._provenance = Provenance()
        self._ran_on: tuple[int | None, tuple[str, ...], str | None] = (None, (), None)

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
        planned = self._provenance.and_now(Status.PLANNED, start=self.sampler.start)
        return self._report([*self.budget.charged, *charges], planned)

    def privacy_report(self) -> PrivacyReport:
        """The cost of everything run so far, an interrupted run included."""
        start = None if self._provenance.starts else self.sampler.start
        return self._report(self.budget.charged, self._provenance.and_now(self._provenance.status, start=start))

    def _histogram(self, kernel: DPKernel) -> list[Charge]:
        return histogram_of(kernel, self.num_chains * (self.num_warmup + self.num_samples))

    def _report(self, charges: Sequence[Charge], provenance: Provenance) -> PrivacyReport:
        ended, (num_rows, assumed_public, placement) = self._outcome, self._ran_on
        return chain_report(
            self.calibrated_kernel(), charges, provenance, delta=self.budget.target_delta, num_chains=self.num_chains,
            failed_chains=() if ended is None else ended.failed, measured=None if ended is None else ended.measured,
            num_rows=num_rows, assumed_public=assumed_public, ledger=self.budget.ledger_line(), unit=self.unit,
            placement=placement,
        )  # fmt: skip
