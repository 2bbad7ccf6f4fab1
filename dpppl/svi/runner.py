"""Private stochastic variational inference: plan, charge, chunks of steps, parameters, report."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tqdm.auto import tqdm

from dpppl import random
from dpppl.clipping import Adaptive, Flat, Normalised, PerSite
from dpppl.errors import ConfigurationError
from dpppl.mechanism import Mechanism, prove_rows_stay_inside
from dpppl.model_checks import without_value_checks
from dpppl.report import RELATIONS, SUPPLIED, PrivacyReport, and_also
from dpppl.subsampling import Subsampling
from dpppl.svi import optimizers, queries
from dpppl.svi.binding import bind_objective
from dpppl.svi.budget import Budgeted, Charge, positive_int, start_of
from dpppl.svi.elbo import ROW_NUMBER, Objective, default_loss
from dpppl.svi.guides import check_guide
from dpppl.svi.result import SVIResult

_CHUNKS = 20
_TRAJECTORY_SIZE, _TRAJECTORY_LENGTH = 2**24, 1000


class SVIState(NamedTuple):
    """`i`: steps done, each an access; `optim_state`: NumPyro's; `clipping_norm`: that of the next step where it
    adapts, else None; `rng_key`: a key (None in states that `run` returns)."""

    i: Any
    optim_state: Any
    clipping_norm: Any
    rng_key: Any


class SVI(Budgeted):
    """Differentially private SVI with the calls of `numpyro.infer.SVI`, a privacy budget, and a report. No losses.

    `model`: a NumPyro model with one data plate. `guide`: an AutoGuide that was not called yet, or a guide written by
    hand. `optim`: an optimiser of optax, numpyro.optim or jax.example_libraries that needs no loss value.
    `clipping_norm`: bound on the norm of one row's gradient (a dict by site or parameter clips each by itself).
    `subsampling`: Poisson(rate), FullBatch(), Partition(num_batches). `gradient`: "aligned" clips and noises the
    gradient with respect to the latents and pulls it back through the guide; "per_parameter" that with respect to the
    guide's parameters, as guides that read their row need. `num_particles`: guide draws a step, one access together.
    `clipping`: "flat", "normalised" or dpppl.Adaptive(...). `noise_multiplier`, or `target_epsilon` with
    `target_delta`: the budget of this object, all of which the first `run` uses. `loss`: NumPyro's ELBO for prior and
    entropy, Trace_ELBO() or TraceMeanField_ELBO() (closed-form KL), the latter by default for AutoNormal.
    `num_data`: the number of rows, if it may be public. `data_plate`: the plate of the rows, where two fit.
    `discretise`: discrete noise on whole numbers, as for the kernels.

    With AutoDelta this is DP-SGD for the maximum a posteriori; with AutoNormal and Partition, Bayes by Backprop.

    Guarantee: every step is charged before it runs. Parameters, states and trajectories are functions of the
    mechanism's outputs and public values; guides are set up on made-up rows; returned states hold no key.
    Raises ConfigurationError or BudgetExceededError before any data are touched and before anything is charged.

    >>> import dpppl, jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
    >>> from numpyro.infer.autoguide import AutoNormal
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> svi = dpppl.SVI(model, AutoNormal(model), optax.adam(0.05), clipping_norm=3.0, subsampling=dpppl.Poisson(0.1),
    ...                 target_epsilon=1.0, target_delta=1e-5)
    >>> result = svi.run(dpppl.secret_key(), 50, jnp.ones(1000), progress_bar=False)
    This run will spend epsilon = 0.9994 at delta = 1e-05: add or remove one row, N public (zero-out).
    >>> sorted(result.params)
    ['mu_auto_loc', 'mu_auto_scale']
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        optim,
        loss=None,
        *,
        clipping_norm: float | Mapping[str, float],
        subsampling: Subsampling,
        gradient: str = "aligned",
        num_particles: int = 1,
        clipping: str | Adaptive = "flat",
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        num_data: int | None = None,
        data_plate: str | None = None,
        discretise: bool = False,
    ):
        if gradient not in ("aligned", "per_parameter"):
            raise ConfigurationError('gradient must be "aligned" or "per_parameter".')
        if not isinstance(subsampling, Subsampling):
            raise ConfigurationError("subsampling must be dpppl.Poisson(rate), FullBatch(), Partition(...), ...")
        for name, value in (("num_particles", num_particles), ("num_data", num_data)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{name} must be a positive integer.")
        check_guide(guide)
        self.model, self.guide, self.optim = model, guide, optimizers.without_loss(optim)
        self.gradient, self.num_particles = gradient, num_particles
        self.num_data, self.data_plate = num_data, data_plate
        self.loss = default_loss(guide) if loss is None else loss
        if getattr(self.loss, "num_particles", None) != 1:
            raise ConfigurationError("loss must be a NumPyro ELBO with one particle; use SVI's own num_particles.")
        clip = _clipping(clipping, clipping_norm, num_data)
        self.mechanism = Mechanism(clipping=clip, subsampling=subsampling, discretise=discretise)
        self._set_budget(noise_multiplier, target_epsilon, target_delta)

    # NumPyro's calls

    @without_value_checks()
    def init(self, rng_key, *args, init_params=None, **kwargs) -> SVIState:
        """The first state, with the guide's parameters set up without data. Looks at no data and charges nothing.

        For steps by `update`. A new key for every call: two states of one key have equal noise, which on different data
        cancels."""
        key = random.as_key(rng_key)
        self._at_init = self._at_init or (self.noise_multiplier, self.mechanism)
        self._start = self._start if init_params is None else SUPPLIED
        self._objective, phi = bind_objective(self, random.stream(key, "initial values"), args, kwargs, init_params)
        optimizers.check_without_loss(self.optim, phi)
        adaptive = isinstance(self.mechanism.clipping, Adaptive)
        norm = jnp.float32(self.mechanism.clipping.clipping_norm) if adaptive else None
        return SVIState(jnp.zeros((), jnp.int32), self.optim.init(phi), norm, key)

    @without_value_checks()
    def update(self, state: SVIState, *args, **kwargs) -> tuple[SVIState, None]:
        """One step: one access of the data. NumPyro's pair of the state and the loss, but there is no loss.

        `privacy_report(state)` says what the steps of a state have cost. Never update one state twice: both steps have
        the same noise, and on different data their difference has none. Refused where a target sets the budget."""
        rows, public = self.objective().arrays(args, kwargs)
        return self._step(state, rows, public, self._noise())[0], None

    def get_params(self, state: SVIState) -> dict[str, Any]:
        """The constrained parameters of a state."""
        return self.objective().constrain(self.optim.get_params(state.optim_state))

    def evaluate(self, state: SVIState, *args: Any, **kwargs: Any) -> None:
        """NumPyro's loss of a state: not available."""
        raise ConfigurationError(
            "evaluate would be another look at the data: estimate_elbo is a charged query, and a result's convergence "
            "says for free whether the run has arrived."
        )

    @without_value_checks()
    def run(
        self, rng_key, num_steps: int, *args, progress_bar: bool = True, init_state: SVIState | None = None,
        init_params=None, thinning: int | None = None, **kwargs,
    ) -> SVIResult:  # fmt: skip
        """Run `num_steps` steps, as `numpyro.infer.SVI.run`; prints what they will cost first.

        `rng_key`: one key, used once; take it from `dpppl.secret_key()`. `init_state`: the state of a result, to go on
        from. `thinning`: the trajectory keeps every so many-th iterate; by default about 1,000 of them in all."""
        num_steps, thinning = positive_int(num_steps), None if thinning is None else positive_int(thinning)
        noise_multiplier, mechanism = self._calibrate(num_steps)
        key = random.as_key(rng_key)
        # A stream of its own: steps by `init` and `update` from the same key, which is not claimed, have other noise.
        state = self.init(random.stream(key, "run"), *args, init_params=init_params, **kwargs)
        if init_state is not None:
            state = self._continued(init_state, state)
        objective, first = self.objective(), int(state.i)
        plan = self._admit([*self._charged, Charge(first, num_steps, noise_multiplier, mechanism)], self._queries)
        random.claim(key)
        _print_cost(plan)
        before = len(self._charged), (self.noise_multiplier, self.mechanism, self._facts)
        self.noise_multiplier, self.mechanism = noise_multiplier, mechanism
        start = (
            "a state supplied by the user: assumed private output" if init_state is not None else start_of(self.guide)
        )
        self._facts = {
            "key_origin": and_also(self._facts.get("key_origin"), random.origin(key)),
            "status": "interrupted",
            "initial_values": and_also(self._facts.get("initial_values"), start if init_params is None else SUPPLIED),
        }
        kept = min(_TRAJECTORY_LENGTH, max(2, _TRAJECTORY_SIZE // max(1, _size(state.optim_state))))
        thinning = thinning or max(1, -(-num_steps // kept))
        try:
            rows, public = objective.arrays(args, kwargs)
            state, (trajectory, gradients) = self._chunks(state, rows, public, num_steps, thinning, progress_bar)
        except BaseException:
            if len(self._charged) == before[0]:  # nothing ran: the budget is as it was
                self.noise_multiplier, self.mechanism, self._facts = before[1]
            raise
        finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(self.get_params(state)))
        self._facts["status"] = "complete" if finite else "complete, with parameters that are not finite"
        if not finite:
            warnings.warn("parameters are not finite: lower the learning rate. The run stays charged.", stacklevel=3)
        return SVIResult(
            last_params=self.get_params(state),
            state=state,
            trajectory=trajectory,
            gradients=gradients,
            transforms=objective.transforms,
            guide=objective.guide,
            objective=objective,
            public=public,
            report=self.privacy_report(),
        )

    def _chunks(self, state, rows, public, num_steps, thinning, progress_bar):
        """Run in chunks of compiled steps, each charged before it starts; the last state, without key, and iterates."""
        length = -(-num_steps // _CHUNKS)
        length = -(-length // thinning) * thinning
        noise_multiplier, first = self.noise_multiplier, int(state.i)
        assert noise_multiplier is not None

        def chunk(state, rows, public, count):
            params = self.optim.get_params(state.optim_state)
            empty = jax.tree.map(lambda x: jnp.zeros((length // thinning, *x.shape), x.dtype), params)

            def body(number, carry):
                state, iterates, gradients = carry
                slot = number // thinning
                share = 1.0 / jnp.minimum(thinning, count - slot * thinning)
                state, direction = self._step(state, rows, public, noise_multiplier)
                iterates = jax.tree.map(
                    lambda b, x: b.at[slot].set(x), iterates, self.optim.get_params(state.optim_state)
                )
                gradients = jax.tree.map(lambda b, x: b.at[slot].add(share * x), gradients, direction)
                return state, iterates, gradients

            return lax.fori_loop(0, count, body, (state, empty, empty))

        arguments = (state, rows, public, np.int32(0))
        prove_rows_stay_inside(chunk, arguments, rows=1)
        program = jax.jit(chunk).lower(*arguments).compile()
        slot = len(self._charged)  # its own, also beside a run in another thread
        self._charged.append(Charge(first, 0, noise_multiplier, self.mechanism))
        parts = []
        with tqdm(total=num_steps, disable=not progress_bar, desc="SVI") as bar:
            for start in range(0, num_steps, length):
                count = min(length, num_steps - start)
                self._charged[slot] = self._charged[slot]._replace(num_steps=start + count)
                state, *buffers = jax.block_until_ready(program(state, rows, public, np.int32(count)))
                parts.append(jax.tree.map(lambda x: np.asarray(x)[: -(-count // thinning)], buffers))  # noqa: B023
                bar.update(count)
        return state._replace(rng_key=None), jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    # Queries: charged accesses that say how good a fit is

    @without_value_checks()
    def estimate_elbo(
        self, rng_key, params, *args, bound: float, noise_multiplier: float, num_particles: int = 16, **kwargs
    ) -> float:
        """A noised estimate of the ELBO at `params`, with all rows: one access of noise `bound * noise_multiplier`.

        `bound`: each row's log likelihood is clipped to [-bound, bound]."""
        self.init(rng_key, *args, **kwargs)
        key = random.as_key(rng_key)
        return queries.estimate_elbo(self, key, params, args, kwargs, bound, noise_multiplier, num_particles)

    @without_value_checks()
    def estimate_accuracy(
        self, rng_key, params, correct: Callable, *args, noise_multiplier: float, num_particles: int = 16, **kwargs
    ) -> float:
        """A noised estimate of the share of rows that are predicted right: one access of noise `noise_multiplier`.

        `correct(samples, *args, **kwargs)`: whether one row is, given posterior samples by site (num_particles, ...)
        and the model's arguments for that row, without their leading axis. Needs `num_data`, of which it is a share."""
        self.init(rng_key, *args, **kwargs)
        key = random.as_key(rng_key)
        return queries.estimate_accuracy(self, key, params, correct, args, kwargs, noise_multiplier, num_particles)

    # One step

    def _step(self, state: SVIState, rows, public, noise_multiplier):
        """The next state, and the noisy ascent direction."""
        objective = self.objective()
        norms = [state.clipping_norm]

        def access(log_likelihood, z, public):
            noisy = self.mechanism.noisy_sum(
                log_likelihood,
                z,
                rows,
                public,
                key=state.rng_key,
                noise_multiplier=noise_multiplier,
                step=state.i,
                clipping_norm=state.clipping_norm,
                number=ROW_NUMBER if objective.reads_rows else None,
            )
            if noisy.count is not None:
                clipping, rate = self.mechanism.clipping, self.mechanism.subsampling.rate
                assert isinstance(clipping, Adaptive) and self.num_data is not None
                norms[0] = clipping.next_norm(state.clipping_norm, noisy.count, rate * self.num_data)
            return noisy.total

        ascend = objective.aligned_direction if self.gradient == "aligned" else objective.per_parameter_direction
        phi = self.optim.get_params(state.optim_state)
        key = jax.random.fold_in(random.stream(state.rng_key, "guide"), state.i)
        direction = ascend(phi, key, public, access, self.mechanism.subsampling.rate)
        descent = jax.tree.map(jnp.negative, direction)
        optim_state = optimizers.update(self.optim, descent, state.optim_state)
        return SVIState(state.i + 1, optim_state, norms[0], state.rng_key), direction

    def objective(self) -> Objective:
        """The ELBO, split, for the arguments of the last init or run."""
        if self._objective is None:
            raise ConfigurationError("call init or run first: the guide is not set up yet.")
        return self._objective

    def _continued(self, before: SVIState, fresh: SVIState) -> SVIState:
        shapes = lambda tree: jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)  # noqa: E731
        if shapes(before.optim_state) != shapes(fresh.optim_state):
            raise ConfigurationError("init_state does not fit this model, guide and optimiser.")
        if int(before.i) < 0:
            raise ConfigurationError("init_state holds a negative number of steps.")
        return before._replace(rng_key=fresh.rng_key)


def _clipping(clipping, clipping_norm, num_data) -> Flat | PerSite | Adaptive:
    if isinstance(clipping, Adaptive):
        if num_data is None:
            raise ConfigurationError("Adaptive clipping needs num_data, the declared number of rows.")
        return replace(clipping, clipping_norm=clipping_norm)
    if clipping == "normalised":
        return Normalised(clipping_norm)
    if clipping != "flat":
        raise ConfigurationError('clipping must be "flat", "normalised" or dpppl.Adaptive(...).')
    return PerSite(clipping_norm) if isinstance(clipping_norm, Mapping) else Flat(clipping_norm)


def _size(tree) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))


def _print_cost(plan: PrivacyReport) -> None:
    delta = 1e-6 if plan.delta is None else plan.delta
    relation = RELATIONS[plan.neighboring_relation]
    print(f"This run will spend epsilon = {plan.epsilon_at(delta):.4g} at delta = {delta:g}: {relation}.")
