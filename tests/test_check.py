"""`dpppl.check` names what a run would do, from shapes alone."""

import re

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpppl
from dpppl.errors import UnsupportedModelError

X, Y = np.ones((500, 2), np.float32), np.ones(500, np.float32)


def regression(x, y, offset, scale):
    w = numpyro.sample("w", dist.Normal(0, scale).expand([2]).to_event(1))
    numpyro.deterministic("doubled", 2 * w)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w + offset, 1.0), obs=y)


def factor(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.factor("likelihood", -0.5 * (y - mean) ** 2)


def test_what_is_private_public_and_released():
    """Other rows, also such as are not finite, have the same table, but for the seconds measured."""
    offset = dpppl.Public(np.ones(1, np.float32))
    found, other = (dpppl.check(regression, x, Y, offset, 2.0) for x in (X, np.nan * X))
    without_times = [re.sub(r"about \S+ s;", "", repr(table)) for table in (found, other)]
    assert without_times[0] == without_times[1]
    assert dict(found.arguments) == {
        "x": "private rows, float32 (500, 2)",
        "y": "private rows, float32 (500,)",
        "offset": "public, float32 (1,)",
        "scale": "public",
    }
    assert dict(found.released) == {"w": "(2,)", "doubled": "(2,)"} and found.used_only == ("y",)
    assert all(words.startswith("runs; about ") for _, words in found.methods) and len(found.methods) == 3
    assert "never released" in repr(found) and "<table>" in found._repr_html_()


def test_a_method_that_would_refuse_says_so_with_the_cure():
    found = dict(dpppl.check(factor, Y).methods)
    assert "site 'likelihood' is a factor" in found["NoiseAware"] and 'use clipping="flat"' in found["NoiseAware"]
    assert found["SVI"].startswith("runs")
    with pytest.raises(UnsupportedModelError, match="plate"):
        dpppl.check(lambda y: numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal()), 1.0), obs=y), Y)
