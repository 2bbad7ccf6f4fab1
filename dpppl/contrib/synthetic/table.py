"""A NumPyro model of a table: each column given those before it."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from dpppl.contrib.synthetic.schema import LEFT_OUT, Column, Intervals, Number, Schema, labels_of
from dpppl.errors import ConfigurationError
from dpppl.types import Document, Tree
from dpppl.validation import checked, positive


@checked
def table_model(schema: Schema, *, interactions: bool = False, scale: float = 1.5) -> Callable[..., None]:
    """Build a model of a table from its schema: regressions of each column on the columns before it.

    - **schema** - the columns, in order.
    - **interactions** - whether regressions hold products of pairs of features, too.
    - **scale** - prior sd of coefficients, on columns scaled to [-1, 1].

    A category has a logistic or multinomial logistic regression, a number a normal one with an unknown sd. Intervals have a share
    each, and features tilt these by a multiple of the midpoints (adjacent categories; Goodman 1979). The model takes
    `(columns=None, gaps=None, num_rows=None)`, the first two from `Schema.encoded`; without them it draws a table.

    >>> from numpyro.infer import Predictive
    >>> from dpppl.contrib.synthetic import Category, Number
    >>> import jax
    >>> model = table_model(Schema((Category("sex", ("F", "M")), Number("age", 0, 100))))
    >>> drawn = Predictive(model, num_samples=2)(jax.random.key(0), num_rows=5)
    >>> drawn["sex"].shape, drawn["age"].shape
    ((2, 5), (2, 5))
    """
    scale = positive(scale, name="scale")

    def model(columns: Any = None, gaps: Any = None, num_rows: int | None = None) -> None:
        latents = _latents(schema, interactions, scale)
        num_rows = len(next(iter(columns.values()))) if num_rows is None else num_rows
        with numpyro.plate("rows", num_rows):
            features = jnp.ones((num_rows, 1))
            for column, (weights, spread) in zip(schema.columns, latents):
                inputs = _with_products(features, interactions)
                mean = inputs[:, isinstance(column, Intervals) :] @ weights
                if isinstance(column, Number):
                    law = dist.Normal(mean[:, 0], spread)
                elif isinstance(column, Intervals):
                    law = dist.Categorical(logits=jnp.append(0.0, spread) + mean * column.midpoints)
                elif column.size == 2:
                    law = dist.Bernoulli(logits=mean[:, 0])
                else:
                    law = dist.Categorical(logits=jnp.concatenate([jnp.zeros_like(mean[:, :1]), mean], axis=1))
                known = None if columns is None else _observed(column, columns[column.name], gaps)
                drawn = numpyro.sample(column.name, law, obs=known, infer={"left_out": LEFT_OUT})
                features = jnp.concatenate([features, column.features(drawn)], axis=1)

    return model


def check_columns(trace: Document, names: Sequence[str]) -> None:
    """Raise ConfigurationError for a traced model that lacks the site of a column."""
    if missing := [name for name in names if name not in trace]:
        raise ConfigurationError(f"the model has no site '{missing[0]}', a column: give table_model(schema).")


def _observed(column: Column, values: Any, gaps: Any) -> Any:
    """The values of a column, and in incomplete rows none that its law has: so no row enters a law, which all rows share."""
    if gaps is None:
        return values
    return values + gaps if isinstance(column, Number) else jnp.where(jnp.isnan(gaps), -1, values)


def labels_of_model(schema: Schema, interactions: bool) -> dict[str, tuple[list[str], list[str]]]:
    """Labels of the features and outputs of each column's coefficients, by site. Intervals that come first have no features."""
    found, before = {}, ["constant"]
    for column in schema.columns:
        products = [" x ".join(pair) for pair in combinations(before[1:], 2)] if interactions else []
        features = [*before, *products][isinstance(column, Intervals) :]  # whose logits are its constant
        found[f"{column.name} given the columns before"] = features, labels_of(column)
        before += labels_of(column)
    return found


def _latents(schema: Schema, interactions: bool, scale: float) -> list[tuple[Tree, Tree]]:
    """Coefficients (features, outputs) of each column, and the sd of numbers or the logits of intervals (size - 1,)."""
    found = []
    for column, (site, labels) in zip(schema.columns, labels_of_model(schema, interactions).items()):
        prior, spread = dist.Normal(0.0, scale).expand([*map(len, labels)]).to_event(2), None
        weights = numpyro.sample(site, prior) if labels[0] else jnp.zeros((0, 1))
        if isinstance(column, Intervals):
            logits = dist.Normal(0.0, 2.0 * scale).expand([column.size - 1]).to_event(1)
            spread = numpyro.sample(f"logits of {column.name}", logits)
        elif isinstance(column, Number):
            spread = numpyro.sample(f"sd of {column.name}", dist.LogNormal(-1.0, 1.0))
        found.append((weights, spread))
    return found


def _with_products(features: Tree, interactions: bool) -> Any:
    """Features (N, F), the first of which is constant, with products of pairs of the others where asked for."""
    if not interactions or features.shape[1] < 3:
        return features
    first, second = jnp.triu_indices(features.shape[1] - 1, k=1)
    return jnp.concatenate([features, features[:, 1 + first] * features[:, 1 + second]], axis=1)
