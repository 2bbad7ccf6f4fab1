"""How long a run takes, from what is known before any data are touched."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax

from dpppl.jaxprs import equations
from dpppl.model.responses import Responses
from dpppl.model.split import SplitModel
from dpppl.model.supports import count

_START, _NUMBER, _LONG = 4.0, 2.5e-9, 30.0
_CHAINS, _OF_PAIR, _OF_MOVES = 3.0, 1e-3, 1e-3
"""Seconds, measured on one core: of a first run, of one of a row's numbers in a gradient, and of a run that is long, three times
a usual one; of chains, and of them by pairs of latents and by triples of those that are placed given all others."""


class Duration(NamedTuple):
    """Seconds of an idle core, good to a factor of about two.

    - **start**, **again** - of tracing, the proof and compilation in a new process, and where it has made such a run before.
    - **accesses** - of all of them.
    - **chains** - of NUTS, which draws where weighted draws do not do: not under normal priors."""

    start: float
    again: float
    accesses: float
    chains: float

    @classmethod
    def of(
        cls, split: SplitModel, gradients: float, responses: Responses | None = None, moves: Sequence[str] = ()
    ) -> "Duration":
        """From a row's program and the number of gradients of rows; of NoiseAware also from responses and `Coordinates.moves`."""
        program = jax.make_jaxpr(split.log_likelihood)(split.latents, split.row, split.arguments.public)
        every = list(equations(program))
        numbers = sum(math.prod(getattr(v.aval, "shape", ())) for e in every for v in e.outvars)
        members, chains = 1, 0.0
        if responses is not None:
            sizes = {name: math.prod(x.shape) for name, x in split.latents.items()}
            if not (responses.is_binary or responses.is_shared):
                members = responses.num_draws if responses.supports is None else count(responses.supports)
            moved = sum(sizes[name] for name in moves)
            chains = _CHAINS + _OF_PAIR * sum(sizes.values()) ** 2 + _OF_MOVES * moved**3
        return cls(
            _START + 0.035 * len(every), 0.5 + 0.02 * len(every), _NUMBER * numbers * members * gradients, chains
        )

    def after(self, frame: "Duration") -> "Duration":
        """The duration of chains or of SVI whose frame makes the accesses of a NoiseAware run first."""
        start, again = self.start + frame.start - _START, self.again + frame.again
        return self._replace(start=start, again=again, accesses=self.accesses + frame.accesses)

    def words(self, times: float) -> str:
        """The seconds in words, on a machine that takes `times` an idle core's."""
        shown = [times * seconds for seconds in (self.start + self.accesses, self.again + self.accesses, self.chains)]
        first, again, chains = (f"{seconds:.2g}" if seconds < 100.0 else f"{seconds:,.0f}" for seconds in shown)
        nuts = f", {chains} s more where NUTS draws" if self.chains else ""
        return f"about {first} s, and {again} s when repeated in one process{nuts}"

    def line(self, is_normal: bool) -> str | None:
        """Return a line for a run that is about to begin, if it is long; `is_normal`: its prior, which needs no NUTS."""
        chains = 0.0 if is_normal else self.chains
        nuts = f", and {chains:.2g} s if NUTS has to draw" if chains else ""
        line = f"It will take about {self.accesses:.2g} s more{nuts}, on an idle core and within a factor of about two."
        return None if self.accesses + chains < _LONG else line
