"""Wrong calls as users make them: each raises an error of dpppl's own that tells what to do, and holds no value of the data.

Settings, orders of calls, models, guides, queries, accounts, ledgers and the command line; `wrong_inputs` has wrong arguments.
"""

import functools
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.infer import NUTS, RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from numpyro.infer.autoguide import AutoDAIS, AutoLaplaceApproximation, AutoNormal
from small_models import latent, logistic
from small_models import normal_mean as mean
from wrong_inputs import call

import dpppl
import dpppl.contrib.audit
import dpppl.contrib.tuning
from dpppl import DPSGHMC, DPSGLD, DPSGNHT, MCMC, SVI, NoiseAware, Public
from dpppl import accounting as ac
from dpppl.contrib import pages
from dpppl.contrib.cli import main

N = 40
F = (np.random.default_rng(0).normal(size=N) * 0.01 + 77123.25).astype(np.float32)
X = np.stack([F, F, F], 1)
Y = (np.arange(N) % 2).astype(np.int32)
CASES, WORDS = {}, {}


def case(name, function, words=""):
    assert name not in CASES, name
    CASES[name], WORDS[name] = function, words


COST, QUIET = {"target_epsilon": 5.0, "target_delta": 1e-5}, {"progress_bar": False, "print_cost": False}
key = dpppl.secret_key


def kernel(model=mean, **settings):
    return DPSGLD(model, **({"clipping_norm": 1.0} | settings))


def mcmc(own=None, **settings):
    return MCMC(own or kernel(), **({"num_warmup": 2, "num_samples": 2} | COST | QUIET | settings))


def chain(*args, own=None, settings=None, **kwargs):
    return mcmc(own, **(settings or {})).run(key(), *(args or (F,)), **kwargs)


def svi(guide=None, optim=None, **settings):
    return SVI(
        mean, guide or AutoNormal(mean), optim, **(COST | {"clipping_norm": 1.0, "print_cost": False} | settings)
    )


def fit(fitted, *args, num_steps=2, **settings):
    return fitted.run(key(), num_steps, *(args or (F,)), progress_bar=False, **settings)


def noise_aware(model=mean, **settings):
    return NoiseAware(model, **(COST | QUIET | settings))


# Settings


def each(what, run, values):
    for value in values:
        case(f"{what} {getattr(value, '__name__', value)!r}", functools.partial(run, value))


SAID = {"init_strategy": "init", "chain_method": "draw chains", "target_epsilon": "epsilon", "target_delta": "delta"}
"""What a message names, where that is not the argument."""


def names(argument):
    return SAID.get(argument, argument)


KERNEL = {
    "clipping_norm": [-1.0, 0, "1", float("nan"), float("inf"), F, {"nope": 1.0}, {"mu": -1.0}, {}, None, True, 1j],
    "step_size": [-1, 0, [0.1], None, float("nan"), "0.1"],
    "noise_multiplier": [-1, "1", float("nan"), 0],
    "temperature": [0, -1, "warm", None],
    "subsampling": [0.1, "poisson", dpppl.Poisson, 3],
    "num_data": ["100", -3, 0, 1e3, 2.5],
    "data_plate": [3, "nope", ["data"]],
    "init_strategy": [{"mu": "a"}, {"nu": 0.0}, {"mu": [1, 2]}, {}, [1.0], {"mu": None}, {"mu": np.nan}],
    "gradient_strategy": ["fast", 3, None],
    "preconditioner": [2.0, {"nu": 1.0}, {"mu": -1.0}, {"mu": [1.0, 2.0]}, {"mu": "a"}, "prior"],
    "clipping": ["automatic", 3, True],
    "clip_norm": [1.0],
    "row_curvature": [1.0, -1.0],
}
FREE = {"target_epsilon": None}
for name, values in KERNEL.items():
    free = FREE if name in ("step_size", "noise_multiplier") else {}
    for value in values:
        call_it = functools.partial(lambda n, v, s: chain(own=kernel(**{n: v}), settings=s), name, value, free)
        case(f"kernel {name}={value!r}"[:60], call_it, names(name))
for number, schedule in enumerate([lambda i: -1.0, lambda i: "a", lambda i, j: 0.1, lambda i: jnp.ones(2)]):
    case(f"schedule {number}", lambda s=schedule: chain(own=kernel(step_size=s), settings=FREE))
