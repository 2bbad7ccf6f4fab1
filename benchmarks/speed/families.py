"""NoiseAware's processor seconds in units of NUTS's, for 18 families of responses, 6 priors, two numbers of rows and three of columns.

A cell is one process with empty caches: NoiseAware's default call at epsilon 1, NUTS with 500 + 1,000 steps, then a second run of each.
NoiseAware comes first, so what both compile counts as its own. The table holds each cell's ratios, and how many meet the goals: 1.5
(first run), 1.0 (second run), none above 3. Cells that the file `--out` holds are not measured again.

python benchmarks/speed/families.py [--cells 40 --seed 1] [--families gamma poisson] [--priors cauchy] [--rows 6000] [--columns 7]

With `--coverage` so many data sets of 1,000 rows a family, of latents from the first prior: the share of the weights that the central
90 % intervals hold, its standard error over data sets, and the mean squared error in posterior variances. With `--draws` each
cell's samples again from the same releases, weighted and NUTS's: processor seconds; the largest difference of means, in posterior sds, and
of sds, in logarithms; distinct draws of 2,000.

python benchmarks/speed/families.py --coverage 20 --families normal poisson negative_binomial student_t
python benchmarks/speed/families.py --draws --families normal --rows 6000 --columns 7
"""

import argparse
import itertools
import json
import math
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = (
    "bernoulli", "normal", "gamma", "negative_binomial", "poisson", "student_t", "beta", "weibull", "exponential",
    "log_normal", "binomial", "categorical", "ordered_logistic", "laplace", "zero_inflated_poisson", "gumbel", "logistic",
    "geometric",
)  # fmt: skip
PRIORS = ("normal", "laplace", "cauchy", "student_t", "half_normal", "hierarchy")
ROWS, COLUMNS = (1_000, 6_000), (3, 7, 25)
GOALS = (1.5, 1.0)


def priors(name):
    """Of single weights, None in a hierarchy, and of the scale."""
    import numpyro.distributions as dist

    return {
        "normal": (dist.Normal(0.0, 1.0), dist.LogNormal(0.0, 0.5)),
        "laplace": (dist.Laplace(0.0, 1.0), dist.Gamma(2.0, 2.0)),
        "cauchy": (dist.Cauchy(0.0, 1.0), dist.HalfCauchy(1.0)),
        "student_t": (dist.StudentT(3.0, 0.0, 1.0), dist.InverseGamma(2.0, 1.0)),
        "half_normal": (dist.Normal(0.0, 1.0), dist.HalfNormal(1.0)),
        "hierarchy": (None, dist.Exponential(1.0)),
    }[name]


def distribution(family, mean, scale, weights):
    """The responses of rows with a linear predictor `mean` (N,), a `scale`, and (categorical) more `weights`."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    inverse = None if mean is None else jnp.exp(-mean)
    return {
        "bernoulli": lambda: dist.Bernoulli(logits=mean),
        "normal": lambda: dist.Normal(mean, scale),
        "gamma": lambda: dist.Gamma(scale, scale * inverse),
        "negative_binomial": lambda: dist.NegativeBinomial2(jnp.exp(mean), scale),
        "poisson": lambda: dist.Poisson(jnp.exp(mean)),
        "student_t": lambda: dist.StudentT(4.0, mean, scale),
        "beta": lambda: dist.Beta(3.0 * scale / (1.0 + inverse), 3.0 * scale * inverse / (1.0 + inverse)),
        "weibull": lambda: dist.Weibull(jnp.exp(mean), scale),
        "exponential": lambda: dist.Exponential(inverse),
        "log_normal": lambda: dist.LogNormal(mean, scale),
        "binomial": lambda: dist.Binomial(20, logits=mean),
        "categorical": lambda: dist.Categorical(logits=weights),
        "ordered_logistic": lambda: dist.OrderedLogistic(mean, jnp.array([-1.0, 0.0, 1.0])),
        "laplace": lambda: dist.Laplace(mean, scale),
        "zero_inflated_poisson": lambda: dist.ZeroInflatedPoisson(0.3, jnp.exp(mean)),
        "gumbel": lambda: dist.Gumbel(mean, scale),
        "logistic": lambda: dist.Logistic(mean, scale),
        "geometric": lambda: dist.Geometric(logits=mean),
    }[family]()  # fmt: skip


def model_of(family, prior="normal"):
    """A regression with responses of this family; in a hierarchy the weights share an unknown sd."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    scaled = "normal gamma negative_binomial student_t beta weibull log_normal laplace gumbel logistic".split()
    of_weights, of_scale = priors(prior)

    def model(x, y=None):
        columns = [x.shape[1]] if family != "categorical" else [x.shape[1], 3]
        each = of_weights or dist.Normal(0.0, numpyro.sample("sd", dist.HalfNormal(1.0)))
        weights = numpyro.sample("weights", each.expand(columns).to_event(len(columns)))
        scale = numpyro.sample("scale", of_scale) if family in scaled else 1.0
        with numpyro.plate("data", x.shape[0]):
            if family == "categorical":
                logits = jnp.pad(x @ weights, ((0, 0), (0, 1)))
                return numpyro.sample("y", distribution(family, None, None, logits), obs=y)
            return numpyro.sample("y", distribution(family, x @ weights, scale, None), obs=y)

    return model


