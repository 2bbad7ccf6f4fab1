"""The cost of chains: noise that fits a budget, and the charges of a run."""

from typing import Any

from dpppl.errors import BudgetExceededError, ConfigurationError
from dpppl.mcmc.chains import Chains
from dpppl.mcmc.kernel import DPKernel
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.driver import Plan
from dpppl.runs.prelude import histogram_charge
from dpppl.runs.private_runner import Privacy


def checked_kernel(kernel: Any, privacy: Privacy, checkpoint: Any) -> DPKernel:
    """The kernel, with what `privacy` sets of it: noise multiplier and number of rows.

    Raises ConfigurationError for a kernel that `dpppl.MCMC` does not run, or not with these settings.

    - **kernel**, **privacy**, **checkpoint** - arguments of `dpppl.MCMC`.
    """
    if not isinstance(kernel, DPKernel):
        what = f"the class {kernel.__name__}" if isinstance(kernel, type) else f"a {type(kernel).__name__}"
        raise ConfigurationError(
            f"the kernel is {what}; dpppl.MCMC runs dpppl.DPSGLD(model, ...), DPSGHMC and DPSGNHT, whose noise is the "
            "privacy noise. NumPyro's kernels, such as NUTS, read the data without noise; dpppl.NoiseAware(model, ...) "
            "runs NUTS on what was released."
        )
    given = {"noise_multiplier": privacy.noise_multiplier, "num_data": privacy.num_data}
    for name, value in given.items():
        if value is not None and getattr(kernel, name) not in (None, value):
            raise ConfigurationError(f"{name} is given to the kernel and to MCMC, and differs: give it to one of them.")
    if privacy.num_data is not None:
        kernel = kernel.copy(num_data=privacy.num_data)
    if privacy.noise_multiplier is not None:
        kernel = kernel.with_noise(privacy.noise_multiplier)
    if privacy.epsilon is not None and kernel.noise_multiplier is not None:
        raise ConfigurationError("give noise_multiplier or target_epsilon, not both: one follows from the other.")
    if checkpoint is not None and kernel.auto_norm:
        raise ConfigurationError('a run with clipping_norm="auto" takes no checkpoint; give it the norm as a number.')
    return kernel


def calibrated(kernel: DPKernel, budget: Budget, num_steps: int, num_chains: int) -> DPKernel:
    """The kernel with the noise multiplier and the step size that a budget gives. Looks at no data.

    - **kernel** - the kernel as the user made it.
    - **budget** - the account, all of which but its reserve is used where it has a target.
    - **num_steps** - steps of each chain, warmup included.
    - **num_chains** - number of chains.
    """
    kernel = kernel.copy(mechanism=budget.affordable(kernel.mechanism, num_steps * num_chains))
    if budget.target_epsilon is None:
        return kernel
    if not kernel.is_matched:
        try:
            budget.admit([kernel.charge(0, num_steps, num_chains)], share=1.0 - budget.reserve)
        except BudgetExceededError:
            pass
        else:
            return kernel  # the sampler's own noise is enough
    total = num_steps * num_chains

    def charges(noise_multiplier: float) -> list[Charge]:
        noisy = kernel.with_noise(noise_multiplier)
        return [*histogram_of(noisy, total), noisy.charge(0, num_steps, num_chains)]

    return kernel.with_noise(budget.calibrate(charges))


def histogram_of(kernel: DPKernel, total_steps: int) -> list[Charge]:
    """The cost of the histogram that the clipping norm comes from; empty where the norm is known.

    - **kernel** - the calibrated kernel.
    - **total_steps** - steps of all chains together, warmup included.
    """
    if not kernel.auto_norm:
        return []
    assert kernel.noise_multiplier is not None
    return [histogram_charge(kernel.noise_multiplier, total_steps, kernel.mechanism)]


def plan_of(chains: Chains, warmup: int, print_cost: bool, progress_bar: bool) -> Plan:
    """The driver's plan for these chains.

    - **chains** - the chains.
    - **warmup** - steps that the progress bar calls warmup.
    - **print_cost**, **progress_bar** - whether to show them.
    """
    call, bound = chains.call, chains.bound
    return Plan(
        method=chains.method, chain_groups=chains.groups, rows=chains.rows, public=chains.public, charges=chains.charges,
        what=type(chains.bound.kernel).__name__, notes=bound.split.notes, print_cost=print_cost, progress_bar=progress_bar,
        settings=(call.first, call.discarded, call.num_collected, chains.layout.thinning),
        describe=lambda done: "warmup" if done <= warmup else "sample",
    )  # fmt: skip
