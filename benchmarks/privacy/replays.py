"""Record and replay of every method with hostile rows: whether anything but the releases depends on a row.

    python benchmarks/privacy/replays.py                          # every case; prints "N of N equal"
    python benchmarks/privacy/replays.py --cases query ledger --rows 2

A case is a run and a neighbouring data set in which one row (or all rows of one person) is not a number, 1e30, outside the
support, infinite, or ordinary. 14 cases by 5 rows take 25 minutes on one core.
"""

import argparse
import functools
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import dpppl
import dpppl.contrib.tuning
import dpppl.contrib.uncertainty
from dpppl.contrib.audit import replay
from dpppl.runs.checkpoint import Checkpoint

N, WIDTH, PERSON = 61, 2, 3
HOSTILE = [(np.nan, np.nan), (1e30, 1.0), (3.0, -7.0), (np.inf, 0.0), (0.0, 0.5)]
"""Values of (x, y) of the row that differs."""
FOLDER = tempfile.TemporaryDirectory(prefix="dpppl-replays-")


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, WIDTH)).astype(np.float32), (rng.random(N) < 0.6).astype(np.float32)


def neighbour(x_value, y_value, rows=7):
    x, y = data()
    x[rows], y[rows] = x_value, y_value
    return x, y


def chains(key, x, y, kernel=dpppl.DPSGLD, chain_method="vectorized", mesh=None, run=None, **settings):
    made = kernel(model, noise_multiplier=8.0, **settings)
    options = dict(num_warmup=4, num_samples=6, num_chains=2, chain_method=chain_method, progress_bar=False, mesh=mesh)
    mcmc = dpppl.MCMC(made, **options | (run or {}))
    mcmc.run(key, x, y)
    mcmc.print_summary()
    return mcmc


def variational(key, x, y, **settings):
    svi = dpppl.SVI(model, AutoNormal(model), num_data=N, noise_multiplier=8.0, **settings)
    result = svi.run(key, 6, x, y)
    elbo = svi.estimate_elbo(jax.random.fold_in(key, 1), result.params, x, y, bound=2.0, noise_multiplier=5.0)
    return result, elbo, svi.privacy_report()


def framed_chains(key, x, y):
    mcmc = dpppl.MCMC(
        dpppl.DPSGHMC(model), num_warmup=4, num_samples=6, frame=True, target_epsilon=40.0, target_delta=1e-5, progress_bar=False
    )  # fmt: skip
    mcmc.run(key, x, y)
    mcmc.print_summary()
    return mcmc


def framed_guide(key, x, y):
    svi = dpppl.SVI(model, AutoMultivariateNormal(model), frame=True, target_epsilon=40.0, target_delta=1e-5)
    return svi.run(key, 6, x, y), svi.privacy_report()


def aware(key, x, y, **settings):
    method = dpppl.NoiseAware(model, noise_multiplier=0.5, num_samples=20, **settings)
    method.run(key, x, y)
    method.print_summary()
    return method, method.likelihood(allow_unconverged=True)


def counts(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jax.numpy.exp(x @ w), 2.0), obs=y)


def weighted(key, x, y):
    """Drawn responses, whose scores go by the parameters of their distribution; a row's weight is its first covariate. Rows of
    zeros are added: of so many all kinds of accesses are one program."""
    x, y = np.pad(x, ((0, 1_000), (0, 0))), np.pad(y, (0, 1_000))
    method = dpppl.NoiseAware(counts, weights="weight", max_weight=2.0, noise_multiplier=0.5, num_samples=20)
    method.run(key, x, y, weight=np.abs(x[:, 0]))
    return method


def with_gaps(x1, x2, ok, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([WIDTH]).to_event(1))
    with numpyro.plate("data", x1.shape[0]):
        x2 = numpyro.sample("x2", dist.Bernoulli(logits=x1), obs=x2, obs_mask=ok)
        numpyro.sample("y", dist.Bernoulli(logits=w[0] * x1 + w[1] * x2), obs=y)


