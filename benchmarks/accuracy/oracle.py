"""How far are private means from those without privacy, compared with an oracle that spends the whole budget on one gradient?

python benchmarks/accuracy/oracle.py --quick --cells simulated-1000 fair    # two runs a cell, kept nowhere
python benchmarks/accuracy/oracle.py    # all groups but "plan" and "largest"; cells that docs/results/oracle.json has are not run again
python benchmarks/accuracy/oracle.py --cells plan --epsilons .5 1 3
python benchmarks/accuracy/oracle.py --table    # the table of docs/appendix/unseen-data.md, from the file

`oracle` (benchmarks/lib/oracle.py) is what its noise adds to the squared width. `error` is the mean over runs of the squared distance of
NoiseAware's mean from the posterior mean without privacy, by coordinate, in that posterior's metric; `over` is error / oracle. `mass` is
the share of the posterior without privacy in private 90 % intervals, `width` the median ratio of sds, `widest` that of the widest latent.
`plan` is the width that `dpppl.accounting.plan` forecasts for rows as informative as the posterior's median latent has them.

Simulated: x standard normal; `simulated-N` has d = 5 with an intercept and coefficients N(0, 1); `cliff-N-d`, `linear-N-d`,
`poisson-N-d`, `nb-N-d` have coefficients N(0, s^2 / d), s = 1.5, 1.5, .5, .5; the prior is N(0, 1). Real columns are divided by public
maxima, prior N(0, 2^2). `heavy` has a log-normal column that the model takes linearly, where the response follows its logarithm.
"""

import argparse
import functools
import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import dpppl
from benchmarks.accuracy import real_data
from benchmarks.lib.oracle import Reference, flat
from benchmarks.lib.results import FOLDER, in_page, written

DELTA = 1e-6
CLIFF = ["cliff-10000-8", "cliff-10000-12", "cliff-10000-18", "cliff-10000-25", "cliff-50000-25"]
WIDE = ["cliff-20000-50", "cliff-50000-100"]
GROUPS = {
    "simulated": [f"simulated-{n}" for n in (500, 1_000, 2_000, 5_000, 20_000)],
    "real": ["fair", "randhie", "digits", "heavy"],
    "laws": ["linear-5000-5", "poisson-5000-5", "nb-5000-5"],
    "cliff": [*CLIFF, "linear-10000-25", "poisson-10000-25"],
    "wide": WIDE,
    "plan": [
        f"{kind}-{n}-{d}"
        for n, d in ((200, 3), (1_000, 3), (1_000, 8), (5_000, 12), (20_000, 25))
        for kind in ("cliff", "linear")
    ],
    "largest": ["cliff-200000-200"],
}
CELLS = [cell for group in GROUPS.values() for cell in group]


@functools.cache
def model_of(kind, sd):
    """A regression on x with the prior N(0, sd^2) of its coefficients."""

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, sd).expand([x.shape[1]]).to_event(1))
        if kind == "linear":
            scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        elif kind == "nb":
            shape = numpyro.sample("shape", dist.LogNormal(1.0, 0.5))
        with numpyro.plate("data", x.shape[0]):
            eta = x @ w
            law = {
                "logistic": lambda: dist.Bernoulli(logits=eta),
                "linear": lambda: dist.Normal(eta, scale),
                "poisson": lambda: dist.Poisson(jnp.exp(eta)),
                "nb": lambda: dist.NegativeBinomial2(jnp.exp(eta), shape),
            }[kind]()
            numpyro.sample("y", law, obs=y)

    return model


