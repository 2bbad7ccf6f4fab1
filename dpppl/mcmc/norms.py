"""The clipping norm of chains, from a private histogram of norms."""

import numpy as np

from dpppl.access.clipping import Centred
from dpppl.access.norm_histogram import Norms
from dpppl.frame.locate import Located, clipped_at
from dpppl.mcmc.bound import BoundKernel
from dpppl.mcmc.chains import Call
from dpppl.mcmc.kernel import DPKernel

QUANTILE, MARGIN = 0.99, 1.25
_SPARE = 32.0
CENTRED_QUANTILE, KEPT, CENTRED_MARGIN = 0.9, 0.6, 4.0


def with_norm_for(kernel: DPKernel, bound: BoundKernel, call: Call, found: Located) -> DPKernel:
    """The kernel with the metric that a run found, and the norm that private norms of the rows suggest, or the least at which
    the prior alone is sampled well.

    Rows with shorter gradients do not inform the posterior: their sum is smaller than the noise of a step that suits the
    prior."""
    norms = found.norms
    if found.metric is not None:
        # Clipped scores have the share `kept` of the curvature: at this temperature widths are right.
        collected = call.num_collected * call.thinning / call.num_steps
        steps = kernel.charge(call.first, call.num_steps, call.num_chains)
        norm, metric = clipped_at(found.metric, norms, bound.split.num_rows, [steps], collected or 1.0)
        kernel = kernel.copy(metric=metric, searches=False, temperature=metric.kept)
    else:
        time = kernel.total_time(call.first + call.num_steps)
        affordable = affordable_norm(norms, bound.num_latents, bound.split.num_rows * norms.share, time)
        norm = norm_of_quantile(norms, isinstance(kernel.mechanism.clipping, Centred), affordable)
    step_size = kernel.with_norm(norm).step_size
    assert isinstance(step_size, float)
    too_long = step_size / float(kernel.longest_step(found.scale**-2.0))  # steps fall as norm^-2
    return kernel.with_norm(float(f"{norm * max(1.0, too_long) ** 0.5:.4g}"))


def norm_of_quantile(norms: Norms, is_centred: bool, affordable: float = 0.0) -> float:
    """A norm that few rows exceed, to four digits: 1.25 times the .99 quantile.

    Centred clipping has no bias, but loses information in clipped rows. It takes the `affordable_norm`, at most four times the
    .99 quantile. It clips at most a tenth of the rows, and at most 40 % of the sum of squared norms.

    >>> from dpppl.access.norm_histogram import SIZE
    >>> counts = np.zeros(SIZE); counts[39:42] = 200.0, 600.0, 200.0      # norms around 2^(-40 + 40.5)
    >>> norms = Norms.fitted(counts, 5.0, 1000)
    >>> norm_of_quantile(norms, is_centred=False), norm_of_quantile(norms, is_centred=True), norm_of_quantile(norms, True, 3.2)
    (4.601, 2.414, 3.2)"""
    norm = MARGIN * norms.high_quantile(QUANTILE)
    if is_centred:
        least = max(norms.quantile(CENTRED_QUANTILE), _keeping(norms, KEPT))
        norm = max(least, min(affordable, CENTRED_MARGIN * norms.high_quantile(QUANTILE)))
    return float(f"{norm:.4g}")


def _squared(norms: Norms, norm: float) -> float:
    """The mean of rows' squared norms, clipped to this one, and to the .99 quantile: beyond it a fit's tail is a guess."""
    longest = min(norm, norms.high_quantile(QUANTILE))
    return norms.mean(lambda x: np.minimum(x, longest) ** 2)


def _keeping(norms: Norms, share: float) -> float:
    """The norm that keeps this share of the rows' squared norms."""
    candidates = 2.0**norms.edges
    kept = [_squared(norms, norm) for norm in candidates]
    return float(np.interp(share * kept[-1], kept, candidates))


def affordable_norm(norms: Norms, num_latents: int, num_rows: float, diffusion_time: float) -> float:
    """The norm at which a chain can still explore most directions.

    The diffusion time falls with the square of the norm; 100 / time is the smallest curvature that may be read (`mixing_line`).
    The sum of rows' squared norms, divided by the number of latents, is the curvature of an average direction. Norms are larger
    at the start than later, and directions differ, so 32 times this curvature is required.

    - **num_rows** - number of rows that inform the posterior.
    - **diffusion_time** - diffusion time of a chain at norm 1.

    >>> norms = Norms(np.array([-0.5, 0.5]), np.array([1.0]), 0.0)                 # all of length 1
    >>> affordable_norm(norms, num_latents=5, num_rows=10_000, diffusion_time=1.0)
    0.7905694150420949"""
    curvature = num_rows * _squared(norms, np.inf) / num_latents
    return float((diffusion_time * curvature / (_SPARE * 100.0)) ** 0.5)
