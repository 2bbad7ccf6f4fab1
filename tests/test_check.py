"""`dpppl.check` names what a run would do, from shapes alone."""

import math
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_models import seen

import dpppl
from dpppl import accounting, checking
from dpppl.errors import UnsupportedModelError
from dpppl.model.split import split_model
from dpppl.runs import duration
from dpppl.runs.duration import Duration

X, Y = np.ones((500, 2), np.float32), np.ones(500, np.float32)


def regression(x, y, offset, scale):
    w = numpyro.sample("w", dist.Normal(0, scale).expand([2]).to_event(1))
    numpyro.deterministic("doubled", 2 * w)
    seen(y, x @ w + offset)


def factor(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.factor("likelihood", -0.5 * (y - mean) ** 2)


def test_effects_without_a_name_are_noted():
    def model(group, y, name):
        tau, z = (
            numpyro.sample("tau", dist.HalfNormal(1)),
            numpyro.sample("z", dist.Normal(0, 1).expand([3]).to_event(1)),
        )
        effect = numpyro.deterministic("effect", tau * z) if name else tau * z
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)

    noted = [
        "numpyro.deterministic" in " ".join(dpppl.check(model, Y.astype(int), Y, name).notes) for name in (False, True)
    ]
    assert noted == [True, False]


def test_what_is_private_public_and_released():
    """Other rows, also such as are not finite, have the same table, but for the seconds measured."""
    offset = dpppl.Public(np.ones(1, np.float32))
    found, other = (dpppl.check(regression, x, Y, offset, 2.0) for x in (X, np.nan * X))
    without_times = [re.sub(r"[\d.,e+]+ s\b", "", repr(table)) for table in (found, other)]
    assert without_times[0] == without_times[1]
    assert dict(found.arguments) == {
        "x": "private rows, float32 (500, 2)",
        "y": "private rows, float32 (500,)",
        "offset": "public, float32 (1,)",
        "scale": "public",
    }
    assert dict(found.released) == {"w": "(2,)", "doubled": "(2,)"} and found.used_only == ("y",)
    assert all(words.startswith("runs; about ") for _, words in found.methods) and len(found.methods) == 3
    assert any(
        note.endswith("are assumed public: 2 numbers, argument 'offset' (float32[1]), argument 'scale' (float).")
        for note in found.notes
    )
    assert (
        "never released" in repr(found)
        and "<details open><summary>What a run would do</summary><table>" in found._repr_html_()
    )


def test_a_method_that_would_refuse_says_so_with_the_cure():
    found = dict(dpppl.check(factor, Y).methods)
    assert "site 'likelihood' is a factor" in found["NoiseAware"] and len(found) == 3
    assert all('use clipping="flat"' in words for words in found.values())
    with pytest.raises(UnsupportedModelError, match="plate"):
        dpppl.check(lambda y: numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal()), 1.0), obs=y), Y)


def mixture(y):
    w = numpyro.sample("w", dist.Beta(1, 1))
    with numpyro.plate("data", y.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(w))
        numpyro.sample("y", dist.Normal(jnp.where(kind == 1, 2.0, -2.0), 1), obs=y)


def gaps(x, ok, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        x = numpyro.sample("x", dist.Normal(0, 1), obs=x, obs_mask=ok)
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("model", "args", "used_only"),
    [(gaps, (Y, Y > 0, Y), ("x_observed", "y", "x_unobserved")), (mixture, (Y,), ("y", "kind"))],
    ids=["gaps", "mixture"],
)
def test_latents_of_a_row_that_are_summed_out_are_listed(model, args, used_only):
    found = dpppl.check(model, *args)
    assert found.used_only == used_only and all(words.startswith("runs; ") for _, words in found.methods)


def test_a_time_grows_with_the_work_and_a_long_run_is_announced():
    """Twice the gradients take twice as long beyond the start; NUTS counts where the prior is not normal."""
    offset = dpppl.Public(np.ones(1, np.float32))
    split = split_model(regression, (X, Y, offset, 2.0), {})
    short, long = (Duration.of(split, gradients) for gradients in (1e6, 2e6))
    assert long.accesses == 2 * short.accesses and long.start == short.start > short.again > 0
    assert short.line(True) is None
    assert Duration.of(split, 1e12)._replace(chains=40.0).line(False).count("NUTS") == 1
    assert "NUTS" not in Duration.of(split, 1e12)._replace(chains=40.0).line(True)


