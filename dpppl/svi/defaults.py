"""What SVI does where its user does not say: chosen from public shapes, and a norm from a charged histogram.

One configuration for every epsilon, that of the Adult table in docs/svi.md: full batch, 400 steps of Adam whose learning
rate falls from .04 to .004 along a cosine, and the average of the last half of the iterates. Adam's step does not depend on
the scale of the gradients, so neither rows, epsilon nor the norm enter.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
from numpyro.infer import autoguide, init_to_median, init_to_uniform
from numpyro.optim import _NumPyroOptim

from dpppl.access.norm_histogram import Norms, gradient_norm
from dpppl.errors import ConfigurationError
from dpppl.randomness import keys
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING, Run
from dpppl.runs.norm_choice import private_norms
from dpppl.runs.provenance import KeyOrigin, Start
from dpppl.runs.report import announce
from dpppl.svi.elbo import Objective
from dpppl.svi.optimizers import without_loss

if TYPE_CHECKING:
    from dpppl.svi.runner import SVI

NUM_STEPS, LEARNING_RATE, LAST_SHARE = 400, 0.04, 0.1
QUANTILE = 0.9
"""Of the norms at the start: what is clipped costs less than the noise of a larger norm."""


class DefaultOptimizer(_NumPyroOptim):
    """Adam with a learning rate that falls along a cosine. Its pickle holds `num_steps`."""

    def __init__(self, num_steps: int) -> None:
        import optax

        adam = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, num_steps, alpha=LAST_SHARE))
        self.__dict__.update(vars(without_loss(adam)), num_steps=num_steps)

    def __reduce__(self) -> Any:
        return type(self), (self.num_steps,)


def start_at_median(guide: Any) -> None:
    """Let an AutoGuide whose start nobody chose begin at the prior's median: NumPyro's own default is uniform draws."""
    for part in guide if isinstance(guide, autoguide.AutoGuideList) else [guide]:
        if isinstance(part, autoguide.AutoGuide) and getattr(part, "init_loc_fn", None) is init_to_uniform:
            part.init_loc_fn = init_to_median


def check_auto(gradient: str, clipping: Any, checkpoint: Any) -> None:
    """Refuse what clipping_norm="auto" does not fit."""
    if gradient != "aligned" or not isinstance(clipping, str) or checkpoint is not None:
        raise ConfigurationError(
            'clipping_norm="auto" is for aligned gradients, norms that do not adapt, and runs without a checkpoint; '
            "give the norm as a number: clipping_norm=1.0."
        )


def choose_norm(
    svi: "SVI",
    objective: Objective,
    phi: Any,
    rows: Any,
    public: Any,
    run: Run,
    charges: Sequence[Charge],
    start: Start,
) -> Run:
    """Give `svi` the .9 quantile of the rows' gradients at a draw of the first guide, to four digits. `charges`: the
    histogram's, and that of the steps. Returns the run, which has its steps reserved."""
    histogram, *steps = charges
    before = svi.budget.events
    with TRACING:
        _, z = jax.jit(objective.draw)(phi, keys.stream(run.key, "start"), public)

    def begin(origin: KeyOrigin) -> None:
        announce(svi._begun(objective, charges, origin, start), before, objective.split.notes, svi.print_cost)

    def choose(norms: Norms) -> None:
        norm = float(f"{norms.high_quantile(QUANTILE):.4g}")
        svi._mechanism, svi._auto = svi._mechanism.with_norm(norm), False

    statistic = gradient_norm(objective.split.log_likelihood)
    return private_norms(statistic, z, rows, public, run, svi.budget, histogram, steps, begin, choose, what="SVI")
