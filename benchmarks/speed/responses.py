"""Seconds of processor time that NoiseAware and NUTS take, for many families of responses: a row of the table a process.

N = 6,000 rows, 7 covariates, epsilon 1; NUTS takes 500 + 1,000 steps. First and second run of each method in one process, with
empty caches. Lines that a file (`--out`) holds are not measured again. `--of` adds the same numbers of NoiseAware in another
checkout, measured between the two of this one, and their ratio.

With `--coverage` so many data sets of 1,000 rows a family, of latents from the prior: the share of the weights that the central
90 % intervals hold, its standard error over data sets, and the mean squared error in posterior variances.

python benchmarks/speed/responses.py --out responses.json [--families gamma poisson] [--of OTHER_CHECKOUT]
python benchmarks/speed/responses.py --coverage 20 --families normal poisson negative_binomial student_t
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUM_ROWS, DIMENSION = 6_000, 7
FAMILIES = (
    "bernoulli", "normal", "gamma", "negative_binomial", "poisson", "student_t", "beta", "weibull", "exponential",
    "log_normal", "binomial", "categorical", "ordered_logistic", "laplace", "zero_inflated_poisson", "gumbel", "logistic",
    "geometric",
)  # fmt: skip


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


def model_of(family):
    """A regression with responses of this family."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    scaled = "normal gamma negative_binomial student_t beta weibull log_normal laplace gumbel logistic".split()

    def model(x, y=None):
        columns = [x.shape[1]] if family != "categorical" else [x.shape[1], 3]
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand(columns).to_event(len(columns)))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5)) if family in scaled else 1.0
        with numpyro.plate("data", x.shape[0]):
            if family == "categorical":
                logits = jnp.pad(x @ weights, ((0, 0), (0, 1)))
                return numpyro.sample("y", distribution(family, None, None, logits), obs=y)
            return numpyro.sample("y", distribution(family, x @ weights, scale, None), obs=y)

    return model


def data_of(model, num_rows=NUM_ROWS, number=3):
    """Covariates, and responses of the model at latents drawn from its prior."""
    import jax
    import numpy as np
    from numpyro.handlers import seed

    x = np.random.default_rng(0).standard_normal((num_rows, DIMENSION)).astype(np.float32) / np.sqrt(DIMENSION)
    return x, np.asarray(seed(model, jax.random.key(number))(x))


def coverage(family, count):
    """A line of the table of coverage, over `count` data sets."""
    import jax
    import numpy as np
    from numpyro.handlers import seed, trace

    import dpppl

    model, covered, squares = model_of(family), [], []
    for number in range(count):
        x, y = data_of(model, 1_000, 100 + number)
        truth = np.ravel(trace(seed(model, jax.random.key(100 + number))).get_trace(x)["weights"]["value"])
        private = dpppl.NoiseAware(
            model, target_epsilon=1.0, target_delta=1e-5, print_cost=False, progress_bar=False, num_samples=1_000
        )
        private.run(jax.random.key(1_000 * (1 + FAMILIES.index(family)) + number), x, y)  # a key is used once
        samples = private.get_samples(allow_unconverged=True)["weights"].reshape(1_000, -1)
        low, high = np.quantile(samples, (0.05, 0.95), axis=0)
        covered.append(np.mean((low < truth) & (truth < high)))
        squares.append(np.mean((samples.mean(0) - truth) ** 2 / samples.var(0)))
    error = lambda values: np.std(values, ddof=1) / np.sqrt(count)  # noqa: E731
    return (
        f"| {family} | {np.mean(covered):.3f} ± {error(covered):.3f} | {np.mean(squares):.2f} ± {error(squares):.2f} |"
    )


def worker(family, method):
    """Seconds of processor time of two runs, printed."""
    import jax

    import dpppl

    model = model_of(family)
    x, y = data_of(model)

    def run():
        if method == "NUTS":
            from numpyro.infer import MCMC, NUTS

            mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=1_000, progress_bar=False)
            mcmc.run(jax.random.key(0), x, y)
            return mcmc.get_samples()
        private = dpppl.NoiseAware(
            model, target_epsilon=1.0, target_delta=1e-5, print_cost=False, progress_bar=False, num_samples=1_000
        )
        private.run(dpppl.secret_key(), x, y)
        return private.get_samples(allow_unconverged=True)

    found = []
    for _ in range(2):
        start = time.process_time()
        jax.block_until_ready(run())
        found.append(time.process_time() - start)
    print(json.dumps(found))


def measured(family, method, checkout):
    """What `worker` prints, in a process of its own that imports dpppl from `checkout`."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", family, method]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1_200)
    if done.returncode:
        print(done.stderr[-1_000:], file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else [float("nan")] * 2


def cells(numbers, has_other):
    """The cells of a line: seconds of each, and ratios to those of NoiseAware here."""
    pair = lambda a, digits: ", ".join(f"{x:.{digits}f}" for x in a)  # noqa: E731
    ratio = lambda unit: pair([a / b for a, b in zip(numbers["NoiseAware"], numbers[unit])], 2)  # noqa: E731
    found = [pair(numbers["NoiseAware"], 1), pair(numbers["NUTS"], 1), ratio("NUTS")]
    return found + ([pair(numbers["other"], 1), ratio("other")] if has_other else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--of", help="another checkout, whose NoiseAware is measured, too")
    parser.add_argument("--out", type=Path, default=Path("responses.json"), help="keeps what was measured")
    parser.add_argument("--coverage", type=int, help="data sets a family, whose coverage is measured instead")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(*args.worker)
    if args.coverage:
        print("| responses | 90 % intervals cover | squared error in posterior variances |\n|---|---|---|", flush=True)
        for family in args.families:
            print(coverage(family, args.coverage), flush=True)
        return None
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    runs = {"NoiseAware": ("NoiseAware", ROOT), "NUTS": ("NUTS", ROOT)}
    if args.of:
        runs["other"] = ("NoiseAware", Path(args.of).resolve())
    title = (
        "| responses | NoiseAware: first, second | NUTS | ratio: first, second |"
        + " other checkout | ratio |" * bool(args.of)
    )
    print(f"{title}\n{'|---' * (title.count('|') - 1)}|", flush=True)
    for family in args.families:
        numbers = found.setdefault(family, {})
        for name, (method, checkout) in runs.items():
            if name not in numbers:
                numbers[name] = measured(family, method, checkout)
                args.out.write_text(json.dumps(found, indent=1) + "\n")
        print("|", " | ".join([family, *cells(numbers, bool(args.of))]), "|", flush=True)


if __name__ == "__main__":
    main()
