"""Runs in which rows are canaries: what an attacker who sees every release learns of each of them.

A run's proved programs are compiled with other accesses at their doors, as for a replay. Each access uses the door's own
subsampling, clipping, sum and noise. Rows that a coin leaves out add nothing.
"""

from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from dpppl.access.door import Access, noisy_statistic, one_by_one
from dpppl.accounting.events import GaussianEvent
from dpppl.contrib.audit.tape import for_host, taped
from dpppl.errors import ConfigurationError
from dpppl.runs.budget import Charge, events_of
from dpppl.types import BySite, Function, Traced, Tree

_CANARY, _ROW, _LONG = "(canary)", "(row)", 1e6
_MOST_COORDINATES = 1024
_BATCH = 10_000

Array = np.ndarray


@dataclass(eq=False)
class Charged:
    """A watcher (see runs.watching) that keeps what a run was charged.

    - **charges** - the begun part of each charge, by run and number."""

    charges: dict[tuple[str, int], Charge] = field(default_factory=dict)

    def charged(self, run: tuple[str, int], charge: Charge, first: int, until: int) -> None:
        """Note a charge: see `runs.watching.Watcher`."""
        self.charges[run] = charge.begun(until)

    def program(self, closed: Traced, digest: str) -> Traced:
        """Return the program with this watcher at its doors."""
        return taped(closed, self)

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """The charged events, for the accountant."""
        return events_of(list(self.charges.values()))

    @property
    def sees_all(self) -> bool:
        """Whether every charged access looks at all rows."""
        return all(charge.mechanism.subsampling.rate == 1.0 for charge in self.charges.values())


@dataclass(eq=False)
class ManyCanaries(Charged):
    """One run in which every row is a canary, in or out by a coin of its own.

    - **kind** - "gradient": a row adds a random vector of the largest length; "row": what it adds in the audited run.
    - **seed** - of the coins.
    - **coins** - whether each row is in.
    - **scores** - log likelihood ratio of each row being in, of all releases so far."""

    kind: str = "gradient"
    seed: int = 0
    coins: Array | None = None
    scores: Array | None = None

    def access(self, access: Access, *operands: Tree) -> Tree:
        """Return what an access releases, and add up scores."""
        _check(access)
        count = operands[access.roles.rows[0]].shape[0]
        if self.coins is None:
            self.coins, self.scores = np.random.default_rng(self.seed).random(count) < 0.5, np.zeros(count)
        if len(self.coins) != count:
            raise ConfigurationError("the audited runs have different numbers of rows: audit one data set at a time.")
        one: Function = partial(scored, access, self.kind, jnp.asarray(self.coins, jnp.float32))
        outputs, scores = reduce(one_by_one, access.chains, one)(*operands)
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs]
        return jax.pure_callback(self._through, like, scores, outputs)

    def _through(self, scores: jax.Array, outputs: Tree) -> Tree:
        """On the host, with NumPy only."""
        assert self.scores is not None
        self.scores += np.asarray(scores, np.float64).reshape(-1, len(self.scores)).sum(axis=0)
        return [np.asarray(x) for x in outputs]


