"""Nothing that a user can reach tells a row's value, but the samples, which the noise covers.

The comparisons of two data sets use one key for both, which `dpppl.MCMC` refuses to its users: the noise cancels, and
what is left is what the rows did.
"""

import contextlib
import dataclasses
import functools
import re
import traceback
import types

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.hmc_gibbs import HMCECS, HMCGibbs
from small_models import latent, seen
from small_models import linear as regression

import dpppl
from dpppl.access import clipping
from dpppl.errors import DPPPLError

CHAIN_METHODS = ["sequential", "vectorized", "parallel", jax.vmap]
MARKER = float(np.float32(4321.25))  # found nowhere by chance
DIGITS = ("4321.25", "4.32125")


def data(row=None, num_rows=9):
    """(x, y), with row 4 replaced if one is given: every number of it; or x by 5 and y by what turns its gradient."""
    x = np.random.default_rng(0).standard_normal((num_rows, 3)).astype(np.float32)
    y = np.random.default_rng(1).standard_normal(num_rows).astype(np.float32)
    if row is not None:
        x[4], y[4] = (5.0, 100.0) if row == "opposite" else (row, row)
    return x, y


@pytest.fixture(autouse=True)
def reusable_keys(monkeypatch):
    monkeypatch.setattr(dpppl.randomness.keys, "claim", lambda key, **_: None)


def mcmc_of(model=regression, num_warmup=3, num_samples=4, clipping_norm=1.0, progress_bar=False, **options):
    kernel_options = {k: options.pop(k) for k in ("subsampling", "step_size", "init_strategy") if k in options}
    kernel = dpppl.DPSGLD(model, clipping_norm=clipping_norm, **({"step_size": 0.01} | kernel_options))
    return dpppl.MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=progress_bar, **options)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("strategy", ["prior_median", "prior_sample"])
def test_starting_values_do_not_see_rows(strategy):
    kernel = dpppl.DPSGLD(regression, clipping_norm=1.0, step_size=0.01, init_strategy=strategy)
    keys = jax.random.split(jax.random.key(0), 2)
    states = [kernel.init(keys, 0, None, data(row), {}) for row in (None, MARKER, np.nan)]
    for state in states[1:]:
        jax.tree.map(np.testing.assert_array_equal, state._replace(rng_key=None), states[0]._replace(rng_key=None))


# One row, one step


@functools.cache
def one_step(subsampling):
    """The state after one step from z = (1, 1, 1), all noise from one key, as a function of the rows."""
    kernel = dpppl.DPSGLD(regression, clipping_norm=0.5, subsampling=subsampling, step_size=0.01)
    state = kernel.init(jax.random.key(0), 0, {"w": np.ones(3)}, data(), {})
    step = jax.jit(lambda x, y: kernel.sample(state, (x, y), {}).z["w"])
    return lambda rows: np.asarray(step(*rows), np.float64)


def movement(subsampling, row, other):
    """Distance between the states after one step with `row` and with `other` in its place, in units of h * C / rate."""
    step = one_step(subsampling)
    return np.linalg.norm(step(data(row)) - step(data(other))) * subsampling.rate / (0.01 * 0.5)


ROWS = [0.3, -2.0, MARKER, -1e18, 1e30, np.inf, -np.inf]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("subsampling", [dpppl.FullBatch(), dpppl.Poisson(0.6)], ids=["full", "poisson"])
def test_a_row_moves_a_step_by_no_more_than_the_sensitivity(subsampling):
    """Zeroing a row (a NaN row counts as zero) moves the state by at most h * C / rate, replacing it by at most twice
    that; the slack is the 1.0001 of the accounts and the rounding of float32 states."""
    if subsampling.rate < 1:  # a key under which row 4 is drawn
        drawn = movement(subsampling, MARKER, np.nan)
        assert drawn == pytest.approx(1.0, abs=1e-3)
    for row in ROWS:
        assert movement(subsampling, row, np.nan) <= 1.0 + 1e-4 + 1e-4
    assert movement(subsampling, MARKER, np.nan) > 0.99  # the bound is reached: the row is in the sum
    assert movement(subsampling, np.inf, np.nan) == 0.0
    assert 1.99 < movement(subsampling, 5.0, "opposite") <= 2.0 + 4e-4


def test_the_row_test_would_see_rows_that_are_not_clipped(altered):
    one_step.cache_clear()
    altered.setattr(clipping, "clip_rows", lambda rows, mask, norm, _: jax.tree.map(lambda g: g / norm, rows))
    assert movement(dpppl.FullBatch(), -2.0, 0.3) > 2.0
    one_step.cache_clear()


# Two runs


