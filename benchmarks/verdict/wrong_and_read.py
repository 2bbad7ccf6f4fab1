"""Is a posterior that is far off ever called readable? Hard data sets, for MCMC, SVI and NoiseAware, by the calls of a user.

python benchmarks/verdict/wrong_and_read.py --problems masked covariate_0 --rows 400 4000 --keys 2
python benchmarks/verdict/wrong_and_read.py --problems odd --rows 400 4000    # benchmarks/verdict/hard_models.py
python benchmarks/verdict/wrong_and_read.py --summary

A line: the largest distance of a posterior mean from the reference, in posterior sds, among the elements that the verdict calls
readable ("read", "read the mean only", "arrived", "prior"), and the verdicts. The reference is the truth that the data were drawn
from, or the posterior without privacy (NUTS) where no truth is identified. A distance above 5 fails.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers, infer

import dpppl
from benchmarks.verdict.hard_models import ODD
from examples import data

LIMIT, DELTA = 5.0, 1e-5
SHARES = (0.0, 0.5, 0.9, 0.99)
METHODS = ("MCMC", "SVI", "NoiseAware")
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


def masked(y, ok):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def treated(t, y):
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(effect * t, 1.0), obs=y)


def exposed(x, exposure, y):
    level, slope = numpyro.sample("level", dist.Normal(0.0, 1.0)), numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(level + slope * x)), obs=y)


def categories(x, y):
    levels = numpyro.sample("levels", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        logits = jnp.concatenate([jnp.zeros((x.shape[0], 1)), levels + slopes * x[:, None]], axis=1)
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def line(x, y):
    a, b = numpyro.sample("a", dist.Normal(0.0, 1.0)), numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def logistic(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def linear(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, 1.0), obs=y)


def ordered(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(
        dist.Normal(0.0, 2.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()))  # fmt: skip
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ slopes, cuts), obs=y)


def simplex(y):
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Categorical(probs=shares), obs=y)


def groups(g, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 20):
        effects = numpyro.sample("effects", dist.Normal(0.0, scale))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(effects[g], 1.0), obs=y)


def mixture(y):
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    place = numpyro.sample("place", dist.Normal(3.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        both = dist.MixtureSameFamily(
            dist.Categorical(probs=jnp.stack([1.0 - share, share])), dist.Normal(jnp.stack([0.0, place]), 1.0)
        )
        numpyro.sample("y", both, obs=y)


def silent(kind, share, rng, n):
    """Rows of which about this share says nothing."""
    ok, x = rng.random(n) >= share, rng.standard_normal(n)
    if kind == "masked":
        return masked, (1.0 + rng.standard_normal(n), ok), {"mu": 1.0}
    if kind == "covariate_0":
        return treated, (np.where(ok, 1.0, 0.0), 0.8 * ok + rng.standard_normal(n)), {"effect": 0.8}
    if kind == "exposure":
        exposure = np.where(ok, rng.gamma(2.0, 1.0, n), 0.0)
        return exposed, (x, exposure, rng.poisson(exposure * np.exp(0.5 - 0.4 * x))), {"level": 0.5, "slope": -0.4}
    levels = np.log(np.array([0.7, 0.3]) * max(1.0 - share, 0.3 * (share == 0.0)) / max(share, 0.3))
    logits = np.stack([np.zeros(n), levels[0] + 0.5 * x, levels[1] - 0.5 * x], axis=1)
    y = np.argmax(logits + rng.gumbel(size=(n, 3)), axis=1)
    return categories, (x, y), {"levels": levels, "slopes": np.array([0.5, -0.5])}


def columns(kind, rng, n):
    """Regressions with columns as they come."""
    z = rng.standard_normal(n)
    if kind in ("age", "income", "year", "grams"):
        x = {"age": rng.uniform(20, 90, n), "income": np.exp(10.0 + z), "year": rng.integers(1950, 2021, n) * 1.0,
             "grams": 3_400.0 + 500.0 * z}[kind]  # fmt: skip
        truth = {"a": 1.0, "b": {"age": 0.05, "income": 3e-5, "year": 5e-4, "grams": 1e-3}[kind]}
        return line, (x, truth["a"] + truth["b"] * x + rng.standard_normal(n)), truth
    dummies = [(rng.random(n) < p).astype(float) for p in (0.3, 0.05, 0.01)]
    x, weights = {
        "dummies": (np.stack([np.ones(n), *dummies], 1), np.array([-0.5, 0.8, -0.8, 1.0])),
        "constant": (np.stack([np.ones(n), np.ones(n), z], 1), None),
        "duplicated": (np.stack([np.ones(n), z, z], 1), None),
        "cauchy": (np.stack([np.ones(n), np.clip(rng.standard_cauchy(n), -50, 50)], 1), np.array([0.3, 0.2])),
        "events": (np.stack([np.ones(n), z], 1), None),  # the prior excludes the truth, so NUTS is the reference
    }[kind.removesuffix("_linear")]
    unnamed = np.array([-4.7, 0.5] if kind == "events" else [0.2, 0.3, 0.5])
    own = unnamed if weights is None else weights
    if kind.endswith("_linear"):
        y, model = x @ own + rng.standard_normal(n), linear
    else:
        y, model = (rng.random(n) < 1 / (1 + np.exp(-x @ own))).astype(float), logistic
    return model, (x, y), None if weights is None else {"weights": own}


def latents(kind, rng, n):
    """Latents that the data bound on one side only, or hardly."""
    if kind.startswith("ordered"):
        x, cuts = (
            rng.standard_normal((n, 3)),
            np.array([-0.5, 0.0, 30.0] if kind == "ordered_empty" else [-3.5, -3.4, 2.0]),
        )
        y = np.sum((x @ [0.5, -0.3, 0.2] + rng.logistic(size=n))[:, None] > cuts, axis=1)
        return ordered, (x, y), None
    if kind.startswith("simplex"):
        shares = [0.5, 0.3, 0.2, 0.0] if kind == "simplex_empty" else [0.5, 0.3, 0.198, 0.002]
        return simplex, (rng.choice(4, n, p=shares),), None
    if kind.startswith("groups"):
        spread = 0.0 if kind == "groups_equal" else 0.3
        g = rng.integers(0, 20, n)
        return groups, (g, spread * rng.standard_normal(20)[g] + rng.standard_normal(n)), None
    rare = 0.0 if kind == "mixture_empty" else 0.01
    return mixture, (np.where(rng.random(n) < rare, 3.0, 0.0) + rng.standard_normal(n),), None


def skewed(rng, n, is_simulated=False):
    """Adult's numbers, standardised: few people have capital gains or losses. The response is the income, or made by the model."""
    rows = data._rows(data.data_folder() / "adult-train.csv")
    table = np.array([[float(row[name]) for name in NUMBERS] for row in rows])
    table[:, 3:5] = np.log1p(table[:, 3:5])
    x, y = (table - table.mean(0)) / table.std(0), np.array([row["income"] == ">50K" for row in rows], float)
    kept = rng.permutation(len(y))[:n]
    x, y = np.concatenate([np.ones((len(kept), 1)), x[kept]], 1), y[kept]
    if is_simulated:
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ np.array([-1.4, 0.6, 0.05, 0.9, 0.5, 0.25, 0.6])))).astype(float)
    return logistic, (x, y), None


