"""ArviZ's InferenceData of a run. It is imported where ArviZ is."""

from typing import Any, NoReturn

import arviz

from dpppl.errors import ConfigurationError

_BASE: Any = arviz.InferenceData if arviz.__version__.startswith("0.") else object


class PrivateInferenceData(_BASE):
    """ArviZ's InferenceData, which says why it has no log likelihood. Made by `to_arviz`."""

    @property
    def log_likelihood(self) -> NoReturn:
        """Raises ConfigurationError: of each row it would be private. `arviz.loo` and `arviz.waic` ask for it."""
        raise ConfigurationError(
            "arviz.loo, waic and compare need the log likelihood of each row, which is private and not stored. The charged mean "
            "of a bounded score says how well a model predicts: dpppl.private_score(dpppl.secret_key(), score, "
            "dpppl.Public(mcmc.get_samples()), x, y, bounds=(0.0, 1.0), target_epsilon=0.1, target_delta=1e-6)."
        )
