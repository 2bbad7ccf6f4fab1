"""Kill processes that share a ledger at random moments, and look for a charge that is missing, lost, doubled or too much.

Workers reserve, charge, "look at the data" (a line in a log of their own, on the disk before they go on) and release; runs that
were cut off are taken up by others. Each kill is a SIGKILL at a random moment, after which the ledger is read. A round ends
after a few hundred kills; then the file and the logs are compared, by code that shares nothing with the ledger's.
`--faults` shows that the comparison finds what it looks for: workers that look before they charge, that do not lock, or that
do not ask whether there is room.

    python benchmarks/privacy/ledger.py --kills 1000            # about three minutes
"""

import argparse
import collections
import contextlib
import fcntl
import json
import os
import random
import signal
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path

if (
    "dpppl" not in sys.modules
):  # without dpppl/__init__.py, which loads JAX: a ledger does not need it, and forks are light
    package = types.ModuleType("dpppl")
    package.__path__ = [str(Path(__file__).resolve().parents[2] / "dpppl")]
    sys.modules["dpppl"] = package

from dpppl.accounting import GaussianEvent, epsilon
from dpppl.errors import BudgetExceededError, ConfigurationError
from dpppl.ledger.privacy_ledger import PrivacyLedger

EPSILON, DELTA = 1.0, 1e-5
FAULTS = ("looks before it charges", "does not lock", "does not ask for room")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What each step of a run asks of the data."""

    noise: float
    rate: float = 1.0
    accesses: int = 1

    @classmethod
    def of(cls, number: int, kills: int) -> "Setting":
        """Full batches and Poisson sampling in turn, with room for about twelve steps a kill."""
        if number % 2:
            return cls(noise=13.0 * kills**0.5)
        return cls(noise=2.0, rate=0.01, accesses=max(1, 160 // kills))

    @property
    def exact(self) -> bool:
        """Whether the budget is that of the exact accountant."""
        return self.rate == 1.0

    def plan(self, steps: int) -> list[GaussianEvent]:
        return [GaussianEvent(noise_multipliers=((self.noise, steps * self.accesses),), sampling_rate=self.rate)]

    def steps(self, record: dict) -> int:
        """Of which a record's events are the plan."""
        return sum(count for event in record["events"] for _, count in event["noise_multipliers"]) // self.accesses


