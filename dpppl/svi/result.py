"""What a private SVI run returns: parameters, iterates, posterior draws, and what they cost."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import ConfigurationError
from dpppl.report import PrivacyReport
from dpppl.svi.elbo import Objective


@dataclass(frozen=True, eq=False)
class SVIResult:
    """`params`: constrained parameters by name; `state`: the last state, without its key; `trajectory`: unconstrained
    iterates by parameter, (number kept, ...); `guide`: the guide that was fitted, set up without data.

    All of it is private output: it may be released at the price in `privacy_report()`. There are no losses.
    """

    params: dict[str, Any]
    state: Any
    trajectory: dict[str, Any] = field(repr=False)
    guide: Any = field(repr=False)
    objective: Objective = field(repr=False)
    report: PrivacyReport = field(repr=False)

    def privacy_report(self) -> PrivacyReport:
        """What everything its SVI object had run, when this run ended, has cost."""
        return self.report
