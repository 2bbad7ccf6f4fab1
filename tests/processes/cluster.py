"""One of several processes, for test_cluster: `python cluster.py process count port folder`."""

import json
import pickle
import sys

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

N = 120


def model(y, scale):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, scale), obs=y)


def rows():
    return np.linspace(-1.0, 1.0, N, dtype=np.float32)


def a_key():
    return jax.random.wrap_key_data(np.array([2**31 + 11, 2**30 + 5], np.uint32), impl="threefry2x32")


def chains(ledger, **settings):
    import dpppl

    kernel = dpppl.DPSGLD(model, clipping_norm=2.0, subsampling=dpppl.Poisson(0.2), noise_multiplier=4.0)
    return dpppl.MCMC(kernel, num_warmup=0, num_samples=20, ledger=ledger, **settings)


def raised(act):
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(process, count, port, folder):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2 // count)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", count, process, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10
    )
    import dpppl
    from dpppl.randomness import keys
    from dpppl.runs.processes import ProcessGroup

    def again(act):  # one key in several runs, for tests
        keys._claimed.clear()
        return act()

    mesh = jax.make_mesh((2,), ("rows",))
    sharding, share = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows")), N // count
    y = jax.make_array_from_process_local_data(sharding, rows()[process * share :][:share])
    scale, found = dpppl.Public(np.float32(1.0)), {}
    found["key"] = np.asarray(jax.random.key_data(dpppl.secret_key())).tolist()

    mcmc = chains(f"{folder}/ledger")
    mcmc.run(a_key(), y, scale)
    found["samples"] = np.asarray(mcmc.get_samples(allow_unconverged=True)["mu"]).tolist()
    found["copy"] = np.asarray(pickle.loads(pickle.dumps(mcmc)).get_samples(allow_unconverged=True)["mu"]).tolist()
    found["report"] = str(mcmc.privacy_report())
    square = lambda y: y**2  # noqa: E731
    score = again(lambda: dpppl.private_score(a_key(), square, y, bounds=(0.0, 1.0), noise_multiplier=2.0))
    found["score"] = score.mean

    other = jax.random.fold_in(a_key(), process)
    found["keys"] = raised(
        lambda: chains(f"{folder}/ledger", print_cost=False, progress_bar=False).run(other, y, scale)
    )
    poor = chains(f"{folder}/poor", print_cost=False, progress_bar=False)
    found["refused"] = again(lambda: raised(lambda: poor.run(a_key(), y, scale)))
    elbo = dpppl.SVI(model, numpyro.infer.autoguide.AutoNormal(model), clipping_norm=1.0, noise_multiplier=2.0)
    found["by_hand"] = again(lambda: raised(lambda: elbo.update(elbo.init(a_key(), y, scale), y, scale)))

    mine = chains(None, print_cost=False, progress_bar=False, mesh=mesh)
    found["unlike"] = again(lambda: raised(lambda: mine.run(a_key(), rows() + process, scale)))

    enter, charges = ProcessGroup.enter, []

    def failing(self, what, act):
        charges.append(what == "charge")
        if process == 1 and sum(charges) == 3:
            raise ValueError("not to be told")
        return enter(self, what, act)

    ProcessGroup.enter = failing
    third = chains(f"{folder}/failing", print_cost=False, progress_bar=False, mesh=mesh)
    found["failed"] = again(lambda: raised(lambda: third.run(a_key(), rows(), scale)))
    with open(f"{folder}/found{process}", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])