@pytest.mark.slow
def test_all_but_the_samples_is_the_same_for_other_rows(capfd):
    """Reports, plans, prints, extra fields, last states but for z, weights, sizes: equal whatever the row."""
    seen, samples = [], []
    for row in (None, MARKER, np.nan, 1e30):
        mcmc = mcmc_of(num_chains=2, chain_method="vectorized", target_delta=1e-5, progress_bar=True)
        mcmc.run(jax.random.key(0), *data(row), extra_fields=("i",))
        samples.append(np.asarray(mcmc.get_samples()["w"]))
        report, state = mcmc.privacy_report(), mcmc.last_state._asdict()
        report = dataclasses.replace(report, details=dataclasses.replace(report.details, measured=None))
        for released in ("z", "midpoint", "search", "clipped"):
            del state[released]
        # without the bar's times, how often it moved, and the counts, which are released
        printed = re.sub(r"\[.*?\]|\r.*\r|  counted rows .*", "", "".join(capfd.readouterr()))
        seen.append(
            [str(report), report.to_json(), str(mcmc.privacy_plan()), printed, str(state), str(mcmc.get_extra_fields())]
            + [
                mcmc.get_weights().tolist(),
                samples[-1].shape,
                samples[-1].dtype,
                sorted(mcmc.__dict__),
                mcmc.budget.events,
            ]
            + [np.all(np.isfinite(samples[-1]))]
        )
    assert all(facts == seen[0] for facts in seen[1:])
    assert not any(np.array_equal(samples[0], other) for other in samples[1:])  # the row did take part


def arrays_within(thing, seen=None):
    """Every array that can be reached from an object: its attributes, items, closures, defaults and bound arguments."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (type, types.ModuleType, str, bytes, int, float, np.dtype)):
        return
    seen.add(id(thing))
    if isinstance(thing, (np.ndarray, jax.Array)):
        yield jax.random.key_data(thing) if jnp.issubdtype(thing.dtype, jax.dtypes.prng_key) else thing
        return
    inside = list(getattr(thing, "__dict__", {}).values())
    inside += [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    if isinstance(thing, dict):
        inside += [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        inside += list(thing)
    elif isinstance(thing, types.FunctionType):
        inside += [cell.cell_contents for cell in thing.__closure__ or ()] + list(thing.__defaults__ or ())
    elif isinstance(thing, types.MethodType):
        inside += [thing.__self__, thing.__func__]
    elif isinstance(thing, functools.partial):
        inside += [thing.func, *thing.args, *thing.keywords.values()]
    for each in inside:
        yield from arrays_within(each, seen)


def holds_rows(thing, x, y):
    """Whether an array within `thing` holds the marker, or a whole column or row of the data."""
    columns = [np.asarray(c, np.float64) for c in (*x.T, y, *x)]
    for array in arrays_within(thing):
        flat = np.asarray(array).astype(np.float64).ravel()
        if np.any(flat == MARKER) or any(np.isin(column, flat).all() for column in columns):
            return True
    return False


@pytest.mark.slow
def test_no_attribute_of_the_returned_object_holds_rows():
    x, y = data(MARKER)
    mcmc = mcmc_of(num_chains=2, chain_method="parallel")
    mcmc.warmup(jax.random.key(0), x, y, collect_warmup=True)
    mcmc.run(jax.random.key(1), x, y, extra_fields=("i",))
    mcmc.get_samples(), mcmc.privacy_report(), mcmc.get_weights()
    assert len(list(arrays_within(mcmc))) >= 4 and not holds_rows(mcmc, x, y)
    assert mcmc.last_state._fields == mcmc.post_warmup_state._fields
    assert mcmc.last_state._fields == ("i", "z", "midpoint", "search", "clipped", "own", "rng_key")
    assert mcmc.last_state.own is None  # no energies
    assert mcmc.last_state.rng_key is mcmc.post_warmup_state.rng_key is None
    kernel = mcmc.sampler
    numpyro_mcmc = numpyro.infer.MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False)
    numpyro_mcmc.run(jax.random.key(0), x, y)
    assert not holds_rows(kernel, x, y) and not holds_rows(kernel.privacy_report(numpyro_mcmc.last_state), x, y)
    assert holds_rows(numpyro_mcmc, x, y)  # plain NumPyro keeps its arguments: the search finds them


def test_kernels_that_evaluate_rows_beside_the_door_are_refused():
    """NumPyro's HMCECS with its Taylor proxy, and Gibbs steps around a kernel."""
    kernel = dpppl.DPSGLD(regression, clipping_norm=1.0, step_size=0.01)
    proxy = HMCECS.taylor_proxy({"w": np.zeros(3)})
    for wrap in (lambda: HMCECS(kernel, proxy=proxy), lambda: HMCGibbs(kernel, lambda *args: {}, ["w"])):
        with pytest.raises(ValueError, match="inner_kernel must be an HMC or NUTS sampler"):
            wrap()
    with pytest.raises(dpppl.ConfigurationError, match="the kernel is a HMCECS"):
        dpppl.MCMC(HMCECS(numpyro.infer.NUTS(regression), proxy=proxy), num_warmup=1, num_samples=1)


# What errors say


def raises(x, y):
    raise ValueError(f"bad data: {x} {y}")


