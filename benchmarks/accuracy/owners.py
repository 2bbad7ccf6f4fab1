"""Several owners publish likelihoods at epsilon 1 each; is their product the posterior of all rows? And do changed priors agree with runs of
their own?

python benchmarks/accuracy/owners.py --data randhie men-1988 doctors-1977 --keys 3        # cells that the results file has are kept
python benchmarks/accuracy/owners.py --priors --data randhie doctors-1977                 # five changed priors, beside runs of their own
python benchmarks/accuracy/owners.py --effects --data randhie --owners 5 --cuts column    # random effects, beside NUTS on all rows
python benchmarks/accuracy/owners.py --table

A cell is a data set, a cut and a number of owners. Rows are cut at random, or sorted by the column of the largest spread, so that owners differ;
owners have equally many, and what is left over is dropped for all. In units of NUTS on all rows: `mass`, its share in pooled 90 % intervals;
`rms`, the offset of pooled means; `width`, the median ratio of sds. Informations of owners add up, so a pool is as much wider than NUTS on all
rows as one owner is than NUTS on its own rows: `theory` is the width that `dpppl.accounting.plan` forecasts for one owner.
"""

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer import MCMC, NUTS

import dpppl
from benchmarks.accuracy import real_data, unseen_sets
from benchmarks.accuracy.oracle import planned
from benchmarks.lib.oracle import flat
from benchmarks.lib.results import FOLDER, in_page, written
from dpppl.published.records import wrong

DELTA, COUNTS = 1e-5, (1, 3, 5, 10)


def problem(name):
    if name.startswith("randhie"):
        found = real_data.problem(name)
        return found.model, found.args("public")
    return unseen_sets.problem(name)[:2]


def prior_of(model, args):
    """The model without its observed sites, of one row."""
    is_observed = lambda site: site["type"] == "sample" and site["is_observed"]  # noqa: E731
    one = [a[:1] for a in args]
    return lambda: handlers.block(model, hide_fn=is_observed)(*one)


