"""Runs a private kernel: plan, charge, chunks of steps, samples, report."""

import math
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
from jax import lax
from numpyro.diagnostics import split_gelman_rubin
from numpyro.util import nested_attrgetter
from tqdm.auto import tqdm

from dpppl import accounting, random
from dpppl.errors import BudgetExceededError, ConfigurationError
from dpppl.mcmc.kernel import DPKernel, describe_start
from dpppl.mcmc.summary import print_weighted_summary
from dpppl.mechanism import prove_rows_stay_inside
from dpppl.model_handlers import without_value_checks
from dpppl.report import RELATIONS, PrivacyReport, and_also
from dpppl.subsampling import Poisson, sparse_sizes

_CHUNKS = 20
_OVERFLOW_SHARE = 1e-3


class MCMC(numpyro.infer.MCMC):
    """NumPyro's MCMC for private kernels: the same calls, a privacy budget, and a report.

    `kernel`: a dpppl kernel. `target_epsilon`, `target_delta`: the budget of this object for everything it runs; the
    first call is calibrated to use all of it over num_chains * (num_warmup + num_samples) steps, and a later call that
    would exceed it is refused. Without a target the kernel's own step size and noise decide, and the report says what
    that cost. The other arguments are `numpyro.infer.MCMC`'s.

    Guarantee: every step of every chain is charged before it runs, warmup and thinned-away steps included. Samples,
    states, extra fields, the progress bar and pickles are functions of the mechanism's outputs and public values; no
    reference to an array argument is kept after `run`, and returned states hold no key.
    Raises ConfigurationError or BudgetExceededError before any data are touched and before anything is charged.

    >>> import dpppl, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> kernel = dpppl.DPSGLD(model, clipping_norm=3.0)
    >>> mcmc = dpppl.MCMC(kernel, num_warmup=50, num_samples=50, target_epsilon=1.0, target_delta=1e-5,
    ...                   progress_bar=False)
    >>> mcmc.run(dpppl.secret_key(), jnp.ones(1000))
    This run will spend epsilon = 0.9995 at delta = 1e-05: add or remove one row, N public (zero-out).
    >>> mcmc.get_samples()["mu"].shape
    (50,)
    """

    def __init__(
        self,
        kernel: DPKernel,
        *,
        num_warmup: int,
        num_samples: int,
        num_chains: int = 1,
        thinning: int = 1,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        chain_method="parallel",
        progress_bar: bool = True,
        progress_rate: int | None = None,
    ):
        if not isinstance(kernel, DPKernel):
            raise ConfigurationError(
                "dpppl.MCMC runs dpppl kernels; numpyro.infer.MCMC runs the others, not privately."
            )
        if not isinstance(num_chains, int) or num_chains < 1:
            raise ConfigurationError("num_chains must be a positive integer.")
        super().__init__(
            kernel,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            thinning=thinning,
            chain_method=chain_method,
            progress_bar=progress_bar,
            progress_rate=progress_rate,
        )
        if target_delta is not None:
            accounting.accountants.check_delta(target_delta)
        if target_epsilon is not None:
            if target_delta is None:
                raise ConfigurationError("target_epsilon needs target_delta.")
            if not (isinstance(target_epsilon, int | float) and 0 < target_epsilon < math.inf):
                raise ConfigurationError(f"target_epsilon must be positive and finite, got {target_epsilon!r}.")
            if kernel.noise_multiplier is not None:
                raise ConfigurationError(
                    "give noise_multiplier or target_epsilon, not both: one follows from the other."
                )
        self.target_epsilon, self.target_delta = target_epsilon, target_delta
        self._last_state: Any = None
        self._kernel: DPKernel | None = None
        self._charged: list[tuple[int, int, int]] = []
        self._facts: dict = {}
        self._collected = (0, 0)

    # Budget

    def calibrated_kernel(self) -> DPKernel:
        """A copy of the kernel with the noise multiplier and the step size that the budget gives. Looks at no data."""
        return self._fixed_kernel().with_noise(None)

    def _fixed_kernel(self) -> DPKernel:
        """The kernel of all runs, found once: what was charged stays charged at its noise."""
        if self._kernel is None:
            if self.target_epsilon is None or self.target_delta is None:
                self._kernel = self.sampler.with_noise(None)
            else:
                self._kernel = self._calibrate(self.target_epsilon, self.target_delta)
        return self._kernel

    def _calibrate(self, target_epsilon: float, target_delta: float) -> DPKernel:
        steps = self.num_warmup + self.num_samples
        share = _OVERFLOW_SHARE * target_delta / ((1.0 + math.exp(min(target_epsilon, 500.0))) * steps)
        kernel = self.sampler.with_overflow_probability(max(1e-300, min(1e-9, share / (3.0 * self.num_chains))))

        def event(noise_multiplier):
            _, multipliers = kernel.with_noise(noise_multiplier).schedule(0, steps)
            return kernel.mechanism.event(multipliers, 0, self.num_chains)

        if not kernel.is_matched and accounting.epsilon(event(None), target_delta) <= target_epsilon:
            return kernel.with_noise(None)  # the sampler's own noise is enough
        noise = accounting.calibrate_noise_multiplier(event, target_epsilon, target_delta)
        return kernel.with_noise(noise)

    def privacy_plan(self) -> PrivacyReport:
        """The report that the next `run` would add up to, without data."""
        first, steps = self._next_steps(warmup_only=False)
        ranges = [*self._charged, (first, steps, self.num_chains)]
        return self._report(ranges, key_origin="chosen when the run starts", status="planned")

    def privacy_report(self) -> PrivacyReport:
        """What everything run so far has cost, an interrupted run included."""
        return self._report(self._charged, **({"key_origin": "none yet", "status": "nothing run"} | self._facts))

    def _report(self, ranges, **facts) -> PrivacyReport:
        return self._fixed_kernel().report(ranges, delta=self.target_delta, num_chains=self.num_chains, **facts)

    def _next_steps(self, warmup_only: bool) -> tuple[int, int]:
        """(first step number, steps a chain) of the next run."""
        if warmup_only or self._warmup_state is None:
            return 0, self.num_warmup if warmup_only else self.num_warmup + self.num_samples
        return int(np.max(np.asarray(self._warmup_state.i))), self.num_samples

    def _check_budget(self, first: int, steps: int) -> PrivacyReport:
        plan = self._report(
            [*self._charged, (first, steps, self.num_chains)], key_origin="chosen when the run starts", status="planned"
        )
        if self.target_epsilon is not None and plan.epsilon is not None and plan.epsilon > self.target_epsilon:
            before = self._report(self._charged, key_origin="", status="").epsilon
            raise BudgetExceededError(
                f"epsilon {before:.4g} of {self.target_epsilon:g} is spent and this run would bring it to "
                f"{plan.epsilon:.4g} at delta {self.target_delta:g}; nothing was run and nothing was charged. "
                "A budget is for all that one MCMC object runs: plan the steps in one call, or make a new object with "
                "a new budget (their costs add up)."
            )
        return plan

    # Running

    def warmup(self, rng_key, *args, extra_fields=(), collect_warmup=False, init_params=None, **kwargs):
        """Run the warmup steps only, charged; the next `run` continues with the sampling steps. As in NumPyro."""
        thinned = self.num_warmup % self.thinning, self.num_warmup // self.thinning
        collect = thinned if collect_warmup else (self.num_warmup, 0)
        self._execute(rng_key, args, kwargs, extra_fields, init_params, self.num_warmup, collect, warmup_only=True)
        self._warmup_state = self._last_state

    def run(self, rng_key, *args, extra_fields=(), init_params=None, **kwargs):
        """Run the chains and collect samples. As `numpyro.infer.MCMC.run`; prints what it will cost first.

        `rng_key`: one key, used once; take it from `dpppl.secret_key()`. `extra_fields`: fields of the state, but not
        the key. Arrays among the arguments are private unless marked `dpppl.Public`."""
        warmup = self.num_warmup if self._warmup_state is None else 0
        collect = (warmup + self.num_samples % self.thinning, self.num_samples // self.thinning)
        self._execute(rng_key, args, kwargs, extra_fields, init_params, warmup, collect, warmup_only=False)

    @without_value_checks()
    def _execute(self, rng_key, args, kwargs, extra_fields, init_params, warmup, collect, *, warmup_only):
        key = random.as_key(rng_key)
        fields, removed = self._collected_fields(extra_fields)
        kernel = self.calibrated_kernel()
        resume = None if warmup_only else self._warmup_state
        # A stream of its own: keys that the caller splits off the same key must give a run other noise.
        states = self._initial_states(kernel, random.stream(key, "chains"), init_params, resume, args, kwargs)
        _check_fields(fields, states)
        first, steps = self._next_steps(warmup_only)
        plan = self._check_budget(first, steps)
        random.claim(key)
        _print_cost(plan)
        self._kernel, self._states, self._states_flat, self._last_state = kernel, None, None, None
        self._warmup_state = resume
        start = describe_start(kernel.init_strategy if init_params is None else init_params)
        self._facts = {
            "key_origin": and_also(self._facts.get("key_origin"), random.origin(key)),
            "status": "interrupted",
            "batch_cap": _batch_cap(kernel),
            "initial_values": and_also(self._facts.get("initial_values"), start),
        }
        rows, public = kernel.split.arrays(args, kwargs)
        chunks = _Chunks(kernel, fields, warmup, steps, collect, self.thinning)
        runs = [states] if self.num_chains == 1 or self.chain_method != "sequential" else _unstack(states)
        finished = []
        with tqdm(total=steps * len(runs), disable=not self.progress_bar, desc="warmup") as bar:
            for states in runs:
                batched = len(runs) < self.num_chains
                charge = partial(self._charge, self.num_chains if batched else 1)
                self._charged.append((first, 0, 0))
                finished.append(chunks.run(states, rows, public, self._mapping(batched), first, charge, bar))
        states, collected = jax.tree.map(lambda *leaves: np.stack(leaves), *finished) if len(runs) > 1 else finished[0]
        if self.num_chains == 1:
            collected = jax.tree.map(lambda leaf: leaf[None], collected)
        self._last_state = states
        self._states = self._constrained(kernel, collected, public, removed)
        self._collected = (first + collect[0], collect[1])
        failed = [c for c in range(self.num_chains) if not _finite(states.z, c if self.num_chains > 1 else None)]
        self._facts |= {"status": "complete", "failed_chains": tuple(failed)}
        if failed:
            warnings.warn(f"chains {failed} hold values that are not finite; see the report.", stacklevel=4)

    def _charge(self, chains: int, first: int, count: int) -> None:
        """Record accesses, before they happen: more steps of the chains that are running."""
        start, before, _ = self._charged[-1]
        assert start + before == first
        self._charged[-1] = (start, before + count, chains)

    def _mapping(self, batched: bool):
        """How one chunk becomes a chunk of all chains: (transform of the function, whether it compiles by itself)."""
        if not batched:
            return None
        if self.chain_method == "parallel":
            return "pmap"
        return jax.vmap if self.chain_method == "vectorized" else self.chain_method

    def _collected_fields(self, extra_fields):
        if not isinstance(extra_fields, tuple | list):
            raise ConfigurationError("extra_fields must be a tuple or a list of names.")
        names = list(dict.fromkeys((self._sample_field, *self._default_fields, *extra_fields)))
        removed = tuple(name[len("~z.") :] for name in names if name.startswith("~z."))
        fields = tuple(name for name in names if not name.startswith("~z."))
        return fields, removed

    def _initial_states(self, kernel, key, init_params, resume, args, kwargs):
        chain_key = jax.random.split(key, self.num_chains) if self.num_chains > 1 else key
        if init_params is not None:
            init_params = jax.tree.map(jnp.asarray, init_params)
            leading = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(init_params)}
            if self.num_chains > 1 and leading != {(self.num_chains,)}:
                raise ConfigurationError("`init_params` must have the same leading dimension as `num_chains`.")
            if not _finite(init_params, None):
                raise ConfigurationError("init_params must be finite.")
        states = kernel.init(chain_key, self.num_warmup, init_params, args, kwargs)
        if resume is None:
            return states
        resume = resume._replace(rng_key=states.rng_key)
        if (
            jax.tree.map(jnp.shape, resume) != jax.tree.map(jnp.shape, states)
            or len(np.unique(np.asarray(resume.i))) != 1
        ):
            raise ConfigurationError("post_warmup_state does not fit this model and number of chains.")
        return jax.tree.map(jnp.asarray, resume)

    def _constrained(self, kernel, collected, public, removed):
        to_constrained = jax.jit(jax.vmap(jax.vmap(kernel.split.constrain, (0, None)), (0, None)))
        samples = to_constrained(collected["z"], public)
        return collected | {"z": {site: value for site, value in samples.items() if site not in removed}}

    # Results

    def get_weights(self):
        """Weights of the collected samples in a posterior average, float64 (chains, draws), each chain summing to 1.

        A sample stands for the time of the steps since the one collected before it: with decreasing steps later
        samples count less (Li et al. 2019, section 3). Equal for a constant step and no thinning."""
        if self._states is None:
            raise ConfigurationError("`run` must be called before `get_weights`.")
        kernel, (first, draws) = self._fixed_kernel(), self._collected
        step_sizes, _ = kernel.schedule(first, draws * self.thinning)
        weights = kernel.sample_weight(step_sizes).reshape(draws, self.thinning).sum(axis=1)
        return np.tile(weights / weights.sum(), (self.num_chains, 1))

    def print_summary(self, prob: float = 0.9, exclude_deterministic: bool = True):
        """NumPyro's summary table (of the weighted samples, where weights differ), then what of it must not be read."""
        samples = self.get_samples(group_by_chain=True)
        latent = {site: value for site, value in samples.items() if site in self._last_state.z}
        weights = self.get_weights()
        if np.ptp(weights) < 1e-6 * weights.max():
            super().print_summary(prob, exclude_deterministic)
        else:
            print_weighted_summary(latent if exclude_deterministic else samples, weights, prob)
        if weights.shape[1] >= 4:
            with np.errstate(all="ignore"):
                worst = {site: np.max(split_gelman_rubin(np.asarray(value))) for site, value in latent.items()}
            poor = [site for site, value in worst.items() if not value <= 1.05]
            if poor:
                print(f"split R-hat above 1.05, do not read the spread as the posterior's: {', '.join(poor)}")
        print(f"mixing budget: {self.privacy_report().mixing_line()}")

    def to_arviz(self):
        """ArviZ InferenceData of the samples and their weights, with the privacy report as attributes.

        It holds no observed data and no log likelihood: both would be private rows. Needs the [arviz] extra."""
        import arviz

        samples = {site: np.asarray(value) for site, value in self.get_samples(group_by_chain=True).items()}
        report = self.privacy_report()
        attributes = {"inference_library": "dpppl", "privacy_report": report.to_json(), "epsilon": str(report.epsilon)}
        return arviz.from_dict(posterior=samples, sample_stats={"weight": self.get_weights()}, attrs=attributes)


