"""From dp_accounting's DpEvents to ours, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dpppl.accounting.events import GaussianEvent, gaussian_mu
from dpppl.accounting.relations import relation_of
from dpppl.accounting.selection import SelectionEvent
from dpppl.errors import ConfigurationError
from dpppl.validation import a, checked, positive

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Event: TypeAlias = "GaussianEvent | SelectionEvent | DpEvent"
Events: TypeAlias = "Event | Sequence[Event]"


def as_events(events: Events, neighboring_relation: str | None = None) -> tuple[GaussianEvent, ...]:
    """The events that access data, as GaussianEvents under one neighbouring relation.

    A GaussianEvent carries its relation. A DpEvent has none: `neighboring_relation`, or else that of the GaussianEvents
    with it, or else "zero_out". Raises ConfigurationError where relations differ."""
    given = tuple(events) if isinstance(events, Sequence) else (events,)
    own = GaussianEvent | SelectionEvent
    relations = {e.neighboring_relation for e in given if isinstance(e, own) and e.noise_multipliers}
    if neighboring_relation is not None:
        relation_of(neighboring_relation)
        relations.add(neighboring_relation)
    if len(relations) > 1:
        raise ConfigurationError(
            f"events with different neighbouring relations ({', '.join(sorted(relations))}) do not compose; use one "
            "relation."
        )
    relation = relations.pop() if relations else "zero_out"
    ours: list[tuple[Any, ...]] = [(e,) if isinstance(e, own) else from_dp_event(e, relation) for e in given]
    return tuple(e for group in ours for e in group if e.noise_multipliers)


@checked
def from_dp_event(event: DpEvent, neighboring_relation: str = "zero_out") -> tuple[GaussianEvent, ...]:
    """The accesses of a dp_accounting DpEvent, as GaussianEvents; none for a NoOpDpEvent.

    Supported are GaussianDpEvent, PoissonSampledDpEvent and SampledWithoutReplacementDpEvent of full-batch Gaussian
    accesses (several that see the same batch are one with less noise, exactly), SelfComposedDpEvent, ComposedDpEvent,
    NoOpDpEvent and NonPrivateDpEvent. A DpEvent says nothing of the relation between neighbouring data sets: it is
    `neighboring_relation`. As everywhere in dpppl the noise multiplier is noise std / clipping norm, also where replacing
    a row moves a sum by twice that norm; dp_accounting's RDP, unlike its PLD, wants it halved there.

    Raises ConfigurationError that names an event that is not supported.

    >>> import dp_accounting
    >>> access = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    >>> from_dp_event(dp_accounting.SelfComposedDpEvent(access, 100))[0].noise_multipliers
    ((1.0, 100),)
    """
    return _accesses(event, 1, neighboring_relation)


def _accesses(event: DpEvent, count: int, relation: str) -> tuple[GaussianEvent, ...]:
    from dp_accounting import dp_event as theirs

    if count == 0:
        return ()
    match event:
        case theirs.NoOpDpEvent():
            return ()
        case theirs.NonPrivateDpEvent():
            return (GaussianEvent(noise_multipliers=((0.0, count),), neighboring_relation=relation),)
        case theirs.GaussianDpEvent():
            return (GaussianEvent(noise_multipliers=((event.noise_multiplier, count),), neighboring_relation=relation),)
        case theirs.SelfComposedDpEvent():
            return _accesses(event.event, count * event.count, relation)
        case theirs.ComposedDpEvent():
            return tuple(e for part in event.events for e in _accesses(part, count, relation))
        case theirs.PoissonSampledDpEvent():
            rate = event.sampling_probability
            return _sampled(event.event, count, sampling_rate=rate, neighboring_relation=relation) if rate else ()
        case theirs.SampledWithoutReplacementDpEvent():
            size, rows = event.sample_size, event.source_dataset_size
            batches = dict(batch_size=size, num_data=rows)
            return _sampled(event.event, count, relation, **batches) if size else ()
    for name in ("events", "privacy_report"):
        if hasattr(event, name):
            raise ConfigurationError(
                f"{a(type(event).__name__)} is given in place of events; give its "
                f"{'events' if name == 'events' else 'privacy_report().events'}."
            )
    if not isinstance(event, theirs.DpEvent):
        raise ConfigurationError(
            f"events are GaussianEvents, and {a(type(event).__name__)} is given; write "
            "accounting.GaussianEvent(noise_multipliers=((10.0, 400),)) for 400 accesses with a noise multiplier of 10."
        )
    raise ConfigurationError(
        f"{type(event).__name__} is neither a GaussianEvent nor a DpEvent of Gaussian accesses to all rows, to Poisson "
        "batches or to batches without replacement; account for it with dp_accounting."
    )


def _sampled(inner: DpEvent, count: int, neighboring_relation: str, **batches: Any) -> tuple[GaussianEvent, ...]:
    """`count` random batches, each seen by all the accesses of `inner`."""
    seen = _accesses(inner, 1, neighboring_relation)
    if any(not e.is_full_batch for e in seen):
        raise ConfigurationError(
            "a DpEvent that samples from a sample is not supported; give the rate of both together."
        )
    if not seen:
        return ()
    sigma = seen[0].noise_multipliers[0][0] if sum(e.num_accesses for e in seen) == 1 else 1 / gaussian_mu(seen)
    return (GaussianEvent(noise_multipliers=((sigma, count),), neighboring_relation=neighboring_relation, **batches),)


@checked
def to_dp_event(events: Events, *, divisor: float = 1.0) -> DpEvent:
    """The same accesses as a dp_accounting DpEvent, noise multipliers divided by `divisor`.

    Full-batch accesses of any multipliers are one Gaussian access with multiplier (sum of sigma^-2)^(-1/2), exactly.

    >>> to_dp_event(GaussianEvent(noise_multipliers=((10.0, 100),))).events[0].noise_multiplier
    1.0
    """
    import dp_accounting

    positive(divisor, name="divisor")
    parts: list[DpEvent] = []
    for e in as_events(events):
        if min(e.noise_multipliers)[0] == 0:
            return dp_accounting.NonPrivateDpEvent()
        if e.is_full_batch:
            parts.append(dp_accounting.GaussianDpEvent(1 / (divisor * gaussian_mu([e]))))
            continue
        for sigma, count in e.noise_multipliers:
            gaussian = dp_accounting.GaussianDpEvent(sigma / divisor)
            sampled: DpEvent
            if e.batch_size is not None:
                sampled = dp_accounting.SampledWithoutReplacementDpEvent(e.num_data, e.batch_size, gaussian)
            else:
                sampled = dp_accounting.PoissonSampledDpEvent(e.sampling_rate, gaussian)
            parts.append(dp_accounting.SelfComposedDpEvent(sampled, count))
    return dp_accounting.ComposedDpEvent(parts)