def gaps(key, x, y):
    """A missing covariate; which values are missing follows the row that differs."""
    kernel = dpppl.DPSGLD(with_gaps, clipping_norm=1.0, noise_multiplier=8.0, clipping="centred")
    mcmc = dpppl.MCMC(kernel, num_warmup=4, num_samples=6, progress_bar=False)
    mcmc.run(key, x[:, 0], (x[:, 1] > 0.0).astype(np.int32), y > 0.5 * x[:, 1], y)
    return mcmc


def gaps_aware(key, x, y):
    """`gaps` by NoiseAware: a row's missing value is summed out in its score and in its drawn responses."""
    method = dpppl.NoiseAware(with_gaps, noise_multiplier=0.5, num_samples=20)
    method.run(key, x[:, 0], (x[:, 1] > 0.0).astype(np.int32), y > 0.5 * x[:, 1], y)
    return method


def censored(x, time, censored, end):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        life = dist.Weibull(jax.numpy.exp(w[0] + w[1] * x), 1.5)
        law = dist.RightCensoredDistribution(life, censored)
        numpyro.sample("time", law, obs=time, infer={"censored_by": end})


def survival(key, x, y, **settings):
    """Times, whether they are censored, and the ends of follow-up all follow the row that differs."""
    with np.errstate(over="ignore"):  # of this line, not of a run
        life, end = np.exp(x[:, 0]) * (0.5 + y), np.exp(x[:, 1])
    method = dpppl.NoiseAware(censored, noise_multiplier=0.5, num_samples=20, **settings)
    method.run(key, x[:, 0], np.minimum(life, end), life > end, end)
    return method


def sandwich(key, x, y):
    method = dpppl.NoiseAware(
        model, width="sandwich", weights="weight", max_weight=2.0, noise_multiplier=0.5, num_samples=20
    )
    method.run(key, x, y, weight=np.abs(x[:, 0]))
    return method


def score(x, y):
    return (x[0] - y) ** 2


def query(key, x, y, **settings):
    return dpppl.private_score(key, score, x, y, bounds=(0.0, 2.0), noise_multiplier=3.0, **settings)


def checked(key, x, y):
    far = dpppl.contrib.uncertainty.discrepancy(
        model, lambda draw, seen, x, y: (x[0] * seen["y"]).sum(), bounds=(-2.0, 2.0)
    )
    samples = dpppl.Public({"w": np.zeros((4, WIDTH), np.float32)})
    settings = dict(bounds=(-4.0, 4.0), noise_multiplier=3.0, measure_spread=True)
    found = dpppl.private_score(key, far, samples, x, y, **settings)
    return found, found.p_value()


def tuned(key, x, y):
    def make(norm):
        kernel = dpppl.DPSGLD(model, clipping_norm=norm, noise_multiplier=9.0, step_size=1e-3)
        return dpppl.MCMC(kernel, num_warmup=2, num_samples=3, progress_bar=False)

    of_row = lambda samples, x, y: -((x @ samples["w"].mean(axis=0) - y) ** 2)  # noqa: E731
    return dpppl.contrib.tuning.tune(
        key, [0.5, 2.0], make, of_row, x, y, bounds=(-4.0, 0.0), score_noise=9.0, mean_runs=2.0
    )


def folder():
    return Path(tempfile.mkdtemp(dir=FOLDER.name))


def from_disk(runner, key, x, y, **settings):
    np.save(path := folder() / "x.npy", x)
    return runner(key, dpppl.from_disk(path), y, **settings)


def on_mesh(runner, key, x, y, **settings):
    devices = jax.devices()[:2]
    return runner(key, x, y, mesh=jax.make_mesh((len(devices),), ("rows",), devices=devices), **settings)


def by_person(key, x, y):
    kernel = dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=8.0)
    ids, size = np.arange(N) // PERSON, dict(unit="person", max_rows_per_unit=PERSON)
    mcmc = dpppl.MCMC(kernel, num_warmup=4, num_samples=6, progress_bar=False, **size)
    mcmc.run(key, x, y, person=ids)
    return mcmc


