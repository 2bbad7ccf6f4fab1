"""Wrong inputs whose values are marked, and a search for the marks in all that a failure leaves behind.

`WRONG` maps a name to a function of the number of rows that makes an argument which is no array of numbers. `call` runs a method on
arguments and returns what it raised, with all that it printed. `marks_in` lists where marks are found. To add cases, extend a
dict like `WRONG` and hand it to `failures`.
"""

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import logging
import re
import types
import uuid
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pyarrow as pa
import xarray
from flax import nnx
from numpyro.infer.autoguide import AutoNormal

import dpppl
import dpppl.contrib.audit
import dpppl.contrib.tuning

N = 40
NUMBER = 77123.25
TEXT = "HIV+sentinel"
MARKS = re.compile(r"77,?123|7\.7123|HIV\+|2077-12-3")
DAY = datetime.date(2077, 12, 3)
_OWN = ("/tests/", "_pytest", "pluggy")


class Level(enum.Enum):
    HIGH = TEXT


@dataclasses.dataclass
class Patient:
    name: str = TEXT
    dose: float = NUMBER


@functools.partial(jax.tree_util.register_dataclass, data_fields=["dose"], meta_fields=["names"])
@dataclasses.dataclass
class Tagged:
    dose: object
    names: tuple = (TEXT,)


class Hostile:
    """An object whose every attribute fails, and tells why."""

    def __getattr__(self, name):
        raise ValueError(f"{TEXT} {NUMBER}")


class Unwilling:
    """An array-like whose conversion fails, and tells why."""

    def __init__(self, n=0):
        self.values = [TEXT] * n

    def __array__(self, dtype=None, copy=None):
        raise ValueError(f"cannot convert {TEXT} {NUMBER}")


class Heavy(float):
    """A number that holds rows, too."""

    rows = (NUMBER,)


class Label(str):
    """A short string that holds rows, too."""


Visit = collections.namedtuple("Visit", ["dose", "name"])


def _recursive(n):
    values = [NUMBER] * (n - 1)
    values.append(values)
    return values


def _decimals(n):
    return [decimal.Decimal("77123.25")] * n


def _series(n, **settings):
    return pd.Series([TEXT] * n, **settings)


LISTS = {
    "a list of strings": lambda n: [TEXT] * n,
    "a tuple of strings": lambda n: (TEXT,) * n,
    "a list of dates": lambda n: [DAY] * n,
    "a list of times": lambda n: [datetime.datetime(2077, 12, 3)] * n,
    "a list of durations": lambda n: [datetime.timedelta(days=77123)] * n,
    "a list of decimals": _decimals,
    "a list of fractions": lambda n: [fractions.Fraction(308493, 4)] * n,
    "a list of bytes": lambda n: [TEXT.encode()] * n,
    "a list of uuids": lambda n: [uuid.UUID(int=77123)] * n,
    "a list of enums": lambda n: [Level.HIGH] * n,
    "a list of objects": lambda n: [Patient()] * n,
    "a list of dicts": lambda n: [{"name": TEXT, "dose": NUMBER}] * n,
    "a list of named tuples": lambda n: [Visit(NUMBER, TEXT)] * n,
    "a list of timestamps": lambda n: [pd.Timestamp(DAY)] * n,
    "a list with one string": lambda n: [NUMBER] * (n - 1) + [TEXT],
    "a list with one decimal": lambda n: [NUMBER] * (n - 1) + _decimals(1),
    "a ragged list": lambda n: [[NUMBER]] * (n - 1) + [[NUMBER, NUMBER]],
    "a list of itself": _recursive,
    "a list of arrays, one a row": lambda n: [np.full(3, NUMBER)] * n,
    "a list of frames, one a row": lambda n: [pd.DataFrame({"dose": [NUMBER] * 3})] * n,
    "a JAX number in a list": lambda n: [jnp.float32(NUMBER)] * n,
}
"""By name, from the number of rows: lists with an entry a row, of which few are numbers."""

