"""How good predictive distributions are, and what their spread is made of.

Arrays of JAX or NumPy go in, numbers come out. Nothing here adds noise: a score of private held-out rows is a release that
no privacy report covers. `dpppl.private_score` asks for one as a charged query.
"""

from dpppl.contrib.uncertainty.calibration import ReliabilityBins as ReliabilityBins
from dpppl.contrib.uncertainty.calibration import expected_calibration_error as expected_calibration_error
from dpppl.contrib.uncertainty.calibration import maximum_calibration_error as maximum_calibration_error
from dpppl.contrib.uncertainty.calibration import reliability_bins as reliability_bins
from dpppl.contrib.uncertainty.decomposition import VarianceParts as VarianceParts
from dpppl.contrib.uncertainty.decomposition import decompose_variance as decompose_variance
from dpppl.contrib.uncertainty.decomposition import learned_shares as learned_shares
from dpppl.contrib.uncertainty.discrepancy import discrepancy as discrepancy
from dpppl.contrib.uncertainty.elpd import elpd_difference as elpd_difference
from dpppl.contrib.uncertainty.multiplicity import discoveries as discoveries
from dpppl.contrib.uncertainty.scores import brier_score as brier_score
from dpppl.contrib.uncertainty.scores import crps as crps
from dpppl.contrib.uncertainty.scores import interval_coverage as interval_coverage
from dpppl.contrib.uncertainty.scores import log_score as log_score
from dpppl.contrib.uncertainty.scores import predictive_log_score as predictive_log_score
from dpppl.contrib.uncertainty.survival import SurvivalCurve as SurvivalCurve
from dpppl.contrib.uncertainty.survival import survival_curve as survival_curve

__all__ = [
    "ReliabilityBins",
    "SurvivalCurve",
    "VarianceParts",
    "brier_score",
    "crps",
    "decompose_variance",
    "discoveries",
    "discrepancy",
    "elpd_difference",
    "expected_calibration_error",
    "interval_coverage",
    "learned_shares",
    "log_score",
    "maximum_calibration_error",
    "predictive_log_score",
    "reliability_bins",
    "survival_curve",
]
