"""SVI by hand: `init`, which is free, `update`, a charged access, and charged queries of ELBO and accuracy."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.data.rows import of_one_process, placement_of
from dpppl.errors import ConfigurationError
from dpppl.information_flow.row_free import proved
from dpppl.model.handlers import explained, failing_explained
from dpppl.model.refusals import check_captured
from dpppl.model.units import MASK
from dpppl.randomness import keys
from dpppl.report.provenance import KeyOrigin, KeySource, Start, Status
from dpppl.runs import single_steps
from dpppl.runs.budget import Charge
from dpppl.runs.driver import TRACING, clears_tracebacks, on_host, prepare
from dpppl.runs.private_runner import Inputs
from dpppl.runs.query import Query, noisy_query, query_charge
from dpppl.subsampling import Partition
from dpppl.svi import optimizers
from dpppl.svi.binding import bind_objective
from dpppl.svi.elbo import Objective, check_params
from dpppl.svi.settings import SVISettings
from dpppl.svi.step import SVIState, check_state
from dpppl.types import BySite, Function, Tree
from dpppl.validation import check_num_data, checked, positive_integer


class SVIByHand(SVISettings):
    """The methods of `dpppl.SVI` that make single accesses, and the binding that these and its runs begin with."""

    def _bind(
        self, key: jax.Array, args: tuple[object, ...], kwargs: dict[str, object], init_params: Tree = None
    ) -> tuple[Objective, SVIState]:
        """The ELBO, split, for these arguments, and the first state, which holds `key`."""
        self.unit.check_grouped(MASK in kwargs)
        with TRACING:
            objective, phi = bind_objective(self, keys.stream(key, "initial values"), args, kwargs, init_params)
            self._label(objective.split)
            self._wide = None if objective.wide_scale is None else objective
            if self._metric is None:
                self._also_captured(optimizers.check_without_loss(self.optim, phi, objective.split.num_rows))
            else:
                objective = replace(objective, metric=self._metric)
                phi = phi if init_params is not None else self.optim.movement.start()
            init = proved(self.optim.init, phi, num_rows=objective.split.num_rows)
            return objective, SVIState(jnp.zeros((), jnp.int32), init(phi), key)

    @clears_tracebacks
    @checked
    def init(self, rng_key: jax.Array, *args: Tree, init_params: Tree = None, **kwargs: Tree) -> SVIState:
        """The first state, for steps by `update`. Looks at no data and charges nothing.

        - **rng_key** - one key, used once, which the state holds; take it from `dpppl.secret_key()`.
        - **args**, **kwargs** - the model's arguments; arrays are private rows unless marked `dpppl.Public`.
        - **init_params** - constrained starting values, by the name of the parameter; others are drawn without data.

        Raises KeyReuseError for a key that was used, ConfigurationError inside a function that JAX traces."""
        single_steps.check_eager("init", rng_key)
        key = keys.as_key(rng_key)
        state = self.set_up(key, args, kwargs, init_params)
        check_num_data(self.num_data, self.objective().split.num_rows)
        single_steps.begin(key)
        return state

    @clears_tracebacks
    @checked
    def update(self, state: Tree, *args: object, **kwargs: object) -> tuple[SVIState, None]:
        """One step: one access of the data, charged first. Returns the next state, and None in the place of NumPyro's loss.

        - **state** - the state that `init` or the last `update` returned. It is updated once, in the process whose `init` made
          it, because two steps from one state have the same noise.
        - **args**, **kwargs** - the model's arguments, as for `init`.

        Raises KeyReuseError for a state that was updated before. Raises ConfigurationError inside jax.jit and other
        transformations (use `run`), with a Partition, and where a target sets the budget. After an error nothing was accessed
        or charged."""
        objective, noise = self.objective(), self.fixed_noise()
        check_state(state, "update(state): state", self.optim)
        if isinstance(self.mechanism.subsampling, Partition):
            raise ConfigurationError(
                "a Partition charges each row once an epoch, which holds only while the rows keep their order; update "
                "cannot know that they do. Use run, or Poisson(rate)."
            )
        rows, public = objective.split.arrays(args, kwargs, self.mesh)
        arguments = (state, of_one_process(rows, "SVI.update"), public)
        single_steps.check_eager("update", arguments)
        key, count = single_steps.key_of(state), int(state.i)
        shapes = (placement_of(arguments[1]), *((np.shape(x), str(x.dtype)) for x in jax.tree.leaves(arguments)))
        if shapes not in self._programs:
            step = self.step_function(objective, self.mechanism, noise)
            self._programs[shapes] = prepare(lambda *arguments: step(*arguments)[0], arguments, rows=1)
        charge, take = Charge(self.mechanism, np.array([noise])), partial(single_steps.take, key, count)
        self.budget.charge_one(charge, "SVI.update", single_steps.name_in_ledger(key), take)
        for origin in (KeyOrigin.of(key), KeyOrigin(KeySource.STATE, "as init was given")):
            self._provenance = self._provenance.and_now(Status.BY_HAND, origin, self._first_start)
        return self._programs[shapes](*arguments), None

    def fixed_noise(self) -> float:
        """The noise multiplier of single steps. Raises ConfigurationError where only a run can know it."""
        if self._has_auto_norm:
            raise ConfigurationError('clipping_norm="auto" is chosen by run; update needs the norm as a number.')
        if self.noise_multiplier is None:
            raise ConfigurationError(
                "the noise of update follows from the number of steps, which only run(rng_key, num_steps, ...) knows; give "
                "noise_multiplier without target_epsilon to use init and update."
            )
        return self.noise_multiplier

    def set_up(
        self, key: jax.Array, args: tuple[object, ...], kwargs: dict[str, object], init_params: Tree = None
    ) -> SVIState:
        """The first state, without a claim of its key.

        - **key**, **args**, **kwargs**, **init_params** - as for `init`."""
        self._objective, state = self._bind(key, args, kwargs, init_params)
        self._programs, self._inputs = {}, Inputs.of(self._objective.split)
        self._first_start = self._first_start if init_params is None else Start.SUPPLIED
        return state

    def _noisy_sum(
        self, what: str, statistic: Function, rows: Tree, public: Tree, key: jax.Array, bound: float,
        noise_multiplier: float | None,
    ) -> float:  # fmt: skip
        """The noised sum of `statistic(row, public)`, clipped to [-bound, bound]; None: noise that uses up the budget's rest."""
        if noise_multiplier is None and self.budget.target_epsilon is None:
            raise ConfigurationError(
                "give noise_multiplier: there is no target_epsilon whose rest the query could use."
            )
        query = Query(
            statistic=statistic, bound=bound, rows=rows, public=public, what=what, discretise=self.mechanism.discretise,
            neighboring_relation=self.mechanism.neighboring_relation,
        )  # fmt: skip
        charge = query_charge(query, self.budget, noise_multiplier)
        return float(noisy_query(query, charge, key, self.budget, self._query_begun))

    def _query_begun(self, _: object, origin: KeyOrigin) -> None:
        status = Status.COMPLETE if self._provenance.status is Status.NOTHING else self._provenance.status
        start = None if self._provenance.starts else self._first_start
        self._provenance = self._provenance.and_now(status, origin, start)

    @on_host
    @checked
    def estimate_elbo(
        self, rng_key: jax.Array, params: BySite, *args: object, bound: float, noise_multiplier: float | None = None,
        num_particles: int = 16, **kwargs: object,
    ) -> float:  # fmt: skip
        """A noised estimate of the ELBO with all rows: one access, with noise of sd `bound * noise_multiplier`.

        - **rng_key** - one key, used once; take it from `dpppl.secret_key()`.
        - **params** - constrained parameters by name, such as `result.params`.
        - **args**, **kwargs** - the model's arguments, as for `run`.
        - **bound** - each row's log likelihood is clipped to [-bound, bound].
        - **noise_multiplier** - noise sd in units of `bound`; None: as little as what is left of the target allows (`reserve`).
        - **num_particles** - guide draws that the ELBO is averaged over; more cost nothing.

        Charged before the access. Raises ConfigurationError or BudgetExceededError before any data are touched."""
        key = keys.as_key(rng_key)
        args, kwargs = self.grouped(self.model, args, kwargs, key)
        particles = positive_integer(num_particles, name="num_particles")
        objective = replace(self._bind(key, args, kwargs)[0], num_particles=particles)
        check_params(params, objective.shapes)
        rows, public = objective.split.arrays(args, kwargs, self.mesh)
        draw_key = keys.stream(key, "guide")

        def terms(row: Tree, everything: Tree) -> Tree:
            return objective.mean_log_likelihood(everything[0], row, everything[1:])

        with TRACING:
            phi = {name: jax.tree.map(each.inv, params[name]) for name, each in objective.transforms.items()}
            prior, _ = jax.jit(objective.draws)(phi, draw_key, public)
        total = self._noisy_sum("estimate_elbo", terms, rows, (phi, public, draw_key), key, bound, noise_multiplier)
        return float(prior) + total

    @on_host
    @checked
    def estimate_accuracy(
        self, rng_key: jax.Array, params: BySite, correct: Function, *args: Tree,
        noise_multiplier: float | None = None, num_particles: int = 16, **kwargs: Tree,
    ) -> float:  # fmt: skip
        """A noised estimate of the share of rows that are predicted right: one access. Needs `num_data`, the rows' number.

        - **rng_key** - one key, used once; take it from `dpppl.secret_key()`.
        - **params** - constrained parameters by name, such as `result.params`.
        - **correct** - `correct(samples, *args, **kwargs)`: whether one row is predicted right, from 0 to 1, given posterior
          samples by site (num_particles, ...) and the model's arguments for that row, without their leading axis.
        - **args**, **kwargs** - the model's arguments, as for `run`.
        - **noise_multiplier** - noise sd in rows; None: as for `estimate_elbo`.
        - **num_particles** - posterior samples that `correct` is given.

        Charged before the access. Raises ConfigurationError or BudgetExceededError before any data are touched."""
        key, num_particles = keys.as_key(rng_key), positive_integer(num_particles, name="num_particles")
        objective, _ = self._bind(key, args, kwargs)
        if self.num_data is None:
            raise ConfigurationError("an accuracy is a share of the rows: declare their number, num_data.")
        check_num_data(self.num_data, objective.split.num_rows)
        check_params(params, objective.shapes)
        rows, public = objective.split.arrays(args, kwargs, self.mesh)

        def is_correct(row: Tree, everything: Tree) -> jax.Array:
            public, samples = everything
            args, kwargs = objective.split.arguments.join(row, public)
            return jnp.clip(jnp.asarray(correct(samples, *args, **kwargs), float), 0.0, 1.0)

        row = objective.split.row
        with TRACING:
            samples = objective.sample(params, keys.stream(key, "guide"), num_particles, public)
            with failing_explained(objective.split.arguments.words, "function correct"), explained("function correct"):
                program = jax.make_jaxpr(is_correct)(row, (public, samples))
            if shape := program.out_avals[0].shape:
                raise ConfigurationError(
                    f"correct must return one number for a row, from 0 to 1, and returns shape {shape}: average over "
                    "samples, .mean()."
                )
            self._also_captured(check_captured(program, {objective.split.num_rows}))
        everything = (public, samples)
        total = self._noisy_sum("estimate_accuracy", is_correct, rows, everything, key, 1.0, noise_multiplier)
        return total / self.num_data