WRONG = {
    "one string in a list": lambda n: [TEXT],
    "a list shorter than the data": lambda n: [NUMBER] * (n - 1),
    "a list longer than the data": lambda n: [NUMBER] * (n + 1),
    "two numbers in a list": lambda n: [NUMBER, NUMBER],
    "a list of strings in a list": lambda n: [[TEXT] * n],
    "a dict by name": lambda n: {f"{TEXT} {i}": NUMBER + i for i in range(n)},
    "a dict by number": lambda n: {77123 + i: NUMBER for i in range(n)},
    "a dict of strings": lambda n: {i: TEXT for i in range(n)},
    "a dict of numbers": lambda n: {"dose": NUMBER},
    "a dict with unlike keys": lambda n: {77123: NUMBER, TEXT: NUMBER},
    "a dict of lists of strings": lambda n: {"names": [TEXT] * n},
    "a dict of an array and a string": lambda n: {"dose": np.full(n, NUMBER), "name": TEXT},
    "a dict of an array and a number": lambda n: {"dose": np.full(n, NUMBER), "other": NUMBER},
    "a dict of arrays by name": lambda n: {f"{TEXT}{i}": np.full(3, NUMBER) for i in range(n)},
    "a dict of arrays of unlike lengths by name": lambda n: {
        f"{TEXT}{i}": np.full(1 + i % 3, NUMBER) for i in range(n)
    },
    "a dict of lists by name": lambda n: {f"{TEXT}{i}": [NUMBER] * 3 for i in range(n)},
    "a dict of series of strings by name": lambda n: {f"{TEXT}{i}": _series(3) for i in range(n)},
    "a number with more in it": lambda n: Heavy(NUMBER),
    "a word with more in it": lambda n: Label(TEXT),
    "a large whole number": lambda n: int.from_bytes((TEXT * n).encode()),
    "an ordered dict": lambda n: collections.OrderedDict((f"{TEXT}{i}", NUMBER) for i in range(n)),
    "a default dict": lambda n: collections.defaultdict(float, {TEXT: NUMBER}),
    "a counter": lambda n: collections.Counter([TEXT] * n),
    "a chain map": lambda n: collections.ChainMap({TEXT: NUMBER}),
    "a mapping proxy": lambda n: types.MappingProxyType({TEXT: NUMBER}),
    "a named tuple of numbers": lambda n: Visit(NUMBER, TEXT),
    "a simple namespace": lambda n: types.SimpleNamespace(name=TEXT, dose=NUMBER),
    "a data class": lambda n: Patient(),
    "a pytree with names": lambda n: Tagged(np.full(n, NUMBER), (TEXT,) * n),
    "an object that fails": lambda n: Hostile(),
    "an array-like that fails": Unwilling,
    "a class": lambda n: Patient,
    "an enum": lambda n: Level.HIGH,
    "a function": lambda n: lambda: TEXT * n,
    "a closure": lambda n: functools.partial(dict, {TEXT: NUMBER}),
    "a partial of arrays": lambda n: jax.tree_util.Partial(jnp.add, np.full(n, NUMBER)),
    "a bound method": lambda n: [TEXT].index,
    "a module": lambda n: types,
    "a layer": lambda n: nnx.Linear(1, 1, rngs=nnx.Rngs(0)),
    "a long string": lambda n: f"{TEXT} " * 20,
    "bytes": lambda n: TEXT.encode(),
    "a bytearray": lambda n: bytearray(TEXT.encode()),
    "a memory view": lambda n: memoryview(TEXT.encode()),
    "a decimal": lambda n: decimal.Decimal("77123.25"),
    "a fraction": lambda n: fractions.Fraction(308493, 4),
    "a date": lambda n: DAY,
    "a duration": lambda n: datetime.timedelta(days=77123),
    "a uuid": lambda n: uuid.UUID(int=77123),
    "an exception": lambda n: ValueError(TEXT),
    "a pattern": lambda n: re.compile(TEXT[:3]),
    "an ellipsis": lambda n: ...,
    "a slice": lambda n: slice(77123),
    "a range": lambda n: range(77123, 77123 + n),
    "a set": lambda n: {TEXT, "other"},
    "a frozen set": lambda n: frozenset({NUMBER}),
    "the keys of a dict": lambda n: {TEXT: NUMBER}.keys(),
    "the values of a dict": lambda n: {TEXT: NUMBER}.values(),
    "a deque": lambda n: collections.deque([NUMBER] * n),
    "a generator": lambda n: (TEXT for _ in range(n)),
    "an iterator": lambda n: iter([NUMBER] * n),
    "a zip": lambda n: zip([TEXT] * n, [NUMBER] * n),
    "a file": lambda n: io.StringIO(TEXT),
    "a number without axes": lambda n: np.array(NUMBER),
    "a JAX number": lambda n: jnp.float32(NUMBER),
    "an object array": lambda n: np.array([TEXT, NUMBER] * (n // 2), object),
    "an array of strings": lambda n: np.array([TEXT] * n),
    "an array of bytes": lambda n: np.array([TEXT.encode()] * n),
    "an array of dates": lambda n: np.array([DAY] * n, "datetime64[D]"),
    "an array of durations": lambda n: np.array([77123] * n, "timedelta64[D]"),
    "a structured array": lambda n: np.array([(TEXT, NUMBER)] * n, [("name", "U20"), ("dose", float)]),
    "a record": lambda n: np.array([(TEXT, NUMBER)], [("name", "U20"), ("dose", float)])[0],
    "a NumPy string": lambda n: np.array([TEXT * 9])[0],
    "a NumPy date": lambda n: np.datetime64("2077-12-03"),
    "a string without axes": lambda n: np.array(TEXT),
    "a record array": lambda n: np.rec.array([(TEXT, NUMBER)] * n, dtype=[("name", "U20"), ("dose", float)]),
    "a masked array": lambda n: np.ma.masked_array(np.full(n, NUMBER), [True] + [False] * (n - 1)),
    "an array in an object": lambda n: np.array([np.full(3, NUMBER)] * n + [None], object)[:n],
    "another length": lambda n: np.full(n + 1, NUMBER),
    "no rows": lambda n: np.full(0, NUMBER),
    "a series of strings": _series,
    "a series of objects": lambda n: pd.Series([NUMBER] * n, dtype=object),
    "a series of categories": lambda n: _series(n, dtype="category"),
    "a series of numbers as categories": lambda n: pd.Series([NUMBER] * n, dtype="category"),
    "a series of Arrow strings": lambda n: _series(n, dtype=pd.ArrowDtype(pa.string())),
    "a series of dates": lambda n: pd.Series([pd.Timestamp(DAY)] * n),
    "a series of periods": lambda n: pd.Series([pd.Period("2077-12-03", "D")] * n),
    "a series of intervals": lambda n: pd.Series(pd.arrays.IntervalArray.from_tuples([(0.0, NUMBER)] * n)),
    "an index of strings": lambda n: pd.Index([TEXT] * n),
    "an index of pairs": lambda n: pd.MultiIndex.from_tuples([(TEXT, NUMBER)] * n),
    "categories": lambda n: pd.Categorical([TEXT] * n),
    "numbers as categories": lambda n: pd.Categorical([NUMBER] * n),
    "a timestamp": lambda n: pd.Timestamp(DAY),
    "a missing value": lambda n: pd.NA,
    "a frame with text": lambda n: pd.DataFrame({"dose": [NUMBER] * n, "name": [TEXT] * n}),
    "a frame without a header": lambda n: pd.DataFrame([[NUMBER, TEXT]] * n, columns=[str(NUMBER), TEXT]),
    "a polars frame without a header": lambda n: pl.DataFrame({str(NUMBER): [NUMBER] * n, TEXT: [TEXT] * n}),
    "a group of a frame": lambda n: pd.DataFrame({"name": [TEXT] * n}).groupby("name"),
    "a series in another order": lambda n: pd.Series([NUMBER] * n, index=range(n)[::-1]),
    "a polars series of strings": lambda n: pl.Series([TEXT] * n),
    "a polars series of lists": lambda n: pl.Series([[NUMBER]] * n),
    "a polars series of dates": lambda n: pl.Series([DAY] * n),
    "a polars series of categories": lambda n: pl.Series([TEXT] * n, dtype=pl.Categorical),
    "a polars series of objects": lambda n: pl.Series(_decimals(n), dtype=pl.Object),
    "a polars frame with text": lambda n: pl.DataFrame({"dose": [NUMBER] * n, "name": [TEXT] * n}),
    "a lazy frame": lambda n: pl.LazyFrame({"dose": [NUMBER] * n}),
    "a column": lambda n: pl.col(TEXT),
    "Arrow strings": lambda n: pa.array([TEXT] * n),
    "Arrow lists": lambda n: pa.array([[NUMBER]] * n),
    "an Arrow scalar": lambda n: pa.scalar(TEXT),
    "an Arrow table": lambda n: pa.table({"name": [TEXT] * n}),
    "an xarray data set": lambda n: xarray.Dataset({"dose": ("row", np.full(n, NUMBER))}),
    "an xarray of strings": lambda n: xarray.DataArray(np.array([TEXT] * n)),
}
"""By name, from the number of rows: what no method takes as the argument y, alone or for each row."""


def model(x, y, z=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def x(n=N):
    """The right argument, with index 0, ..., n - 1 where its rows have one."""
    return pd.Series(np.linspace(-1.0, 1.0, n), name="x")


COST = {"target_epsilon": 3.0, "target_delta": 1e-5}


def mcmc(model=model, num_data=None, **settings):
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, measure_clipping=False, num_data=num_data)
    sampler = dpppl.MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False, print_cost=False, **COST, **settings)
    return sampler, lambda *args, **kwargs: sampler.run(dpppl.secret_key(), *args, **kwargs)


def svi(model=model, **settings):
    found = dpppl.SVI(
        model, AutoNormal(model), clipping_norm=1.0, clipping="flat", print_cost=False, **COST, **settings
    )
    run = functools.partial(found.run, progress_bar=False)
    return found, lambda *args, **kwargs: run(dpppl.secret_key(), 2, *args, **kwargs)


def noise_aware(model=model, **settings):
    found = dpppl.NoiseAware(model, progress_bar=False, print_cost=False, **COST, **settings)
    return found, lambda *args, **kwargs: found.run(dpppl.secret_key(), *args, **kwargs)


METHODS = {"MCMC": mcmc, "SVI": svi, "NoiseAware": noise_aware}


@dataclasses.dataclass
class Failure:
    """What a call raised, or None, and all text that it gave out."""

    error: BaseException | None
    text: str
    held: object = None

    @property
    def is_ours(self):
        return isinstance(self.error, dpppl.DPPPLError)

    @property
    def marks(self):
        """Where marks are in it."""
        found = ["text"] * bool(MARKS.search(self.text))
        return found + (marks_in(self.error) if self.error is not None else []) + marks_of(self.held, "object", 6)


def call(function, *args, held=None, **kwargs):
    """The failure of a call; `held`: what must not hold marks afterwards."""
    text, handler = io.StringIO(), None
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    error = None
    try:
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(text):
            warnings.simplefilter("always")
            with contextlib.redirect_stderr(text):
                try:
                    function(*args, **kwargs)
                except Exception as found:
                    error = found
    finally:
        logging.getLogger().removeHandler(handler)
    return Failure(error, text.getvalue() + "".join(str(w.message) for w in warned), held)


def marks_in(error, seen=None):
    """Where marks are in an exception, those that it comes from, its notes, and the locals of frames that are no test's."""
    seen, found = set() if seen is None else seen, []
    if error is None or id(error) in seen:
        return found
    seen.add(id(error))
    name = type(error).__name__
    found += [f"{name}: message"] * bool(MARKS.search(f"{error} {error!r}"))
    found += marks_of(error.args, f"{name}: args") + marks_of(getattr(error, "__notes__", ()), f"{name}: notes")
    for attribute in ("obj", "object", "value", "exceptions", *vars(error)):
        found += marks_of(getattr(error, attribute, None), f"{name}.{attribute}")
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not any(part in code.co_filename for part in _OWN):
            for variable, value in step.tb_frame.f_locals.items():
                found += marks_of(value, f"{name}: {variable} of {code.co_qualname}")
        step = step.tb_next
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        found += marks_in(other, seen)
    return found


def marks_of(value, where, depth=5, seen=None):
    """`[where]` if a value, or what it holds, has a mark."""
    seen = set() if seen is None else seen
    if depth == 0 or id(value) in seen or value is None or isinstance(value, type | types.ModuleType | Hostile):
        return []
    seen.add(id(value))
    if isinstance(value, str | bytes | int | float | complex | decimal.Decimal | datetime.date | uuid.UUID):
        return [where] * bool(MARKS.search(str(value)))
    if isinstance(value, np.ndarray | np.generic | jax.Array) and not isinstance(value, jax.core.Tracer):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return []
        with contextlib.suppress(Exception):
            return [where] * bool(MARKS.search(str(np.ravel(np.asarray(value))[:3].tolist())))
        return []
    inner = []
    if isinstance(value, dict | types.MappingProxyType):
        inner = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        inner = list(value)
    elif isinstance(value, pd.Series | pd.DataFrame | pd.Index | pl.Series | pl.DataFrame | pa.Array | pa.Table):
        return [where] * bool(MARKS.search(str(value)))
    elif isinstance(value, types.FunctionType):
        inner = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    elif isinstance(value, functools.partial):
        inner = [value.args, value.keywords]
    elif hasattr(type(value), "__module__") and hasattr(value, "__dict__"):
        inner = list(vars(value).values())
    for each in inner[:500]:
        if marks_of(each, where, depth - 1, seen):
            return [where]
    return []


def _filled(cell):
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def failures(cases, makers=METHODS, right=x):
    """For each case and method, as y: (name, method, failure). The method is made anew where it ran."""
    for method, make in makers.items():
        held, run = make()
        for name, wrong in cases.items():
            failure = call(run, right(), wrong(N), held=held)
            yield name, method, failure
            if failure.error is None:
                held, run = make()


def score(weight, x, y):
    return (weight * x - y) ** 2


def _svi_that_ran(**settings):
    found, run = svi(reserve=0.5, **settings)
    return found, run(x(), np.zeros(N)).params


@functools.cache
def queries():
    """By name, functions of (x, y): whatever looks at rows but for the runs."""
    ran, params = _svi_that_ran(num_data=N)
    key, keep = dpppl.secret_key, {"noise_multiplier": 50.0}
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=9.0, measure_clipping=False)
    tuned = functools.partial(dpppl.MCMC, num_warmup=1, num_samples=1)
    by_hand = dpppl.SVI(model, AutoNormal(model), clipping_norm=1.0, clipping="flat", noise_multiplier=9.0)
    state = by_hand.init(key(), x(), np.zeros(N))
    fine = lambda samples, x, y: 0.0  # noqa: E731
    grouped = [make(unit="person", max_rows_per_unit=2)[1] for make in METHODS.values()]
    ids = [f"{TEXT}{i // 2}" for i in range(N)]
    return {
        "private_score": lambda x, y: dpppl.private_score(key(), score, dpppl.Public(1.0), x, y, bounds=(0, 1), **keep),
        "a_public_column": lambda x, y: dpppl.private_score(key(), score, y, x, x, bounds=(0, 1), **keep),
        "estimate_elbo": lambda x, y: ran.estimate_elbo(key(), params, x, y, bound=1.0, **keep),
        "estimate_accuracy": lambda x, y: ran.estimate_accuracy(key(), params, fine, x, y, **keep),
        "init": lambda x, y: by_hand.init(key(), x, y),
        "update": lambda x, y: by_hand.update(state, x, y),
        "tune": lambda x, y: dpppl.contrib.tuning.tune(
            key(), [kernel], tuned, fine, x, y, bounds=(-1, 0), score_noise=9.0
        ),
        "audit": lambda x, y: dpppl.contrib.audit.audit(kernel, x, y, num_steps=1, delta=1e-5, num_trials=100),
        "warmup": lambda x, y: mcmc()[0].warmup(key(), x, y),
        "ids": lambda x, y: grouped[0](
            x, np.zeros(N), person=y if isinstance(y, str) or not _could_be_ids(y) else None
        ),
        "units_of_MCMC": lambda x, y: grouped[0](x, y, person=ids),
        "units_of_SVI": lambda x, y: grouped[1](x, y, person=ids),
        "units_of_NoiseAware": lambda x, y: grouped[2](x, y, person=ids),
    }


