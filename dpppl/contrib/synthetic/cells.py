"""Tables of few categories: one charged histogram of all cells, and the posterior of a table's model given these noisy counts."""

import functools
import math
import os
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, init_to_median

from dpppl.contrib.synthetic.schema import LEFT_OUT, Number, Schema
from dpppl.contrib.synthetic.table import check_columns
from dpppl.errors import ConfigurationError
from dpppl.findings.counted_rows import STANDS_OUT, stands_out
from dpppl.findings.finding import Finding, Found, Level, Verdict, findings_of, refused
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.model.handlers import explained, failing_explained
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, Provenance, Start, Status
from dpppl.report.report import MechanismFacts, PrivacyReport
from dpppl.runs.budget import Budget
from dpppl.runs.driver import TRACING, on_host
from dpppl.runs.query import Query, noisy_query, query_charge
from dpppl.types import Function, Tree
from dpppl.validation import checked, positive_integer

Array = np.ndarray

MOST_CELLS, FEWEST_SAMPLES = 10_000, 8
_WARMUP, _CHAINS, _MIXED, _UNLIKELY = 500, 2, 1.05, 1e-3


def left_out(fit: "CellDetails") -> Found:
    """Rows that are left out: results are refused where they are most of the rows, or the others may be noise."""
    total = max(1.0, fit.complete + fit.incomplete)
    share, is_refused = fit.incomplete / total, not fit.complete > max(fit.incomplete, STANDS_OUT * fit.noise_sd)
    if is_refused or stands_out(share, fit.noise_sd / total):
        words = f"{min(1.0, max(0.0, share)):.1%} of the rows are left out: {LEFT_OUT}."
        yield Finding(Level.REFUSED if is_refused else Level.CARE, words, of_rows=True)


def misfit(fit: "CellDetails") -> Found:
    """NUTS has not converged, or the model does not fit."""
    if not fit.r_hat < _MIXED:
        yield refused(f"NUTS has not converged (R-hat {fit.r_hat:.2f}): raise num_samples.")
    if fit.p_value < _UNLIKELY:
        yield refused(
            f"the model does not fit the counts of cells (p-value {fit.p_value:.2g}): table_model(schema, "
            "interactions=True), or another order of columns."
        )


@dataclass(frozen=True, kw_only=True)
class CellDetails(Verdict):
    """The report's lines about a fit to noisy counts.

    - **num_cells** - number of combinations of categories.
    - **noise_sd** - standard deviation of the counts' noise.
    - **r_hat** - largest split R-hat of a latent.
    - **p_value** - posterior predictive p-value of the counts' chi-squared; near 0 where the model does not fit them.
    - **complete**, **incomplete** - noised numbers of rows that are counted, and of rows that are left out.

    >>> CellDetails(num_cells=2, noise_sd=4.5, r_hat=1.2, p_value=0.4, complete=900.0, incomplete=1.0).refusals
    ['NUTS has not converged (R-hat 1.20): raise num_samples.']
    """

    num_cells: int
    noise_sd: float
    r_hat: float
    p_value: float
    complete: float
    incomplete: float

    otherwise = "NUTS has converged, and the model fits the counts"

    @property
    def findings(self) -> list[Finding]:
        """The findings on the samples, of all levels."""
        return findings_of(self, left_out, misfit)

    def rows(self) -> list[tuple[str, str]]:
        """See `Details`."""
        return [
            ("verdict", self.line()),
            ("released", f"noisy counts of {self.num_cells:,} combinations, sd {self.noise_sd:.4g}"),
        ]

    def warnings(self) -> list[str]:
        """See `Details`."""
        return [f"Do not use the samples: {line}" for line in self.refusals]

    def assumptions(self) -> list[str]:
        """See `Details`."""
        return ["The posterior is for data that the model describes; noisy counts are taken as normal."]


@dataclass(frozen=True, kw_only=True, eq=False)
class CellFit:
    """A posterior given noisy counts of cells, and what it cost.

    - **samples** - posterior samples by site, (draws, ...), for `datasets`.
    - **counts** - noisy counts of all cells, (C,), in the order of `numpy.unravel_index`, and of incomplete rows, the last.
    - **details** - the counts' noise, and how well model and sampler did.
    - **report** - the privacy report.
    """

    samples: dict[str, Array] = field(repr=False)
    counts: Array = field(repr=False)
    details: CellDetails
    report: PrivacyReport = field(repr=False)

    @property
    def refusals(self) -> list[str]:
        """Why the samples should not be used; empty where nothing speaks against them."""
        return self.details.refusals