for number, scheme in enumerate(
    [
        lambda: dpppl.Poisson(0), lambda: dpppl.Poisson(1.5), lambda: dpppl.Poisson("0.1"), lambda: dpppl.Poisson(),
        lambda: dpppl.Poisson(q=0.1), lambda: dpppl.Poisson(batch_size=10), lambda: dpppl.Partition(0),
        lambda: dpppl.Partition(1.5), lambda: dpppl.Partition(), lambda: dpppl.WithoutReplacement(5),
        lambda: dpppl.WithoutReplacement(20, 10), lambda: dpppl.WithoutReplacement(2.5, 10), lambda: dpppl.FullBatch(10),
        lambda: dpppl.Adaptive(quantile=2.0), lambda: dpppl.Adaptive(norm=1.0),
    ]
):  # fmt: skip
    case(f"scheme {number}", scheme)
for value in ("model", [mean], 3, None, dist.Normal):
    case(f"model {value!r}"[:30], lambda v=value: chain(own=kernel(v)))
for value in (0, 1.0, -0.1, float("nan"), "match", None):
    case(f"friction {value!r}", lambda v=value: DPSGHMC(mean, friction=v), "friction")
SCHEMES = {
    "rate": (dpppl.Poisson, [-0.1, 1.0000001, float("nan"), None, [0.1], 0.1j]),
    "num_batches must be a positive integer": (dpppl.Partition, [-1, 2.0, True, None]),
    "batch_size": (lambda sizes: dpppl.Poisson.of_batch(*sizes), [(0, 10), (11, 10), (-1, 10), (1, 0)]),
    "integers": (lambda sizes: dpppl.WithoutReplacement(*sizes), [(0, 5), (6, 5), (1.0, 5), (1, None)]),
    "overflow_probability": (lambda p: dpppl.Poisson(0.1, overflow_probability=p), [0.0, 1e-3, float("nan"), -1e-9]),
}
for words, (make, values) in SCHEMES.items():
    for value in values:
        case(f"{words} {value!r}", functools.partial(make, value), words)
case("diffusion", lambda: DPSGNHT(mean, diffusion=-1))

RUN = {
    "num_warmup": ["10", -5, 1.5, None, True],
    "num_samples": ["10", -5, None, [5], 1e2],
    "num_chains": [0, "2", None, 1.5],
    "thinning": ["a", 1.5],
    "chain_method": [3, None, "par"],
    "target_epsilon": ["1", 0, -1, float("nan"), float("inf"), True, [1.0]],
    "target_delta": [0, 1, 2, "a", None, -1e-5, float("nan")],
    "reserve": [1.0, -0.1, "a", None],
    "checkpoint": [3, "/nope/dir/x", "/"],
    "unit": [3, "", ["a"]],
    "max_rows_per_unit": [0, 1.5, "a"],
    "mesh": [3, "rows", [1]],
    "ledger": [3, "/nope.ledger", "/"],
    "target_eps": [1.0],
}
for name, values in RUN.items():
    for value in values:
        case(f"MCMC {name}={value!r}", lambda n=name, v=value: mcmc(**{n: v}), names(name))
FIT = {
    "optim": [3, optax.adam, numpyro.optim.Adam, "adam", [1], optax.constant_schedule(0.1)],
    "loss": ["elbo", Trace_ELBO, 3],
    "num_particles": [0, 1.5, "2"],
    "gradient": ["foo", None, 3],
    "clipping": ["foo", 3],
    "clipping_norm": [-1, "max", None, F],
    "subsampling": [0.1, "p"],
    "gradient_strategy": ["x"],
    "num_data": [0, "a"],
    "noise_multiplier": [-1, "a"],
    "reserve": [2],
    "checkpoint": [3, "/nope/x"],
}
for name, values in FIT.items():
    for value in values:
        case(f"SVI {name}={value!r}"[:60], lambda n=name, v=value: svi(**{n: v}), names(name))
for loss in (RenyiELBO, TraceGraph_ELBO, TraceEnum_ELBO):
    case(f"SVI loss {loss.__name__}", lambda a=loss: svi(loss=a()))
for way in ("multi_sample_guide", "sum_sites"):
    case(f"SVI loss {way}", lambda a=way: svi(loss=Trace_ELBO(**{a: a == "multi_sample_guide"})))
