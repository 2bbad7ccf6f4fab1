"""Wrong settings, starts and orders of calls, and models of code that cannot be traced."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoMultivariateNormal,
)
from refused_common import (
    AWARE,
    CHAIN,
    COST,
    FOLDER,
    F,
    N,
    X,
    Y,
    chain,
    fit,
    kernel,
    key,
    logistic,
    mcmc,
    mean,
    noise_aware,
    normal,
    rows,
    split,
    svi,
)
from refused_results import score

import dpppl
from dpppl import PrivacyLedger
from dpppl import accounting as ac

# fmt: off


def of_kernel(**settings):
    return lambda: chain(F, own=kernel(**settings))


def ledger(name):
    return PrivacyLedger(FOLDER / name, 20.0, 1e-2)


SETTINGS = [
    ("norms by site", of_kernel(clipping_norm={"mu": 1.0}), "clipping_norm|a positive, finite number", of_kernel(clipping_norm=1.0)),
    ("an unknown data plate", of_kernel(data_plate="nope"), "'nope'|data_plate='data'", of_kernel(data_plate="data")),
    ("a start that is a word", of_kernel(init_strategy={"mu": "a"}), "'mu'|{'mu': 0.3}", of_kernel(init_strategy={"mu": 0.3})),
    ("a start of no site", of_kernel(init_strategy={}), "latent sites are ['mu']", of_kernel(init_strategy={"mu": 0.3})),
    ("an unknown gradient strategy", of_kernel(gradient_strategy="fast"), 'gradient_strategy|"auto"|"ghost"', of_kernel(gradient_strategy="auto")),
    ("a preconditioner by a number", of_kernel(preconditioner=2.0), "preconditioner|{'mu': 4.0}", of_kernel(preconditioner={"mu": 4.0})),
    ("a preconditioner of another site", of_kernel(preconditioner={"nu": 1.0}), "['nu']|['mu']", of_kernel(preconditioner={"mu": 1.0})),
    ("a preconditioner of another shape", of_kernel(preconditioner={"mu": [1.0, 2.0]}), "'mu'|(2,)|()", of_kernel(preconditioner={"mu": 1.0})),
    ("a preconditioner by a word", of_kernel(preconditioner={"mu": "a"}), "preconditioner|{'mu': 4.0}", of_kernel(preconditioner={"mu": 4.0})),
    ("a curvature without N", of_kernel(row_curvature=1.0), "row_curvature|num_data", of_kernel(row_curvature=1.0, num_data=N)),
    ("American spelling", lambda: kernel(discretize=True), "did you mean discretise", lambda: kernel(discretise=True)),
    ("a rate by another name", lambda: dpppl.Poisson(q=0.1), "'q'|rate", lambda: dpppl.Poisson(rate=0.1)),
    ("a number as the model", lambda: chain(F, model=3), "the model is an int|function", lambda: chain(F)),
    ("warmup by text", lambda: mcmc(num_warmup="10"), "num_warmup|nonnegative integer", lambda: mcmc(num_warmup=10)),
    ("warmup by a switch", lambda: mcmc(num_warmup=True), "num_warmup|whole number|bool", lambda: mcmc(num_warmup=1)),
    ("a folder as the ledger", lambda: mcmc(ledger="/"), "folder|file", lambda: mcmc(ledger=ledger("a.ledger"))),
    ("a number as a ledger's path", lambda: PrivacyLedger(3, 1.0, 1e-5), "path of a ledger|'survey.ledger'", lambda: ledger("survey.ledger")),
    ("a ledger that is gone", lambda: PrivacyLedger.open("/none"), "no ledger at /none", lambda: PrivacyLedger.open(ledger("there.ledger").path)),
    ("a rate as SVI's batches", lambda: svi(subsampling=0.1), "subsampling|dpppl.Poisson(rate)", lambda: svi(subsampling=dpppl.Poisson(0.1))),
    ("coordinates of no site", lambda: noise_aware(F, settings={"coordinates": ["nope"]}), "'nope'|'mu'", lambda: noise_aware(F, settings={"coordinates": ["mu"]})),
    ("no coordinates", lambda: noise_aware(F, settings={"coordinates": []}), "'mu'|coordinates", lambda: noise_aware(F, settings={"coordinates": ["mu"]})),
    ("batches of NoiseAware", lambda: noise_aware(F, settings={"subsampling": dpppl.Poisson(0.1)}), "subsampling|all rows", lambda: noise_aware(F)),
    ("a budget that can tell nothing", lambda: noise_aware(F, settings={"target_epsilon": 0.01}), "nothing of 40 rows", lambda: noise_aware(F)),
    ("noise by one number", lambda: ac.GaussianEvent(noise_multipliers=(3.0,)), "pairs|((10.0, 400),)", lambda: ac.GaussianEvent(noise_multipliers=((10.0, 400),))),
    ("half a step", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 1.5),)), "whole number", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 2),))),
    ("a sampling rate of 2", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 1),), sampling_rate=2.0), "sampling_rate|(0, 1]", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 1),), sampling_rate=0.2)),
]


def started_after(state):
    sampler = mcmc()
    sampler.post_warmup_state = state
    sampler.run(key(), F)


UNIT = {"unit": "person", "max_rows_per_unit": 2}
CALLS = [
    ("fields before a run", lambda: mcmc().get_extra_fields(), "`run` must be called before `get_extra_fields`", lambda: CHAIN().get_extra_fields()),
    ("a summary before a run", lambda: mcmc().print_summary(), "`run` must be called before", lambda: CHAIN().print_summary()),
    ("verdicts before a run", lambda: mcmc().verdicts(), "`run` must be called before", lambda: CHAIN().verdicts()),
    ("NoiseAware's verdict before a run", lambda: dpppl.NoiseAware(mean, **COST).verdict, "`run` must be called before", lambda: AWARE().verdict),
    ("NoiseAware's releases before a run", lambda: dpppl.NoiseAware(mean, **COST).releases, "`run` must be called before", lambda: AWARE().releases),
    ("the chains of NoiseAware", lambda: AWARE().num_chains, "one chain|to_arviz()", lambda: AWARE().to_arviz(allow_unconverged=True)),
    ("fields by a number", lambda: chain(F, extra_fields=3), "extra_fields|tuple or a list", lambda: chain(F, extra_fields=("z",))),
    ("the key as a field", lambda: chain(F, extra_fields=("rng_key",)), "rng_key|subtract the noise", lambda: chain(F, extra_fields=("z",))),
    ("a start of a run by a word", lambda: chain(F, init_params={"mu": "a"}), "init_params|{'mu': 0.3}", lambda: chain(F, init_params={"mu": 0.3})),
    ("a guide's start by a word", lambda: fit(init_params={"mu_auto_loc": "a"}), "'mu_auto_loc'|floats of shape ()", lambda: fit(init_params={"mu_auto_loc": 0.0})),
    ("a guide's start by a list", lambda: fit(init_params=[1.0]), "init_params|dict|mu_auto_loc", lambda: fit(init_params={"mu_auto_loc": 0.0})),
    ("a number as a state", lambda: fit(init_state=3), "init_state|svi.init", lambda: (lambda s: fit(s, init_state=s.init(key(), F)))(svi())),
    ("a number as a state to evaluate", lambda: svi().evaluate(3), "SVIState|int", lambda: fit()),
    ("a number as a chain's state", lambda: started_after(3), "post_warmup_state|last_state", lambda: started_after(CHAIN().last_state)),
    ("ids in lists", lambda: chain(F, settings=UNIT, person=[[1]] * N), "no row has a person|tuple", lambda: chain(F, settings=UNIT, person=[(1, i) for i in range(N)])),
    ("no rows", lambda: chain(F[:0]), "'y' has no rows", lambda: chain(F)),
    ("arguments exchanged", lambda: chain(Y, X, model=logistic), "x int32[40]|y float32[40, 3]", lambda: chain(X, Y, model=logistic)),
    ("a dict of the rows", lambda: chain({"y": F}), "y['y'] float32[40]", lambda: chain(**{"y": F})),
    ("a guide that looks at the data", lambda: svi(guide=AutoLaplaceApproximation(mean)), "outside the mechanism|AutoMultivariateNormal", lambda: svi(guide=AutoMultivariateNormal(mean))),
    ("a guide of Hamiltonian paths", lambda: svi(guide=AutoDAIS(mean)), "outside the mechanism|AutoIAFNormal", lambda: svi(guide=AutoIAFNormal(mean))),
    ("a score that branches", lambda: score(lambda y: 1.0 if y > 0 else 0.0), "score|branches", lambda: score(lambda y: jnp.where(y > 0, 1.0, 0.0))),
    ("a score that prints", lambda: score(lambda y: (jax.debug.print("{}", y), y)[1]), "debug_print|print and call outside", lambda: score(lambda y: y)),
    ("a score that captures rows", lambda: score(lambda y: y - jnp.asarray(F).mean()), "captures|float32", lambda: score(lambda y, m: y - m, F, dpppl.Public(0.5))),
]


def over_a_plate(y):
    for _ in numpyro.plate("data", len(y)):
        pass


def again_and_again(y):
    again_and_again(y)


def in_place(y):
    y[0] = 0.0


def before(function):
    """A model that calls `function(y)` before it observes."""
    def model(y):
        function(y)
        mean(y)

    return model


def responses(value):
    def model(y):
        mu = normal()
        with rows(y):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=value(y))

    return model


CODE = [
    ("a loop over a plate", lambda: split(over_a_plate, F), "'plate' object is not iterable|numpyro.plate", lambda: split(mean, F)),
    ("a change in place", lambda: split(in_place, F), "y[0] = 0.0|.at[]", lambda: split(before(lambda y: y.at[0].set(0.0)), F)),
    ("a recursion", lambda: split(again_and_again, F), "recursion", lambda: split(mean, F)),
    ("an attribute that arrays lack", lambda: split(before(lambda y: y.values), F), "y.values", lambda: split(mean, F)),
    ("a response that is text", lambda: split(responses(lambda y: "y"), F), "'y'|data type", lambda: split(responses(lambda y: y), F)),
    ("a matrix of one dimension", lambda: split(before(lambda y: numpyro.sample("L", dist.LKJCholesky(1))), F), "Dimension must be greater", lambda: split(before(lambda y: numpyro.sample("L", dist.LKJCholesky(2))), F)),
    ("a function of NumPy's", lambda: split(np.mean, F), "no observed site|obs", lambda: split(mean, F)),
]

AREAS = {"settings": SETTINGS, "calls": CALLS, "code": CODE}
