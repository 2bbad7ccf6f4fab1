"""Survival regressions for right-censored times: exponential, Weibull, log-normal and piecewise exponential.

`x` (N, D); `time` (N,), that of the event or of censoring; `censored` (N,), which of both it was. `censored_by` says when a row
would have been censored: a column (N,), a public number or distribution, or None where that is unknown. `dropout=True` adds
exponential times at which people drop out, with a rate that is inferred. Priors refer to `unit`, a public typical time.
"""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample


class PiecewiseExponential(dist.Distribution):
    """Times whose hazard is `ratio` times one of `rates`, by the interval between `cuts`. It has one more rate than cuts."""

    arg_constraints = dict.fromkeys(("ratio",), constraints.positive)
    support = constraints.positive
    pytree_data_fields = ("rates", "ratio")
    pytree_aux_fields = ("cuts",)

    def __init__(self, rates, cuts, ratio=1.0, *, validate_args=None):
        self.rates, self.cuts, self.ratio = tuple(rates), tuple(cuts), ratio
        shapes = [jnp.shape(rate) for rate in self.rates]
        super().__init__(lax.broadcast_shapes(jnp.shape(ratio), *shapes), validate_args=validate_args)

    @property
    def _pieces(self):
        return list(zip(self.rates, (0.0, *self.cuts), (*self.cuts, jnp.inf)))

    def cumulative_hazard(self, value):
        return self.ratio * sum(rate * jnp.clip(value - low, 0.0, high - low) for rate, low, high in self._pieces)

    def cdf(self, value):
        return -jnp.expm1(-self.cumulative_hazard(value))

    def sample(self, key, sample_shape=()):
        dtype = jnp.result_type(float)
        left = dist.Exponential(jnp.ones((), dtype)).sample(key, sample_shape + self.batch_shape) / self.ratio
        time = jnp.zeros((), dtype)
        for rate, low, high in self._pieces:
            time = time + jnp.clip(left / rate, 0.0, high - low)
            left = jnp.maximum(left - rate * (high - low), 0.0)
        return time

    @validate_sample
    def log_prob(self, value):
        hazard = sum(jnp.where((value >= low) & (value < high), rate, 0.0) for rate, low, high in self._pieces)
        return jnp.log(self.ratio * hazard) - self.cumulative_hazard(value)


def exponential_survival(x, time=None, censored=False, censored_by=None, dropout=False, unit=1.0, prior_scale=1.0):
    """Constant hazard exp(-intercept - x weights) / unit."""
    centre = _linear(x, prior_scale)
    _observe(lambda: dist.Exponential(jnp.exp(-centre()) / unit), x, time, censored, censored_by, dropout, unit)


def weibull_survival(x, time=None, censored=False, censored_by=None, dropout=False, unit=1.0, prior_scale=1.0):
    """Weibull times of scale unit exp(intercept + x weights); hazards rise where concentration is above 1."""
    centre = _linear(x, prior_scale)
    concentration = numpyro.sample("concentration", dist.LogNormal(0.0, 0.5))
    law = lambda: dist.Weibull(unit * jnp.exp(centre()), concentration)  # noqa: E731
    _observe(law, x, time, censored, censored_by, dropout, unit)


def log_normal_survival(x, time=None, censored=False, censored_by=None, dropout=False, unit=1.0, prior_scale=1.0):
    """Log-normal times of median unit exp(intercept + x weights)."""
    centre = _linear(x, prior_scale)
    spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.5))
    law = lambda: dist.LogNormal(jnp.log(unit) + centre(), spread)  # noqa: E731
    _observe(law, x, time, censored, censored_by, dropout, unit)


def piecewise_survival(
    x, time=None, censored=False, censored_by=None, dropout=False, unit=1.0, prior_scale=1.0, cuts=(0.25, 0.5, 1.0)
):
    """Proportional hazards exp(log hazard of the interval + x weights) / unit. `cuts` in units; log hazards are a random walk."""
    weights = numpyro.sample("weights", dist.Normal(0.0, prior_scale).expand([x.shape[1]]).to_event(1))
    scales = prior_scale * jnp.array([1.0, *[0.5] * len(cuts)])
    rates = jnp.exp(jnp.cumsum(numpyro.sample("steps", dist.Normal(0.0, scales).to_event(1)))) / unit
    law = lambda: PiecewiseExponential(list(rates), [cut * unit for cut in cuts], jnp.exp(x @ weights))  # noqa: E731
    _observe(law, x, time, censored, censored_by, dropout, unit)


def _linear(x, prior_scale):
    weights = numpyro.sample("weights", dist.Normal(0.0, prior_scale).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, prior_scale))
    return lambda: x @ weights + intercept


def _observe(law, x, time, censored, censored_by, dropout, unit):
    limits = () if censored_by is None else (censored_by,)
    rate = numpyro.sample("dropout_rate", dist.LogNormal(0.0, 1.0)) / unit if dropout else None
    named = lambda other: {"censored_by": (other, *limits) if dropout else limits}  # noqa: E731
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("time", dist.RightCensoredDistribution(law(), censored), obs=time, infer=named("dropout"))
        if dropout and time is not None:
            stayed = ~censored if censored_by is None else ~censored | (time >= censored_by)
            gone = dist.RightCensoredDistribution(dist.Exponential(rate), stayed)
            numpyro.sample("dropout", gone, obs=time, infer=named("time"))
