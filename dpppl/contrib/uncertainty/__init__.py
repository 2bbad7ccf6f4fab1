"""How good predictive distributions are, and what their spread is made of.

Arrays of JAX or NumPy go in, numbers come out. Nothing here adds noise: a score of private held-out rows is a release that
no privacy report covers. `dpppl.private_score` asks for one as a charged query. Scores that scikit-learn or scoringrules have are
theirs (docs/checks.md).
"""

from dpppl.contrib.uncertainty.calibration import expected_calibration_error
from dpppl.contrib.uncertainty.decomposition import VarianceParts, decompose_variance, learned_shares
from dpppl.contrib.uncertainty.multiplicity import discoveries
from dpppl.contrib.uncertainty.row_scores import discrepancy, elpd_difference
from dpppl.contrib.uncertainty.survival import SurvivalCurve, survival_curve

__all__ = [
    "SurvivalCurve", "VarianceParts", "decompose_variance", "discoveries", "discrepancy", "elpd_difference",
    "expected_calibration_error", "learned_shares", "survival_curve",
]  # fmt: skip