def flipped(share, rng, n):
    x = np.concatenate([np.ones((n, 1)), rng.standard_normal((n, 3))], 1)
    y = rng.random(n) < 1 / (1 + np.exp(-x @ np.array([0.5, 1.5, -1.0, 0.5])))
    return logistic, (x, np.where(rng.random(n) < share, ~y, y).astype(float)), None


PROBLEMS = {f"{kind}_{share:g}": (lambda rng, n, kind=kind, share=share: silent(kind, share, rng, n))
            for kind in ("masked", "covariate_0", "exposure", "category") for share in SHARES}  # fmt: skip
PROBLEMS |= {kind: (lambda rng, n, kind=kind: columns(kind, rng, n))
             for kind in ("age", "income", "year", "grams", "dummies", "constant", "duplicated", "cauchy", "events",
                          "dummies_linear", "constant_linear", "duplicated_linear", "cauchy_linear")}  # fmt: skip
PROBLEMS |= {kind: (lambda rng, n, kind=kind: latents(kind, rng, n))
             for kind in ("ordered_empty", "ordered_rare", "simplex_empty", "simplex_rare", "groups_equal", "groups",
                          "mixture_empty", "mixture_rare")}  # fmt: skip
PROBLEMS |= {"skewed": skewed, "skewed_simulated": lambda rng, n: skewed(rng, n, True)} | {
    f"flipped_{s:g}": (lambda rng, n, s=s: flipped(s, rng, n)) for s in (0.01, 0.05)
}

PROBLEMS |= ODD


def without_privacy(model, args):
    """Posterior means of NUTS by latent, of the rows without missing values."""
    complete = np.all([np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in args], axis=0)
    args = [x[complete] for x in args]
    mcmc = infer.MCMC(infer.NUTS(model), num_warmup=500, num_samples=1_000, progress_bar=False)
    mcmc.run(jax.random.key(0), *args)
    sites = mcmc.last_state.z
    return {site: np.asarray(x, np.float64).mean(0) for site, x in mcmc.get_samples().items() if site in sites}


def by_mcmc(model, args, epsilon):
    mcmc = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=1_000, num_samples=1_000, target_epsilon=epsilon,
                      target_delta=DELTA, progress_bar=False, print_cost=False)  # fmt: skip
    mcmc.run(dpppl.secret_key(), *args)
    return mcmc.get_samples(), mcmc.verdict.by_site