class _Chunks:
    """One compiled program for a chunk of steps of one chain, run over and over."""

    def __init__(self, kernel, fields, warmup, steps, collect, thinning):
        self.kernel, self.fields, self.warmup, self.steps, self.thinning = kernel, fields, warmup, steps, thinning
        self.collect_from, self.num_collected = collect
        self.length = max(1, -(-steps // _CHUNKS))
        self.slots = self.length // thinning + 2
        self.programs: dict = {}

    def slot(self, number):
        """Where step `number` of the run goes among the collected ones, or -1 if it is not collected."""
        since = number - self.collect_from
        kept = (
            (since >= 0) & (since % self.thinning == self.thinning - 1) & (since // self.thinning < self.num_collected)
        )
        return jnp.where(kept, since // self.thinning, -1)

    def chunk(self, state, rows, public, start, count):
        """`count` steps from step `start` of the run: the state, and the collected fields by slot within the chunk."""
        get = nested_attrgetter(*self.fields)
        fields_of = (lambda state: (get(state),)) if len(self.fields) == 1 else (lambda state: tuple(get(state)))
        shapes = jax.eval_shape(fields_of, state)
        buffer = jax.tree.map(lambda s: jnp.zeros((self.slots + 1, *s.shape), s.dtype), shapes)
        base = jnp.maximum(start - self.collect_from, 0) // self.thinning

        def body(number, carry):
            state, buffer = carry
            state = self.kernel.step(state, rows=rows, public=public)
            slot = self.slot(number)
            slot = jnp.where(slot < 0, self.slots, slot - base)
            return state, jax.tree.map(
                lambda b, x: lax.dynamic_update_index_in_dim(b, x, slot, 0), buffer, fields_of(state)
            )

        return lax.fori_loop(start, start + count, body, (state, buffer))

    def compiled(self, mapping, *arguments):
        """Traced, proved to let rows out through the door only, and compiled, before anything is charged."""
        if mapping not in self.programs:
            if mapping == "pmap":
                function = jax.pmap(self.chunk, in_axes=(0, None, None, None, None))
            elif mapping is None:
                function = jax.jit(self.chunk)
            else:
                function = jax.jit(lambda states, *rest: mapping(lambda state: self.chunk(state, *rest))(states))
            prove_rows_stay_inside(function, arguments, rows=1)
            self.programs[mapping] = function.lower(*arguments).compile()
        return self.programs[mapping]

    def run(self, states, rows, public, mapping, first, charge, bar):
        """All steps of the chains in `states`: their last states without keys, and the collected fields by name."""
        number = lambda value: np.asarray(value, np.int32)  # noqa: E731
        program = self.compiled(mapping, states, rows, public, number(0), number(0))
        axis = 0 if mapping is None else 1
        parts = []
        for start in range(0, max(1, self.steps), self.length):
            count = min(self.length, self.steps - start)
            charge(first + start, count)
            states, buffer = jax.block_until_ready(program(states, rows, public, number(start), number(count)))
            slots = np.asarray(self.slot(np.arange(start, start + count)))
            kept = slots[slots >= 0] - max(start - self.collect_from, 0) // self.thinning
            parts.append(jax.tree.map(partial(_take, kept, axis), buffer))
            bar.set_description("warmup" if start + count <= self.warmup else "sample", refresh=False)
            bar.update(count)
        collected = jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves, axis=axis)), *parts)
        return states._replace(rng_key=None), dict(zip(self.fields, collected))


def _take(index, axis, leaf):
    return np.take(np.asarray(leaf), index, axis=axis)


def _unstack(states):
    count = len(jax.tree.leaves(states)[0])
    return [jax.tree.map(lambda leaf: leaf[chain], states) for chain in range(count)]  # noqa: B023


def _finite(values, chain) -> bool:
    return all(bool(np.all(np.isfinite(leaf if chain is None else leaf[chain]))) for leaf in jax.tree.leaves(values))


def _check_fields(fields, states) -> None:
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


def _batch_cap(kernel) -> int | None:
    """The static cap on a step's rows, where one is used: not when each row is drawn on its own."""
    subsampling = kernel.mechanism.subsampling
    if not isinstance(subsampling, Poisson):
        return None
    if jax.eval_shape(lambda key: subsampling.draw(key, kernel.split.num_rows), jax.random.key(0)).index is None:
        return None
    return sparse_sizes(subsampling.rate, kernel.split.num_rows, subsampling.overflow_probability)[0]


def _print_cost(plan: PrivacyReport) -> None:
    relation = RELATIONS[plan.neighboring_relation]
    if plan.epsilon is None:
        print(f"This run will spend epsilon = {plan.epsilon_at(1e-6):.4g} at delta = 1e-06: {relation}.")
    else:
        print(f"This run will spend epsilon = {plan.epsilon:.4g} at delta = {plan.delta:g}: {relation}.")