def _could_be_ids(value):
    """Whether a value holds an id for each row, whatever it is as an argument of a model."""
    with contextlib.suppress(Exception):
        found = value.to_pylist() if hasattr(value, "to_pylist") else list(value)
        return len(found) == N and bool({each: 0 for each in found})
    return False


QUERIES = (
    "private_score a_public_column estimate_elbo estimate_accuracy init update tune audit warmup ids units_of_MCMC units_of_SVI "
    "units_of_NoiseAware"
).split()  # fmt: skip


def misplaced(value):
    """Calls with a value where none belongs, by name."""
    key, y = dpppl.secret_key, np.full(N, NUMBER)
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0)
    mcmc_of = functools.partial(dpppl.MCMC, num_warmup=1, num_samples=1, progress_bar=False)
    calls = {
        "the key": lambda run, maker: (
            run.__self__.run(value, x(), y) if hasattr(run, "__self__") else maker.run(value, x(), y)
        ),
        "a keyword that is none": lambda run, maker: run(x(), y, patients=value),
        "too many": lambda run, maker: run(x(), y, 1.0, value),
        "too few": lambda run, maker: run(value),
        "ids that are none": lambda run, maker: run(x(), y, person=value),
    }
    return {
        f"{name}, {method}": lambda act=act, make=make: act(*reversed(make()))
        for name, act in calls.items()
        for method, make in METHODS.items()
    } | {
        "clipping_norm": lambda: mcmc_of(dpppl.DPSGLD(model, clipping_norm=value)).run(key(), x(), y),
        "subsampling": lambda: dpppl.DPSGLD(model, clipping_norm=1.0, subsampling=value),
        "step_size": lambda: dpppl.DPSGLD(model, clipping_norm=1.0, step_size=value),
        "kernel": lambda: dpppl.MCMC(value, num_warmup=1, num_samples=1),
        "num_samples": lambda: dpppl.MCMC(kernel, num_warmup=1, num_samples=value),
        "num_chains": lambda: dpppl.MCMC(kernel, num_warmup=1, num_samples=1, num_chains=value),
        "target_epsilon": lambda: dpppl.MCMC(
            kernel, num_warmup=1, num_samples=1, target_epsilon=value, target_delta=1e-5
        ),
        "NoiseAware's model": lambda: dpppl.NoiseAware(value, **COST).run(key(), x(), y),
        "NoiseAware's target": lambda: dpppl.NoiseAware(model, target_epsilon=value, target_delta=1e-5),
        "NoiseAware's coordinates": lambda: noise_aware(coordinates=[value])[1](x(), y),
        "SVI's steps": lambda: svi()[0].run(key(), value, x(), y),
        "SVI's guide": lambda: dpppl.SVI(model, value, clipping_norm=1.0, **COST).run(key(), 2, x(), y),
        "SVI's optimiser": lambda: dpppl.SVI(model, AutoNormal(model), value, clipping_norm=1.0, **COST),
        "num_data": lambda: dpppl.NoiseAware(model, num_data=value, **COST).run(key(), x(), y),
        "the score": lambda: dpppl.private_score(key(), value, x(), bounds=(0, 1), noise_multiplier=50.0),
        "bounds": lambda: dpppl.private_score(key(), score, 1.0, x(), y, bounds=value, noise_multiplier=50.0),
        "candidates": lambda: dpppl.contrib.tuning.tune(
            key(), [value], lambda c: c, score, x(), y, bounds=(0, 1), score_noise=9.0
        ),
        "audited": lambda: dpppl.contrib.audit.audit(value, x(), y, num_steps=1, delta=1e-5),
        "from_disk": lambda: dpppl.from_disk(value),
    }


PLACES = list(misplaced(None))
MISPLACED = {"an array": lambda: np.full(N, NUMBER), "words": lambda: [TEXT] * N, "a dict": lambda: {TEXT: NUMBER},
             "an object": Patient, "a negative number": lambda: -NUMBER}  # fmt: skip
