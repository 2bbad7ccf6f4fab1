"""The report's lines about attacks, in plain words and as plain numbers."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from dpppl import accounting
from dpppl.accounting import GaussianEvent, SelectionEvent, TradeOff
from dpppl.accounting.relations import relation_of
from dpppl.types import Document

Events = tuple[Any, ...]
"""GaussianEvents and SelectionEvents."""

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
PRIORS = (0.5, 0.01)
BASELINES = (1e-6, 0.1, 0.5)
GROUPS = (2, 5, 10)
SHARES_OF_STEPS = (0.1, 0.25, 0.5, 0.75, 1.0)
_DRAWN = np.array([0.0, 1e-6, 1e-5, 1e-4, 1e-3, *np.linspace(0.01, 1, 50)])
_DRAWN_DELTAS = 10.0 ** np.arange(-1, -10.1, -0.25)


@lru_cache(maxsize=64)
def trade_off(events: Events, group_size: int = 1) -> TradeOff:
    """The trade-off curve of events, for a person's number of rows; cached."""
    return accounting.trade_off(events, group_size=group_size)


def headline(advantage: float, relation: str, rows: int = 1) -> str:
    """The meaning of the guarantee for one person with this number of `rows`, in one sentence."""
    if advantage == 0:
        return "Nothing was asked of the data, so nothing can be told about anybody from it."
    words = relation_of(relation).can_tell
    if rows > 1:
        words = words.replace("one person's record was", f"up to {rows} records of one person were")
        words = words.replace("two records", f"two sets of up to {rows} records")
    return (
        "Someone who knows everybody else's records and sees all of this can tell "
        f"{words} with advantage at most {percent(advantage)}: right at most "
        f"{percent((1 + advantage) / 2)} of the time where a coin is right 50 %."
    )


def percent(share: float, up: bool = True) -> str:
    """A share in per cent to three digits, rounded up or down: a bound stays one."""
    hundredths = 100 * share
    if hundredths <= 0:
        return "0 %"
    unit = 10.0 ** (math.floor(math.log10(hundredths)) - 2)
    whole = hundredths / unit
    return f"{(math.ceil(whole - 1e-6) if up else math.floor(whole + 1e-6)) * unit:.12g} %"


def risk_rows(risk: TradeOff) -> list[tuple[str, str]]:
    """Lines of a report."""
    mu = risk.gaussian
    exact = "exactly Gaussian: this one number gives every epsilon, delta and error rate"
    bound = f"at most, for error rates from 1e-10; it overstates them by up to {mu.regret:.2g} (regret)"
    found = [f"{percent(risk.true_positive_rate(rate))} at {percent(rate)}" for rate in FALSE_POSITIVE_RATES]
    wrong = [f"{percent(risk.bayes_risk(prior), up=False)} where {percent(prior)} were" for prior in PRIORS]
    true = [f"{percent(risk.positive_predictive_value(prior, 0.01))} where {percent(prior)} were" for prior in PRIORS]
    guessed = [f"{percent(risk.inference_success(base))} where it was {percent(base)}" for base in BASELINES]
    return [
        ("mu", f"{mu.mu:.4g}, {exact}" if mu.exact else f"{mu.mu:.4g} {bound}"),
        ("advantage", f"at most {percent(risk.advantage)}"),
        ("used records found", f"at most {', '.join(found)} false alarms"),
        ("a verdict is wrong", f"at least {', '.join(wrong)} used"),
        ("an alarm is true", f"at most {', '.join(true)} used, at 1 % false alarms"),
        ("a secret is guessed", f"at most {', '.join(guessed)} without the release"),
    ]


