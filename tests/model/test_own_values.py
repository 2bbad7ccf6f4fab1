"""Responses that are cut from other arguments under a mask, or computed in the model: taken where they may be replaced by draws."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.autoguide import AutoNormal
from small_models import latent

import dpppl
from dpppl.errors import UnsupportedModelError
from dpppl.model.responses import Responses
from dpppl.model.split import split_model
from dpppl.noise_aware.binding import bind
from dpppl.svi.binding import bind_objective

N = 12
Y = np.random.default_rng(0).normal(size=N).astype(np.float32)
OK = Y > -0.5


def observe(site, law, value):
    return numpyro.sample(site, law if isinstance(law, dist.Distribution) else dist.Normal(law, 1.0), obs=value)


def of_rows(observe):
    """A model whose rows observe what `observe(mu, row arrays)` writes."""

    def model(*arrays):
        mu = latent("mu")
        with numpyro.plate("data", arrays[0].shape[0]):
            observe(mu, *arrays)

    signature = inspect.signature(observe)
    model.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])
    return model


@of_rows
def cut(mu, y, ok):
    with handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.where(ok, y, 0.0))


@of_rows
def cut_by_a_number(mu, y, ok):
    with handlers.mask(mask=ok == 1):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.where(ok == 1, y, 0.0))


@of_rows
def not_missing(mu, y):
    with handlers.mask(mask=~jnp.isnan(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.where(jnp.isnan(y), 0.0, y))


def times(y, ok):
    mu = latent("mu")
    with numpyro.plate("times", 3, dim=-2), numpyro.plate("data", y.shape[0], dim=-1):
        numpyro.sample("y", dist.Normal(mu, 1.0).mask(ok.T), obs=(y * ok).T)


WIDE = np.stack([Y, Y, Y], 1)


FREE = {
    "cut": (cut, (Y, OK)),
    "integers": (cut_by_a_number, (Y, OK.astype(np.int32))),
    "floats": (cut_by_a_number, (Y, OK.astype(np.float32))),
    "nan": (not_missing, (np.where(OK, Y, np.nan),)),
    "finite": (of_rows(lambda mu, y: observe("y", dist.Normal(mu, 1.0).mask(jnp.isfinite(y)), jnp.nan_to_num(y))), (np.where(OK, Y, np.nan),)),
    "matrix": (times, (WIDE, np.stack([OK] * 3, 1))),
    "labels": (of_rows(lambda mu, y, ok: observe("y", dist.Categorical(logits=jnp.stack([0.0 * mu, mu, -mu])).mask(ok), jnp.where(ok, y, 0))),
               ((Y > 0).astype(np.int32), OK)),
    "relative": (of_rows(lambda mu, y, base: observe("y", mu * base, y - base)), (Y, Y)),
    "returned": (of_rows(lambda mu, x, y: observe("y", mu * observe("x", mu, x), y)), (Y, Y)),
}  # fmt: skip


@pytest.mark.parametrize(("model", "args"), FREE.values(), ids=FREE)
def test_responses_that_are_free_are_taken(model, args):
    assert Responses.of(split_model(model, args, {})).observed


def scaled(y, ok, scale):
    mu = latent("mu")
    with numpyro.plate("data", y.shape[0]), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.where(ok, y * scale[0], 0.0))


def test_values_are_free_by_the_public_arrays_that_they_are_computed_with():
    """A factor of 2 leaves a value free, and one of 0 does not; `Responses.of` alone takes ones."""
    assert Responses.of(split_model(scaled, (Y, OK, dpppl.Public(np.float32([2.0]))), {})).observed
    key, centred = dpppl.secret_key(), {"clipping_norm": 1.0, "noise_multiplier": 1.0}
    for factor, is_free in ((2.0, True), (0.0, False)):
        args = Y, OK, dpppl.Public(np.float32([factor]))
        binding = (
            lambda: bind(dpppl.NoiseAware(scaled, noise_multiplier=1.0), args, {}, key),  # noqa: B023
            lambda: dpppl.DPSGLD(scaled, clipping_norm=1.0, clipping="centred").bind(args, {}),  # noqa: B023
            lambda: bind_objective(dpppl.SVI(scaled, AutoNormal(scaled), clipping="centred", **centred), key, args, {}),  # noqa: B023
        )
        for of_method in binding:
            if is_free:
                of_method()
            else:
                with pytest.raises(UnsupportedModelError, match="observes values of argument 'ok'"):
                    of_method()


@of_rows
def first_is_given(mu, first, y):
    both = jnp.stack([first, y], -1)
    numpyro.sample("y", dist.Normal(jnp.stack([mu + 0.0 * first, mu + first], -1), 1.0).to_event(1), obs=both)


NOT_FREE = {
    "columns": (of_rows(lambda mu, data: observe("y", mu * data[:, 0], data[:, 1])), (WIDE,),
                "site 'y' observes values of argument 'data', and a distribution or mask is computed from the same"),
    "known": (of_rows(lambda mu, y, ok: observe("y", mu * ok, jnp.where(ok, y, 0.0))),  # where not ok, it is no response, and it counts
              (Y, OK), "site 'y' observes values of argument 'ok'"),
    "first": (first_is_given, (Y, Y), "site 'y' observes values of argument 'first'"),
    "above": (of_rows(lambda mu, y: observe("y", dist.Normal(mu, 1.0).mask(y > 0.0), jnp.where(y > 0.0, y, 0.0))), (Y,),
              "site 'y' observes values of argument 'y'"),
    "again": (of_rows(lambda mu, x, y: (observe("x", mu, x), observe("y", mu * x, y))), (Y, Y),
              "let later sites use what numpyro.sample returns for earlier ones"),
    "residual": (of_rows(lambda mu, x, y: observe("y", 0.0, y - mu * x)), (Y, Y),
                 "site 'y' observes what is computed from the latent 'mu', as a residual y - mu is; observe y itself"),
}  # fmt: skip


@pytest.mark.parametrize(("model", "args", "words"), NOT_FREE.values(), ids=NOT_FREE)
def test_responses_that_are_not_free_are_refused(model, args, words):
    """Their cures run: `test_responses_that_are_free_are_taken` has models of two arguments and of returned values, and "flat" this."""
    split = split_model(model, args, {})
    with pytest.raises(UnsupportedModelError, match=words):
        Responses.of(split)
    assert dpppl.DPSGLD(model, clipping_norm=1.0, clipping="flat").bind(args, {}).split.num_rows == N


def test_masked_entries_change_nothing():
    """What stands under the mask may be anything: scores of a row, and of its draws, are the same."""
    split = split_model(cut, (Y, OK), {})
    draws, z = Responses.of(split), {"mu": jnp.float32(0.3)}

    @jax.jit
    def scores(row):
        values, _ = draws(z, row, {}, jax.random.key(0))
        return split.log_likelihood(z, row, {}), draws.totals(z, row, {}, values)

    for y in (0.0, 7.0, np.inf):
        assert all(np.all(score == 0.0) for score in scores({"y": jnp.float32(y), "ok": jnp.array(False)}))
