"""The report's lines about SVI: steps, queries, particles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpppl.model.split import SplitModel
from dpppl.model.supports import codes
from dpppl.report.counted_rows import BIASED, ClippedRows, CountedRows, rows_of
from dpppl.report.report import MechanismFacts
from dpppl.runs.budget import Charge
from dpppl.runs.private_runner import Facts
from dpppl.svi.convergence import TAIL, tail_of
from dpppl.svi.settings import SVISettings


@dataclass(frozen=True, kw_only=True)
class SVIDetails:
    """The report's lines about SVI.

    - **num_steps** - accesses that were optimisation steps.
    - **num_queries** - accesses that were queries.
    - **num_particles** - guide draws a step.
    - **clipped** - share of clipped rows at the end of the last run, None where it was not counted.
    - **counted** - rows that do not inform the posterior, None where they were not counted."""

    num_steps: int
    num_queries: int
    num_particles: int
    clipped: ClippedRows | None = None
    counted: CountedRows | None = None

    @classmethod
    def of(
        cls, charges: Sequence[Charge], num_particles: int, clipped: ClippedRows | None = None,
        counted: CountedRows | None = None,
    ) -> "SVIDetails":  # fmt: skip
        """Details of charged steps."""
        accesses = {
            is_query: sum(c.num_steps * c.chains for c in charges if c.is_query == is_query)
            for is_query in (False, True)
        }
        return cls(
            num_steps=accesses[False], num_queries=accesses[True], num_particles=num_particles, clipped=clipped, counted=counted
        )  # fmt: skip

    def rows(self) -> list[tuple[str, str]]:
        """See `Details`."""
        return [
            ("steps", f"{self.num_steps}, each an access of the data"),
            ("queries", f"{self.num_queries}, each an access of the data"),
            ("particles", f"{self.num_particles} a step, clipped together: one access"),
            *([("clipped rows", str(self.clipped))] if self.clipped else []),
            *([("counted rows", str(self.counted))] if self.counted else []),
        ]

    def warnings(self) -> list[str]:
        """See `Details`."""
        biased = self.clipped is not None and self.clipped.is_biased
        lines = [f"The posterior is {BIASED}; {self.clipped}."] if biased else []
        return lines if self.counted is None else [*lines, *self.counted.warnings]

    def assumptions(self) -> list[str]:
        """See `Details`."""
        return ["Guides are set up on made-up rows."]


def svi_facts(svi: SVISettings, charges: Sequence[Charge]) -> Facts:
    """The report's lines about `svi`, for these `charges`."""
    objective = svi._objective
    num_rows = None if objective is None else objective.split.num_rows
    steps = [charge.mechanism for charge in charges if not charge.is_query]
    captured = () if objective is None else objective.captured
    return Facts(
        method=f"SVI ({getattr(type(svi.guide), '__name__', 'guide')}, {svi.gradient})",
        mechanism=MechanismFacts.of(steps[-1] if steps else svi.mechanism, num_rows),
        details=SVIDetails.of(charges, svi.num_particles, svi._clipped, svi._counted),
        num_rows=num_rows,
        assumed_public=tuple(dict.fromkeys((*captured, *svi._captured))),
    )


def counted_rows(
    shares: Any, charge: Charge, num_steps: int, split: SplitModel
) -> tuple[ClippedRows | None, CountedRows | None]:
    """In the last half of a run that cost `charge`, from the kept counts of rows (number kept, NUM_COUNTS) or None."""
    if shares is None:
        return None, None
    mechanism, tail = charge.mechanism, tail_of(np.asarray(shares, np.float64), TAIL)
    noise = mechanism.count_std * float(charge.noise_multipliers[0]) / (mechanism.subsampling.rate * split.num_rows)
    counts, error = np.mean(tail, axis=0), noise / (TAIL * num_steps) ** 0.5
    return rows_of(counts, error, mechanism.clipping, split.num_rows, codes(split))