def records(path: Path) -> list[dict]:
    """The complete lines of a file, each a JSON object."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def work(folder: Path, setting: Setting, seed: int, fault: str) -> None:
    """Run after run until killed."""
    rng, most, write = random.Random(seed), 40, os.pwrite
    os.pwrite = lambda descriptor, data, offset: (
        time.sleep(1e-4) or write(descriptor, data[:16], offset)
    )  # often cut off
    if fault == "does not lock":
        fcntl.flock = lambda descriptor, operation: None
    if fault == "does not ask for room":
        PrivacyLedger._admit = lambda *arguments: None
    ledger = PrivacyLedger.open(folder / "ledger")
    log = os.open(folder / f"log.{seed}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for number in range(10**9):
        run_id, steps = f"{seed}.{number}", rng.randint(1, most)
        if rng.random() < 0.5:
            run_id, steps = rng.choice(unfinished(folder / "ledger") or [(run_id, steps)])
        try:
            ledger.reserve(run_id, setting.plan(steps), f"{steps} steps")
        except ConfigurationError:  # another has taken it up
            continue
        except BudgetExceededError:
            most = max(1, most // 2)
            time.sleep(0.005)
            continue
        done, stop = len(ledger.charged_steps(run_id)), steps if rng.random() < 0.8 else rng.randint(0, steps)
        while done < stop:
            count = min(rng.randint(1, 8), steps - done)
            line = json.dumps({"run": run_id, "first": done, "count": count}).encode() + b"\n"
            actions = [lambda: ledger.charge(run_id, setting.plan(done + count), 0, done + count),  # noqa: B023
                       lambda: (os.write(log, line), os.fsync(log))]  # fmt: skip  # noqa: B023
            for action in reversed(actions) if fault == "looks before it charges" else actions:
                action()
            done += count
        ledger.release(run_id, "complete" if done >= steps else "interrupted")


def unfinished(path: Path) -> list[tuple[str, int]]:
    """Runs that did not complete, and the steps that each was planned with."""
    planned = {}
    with contextlib.suppress(ValueError, KeyError):
        for record in records(path)[1:]:
            if record["kind"] == "reserve":
                planned[record["run"]] = int(record["what"].split()[0])
            if record["kind"] == "release" and record["status"] == "complete":
                planned.pop(record["run"])
    return list(planned.items())


def check(folder: Path, setting: Setting, capacity: int) -> list[str]:
    """What is wrong with a ledger, whose budget has room for `capacity` steps, and the logs beside it."""
    wrong, reserved, charged, live = [], {}, collections.Counter(), set()
    try:
        lines = records(folder / "ledger")
    except ValueError:
        return ["the file cannot be read"]
    for number, record in enumerate(lines):
        run = record.get("run")
        if record["seq"] != number:
            wrong.append(f"line {number} has number {record['seq']}: lost or doubled")
        if record["kind"] == "reserve":
            if run in live:
                wrong.append(f"{run} is run twice at a time")
            reserved[run] = setting.steps(record)
            live.add(run)
        if record["kind"] == "charge":
            if run not in live or not charged[run] < record["count"] <= reserved[run]:
                wrong.append(f"{run} is charged for {record['count']} steps after {charged[run]}")
            if setting.steps(record) != record["count"]:
                wrong.append(f"{run} is charged for other accesses than steps")
            charged[run] = record["count"]
        if record["kind"] == "release":
            live.discard(run)
        total = sum(max(charged[run], reserved[run] if run in live else 0) for run in reserved)
        if total > capacity:
            wrong.append(f"{total} steps are charged or reserved, {capacity} are allowed")
    looked = collections.Counter()
    for log in folder.glob("log.*"):
        for access in records(log):
            looked.update((access["run"], access["first"] + step) for step in range(access["count"]))
    wrong += [f"step {step} of {run} was looked at without a charge" for run, step in looked if step >= charged[run]]
    wrong += [f"step {step} of {run} was looked at {n} times" for (run, step), n in looked.items() if n > 1]
    if looked.total() > capacity:
        wrong.append(f"{looked.total()} steps were looked at, {capacity} are allowed")
    try:
        ledger = PrivacyLedger.open(folder / "ledger")
        if any(ledger.charged_steps(run) != range(charged[run]) for run in reserved):
            wrong.append("the ledger counts other steps than its file")
        left = capacity - charged.total()
        if left < 0 or (left and not ledger.admits(setting.plan(left))) or ledger.admits(setting.plan(left + 1)):
            wrong.append(f"{left} steps are left, and the ledger admits more or fewer")
    except Exception as error:
        wrong.append(f"the ledger cannot be read: {error}")
    return wrong


def capacity_of(folder: Path, setting: Setting) -> int:
    """The number of steps that the budget has room for: by the accountant where that is exact."""
    ledger, steps = PrivacyLedger(folder / "empty", EPSILON, DELTA, full_batch_only=setting.exact), 1
    while epsilon(setting.plan(steps), DELTA) <= EPSILON if setting.exact else ledger.admits(setting.plan(steps)):
        steps += 1
    return steps - 1


def round_of_kills(
    folder: Path, setting: Setting, kills: int, workers: int, seed: int, fault: str
) -> tuple[list[str], dict]:
    """Start workers, kill them one after the other, and check."""
    rng, running, dead = random.Random(seed), {}, []
    PrivacyLedger(folder / "ledger", EPSILON, DELTA, name="kills", full_batch_only=setting.exact)
    capacity, wrong, torn = capacity_of(folder, setting), [], 0

    def start(number: int) -> None:
        pid = os.fork()
        if not pid:
            try:
                work(folder, setting, number, fault)
            except BaseException as error:
                Path(folder / f"error.{number}").write_text(f"{type(error).__name__}: {error}")
            finally:
                os._exit(1)
        running[pid] = number

    try:
        for number in range(workers):
            start(seed + number)
        for kill in range(kills):
            time.sleep(rng.expovariate(100))
            victim = rng.choice(list(running))
            os.kill(victim, signal.SIGKILL)
            dead.append(victim)
            running.pop(victim)
            torn += not (folder / "ledger").read_bytes().endswith(b"\n")
            if len(dead) > 3:  # some stay unreaped for a while: a dead process that still has its number
                os.waitpid(dead.pop(0), 0)
            try:
                PrivacyLedger.open(folder / "ledger").remaining()
            except Exception as error:
                wrong.append(f"the ledger cannot be read after kill {kill}: {error}")
            start(seed + workers + kill)
    finally:
        for pid in (*running, *dead):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    wrong += [f"a worker failed: {error.read_text()}" for error in sorted(folder.glob("error.*"))]
    lines = collections.Counter(record.get("kind") for record in records(folder / "ledger")) if not wrong else {}
    return wrong + check(folder, setting, capacity), {"capacity": capacity, "torn": torn, **lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--kills-a-round", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--faults", action="store_true", help="also run workers that are wrong, until they are found")
    args = parser.parse_args()
    assert "jax" not in sys.modules
    for fault in ("", *FAULTS) if args.faults else ("",):
        begun, found, totals, seed = time.time(), [], collections.Counter(), 1
        planned = left = args.kills * (4 if fault else 1)  # of a fault: until it is found
        while left > 0 and not (fault and found):
            kills = min(left, args.kills_a_round)
            setting = Setting.of(seed, max(1, kills // 4) if fault else kills)
            with tempfile.TemporaryDirectory() as folder:
                wrong, counts = round_of_kills(Path(folder), setting, kills, args.workers, 10**6 * seed, fault)
            found, left, seed = found + wrong, left - kills, seed + 1
            totals.update(counts)
        line = {"fault": fault, "kills": planned - left, "seconds": round(time.time() - begun), "wrong": found[:5]}
        print(json.dumps({**line, "records": totals}), flush=True)


if __name__ == "__main__":
    main()