def num_cells(schema: Schema) -> int | None:
    """Number of combinations of categories and intervals, or None where a column is a `Number`."""
    sizes = [0 if isinstance(column, Number) else column.size for column in schema.columns]
    return math.prod(sizes) or None


@on_host
@checked
def fit_cells(
    rng_key: jax.Array, model: Function, schema: Schema, table: object, *, target_epsilon: float | None = None,
    target_delta: float | None = None, noise_multiplier: float | None = None, num_samples: int = 1_000,
    ledger: PrivacyLedger | str | os.PathLike[str] | None = None, name: str | None = None,
) -> CellFit:  # fmt: skip
    """Fit a model of a table of categories to noisy counts of all its cells: one charged access of all rows.

    Counts are a sufficient statistic, so the whole budget buys one release, and NUTS samples from the posterior given it. Given
    the latents the counts are taken as normal, with the multinomial's covariance and the noise's.

    - **rng_key** - a key of its own, from `dpppl.secret_key()`; used once.
    - **model** - `table_model(schema)`, or a model of yours with its arguments and a site for each column.
    - **schema** - columns, each a `Category` or `Intervals`, with at most 10,000 combinations.
    - **table** - a data frame, or columns by name: the private rows. A row with an unknown entry counts as incomplete.
    - **target_epsilon**, **target_delta** - the noise is the least that meets them.
    - **noise_multiplier** - instead, the noise's standard deviation.
    - **num_samples** - posterior samples, 8 or more.
    - **ledger**, **name** - a `dpppl.PrivacyLedger` of these rows or its path, charged before the access; what it calls the run.

    Guarantee: (epsilon, delta)-DP for adding or removing one row, where N is public (zero-out). Samples are post-processing.
    Raises ConfigurationError, BudgetExceededError and KeyReuseError; then nothing was charged.
    Reference: Räisä, Jälkö, Kaski, Honkela (2023), "Noise-aware statistical inference with differentially private synthetic
    data", whose marginal queries are here all cells; normal counts: Bernstein, Sheldon (2019).

    >>> import dpppl, numpy as np
    >>> from dpppl.contrib.synthetic import Category, CellFit, table_model
    >>> schema = Schema((Category("smokes", (0, 1)), Category("coughs", (0, 1))))
    >>> smokes = np.arange(4_000) % 2
    >>> table = {"smokes": smokes, "coughs": np.where(np.arange(4_000) % 5 == 0, 1 - smokes, smokes)}
    >>> found = fit_cells(dpppl.secret_key(), table_model(schema), schema, table, target_epsilon=1.0, target_delta=1e-6)
    >>> isinstance(found, CellFit), [round(float(count) / 100) for count in found.counts], found.refusals
    (True, [16, 4, 4, 16, 0], [])
    """
    cells = num_cells(schema)
    if cells is None or cells > MOST_CELLS:
        numbers = [f"'{column.name}'" for column in schema.columns if isinstance(column, Number)]
        raise ConfigurationError(
            f"fit_cells needs columns of categories or intervals with at most {MOST_CELLS:,} combinations"
            f"{', and not numbers: ' * bool(numbers)}{', '.join(numbers)}; run dpppl.NoiseAware(table_model(schema), ...)."
        )
    if (noise_multiplier is None) == (target_epsilon is None):
        raise ConfigurationError("give target_epsilon and target_delta, or noise_multiplier.")
    if positive_integer(num_samples, name="num_samples") < FEWEST_SAMPLES:
        raise ConfigurationError(f"num_samples={num_samples} is too few for R-hat: give {FEWEST_SAMPLES} or more.")
    columns, gaps = schema.encoded(table)
    shape = [column.size for column in schema.columns if not isinstance(column, Number)]
    number = np.ravel_multi_index([columns[column.name] for column in schema.columns], shape)
    number = np.where(np.isnan(gaps), cells, number).astype(np.int32)
    query = Query(
        statistic=lambda row, _: jax.nn.one_hot(row["cell"], cells + 1), bound=1.0, rows={"cell": number}, public={},
        what="synthetic.fit_cells",
    )  # fmt: skip
    from numpyro.diagnostics import split_gelman_rubin

    budget, key = Budget(target_epsilon, target_delta, ledger=ledger, name=name), keys.as_key(rng_key)
    charge, origin = query_charge(query, budget, noise_multiplier), KeyOrigin.of(key)
    own, noise = keys.threefry(keys.stream(key, "posterior")), float(charge.noise_multipliers[0])
    sampler = _sampler(model, tuple(columns), tuple(shape), num_samples)
    with TRACING, failing_explained(f"the schema's columns {', '.join(columns)}"), explained():
        jax.eval_shape(sampler, own, np.zeros(cells, np.float32), np.float32(noise), np.float32(noise))
    counts = noisy_query(query, charge, key, budget)
    total = np.float32(np.clip(len(number) - counts[-1], 1.0, len(number)))
    found = sampler(own, np.asarray(counts[:-1], np.float32), total, np.float32(noise))
    squared = np.asarray(found.pop("chi-squared")).ravel()
    random = np.random.default_rng(np.asarray(jax.random.key_data(own)))
    details = CellDetails(
        num_cells=cells, noise_sd=noise,
        r_hat=max(float(np.max(split_gelman_rubin(np.asarray(x)))) for x in found.values()),
        p_value=float(np.mean(random.chisquare(cells, len(squared)) >= squared)),
        complete=len(number) - float(counts[-1]), incomplete=float(counts[-1]),
    )  # fmt: skip
    report = PrivacyReport(
        method=query.what, events=budget.events, delta=target_delta, details=details, num_rows=len(number),
        mechanism=replace(MechanismFacts.of(charge.mechanism, len(number)), clipping="none: a row is a 1 in one cell"),
        provenance=Provenance().and_now(Status.COMPLETE, origin, Start.PRIOR_MEDIAN), ledger=budget.ledger_line(), name=name,
    )  # fmt: skip
    samples = {site: np.asarray(value).reshape(-1, *value.shape[2:]) for site, value in found.items()}
    return CellFit(samples=samples, counts=counts, details=details, report=report)


