"""ArviZ's InferenceData of a run. It is imported where ArviZ is."""

from typing import NoReturn

import arviz

from dpppl.errors import ConfigurationError

_BASE: type = arviz.InferenceData if arviz.__version__.startswith("0.") else object
_LIKELIHOOD = (
    "arviz.loo, waic and compare need the log likelihood of each row, which is private and not stored. The charged mean "
    "of a bounded score says how well a model predicts: dpppl.private_score(dpppl.secret_key(), score, "
    "dpppl.Public(mcmc.get_samples()), x, y, bounds=(0.0, 1.0), target_epsilon=0.1, target_delta=1e-6)."
)
_PREDICTIVE = (
    "arviz.plot_ppc, plot_bpv and plot_loo_pit compare predictions with the observed rows, which are private and not stored. A "
    "charged check is dpppl.contrib.uncertainty.discrepancy with dpppl.private_score. Rows that are public, or made up, can be "
    "added: data.extend(arviz.from_dict(posterior_predictive={'y': draws}, observed_data={'y': y}))."
)
_REASONS = {"log_likelihood": _LIKELIHOOD, "posterior_predictive": _PREDICTIVE, "observed_data": _PREDICTIVE}


class PrivateGroupError(ConfigurationError):
    """A group of ArviZ's would hold private rows. `arviz.compare` makes it anew with words of its own: the reason stays.

    - **text** - the reason, or ArviZ's words, to which it is added."""

    def __init__(self, text: str) -> None:
        super().__init__(text if text in _REASONS.values() else f"{text} {_LIKELIHOOD}")


class PrivateInferenceData(_BASE):
    """ArviZ's InferenceData, which says why it has no log likelihood and no observed data. Made by `to_arviz`."""

    def __getattr__(self, name: str) -> NoReturn:
        if name in _REASONS:
            raise PrivateGroupError(_REASONS[name])
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    def extend(self, *args: object, **kwargs: object) -> None:
        """As ArviZ's: it asks which groups there are."""
        self.__class__ = _BASE
        try:
            self.extend(*args, **kwargs)
        finally:
            self.__class__ = PrivateInferenceData
