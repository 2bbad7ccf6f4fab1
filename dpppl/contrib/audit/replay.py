"""Record and replay: with the same releases, nothing else of a run may depend on a row."""

import contextlib
import dataclasses
import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpppl.access.clipping import SLACK
from dpppl.accounting.relations import relation_of
from dpppl.contrib.audit.tape import Tape
from dpppl.errors import ConfigurationError
from dpppl.jaxprs import is_key
from dpppl.mcmc.runner import MCMC
from dpppl.noise_aware.runner import NoiseAware
from dpppl.randomness.keys import as_key, claims_apart, secret_key
from dpppl.runs.watching import watched_by
from dpppl.svi.result import SVIResult
from dpppl.types import Function
from dpppl.validation import checked

_MOST = 20
_TIMED = re.compile(r"\r[^\r\n]*|[\d.]+ [sh] of reading")


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The result of a replay. `consistent` is False if a row entered anything but the releases, or moved these too far.

    - **differences** - what differs between the two runs or breaks the charge, in words that hold no value.
    - **num_accesses** - accesses of the run.
    - **num_programs** - programs that were proved, compiled and compared.
    - **num_results** - arrays, texts and numbers that were compared.
    - **moved** - largest change of an access's clipped sum between the data sets, in units of what is charged for.

    >>> Replayed(differences=(), num_accesses=10, num_programs=1, num_results=5, moved=0.9).consistent
    True
    """

    differences: tuple[str, ...]
    num_accesses: int
    num_programs: int
    num_results: int
    moved: float

    @property
    def consistent(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


@checked
def replay(
    runner: Function, args: tuple[object, ...], neighbour_args: tuple[object, ...], *, rng_key: jax.Array | None = None,
    neighboring_relation: str = "replace_one",
) -> Replayed:  # fmt: skip
    """Run on one data set, then on a neighbour with the first run's releases, and compare all else bit for bit.

    Compared are results, printed text, warnings and errors, digests of programs, charges, and number, order, noise multipliers
    and public operands of the accesses. An access's own clipped sums on both data sets may differ by what is charged. The noise
    must be as large as its noise multiplier says (false alarms: one in a million), and other noise in each access.

    - **runner** - `runner(rng_key, *args)` makes new objects, runs them, and returns all that is to be published: an `MCMC`,
      a `NoiseAware`, an `SVIResult`, a number, or a dict, tuple or dataclass of these and of arrays. A `pathlib.Path` stands for
      all that a file or folder holds.
    - **args**, **neighbour_args** - arguments of the two runs, on made-up data or data of the auditor's own. Both have the same
      shapes, and one row (or unit) of one differs.
    - **rng_key** - the key of both runs; None: a new one.
    - **neighboring_relation** - "replace_one" for another row in its place; "zero_out" where the neighbour's row contributes
      nothing (for example, a row of NaN), so that half of the change is allowed.

    Covers runs of `MCMC`, `SVI.run`, `NoiseAware`, `private_score`, SVI's queries and `tune`, with rows in memory, on disk or on
    a mesh, with persons, checkpoints and ledgers. Progress bars, and ids of runs and times in files, are left out.
    A replay can find a fault and never prove that there is none.
    Raises what the first run raises, and ConfigurationError where it makes no access.

    >>> import dpppl, numpy as np, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> def runner(rng_key, y):
    ...     mcmc = dpppl.MCMC(dpppl.DPSGLD(model, clipping_norm=1.0, noise_multiplier=5.0), num_warmup=5, num_samples=5)
    ...     mcmc.run(rng_key, y)
    ...     return mcmc
    >>> y = np.ones(100, np.float32)
    >>> found = replay(runner, (y,), (np.append(y[:-1], np.float32(1e30)),))
    >>> found.consistent, found.num_accesses
    (True, 10)
    >>> replay(lambda key, y: (runner(key, y), y.max()), (y,), (np.append(y[:-1], np.float32(1e30)),)).differences
    ('results: [1] differs',)
    """
    for name, value in (("args", args), ("neighbour_args", neighbour_args)):
        if not isinstance(value, tuple | list):
            raise ConfigurationError(f"{name} must be a tuple of the runner's arguments, such as (y,).")
    shapes = [[getattr(value, "shape", ()) for value in values] for values in (args, neighbour_args)]
    if shapes[0] != shapes[1]:
        raise ConfigurationError(
            f"args and neighbour_args must have the same shapes, and are {shapes[0]} and {shapes[1]}: replace one row, or write "
            "NaN in its place."
        )
    key, allowed = secret_key() if rng_key is None else as_key(rng_key), relation_of(neighboring_relation).sensitivity
    first = _run(runner, key, args, Tape())
    if first.error is not None:
        raise first.error
    if not first.tape.accesses:
        raise ConfigurationError(
            "the runner made no access: it must make and run an MCMC, SVI, NoiseAware or query, with the key that it is given."
        )
    second = _run(runner, key, neighbour_args, Tape(before=first.tape))
    tapes, moved = (first.tape, second.tape), second.tape.moved / allowed
    found = [text for tape in tapes for text in tape.wrong_noise()]
    if moved > 1.0 + SLACK + 1e-5:
        found.append(f"a row moved an access's sum by {moved:.3g} times what is charged for")
    found += [*_compared(first, second), *(fault for tape in tapes for fault in tape.faults)]
    return Replayed(
        differences=tuple(dict.fromkeys(found))[:_MOST], num_accesses=len(first.tape.accesses),
        num_programs=len(first.tape.digests), num_results=len(first.facts), moved=moved,
    )  # fmt: skip


@dataclass(frozen=True)
class _Ran:
    """A run: its tape, digests of all that it returned, printed and raised, by name, and what it raised."""

    tape: Tape
    facts: dict[str, str]
    error: Exception | None


def _run(runner: Function, key: jax.Array, args: tuple[object, ...], tape: Tape) -> _Ran:
    out, err, result, raised = io.StringIO(), io.StringIO(), None, None
    with (
        watched_by(tape), claims_apart(), warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
    ):  # fmt: skip
        warnings.simplefilter("always")
        try:
            result = runner(key, *args)
        except Exception as error:
            raised = error
    # A bar is drawn as often as time allows, and a run from disk says how long it will read.
    texts = {"standard output": out, "standard error": err}
    facts = {"errors": _digest(f"{type(raised).__name__}: {raised}".encode())}
    facts |= {name: _digest(_TIMED.sub("", text.getvalue()).encode()) for name, text in texts.items()}
    facts["warnings"] = _digest(repr([(w.category.__name__, str(w.message)) for w in warned]).encode())
    return _Ran(tape, facts | (dict(_facts(result, "results: ")) if raised is None else {}), raised)


def _compared(first: _Ran, second: _Ran) -> Iterator[str]:
    """The differences, in words."""
    one, other = first.tape, second.tape
    if one.digests != other.digests:
        number = next((n for n, (a, b) in enumerate(zip(one.digests, other.digests)) if a != b), None)
        yield "another number of programs" if number is None else f"program {number} differs"
    if one.charges != other.charges:
        yield "charges differ"
    if _order(one) != _order(other):
        yield "number or order of accesses differs"
    for name in dict.fromkeys([*first.facts, *second.facts]):
        if first.facts.get(name) != second.facts.get(name):
            yield f"{name} differs" if name.startswith("results") else f"{name} differ"


def _order(tape: Tape) -> dict[bytes, list[bytes]]:
    """Steps of the accesses by key: chains on several devices run in any order."""
    found: dict[bytes, list[bytes]] = {}
    for key, step in tape.accesses:
        found.setdefault(key, []).append(step)
    return found


def _facts(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Digests of all that a result holds, by where it is."""
    if isinstance(value, MCMC):
        shown = dict(samples=value.get_samples(True, allow_unconverged=True), weights=value.get_weights())
        shown |= dict(state=value.last_state, fields=value.get_extra_fields(), verdicts=value.verdict.by_site)
        value = shown | dict(report=value.privacy_report(), text=str(value.privacy_report()))
    elif isinstance(value, NoiseAware):
        shown = dict(samples=value.get_samples(allow_unconverged=True), releases=value.releases, verdict=value.verdict)
        value = shown | dict(report=value.privacy_report(), text=str(value.privacy_report()))
    elif isinstance(value, SVIResult):
        shown = dict(params=value.params, state=value.state, trajectory=value.trajectory, gradients=value.gradients)
        value = shown | dict(convergence=value.convergence, report=value.report, text=str(value.report))
    if isinstance(value, Path):
        value = _contents(value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        yield name, _digest(repr(list(value)).encode())
        for key, each in value.items():
            yield from _facts(each, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        yield name, _digest(f"{type(value).__name__} {len(value)}".encode())
        for number, each in enumerate(value):
            yield from _facts(each, f"{name}[{number}]")
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        plain: Any = value
        array = np.asarray(jax.random.key_data(plain) if is_key(plain) else plain)
        yield name, _digest(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    else:
        yield name, _digest(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode())


def _contents(path: Path) -> Any:
    """All that a file or folder holds, but names of runs, times, and digests, which are other ones in each run."""
    if path.is_dir():
        return {each.name: each for each in sorted(path.iterdir())}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: _masked(str(x)) if x.dtype.kind == "U" else x for name, x in arrays.items()}
    return _masked(path.read_bytes().decode("latin-1"))


def _masked(text: str) -> str:
    return re.sub(r"[0-9a-f]{16,}|\d{4}-\d\d-\d\dT[\d:.+]*", "*", text)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