WRONG = {
    "branches": lambda x, y: regression(jnp.where(y[0] > 0, x, -x) if y[0] > 0 else x, y),
    "converts": lambda x, y: regression(x * float(y[4]), y),
    "selects": lambda x, y: regression(x[y > 0], y[y > 0]),
    "to NumPy": lambda x, y: regression(np.asarray(x), y),
    "a prior of rows": lambda x, y: seen(
        y, x @ numpyro.sample("w", dist.Normal(y.mean(), 1.0).expand([3]).to_event(1))
    ),
    "couples": lambda x, y: regression(x - x.mean(0), y),
    "raises": raises,
    "outside": lambda x, y: (latent("w"), numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y[0])),
    "prints": lambda x, y: (jax.debug.print("{}", y), regression(x, y)),
}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("model", WRONG.values(), ids=WRONG)
def test_errors_of_the_model_tell_no_value(model, capfd):
    with pytest.raises(DPPPLError) as caught:
        mcmc_of(model).run(jax.random.key(0), *data(MARKER))
    text = "".join(traceback.format_exception(caught.value)) + "".join(capfd.readouterr())
    assert len(text) > 100 and not any(digits in text for digits in DIGITS)


def test_errors_of_the_call_tell_no_value():
    x, y = data(MARKER)
    captured = jnp.asarray(y)
    calls = [
        (regression, (x, y[:5]), {}),
        (regression, (x, y.astype(object)), {}),
        (regression, (x, y), {"nothing": y}),
        (regression, (x.tolist(), y.tolist()[:5]), {}),
        (lambda x, y: regression(x, captured), (x, y), {}),
        (regression, (x, y), {"init_params": {"w": y}}),
        (regression, (x, y), {"init_params": {"w": x[4] * np.inf}}),
        (regression, (x, y), {"extra_fields": ("y",)}),
    ]
    for model, args, kwargs in calls:
        with pytest.raises(DPPPLError) as caught:
            mcmc_of(model).run(jax.random.key(0), *args, **kwargs)
        text = "".join(traceback.format_exception(caught.value))
        assert not any(digits in text for digits in DIGITS), text


def counts(y):
    rate = numpyro.sample("rate", dist.Exponential(1.0, validate_args=True))
    seen(y, dist.Poisson(rate, validate_args=True))


@contextlib.contextmanager
def finite_values_wanted():
    with jax.debug_nans(True), jax.debug_infs(True):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "checking, rows",
    [(numpyro.validation_enabled, (3.0, np.nan, -1.0, 2.5)), (finite_values_wanted, (3.0, np.nan, np.inf))],
    ids=["validation", "debug_nans"],
)
def test_checks_of_values_do_not_turn_rows_into_errors(checking, rows, capfd):
    """With NumPyro's or JAX's checks of values on, a bad row raises nothing and prints nothing of its own."""
    printed = []
    for row in rows:
        y = np.full(8, 2.0, np.float32)
        y[4] = row
        mcmc = mcmc_of(counts)
        with checking():
            mcmc.run(jax.random.key(0), y)
        assert np.all(np.isfinite(mcmc.get_samples()["rate"]))
        printed.append(capfd.readouterr())
    assert all(each == printed[0] for each in printed)


# Programs


def dumped(directory, function):
    """All programs that JAX compiles while `function` runs, as text."""
    jax.config.update("jax_dump_ir_to", str(directory))
    try:
        function()
    finally:
        jax.config.update("jax_dump_ir_to", "")
    return [path.read_text() for path in sorted(directory.iterdir())]


@pytest.fixture
def optimised(altered):
    """The optimised programs that are compiled ahead of time during a test, as text."""
    texts, compiled = [], jax.stages.Lowered.compile

    def noting(lowered, *args, **kwargs):
        program = compiled(lowered, *args, **kwargs)
        texts.append(program.as_text())
        return program

    altered.setattr(jax.stages.Lowered, "compile", noting)
    return texts


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("method", CHAIN_METHODS)
def test_no_program_holds_rows_as_literals(method, tmp_path, optimised):
    """Neither the programs handed to the compiler nor the optimised one that runs the chunks."""
    x, y = (np.full_like(values, MARKER) for values in data())
    mcmc = mcmc_of(num_chains=2, chain_method=method)
    programs = dumped(tmp_path, lambda: mcmc.run(jax.random.key(0), x, jnp.asarray(y)))
    assert len(programs) >= 2 and len(optimised) >= 1 and max(map(len, optimised)) > 10_000
    assert not [digits for text in programs + optimised for digits in DIGITS if digits in text]


def test_the_search_finds_rows_that_are_literals(tmp_path):
    y = data(MARKER)[1]
    closure = jax.jit(lambda z: jnp.sum(jnp.asarray(y) * z))
    assert any(digits in text for text in dumped(tmp_path, lambda: closure(2.0)) for digits in DIGITS)
    assert any(digits in closure.lower(2.0).compile().as_text() for digits in DIGITS)