RELEASES = {
    "coordinates": [3, ["nope"], [], "v", {"mu": 1}],
    "num_samples": [0, 1.5, "a"],
    "num_draws": [0, 1.5],
    "subsampling": [dpppl.Poisson(0.1), "p"],
    "clipping_norm": ["auto", -1, {"mu": 1.0}],
    "curvature_bound": [-1, "a"],
    "noise_multiplier": [3.0],
    "target_epsilon": [None, 0, "a", 0.01],
    "target_delta": [None, 2],
    "data_plate": ["nope"],
    "num_data": [0, 7],
    "num_steps": [3],
}
for name, values in RELEASES.items():
    for value in values:
        case(f"NoiseAware {name}={value!r}"[:60], lambda n=name, v=value: noise_aware(**{n: v}).run(key(), F))

# Calls


def twice():
    again = key()
    mcmc().run(again, F)
    mcmc().run(again, F)


def called():
    guide = AutoNormal(mean)
    with handlers.seed(rng_seed=0):
        guide(F)
    return svi(guide)


def before(name, make):
    found = getattr(make(), name)
    return found() if callable(found) else found


for number, wrong in enumerate([0, None, np.arange(3), "secret", 1.5]):
    case(f"key {number}", lambda k=wrong: mcmc().run(k, F))
    case(f"key of SVI {number}", lambda k=wrong: svi().run(k, 2, F))
    case(f"key of NoiseAware {number}", lambda k=wrong: noise_aware().run(k, F))
for name in "get_samples get_extra_fields print_summary verdicts get_weights to_arviz".split():
    case(f"before a run: {name}", lambda n=name: before(n, mcmc))
for name in "get_samples print_summary verdict releases to_arviz num_chains".split():
    case(f"NoiseAware before a run: {name}", lambda n=name: before(n, noise_aware))
for fields in (("nope",), 3, "z", ("rng_key",), None):
    case(f"extra_fields={fields!r}", lambda f=fields: chain(extra_fields=f))
for start in ({"mu": "a"}, {"nu": 0.0}, [1.0], {"mu": np.zeros(3)}, 3):
    case(f"init_params={start!r}", lambda s=start: chain(init_params=s))
for number, start in enumerate(
    [
        {"nope": 1.0},
        {"mu_auto_loc": "a"},
        {"mu_auto_loc": F},
        {"mu_auto_scale": -1.0},
        [1.0],
        {"mu_auto_loc": np.nan},
        3,
    ]
):
    case(f"init_params of SVI {number}", lambda s=start: fit(svi(), init_params=s))
for state in (3, "state", {"mu": 1.0}):
    case(f"init_state={state!r}", lambda s=state: fit(svi(), init_state=s))
    case(f"get_params({state!r})", lambda s=state: svi().get_params(s))
    case(f"update({state!r})", lambda s=state: svi(noise_multiplier=3.0, **FREE).update(s, F))
for steps in (-5, "100", 10.0, 0, np.arange(3)):
    case(f"num_steps={steps!r}", lambda n=steps: fit(svi(), num_steps=n))
for thinning in (0, -1, "a", 1.5):
    case(f"thinning={thinning!r}", lambda t=thinning: fit(svi(), thinning=t))
