"""Synthetic tables from a private posterior: post-processing, at no cost."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from numpyro import handlers
from numpyro.infer import Predictive

from dpppl.contrib.synthetic.cells import FEWEST_SAMPLES
from dpppl.contrib.synthetic.schema import Schema
from dpppl.contrib.synthetic.table import check_columns
from dpppl.contrib.uncertainty.decomposition import check_samples
from dpppl.errors import ConfigurationError, warn
from dpppl.information_flow.executables import run_once
from dpppl.randomness import keys
from dpppl.types import BySite, Function
from dpppl.validation import checked, positive_integer

P = ParamSpec("P")
R = TypeVar("R")


def _key_first(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose random key comes first, and which still takes it behind three others, as in version 0.2."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> R:
        if args and callable(args[0]):
            warn("datasets takes the key first: datasets(rng_key, model, samples, schema, ...).", DeprecationWarning)
            key = [args[3]] if len(args) > 3 else [kwargs.pop("rng_key")] if "rng_key" in kwargs else []
            args = *key, *args[:3]
        return function(*args, **kwargs)

    return wrapper


@_key_first
@checked
def datasets(
    rng_key: jax.Array, model: Function, samples: BySite, schema: Schema, *, num_rows: int, num_datasets: int = 20
) -> list[Any]:
    """Draw synthetic tables, each from a posterior draw of its own: pandas data frames with the schema's names and dtypes.

    - **rng_key** - a key of the draws.
    - **model** - `table_model(schema)`, or a model of yours with its arguments and a site for each column.
    - **samples** - posterior samples by site, (draws, ...), of a private run: `private.get_samples()`.
    - **schema** - the table's columns.
    - **num_rows** - rows of each table. Ten times the real number makes analyses less noisy, at no cost.
    - **num_datasets** - number of tables; `combine` needs several.

    Guarantee: post-processing of the private run; no further cost in epsilon. A synthetic row may equal a real one by chance.
    Raises ConfigurationError where there are fewer posterior draws than tables, samples of another model, and wrong arguments.

    >>> import jax
    >>> from dpppl.contrib.synthetic import Category, table_model
    >>> schema = Schema((Category("sex", ("F", "M")),))
    >>> samples = {"sex given the columns before": np.zeros((5, 1, 1))}
    >>> tables = datasets(jax.random.key(0), table_model(schema), samples, schema, num_rows=3, num_datasets=2)
    >>> len(tables), list(tables[0].columns), len(tables[0])
    (2, ['sex'], 3)
    """
    try:
        import pandas as pd
    except ImportError:
        raise ConfigurationError('tables need pandas: pip install "dpppl[synthetic]".') from None
    num_rows = positive_integer(num_rows, name="num_rows")
    num_datasets = positive_integer(num_datasets, name="num_datasets")
    if not (samples and all(np.ndim(value) for value in samples.values())):
        raise ConfigurationError("samples are arrays (draws, ...) by site: pass private.get_samples().")
    rng_key = keys.as_key(rng_key)
    draws = min(np.shape(value)[0] for value in samples.values())
    if draws < num_datasets:
        raise ConfigurationError(
            f"{num_datasets} tables need as many posterior draws, and samples hold {draws}: give "
            f"num_samples={max(FEWEST_SAMPLES, num_datasets)} or more to the run, or ask for fewer tables."
        )
    chosen_key, draw_key = jax.random.split(keys.threefry(rng_key))
    chosen = np.asarray(jax.random.choice(chosen_key, draws, (num_datasets,), replace=False))
    try:
        inspect.signature(model).bind(num_rows=1)
    except TypeError:
        raise ConfigurationError(
            "the tables' model is called as model(num_rows=...), and this one does not take that: give table_model(schema), or a "
            "model whose other arguments may be left out."
        ) from None
    trace: dict[str, Any] = {}
    jax.eval_shape(lambda: trace.update(handlers.trace(handlers.seed(model, 0)).get_trace(num_rows=1)))
    names = [column.name for column in schema.columns]
    check_columns(trace, names)
    check_samples(trace, samples, names)
    posterior = {site: np.asarray(value)[chosen] for site, value in samples.items()}
    drawn = run_once(
        lambda key, posterior: Predictive(model, posterior, return_sites=names)(key, num_rows=num_rows),
        draw_key,
        posterior,
    )
    random = np.random.default_rng(np.asarray(jax.random.key_data(chosen_key)))
    return [
        pd.DataFrame({column.name: column.decoded(np.asarray(drawn[column.name][i]), random) for column in schema.columns})
        for i in range(num_datasets)
    ]  # fmt: skip
