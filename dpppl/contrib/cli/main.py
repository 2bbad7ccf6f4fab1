"""The command line: what a run would cost, which noise a budget needs, reports and ledgers as people read them.

The parser is argparse: eleven commands with a few options need no more, and another library would be one more dependency to
trust. Tab completion is shtab's, an extra.
"""

import argparse
import json
import math
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpppl import accounting
from dpppl.accounting import GaussianEvent
from dpppl.accounting.curves import ACCOUNTANTS
from dpppl.accounting.relations import RELATIONS
from dpppl.contrib.cli import likelihoods, models, tables
from dpppl.contrib.cli.models import Answer
from dpppl.errors import ConfigurationError, DPPPLError
from dpppl.ledger.book import as_json, events_of_json
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.report import render, risk
from dpppl.report.version import VERSION

_MOST_STEPS = 10**9


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, of `arguments` or the process's own; its exit status: 0, 1 for an error, 2 for wrong usage.

    >>> main(["epsilon", "--noise-multiplier", "100", "--steps", "1000", "--delta", "1e-5"])
    epsilon 1.199 at delta 1e-05 (exact Gaussian (analytic))
    Someone who knows everybody else's records and sees all of this can tell whether one person's record was used with \
advantage at most 12.6 %: right at most 56.3 % of the time where a coin is right 50 %.
    0
    """
    options = _parser().parse_args(arguments)
    try:
        document, text = options.command(options)
    except DPPPLError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"ConfigurationError: {error.filename}: {error.strerror}; give a path that can be used.", file=sys.stderr)
        return 1
    print(json.dumps(render.json_value(document), indent=2, allow_nan=False) if options.json else text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpppl", description="Differential privacy: costs, reports, ledgers.")
    parser.add_argument("--version", action="version", version=f"dpppl {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, function: Callable[[argparse.Namespace], Answer], words: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=words, description=words)
        added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(command=function, parser=added)
        return added

    for name, function, words in (
        ("epsilon", _epsilon, "epsilon of a number of steps, and what it means"),
        ("calibrate", _calibrate, "the noise, or the number of steps, that a budget allows"),
    ):
        added = command(name, function, words)
        if name == "calibrate":
            target = added.add_mutually_exclusive_group(required=True)
            target.add_argument("--epsilon", type=float, help="the target, at delta")
            target.add_argument("--advantage", type=float, help="the target: an attack's largest gain")
        added.add_argument("--delta", type=float, required=True)
        added.add_argument("--noise-multiplier", type=float, help="noise standard deviation / clipping norm")
        added.add_argument("--steps", type=int, help="accesses of the data, all chains and warmup included")
        added.add_argument("--rate", type=float, default=1.0, help="Poisson sampling rate; 1, every row, unless given")
        added.add_argument("--batch-size", type=int, help="with --num-data: batches drawn without replacement")
        added.add_argument("--num-data", type=int)
        added.add_argument("--relation", choices=tuple(RELATIONS), default="zero_out")
        added.add_argument("--accountant", choices=ACCOUNTANTS, default="auto")
        added.add_argument("--discrete", action="store_true", help="discrete Gaussian noise")
    added = command("plan", _plan, "what each method could do with a budget, or what several runs would cost")
    added.add_argument("--num-data", type=int, help="rows, or persons where these are the unit")
    target = added.add_mutually_exclusive_group()
    target.add_argument("--epsilon", type=float, help="the target, at delta")
    target.add_argument("--advantage", type=float, help="the target: an attack's largest gain")
    added.add_argument("--delta", type=float)
    added.add_argument("--latents", type=int, default=10, help="coordinates of all latents; 10 unless given")
    added.add_argument("--row-curvature", type=float, default=0.2, help="of a row's log likelihood; .2 unless given")
    added.add_argument("--prior-sd", type=float, default=1.0)
    added.add_argument("--clipping-norm", type=float)
    added.add_argument("--rate", type=float, action="append", help="repeatable; 1, .1 and .01 unless given")
    added.add_argument("--steps", type=int, action="append", help="to consider; repeatable; 400 and 2000 unless given")
    added.add_argument("--factors", action="store_true", help="the model has factors: no responses can be simulated")
    added.add_argument("--rows-per-second", type=float, default=1e6, help="gradients of rows that the machine computes")
    added.add_argument("--picture", type=Path, metavar="FILE", help="draw it, with matplotlib")
    added.add_argument(
        "--compare", nargs="+", metavar="RUN",
        help='prices, in this order, files of privacy_plan().to_json() or "noise=100,steps=400,rate=0.01"',
    )  # fmt: skip
    added.add_argument("--ledger", type=Path, help="with --compare: its charges come first, and whether it admits")
    added = command("report", _report, "a report that PrivacyReport.to_json() wrote, as text or as a page")
    added.add_argument("file", type=Path)
    added.add_argument("--html", type=Path, metavar="FILE", help="write a page that loads nothing")
    added.add_argument("--about", action="append", default=[], metavar="NAME=TEXT", help=", ".join(render.ABOUT))
    added = command("ledger", _ledger, "what a ledger says: show it, verify its file, or export all that was charged")
    added.add_argument("action", choices=("show", "verify", "export"))
    added.add_argument("file", type=Path)
    models.add(command)
    tables.add(command)
    likelihoods.add(command)
    added = command("completion", _completion, 'tab completion: eval "$(dpppl completion bash)", of dpppl[completion]')
    added.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    return parser


def _event(options: argparse.Namespace, noise_multiplier: float, steps: int) -> GaussianEvent:
    models.refuse(options, ["rate"] * (options.batch_size is not None), "is for Poisson batches, not for --batch-size")
    return GaussianEvent(
        noise_multipliers=((noise_multiplier, steps),), sampling_rate=options.rate, discrete=options.discrete,
        neighboring_relation=options.relation, batch_size=options.batch_size, num_data=options.num_data,
    )  # fmt: skip


def _cost(options: argparse.Namespace, noise_multiplier: float, steps: int) -> Answer:
    """The events of a number of steps at a noise multiplier."""
    event = _event(options, noise_multiplier, steps)
    spent = accounting.spent(event, options.delta, options.accountant)
    attack = accounting.trade_off(event, options.accountant)
    headline = risk.headline(attack.advantage, options.relation)
    document = asdict(spent) | {"noise_multiplier": noise_multiplier, "steps": steps}
    document |= {"headline": headline, "risk": risk.risk_numbers(attack)}
    return document, f"epsilon {spent.epsilon:.4g} at delta {spent.delta:g} ({spent.accountant})\n{headline}"


def _epsilon(options: argparse.Namespace) -> Answer:
    if options.noise_multiplier is None or options.steps is None:
        raise ConfigurationError("epsilon needs --noise-multiplier and --steps; calibrate finds one of them.")
    return _cost(options, options.noise_multiplier, options.steps)


def _calibrate(options: argparse.Namespace) -> Answer:
    noise, steps = options.noise_multiplier, options.steps
    target = {"target_epsilon": options.epsilon, "target_delta": options.delta, "accountant": options.accountant}
    if (noise is None) == (steps is None):
        raise ConfigurationError("give --steps to find the noise, or --noise-multiplier to find the number of steps.")
    if options.advantage is not None:
        if noise is not None:
            raise ConfigurationError("--advantage finds the noise for a number of steps: leave out --noise-multiplier.")
        noise = accounting.calibrate_advantage(
            lambda sigma: _event(options, sigma, steps), options.advantage, options.accountant
        )
    elif noise is None:
        noise = accounting.calibrate_noise_multiplier(lambda sigma: _event(options, sigma, steps), **target)
    else:
        steps = _most_steps(options, noise)
    document, text = _cost(options, noise, steps)
    return document, f"noise multiplier {noise:.6g} for {steps} steps: {text}"


def _most_steps(options: argparse.Namespace, noise: float) -> int:
    """The most steps with this noise that meet the target."""
    most, cost = 1, lambda count: accounting.epsilon(_event(options, noise, count), options.delta, options.accountant)
    while cost(most) <= options.epsilon and most < _MOST_STEPS:
        most *= 2
    if most == 1:
        raise ConfigurationError(
            f"one step costs epsilon {cost(1):.4g}, more than {options.epsilon:g}: use more noise."
        )
    return bisect_right(range(1, most), options.epsilon, key=cost)


def _plan(options: argparse.Namespace) -> Answer:
    if options.compare is not None:
        return _compare(options)
    models.refuse(options, ["ledger"], "is for --compare")
    if options.num_data is None or options.delta is None:
        raise ConfigurationError("plan needs --num-data and --delta, with --epsilon or --advantage; or --compare.")
    found = accounting.plan(
        num_data=options.num_data, target_delta=options.delta, target_epsilon=options.epsilon,
        target_advantage=options.advantage, num_latents=options.latents, row_curvature=options.row_curvature,
        prior_sd=options.prior_sd, clipping_norm=options.clipping_norm, simulates=not options.factors,
        rows_per_second=options.rows_per_second,
        **{name: values for name, values in (("rates", options.rate), ("num_steps", options.steps)) if values},
    )  # fmt: skip
    if options.picture is not None:
        from dpppl.contrib import plotting

        models.save(plotting.plan_picture(found), options.picture)
    return asdict(found), str(found)


def _compare(options: argparse.Namespace) -> Answer:
    """The cost of several planned runs."""
    others = sorted({*vars(options)} - {"compare", "delta", "ledger", "json", "command", "parser"})
    models.refuse(options, others, "is not for --compare, whose runs are noise=..., steps=... and perhaps rate=...")
    ledger = None if options.ledger is None else PrivacyLedger.open(options.ledger)
    delta = ledger.delta if options.delta is None and ledger is not None else options.delta
    if delta is None:
        raise ConfigurationError("--compare needs --delta, or a --ledger, which has one.")
    runs = {f"{number}. {run}": _events_of(run) for number, run in enumerate(options.compare, 1)}
    priced = accounting.compare(runs, delta, () if ledger is None else ledger.events)
    lines, document, planned = [], [], []
    for run in priced:
        planned += runs[run.name]
        admitted = None if ledger is None else ledger.admits(planned)
        document.append(asdict(run) | {"admitted": admitted})
        verdict = "" if admitted is None else "; the ledger has room" if admitted else "; the ledger would refuse it"
        lines.append(
            f"{run.name}: epsilon {run.epsilon:.4g}, advantage {risk.percent(run.advantage)}; with all before it "
            f"{run.total_epsilon:.4g}{verdict}"
        )
    return {"delta": delta, "runs": document}, "\n".join([f"At delta {delta:g}:", *lines])


def _events_of(run: str) -> list[GaussianEvent]:
    """The events of a file that holds a report, or of a run in words."""
    if "=" not in run:
        return list(events_of_json(_document(Path(run))["events"]))
    fields: dict[str, float] = {}
    for item in run.split(","):
        name, _, value = item.strip().partition("=")
        if "=" in value:
            cure = ",".join(re.split(r"[,;\s]+", run.strip()))
            raise ConfigurationError(f'the run "{run}" lacks a comma between {name}=... and the next: write "{cure}".')
        try:
            fields[name] = float(value)
            if not (math.isfinite(fields[name]) and (name != "steps" or fields[name].is_integer())):
                raise ValueError
        except ValueError:
            what = "a number of steps, such as 400" if name == "steps" else "a number"
            raise ConfigurationError(f'in the run "{run}", {name} is {what}.') from None
    if not {"noise", "steps"} <= set(fields) <= {"noise", "steps", "rate"}:
        raise ConfigurationError(
            f'the run "{run}" should be noise=..., steps=... and perhaps rate=..., in one word: "noise=100,steps=400,rate=0.01".'
        )
    accesses = ((fields["noise"], int(fields["steps"])),)
    return [GaussianEvent(noise_multipliers=accesses, sampling_rate=fields.get("rate", 1.0))]


def _document(file: Path) -> dict[str, Any]:
    """A report that was written as JSON."""
    cure = f"write one with pathlib.Path({str(file)!r}).write_text(mcmc.privacy_report().to_json())."
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}; give the path of a report, or {cure}") from None
    except ValueError:
        found = None
    document: dict[str, Any] = found if isinstance(found, dict) else {}
    same = str(document.get("schema_version")).split(".")[0] == render.SCHEMA_VERSION.split(".")[0]
    if not same or not {"about", "events", "headline", "rows"} <= set(document):
        raise ConfigurationError(f"{file} is not a report of schema {render.SCHEMA_VERSION}; {cure}")
    return document


def _completion(options: argparse.Namespace) -> Answer:
    try:
        import shtab
    except ImportError:
        raise ConfigurationError('tab completion needs shtab: pip install "dpppl[completion]".') from None
    script = shtab.complete(_parser(), shell=options.shell)
    return {"shell": options.shell, "script": script}, script


def _report(options: argparse.Namespace) -> Answer:
    document = _document(options.file)
    if unnamed := [item for item in options.about if "=" not in item]:
        raise ConfigurationError(f'--about {unnamed[0]} is not NAME=TEXT: write --about {unnamed[0]}="...".')
    given = dict(item.partition("=")[::2] for item in options.about)
    document["about"] |= {name: words for name, words in render.about_of(given).items() if words is not None}
    if options.html is not None:
        from dpppl.contrib import pages

        options.html.write_text(pages.page(document), encoding="utf-8")
        return document, f"wrote {options.html}"
    models.refuse(options, ["about"] * (not options.json), "is for --html and --json")
    sections = [(n.capitalize().replace("_", " "), document[n]) for n in ("warnings", "assumptions", "not_covered")]
    return document, render.text(document["headline"], document["rows"], [each for each in sections if each[1]])


def _ledger(options: argparse.Namespace) -> Answer:
    ledger = PrivacyLedger.open(options.file)  # every line is checked as it is read
    report = ledger.report()
    if options.action == "verify":
        found = {"file": str(options.file), "intact": True, "runs": (runs := len(report.runs))}
        return found, f"{options.file}: intact, runs: {runs}; every line agrees with those before it and the head"
    document = report.to_dict()
    if options.action == "export":
        document["events"] = as_json(ledger.events)
        return document, json.dumps(render.json_value(document), indent=2, allow_nan=False)
    return document, str(report)
