"""What every method gives at fixed keys: `PYTHONPATH=.:tests python tests/golden/record.py` writes golden.json anew."""

import contextlib
import hashlib
import io
import json
import os
import platform
import warnings
from importlib.metadata import version
from pathlib import Path

import conftest  # noqa: F401  # programs are compiled as in tests
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import MCMC as NumPyroMCMC
from numpyro.infer.autoguide import AutoNormal

import dpppl
from dpppl.randomness import chacha

FILE = Path(__file__).with_name("golden.json")
N, DIMENSION, WIDE = 240, 3, 210
_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((N, DIMENSION)).astype(np.float32)
Y = (X @ np.array([1.0, -0.5, 0.2]) + 0.5 * _RNG.standard_normal(N) > 0).astype(np.float32)
X_WIDE = _RNG.standard_normal((N, WIDE)).astype(np.float32)
COST = dict(target_epsilon=3.0, target_delta=1e-5, print_cost=False)


def facts():
    """What floating-point results depend on: only where these are the same must digests agree."""
    packages = {name: version(name) for name in ("jax", "jaxlib", "numpyro", "optax", "numpy", "scipy")}
    return {
        "packages": packages,
        "machine": f"{platform.machine()} {_flags()}",
        "compiled": os.environ.get("XLA_FLAGS", "").split(),
    }


def _flags():
    try:
        return hashlib.sha256(Path("/proc/cpuinfo").read_text().split("flags")[1].split("\n")[0].encode()).hexdigest()[
            :16
        ]
    except (OSError, IndexError):
        return platform.processor()


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.1))
    numpyro.deterministic("size", (w**2).sum())
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sd), obs=y)


