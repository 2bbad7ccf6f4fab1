"""The arguments of `dpppl.MCMC`, checked."""

from dpppl.access.clipping import Centred
from dpppl.errors import ConfigurationError
from dpppl.frame.locate import FEWEST_STEPS, checked_frame
from dpppl.mcmc.kernel import DPKernel
from dpppl.runs.private_runner import Privacy
from dpppl.validation import a


def checked_kernel(kernel: object, privacy: Privacy, checkpoint: object) -> DPKernel:
    """The kernel, with what `privacy` sets of it: noise multiplier and number of rows.

    Raises ConfigurationError for a kernel that `dpppl.MCMC` does not run, or not with these settings."""
    if not isinstance(kernel, DPKernel):
        what = f"the class {kernel.__name__}" if isinstance(kernel, type) else a(type(kernel).__name__)
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


def has_frame(frame: bool | None, kernel: DPKernel, privacy: Privacy, num_steps: int) -> bool:
    """Whether chains with these settings start at a frame; see `checked_frame`. By default not where each has few steps."""
    mechanism, start = kernel.mechanism, kernel.init_strategy
    fits = {
        "target_epsilon": privacy.epsilon is not None, "clipping_norm='auto'": kernel.auto_norm,
        "clipping='centred'": isinstance(mechanism.clipping, Centred),
        "init_strategy='prior_median'": isinstance(start, str) and start == "prior_median",
        "no preconditioner": kernel.preconditioner is None, "temperature=1": kernel.temperature == 1.0,
        "subsampling=FullBatch()": mechanism.subsampling.rate == 1.0, "discretise=False": not mechanism.discretise,
    }  # fmt: skip
    return checked_frame(frame, fits) and (frame is True or num_steps >= FEWEST_STEPS)
