"""The cost of runs, each alone and composed, before any is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpppl.accounting import privacy_spent
from dpppl.accounting.dp_events import Events, as_events
from dpppl.validation import checked


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A run of `compare`.

    - **name** - its name.
    - **epsilon**, **advantage** - of this run alone, at the delta asked for.
    - **total_epsilon** - with all runs before it."""

    name: str
    epsilon: float
    advantage: float
    total_epsilon: float


@checked
def compare(runs: Mapping[str, Events], delta: float, before: Events = ()) -> list[Priced]:
    """Price runs, each alone and composed, as one plan made in advance. Nothing is charged.

    - **runs** - events by name, in order.
    - **before** - what was charged already, such as `ledger.events`.

    >>> from dpppl.accounting import GaussianEvent
    >>> run = GaussianEvent(noise_multipliers=((100.0, 400),))
    >>> [(p.name, round(p.epsilon, 2), round(p.total_epsilon, 2)) for p in compare({"a": run, "b": run}, 1e-5)]
    [('a', 0.73, 0.73), ('b', 0.73, 1.06)]
    """
    total, found = as_events(before), []
    for name, events in runs.items():
        own = as_events(events)
        total = (*total, *own)
        epsilon, together = privacy_spent.epsilon(own, delta), privacy_spent.epsilon(total, delta)
        advantage = privacy_spent.delta(own, 0.0)
        found.append(Priced(name=name, epsilon=epsilon, advantage=advantage, total_epsilon=together))
    return found