def data_of(model, num_rows, columns, number=3):
    """Covariates, and responses of the model at latents drawn from its prior."""
    import jax
    import numpy as np
    from numpyro.handlers import seed

    x = np.random.default_rng(0).standard_normal((num_rows, columns)).astype(np.float32) / np.sqrt(columns)
    return x, np.asarray(seed(model, jax.random.key(number))(x))


def noise_aware(model, **options):
    import dpppl

    return dpppl.NoiseAware(
        model, target_epsilon=1.0, target_delta=1e-5, print_cost=False, progress_bar=False, **options
    )


def coverage(family, count):
    """A line of the table of coverage, over `count` data sets."""
    import jax
    import numpy as np
    from numpyro.handlers import seed, trace

    model, covered, squares = model_of(family), [], []
    for number in range(count):
        x, y = data_of(model, 1_000, 7, 100 + number)
        truth = np.ravel(trace(seed(model, jax.random.key(100 + number))).get_trace(x)["weights"]["value"])
        private = noise_aware(model, num_samples=1_000)
        private.run(jax.random.key(1_000 * (1 + FAMILIES.index(family)) + number), x, y)  # a key is used once
        samples = private.get_samples(allow_unconverged=True)["weights"].reshape(1_000, -1)
        low, high = np.quantile(samples, (0.05, 0.95), axis=0)
        covered.append(np.mean((low < truth) & (truth < high)))
        squares.append(np.mean((samples.mean(0) - truth) ** 2 / samples.var(0)))
    error = lambda values: np.std(values, ddof=1) / np.sqrt(count)  # noqa: E731
    return (
        f"| {family} | {np.mean(covered):.3f} ± {error(covered):.3f} | {np.mean(squares):.2f} ± {error(squares):.2f} |"
    )


def cell_data(family, prior, num_rows, columns):
    """The model of a cell, and data of weights from -1 to 1 and a scale of 1."""
    import jax.numpy as jnp
    from numpyro.handlers import substitute

    model, shape = model_of(family, prior), (columns, 3) if family == "categorical" else (columns,)
    weights = jnp.linspace(-1.0, 1.0, math.prod(shape)).reshape(shape)
    return model, *data_of(substitute(model, {"weights": weights, "scale": 1.0}), num_rows, columns)


def seconds(*cell):
    """Processor seconds, by method, of two runs of each."""
    import jax
    from numpyro.infer import MCMC, NUTS

    import dpppl

    model, x, y = cell_data(*cell)

    def private():
        found = noise_aware(model)
        found.run(dpppl.secret_key(), x, y)
        return found.get_samples(allow_unconverged=True)

    def nuts():
        mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=1_000, progress_bar=False)
        mcmc.run(jax.random.key(0), x, y)
        return mcmc.get_samples()

    found = {"NoiseAware": [], "NUTS": []}
    for run, name in ((private, "NoiseAware"), (nuts, "NUTS")) * 2:
        start = time.process_time()
        jax.block_until_ready(run())
        found[name].append(time.process_time() - start)
    return found