def key_of(number):
    """A 256-bit key that is nobody's secret."""
    return chacha.wrap(np.arange(1, 9, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(number))


def facts_of(values, report):
    """Digest of all values, the first numbers of each, and the account of a report."""
    digest, numbers = hashlib.sha256(), {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        name, leaf = jax.tree_util.keystr(path).replace(".own", ""), np.ascontiguousarray(leaf)
        digest.update(f"{name} {leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
        numbers[name] = [float(x) for x in leaf.ravel()[-3:]]
    account = {
        "events": [repr(event) for event in report.events],
        "epsilon": repr(report.epsilon_at(1e-5)),
        "key": report.provenance.key_origin,
        "status": str(report.provenance.status),
    }
    return {"digest": digest.hexdigest(), "numbers": numbers, **account}


def chains(kernel, number, *, twice=False, model_args=(X, Y), key=key_of, **settings):
    settings = dict(num_warmup=60, num_samples=40, progress_bar=False, print_cost=False) | settings
    mcmc = dpppl.MCMC(kernel, **settings)
    mcmc.run(key(number), *model_args, extra_fields=("z",))
    if twice:
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(key(number + 1000), *model_args)
    last = mcmc.last_state._replace(rng_key=None)
    verdicts = {site: [str(word) for word in np.ravel(words)] for site, words in mcmc.verdict.by_site.items()}
    values = mcmc.get_samples(), mcmc.get_extra_fields(), last, mcmc.get_weights()
    return facts_of(values, mcmc.privacy_report()) | {"verdicts": verdicts}


def under_numpyro():
    kernel = dpppl.DPSGLD(logistic, clipping_norm=1.0, noise_multiplier=50.0)
    mcmc = NumPyroMCMC(kernel, num_warmup=20, num_samples=20, progress_bar=False)
    mcmc.run(key_of(20), X, Y)
    return facts_of(mcmc.get_samples(), kernel.privacy_report(mcmc.last_state))


def variational(model, guide, number, num_steps=40, *, score=False, **settings):
    svi = dpppl.SVI(model, guide, optax.adam(0.05), num_data=N, **COST, **settings)
    result = svi.run(key_of(number), num_steps, X, Y, progress_bar=False)
    values = {"params": result.params}
    if score:
        values["elbo"] = svi.estimate_elbo(key_of(number + 1000), result.params, X, Y, bound=3.0)
    return facts_of(values, svi.privacy_report())


def single_steps():
    guide = AutoNormal(logistic)
    svi = dpppl.SVI(logistic, guide, optax.adam(0.05), clipping_norm=1.0, noise_multiplier=5.0, print_cost=False)
    state = svi.init(key_of(32), X, Y)
    for _ in range(3):
        state, _ = svi.update(state, X, Y)
    return facts_of(svi.get_params(state), svi.privacy_report())


def noise_aware(number, x):
    method = dpppl.NoiseAware(logistic, num_samples=50, progress_bar=False, **(COST | dict(target_epsilon=30.0)))
    method.run(key_of(number), x, Y)
    values = method.get_samples(allow_unconverged=True)
    return facts_of(values, method.privacy_report()) | {"verdict": method.verdict.line()}


def private_score():
    score = lambda w, x, y: (x @ w > 0) == (y > 0.5)  # noqa: E731
    weights = dpppl.Public(np.ones(DIMENSION, np.float32))
    found = dpppl.private_score(
        key_of(50), score, weights, X, Y, bounds=(0.0, 1.0), target_epsilon=1.0, target_delta=1e-5
    )
    return {"mean": [found.mean], "noise_sd": repr(found.noise_sd), "events": [repr(e) for e in found.events]}


METHODS = {
    "DPSGLD, norm chosen": lambda: chains(
        dpppl.DPSGLD(logistic), 0, num_chains=2, chain_method="vectorized", target_epsilon=3.0, target_delta=1e-5
    ),
    "DPSGLD, Poisson, in turn": lambda: chains(
        dpppl.DPSGLD(
            regression, clipping_norm=1.0, subsampling=dpppl.Poisson(0.2), noise_multiplier=3.0,
            step_size=dpppl.polynomial_decay(1e-3), num_data=N,
        ), 1, num_chains=2, chain_method="sequential", thinning=3, twice=True,
    ),
    "DPSGHMC, Partition": lambda: chains(
        dpppl.DPSGHMC(logistic, clipping_norm=1.0, subsampling=dpppl.Partition(4), preconditioner={"w": np.full(3, 0.5)}),
        2, num_chains=2, target_epsilon=3.0, target_delta=1e-5,
    ),
    "DPSGHMC, friction matched": lambda: chains(
        dpppl.DPSGHMC(logistic, clipping_norm=1.0, step_size=1e-5, friction="matched", discretise=True), 3,
        target_epsilon=3.0, target_delta=1e-5, reserve=0.2, key=jax.random.key,
    ),
    "DPSGNHT, WithoutReplacement": lambda: chains(
        dpppl.DPSGNHT(logistic, clipping_norm=1.0, subsampling=dpppl.WithoutReplacement(60, N)), 4,
        target_epsilon=3.0, target_delta=1e-5,
    ),
    "DPSGLD under NumPyro": under_numpyro,
    "SVI, norm chosen": lambda: variational(logistic, AutoNormal(logistic), 30, score=True, reserve=0.1),
    "SVI, dropout": lambda: variational(
        logistic, dpppl.AutoDropout(logistic, rate=0.5, sites=["w"]), 31, clipping_norm=1.0, subsampling=dpppl.Poisson(0.2)
    ),
    "SVI, single steps": single_steps,
    "NoiseAware": lambda: noise_aware(40, X),
    "NoiseAware, blocks": lambda: noise_aware(41, X_WIDE),
    "private_score": private_score,
}  # fmt: skip


def _outside(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([DIMENSION]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)


def _small(kernel, **settings):
    return dpppl.MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False, **settings)


REFUSALS = {
    "no data plate": lambda: _small(dpppl.DPSGLD(_outside), **COST).run(key_of(60), X, Y),
    "step not matched": lambda: _small(dpppl.DPSGLD(logistic, clipping_norm=1.0)).run(key_of(61), X, Y),
    "noise and target": lambda: _small(dpppl.DPSGLD(logistic, noise_multiplier=1.0), **COST),
    "state field": lambda: _small(dpppl.DPSGLD(logistic, clipping_norm=1.0), **COST).run(
        key_of(62), X, Y, extra_fields=("rng_key",)
    ),
    "used key": lambda: [_small(dpppl.DPSGLD(logistic, clipping_norm=1.0), **COST).run(key_of(64), X, Y) for _ in "ab"],
    "budget": lambda: [
        mcmc.run(key_of(65 + number), X, Y)
        for mcmc in [_small(dpppl.DPSGLD(logistic, clipping_norm=1.0), **COST)] for number in (0, 1)
    ],
    "explodes": lambda: dpppl.MCMC(
        dpppl.DPSGLD(logistic, clipping_norm=1.0, step_size=9.0, noise_multiplier=1.0), num_warmup=9, num_samples=900,
        progress_bar=False,
    ).run(key_of(67), X, Y),
    "accuracy without num_data": lambda: dpppl.SVI(
        logistic, AutoNormal(logistic), noise_multiplier=1.0, clipping_norm=1.0
    ).estimate_accuracy(key_of(68), {}, lambda samples, x, y: y, X, Y),
    "two plates": lambda: dpppl.NoiseAware(logistic, **COST).run(key_of(69), X, Y[:-1]),
    "few rows": lambda: dpppl.NoiseAware(logistic, noise_multiplier=100.0).run(key_of(70), X, Y),
    "bounds": lambda: dpppl.private_score(key_of(71), lambda x: x, Y, bounds=(1.0, 0.0), noise_multiplier=1.0),
}  # fmt: skip


def refusal(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def quiet(call):
    """What `call()` returns, without its warnings and lines."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return call()


if __name__ == "__main__":
    methods = {name: quiet(method) for name, method in METHODS.items()}
    refusals = {name: quiet(lambda: refusal(call)) for name, call in REFUSALS.items()}  # noqa: B023
    content = {"facts": facts(), "methods": methods, "refusals": refusals}
    FILE.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