@dataclass(eq=False)
class Recorded(Charged):
    """A run of which every access is kept, without rows, so that it can be attacked many times.

    - **made** - by access (without its chains), its shapes of rows, and the operands of each time."""

    made: dict[Access, tuple[Any, list[list[Array]]]] = field(default_factory=dict)

    def access(self, access: Access, *operands: Tree) -> Tree:
        """Return what an access releases, and keep its operands."""
        _check(access)
        alone = replace(access, chains=())
        shapes = [jax.ShapeDtypeStruct(operands[k].shape, operands[k].dtype) for k in access.roles.rows]
        kept = self.made.setdefault(alone, (shapes, []))[1]
        outputs = access(*operands)
        given, _ = for_host(access, operands)
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs]
        lead = outputs[0].shape[: len(access.chains)]

        def through(given: Tree, outputs: Tree) -> Tree:
            for chain in np.ndindex(*lead):
                kept.append([np.array(x[chain]) for x in map(np.asarray, given)])
            return [np.asarray(x) for x in outputs]

        return jax.pure_callback(through, like, given, list(outputs))

    def attacked(self, num_trials: int, seed: int) -> tuple[Array, Array]:
        """Return log likelihood ratios of `num_trials` runs, half with a canary in the first row and half without.

        - **seed** - of the noise."""
        keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), (2, num_trials // 2))
        total = [np.zeros(num_trials // 2), np.zeros(num_trials // 2)]
        for number, (access, (shapes, made)) in enumerate(self.made.items()):
            if (
                not made
            ):  # a program that was compiled, and that another one replaced: a run at its frame is compiled twice
                continue
            stacked = [np.stack(values) for values in zip(*made)]
            ratio = jax.jit(jax.vmap(partial(_ratio, access, shapes, number, stacked), in_axes=(None, 0)))
            for values, present, half in zip(total, (1.0, 0.0), keys):
                for start in range(0, len(half), _BATCH):
                    values[start : start + _BATCH] += np.asarray(ratio(present, half[start : start + _BATCH]))
        return total[0], total[1]


def _check(access: Access) -> None:
    if access.placement is not None:
        raise ConfigurationError("an audit takes rows in memory on one device: leave mesh= out, load what is on disk.")


def _ratio(access: Access, shapes: Tree, number: int, stacked: Tree, present: object, key: Any) -> jax.Array:
    """Log likelihood ratio of all that the accesses of a kind release, with a canary or without."""
    few = 2 if access.mechanism.subsampling.rate == 1.0 else shapes[0].shape[0]  # no other row adds anything
    rows = [jnp.zeros((few, *x.shape[1:]), x.dtype) for x in shapes]
    coins = jnp.zeros(few).at[0].set(present)
    rate = access.mechanism.subsampling.rate

    def one(total: jax.Array, given: Tree) -> tuple[jax.Array, None]:
        place, *others = given
        operands = with_rows(access, rows, others, jax.random.fold_in(jax.random.fold_in(key, number), place))
        _, x, sigma = of_first(access, coins, fixed, *operands)
        return total + jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + (x - 0.5) / sigma**2), None

    fixed = jax.random.key(number, impl="threefry2x32")
    places = jnp.arange(len(stacked[0]), dtype=jnp.uint32)
    return jax.lax.scan(one, jnp.zeros(()), (places, *map(jnp.asarray, stacked)))[0]


def with_rows(access: Access, rows: Tree, others: Tree, key: jax.Array) -> list[Tree]:
    """Return the operands of one chain's access: its rows and other operands, in order, and a key in place of its own."""
    own, rest = iter(rows), iter(others)
    operands = [next(own) if k in access.roles.rows else next(rest) for k in range(len(jax.tree.leaves(access.parts)))]
    operands[access.roles.key] = key
    return operands


def of_first(access: Access, coins: Tree, own: Tree, *operands: Tree) -> tuple[list[Tree], Tree, Tree]:
    """Return the outputs of one chain's access, and the released sum along what the first row adds with its noise.

    Both are in units of the length of what the row adds. Rows whose **coins** (N,) are 1 add random vectors of the largest
    length, whose key is **own**."""
    outputs, adds, released, sigma = _release(access, "gradient", coins, own, *operands, first=1)
    return outputs, adds[0] @ released / jnp.linalg.norm(adds[0]), sigma


def scored(access: Access, kind: str, coins: Tree, *operands: Tree) -> Tree:
    """Return the outputs of one chain's access, and the score of each row (N,).

    A score is the log likelihood ratio of being in, where other rows, in or out, are normal noise.

    - **kind** - see `ManyCanaries`.
    - **coins** - (N,) 1 for rows that are in, 0 for others.
    """
    key, step = (
        jnp.ravel(x)[0] for x in (jax.random.key_data(operands[access.roles.key]), operands[access.roles.step])
    )
    own = jax.random.fold_in(jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), key), step)
    outputs, adds, released, sigma = _release(access, kind, coins, own, *operands)
    chance = 0.5 * access.mechanism.subsampling.rate
    off = released - chance * jnp.sum(adds, axis=0)
    if adds.shape[1] > _MOST_COORDINATES:
        return outputs, adds @ off / sigma**2
    spread = sigma**2 * jnp.eye(adds.shape[1]) + chance * (1.0 - chance) * adds.T @ adds
    return outputs, adds @ jnp.linalg.solve(spread, off)


