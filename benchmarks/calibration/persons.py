"""Coverage of NoiseAware where a person has 1 to 20 correlated rows: persons as units beside rows as units.

Responses are x b + a person's own effect + noise, the effect's share of the variance `--correlation`; the model is linear
regression without the effect. Prints coverage of 90 % intervals, rms of (mean - truth) / sd, and how often the verdict refuses.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import dpppl


def model(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def data(rng, num_persons, num_latents, correlation):
    ids = np.repeat(np.arange(num_persons), rng.integers(1, 21, num_persons))
    b = rng.normal(size=num_latents)
    own = rng.normal(size=(num_persons, num_latents))  # covariates of a person are alike, too
    x = (np.sqrt(0.5) * own[ids] + np.sqrt(0.5) * rng.normal(size=(len(ids), num_latents))).astype(np.float32)
    effect = np.sqrt(correlation) * rng.normal(size=num_persons)[ids]
    y = x @ b + effect + np.sqrt(1 - correlation) * rng.normal(size=len(ids))
    order = rng.permutation(len(ids))
    return b, x[order], y[order].astype(np.float32), ids[order]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-data-sets", type=int, default=20)
    parser.add_argument("--persons", type=int, default=2_000)
    parser.add_argument("--latents", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--correlation", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    kinds = {"persons": dict(unit="person", max_rows_per_unit=20), "rows": {}}
    z, refused = {kind: [] for kind in kinds}, dict.fromkeys(kinds, 0)
    for _ in range(options.num_data_sets):
        b, x, y, ids = data(rng, options.persons, options.latents, options.correlation)
        for kind, unit in kinds.items():
            method = dpppl.NoiseAware(
                model, target_epsilon=options.epsilon, target_delta=1e-5, print_cost=False, progress_bar=False, **unit
            )
            named = {"person": ids} if unit else {}
            method.run(dpppl.secret_key(), jnp.asarray(x), jnp.asarray(y), **named)
            refused[kind] += bool(method.verdict.refusals)
            samples = np.asarray(method.get_samples(allow_unconverged=True)["b"])
            z[kind].append((samples.mean(0) - b) / samples.std(0))
            jax.clear_caches()
    found = {}
    for kind in kinds:
        covered = np.abs(z[kind]) < 1.645
        error = covered.mean(1).std() / np.sqrt(options.num_data_sets)
        rms = float(np.sqrt(np.mean(np.square(z[kind]))))
        found[kind] = float(covered.mean()), rms
        print(
            f"{kind:8} covered {covered.mean():.3f} (se {error:.3f}), z rms {rms:.2f}, refused {refused[kind]} of "
            f"{options.num_data_sets}"
        )
    return found


if __name__ == "__main__":
    main()
