"""One of several processes that run SVI and NoiseAware, for test_cluster: `python methods.py process count port folder`."""

import json
import sys

import cluster
import jax
import numpy as np
from numpyro.infer.autoguide import AutoNormal


def main(process, count, port, folder):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2 // count)
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", count, process)
    import dpppl

    settings = dict(print_cost=False, mesh=jax.make_mesh((2,), ("rows",)))
    rows, scale = cluster.rows(), dpppl.Public(np.float32(1.0))
    keys = jax.random.split(cluster.a_key(), 3)
    guide = AutoNormal(cluster.model)
    svi = dpppl.SVI(cluster.model, guide, clipping_norm="auto", noise_multiplier=8.0, **settings)
    result = svi.run(keys[0], 20, rows, scale, progress_bar=False)
    aware = dpppl.NoiseAware(cluster.model, target_epsilon=5.0, target_delta=1e-6, progress_bar=False, **settings)
    aware.run(keys[1], rows, scale)
    found = dict(
        params={name: np.asarray(value).tolist() for name, value in result.params.items()},
        elbo=svi.estimate_elbo(keys[2], result.params, rows, scale, bound=5.0, noise_multiplier=5.0),
        svi=str(svi.privacy_report()),
        mean=float(np.mean(aware.get_samples(allow_unconverged=True)["mu"])),
        aware=str(aware.privacy_report()),
    )
    with open(f"{folder}/of{process}in{count}", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])
