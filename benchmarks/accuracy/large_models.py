"""Private heads on CIFAR-10 against the same heads without privacy: accuracy, NLL, ECE and interval mass; means of three runs.

    python examples/cifar10_features.py --data DATA
    python benchmarks/accuracy/large_models.py --data DATA

Runs that docs/results/cifar10.json holds are kept; --output with an empty folder makes all of them anew. "less": accuracy without
privacy (NUTS) minus accuracy. "mass": the posterior mass without privacy in private 90 % intervals, mean over 200 random weights.
"sd": the median ratio of private sd to NUTS's.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples import cifar10
from examples.results import FOLDER, SECONDS, load

SHOWN = ("accuracy", "NLL", "ECE", "mass", "sd", "epistemic share", SECONDS)


def mean(row, score):
    """Of the runs that have this score; NaN where none has."""
    return np.mean([run[score] for run in row["runs"] if run.get(score) is not None] or [np.nan])


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    cifar10.main(arguments)
    folder = Path(arguments[arguments.index("--output") + 1]) if "--output" in arguments else FOLDER
    rows = load(folder / "cifar10.json")
    print(f"| row | runs | less | {' | '.join(SHOWN)} |\n{'|---' * (len(SHOWN) + 3)}|")
    for name, row in rows.items():
        exact = f"nuts-{row['settings']['directions']}-not-private"
        less = mean(rows[exact], "accuracy") - mean(row, "accuracy") if exact in rows else np.nan
        cells = " | ".join(f"{mean(row, score):.4f}" for score in SHOWN)
        print(f"| {name} | {len(row['runs'])} | {less:.4f} | {cells} |")


if __name__ == "__main__":
    main()