def draws(*cell):
    """A cell's line of `--draws`."""
    import numpy as np

    import dpppl
    from dpppl.noise_aware import mixture

    model, x, y = cell_data(*cell)
    private = noise_aware(model)
    private.run(dpppl.secret_key(), x, y)
    taken, found = [], []
    for least in (mixture._LEAST, 2.0):
        mixture._LEAST = least
        start = time.process_time()
        private.sample_again(dpppl.secret_key(), x, y)
        taken.append(time.process_time() - start)
        again = private.get_samples(allow_unconverged=True)
        found.append(np.column_stack([value.reshape(len(value), -1) for value in again.values()]).astype(float))
    (mean, sd), (other, wide) = ((z.mean(axis=0), z.std(axis=0)) for z in found)
    off, ratio = np.abs((mean - other) / wide).max(), np.abs(np.log(sd / wide)).max()
    return [f"{s:.1f}" for s in taken] + [f"{off:.2f}", f"{ratio:.2f}", str(len(np.unique(found[0][:, 0])))]


def measured(what, cell):
    """What `seconds` or `draws` gives, in a process of its own with empty caches."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", what, json.dumps(cell)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1_200)
    if done.returncode:
        print(done.stderr[-1_000:], file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def ratios(found):
    return [a / b for a, b in zip(found["NoiseAware"], found["NUTS"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--priors", nargs="+", default=PRIORS, choices=PRIORS)
    parser.add_argument("--rows", nargs="+", default=ROWS, type=int)
    parser.add_argument("--columns", nargs="+", default=COLUMNS, type=int)
    parser.add_argument("--cells", type=int, help="how many of all cells, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of that draw")
    parser.add_argument("--out", type=Path, default=Path("families.json"), help="keeps what was measured")
    parser.add_argument("--coverage", type=int, help="data sets a family, whose coverage is measured instead")
    parser.add_argument("--draws", action="store_true", help="compare weighted draws with NUTS's instead")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        warnings.simplefilter("ignore")
        return print(json.dumps({"seconds": seconds, "draws": draws}[args.worker[0]](*json.loads(args.worker[1]))))
    if args.coverage:
        print("| responses | 90 % intervals cover | squared error in posterior variances |\n|---|---|---|", flush=True)
        for family in args.families:
            print(coverage(family, args.coverage), flush=True)
        return None
    cells = list(itertools.product(args.families, args.priors, args.rows, args.columns))
    cells = random.Random(args.seed).sample(cells, args.cells) if args.cells else cells
    columns = (
        "weighted, s | NUTS's draws, s | means differ, sds | sds differ | distinct"
        if args.draws
        else "first run | second run | seconds | NUTS's"
    )
    title = f"| responses | prior | rows | columns | {columns} |"
    print(f"{title}\n{'|---' * (title.count('|') - 1)}|", flush=True)
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    for cell in cells:
        line = [*cell[:2], f"{cell[2]:,}", str(cell[3])]
        if args.draws:
            line += measured("draws", cell) or ["failed"]
        else:
            name = " ".join(map(str, cell))
            found[name] = found.get(name) or measured("seconds", cell)
            args.out.write_text(json.dumps(found, indent=1) + "\n")
            line += [f"{r:.2f}" for r in ratios(found[name])] if found[name] else ["failed"]
            line += [", ".join(f"{s:.1f}" for s in taken) for taken in (found[name] or {}).values()]
        print("|", " | ".join(line), "|", flush=True)
    if not args.draws:
        every = [ratios(found[" ".join(map(str, cell))]) for cell in cells if found[" ".join(map(str, cell))]]
        within = [sum(r[i] <= GOALS[i] for r in every) for i in (0, 1)]
        print(
            f"\n{len(every)} of {len(cells)} cells ran: {within[0]} within {GOALS[0]} (first), {within[1]} within {GOALS[1]}"
        )
        print(
            f"(second), {sum(all(a <= b for a, b in zip(r, GOALS)) for r in every)} both, {sum(max(r) > 3 for r in every)} above 3."
        )
    return None


if __name__ == "__main__":
    main()
