"""dpppl beside its peers: seconds a step, time to the first step and peak memory, on the same problems.

Ours run through the public API; without privacy there are blackjax's SGLD, NumPyro's SVI, and steps in JAX and torch; with
privacy jax-privacy and Opacus. Each peer has an environment of its own, made here in a cache folder; each measurement is
a fresh process, and the repeats go round all methods. Prints JSON lines, then tables of medians and of ratios.

python benchmarks/speed/peers.py [--problems "mlp" ...] [--repeats 3] [--growth]     (OPENBLAS_NUM_THREADS=1)
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import venv
from pathlib import Path

WORKERS = Path(__file__).resolve().parent / "peer_workers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpppl" / "peers"
PACKAGES = {
    "of_blackjax.py": ["blackjax"],
    "of_torch.py": ["torch==2.13.0", "opacus"],
    "of_jax_privacy.py": ["jax-privacy"],
}
"""By worker; `of_dpppl.py` runs where this runs."""

LOGISTIC = [
    ("of_dpppl.py", "dpppl MCMC", 4_000), ("of_blackjax.py", "blackjax SGLD", 4_000), ("of_dpppl.py", "dpppl SVI", 4_000),
    ("of_dpppl.py", "NumPyro SVI", 4_000), ("of_dpppl.py", "JAX", 4_000), ("of_torch.py", "torch", 1_000),
    ("of_torch.py", "Opacus", 200), ("of_jax_privacy.py", "jax-privacy 0", 200),
]  # fmt: skip
NETWORK = [
    ("of_dpppl.py", "dpppl SVI", 200), ("of_dpppl.py", "JAX", 100), ("of_dpppl.py", "JAX, same rules", 100),
    ("of_dpppl.py", "JAX, a call a step", 100), ("of_torch.py", "torch", 200), ("of_torch.py", "Opacus ghost", 100),
    ("of_jax_privacy.py", "jax-privacy 0", 30), ("of_jax_privacy.py", "jax-privacy 1", 30),
]  # fmt: skip
PROBLEMS = {
    "logistic 181": LOGISTIC, "logistic 1024": LOGISTIC, "logistic full": [(w, m, max(40, n // 10)) for w, m, n in LOGISTIC],
    "mlp": NETWORK, "cnn": NETWORK, "bbb": [("of_dpppl.py", "dpppl SVI", 100), ("of_dpppl.py", "NumPyro SVI", 100)],
}  # fmt: skip
GROWTH = {
    **{f"logistic 181 of 1e{k}": [("of_dpppl.py", m, 4_000) for m in ("dpppl MCMC", "JAX")] for k in (4, 5, 6, 7)},
    **{f"mlp 256 wide {h}": [("of_dpppl.py", m, 40) for m in ("dpppl SVI", "JAX")] for h in (12, 126, 1258, 12578)},
    "logistic 181": [("of_dpppl.py", "dpppl MCMC", steps) for steps in (400, 4_000, 40_000)],
}
"""In rows; in latents (1e4 to 1e7); in steps."""


def interpreter(worker):
    """The Python that has the worker's packages: made the first time."""
    if worker not in PACKAGES:
        return sys.executable
    folder = CACHE / Path(worker).stem
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", *PACKAGES[worker]], check=True)
        (folder / "installed").touch()
    return folder / "bin/python"


def measure(problem, worker, method, steps):
    """What the worker tells, or its last words where it fails."""
    command = [interpreter(worker), WORKERS / worker, method, problem, str(steps)]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    lines = run.stdout.strip().splitlines()
    found = json.loads(lines[-1]) if run.returncode == 0 else {"failed": run.stderr.strip().splitlines()[-1:]}
    found |= {"problem": problem, "method": method, "steps": steps}
    print(json.dumps(found), flush=True)
    return found


def summary(problem, found):
    """Medians of each method, and its time in units of the first one's."""
    rows = collections.defaultdict(list)
    for one in found:
        if one["problem"] == problem and "seconds" in one:
            rows[one["method"], one["steps"]].append(one)
    if not rows:
        return
    median = lambda ones, what: statistics.median(one[what] for one in ones)  # noqa: E731
    first = next(iter(rows.values()))
    print(
        f"\n{problem}\n\n| method | steps | µs a step | ratio | of processor times | first step, s | peak, MiB |"
        "\n|---|---|---|---|---|---|---|"
    )
    for (method, steps), ones in rows.items():
        ratios = [median(ones, clock) / median(first, clock) for clock in ("seconds", "processor")]
        print(
            f"| {method} | {steps:,} | {1e6 * median(ones, 'seconds'):,.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} "
            f"| {median(ones, 'compile'):.1f} | {median(ones, 'peak_mib'):,.0f} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="*", help="by default all", choices=[*PROBLEMS, *GROWTH])
    parser.add_argument("--methods", nargs="*", help="these alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--growth", action="store_true", help="how ours grows with rows, latents and steps, instead")
    args = parser.parse_args()
    table = GROWTH if args.growth else PROBLEMS
    chosen = {name: table[name] for name in args.problems or table}
    found = []
    for _ in range(args.repeats):
        for problem, methods in chosen.items():
            for worker, method, steps in methods:
                if not args.methods or method in args.methods:
                    found.append(measure(problem, worker, method, steps))
    for problem in chosen:
        summary(problem, found)


if __name__ == "__main__":
    main()
