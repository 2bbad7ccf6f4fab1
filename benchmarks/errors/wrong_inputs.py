"""Wrong inputs of the whole public API: is the error ours, does it name the cause, and does its cure run?

`python benchmarks/errors/wrong_inputs.py` runs all and prints a table (docs/appendix/inputs.md): by area raw errors, wrong causes, cures that
fail. An entry is (name, wrong call, words of the cause, cure). "Raw" is an exception that is not one of dpppl's, or no exception at all.
"Wrong cause" is a message without one of the words, or with one that blames something else. The cure is the message's own. Names of
areas run these alone; `--show` prints each message.
"""

import argparse
import contextlib
import io
import time
import warnings
from collections import Counter

import wrong_inputs_models
import wrong_inputs_numbers
import wrong_inputs_results
import wrong_inputs_runs
import wrong_inputs_tables
from wrong_inputs_common import RUNS

import dpppl

TABLES = (wrong_inputs_models, wrong_inputs_runs, wrong_inputs_results, wrong_inputs_numbers, wrong_inputs_tables)
AREAS = {area: cases for table in TABLES for area, cases in table.AREAS.items()}
NEVER = (
    "object has no attribute",
    "every other array is wrapped",
    "NoneType",
    "<class",
    "Traceback",
    "0x7f",
    "unexpected keyword argument 'self'",
)
"""Words that blame nothing that a user wrote."""


def raised(function):
    """What a call raises, and what it prints on standard error."""
    text = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            warnings.simplefilter("ignore")
            function()
    except Exception as error:
        return error, text.getvalue()
    return None, text.getvalue()


def judge(wrong, words, cure, full=False):
    """("raw", "wrong cause", "cure failed" or "", the message)."""
    error, _ = raised(wrong)
    message = f"{type(error).__name__}: {error}" if error is not None else "nothing was raised"
    if not isinstance(error, dpppl.DPPPLError):
        return "raw", message
    missing = [word for word in words.split("|") if word.lower() not in message.lower()]
    blamed = [word for word in NEVER if word in message]
    if missing or blamed or not words:
        return "wrong cause", f"{message}\n      without {missing}, with {blamed}"
    RUNS[0] = full
    failed, _ = raised(cure)
    RUNS[0] = True
    if failed is not None:
        return "cure failed", f"{message}\n      cure: {type(failed).__name__}: {failed}"
    return "", message


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", choices=[*AREAS, []])
    parser.add_argument("--show", action="store_true", help="print each message")
    parser.add_argument("--full", action="store_true", help="run NoiseAware to its end in cures, too")
    asked = parser.parse_args()
    kinds, start = ("raw", "wrong cause", "cure failed"), time.time()
    counts, table = Counter(), ["| area | inputs | raw | wrong cause | cure failed |", "|---|---|---|---|---|"]
    for area in asked.areas or AREAS:
        found = Counter()
        for name, wrong, words, cure in AREAS[area]:
            outcome, message = judge(wrong, words, cure, asked.full)
            found[outcome] += 1
            if outcome or asked.show:
                print(f"{outcome or 'right'}: {area}: {name}\n    {message}", flush=True)
        table.append(f"| {area} | {found.total()} | {' | '.join(str(found[kind]) for kind in kinds)} |")
        counts += found
    total = counts.total()
    print("\n".join([*table, f"| all | {total} | {' | '.join(str(counts[kind]) for kind in kinds)} |"]))
    print(
        f"{total} wrong inputs: {counts['raw']} raw, {counts['wrong cause']} wrong causes, {counts['cure failed']} cures that fail; {time.time() - start:.0f} s"
    )
    return int(total != counts[""])


if __name__ == "__main__":
    raise SystemExit(main())
