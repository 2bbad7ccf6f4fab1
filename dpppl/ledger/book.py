"""The contents of a ledger's file: its budget, and each run's plan, charges, end and process."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpppl.accounting import GaussianEvent, SelectionEvent
from dpppl.errors import ConfigurationError, LedgerError
from dpppl.ledger import append_only
from dpppl.ledger.append_only import LockedFile, Position, Record
from dpppl.ledger.privacy_filter import Costs, PrivacyFilter

VERSION = 2
"""Of files; those of version 1 had no head until this one wrote to them."""
PROCESS_GONE = "stopped: its process is gone"
Events = tuple[Any, ...]
"""GaussianEvents and SelectionEvents."""


@dataclass(frozen=True, kw_only=True)
class RunningProcess:
    """A process. Its start time and its machine's boot distinguish it from later processes of the same number.

    - **host** - the machine's name; not compared.
    - **boot** - id of the machine's last boot; empty outside Linux.
    - **namespace** - the process's namespace of process numbers; empty outside Linux.
    - **pid** - the process number.
    - **started** - when the process started, in clock ticks since boot; empty outside Linux."""

    host: str = field(compare=False)  # a laptop's changes with its network
    boot: str
    namespace: str
    pid: int
    started: str


def this_process() -> RunningProcess:
    """The calling process; after a fork, the child."""
    pid = os.getpid()
    return RunningProcess(
        host=socket.gethostname(), boot=_boot(), namespace=_namespace(), pid=pid, started=_stat(pid)[1]
    )


def is_gone(owner: RunningProcess) -> bool:
    """Whether the process has surely ended: False for other machines and other containers, of which we see nothing."""
    here = this_process()
    if not here.boot or owner.boot != here.boot:
        if owner.host != here.host:
            return False
        if owner.boot != here.boot:
            return True
    if owner.namespace != here.namespace:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    state, started = _stat(owner.pid)
    return state in ("Z", "X") or bool(started and started != owner.started)


def _stat(pid: int) -> tuple[str, str]:
    """State and start of a process; empty where they cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
    except OSError:
        return "", ""
    return fields[0].decode(), fields[19].decode()