def _release(
    access: Access, kind: str, coins: Tree, own: Tree, *operands: Tree, first: int | None = None
) -> tuple[list[Tree], Tree, Tree, Tree]:
    """An access in which rows speak by their coins. Returns its outputs; the vectors that the `first` rows add (N, D), and the
    released one (D,), in units of the clipping norm; and the sd of the noise of the latter. `own`: key of the directions of
    canaries."""
    z, rows, public, captured, key, sigma, step = jax.tree.unflatten(access.inputs, operands)
    mechanism = access.mechanism
    with jax.enable_x64(access.x64):
        of_row, given, like = _row(access, kind, captured, rows, own)
        numbers = {} if access.number is None else {access.number: jnp.arange(len(coins), dtype=jnp.int32)}
        whole = {_ROW: given | numbers, _CANARY: jnp.ones(len(coins))}
        whole = jax.tree.map(lambda x: x[:first], whole)
        ones = jnp.ones(len(coins[:first]), bool)

        def statistic(z: BySite, row: Tree, public: Tree) -> Tree:
            row = dict(row)
            coin, inside = row.pop(_CANARY), row.pop(_ROW)
            found = of_row(z, inside | row, public)
            return jax.tree.map(lambda leaf: jnp.where(coin > 0, leaf, jnp.zeros_like(leaf)), found)

        settings = dict(key=key, noise_multiplier=sigma, step=step, number=access.number)
        found = noisy_statistic(mechanism, statistic, z, {_ROW: given, _CANARY: coins}, public, **settings)
        vectors = jax.vmap(statistic, (None, 0, None))(z, whole, public)
        adds = jnp.concatenate(
            [x.reshape(len(ones), -1) for x in jax.tree.leaves(mechanism.clipping.clip(vectors, ones))], 1
        )
        leaves = jax.tree.leaves(found.total)
        released = jnp.concatenate([jnp.ravel(x) for x in leaves]) / mechanism.clipping.clipping_norm
        outputs = [*leaves, *([found.count] if mechanism.counts else [])]
        outputs = [x.astype(y.dtype) for x, y in zip(outputs, [*like, *outputs[len(like) :]])]
        return outputs, adds, released, sigma / (1.0 - mechanism.count_share) ** 0.5


def _row(access: Access, kind: str, captured: object, rows: Tree, own: Tree) -> tuple[Function, Tree, Tree]:
    """The statistic of a row that is a canary, the rows that it takes, a dict, and the shapes of what it gives."""
    forms = access.forms
    like = [v.aval for v in access.program.outvars] if forms is None else jax.tree.leaves(forms.like)
    tree = access.output if forms is None else forms.tree
    if kind == "row":
        if forms is not None:
            raise ConfigurationError(
                'canaries="row" needs gradients that are formed: give the method gradient_strategy="vmap".'
            )
        program = jaxpr_as_fun(ClosedJaxpr(access.program, jax.tree.leaves(captured)))
        is_dict = isinstance(rows, dict)

        def of_row(z: BySite, row: Tree, public: Tree) -> Tree:
            row = row if is_dict else row[_ROW]
            return jax.tree.unflatten(tree, program(*jax.tree.leaves((z, row, public))))

        return of_row, rows if is_dict else {_ROW: rows}, like
    sizes = [int(np.prod(x.shape)) for x in like]
    count = jax.tree.leaves(rows)[0].shape[0]
    vectors = jax.random.normal(own, (count, sum(sizes)), jnp.float32)

    def direction(z: BySite, row: Tree, public: Tree) -> Tree:
        pieces = jnp.split(_LONG * row["vector"], np.cumsum(sizes)[:-1])
        return jax.tree.unflatten(tree, [p.reshape(x.shape).astype(x.dtype) for p, x in zip(pieces, like)])

    return direction, {"vector": vectors}, like