CALLS = {
    "twice": twice, "no budget": lambda: mcmc(**FREE).run(key(), F), "two budgets": lambda: mcmc(kernel(noise_multiplier=3.0)),
    "steps by position": lambda: MCMC(kernel(), 2, 2), "NUTS": lambda: MCMC(NUTS(mean), num_warmup=1, num_samples=1),
    "no ids": lambda: chain(settings={"unit": "person", "max_rows_per_unit": 2}),
    "few ids": lambda: chain(settings={"unit": "person", "max_rows_per_unit": 2}, person=[1, 2]),
    "ids in lists": lambda: chain(settings={"unit": "person", "max_rows_per_unit": 2}, person=[[1]] * N),
    "ids without unit": lambda: chain(person=np.arange(N)), "nothing": lambda: mcmc().run(key()),
    "no key": lambda: mcmc().run(F), "nothing at all": lambda: mcmc().run(), "more": lambda: chain(F, F),
    "another name": lambda: mcmc().run(key(), x=F), "unequal": lambda: chain(X, Y[:-1], own=kernel(logistic)),
    "no rows": lambda: chain(F[:0]), "a number": lambda: chain(3.0), "public": lambda: chain(Public(F)),
    "swapped": lambda: chain(Y, X, own=kernel(logistic)), "a column": lambda: chain(X, Y[:, None], own=kernel(logistic)),
    "a vector": lambda: chain(F, Y, own=kernel(logistic)), "narrow": lambda: chain(X[:, :2], Y, own=kernel(logistic)),
    "transposed": lambda: chain(X.T, Y, own=kernel(logistic)), "complex": lambda: chain(F + 1j),
    "a tuple": lambda: mcmc().run(key(), (F,)), "a dict": lambda: mcmc().run(key(), {"y": F}),
    "a frame": lambda: chain(pd.DataFrame({"y": F})), "no steps": lambda: svi().run(key(), F), "no rng": lambda: svi().run(2, F),
    "no data": lambda: svi().run(key(), 2), "no argument": lambda: svi().run(), "update first": lambda: svi().update(None, F),
    "evaluate": lambda: svi().evaluate(3), "objective": lambda: svi().objective(), "guide None": lambda: SVI(mean, None, **COST),
    "guide text": lambda: SVI(mean, "auto", **COST), "no guide": lambda: SVI(mean, **COST), "class": lambda: SVI(mean, AutoNormal, **COST),
    "Laplace": lambda: svi(AutoLaplaceApproximation(mean)), "DAIS": lambda: svi(AutoDAIS(mean)), "called": called,
    "model as guide": lambda: fit(svi(mean)), "a guide": lambda: NoiseAware(mean, AutoNormal(mean), **COST),
    "sample_again": lambda: noise_aware().sample_again(key(), F), "no call": lambda: noise_aware().run(),
    "a kernel": lambda: NoiseAware(kernel(), **COST).run(key(), F), "set": lambda: setattr(noise_aware(), "num_samples", 3),
    "starts": lambda: noise_aware().run(key(), F, init_params={"mu": 1.0}), "post_warmup_state": lambda: post_warmup(),
}  # fmt: skip


def post_warmup():
    sampler = mcmc()
    sampler.post_warmup_state = 3
    sampler.run(key(), F)


for name, function in CALLS.items():
    case(f"call: {name}", function)
case("batches", lambda: chain(own=kernel(subsampling=dpppl.Partition(100))))
case("num_data of a scheme", lambda: chain(own=kernel(subsampling=dpppl.WithoutReplacement(5, 100))))

# Queries, accounts, ledgers, reports

EVENT = ac.GaussianEvent(noise_multipliers=((10.0, 100),))


def score(function=lambda y: jnp.clip(y, 0, 1), *args, **settings):
    given = {"bounds": (0.0, 1.0), "noise_multiplier": 1.0} | settings
    return dpppl.private_score(key(), function, *(args or (F,)), **given)


for bounds in ((1, 0), None, 3, ("a", "b"), (0, np.inf), (1,)):
    case(f"bounds={bounds!r}", lambda b=bounds: score(bounds=b))
SCORES = {
    "vector": lambda y: jnp.ones(3), "text": "mean", "fails": lambda y: y.foo, "branches": lambda y: 1.0 if y > 0 else 0.0,
    "float": lambda y: float(y), "None": lambda y: None, "words": lambda y: "a", "NumPy": lambda y: np.clip(y, 0, 1),
    "prints": lambda y: (jax.debug.print("{}", y), y)[1], "two": lambda x, y: y, "captures": lambda y: y - jnp.asarray(F).mean(),
}  # fmt: skip
for name, function in SCORES.items():
    case(f"score {name}", lambda f=function: score(f))
