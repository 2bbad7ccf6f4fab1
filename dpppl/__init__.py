"""Differentially private inference for NumPyro models."""

from dpppl import accounting as accounting
from dpppl import information_flow as information_flow
from dpppl.checking import Checked as Checked
from dpppl.checking import check as check
from dpppl.data.from_disk import from_disk as from_disk
from dpppl.errors import BudgetExceededError as BudgetExceededError
from dpppl.errors import CheckpointError as CheckpointError
from dpppl.errors import ConclusionError as ConclusionError
from dpppl.errors import ConfigurationError as ConfigurationError
from dpppl.errors import DataReadError as DataReadError
from dpppl.errors import DPPPLError as DPPPLError
from dpppl.errors import KeyReuseError as KeyReuseError
from dpppl.errors import LedgerError as LedgerError
from dpppl.errors import PrivacyLeakError as PrivacyLeakError
from dpppl.errors import PrivacyWarning as PrivacyWarning
from dpppl.errors import ProcessError as ProcessError
from dpppl.errors import UnconvergedWarning as UnconvergedWarning
from dpppl.errors import UnsupportedModelError as UnsupportedModelError
from dpppl.ledger.privacy_ledger import PrivacyLedger as PrivacyLedger
from dpppl.mcmc.dynamics import polynomial_decay as polynomial_decay
from dpppl.mcmc.runner import MCMC as MCMC
from dpppl.mcmc.three_kernels import DPSGHMC as DPSGHMC
from dpppl.mcmc.three_kernels import DPSGLD as DPSGLD
from dpppl.mcmc.three_kernels import DPSGNHT as DPSGNHT
from dpppl.model.arguments import Public as Public
from dpppl.noise_aware.runner import NoiseAware as NoiseAware
from dpppl.published.likelihood import Likelihood as Likelihood
from dpppl.published.likelihood import pool as pool
from dpppl.randomness.keys import secret_key as secret_key
from dpppl.report.report import PrivacyReport as PrivacyReport
from dpppl.report.version import VERSION as _VERSION
from dpppl.runs.private_runner import Privacy as Privacy
from dpppl.runs.private_scale import PrivateScale as PrivateScale
from dpppl.runs.private_scale import private_scale as private_scale
from dpppl.runs.private_score import PrivateScore as PrivateScore
from dpppl.runs.private_score import private_score as private_score
from dpppl.subsampling import FullBatch as FullBatch
from dpppl.subsampling import Partition as Partition
from dpppl.subsampling import Poisson as Poisson
from dpppl.subsampling import WithoutReplacement as WithoutReplacement
from dpppl.svi.dropout import AutoDropout as AutoDropout
from dpppl.svi.result import SVIResult as SVIResult
from dpppl.svi.runner import SVI as SVI

__version__ = _VERSION
__all__ = [
    "DPSGHMC",
    "DPSGLD",
    "DPSGNHT",
    "MCMC",
    "SVI",
    "AutoDropout",
    "BudgetExceededError",
    "Checked",
    "CheckpointError",
    "ConclusionError",
    "ConfigurationError",
    "DPPPLError",
    "DataReadError",
    "FullBatch",
    "KeyReuseError",
    "LedgerError",
    "Likelihood",
    "NoiseAware",
    "Partition",
    "Poisson",
    "Privacy",
    "PrivacyLeakError",
    "PrivacyLedger",
    "PrivacyReport",
    "PrivacyWarning",
    "PrivateScale",
    "PrivateScore",
    "ProcessError",
    "Public",
    "SVIResult",
    "UnconvergedWarning",
    "UnsupportedModelError",
    "WithoutReplacement",
    "accounting",
    "check",
    "from_disk",
    "information_flow",
    "polynomial_decay",
    "pool",
    "private_scale",
    "private_score",
    "secret_key",
]


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__doc__", "__version__"]
