"""A charged query: the sum over all rows of a bounded number, with Gaussian noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin
from dpppl.runs.budget import Budget, Charge
from dpppl.runs.driver import prepare
from dpppl.runs.session import Request, Run, session
from dpppl.subsampling import FullBatch
from dpppl.types import Function, Tree
from dpppl.validation import positive


@dataclass(frozen=True, kw_only=True)
class Query:
    """A sum over all rows of a number or a vector, each clipped to a length of at most `bound`.

    - **statistic** - `statistic(row, public)`, the number or vector of one row.
    - **bound** - bound on its L2 norm.
    - **rows** - private rows (N, ...).
    - **public** - everything else that the statistic needs.
    - **what** - what a ledger calls the query.
    - **discretise** - whether rows are rounded to whole numbers and noise is discrete, as in `Mechanism`.
    - **neighboring_relation** - the relation of the report that the query belongs to."""

    statistic: Function
    bound: float
    rows: Tree
    public: Tree
    what: str
    discretise: bool = False
    neighboring_relation: str = FullBatch.neighboring_relation

    def charge(self, noise_multiplier: float) -> Charge:
        """The cost.

        - **noise_multiplier** - noise sd in units of the bound."""
        mechanism = Mechanism(clipping=Flat(self.bound), subsampling=FullBatch(), discretise=self.discretise)
        noise = np.array([noise_multiplier])
        return Charge(mechanism, noise, is_query=True, neighboring_relation=self.neighboring_relation)


def query_charge(query: Query, budget: Budget, noise_multiplier: float | None) -> Charge:
    """The cost of a query, at a noise multiplier or at the least that the rest of the target allows.

    - **budget** - the account, with a target where `noise_multiplier` is None.
    - **noise_multiplier** - noise sd in units of the bound, or None."""
    noise = budget.account().calibrate(query.charge) if noise_multiplier is None else noise_multiplier
    return query.charge(positive(noise, name="noise_multiplier"))


def noisy_query(
    query: Query, charge: Charge, key: jax.Array, budget: Budget,
    begin: Callable[[Sequence[Charge], KeyOrigin], None] = lambda charges, origin: None,
) -> np.ndarray:  # fmt: skip
    """The noisy sum, in the shape of the statistic: proved first, then charged, then run.

    - **key** - a key of its own, used once.
    - **begin** - `begin(charges, origin of the key)`, called before the charge."""
    noise_multiplier = float(charge.noise_multipliers[0])

    def statistic(_: object, row: Tree, public: Tree) -> Tree:
        return jnp.asarray(query.statistic(row, public), float)

    def program(rows: Tree, public: Tree, key: jax.Array) -> Tree:
        settings: dict[str, Tree] = dict(key=key, noise_multiplier=noise_multiplier, number=ROW_NUMBER)
        return noisy_statistic(charge.mechanism, statistic, 0.0, rows, public, **settings).total

    arguments = (query.rows, query.public, keys.stream(key, "query"))
    budget.account().admit([charge])
    compiled = prepare(program, arguments, rows=0)
    request = Request(
        what=query.what, charges=[charge], rows=query.rows, program=compiled.digest, begin=begin, print_cost=False,
        shared=dict(settings=charge.noise_multipliers, public_arrays=query.public),
    )  # fmt: skip
    with session(Run.opened(key), request, budget) as opened:
        opened.charge(0, 1)
        return np.asarray(compiled(*arguments), np.float64)