QUERIES = {
    "no noise": lambda: score(noise_multiplier=None), "unequal": lambda: score(lambda x, y: y, X, F[:3]),
    "nothing": lambda: dpppl.private_score(), "order": lambda: dpppl.private_score(lambda y: y, F, bounds=(0, 1)),
    "no bounds": lambda: dpppl.private_score(key(), lambda y: y, F), "tune": lambda: dpppl.contrib.tuning.tune(), "tune numbers": lambda: dpppl.contrib.tuning.tune(key(), 3, 4),
    "delta 2": lambda: ac.epsilon(EVENT, 2.0), "delta text": lambda: ac.epsilon(EVENT, "a"), "delta None": lambda: ac.spent(EVENT, None),
    "event": lambda: ac.epsilon(3, 1e-5), "events": lambda: ac.epsilon([3], 1e-5), "accountant": lambda: ac.epsilon(EVENT, 1e-5, "foo"),
    "negative noise": lambda: ac.GaussianEvent(noise_multipliers=((-1.0, 1),)), "no pair": lambda: ac.GaussianEvent(noise_multipliers=(3.0,)),
    "rate": lambda: ac.GaussianEvent(noise_multipliers=((1.0, 1),), sampling_rate=2.0),
    "relation": lambda: ac.GaussianEvent(noise_multipliers=((1.0, 1),), neighboring_relation="foo"),
    "half a step": lambda: ac.GaussianEvent(noise_multipliers=((1.0, 1.5),)), "no number": lambda: ac.GaussianEvent(noise_multipliers=5),
    "calibrate": lambda: ac.calibrate_noise_multiplier(3, target_epsilon=1.0, target_delta=1e-5),
    "target": lambda: ac.calibrate_noise_multiplier(lambda s: EVENT, target_epsilon=-1.0, target_delta=1e-5),
    "plan": lambda: ac.plan(num_data=-1, target_delta=1e-5, target_epsilon=1.0), "plan without": lambda: ac.plan(num_data=9, target_delta=1e-5),
    "compare": lambda: ac.compare(3, 1e-5), "compare numbers": lambda: ac.compare({"a": 3}, 1e-5), "trade-off": lambda: ac.trade_off(3),
    "ledger 0": lambda: dpppl.PrivacyLedger("a", 0, 1e-5), "ledger delta": lambda: dpppl.PrivacyLedger("b", 1.0, 2.0),
    "ledger folder": lambda: dpppl.PrivacyLedger("/", 1.0, 1e-5), "ledger nowhere": lambda: dpppl.PrivacyLedger("/x/y", 1.0, 1e-5),
    "ledger without": lambda: dpppl.PrivacyLedger("c"), "ledger gone": lambda: dpppl.PrivacyLedger.open("/none"),
    "ledger opened": lambda: dpppl.PrivacyLedger.open("/"), "ledger number": lambda: dpppl.PrivacyLedger(3, 1.0, 1e-5),
    "ledger number opened": lambda: dpppl.PrivacyLedger.open(3), "ledger of another kind": lambda: dpppl.PrivacyLedger.open(pd.__file__),
    "about": lambda: pages.to_html(mcmc().privacy_report(), {"colour": "x"}),
    "at": lambda: mcmc().privacy_report().epsilon_at(3), "at text": lambda: mcmc().privacy_report().epsilon_at("a"),
    "audit": lambda: dpppl.contrib.audit.audit(kernel(noise_multiplier=3.0), num_steps=0, delta=1e-5, y=F),
}  # fmt: skip
for name, function in QUERIES.items():
    case(f"query: {name}", function)

# Models


def rows(y, size=None, name="data", **settings):
    return numpyro.plate(name, y.shape[0] if size is None else size, **settings)


def observe(y, *law):
    numpyro.sample("y", dist.Normal(*(law or (0.0, 1.0))), obs=y)


def in_rows(make, size=None, **settings):
    """A model that observes what `make(y, mu)` returns: a value, or a value and parameters."""

    def model(y):
        mu = latent("mu")
        with rows(y, size(y) if callable(size) else size, **settings):
            made = make(y, mu)
            value, *law = made if isinstance(made, tuple) else (made, mu, 1.0)
            observe(value, *law)

    return model


def first(function):
    """A model that calls `function(y)` before it observes."""

    def model(y):
        function(y)
        mean(y)

    return model


def if_positive(y):
    if y.sum() > 0:
        mean(y)


def assert_positive(y):
    assert (y > 0).all()
    mean(y)


def row_by_row(y):
    mu = latent("mu")
    for value in y:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=value)


def over_a_plate(y):
    for row in numpyro.plate("data", len(y)):
        observe(y[row])


def again_and_again(y):
    again_and_again(y)


def in_place(y):
    y[0] = 0.0


def counts(y):
    with rows(y):
        observe(y, 1.0 * numpyro.sample("k", dist.Poisson(3.0)), 1.0)


def scaled(make):
    def model(y):
        mu = latent("mu")
        with rows(y), make(y):
            observe(y, mu, 1.0)

    return model