def risk_numbers(risk: TradeOff) -> Document:
    """The numbers of `risk_rows`, and the trade-off curve, as plain JSON values."""
    mu = risk.gaussian
    return {
        "advantage": risk.advantage,
        "mu": mu.mu,
        "mu_is_exact": mu.exact,
        "mu_regret": mu.regret,
        "true_positive_rates": [
            {"false_positive_rate": rate, "true_positive_rate": risk.true_positive_rate(rate)}
            for rate in FALSE_POSITIVE_RATES
        ],
        "bayes_risks": [{"prior": prior, "bayes_risk": risk.bayes_risk(prior)} for prior in PRIORS],
        "positive_predictive_values": [
            {"prior": prior, "false_positive_rate": rate, "value": risk.positive_predictive_value(prior, rate)}
            for prior in PRIORS
            for rate in FALSE_POSITIVE_RATES
        ],
        "inference_successes": [{"baseline": base, "success": risk.inference_success(base)} for base in BASELINES],
        "trade_off": {
            "false_positive_rate": _DRAWN.tolist(),
            "false_negative_rate": risk.false_negative_rate(_DRAWN).tolist(),
        },
        "epsilon_of_delta": _epsilons(risk),
    }


def _epsilons(risk: TradeOff) -> dict[str, list[float]]:
    """Points of epsilon(delta), each from the points of delta(epsilon) above it."""
    reached = np.searchsorted(-risk.deltas, -_DRAWN_DELTAS)
    seen = reached < len(risk.deltas)
    return {"delta": _DRAWN_DELTAS[seen].tolist(), "epsilon": risk.epsilons[reached[seen]].tolist()}


@lru_cache(maxsize=64)
def comparisons(events: Events, delta: float, group_size: int = 1, noun: str = "row") -> dict[str, Any]:
    """Epsilon at `delta` for groups of rows, after a share of the steps, and if every row were used in each step.

    `group_size`: rows of the unit of privacy; `noun`: what groups consist of."""
    whole = _each(
        events, lambda e: replace(e, sampling_rate=1.0, batch_size=None, num_data=None, failure_probability=0.0)
    )
    return {
        "delta": delta,
        "groups_of": noun,
        "groups": [
            {
                "rows": k,
                "epsilon": accounting.group_epsilon(events, delta, k) if events else 0.0,
                "right": (1.0 + accounting.delta(events, 0.0, group_size=k)) / 2.0 if events else 0.5,
            }
            for k in (group_size * times for times in GROUPS)
        ],
        "parts": _parts(events, delta, group_size),
        "growth": [
            {"share_of_steps": share, "epsilon": accounting.group_epsilon(_first(events, share), delta, group_size)}
            for share in SHARES_OF_STEPS
        ],
        "without_amplification": accounting.group_epsilon(whole, delta, group_size),
    }


def _parts(events: Events, delta: float, group_size: int) -> list[Document]:
    """Each event alone, and its share of what all lose: of the Renyi divergence at order 8, mu^2 on full batches."""
    order = np.array([8.0])
    losses = [float(accounting.rdp(e, order)[0]) for e in events]
    total = math.fsum(losses)
    return [
        {
            "part": _told(e),
            "epsilon": accounting.group_epsilon(e, delta, group_size),
            "share": loss / total if 0 < total < math.inf else 0.0,
        }
        for e, loss in zip(events, losses)
    ]


def _told(event: GaussianEvent | SelectionEvent) -> str:
    """An event in words."""
    if isinstance(event, SelectionEvent):
        return f"the best of runs, {event.mean:g} expected"
    sigmas = [sigma for sigma, _ in event.noise_multipliers]
    noise = f"{min(sigmas):.4g}" if min(sigmas) == max(sigmas) else f"{min(sigmas):.4g} to {max(sigmas):.4g}"
    rows = "all rows" if event.is_full_batch else f"a share {event.sampling_rate:g} of the rows"
    rows = rows if event.batch_size is None or event.is_full_batch else f"{event.batch_size} rows"
    accesses = "access" if event.num_accesses == 1 else "accesses"
    return f"{event.num_accesses} {accesses} of {rows}, noise {noise}"


def _first(events: Events, share: float) -> Events:
    """A share of each event's accesses, rounded up."""
    return _each(
        events,
        lambda e: replace(
            e, noise_multipliers=tuple((s, math.ceil(share * count)) for s, count in e.noise_multipliers)
        ),
    )


def _each(events: Events, change: Callable[[GaussianEvent], GaussianEvent]) -> Events:
    """Events changed, those within a selection, too."""
    return tuple(
        replace(e, candidates=tuple(_each(c, change) for c in e.candidates))
        if isinstance(e, SelectionEvent)
        else change(e)
        for e in events
    )
