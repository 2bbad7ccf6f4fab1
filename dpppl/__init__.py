"""Differentially private inference for NumPyro models."""

from dpppl import accounting as accounting
from dpppl.errors import BudgetExceededError as BudgetExceededError
from dpppl.errors import ConfigurationError as ConfigurationError
from dpppl.errors import DPPPLError as DPPPLError
from dpppl.errors import KeyReuseError as KeyReuseError
from dpppl.errors import UnsupportedModelError as UnsupportedModelError
from dpppl.mcmc.langevin import DPSGLD as DPSGLD
from dpppl.mcmc.runner import MCMC as MCMC
from dpppl.mcmc.schedules import polynomial_decay as polynomial_decay
from dpppl.model import Public as Public
from dpppl.random import secret_key as secret_key
from dpppl.report import PrivacyReport as PrivacyReport
from dpppl.subsampling import FullBatch as FullBatch
from dpppl.subsampling import Poisson as Poisson
