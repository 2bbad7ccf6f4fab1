"""Many runs of `dpppl.NoiseAware` with one model on data sets of one shape: it is bound, proved and compiled once.

    once = Once()
    for x, y in data_sets:
        private = dpppl.NoiseAware(model, target_epsilon=1.0, target_delta=1e-5)
        with once:
            private.run(dpppl.secret_key(), x, y)

Every run makes and charges all its accesses, with a key of its own. Only budgets may differ from run to run. `recorded` keeps what each
repetition found in a file, so that a measurement may be broken off and taken up again.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

from dpppl.model.units import grouped
from dpppl.noise_aware import runner
from dpppl.randomness import keys
from dpppl.runs.driver import TRACING


class Once:
    """What the first run in this context has bound and compiled, for all others."""

    def __init__(self):
        self._bound, self._programs, self._bind, self._prepared = None, None, runner.bind, runner.prepared

    def _bind_once(self, settings, args, kwargs, key):
        if self._bound is None:
            self._bound = self._bind(settings, args, kwargs, key)
            prior = self._bound.coordinates.prior(self._bound.public, key)
            object.__setattr__(self._bound.coordinates, "prior", lambda *_: prior)
            return self._bound
        unit = settings.unit
        args, kwargs = grouped(settings.model, args, kwargs, unit.ids, unit.max_rows, keys.stream(key, "units"))
        with TRACING:
            return replace(self._bound, rows=self._bound.split.arrays(args, kwargs, settings.mesh)[0])

    def _prepared_once(self, *arguments):
        self._programs = self._programs or self._prepared(*arguments)
        return self._programs

    def __enter__(self):
        runner.bind, runner.prepared = self._bind_once, self._prepared_once

    def __exit__(self, *_):
        runner.bind, runner.prepared = self._bind, self._prepared


def recorded(file, cell, seeds, run, seconds=float("inf")):
    """What `run(seed)` finds, a dict of numbers and lists, for each seed; kept in a file of JSON lines, if one is given."""
    path, start = Path(file) if file else None, time.monotonic()
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []
    found = {line["seed"]: line["found"] for line in lines if line["cell"] == cell}
    for seed in seeds:
        if seed in found or time.monotonic() - start > seconds:
            continue
        found[seed] = run(seed)
        if path:
            with path.open("a") as out:
                out.write(json.dumps({"cell": cell, "seed": seed, "found": found[seed]}) + "\n")
    return [found[seed] for seed in seeds if seed in found]
