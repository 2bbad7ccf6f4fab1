"""Which rows a step looks at: indices drawn on the device, exactly, and what the accountant must know of it."""

from dpppl.subsampling.full_batch import FullBatch
from dpppl.subsampling.partition import Partition
from dpppl.subsampling.poisson import SAMPLING_BITS, Poisson, draw_dense, draw_sparse, sparse_sizes
from dpppl.subsampling.scheme import Selection, Subsampling
from dpppl.subsampling.without_replacement import WithoutReplacement

__all__ = [
    "SAMPLING_BITS",
    "FullBatch",
    "Partition",
    "Poisson",
    "Selection",
    "Subsampling",
    "WithoutReplacement",
    "draw_dense",
    "draw_sparse",
    "sparse_sizes",
]
