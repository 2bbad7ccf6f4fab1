"""The report's lines about chains: steps, temperature, mixing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpppl.access.clipping import Centred
from dpppl.findings.counted_rows import BIASED
from dpppl.frame.locate import frame_line
from dpppl.mcmc.dynamics import Dynamics
from dpppl.mcmc.measured import MeasuredChains
from dpppl.report.report import MechanismFacts, noise_range, show_range
from dpppl.runs.budget import Charge, events_of
from dpppl.runs.private_runner import Inputs, ReportFacts


@dataclass(frozen=True, kw_only=True)
class ChainDetails:
    """The report's lines about chains.

    - **num_chains** - number of chains.
    - **num_steps** - steps of all chains together.
    - **step_sizes**, **temperatures** - the smallest and the largest.
    - **temperature** - the chain's, in words, with its target: from a frame the curvature's share in clipped scores.
    - **diffusion_time** - of a chain.
    - **preconditioned** - whether the kernel has a preconditioner.
    - **stability** - the largest step times the declared curvature of all rows, None where none was declared.
    - **failed_chains** - numbers of the chains with values that are not finite.
    - **measured** - step size, moving sites and clipped rows of the last run, or None.
    - **norm_is_chosen** - whether a histogram chooses the clipping norm.
    - **frame** - its accesses in words, None without one."""

    num_chains: int
    num_steps: int
    step_sizes: tuple[float, float]
    temperatures: tuple[float, float]
    temperature: str
    diffusion_time: float
    preconditioned: bool
    stability: float | None = None
    failed_chains: tuple[int, ...] = ()
    measured: MeasuredChains | None = None
    norm_is_chosen: bool = False
    frame: str | None = None

    @property
    def readable_curvature(self) -> float:
        """Posterior curvature below which the spread of the samples is not the posterior's: 100 / diffusion time."""
        return 100.0 / self.diffusion_time if self.diffusion_time > 0 else math.inf

    def mixing_line(self) -> str:
        """Which posterior spreads the run was long enough to show."""
        space = "preconditioned" if self.preconditioned else "unconstrained"
        curvature = self.readable_curvature
        return (
            f"total diffusion time {self.diffusion_time:.3g} a chain; where the posterior's curvature is below "
            f"{curvature:.3g} (its sd above {curvature**-0.5:.3g}, {space}), the spread of the samples must not be "
            "read as the posterior's"
        )

    def rows(self) -> list[tuple[str, str]]:
        chosen = "from a private histogram at the start, in the account" if self.norm_is_chosen else None
        lines = {
            "steps": f"{self.num_steps} (all chains, warmup and thinned steps included), each an access of the data",
            "chains": self.num_chains, "step size": show_range(*self.step_sizes), "temperature": self.temperature,
            "mixing budget": self.mixing_line(), "frame": self.frame, "clipping norm": chosen,
            "clipped rows": self.measured and self.measured.clipped, "counted rows": self.measured and self.measured.counted,
        }  # fmt: skip
        return [(name, str(words)) for name, words in lines.items() if words]

    def warnings(self) -> list[str]:
        run, lines = self.measured, list[str]()
        if run is not None and run.counted is not None:
            lines += run.counted.warnings
        if self.stability is not None and not self.stability < 2.0:
            lines.append(
                f"h * N * L = {self.stability:.3g} is not below 2, so the chain may be unstable: raise num_samples, "
                "which makes the matched step smaller at no cost in privacy."
            )
        if run is not None and run.is_biased:
            lines.append(f"The posterior is {BIASED}; {run.clipped}.")
        if run is not None and run.over_long:
            lines.append(f"S{run.too_long[1:]}.")
        if run is not None and run.moving:
            lines.append(f"Chains had not arrived in {', '.join(run.moving)}: not even means may be read there.")
        if self.failed_chains:
            failed = ", ".join(map(str, self.failed_chains))
            cure = "They stay charged; lower the step size (raise num_samples) or change the prior."
            lines.append(f"Chains with values that are not finite: {failed}. {cure}")
        return lines

    def assumptions(self) -> list[str]:
        return []


def _temperature(kernel: Dynamics, charges: Sequence[Charge], temperatures: np.ndarray) -> str:
    """The temperature at which the chain samples, as far as it is known."""
    line = f"{show_range(temperatures.min(), temperatures.max())} from the noise (target {kernel.temperature:g}): "
    rate, num_data = kernel.mechanism.subsampling.rate, kernel.num_data
    if rate == 1.0:
        draws = " and responses that centred clipping draws" * isinstance(kernel.mechanism.clipping, Centred)
        return f"{line}exact but for discretisation{draws}, since every step sees every row"
    line += "a lower bound, minibatch noise adds to it; "
    if num_data is None:
        return line + "declare num_data to have the condition rate * N * (1 - rate) << noise_multiplier^2 checked"
    ratio = rate * num_data * (1.0 - rate) / noise_range(events_of(charges))[0] ** 2
    verdict = "negligible" if ratio < 0.05 else "not shown to be negligible: raise the rate or the noise multiplier"
    return line + f"rate * N * (1 - rate) / noise_multiplier^2 = {ratio:.3g}, so that noise is {verdict}"


def chain_facts(
    kernel: Dynamics, charges: Sequence[Charge], num_chains: int, inputs: Inputs, failed_chains: tuple[int, ...] = (),
    measured: MeasuredChains | None = None,
) -> ReportFacts:  # fmt: skip
    """The report's lines about charged steps of chains. Raises ConfigurationError if the sampler cannot stand the noise."""
    longest = measured.step_size if measured is not None and kernel.searches else math.inf
    run = [charge for charge in charges if charge.num_steps and charge.is_steps]
    h, s = np.full(1, math.nan), np.full(1, math.nan)
    time = 0.0
    if run:
        schedules = [kernel.shortened_schedule(charge.first, charge.num_steps, longest) for charge in run]
        h = np.concatenate([step_sizes for step_sizes, _ in schedules])
        s = np.concatenate([kernel.noise_std(*schedule) for schedule in schedules])
        # a restart begins anew, whatever ran and was charged
        time = kernel.total_time(run[-1].first + run[-1].num_steps, longest)
    kernel.check_noise(s)
    temperatures, note = np.asarray(kernel.temperature_at(h, s)), kernel.temperature_note(s)
    curvature = (kernel.row_curvature or 0.0) * (kernel.num_data or 0)
    details = ChainDetails(
        num_chains=num_chains, num_steps=sum(charge.num_steps * charge.chains for charge in run),
        step_sizes=(float(h.min()), float(h.max())), temperatures=(float(temperatures.min()), float(temperatures.max())),
        temperature=_temperature(kernel, run, temperatures) if note is None else note, diffusion_time=time,
        preconditioned=kernel.preconditioner is not None or kernel.metric is not None, frame=frame_line(charges),
        stability=float(h.max()) * curvature if curvature else None, failed_chains=failed_chains, measured=measured,
        norm_is_chosen=any(charge.is_query for charge in charges),
    )  # fmt: skip
    mechanism = MechanismFacts.of(kernel.mechanism, inputs.num_rows)
    return ReportFacts(type(kernel).__name__, mechanism, details, inputs)