def problem(cell, seed):
    """(model, x, y, sd of the prior) of a cell's data set."""
    if cell in ("fair", "randhie", "digits"):
        x, y = real_data.problem(cell).args("public")
        return model_of("logistic", 2.0), x, y, 2.0
    if cell == "heavy":
        return model_of("logistic", 5.0), *heavy(), 5.0
    kind, num_rows, d, *_ = [*cell.split("-"), 5]
    num_rows, d, rng = int(num_rows), int(d), np.random.default_rng(seed)
    x = rng.standard_normal((num_rows, d))
    size = {"simulated": 1.0, "cliff": 1.5 / np.sqrt(d), "linear": 1.5 / np.sqrt(d)}.get(kind, 0.5 / np.sqrt(d))
    w = size * rng.standard_normal(d)
    if kind == "simulated":
        x[:, 0] = 1.0
    eta = x @ w
    kind = "logistic" if kind in ("simulated", "cliff") else kind
    y = {
        "logistic": lambda: rng.random(num_rows) < 1.0 / (1.0 + np.exp(-eta)),
        "linear": lambda: eta + rng.standard_normal(num_rows),
        "poisson": lambda: rng.poisson(np.exp(eta)),
        "nb": lambda: rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(eta))),
    }[kind]()
    whole = kind in ("poisson", "nb")
    return model_of(kind, 1.0), x.astype(np.float32), y.astype(np.int32 if whole else np.float32), 1.0


def heavy(num_rows=8_000):
    """Columns and responses of a logistic model that is wrong in its tail."""
    g = np.random.default_rng(7)
    k = np.exp(0.8 * g.standard_normal(num_rows))
    uniform, flag = g.uniform(0.5, 1.0, num_rows), g.random(num_rows) < 0.5
    other = k**0.6 * np.exp(0.5 * g.standard_normal(num_rows))
    x = np.stack([np.ones(num_rows), uniform, flag, k / 20.0, other / 20.0], axis=1)
    y = g.random(num_rows) < 1.0 / (1.0 + np.exp(4.0 - 4.0 * x[:, 1] - 0.3 * x[:, 2] - np.log(k)))
    return x.astype(np.float32), y.astype(np.float32)


def private(model, args, epsilon):
    """Samples by site of one run, the first word of its verdict, its line, and seconds of processor."""
    start = time.process_time()
    runner = dpppl.NoiseAware(model, target_epsilon=epsilon, target_delta=DELTA, print_cost=False, progress_bar=False)
    runner.run(dpppl.secret_key(), *args)
    line, samples = runner.verdict.line(), runner.get_samples(allow_unconverged=True)
    return samples, word(line), line, time.process_time() - start


def word(line):
    """read, care or refused, of a verdict's line."""
    return "read" if line.startswith("read:") else "care" if line.startswith("read with care") else "refused"


def planned(num_rows, d, epsilon, sd, variance):
    """The width that `plan` forecasts for a run of NoiseAware; `variance` is that of the posterior's median latent."""
    curvature = max(1.0 / variance - 1.0 / sd**2, 0.01 / variance) / num_rows
    found = dpppl.accounting.plan(
        num_data=num_rows,
        num_latents=d,
        target_epsilon=epsilon,
        target_delta=DELTA,
        prior_sd=sd,
        row_curvature=curvature,
    )
    widths = [option.interval for option in found.options if option.method == "NoiseAware"]
    return widths[0] / found.interval_without_privacy if widths else None


def sizes(cell, quick):
    """Data sets of a cell, and runs of each."""
    if quick:
        return (1, 2) if cell in GROUPS["real"] else (2, 1)
    dimension = int(cell.split("-")[2]) if cell.startswith("cliff") else 0
    if cell in GROUPS["real"]:
        return 1, 10
    return (5, 4) if not dimension else (1, 2) if cell in GROUPS["largest"] else (2, 2) if dimension >= 50 else (3, 2)


