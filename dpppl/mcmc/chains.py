"""The chains of a run: first states, which of them run in one program, their cost and plan, and which failed."""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.util import nested_attrgetter

from dpppl.errors import ConfigurationError
from dpppl.mcmc.bound import BoundKernel
from dpppl.mcmc.dynamics import Dynamics
from dpppl.randomness import keys
from dpppl.runs import placing
from dpppl.runs.budget import Charge
from dpppl.runs.driver import NUM_CHUNKS, TRACING, Method, RunPlan
from dpppl.types import Function, Tree

_MOST_NUMBERS = 2**26
_MAPPINGS: dict[str, Function | str] = {"parallel": "pmap", "vectorized": jax.vmap}
"""How the chunk of one chain becomes that of all chains that run together, by NumPyro's names; see `Method.mapping`."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """The call of a run: its arguments, how many chains there are, which steps they take, and which states are collected.

    - **rows**, **public** - the private rows and the Public arrays among the model's arguments.
    - **fields** - fields of the state that the caller wants.
    - **removed** - latent sites that the caller leaves out.
    - **discarded** - steps before those that are collected.
    - **num_collected** - how many states of each chain are collected.
    - **thinning** - steps from one collected state to the next.
    - **init_params** - unconstrained starting values by site, or None.
    - **resume** - last states of an earlier run, which this one goes on from, or None.
    - **num_chains** - number of chains.
    - **num_warmup** - warmup steps of each.
    - **chain_method** - "parallel", "vectorized", "sequential" or a transform like jax.vmap."""

    rows: Tree
    public: Tree
    fields: tuple[str, ...]
    removed: tuple[str, ...] = ()
    discarded: int
    num_collected: int
    thinning: int = 1
    init_params: Tree = None
    resume: Tree = None
    num_chains: int = 1
    num_warmup: int = 0
    chain_method: str | Function = "parallel"

    @property
    def first(self) -> int:
        """Number of the run's first step, from 0."""
        return 0 if self.resume is None else int(np.max(np.asarray(self.resume.i)))

    @property
    def together(self) -> bool:
        """Whether all chains run in one program."""
        return self.num_chains == 1 or self.chain_method != "sequential"

    @property
    def num_steps(self) -> int:
        """Steps of each chain."""
        return self.discarded + self.num_collected * self.thinning

    def charges(self, kernel: Dynamics) -> list[Charge]:
        """The cost of each group of chains that run in one program."""
        groups, chains = (1, self.num_chains) if self.together else (self.num_chains, 1)
        return [kernel.charge(self.first, self.num_steps, chains)] * groups

    def method(self, step: Function, fields: tuple[str, ...], mapping: object) -> Method:
        """The driver's `Method`, for `step(state, rows, public)`, which returns the next state, of which it keeps `fields`."""
        return Method(
            step=lambda state, rows, public: (step(state, rows=rows, public=public), None),
            last=lambda state: tuple(nested_attrgetter(name)(state) for name in fields), discarded=self.discarded,
            num_steps=self.num_steps, length=max(1, -(-self.num_steps // NUM_CHUNKS)), thinning=self.thinning, mapping=mapping,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Chains:
    """The chains of a run before it looks at any data.

    - **bound** - the kernel, bound to the run's arguments.
    - **call** - what was asked for.
    - **states** - first states, a batch of them for several chains."""

    bound: BoundKernel
    call: Call
    states: Tree

    @classmethod
    def starting(cls, bound: BoundKernel, key: jax.Array, call: Call) -> "Chains":
        """First states, and checks of what can be refused without the data. Raises ConfigurationError."""
        with TRACING:
            # A stream of its own: keys that the caller splits off the same key must give a run other noise.
            states = _first_states(bound, keys.stream(key, "chains"), call)
        check_fields(call.fields, states)
        bound.kernel.check_noise(bound.kernel.noise_std(*bound.kernel.schedule(call.first, call.num_steps)))
        return cls(bound=bound, call=call, states=states)

    @cached_property
    def groups(self) -> list[Tree]:
        """First states of the chains that run together, group by group."""
        return [self.states] if self.call.together else unstack(self.states)

    @property
    def one(self) -> Tree:
        """The first state of one chain."""
        return unstack(self.states)[0] if self.call.num_chains > 1 else self.states

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Fields of the state that are collected: those of the call, and those that verdicts are made of."""
        own = {"clipped"} if self.bound.kernel.mechanism.counts else set()
        if sum(np.size(leaf) for leaf in jax.tree.leaves(self.states.z)) * self.call.num_collected <= _MOST_NUMBERS:
            own.add("z")  # positions, which tell with the samples how long steps are
        return (*self.call.fields, *sorted(own - set(self.call.fields)))

    def plan(self, warmup: int = 0, print_cost: bool = False, progress_bar: bool = False) -> RunPlan:
        """The driver's plan for these chains; `warmup`: steps that the progress bar calls warmup."""
        call, how, mapping = self.call, self.call.chain_method, None
        if len(self.groups) == 1 and call.num_chains > 1:
            mapping = placing.mapping_on(how if callable(how) else _MAPPINGS[how], call.rows)
        return RunPlan(
            method=call.method(self.bound.step, self.fields, mapping), chain_groups=self.groups, rows=call.rows,
            public=call.public, charges=call.charges(self.bound.kernel),
            what=type(self.bound.kernel).__name__, notes=self.bound.split.notes,
            print_cost=print_cost, progress_bar=progress_bar,
            settings=(call.first, call.discarded, call.num_collected, call.thinning),
            describe=lambda done: "warmup" if done <= warmup else "sample",
        )  # fmt: skip


def _first_states(bound: BoundKernel, key: jax.Array, call: Call) -> Tree:
    num_chains, init_params, resume = call.num_chains, call.init_params, call.resume
    if init_params is not None and resume is not None:
        raise ConfigurationError(
            "post_warmup_state, which warmup() leaves, too, holds the position that a run goes on from: leave init_params out, "
            "or give them to warmup(rng_key, ..., init_params=...) of a new MCMC."
        )
    chain_key = jax.random.split(key, num_chains) if num_chains > 1 else key
    if init_params is not None:
        try:
            init_params = jax.tree.map(jnp.asarray, init_params)
        except (TypeError, ValueError):
            raise ConfigurationError("init_params holds numbers by site, unconstrained: {'mu': 0.3}.") from None
        leading = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(init_params)}
        if num_chains > 1 and leading != {(num_chains,)}:
            raise ConfigurationError("`init_params` must have the same leading dimension as `num_chains`.")
        if not_finite(init_params, 1):
            raise ConfigurationError("init_params must be finite.")
    states = bound.init(chain_key, call.num_warmup if resume is None else 0, init_params, call.public)
    if resume is None:
        return states
    if type(resume) is not type(states) or type(resume.own) is not type(states.own):
        raise ConfigurationError(
            f"post_warmup_state is a {type(resume).__name__}; give the last_state of a run of this kernel: "
            "mcmc.post_warmup_state = mcmc.last_state."
        )
    resume = resume._replace(rng_key=states.rng_key, clipped=states.clipped)
    if (resume.search is None) != (states.search is None):  # of other coordinates, or of steps that were not searched
        resume = resume._replace(search=states.search, own=states.own)
    if jax.tree.map(jnp.shape, resume) != jax.tree.map(jnp.shape, states) or len(np.unique(np.asarray(resume.i))) != 1:
        raise ConfigurationError("post_warmup_state does not fit this model and number of chains.")
    if np.min(np.asarray(resume.i)) < 0:
        raise ConfigurationError("post_warmup_state holds a negative number of steps.")
    return jax.tree.map(jnp.asarray, resume)


def unstack(states: Tree) -> list[Tree]:
    """The states of each chain."""
    count = len(jax.tree.leaves(states)[0])
    return [jax.tree.map(lambda leaf: leaf[chain], states) for chain in range(count)]  # noqa: B023


def not_finite(values: jax.Array, num_chains: int) -> tuple[int, ...]:
    """Numbers of the chains with values that are not finite; several chains are stacked along the first axis."""
    chains = unstack(values) if num_chains > 1 else [values]
    finite = [all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(chain)) for chain in chains]
    return tuple(number for number, ok in enumerate(finite) if not ok)


def fields_to_collect(
    sample_field: str, default_fields: tuple[str, ...], extra_fields: object
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(fields of the state to collect, latent sites to leave out), from what NumPyro's `extra_fields` may name."""
    if not isinstance(extra_fields, tuple | list):
        raise ConfigurationError("extra_fields must be a tuple or a list of names.")
    names = list(dict.fromkeys((sample_field, *default_fields, *extra_fields)))
    removed = tuple(name[len("~z.") :] for name in names if name.startswith("~z."))
    return tuple(name for name in names if not name.startswith("~z.")), removed


def check_fields(fields: tuple[str, ...], states: Tree) -> None:
    """Refuse fields that the state does not have, and every way to name its key (NumPyro also takes positions)."""
    for name in fields:
        try:
            leaves = jax.tree.leaves(nested_attrgetter(name)(states))
        except (AttributeError, LookupError, TypeError):
            leaves = []
        if not (leaves and all(isinstance(leaf, jax.Array) for leaf in leaves)):
            raise ConfigurationError(f"extra_fields: the state of this kernel has no field '{name}'.")
        if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
            raise ConfigurationError("extra_fields cannot name rng_key: whoever holds the key can subtract the noise.")
