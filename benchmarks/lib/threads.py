"""Models that people asked about in 2025 and 2026 in public threads on Bayesian regression, rebuilt small, their data, and NUTS on them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

N, RNG = 3_000, np.random.default_rng(7)
X = RNG.normal(size=N).astype(np.float32)
LEVEL = RNG.integers(0, 5, N).astype(np.int32)
EFFECT = np.array([-0.8, -0.3, 0.0, 0.4, 0.7])
STEPS = np.array([0.0, 0.4, 0.5, 0.9, 1.0])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def monotone(x, level, y):
    """bambi 986: an ordered predictor, whose steps are a simplex."""
    slope, scale = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("scale", dist.HalfNormal(1.0))
    steps = numpyro.sample("steps", dist.Dirichlet(jnp.ones(4)))
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * 4 * sums[level], scale), obs=y)


class OrderedBeta(dist.Distribution):
    """0, 1, or a number between: a law that NumPyro does not have."""

    support, arg_constraints = dist.constraints.unit_interval, {}
    pytree_data_fields = ("eta", "cuts", "phi")

    def __init__(self, eta, cuts, phi, *, validate_args=None):
        self.eta, self.cuts, self.phi = eta, cuts, phi
        super().__init__(jnp.shape(eta), (), validate_args=validate_args)

    def _parts(self):
        mean = jax.nn.sigmoid(self.eta)
        none, all_of_it = jax.nn.log_sigmoid(self.cuts[0] - self.eta), jax.nn.log_sigmoid(self.eta - self.cuts[1])
        return none, all_of_it, dist.Beta(mean * self.phi, (1 - mean) * self.phi)

    def log_prob(self, value):
        none, all_of_it, beta = self._parts()
        between = jnp.log1p(-jnp.exp(none) - jnp.exp(all_of_it)) + beta.log_prob(jnp.clip(value, 1e-4, 1 - 1e-4))
        return jnp.where(value == 0, none, jnp.where(value == 1, all_of_it, between))

    def sample(self, key, sample_shape=()):
        (none, all_of_it, beta), (first, second) = self._parts(), jax.random.split(key)
        u = jax.random.uniform(first, self.shape(sample_shape))
        between = beta.sample(second, sample_shape)
        return jnp.where(u < jnp.exp(none), 0.0, jnp.where(u > 1 - jnp.exp(all_of_it), 1.0, between))


def ordered_beta(x, y):
    """ordbetareg 27: cut points are latents."""
    slope, first = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("first", dist.Normal(-1, 1))
    gap, phi = numpyro.sample("gap", dist.LogNormal(1, 0.5)), numpyro.sample("phi", dist.LogNormal(1.5, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", OrderedBeta(slope * x, jnp.stack([first, first + gap]), phi), obs=y)


def ordered_beta_by_factor(x, y):
    slope, phi = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("phi", dist.LogNormal(1.5, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("law", OrderedBeta(slope * x, jnp.array([-1.5, 2.0]), phi).log_prob(y))


def by_day(x, days, is_before, is_after):
    """CensoredDistributions.jl 111: times known to the day."""
    slope, level = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("level", dist.Normal(0, 2))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        law = dist.IntervalCensoredDistribution(dist.LogNormal(level + slope * x, scale), is_before, is_after)
        numpyro.sample("time", law, obs=days, infer={"inspected_at": jnp.arange(1.0, 41.0)})


def gaps(x, y):
    """pymc-extras 682: two responses, with gaps apart."""
    slopes, scale = numpyro.sample("slopes", dist.Normal(0, 1).expand([2])), numpyro.sample("scale", dist.HalfNormal(1))
    ok = ~jnp.isnan(y)
    with numpyro.plate("data", x.shape[0]):
        law = dist.Normal(x[:, None] * slopes, scale).mask(ok).to_event(1)
        numpyro.sample("y", law, obs=jnp.where(ok, y, 0.0))


class Entered(dist.Distribution):
    """Weibull times of those who lived to their entry: a law that NumPyro does not have."""

    support, arg_constraints = dist.constraints.positive, {}
    pytree_data_fields = ("entry", "scale", "shape_")

    def __init__(self, entry, scale, shape, *, validate_args=None):
        self.entry, self.scale, self.shape_ = entry, scale, shape
        super().__init__(jnp.broadcast_shapes(jnp.shape(entry), jnp.shape(scale)), (), validate_args=validate_args)

    def _hazard(self, time):
        return (time / self.scale) ** self.shape_

    def log_prob(self, value):
        return dist.Weibull(self.scale, self.shape_).log_prob(value) + self._hazard(self.entry)

    def cdf(self, value):
        return -jnp.expm1(self._hazard(self.entry) - self._hazard(value))

    def sample(self, key, sample_shape=()):
        more = jax.random.exponential(key, self.shape(sample_shape))
        return self.scale * (self._hazard(self.entry) + more) ** (1 / self.shape_)


def entered(x, entry, end, censored, time):
    """pymc-examples 861: policies that begin before they are seen."""
    place, slope = numpyro.sample("place", dist.Normal(0, 1)), numpyro.sample("slope", dist.Normal(0, 1))
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        law = dist.RightCensoredDistribution(Entered(entry, jnp.exp(place + slope * x), shape), censored)
        numpyro.sample("time", law, obs=time, infer={"censored_by": end})


class AtLeastOne(dist.Distribution):
    """Poisson counts that are not 0."""

    support, arg_constraints, pytree_data_fields = dist.constraints.positive_integer, {}, ("rate",)

    def __init__(self, rate, *, validate_args=None):
        self.rate = rate
        super().__init__(jnp.shape(rate), (), validate_args=validate_args)

    def log_prob(self, value):
        return dist.Poisson(self.rate).log_prob(value) - jnp.log(-jnp.expm1(-self.rate))

    def sample(self, key, sample_shape=()):
        first, second = jax.random.split(key)
        u = jax.random.uniform(first, self.shape(sample_shape))
        wait = -jnp.log1p(u * jnp.expm1(-self.rate))  # of the first event, which comes
        return 1 + jax.random.poisson(second, self.rate - wait, self.shape(sample_shape))


def hurdle(x, any, count):
    """bayesnec 209: zeros that are deaths, and counts of the living."""
    a = numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        found = numpyro.sample("any", dist.BernoulliLogits(a[0] + a[1] * x), obs=any)
        numpyro.sample("count", AtLeastOne(jnp.exp(b[0] + b[1] * x)).mask(found > 0), obs=count)


def prevalence(level, positive):
    """CoursIA 4107: prevalence in clinics, by a test that errs."""
    mean, spread = numpyro.sample("mean", dist.Normal(-1, 1)), numpyro.sample("spread", dist.HalfNormal(0.7))
    right, wrong = numpyro.sample("right", dist.Beta(92, 8)), numpyro.sample("wrong", dist.Beta(12, 88))
    with numpyro.plate("clinics", 5):
        apart = numpyro.sample("apart", dist.Normal(0, 1))
    share = jax.nn.sigmoid(numpyro.deterministic("logit", mean + spread * apart))
    with numpyro.plate("data", level.shape[0]):
        numpyro.sample("positive", dist.Bernoulli(share[level] * right + (1 - share[level]) * wrong), obs=positive)


def zero_sum(x, level, y):
    """bambi 1030: effects of groups that sum to 0."""
    mean, slope = numpyro.sample("mean", dist.Normal(0, 1)), numpyro.sample("slope", dist.Normal(0, 1))
    effect = numpyro.sample("effect", dist.ZeroSumNormal(0.7, event_shape=(5,)))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=mean + slope * x + effect[level]), obs=y)


def slopes(x, level, y):
    """sdmTMB 409: intercepts and slopes of groups, correlated."""
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]).to_event(1))
    sds = numpyro.sample("sds", dist.LogNormal(-1, 0.5).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", 5):
        apart = numpyro.sample("apart", dist.Normal(0, 1).expand([2]).to_event(1))
    both = numpyro.deterministic("both", mean + apart @ (sds[:, None] * factor).T)
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(both[level, 0] + both[level, 1] * x, scale), obs=y)


def horseshoe(many, y):
    """jmpost 472: few of many covariates matter."""
    shrink = numpyro.sample("shrink", dist.HalfCauchy(0.1))
    own = numpyro.sample("own", dist.HalfCauchy(1.0).expand([8]).to_event(1))
    z, scale = (
        numpyro.sample("z", dist.Normal(0, 1).expand([8]).to_event(1)),
        numpyro.sample("scale", dist.HalfNormal(1.0)),
    )
    weights = numpyro.deterministic("weights", shrink * own * z)
    with numpyro.plate("data", many.shape[0]):
        numpyro.sample("y", dist.Normal(many @ weights, scale), obs=y)


def cases():
    share = np.asarray(OrderedBeta(0.6 * X, jnp.array([-1.5, 2.0]), 5.0).sample(jax.random.key(1)))
    day = np.floor(np.exp(0.5 * X + 0.6 * RNG.normal(size=N) + 1))
    before, after = day < 1, day >= 40
    days = np.stack([np.where(before, 1, np.minimum(day, 40)), np.where(after, 40, day + 1)], -1).astype(np.float32)
    pair = (X[:, None] * [0.5, -0.4] + RNG.normal(size=(N, 2))).astype(np.float32)
    pair[RNG.random((N, 2)) < 0.2] = np.nan
    entry, shape = RNG.uniform(0, 0.5, N), 1.5
    life = np.exp(0.3 + 0.4 * X) * ((entry / np.exp(0.3 + 0.4 * X)) ** shape + RNG.exponential(size=N)) ** (1 / shape)
    end = entry + RNG.uniform(0.3, 2, N)
    alive, seen_for = RNG.random(N) < sigmoid(0.5 + X), np.minimum(life, end)
    count = np.asarray(AtLeastOne(jnp.exp(0.5 + 0.4 * X)).sample(jax.random.key(2)))
    ill = RNG.random(N) < sigmoid(-1 + 0.6 * EFFECT[LEVEL])
    many = RNG.normal(size=(N, 8))
    return {
        "entered": (
            entered,
            (X, *(a.astype(np.float32) for a in (entry, end)), life > end, seen_for.astype(np.float32)),
        ),
        "hurdle": (hurdle, (X, alive.astype(np.int32), np.where(alive, count, 1).astype(np.int32))),
        "prevalence": (prevalence, (LEVEL, (RNG.random(N) < np.where(ill, 0.92, 0.12)).astype(np.int32))),
        "zero sum": (zero_sum, (X, LEVEL, (RNG.random(N) < sigmoid(0.3 + 0.5 * X + EFFECT[LEVEL])).astype(np.int32))),
        "slopes": (
            slopes,
            (X, LEVEL, (0.5 + EFFECT[LEVEL] + (0.4 + 0.5 * EFFECT[LEVEL]) * X + RNG.normal(size=N)).astype(np.float32)),
        ),
        "horseshoe": (
            horseshoe,
            (many.astype(np.float32), (many[:, 0] - 0.5 * many[:, 3] + RNG.normal(size=N)).astype(np.float32)),
        ),
        "monotone": (monotone, (X, LEVEL, (1.5 * STEPS[LEVEL] + 0.8 * RNG.normal(size=N)).astype(np.float32))),
        "ordered beta": (ordered_beta, (X, share)),
        "by day": (by_day, (X, days, before.astype(np.int32), after.astype(np.int32))),
        "gaps": (gaps, (X, pair)),
    }


made = functools.cache(cases)


@functools.cache
def by_nuts(name):
    model, given = made()[name]
    nuts = MCMC(NUTS(model), num_warmup=400, num_samples=600, progress_bar=False)
    nuts.run(jax.random.key(1), *given)
    return compared(nuts.get_samples())


def compared(samples):
    """Samples by site; of a horseshoe the weights in place of their parts, whose tails have no mean."""
    found = {site: np.asarray(values) for site, values in samples.items()}
    if "own" in found:
        found["weights"] = found.pop("shrink")[:, None] * found.pop("own") * found.pop("z")
    return found


def off(found, right):
    """By site, of elements that vary: distances of means in sds of NUTS, and in own sds, and ratios of sds."""
    sites = {}
    for site, r in right.items():
        sd, own = np.ravel(r.std(0)), np.ravel(np.std(found[site], 0))
        distance, free = np.ravel(np.abs(np.mean(found[site], 0) - r.mean(0))), sd > 1e-6
        sites[site] = distance[free] / sd[free], distance[free] / own[free].clip(1e-6), own[free] / sd[free]
    return sites