MODELS = {
    "if": if_positive, "assert": assert_positive, "row by row": row_by_row, "over a plate": over_a_plate, "in place": in_place,
    "recursion": again_and_again, "tolist": first(lambda y: y.tolist()), "item": first(lambda y: y[0].item()),
    "NumPy": first(np.asarray), "unique": first(jnp.unique), "nonzero": first(jnp.nonzero), "pandas": first(pd.Series),
    "attribute": first(lambda y: y.values), "file": first(lambda y: open("/nope/none")), "division": first(lambda y: 1 / 0),
    "key": first(lambda y: {}["a"]), "name": first(lambda y: undefined), "print": first(lambda y: jax.debug.print("{}", y)),  # noqa: F821
    "callback": in_rows(lambda y, mu: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(y.shape, y.dtype), y)),
    "masked rows": in_rows(lambda y, mu: y[y > 0]), "a few rows": in_rows(lambda y, mu: y[:5]), "text": in_rows(lambda y, mu: "y"),
    "None": in_rows(lambda y, mu: None), "a list": in_rows(lambda y, mu: [1.0, 2.0]), "sorted": in_rows(lambda y, mu: jnp.sort(y)),
    "cumulative": in_rows(lambda y, mu: (y, mu * jnp.cumsum(y), 1.0)), "mean of rows": in_rows(lambda y, mu: (y, mu * y.mean(), 1.0)),
    "complex": in_rows(lambda y, mu: (y, mu * 1j, 1.0)), "text as mean": in_rows(lambda y, mu: (y, jnp.array("a"), 1.0)),
    "random": in_rows(lambda y, mu: (y, mu + jax.random.normal(numpyro.prng_key()), 1.0)), "three": in_rows(lambda y, mu: (y, mu, 1.0, 2.0, 3.0)),
    "plate of None": in_rows(lambda y, mu: y, size=lambda y: y.shape), "plate of text": in_rows(lambda y, mu: y, size="40"),
    "plate of an array": in_rows(lambda y, mu: y, size=lambda y: y), "plate too long": in_rows(lambda y, mu: y, size=41),
    "plate too short": in_rows(lambda y, mu: y, size=20), "dim": in_rows(lambda y, mu: y, dim=0), "name of a plate": in_rows(lambda y, mu: y, name=3),
    "subsample": in_rows(lambda y, mu: y, subsample_size=0.5), "mask": scaled(lambda y: handlers.mask(mask=y)),
    "mask of another length": scaled(lambda y: handlers.mask(mask=jnp.ones(5, bool))), "scale": scaled(lambda y: handlers.scale(scale=jnp.ones(7))),
    "scale of text": scaled(lambda y: handlers.scale(scale="2")), "counts": counts,
    "no plate": lambda y: observe(y, latent("mu"), 1.0), "nothing": lambda y: None, "only latents": lambda y: latent("mu"),
    "prior of data": lambda y: numpyro.sample("mu", dist.Normal(y.mean(), 1.0)), "param": lambda y: numpyro.param("mu", 0.0),
    "no name": first(lambda y: numpyro.sample(dist.Normal(0.0, 1.0))), "number as name": first(lambda y: numpyro.sample(3, dist.Normal(0.0, 1.0))),
    "class": first(lambda y: numpyro.sample("a", dist.Normal)), "no distribution": first(lambda y: numpyro.sample("a", None)),
    "a number": first(lambda y: numpyro.sample("a", 0.5)), "keywords": first(lambda y: numpyro.sample("a", dist.Normal(mu=0.0, sigma=1.0))),
    "discrete": first(lambda y: numpyro.sample("k", dist.Categorical(jnp.ones(3) / 3))), "two names": first(lambda y: latent("mu")),
    "LKJ": first(lambda y: numpyro.sample("L", dist.LKJCholesky(1))), "MCMC inside": first(lambda y: mcmc().run(key(), y)),
    "jit": jax.jit(mean), "vmap": jax.vmap(mean), "partial": functools.partial(mean, y=F), "built-in": len, "NumPy's": np.mean,
    "condition": handlers.condition(mean, {"y": F}), "block": handlers.block(mean), "keyword only": lambda *, y: mean(y),
}  # fmt: skip
for name, function in MODELS.items():
    case(f"model: {name}", lambda f=function: chain(own=kernel(f)))


