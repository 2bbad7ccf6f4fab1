"""Where a run's randomness and starting values come from, and how far it got: types, and their words for the report."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import jax

from dpppl.randomness import keys

T = TypeVar("T", bound=Hashable)


class Status(StrEnum):
    """How far what is reported got."""

    NOTHING = "nothing run"
    PLANNED = "planned"
    INTERRUPTED = "interrupted"
    COMPLETE = "complete"
    NOT_FINITE = "complete, with values that are not finite"
    BY_HAND = "run step by step"
    UNDER_NUMPYRO = "run under numpyro.infer.MCMC"


class KeySource(StrEnum):
    """Who made a key."""

    ENTROPY = "the operating system's entropy"
    CALLER = "supplied by the caller"
    SEED = "made from a short seed that can be guessed"
    STATE = "held in states that the caller keeps"


_OF_KEYS = {
    KeySource.ENTROPY: "",
    KeySource.CALLER: ": the run is reproducible by whoever knows the key, and the seed must stay secret",
    KeySource.SEED: ": whoever guesses the seed can subtract the noise; the guarantee holds only against others",
    KeySource.STATE: ": the states hold the key: keep them and their pickles secret",
}


@dataclass(frozen=True)
class KeyOrigin:
    """Where a key comes from.

    - **source** - who made it.
    - **generator** - JAX's name of the generator, in words."""

    source: KeySource
    generator: str

    @classmethod
    def of(cls, key: jax.Array) -> "KeyOrigin":
        """The origin of a typed key."""
        short = KeySource.SEED if keys.is_guessable(key) else KeySource.CALLER
        return cls(KeySource.ENTROPY if keys.is_issued(key) else short, keys.generator_of(key))

    def __str__(self) -> str:
        return f"{self.source} ({self.generator}){_OF_KEYS[self.source]}"


class Start(StrEnum):
    """Where first values come from."""

    PRIOR_MEDIAN = "prior median"
    PRIOR_SAMPLE = "prior sample"
    PRIOR_MEAN = "prior mean"
    FRAME = "the centre of a private frame"
    NUMPYRO = "a strategy of NumPyro's, from the prior alone"
    GUIDE = "the guide's, on made-up rows"
    SUPPLIED = "supplied by the user: assumed independent of the data"
    STATE = "a state supplied by the user: assumed private output"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the runs of a report come from.

    - **status** - how far the last one got.
    - **keys** - origins of their keys, each once.
    - **starts** - origins of their starting values, each once."""

    status: Status = Status.NOTHING
    keys: tuple[KeyOrigin, ...] = ()
    starts: tuple[Start, ...] = ()

    def and_now(self, status: Status, key: KeyOrigin | None = None, start: Start | None = None) -> "Provenance":
        """This provenance with one more run."""
        return Provenance(status=status, keys=_with(self.keys, key), starts=_with(self.starts, start))

    def ended(self, status: Status) -> "Provenance":
        """The same runs at another status."""
        return replace(self, status=status)

    @property
    def key_origin(self) -> str:
        """The keys in words."""
        unused = {Status.PLANNED: "chosen when the run starts"}.get(self.status, "none yet")
        return ", and ".join(map(str, self.keys)) or unused

    @property
    def initial_values(self) -> str:
        """The starts in words."""
        return ", and ".join(self.starts)


def _with(known: tuple[T, ...], new: T | None) -> tuple[T, ...]:
    return known if new is None or new in known else (*known, new)