def interrupted(key, x, y):
    """A run that stops after its third chunk, its checkpoint, and the run that goes on from there."""
    path, save = folder() / "run.npz", Checkpoint.save
    saves = iter(range(3))

    def saved(checkpoint, *progress):
        save(checkpoint, *progress)
        if next(saves, None) is None:
            raise KeyboardInterrupt

    run = functools.partial(chains, key, x, y, clipping_norm=1.0, run={"checkpoint": path})
    with mock.patch.object(Checkpoint, "save", saved):
        try:
            run()
        except KeyboardInterrupt:
            kept = path.with_name("kept.npz")
            kept.write_bytes(path.read_bytes())
    return run(), kept, path.parent


def in_ledger(key, x, y):
    path = folder() / "data.ledger"
    ledger = dpppl.PrivacyLedger(path, 20.0, 1e-5, name="made up")
    mcmc = chains(key, x, y, clipping_norm=1.0, run={"ledger": ledger})
    return mcmc, query(jax.random.fold_in(key, 1), x, y, ledger=ledger), path.parent


LANGEVIN = functools.partial(chains, clipping_norm=1.0)
RUNNERS = {
    "chains": functools.partial(LANGEVIN, subsampling=dpppl.Poisson(0.4)),
    "chains that choose their norm": functools.partial(chains, kernel=dpppl.DPSGHMC, chain_method="sequential"),
    "thermostats": functools.partial(chains, kernel=dpppl.DPSGNHT, clipping_norm=2.0),
    "discrete noise": functools.partial(LANGEVIN, discretise=True),
    "SVI": variational,
    "chains from a frame": framed_chains,
    "SVI from a frame": framed_guide,
    "NoiseAware": aware,
    "query": query,
    "posterior predictive check": checked,
    "tune": tuned,
    "chains from disk": functools.partial(from_disk, functools.partial(LANGEVIN, subsampling=dpppl.Poisson(0.4))),
    "query from disk": functools.partial(from_disk, query),
    "NoiseAware from disk": functools.partial(from_disk, aware),
    "chains on a mesh": functools.partial(on_mesh, functools.partial(LANGEVIN, subsampling=dpppl.Poisson(0.4))),
    "query on a mesh": functools.partial(on_mesh, query),
    "NoiseAware on a mesh": functools.partial(on_mesh, aware),
    "persons": by_person,
    "checkpoint": interrupted,
    "ledger": in_ledger,
    "NoiseAware with weights": weighted,
    "chains with missing values": gaps,
    "NoiseAware with missing values": gaps_aware,
    "NoiseAware with censored times": survival,
    "NoiseAware with sandwich widths and weights": sandwich,
    "SVI of drawn rows": functools.partial(variational, clipping_norm=1.0, subsampling=dpppl.Poisson(0.4)),
}


def key():
    """A key with equal noise in every replay: what holds with noise holds in every run."""
    return jax.random.wrap_key_data(np.array([2**31 + 11, 2**30 + 5], np.uint32), impl="threefry2x32")


def replayed(name, values=HOSTILE[1]):
    """The replay of a case with a row of these values in place of row 7, or of the person who has it."""
    rows = slice(6, 6 + PERSON) if name == "persons" else 7
    return replay(RUNNERS[name], data(), neighbour(*values, rows), rng_key=key())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=RUNNERS, default=list(RUNNERS))
    parser.add_argument("--rows", type=int, default=len(HOSTILE), help="how many hostile rows")
    options = parser.parse_args(arguments)
    equal, total, moved = 0, 0, 0.0
    for name in options.cases:
        for values in HOSTILE[: options.rows]:
            start, found = time.perf_counter(), replayed(name, values)
            equal, total, moved = equal + found.consistent, total + 1, max(moved, found.moved)
            text = f"{found.num_accesses} accesses, {found.num_results} results, moved {found.moved:.4f}"
            print(
                f"{name:30} {values!s:12} {text}, {time.perf_counter() - start:.0f} s", *found.differences, flush=True
            )
        jax.clear_caches()
    print(f"{equal} of {total} equal; largest change of a sum {moved:.4f} of what is charged")


if __name__ == "__main__":
    main()
