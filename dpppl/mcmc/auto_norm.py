"""`clipping_norm="auto"` of chains: what can be refused without the norm is refused first, then the histogram is charged."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpppl.access.clipping import Centred
from dpppl.access.norm_histogram import Norms
from dpppl.mcmc.chains import unstack
from dpppl.mcmc.kernel import DPKernel
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING, Run, prove
from dpppl.runs.norm_choice import affordable_norm, chosen_norm, private_norms
from dpppl.runs.provenance import KeyOrigin, Start
from dpppl.runs.report import announce

if TYPE_CHECKING:
    from dpppl.mcmc.runner import MCMC


def choose_norm(
    mcmc: "MCMC", run: Run, kernel: DPKernel, chunk_of: Callable[..., Any], legs: Sequence[Any], arguments: Any, num_steps: int,
    charges: Sequence[Charge], start: Start,
) -> Run:  # fmt: skip
    """Give `mcmc` the kernel of all its runs. `charges`: the histogram's, then those of the legs; `num_steps`: of a chain, in
    all; `chunk_of(step)`: the program of a chunk. Returns the run, which has its steps reserved."""
    histogram, *steps = charges
    mcmc.budget.admit(charges, run.run_id)
    trial, before, number = kernel.with_norm(1.0), mcmc.budget.events, np.asarray(0, np.int32)
    with TRACING:
        trial.bind(*arguments)
    args, kwargs = arguments
    rows, public = kernel.split.arrays(args, kwargs, mcmc.mesh)
    prove(chunk_of(trial.step), (legs[0], rows, public, number, number), rows=1)
    one = unstack(legs[0])[0] if len(legs) < mcmc.num_chains else legs[0]

    def begin(origin: KeyOrigin) -> None:
        report = mcmc._begun(kernel, charges, origin, start)
        announce(report, before, kernel.split.notes, mcmc.print_cost)

    def choose(norms: Norms) -> None:
        affordable = affordable_norm(norms, trial.num_latents, kernel.split.num_rows, trial.total_time(num_steps))
        is_centred = isinstance(kernel.mechanism.clipping, Centred)
        mcmc._kernel = kernel.with_norm(chosen_norm(norms, is_centred, affordable))

    return private_norms(
        *kernel.norm_statistic(one),
        rows,
        public,
        run,
        mcmc.budget,
        histogram,
        steps,
        begin,
        choose,
        what=type(kernel).__name__,
    )