@functools.lru_cache(maxsize=8)
def _sampler(model: Function, names: tuple[str, ...], shape: tuple[int, ...], num_samples: int) -> Function:
    """The function of (key, counts, their total, the sd of their noise) that gives NUTS's samples by site, (chains, draws, ...).
    It is kept, so that it is compiled once.

    Counts n are normal around N p with covariance N (diag p - p p') + noise^2 I; its inverse and determinant are those of the
    diagonal part, updated by one column (Sherman, Morrison 1950)."""
    cells = dict(zip(names, np.unravel_index(np.arange(math.prod(shape)), shape)))

    def of_counts(counts: np.ndarray, total: np.ndarray, noise: Tree) -> None:
        with handlers.block(hide_fn=lambda site: site["type"] == "plate" or site["name"] in cells):
            trace = handlers.trace(model).get_trace({name: jnp.asarray(codes) for name, codes in cells.items()})
        check_columns(trace, names)
        p = jnp.exp(sum(trace[name]["fn"].log_prob(trace[name]["value"]) for name in cells))
        diagonal, away = total * p + noise**2, counts - total * p
        left = jnp.sum(p * noise**2 / diagonal)  # 1 - N p' D^-1 p, where p adds up to 1
        squared = jnp.sum(away**2 / diagonal) + total * jnp.sum(p * away / diagonal) ** 2 / left
        numpyro.factor("counts", -0.5 * (squared + jnp.sum(jnp.log(diagonal)) + jnp.log(left)))
        numpyro.deterministic("chi-squared", squared)

    def samples(key: Tree, counts: Tree, total: Tree, noise: Tree) -> dict[str, Any]:
        mcmc = MCMC(
            NUTS(of_counts, init_strategy=init_to_median(num_samples=100)), num_warmup=_WARMUP, num_chains=_CHAINS,
            num_samples=-(-num_samples // _CHAINS), chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        mcmc.run(key, counts, total, noise)
        found: dict[str, Any] = mcmc.get_samples(group_by_chain=True)
        return found

    return jax.jit(samples)