def by_svi(model, args, epsilon):
    svi = dpppl.SVI(
        model, infer.autoguide.AutoNormal(model), target_epsilon=epsilon, target_delta=DELTA, print_cost=False
    )
    result = svi.run(dpppl.secret_key(), None, *args, progress_bar=False)
    samples = result.sample_posterior(jax.random.key(0), 1_000)
    verdict = result.verdict
    word = "do not read" if verdict.refusals else verdict.verdict
    return samples, dict.fromkeys(samples, np.asarray(word, dtype=object))


def by_noise_aware(model, args, epsilon):
    private = dpppl.NoiseAware(model, target_epsilon=epsilon, target_delta=DELTA, print_cost=False, progress_bar=False)
    private.run(dpppl.secret_key(), *args)
    samples, verdict = private.get_samples(allow_unconverged=True), private.verdict
    unlearned = {site for site, words in verdict.by_site.items() if np.all(words == "prior")}
    word = verdict.line().split(":")[0]
    return samples, {
        site: np.asarray("prior" if site in unlearned and word == "read" else word, dtype=object) for site in samples
    }


def judged(samples, words, reference, prior):
    """The largest distance among readable elements in sds, how many of them are the prior but not called so, and all words."""
    worst, said, unsaid = 0.0, {}, 0
    for site, middle in reference.items():
        drawn = np.asarray(samples[site], np.float64)
        distance = np.abs(drawn.mean(0) - middle) / np.maximum(drawn.std(0), 1e-12)
        word = np.broadcast_to(words[site], np.shape(distance))
        readable = np.any(
            [np.char.startswith(word.astype(str), first) for first in ("read", "arrived", "prior")], axis=0
        )
        readable &= ~np.char.startswith(word.astype(str), "read with care")
        worst = max(worst, float(np.max(np.where(readable, distance, 0.0))))
        expected = np.asarray(prior[site], np.float64)
        alike = np.abs(drawn.mean(0) - expected.mean(0)) < 0.25 * expected.std(0)
        alike &= np.abs(np.log(np.maximum(drawn.std(0), 1e-12) / expected.std(0))) < 0.1
        unsaid += int(np.sum(alike & readable & ~np.char.startswith(word.astype(str), "prior")))
        for one in np.ravel(word):
            said[str(one)] = said.get(str(one), 0) + 1
    return {"worst": round(worst, 2), "unsaid": unsaid, "said": said}


def cell(problem, n, epsilon, keys, methods):
    """A line of results for each of these keys and methods."""
    for key in keys:
        model, args, truth = PROBLEMS[problem](np.random.default_rng(1_000 + key), n)
        args = tuple(np.asarray(x, np.float32) if np.asarray(x).dtype == np.float64 else np.asarray(x) for x in args)
        reference = without_privacy(model, args) if truth is None else truth
        prior = infer.Predictive(handlers.block(model, hide=["y"]), num_samples=4_000)(jax.random.key(1), *args)
        for method in methods:
            start = time.process_time()
            run = {"MCMC": by_mcmc, "SVI": by_svi, "NoiseAware": by_noise_aware}[method]
            found = {"problem": problem, "n": n, "epsilon": epsilon, "key": key, "method": method}
            try:
                found |= judged(*run(model, args, epsilon), reference, prior)
            except dpppl.errors.DPPPLError as error:
                found |= {"worst": 0.0, "unsaid": 0, "said": {f"refused: {error}"[:100]: 1}}
            yield found | {"seconds": round(time.process_time() - start, 1)}


def summary(path):
    found = [json.loads(row) for row in path.read_text().splitlines()]
    wrong = [row for row in found if row["worst"] > LIMIT or row["unsaid"]]
    print(
        f"{len(found)} runs, {len(wrong)} with a readable element more than {LIMIT:g} sd off, or with a prior called readable"
    )
    for row in wrong:
        print("  ", json.dumps(row))
    for method in METHODS:
        said = {}
        for row in found:
            if row["method"] == method:
                first = max(row["said"], key=row["said"].get)
                said[first] = said.get(first, 0) + 1
        print(method, dict(sorted(said.items(), key=lambda item: -item[1])[:8]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=[*PROBLEMS, "odd"])
    parser.add_argument("--rows", type=int, nargs="+", default=[400, 4_000, 40_000])
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--keys", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first key, for data sets that no earlier run had")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--out", type=Path, default=Path("wrong_and_read.jsonl"))
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.summary:
        return summary(options.out)
    if options.one:
        keys = range(options.first, options.first + options.keys)
        for found in cell(options.problems[0], options.rows[0], options.epsilon, keys, options.methods):
            print(json.dumps(found), flush=True)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
        return None
    for problem in ODD if options.problems == ["odd"] else options.problems:
        for n in options.rows:  # a process each: a process holds only so many programs
            command = [sys.executable, __file__, "--one", "--problems", problem, "--rows", str(n), "--epsilon",
                       str(options.epsilon), "--keys", str(options.keys), "--first", str(options.first),
                       "--out", str(options.out), "--methods"]  # fmt: skip
            subprocess.run([*command, *options.methods], check=False)
    return summary(options.out)


if __name__ == "__main__":
    main()