def shares(args, count, cut):
    """The owners' arguments, equally many rows each."""
    rows, x = len(args[0]), np.asarray(args[0])
    order = np.random.default_rng(0).permutation(rows)
    if cut == "column":
        order = order[np.argsort(x[order, np.argmax(x.std(axis=0))], kind="stable")]
    return [[np.asarray(a)[part] for a in args] for part in order[: rows // count * count].reshape(count, -1)]


def published(model, args, name, key=None):
    with warnings.catch_warnings(action="ignore"):
        run = dpppl.NoiseAware(model, target_epsilon=1.0, target_delta=DELTA, print_cost=False, progress_bar=False)
        run.run(dpppl.secret_key(), *args)
        return run, run.likelihood(name, allow_unconverged=True)


def measured(name, model, args, cut, count, keys, draws):
    centre, spread = draws.mean(axis=0), draws.std(axis=0)
    theory = planned(
        len(args[0]) // count, len(centre), 1.0, PRIOR_SD.get(name, 3.0), count * float(np.median(spread**2))
    )
    path, cell = FOLDER / "owners.json", f"{name}, {cut}, {count}"
    found = json.loads(path.read_text()).get(cell, {}) if path.exists() else {}
    for key in range(len(found.get("mass", ())), keys):
        start = time.time()
        owners = [owner_of(name, cut, count, key, i, model, part) for i, part in enumerate(shares(args, count, cut))]
        pooled = dpppl.pool(owners)
        samples = pooled.sample(jax.random.key(key), prior_of(model, args))
        drawn = flat({site: samples[site] for site in draws_sites(name)})[0]
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        numbers = {
            "mass": np.mean((low <= draws) & (draws <= high)), "rms": np.sqrt(np.mean(((drawn.mean(axis=0) - centre) / spread) ** 2)),
            "width": np.median(drawn.std(axis=0) / spread), "refused": sum(o.owners[0].facts.is_refused for o in owners), "arrival": np.mean([o.owners[0].mixture.arrival for o in owners]),
            "told": max((LEVELS.index(level) for level, _ in wrong(pooled.owners)), default=0),
        }  # fmt: skip
        found = {which: [*found.get(which, ()), round(float(value), 3)] for which, value in numbers.items()}
        written("owners", cell, found | {"theory": theory and round(float(theory), 3)})
        print(f"  {name}, {cut}, {count}: {numbers}, {time.time() - start:.0f} s", flush=True)


def owner_of(name, cut, count, key, number, model, part):
    """The likelihood of one owner; its file is kept, so that another rule of pooling takes the same runs."""
    path = Path(f"build/owners/{name}-{cut}-{count}-{key}-{number}.likelihood")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        published(model, part, f"owner {number}")[1].to_file(path)
    return dpppl.Likelihood.from_file(path)


_SITES = {}
LEVELS = "read", "Read with care", "Do not read"
"""What a pool says of a misfit that its owners share."""
PRIOR_SD = {"randhie": 5.0}


def draws_sites(name):
    return _SITES[name]


def reference(name, model, args):
    found = real_data.nuts(model, args, Path("build/nuts") / f"owners-{name}.npz")
    _SITES[name] = list(found)
    return flat(found)[0]


def effects(name, model, args, cut, count):
    """Coefficients `w` that differ between owners, all else in common: the pool, and NUTS on all rows, under one hierarchy."""
    parts, prior = shares(args, count, cut), prior_of(model, args)

    def hierarchy():
        with handlers.block(), handlers.trace() as trace, handlers.seed(rng_seed=0):
            prior()
        common = {n: numpyro.sample(n, s["fn"]) for n, s in trace.items() if s["type"] == "sample" and n != "w"}
        law = trace["w"]["fn"]
        mean = numpyro.sample("mean", law)
        spread = numpyro.sample("spread", dist.HalfNormal(0.5).expand(law.shape()).to_event(len(law.shape())))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand((count, *law.shape())).to_event(1 + len(law.shape())))
        return common | {"w": numpyro.deterministic("w", mean + spread * z)}

    def of_rows():
        values = hierarchy()
        for number, part in enumerate(parts):
            hidden = lambda site: site["type"] == "sample" and not site["is_observed"]  # noqa: E731
            own = values | {"w": values["w"][number]}
            with (
                handlers.scope(prefix=f"owner {number}"),
                handlers.block(hide_fn=hidden),
                handlers.substitute(data=own),
            ):
                model(*part)

    pooled = dpppl.pool([published(model, part, f"owner {i}")[1] for i, part in enumerate(parts)])
    found = []
    for target in (lambda: pooled.factor(hierarchy(), by_owner=True), of_rows):
        start = time.time()
        mcmc = MCMC(NUTS(target, target_accept_prob=0.9), num_warmup=300, num_samples=600, progress_bar=False)
        mcmc.run(jax.random.key(0))
        found.append({site: np.asarray(x).reshape(600, -1) for site, x in mcmc.get_samples().items()})
        print(f"  {name}, {cut}, {count}: {time.time() - start:.0f} s", flush=True)
    numbers = {}
    for site in ("mean", "spread", "w"):
        drawn, draws = (each[site] for each in found)
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        apart = (drawn.mean(axis=0) - draws.mean(axis=0)) / draws.std(axis=0)
        numbers[site] = {
            "mass": np.mean((low <= draws) & (draws <= high)), "rms": np.sqrt(np.mean(apart**2)),
            "width": np.median(drawn.std(axis=0) / draws.std(axis=0)),
        }  # fmt: skip
        numbers[site] = {which: round(float(value), 3) for which, value in numbers[site].items()}
    print(f"  {name}, {cut}, {count}: {numbers}", flush=True)
    written("owners", f"{name}, {cut}, {count}, effects", numbers)


CHANGED = {
    "the same": lambda law: law,
    "a third as wide": lambda law: dist.Normal(0.0, 1.0).expand(law.shape()).to_event(len(law.shape())),
    "a tenth as wide": lambda law: dist.Normal(0.0, 0.3).expand(law.shape()).to_event(len(law.shape())),
    "Laplace": lambda law: dist.Laplace(0.0, 0.5).expand(law.shape()).to_event(len(law.shape())),
    "Student-t": lambda law: dist.StudentT(3.0, 0.0, 1.0).expand(law.shape()).to_event(len(law.shape())),
    "around 0.5": lambda law: dist.Normal(0.5, 0.5).expand(law.shape()).to_event(len(law.shape())),
}
"""Other priors of the coefficients `w`; the first shows how far two runs with one prior are apart."""


def changed(model, change):
    """The model with another prior of w."""

    def other(*args):
        class Changed(handlers.Messenger):
            def process_message(self, message):
                if message["name"] == "w":
                    message["fn"] = change(message["fn"])

        with Changed():
            return model(*args)

    return other


def priors(name, model, args):
    _, likelihood = published(model, args, name)
    for word, change in CHANGED.items():
        other = changed(model, change)
        samples = likelihood.sample(jax.random.key(0), prior_of(other, args))
        with warnings.catch_warnings(action="ignore"):
            run = published(other, args, name)[0]
            own = run.get_samples(allow_unconverged=True)
        sites = [site for site in ("intercept", "w", "scale") if site in own and site in samples]
        a, b = (flat({site: np.asarray(x[site]) for site in sites})[0] for x in (samples, own))
        both = np.sqrt((a.std(axis=0) ** 2 + b.std(axis=0) ** 2) / 2.0)
        apart = np.sqrt(np.mean(((a.mean(axis=0) - b.mean(axis=0)) / both) ** 2))
        told = bool(likelihood.far_from_looks(samples))
        numbers = {
            "apart": round(float(apart), 3),
            "width": round(float(np.median(a.std(axis=0) / b.std(axis=0))), 3),
            "far": told,
        }
        print(f"  {name}, {word}: {numbers}", flush=True)
        written("owners", f"{name}, prior {word}", numbers)


def tables():
    """Tables of owners and of priors, put into the page."""
    found = json.loads((FOLDER / "owners.json").read_text())
    lines = [
        "| data, cut | owners | mass | rms | width | theory | runs refused | pools: read, care, do not read |",
        "|" + "---|" * 8,
    ]
    cells = [(*cell.split(", "), numbers) for cell, numbers in found.items() if "mass" in numbers]
    for name, cut, count, numbers in sorted(cells, key=lambda cell: (cell[0], cell[1], int(cell[2]))):
        mean = {which: np.mean(values) for which, values in numbers.items()}
        runs, levels = int(count) * len(numbers["mass"]), numbers.get("told", ())
        told = ", ".join(str(levels.count(level)) for level in range(3)) if levels else ""
        lines.append(
            f"| {name}, {'all rows' if count == '1' else cut} | {count} | {mean['mass']:.2f} | {mean['rms']:.2f} | {mean['width']:.2f} | "
            f"{numbers['theory'] or 'none'} | {sum(numbers['refused']):.0f} of {runs} | "
            f"{told} |"
        )
    yield in_page("owners", "\n".join(lines))
    lines = [
        "| data, prior | means apart, in sd | width / that of a run of its own | told as far from looks |",
        "|" + "---|" * 4,
    ]
    for cell, numbers in sorted((c, n) for c, n in found.items() if "apart" in n):
        told = "yes" if numbers["far"] else "no"
        lines.append(f"| {cell.replace('prior ', '')} | {numbers['apart']:.2f} | {numbers['width']:.2f} | {told} |")
    yield in_page("priors", "\n".join(lines))

    lines = ["| data, cut, owners | site | mass | rms | width |", "|" + "---|" * 5]
    for cell, numbers in sorted((c, n) for c, n in found.items() if c.endswith("effects")):
        for site, of in numbers.items():
            lines.append(
                f"| {cell.removesuffix(', effects')} | {site} | {of['mass']:.2f} | {of['rms']:.2f} | {of['width']:.2f} |"
            )
    yield in_page("effects", "\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["randhie", "men-1988", "doctors-1977"])
    parser.add_argument("--owners", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--cuts", nargs="+", default=["random", "column"])
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--priors", action="store_true")
    parser.add_argument("--effects", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(*tables(), sep="\n\n")
        return
    for name in options.data:
        model, args = problem(name)
        if options.priors:
            priors(name, model, args)
            continue
        if options.effects:
            for count in options.owners:
                for cut in options.cuts:
                    effects(name, model, args, cut, count)
            continue
        draws = reference(name, model, args)
        for count in options.owners:
            for cut in options.cuts[: 1 if count == 1 else None]:
                measured(name, model, args, cut, count, options.keys, draws)


if __name__ == "__main__":
    main()
