"""Each model on docs/survival.md: log likelihoods as SciPy has them, and private posteriors compared with NUTS."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from scipy import stats

import dpppl
from dpppl.model.split import split_model

PAGE = (Path(__file__).parents[2] / "docs" / "survival.md").read_text()
IMPORTS, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
NAMES = {}
exec(IMPORTS.split("\ndef model")[0], NAMES)
for block in BLOCKS:
    if "..." not in block:
        exec(block, NAMES)
Z = {"place": 0.3, "weight": 0.5, "scale": np.log(0.6)}


def log_likelihood(model, row, z=Z):
    """The log likelihood of one row."""
    rows = {name: np.asarray([value] * 2) for name, value in row.items()}
    rows = {name: x.astype(np.float32) if x.dtype == float else x for name, x in rows.items()}
    split = split_model(model, (), rows)
    given = {name: jnp.asarray(value, jnp.float32) for name, value in z.items()}
    return float(split.log_likelihood(given, {name: x[0] for name, x in rows.items()}, {}))


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("law", "expected"),
    [("log_normal", stats.lognorm(0.6, scale=np.exp(0.8))), ("log_logistic", stats.fisk(1 / 0.6, scale=np.exp(0.8)))],
)
def test_laws_of_times(law, expected, is_late):
    row = {"x": 1.0, "end": 1.7, "censored": is_late, "time": 1.7 if is_late else 1.2}
    found = log_likelihood(NAMES["survival"](NAMES[law]), row)
    assert found == pytest.approx(expected.logsf(1.7) if is_late else expected.logpdf(1.2), abs=1e-4)


@pytest.mark.parametrize("below", [False, True])
def test_detection_limits(below):
    row = {"x": 1.0, "limit": 0.8, "below": below, "value": 0.8 if below else 1.2}
    law = stats.lognorm(0.6, scale=np.exp(0.8))
    assert log_likelihood(NAMES["measured"], row) == pytest.approx(
        law.logcdf(0.8) if below else law.logpdf(1.2), abs=1e-4
    )


@pytest.mark.parametrize("cause", [0, 1, 2])
def test_competing_risks(cause):
    z, rates = {"base": [-0.7, -1.2], "weight": [0.5, -0.3]}, np.exp([-0.2, -1.5])
    row = {"x": 1.0, "end": 2.0, "cause": cause, "time": 2.0 if cause == 0 else 1.1}
    expected = -row["time"] * rates.sum() + (np.log(rates[cause - 1]) if cause else 0.0)
    assert log_likelihood(NAMES["risks"], row, z) == pytest.approx(expected, abs=1e-4)


def made_up(name, n=4_000):
    """A model of the page, and its arguments."""
    rng = np.random.default_rng(0)
    x, end = rng.uniform(-1, 1, n), rng.uniform(1, 4, n)
    noise = rng.logistic(size=n) if name == "log_logistic" else rng.normal(size=n)
    life = np.exp(0.3 + 0.5 * x + 0.5 * noise)
    both = rng.exponential(1 / np.exp([-0.7 + 0.5 * x, -1.2 - 0.3 * x]))
    limit, time = np.full(n, 0.8), np.minimum(both.min(axis=0), end)
    rows = {
        "measured": {"x": x, "limit": limit, "below": life < limit, "value": np.maximum(life, limit)},
        "risks": {"x": x, "end": end, "cause": np.where(time < end, 1 + both.argmin(axis=0), 0), "time": time},
    }.get(name, {"x": x, "end": end, "censored": life > end, "time": np.minimum(life, end)})
    return NAMES[name] if name in ("measured", "risks") else NAMES["survival"](NAMES[name]), rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log_normal", "log_logistic", "measured", "risks"])
def test_private_posteriors_agree_with_nuts(name):
    """Means within 4 sds of both together, sds of 0.8 to 2 times NUTS's."""
    model, rows = made_up(name)
    rows = {key: value.astype(np.float32) if value.dtype == float else value for key, value in rows.items()}
    private = dpppl.NoiseAware(model, target_epsilon=2.0, target_delta=1e-6, progress_bar=False, print_cost=False)
    private.run(dpppl.secret_key(), **rows)
    nuts = MCMC(NUTS(model), num_warmup=300, num_samples=500, progress_bar=False)
    nuts.run(jax.random.key(0), **rows)
    assert private.verdict.line().startswith("read:")
    for site, draws in nuts.get_samples().items():
        own, other = np.asarray(private.get_samples()[site]), np.asarray(draws)
        assert np.all(np.abs(own.mean(0) - other.mean(0)) < 4 * np.hypot(own.std(0), other.std(0)))
        assert np.all((own.std(0) / other.std(0) > 0.8) & (own.std(0) / other.std(0) < 2.0))
