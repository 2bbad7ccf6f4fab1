"""Defaults of SVI: chosen from public shapes, and a norm from a charged histogram.

One configuration for every epsilon, that of the Adult table in docs/svi.md: full batch, 400 steps of Adam whose learning
rate falls from .04 to .004 along a cosine, and the average of the last half of the iterates. Adam's step does not depend on
the scale of the gradients, so neither rows, epsilon nor the norm enter.
"""

from typing import Any

from numpyro.infer import autoguide, init_to_feasible, init_to_mean, init_to_median, init_to_sample, init_to_uniform
from numpyro.optim import _NumPyroOptim

from dpppl.errors import ConfigurationError
from dpppl.report.provenance import Start
from dpppl.svi.guides import parts_of
from dpppl.svi.optimizers import of_optax

NUM_STEPS, LEARNING_RATE, LAST_SHARE = 400, 0.04, 0.1


class DefaultOptimizer(_NumPyroOptim):
    """Adam with a cosine learning-rate schedule from .04 to .004. Its pickle holds `num_steps` only.

    - **num_steps** - length of the schedule."""

    def __init__(self, num_steps: int) -> None:
        import optax

        schedule = optax.cosine_decay_schedule(LEARNING_RATE, num_steps, alpha=LAST_SHARE)
        super().__init__(of_optax, optax.adam(schedule))
        self.num_steps = num_steps

    def __reduce__(self) -> Any:
        return type(self), (self.num_steps,)


def start_at_median(guide: Any) -> None:
    """Let an AutoGuide whose start nobody chose begin at the prior's median: NumPyro's own default is uniform draws."""
    for part in parts_of(guide):
        if isinstance(part, autoguide.AutoGuide) and getattr(part, "init_loc_fn", None) is init_to_uniform:
            part.init_loc_fn = init_to_median


def check_auto(gradient: str, clipping: Any, checkpoint: Any) -> None:
    """Refuse what clipping_norm="auto" does not fit."""
    if gradient != "aligned" or not isinstance(clipping, str | None) or checkpoint is not None:
        raise ConfigurationError(
            'clipping_norm="auto" is for aligned gradients, norms that do not adapt, and runs without a checkpoint; '
            "give the norm as a number: clipping_norm=1.0."
        )


_WITHOUT_VALUES = (init_to_feasible, init_to_mean, init_to_median, init_to_sample, init_to_uniform)


def start_of(guide: Any) -> Start:
    """Where a guide's first parameters come from."""
    for part in parts_of(guide):
        strategy = getattr(part, "init_loc_fn", init_to_median)
        if getattr(strategy, "func", strategy) not in _WITHOUT_VALUES:
            return Start.SUPPLIED
    return Start.GUIDE
