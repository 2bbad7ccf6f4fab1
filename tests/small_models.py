"""Small models that many tests take, and pieces to write others of."""

import numpyro
import numpyro.distributions as dist


def latent(name="w", *shape):
    """A standard normal latent."""
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))


def seen(value, mean, site="y", plate="data", size=None):
    """Observe `value` in a plate: under `mean` if that is a distribution, else under Normal(mean, 1). `mean` may be a function of the
    plate's index."""
    with numpyro.plate(plate, value.shape[0] if size is None else size) as index:
        law = mean(index) if callable(mean) and not isinstance(mean, dist.Distribution) else mean
        return numpyro.sample(site, law if isinstance(law, dist.Distribution) else dist.Normal(law, 1.0), obs=value)


def normal_mean(y):
    seen(y, latent("mu"))


def linear(x, y):
    seen(y, x @ latent("w", 3), size=x.shape[0])


def logistic(x, y=None):
    w = latent("w", 3)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