@functools.cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run's entries in the file.

    - **rule** - the filter that counts costs.
    - **what** - a line for the report.
    - **status** - how it stands.
    - **owner** - the process that holds its reservation, None once it is released.
    - **reserved**, **charged** - events planned, and charged so far.
    - **steps** - the steps that are charged.
    - **charged_cost** - the cost of `charged`, which never falls."""

    rule: PrivacyFilter
    what: str
    status: str
    owner: RunningProcess | None
    reserved: Events
    charged: Events = ()
    steps: range = range(0)
    charged_cost: Costs

    @functools.cached_property
    def reserved_cost(self) -> Costs:
        return self.rule.cost(self.reserved)

    def after_charge(self, events: Events, steps: range) -> RunEntry:
        """The record with these charges. A charge is never taken back: the larger of both counts holds."""
        cost = self.rule.cost(events)
        charged = self.charged if np.all(cost <= self.charged_cost) else events
        return replace(self, charged=charged, charged_cost=np.maximum(cost, self.charged_cost), steps=steps)

    @property
    def taken(self) -> Costs:
        """The part of the budget that other runs cannot use: charges, and the reservation until it is released."""
        return self.charged_cost if self.owner is None else np.maximum(self.charged_cost, self.reserved_cost)

    @property
    def gone(self) -> bool:
        """Whether it still holds a reservation although its process has ended."""
        return self.owner is not None and is_gone(self.owner)


@dataclass(frozen=True, kw_only=True)
class Book:
    """The file's contents as read so far. Immutable, so that threads share it.

    - **header** - the first record.
    - **rule** - the filter of the budget.
    - **runs** - by run id.
    - **position** - how far the file was read."""

    header: Record
    rule: PrivacyFilter
    runs: Mapping[str, RunEntry]
    position: Position

    def run(self, run_id: str) -> RunEntry:
        if run_id not in self.runs:
            raise ConfigurationError(f"there is no run {run_id!r} in this ledger: reserve it first.")
        return self.runs[run_id]

    def read(self, locked: LockedFile, path: str) -> Book:
        """With what is new in the file."""
        if self.header["version"] > 1:
            append_only.check_head(path, locked)
        return self.after(locked.new, locked.position)

    def after(self, records: Iterable[Record], position: Position) -> Book:
        """With what these records say."""
        runs = dict(self.runs)
        for record in records:
            run_id, kind = record["run"], record["kind"]
            if kind == "reserve":
                plan = {
                    "what": record["what"],
                    "reserved": events_of_json(record["events"]),
                    "owner": RunningProcess(**record["owner"]),
                }
                run = runs.get(run_id) or RunEntry(rule=self.rule, status="", charged_cost=self.rule.nothing, **plan)
                runs[run_id] = replace(run, status="running", **plan)
            elif kind == "charge":
                steps = range(record["first"], record["first"] + record["count"])
                runs[run_id] = runs[run_id].after_charge(events_of_json(record["events"]), steps)
            elif kind == "release":
                runs[run_id] = replace(runs[run_id], owner=None, reserved=(), status=record["status"])
            else:
                raise LedgerError(f"a record of an unknown kind, {kind!r}: use the version of dpppl that wrote it.")
        return replace(self, runs=runs, position=position)

    @property
    def events(self) -> Events:
        """All that was charged."""
        return tuple(event for run in self.runs.values() for event in run.charged)

    def charged(self) -> Costs:
        """The sum of all charges."""
        return self._sum(run.charged_cost for run in self.runs.values())

    def committed(self, without: str | None = None) -> Costs:
        """The sum of all charges and reservations except those of one run."""
        return self._sum(run.taken for run_id, run in self.runs.items() if run_id != without)

    def flag(self, run_id: str, events: Events) -> str:
        """Name `full_batch_only` where a ledger with it had room for these events of a run, and this one has not; else ""."""
        rule, others = self.rule, [run for name, run in self.runs.items() if name != run_id]
        full = PrivacyFilter.of(rule.epsilon, rule.delta, rule.neighboring_relation, True)
        taken = [event for run in others for event in (*run.charged, *run.reserved)]
        try:
            if rule.full_batch_only or not full.admits(full.cost([*taken, *events])):
                return ""
        except ConfigurationError:  # subsampled events, which such a ledger refuses
            return ""
        made = f"dpppl.PrivacyLedger(path, {rule.epsilon:g}, {rule.delta:g}, full_batch_only=True)"
        cure = "" if taken else ": make it at another path"
        return f". This ledger keeps 2 to 5 % of its epsilon for subsampled runs. {made} keeps none{cure}"

    def _sum(self, costs: Iterable[Costs]) -> Costs:
        return np.asarray(np.sum([self.rule.nothing, *costs], axis=0))

    def without_the_gone(self) -> Book:
        """As it will be once the reservations of processes that ended are released."""
        released = {k: replace(r, owner=None, status=PROCESS_GONE) for k, r in self.runs.items() if r.gone}
        return replace(self, runs={**self.runs, **released})


def open_book(path: str) -> Book:
    with append_only.opened(path, Position(), write=False) as locked:
        if not locked.new or locked.new[0].get("kind") != "ledger":
            raise LedgerError(f"{path} is not a ledger.")
        header = locked.new[0]
        if header["version"] not in range(1, VERSION + 1):
            raise LedgerError(f"{path} is a ledger of version {header['version']}; this dpppl reads up to {VERSION}.")
        fields = {field.name: header[field.name] for field in dataclasses.fields(PrivacyFilter)}
        rule = PrivacyFilter(**{**fields, "orders": tuple((alpha, share) for alpha, share in fields["orders"])})
        book = Book(header=header, rule=rule, runs={}, position=Position())
        locked.new.pop(0)
        return book.read(locked, path)


def number(events: Events) -> int:
    """Of accesses."""
    return sum(event.num_accesses for event in events)


def as_json(events: Events) -> list[Record]:
    """Events as JSON has them; its numbers keep every bit of a float."""

    def one(event: GaussianEvent | SelectionEvent) -> Record:
        if isinstance(event, SelectionEvent):
            return {"candidates": [as_json(c) for c in event.candidates], "mean": event.mean, "shape": event.shape}
        return {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}

    return [one(event) for event in events]


def events_of_json(events: Sequence[Record]) -> Events:
    """The inverse of `as_json`."""

    def one(event: Record) -> GaussianEvent | SelectionEvent:
        if "candidates" in event:
            return SelectionEvent(**{**event, "candidates": tuple(events_of_json(c) for c in event["candidates"])})
        pairs = tuple((sigma, count) for sigma, count in event["noise_multipliers"])
        return GaussianEvent(**{**event, "noise_multipliers": pairs})

    return tuple(one(event) for event in events)