def test_times_fit_a_busy_machine_and_a_frame_is_counted():
    """The processor's share of the clock decides; chains that start at a frame pay for the accesses of NoiseAware, too."""
    clock = checking._Clock()
    time.sleep(0.2)
    assert clock.ratio() > 3.0 and Duration(6.0, 2.0, 1.0, 4.0).words(3.0) == (
        "about 21 s, and 9 s when repeated in one process, 12 s more where NUTS draws"
    )
    chain, frame = Duration(7.0, 3.0, 10.0, 0.0), Duration(6.0, 2.0, 1.0, 4.0)
    assert chain.after(frame) == Duration(9.0, 5.0, 11.0, 0.0)  # the start of JAX, 4 s, is paid once


def test_forecasts_do_not_contradict_themselves():
    found = accounting.plan(num_data=4_361, num_latents=10, target_epsilon=1.0, target_delta=1e-6, rates=(1.0,))
    by_method = {option.method: option for option in found.options}
    words = {method: checking._width(option, found) for method, option in by_method.items()}
    assert (
        words["DPSGLD"].startswith("its mean alone, known to an interval 1.03 times") and "too short" in words["DPSGLD"]
    )
    assert words["NoiseAware"].startswith("90 % intervals 1.24 times as wide as without privacy, for each latent")
    assert "from epsilon 0.43 on, or at this budget from 910 rows on" in words["NoiseAware"]
    assert "cover about 0.89" in words["SVI"]
    weak = accounting.plan(num_data=400, num_latents=10, target_epsilon=0.3, target_delta=1e-6, rates=(1.0,))
    assert checking._width(next(o for o in weak.options if o.method == "SVI"), weak).startswith(
        "its mean alone: its 90 %"
    )


@pytest.mark.slow
def test_a_long_run_says_so_before_it_is_charged(monkeypatch, capsys):
    """The line comes after that of the cost; a run whose first charge fails has printed it."""
    monkeypatch.setattr(duration, "_LONG", 0.0)

    def refused(*_):
        raise RuntimeError("no charge")

    monkeypatch.setattr("dpppl.runs.session.Session.charge", refused)
    found = dpppl.NoiseAware(regression, noise_multiplier=10.0, progress_bar=False)
    with pytest.raises(dpppl.ConclusionError, match="RuntimeError"):
        found.run(dpppl.secret_key(), X, Y, dpppl.Public(np.ones(1, np.float32)), 2.0)
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("This run will spend") and second.startswith("It will take about")


def grouped(x, group, complete, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    level = numpyro.sample("level", dist.Normal(0, 1).expand([4]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(slope * x + level[group - 1], 2.0).mask(complete), obs=y)


def test_widths_by_latent_are_those_of_made_up_rows():
    """A quarter of the rows informs each level, the codes of which are 1 to 4; all rows inform the slope."""
    rows = 4_000
    x, group = np.full(rows, np.nan, np.float32), np.zeros(rows, np.int32)
    found = dpppl.check(grouped, x, group, group > 0, x, labels={"level": ["north", "east", "south", "west"]})
    names = [f"level[{side}]" for side in ("north", "east", "south", "west")]
    by_name = {w.name: w for w in found.widths}
    assert list(by_name) == [*names, "slope"]
    informed = {name: rows / 4 for name in names} | {"slope": rows}
    for name, number in informed.items():
        assert by_name[name].without == pytest.approx(3.29 * 2.0 / math.sqrt(number + 4.0), rel=0.15)
        assert 1.02 < by_name[name].width / by_name[name].without < 1.5
    assert "90 % width of level[east]" in repr(found) and "assume standardised columns" in repr(found)


def test_no_width_is_printed_where_made_up_rows_do_not_fit_the_model():
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        seen(y, w * jnp.sqrt(x - 9.0))

    found = dpppl.check(model, Y, Y)
    assert not found.widths and "90 % width of" not in repr(found)
    assert "no widths by latent are predicted: made-up columns do not fit the model." in found.notes


@pytest.mark.slow
def test_predicted_widths_are_those_of_a_run():
    rng, rows = np.random.default_rng(3), 4_000
    x, group = rng.normal(size=rows).astype(np.float32), rng.integers(1, 5, rows).astype(np.int32)
    y = (0.5 * x + 0.2 * group + 2.0 * rng.normal(size=rows)).astype(np.float32)
    budget = {"target_epsilon": 1.0, "target_delta": 1e-6}
    predicted = {w.name: w.width for w in dpppl.check(grouped, x, group, group > 0, y, **budget).widths}
    run = dpppl.NoiseAware(grouped, progress_bar=False, print_cost=False, **budget)
    run.run(jax.random.key(5), x, group, group > 0, y)
    samples = run.get_samples()
    for name, width in predicted.items():
        site, *place = name.rstrip("]").split("[")
        values = samples[site][:, int(place[0])] if place else samples[site]
        assert width == pytest.approx(np.subtract(*np.quantile(values, [0.95, 0.05])), rel=0.35)
