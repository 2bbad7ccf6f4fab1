"""Models, rows and short runs that the tables of `test_refusals` share."""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

import dpppl
from dpppl.noise_aware.binding import bind

N = 40
RNG = np.random.default_rng(0)
F = RNG.normal(size=N).astype(np.float32)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = (np.arange(N) % 2).astype(np.int32)
GROUP = np.arange(N) % 4
OK = np.arange(N) % 5 > 0
GAPS = np.where(OK, F, np.nan).astype(np.float32)
_FOLDER = tempfile.TemporaryDirectory()  # gone when Python ends
FOLDER = Path(_FOLDER.name)
NPY, CSV = FOLDER / "rows.npy", FOLDER / "rows.csv"
np.save(NPY, F)
CSV.write_text("age,wage\n" + "".join(f"{i},{i + 0.5}\n" for i in range(N)))
RUNS = [True]
COST, QUIET = {"target_epsilon": 5.0, "target_delta": 1e-3}, {"progress_bar": False, "print_cost": False}
key = dpppl.secret_key


def normal(name="mu", *shape):
    return numpyro.sample(name, dist.Normal(jnp.zeros(shape), 1.0).to_event(len(shape)))


def rows(y, name="data", **settings):
    return numpyro.plate(name, y.shape[0], **settings)


def mean(y):
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def linear(x, y=None):
    w = normal("w", 3)
    with rows(x):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def slope(x, y=None):
    w = normal("w")
    with rows(x):
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def logistic(x, y=None):
    w = normal("w", 3)
    with rows(x):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def offset(y, table):
    """A model with a public table."""
    mu = normal()
    with rows(y):
        numpyro.sample("y", dist.Normal(mu + table.sum(), 1.0), obs=y)


def kernel(model=mean, make=dpppl.DPSGLD, **settings):
    return make(model, **({"clipping_norm": 1.0, "measure_clipping": False} | settings))


def mcmc(own=None, **settings):
    return dpppl.MCMC(own or kernel(), **({"num_warmup": 2, "num_samples": 4} | COST | QUIET | settings))


def chain(*args, model=mean, own=None, settings=None, **kwargs):
    sampler = mcmc(own or kernel(model), **(settings or {}))
    sampler.run(key(), *args, **kwargs)
    return sampler


def svi(model=mean, guide=None, optim=None, **settings):
    guide = AutoNormal(model) if guide is None else guide
    return dpppl.SVI(
        model, guide, optim, **(COST | {"clipping_norm": 1.0, "clipping": "flat", "print_cost": False} | settings)
    )


def fit(fitted=None, *args, num_steps=2, **settings):
    return (fitted or svi()).run(key(), num_steps, *(args or (F,)), progress_bar=False, **settings)


def noise_aware(*args, model=mean, settings=None, **kwargs):
    """A run of NoiseAware; of a cure only what comes before the first access, unless `RUNS`: a run takes many times as long."""
    found = dpppl.NoiseAware(model, **({"num_samples": 50} | COST | QUIET | (settings or {})))
    if RUNS[0]:
        found.run(key(), *args, **kwargs)
    else:
        bind(found, args, kwargs, key())
    return found


def split(model, *args, **kwargs):
    """What every method does first with a model and its arguments."""
    return dpppl.model.split.split_model(model, args, kwargs)


class Later:
    """What is made once, when it is first called for."""

    def __init__(self, make):
        self.make, self.found = make, None

    def __call__(self):
        self.found = self.make() if self.found is None else self.found
        return self.found


def ran():
    found = dpppl.NoiseAware(mean, num_samples=50, **COST, **QUIET)
    found.run(key(), F)
    return found


CHAIN = Later(lambda: chain(F))
FITTED = Later(lambda: fit(svi(reserve=0.5)))
AWARE = Later(ran)
SHARED = [CHAIN, FITTED, AWARE]
