"""Ten models of public threads, by NoiseAware, a chain and SVI with their defaults, compared with NUTS without privacy.

python benchmarks/calibration/threads.py                  # runs what docs/results/threads.json lacks
python benchmarks/calibration/threads.py --only hurdle "zero sum" --methods SVI    # runs these anew
python benchmarks/calibration/threads.py --write          # the table of docs/appendix/inputs.md

3,000 rows, epsilon 3, delta 1e-6, one run each with a fixed key: DPSGHMC with 125 + 875 steps in a frame, AutoMultivariateNormal with 600.
A line a run: of all latents the largest distance of means, over NUTS's sd and over the run's own; the median, smallest and largest of its
sds over NUTS's; its verdict; and its processor time with compilation. A horseshoe is compared by its weights.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np
from numpyro.infer.autoguide import AutoMultivariateNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from benchmarks.lib.results import FOLDER, in_page, written
from benchmarks.lib.threads import by_nuts, compared, made, off

METHODS = "NoiseAware", "DPSGHMC", "SVI"
BUDGET = {"target_epsilon": 3.0, "target_delta": 1e-6, "print_cost": False}


def private(method, model, given, key):
    """Samples by site and the verdict of one run."""
    if method == "SVI":
        result = dpppl.SVI(model, AutoMultivariateNormal(model), **BUDGET).run(key, 600, *given, progress_bar=False)
        return result.sample_posterior(jax.random.key(0), 1_000), result.verdict
    if method == "NoiseAware":
        run = dpppl.NoiseAware(model, progress_bar=False, **BUDGET)
    else:
        run = dpppl.MCMC(dpppl.DPSGHMC(model), num_warmup=125, num_samples=875, progress_bar=False, **BUDGET)
    run.run(key, *given)
    return run.get_samples(allow_unconverged=True), run.verdict


def line(name, method, seed):
    """The numbers of one run."""
    model, given = made()[name]
    right, start = by_nuts(name), time.process_time()
    samples, verdict = private(method, model, given, jax.random.key(seed))
    seconds = time.process_time() - start
    sites = off(compared(samples), right)
    far, own, widths = (np.concatenate(parts) for parts in zip(*sites.values()))
    where = [site for site, parts in sites.items() for _ in parts[0]]
    return {
        "far": float(far.max()), "far, own sds": float(own.max()), "farthest": where[int(far.argmax())],
        "width": float(np.median(widths)), "narrowest": float(widths.min()), "widest": float(widths.max()),
        "verdict": verdict.line().split(":")[0], "line": verdict.line(), "seconds": seconds,
    }  # fmt: skip


def table(kept):
    head = "| thread | method | farthest mean, NUTS sds | own sds | sd / NUTS's, median | least, most | verdict | seconds |\n|---|---|---|---|---|---|---|---|"
    lines = [
        f"| {name} | {method} | {run['far']:.2f} ({run['farthest']}) | {run['far, own sds']:.2f} | {run['width']:.2f} | "
        f"{run['narrowest']:.2f}, {run['widest']:.2f} | {run['verdict']} | {run['seconds']:.0f} |"
        for name in made() for method in METHODS if (run := kept.get(f"{name}, {method}"))
    ]  # fmt: skip
    return "\n".join([head, *lines])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="threads, by name; all by default")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--write", action="store_true", help="run nothing; put the table into the page")
    options = parser.parse_args()
    path = FOLDER / "threads.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    for place, name in enumerate([] if options.write else made()):
        for method in options.methods:
            if name in (options.only or [name]) and (options.only or f"{name}, {method}" not in kept):
                kept[f"{name}, {method}"] = found = line(name, method, 20 + 3 * place + METHODS.index(method))
                written("threads", f"{name}, {method}", found)
                print(name, method, found, flush=True)
    print(
        table(kept) if not options.write else in_page("threads", table(kept), FOLDER.parent / "appendix" / "inputs.md")
    )


if __name__ == "__main__":
    main()
