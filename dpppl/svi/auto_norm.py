"""clipping_norm="auto" of SVI: a quantile of the norms of rows' gradients where the guide starts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from dpppl.access.norm_histogram import Norms, gradient_norm
from dpppl.model.prior_draws import prior_scales
from dpppl.model.supports import codes
from dpppl.model.units import is_outside
from dpppl.randomness import keys
from dpppl.report.counted_rows import CountedRows
from dpppl.report.provenance import KeyOrigin
from dpppl.report.report import PrivacyReport
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING
from dpppl.runs.prelude import NormPhase, measure_norms
from dpppl.runs.session import Run
from dpppl.svi.elbo import Objective
from dpppl.svi.settings import SVISettings

QUANTILE = 0.9
"""Of the norms at the start: what is clipped costs less than the noise of a larger norm."""


def choose_norm(
    svi: SVISettings,
    objective: Objective,
    phi: Any,
    rows: Any,
    public: Any,
    run: Run,
    charges: Sequence[Charge],
    begin: Callable[[KeyOrigin], PrivacyReport],
) -> Run:
    """Choose the .9 quantile of the norms of rows' gradients at a draw of the first guide, to four digits.

    Returns the run, which has its steps reserved.

    - **svi** - the SVI.
    - **objective** - its objective.
    - **phi** - the first unconstrained parameters.
    - **rows**, **public** - private rows and Public arrays.
    - **run** - the run, not yet begun.
    - **charges** - the histogram's, and that of the steps.
    - **begin** - `begin(origin of the key)` notes that the run begins and reports its charges."""
    (histogram, *steps), split = charges, objective.split
    with TRACING:
        _, z = jax.jit(objective.draw)(phi, keys.stream(run.key, "start"), public)
        scales, known = prior_scales(split, public), codes(split)

    def choose(norms: Norms, counted: CountedRows) -> None:
        svi._chosen(float(f"{norms.high_quantile(QUANTILE):.4g}"), counted)

    phase = NormPhase(
        statistic=gradient_norm(split.log_likelihood, partial(is_outside, split)), start=z, scales=scales, codes=known,
        rows=rows, public=public, histogram=histogram, charges=steps, choose=choose, what="SVI", notes=split.notes,
        print_cost=svi.print_cost,
    )  # fmt: skip
    return measure_norms(run, phase, svi.budget, begin)