@pytest.mark.quick_cases(1)  # settings
@pytest.mark.parametrize("part", range(4))
def test_wrong_calls_name_a_remedy_and_hold_no_value(part):
    """Nothing raw. What is refused is refused with words of more than its name: what was given, and what to write. A setting out of
    range is named."""
    wrong = {}
    for name, function in list(CASES.items())[part * len(CASES) // 4 : (part + 1) * len(CASES) // 4]:
        failure = call(function)
        if not failure.is_ours:
            wrong[name] = repr(failure.error)
        elif failure.marks or len(str(failure.error)) < 25 or WORDS[name] not in str(failure.error):
            wrong[name] = f"{failure.marks} {failure.error}"
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    assert len(CASES) >= 300


# The command line

FILES = {
    "model.py": "import numpyro, numpyro.distributions as dist\n\ndef mean(y):\n    mu = numpyro.sample('mu', dist.Normal(0, 1))\n"
    "    with numpyro.plate('data', y.shape[0]):\n        numpyro.sample('y', dist.Normal(mu, 1), obs=y)\n\nX = 3\n",
    "broken.py": "def f(:\n", "raises.py": "import nope\n", "exits.py": "raise SystemExit(0)\n", "bad.json": "{", "list.json": "[1]",
    "other.json": '{"schema_version": "1.0"}', "bytes.json": b"\xff\xfe\x00",
}  # fmt: skip
ONE = "--noise-multiplier 1 --steps 10 --delta 1e-5"
LINES = [
    *(f"report {file}" for file in ("missing.json", ".", "bad.json", "list.json", "other.json", "bytes.json", "")),
    *(f"report run.json {more}" for more in ("--html /nope/x.html", "--html .", "--about x", "--about colour=red")),
    *(f"ledger show {file}" for file in ("missing.ledger", ".", "bad.json")), "ledger verify run.json", "ledger foo x",
    *(f"verify {place}" for place in ("model.py", "model.py:nope", "model.py:X", "missing.py:mean", "broken.py:f", "raises.py:f", "exits.py:f", "model.py:mean")),
    *(f"verify model.py:mean --argument {argument}" for argument in ("y", "y=float32[40", "y=float33[40]", "y=float32[0]", "x=float32[40]")),
    *(f"verify model.py:mean --argument y=float32[40] {more}" for more in ("--public y", "--clipping-norm -1", "--rate 2")),
    "audit model.py:mean", "audit model.py:mean --noise-multiplier 0 --steps 1 --delta 1e-5", "epsilon", f"epsilon {ONE} --rate 0",
    *(f"epsilon {ONE} {more}" for more in ("--delta 0", "--steps 0", "--steps 1.5", "--noise-multiplier nan", "--noise-multiplier -1")),
    *(f"epsilon {ONE} {more}" for more in ("--batch-size 5", "--batch-size 50 --num-data 5", "--accountant gaussian --rate .1")),
    *(f"calibrate --delta 1e-5 {more}" for more in ("--epsilon 1", "--epsilon -1 --steps 10", "--epsilon 1 --advantage .1 --steps 10")),
    "calibrate --advantage 2 --delta 1e-5 --steps 10", "plan", "plan --num-data 0 --epsilon 1 --delta 1e-5",
    *(f"plan --num-data 100 --epsilon 1 --delta 1e-5 {more}" for more in ("--rate 2", "--steps 0", "--latents 0", "--picture /nope/x.png", "--picture x.foo")),
    *(f"plan --delta 1e-5 --compare {run}" for run in ("noise=1", "missing.json", "bad.json", "other.json", "noise=a,steps=1", "noise=1,steps=nan", "noise=1,steps=1.5")),
    "plan --compare noise=1,steps=10 --ledger missing.ledger", "completion fish", "foo", "",
]  # fmt: skip


def test_wrong_lines(tmp_path, monkeypatch, capsys):
    """An exit status that is not 0, and one line that is no traceback."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "run.json").write_text(mcmc().privacy_plan().to_json())
    wrong = {}
    for line in LINES:
        try:
            status = main(shlex.split(line))
        except SystemExit as error:  # argparse's own
            status = error.code
        except Exception as error:
            wrong[line] = repr(error)
            continue
        told = capsys.readouterr().err
        if status not in (1, 2) or "Traceback" in told or len(told) < 30:
            wrong[line] = f"{status}: {told}"
    assert not wrong, wrong
    assert len(LINES) >= 60