def measured(cell, epsilons, quick):
    """A cell's numbers, by epsilon."""
    runs, oracles, plans = {e: [] for e in epsilons}, {e: [] for e in epsilons}, {e: [] for e in epsilons}
    num_sets, num_runs = sizes(cell, quick)
    for seed in range(num_sets):
        model, x, y, sd = problem(cell, seed)
        start = time.process_time()
        reference = Reference.of(model, (x, y), pairs=2_048 if x.size < 2e6 else 512)
        variance = float(np.median(np.diag(reference.covariance())))
        spent = time.process_time() - start
        print(f"  {cell}, {seed}: reference in {spent:.0f} s, {reference.effective:.0%} of draws count", flush=True)
        for epsilon in epsilons:
            oracles[epsilon].append(reference.oracle(epsilon, DELTA))
            plans[epsilon].append(planned(len(x), len(reference.names), epsilon, sd, variance))
            for _ in range(num_runs):
                samples, verdict, line, seconds = private(model, (x, y), epsilon)
                drawn, names = flat({site: samples[site] for site in {name.split("[")[0] for name in reference.names}})
                assert names == reference.names
                error, _, width, mass = reference.compared(drawn)
                runs[epsilon].append((error, mass.mean(), width, verdict, seconds))
                said = f"error {error:.3f}, mass {mass.mean():.2f}, width {np.median(width):.2f}, {seconds:.0f} s"
                print(f"    epsilon {epsilon:g}: oracle {oracles[epsilon][-1]:.3f}, {said}; {line[:120]}", flush=True)
    jax.clear_caches()
    return {e: summary(len(x), oracles[e], plans[e], runs[e]) for e in epsilons}


def summary(num_rows, oracles, plans, runs):
    errors, masses, widths, verdicts, seconds = zip(*runs)
    forecast = None if None in plans else float(np.median(plans))
    found = {
        "rows": num_rows, "latents": len(widths[0]), "runs": len(runs), "oracle": np.mean(oracles), "error": np.mean(errors),
        "median": np.median(errors), "over": np.mean(errors) / np.mean(oracles), "mass": np.mean(masses),
        "width": np.median(widths), "widest": np.max(np.median(widths, axis=0)), "plan": forecast,
        "read": verdicts.count("read"), "care": verdicts.count("care"), "refused": verdicts.count("refused"),
        "first_seconds": seconds[0], "seconds": np.median(seconds[1:]) if len(seconds) > 1 else None,
    }  # fmt: skip
    return {name: x if x is None else round(float(x), 4) for name, x in found.items()}


def table(found):
    """A line a data set, in the order of CELLS, with its budgets side by side."""
    columns = sorted({key.split("@")[1] for key in found}, key=float)
    titles = [f"epsilon {epsilon}" for epsilon in columns]
    lines = [f"| data | rows, latents | {' | '.join(titles)} |", "|" + "---|" * (2 + len(columns))]
    for cell in sorted({key.split("@")[0] for key in found}, key=_place):
        own = {epsilon: found.get(f"{cell}@{epsilon}") for epsilon in columns}
        of = next(filter(None, own.values()))
        words = [cell, f"{of['rows']:,.0f}, {of['latents']:.0f}"]
        for of in own.values():
            plan = "" if of is None or of["plan"] is None else f" ({of['plan']:.2f})"
            words.append(
                ""
                if of is None
                else f"{of['over']:.1f}, {of['mass']:.2f}, {of['width']:.2f}{plan}, {of['read']:.0f}/{of['care']:.0f}/{of['refused']:.0f}"
            )
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines)


def _place(cell):
    return CELLS.index(cell) if cell in CELLS else len(CELLS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = [name for name in GROUPS if name not in ("plan", "largest")]
    parser.add_argument("--cells", nargs="+", default=default, help=f"by name, or of a group: {', '.join(GROUPS)}")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--quick", action="store_true", help="two runs a cell, which no file keeps")
    parser.add_argument("--again", action="store_true", help="measure cells that the file has, too")
    parser.add_argument("--table", action="store_true", help="write the table of the page from the file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    path = FOLDER / "oracle.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    if options.table:
        return print(in_page("oracle", table(kept)))
    new = {}
    for cell in [cell for name in options.cells for cell in GROUPS.get(name, [name])]:
        wanted = [e for e in options.epsilons if options.quick or options.again or f"{cell}@{e:g}" not in kept]
        for epsilon, numbers in (measured(cell, wanted, options.quick) if wanted else {}).items():
            new[f"{cell}@{epsilon:g}"] = numbers
            if not options.quick:
                written("oracle", f"{cell}@{epsilon:g}", numbers)
    print(table(new))


if __name__ == "__main__":
    main()
