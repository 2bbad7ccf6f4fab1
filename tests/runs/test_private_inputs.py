"""What the proof of each program takes for private: all arrays that are as long as the data, and nothing else."""

import jax
import numpy as np
import pytest
from numpyro.infer.autoguide import AutoNormal
from small_models import normal_mean

import dpppl
from dpppl import information_flow
from dpppl.runs import placing

N = 37  # no other axis is as long
COST = dict(target_epsilon=5.0, target_delta=1e-4, print_cost=False)
SETTINGS = dict(noise_multiplier=5.0)


class Traced(Exception):
    pass


def chain(**settings):
    kernel = dpppl.DPSGLD(normal_mean, **settings)
    return dpppl.MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False, **COST)


def guide(**settings):
    return dpppl.SVI(normal_mean, AutoNormal(normal_mean), **settings)


def update(y):
    svi = guide(clipping_norm=1.0, **SETTINGS)
    svi.update(svi.init(dpppl.secret_key(), y), y)


CALLS = {
    "a chain": lambda y: chain(clipping_norm=1.0).run(dpppl.secret_key(), y),
    "a chain and its histogram": lambda y: chain().run(dpppl.secret_key(), y),
    "a fit": lambda y: guide(clipping_norm=1.0, **COST).run(dpppl.secret_key(), 2, y, progress_bar=False),
    "an update": update,
    "NoiseAware": lambda y: dpppl.NoiseAware(normal_mean, progress_bar=False, **COST).run(dpppl.secret_key(), y),
    "a score": lambda y: dpppl.private_score(dpppl.secret_key(), lambda y: y, y, bounds=(0.0, 1.0), **SETTINGS),
    "a scale": lambda y: dpppl.private_scale(dpppl.secret_key(), y, **SETTINGS),
}


@pytest.mark.parametrize("call", CALLS)
def test_rows_are_private_in_each_program_that_is_proved(call, monkeypatch):
    proved = []
    real = information_flow.verify_jaxpr

    def verify(program, private, **settings):
        proved.append((program, set(private)))
        return real(program, private, **settings)

    def stop(*_, **__):
        raise Traced

    monkeypatch.setattr(information_flow, "verify_jaxpr", verify)
    monkeypatch.setattr(placing, "lowered", stop)
    with pytest.raises(Traced):
        CALLS[call](np.linspace(-1.0, 1.0, N, dtype=np.float32))
    assert proved
    for program, private in proved:
        shapes = [
            np.shape(v.aval) if not jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.prng_key) else ()
            for v in program.jaxpr.invars
        ]
        assert private == {number for number, shape in enumerate(shapes) if N in shape} and private
