"""Samples of the posterior: the exact prior times the surrogate of the likelihood."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jax.scipy.sparse.linalg import cg
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer.hmc import hmc

from dpppl.information_flow.executables import compiled, run_once
from dpppl.noise_aware.mixture import CANDIDATES, Linear, Mixture, resampled
from dpppl.row_statistics.coordinates import MOST_FULL, Coordinates
from dpppl.row_statistics.matrices import Array, root_of
from dpppl.types import Tree

_NUM_WARMUP, _DIVERGING, _R_HAT = 200, 0.02, 1.1
_AT_ONCE, _MOST_NUMBERS = 64, 2**26
_EACH = {"start": 0, "slopes": 0, "centre": None, "scales": None, "turn": None, "index": None}
_ROUNDS, _DEGREES = 4, 5
Drawn = tuple[dict[str, Array], str | None]


def _without_empty(latents: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {site: value for site, value in latents.items() if value.size}


class Sampler:
    """Draws of the latents of a model, as one vector, under its prior times exp(-|residual|^2 / 2), by NUTS chains, compiled once
    for all surrogates. Each chain has a residual of its own; all give as many samples. It moves in `x` (n,), which is nearly
    white: `_latents` maps `x` to latents, with arguments `white` from `_whites`. `Narrow` and `Wide` models have their own.

    - **coordinates**, **num_samples** - those of the model; of all chains together."""

    _whites: Callable[[Tree, tuple[Linear, Array], Array], tuple[Tree, int | None]]
    _latents: Callable[[jax.Array, Tree, Tree], tuple[Tree, Tree, Tree]]

    def __init__(self, coordinates: Coordinates, num_samples: int) -> None:
        latents = coordinates.split.latents
        zeros, self._unravel = ravel_pytree({site: jnp.zeros(s.shape, s.dtype) for site, s in latents.items()})
        self.dimension, self.coordinates, self.num_samples = len(zeros), coordinates, num_samples
        places = lambda names: {n: jnp.full(s.shape, n in names) for n, s in latents.items()}  # noqa: E731
        moves, sites = (np.asarray(ravel_pytree(places(names))[0]) for names in (coordinates.moves, coordinates.sites))
        self._free, self._sites, self._own, self._given = moves | sites, *map(np.flatnonzero, (sites, moves, ~moves))

    def __call__(self, linear: Linear, average: Linear, covariance: Array, public: Tree, key: jax.Array) -> Drawn:
        """Unconstrained latents by site, and what is wrong with them, if anything. `average`: of all that `linear` holds."""
        prior_key, key, weights_key = jax.random.split(key, 3)
        draws = self.coordinates.draws(public, prior_key)
        points = np.asarray(jax.vmap(lambda z: ravel_pytree(z)[0])(draws), np.float64)
        data, count = (linear.arrays(), public), len(linear.start)
        whites, axis = self._whites(data, (average, covariance), points)
        if (independent := self._weighted(data, whites, count, generator(weights_key))) is not None:
            return independent, None
        chain = partial(self._chain, num_samples=-(-self.num_samples // count))
        chains = jax.vmap(chain, ((_EACH, None), axis, 0))
        # Of narrow models compiling takes longer than running; a second run finds the program.
        placed, diverged = run_once(chains, data, whites, jax.random.split(key, count), quickly=axis is not None)
        # In the order of time: what drifts or is stuck makes the halves differ.
        samples = {n: np.concatenate(np.asarray(v).swapaxes(0, 1)) for n, v in placed.items()}
        samples = {site: value[: self.num_samples] for site, value in samples.items()}
        diverging = float(np.mean(np.asarray(diverged)))
        with np.errstate(all="ignore"):
            r_hat = np.max([np.max(split_gelman_rubin(value[None])) for value in samples.values()])
        if diverging <= _DIVERGING and r_hat <= _R_HAT:
            return samples, None
        return samples, f"NUTS did not explore the posterior ({diverging:.0%} divergences, split R-hat {r_hat:.2f})"

    def _density(self, x: jax.Array, data: Tree, white: Tree) -> tuple[Tree, Tree]:
        """Latents by site, without empty ones, and the log density of x but for a constant."""
        latents, log_det, residual = self._latents(x, data, white)
        log_prior = self.coordinates.split.log_prior(latents, data[1])
        return _without_empty(latents), log_prior + log_det - 0.5 * jnp.sum(residual**2)

    def _residual(self, data: Tree, latents: Tree) -> jax.Array:
        """The residual (k b,) of latents by site; `data`: of `Linear`, and Public arrays."""
        linear, vector = data[0], self.coordinates.vector(latents, data[1])
        moved = (vector - linear["centre"]) / linear["scales"]
        moved = jnp.append(moved - linear["turn"] @ (linear["turn"].T @ moved), 0.0)[linear["index"]]
        return (linear["start"] + jnp.einsum("kij,kj->ki", linear["slopes"], moved)).ravel()

    def _residual_at(self, white: Tree, data: Tree, t: jax.Array) -> jax.Array:
        """The residual of latents `t` (n,) in units of their prior's spread."""
        return self._residual(data, self._unravel(white["middle"] + white["width"] * t))

    def _weighted(self, data: Tree, whites: Tree, count: int, rng: np.random.Generator) -> dict[str, Array] | None:
        """Independent draws by site, or None where weights cannot be trusted, as of wide models."""
        return None

    def _chain(self, data: Tree, white: Tree, key: jax.Array, num_samples: int) -> Tree:
        """Latents by site, (num_samples, ...), and whether they diverged."""

        @jax.jit  # traced once
        def potential(x: jax.Array) -> Tree:
            return -self._density(x, data, white)[1]

        def body(state: Tree, _: object) -> Tree:
            state = step(state)
            return state, (state.z, state.diverging)

        start, step = hmc(potential_fn=potential, algo="NUTS")
        options = dict(step_size=0.5, target_accept_prob=0.9, max_tree_depth=7, rng_key=key)
        state = start(jnp.zeros(self.dimension), _NUM_WARMUP, **options)
        # One loop for both phases: its body is most of what is compiled.
        places, diverging = lax.scan(body, state, None, length=_NUM_WARMUP + num_samples)[1]
        latents = jax.vmap(lambda x: _without_empty(self._latents(x, data, white)[0]))(places[_NUM_WARMUP:])
        return latents, diverging[_NUM_WARMUP:]


class Narrow(Sampler):
    """The sampler of narrow models: weighted draws, or where weights are uneven, chains. Each residual places its own `x`."""

    def _whites(self, data: Tree, posterior: tuple[Linear, Array], points: Array) -> tuple[Tree, int | None]:
        """Arguments of each chain, along axis 0; `points` (m, n): latents drawn from the prior."""
        middle, width = middles_and_widths(points)
        covariance = np.atleast_2d(np.cov(np.clip((points - middle) / width, -4.0, 4.0).T))  # of heavy tails, too
        scales = {"middle": jnp.asarray(middle, jnp.float32), "width": jnp.asarray(width, jnp.float32)}
        precision, given, own, free = np.linalg.inv(covariance), self._given, self._own, self._free
        value_and_slope = jax.jit(lambda *at: (self._residual_at(*at), jax.jacobian(self._residual_at, 2)(*at)))
        prior_root = np.linalg.cholesky(np.linalg.inv(covariance[np.ix_(own, own)])).T
        whites = []  # coordinates and `moves` are placed where they fit; the others spread as by a linear residual around these
        for number in range(len(data[0]["start"])):
            each = {name: a if _EACH[name] is None else a[number] for name, a in data[0].items()}
            start = np.zeros(len(middle))
            for _ in range(3):  # exact after two: first the latents that are measured, then those that move
                found = value_and_slope(scales, (each, data[1]), jnp.asarray(start, jnp.float32))
                value, slope = (np.asarray(v, np.float64) for v in found)
                total = slope[:, free].T @ slope[:, free] + precision[np.ix_(free, free)]
                start[free] = np.linalg.solve(total, slope[:, free].T @ (slope[:, free] @ start[free] - value))
            root = root_of(np.linalg.inv(slope.T @ slope + precision)[np.ix_(given, given)])
            whites.append(scales | {"around": start[given], "root": root, "prior_root": prior_root})
        return {name: jnp.asarray(np.array([f[name] for f in whites]), jnp.float32) for name in whites[0]}, 0

    def _latents(self, x: jax.Array, data: Tree, white: Tree) -> tuple[Tree, Tree, Tree]:
        """Latents by site, the log determinant of their derivatives by x, and their residual."""
        t, log_det = self._place(x, data, white)
        return self._unravel(white["middle"] + white["width"] * t), log_det, self._residual_at(white, data, t)

    def _place(self, x: jax.Array, data: Tree, white: Tree) -> tuple[Tree, Tree]:
        """Latents, in units of their prior's spread, and the log determinant of their derivatives by x."""
        # The residual is affine in `moves`: they get the mean and covariance that a normal prior would give them given others.
        given, own, at = self._given, self._own, partial(self._residual_at, white, data)
        t = jnp.zeros_like(x).at[given].set(white["around"] + white["root"] @ x[given])
        if not len(own):
            return t, 0.0
        along = lambda moved: at(t.at[own].set(moved))  # noqa: E731
        value, slope = along(t[own]), jax.jacfwd(along)(t[own])
        q, r = jnp.linalg.qr(jnp.concatenate([slope, white["prior_root"]]))
        moved = solve_triangular(r, x[own] - q[: len(value)].T @ value)
        return t.at[own].set(moved), -jnp.sum(jnp.log(jnp.abs(jnp.diag(r))))

    def _weighted(self, data: Tree, whites: Tree, count: int, rng: np.random.Generator) -> dict[str, Array] | None:
        """Independent draws by site, or None where weights cannot be trusted (`resampled`). Latents that are `moves` are proposed
        from their normal law given the others; the others from a t law that is adapted to the weights of earlier proposals
        (Cappe, Guillin, Marin, Robert 2004)."""
        each, given, size = -(-self.num_samples // count), self._given, len(self._given)
        mean, root, degrees = np.zeros(size), np.eye(size), max(_DEGREES, size)
        few = max(1, min(_AT_ONCE, _MOST_NUMBERS // (count * max(1, len(self._own)) ** 2)))  # each has a root
        each_of = lambda x, data, white: lax.map(partial(self._density, data=data, white=white), x, batch_size=few)  # noqa: E731
        shape, program = (count, CANDIDATES * each), jax.vmap(each_of, (0, (_EACH, None), 0))
        score = compiled(program, jnp.zeros((*shape, self.dimension), jnp.float32), data, whites)
        for _ in range(_ROUNDS):
            x = rng.standard_normal((*shape, self.dimension))
            free = x[..., given] / np.sqrt(rng.chisquare(degrees, shape) / degrees)[..., None]
            proposed = -0.5 * (degrees + size) * np.log1p(np.sum(free**2, axis=-1) / degrees)
            proposed -= 0.5 * np.sum(x[..., self._own] ** 2, axis=-1)
            x[..., given] = mean + free @ root.T
            latents, logs = score(jnp.asarray(x, jnp.float32), data, whites)
            ratios = np.asarray(logs, np.float64) - proposed
            ratios = np.where(np.isfinite(ratios), ratios, -np.inf)
            if (chosen := resampled(list(ratios), np.full(count, each), rng)) is not None:
                numbers = (np.arange(count)[:, None], np.array(chosen))
                order = rng.permutation(count * each)[: self.num_samples]
                return {n: np.concatenate(np.asarray(v)[numbers])[order] for n, v in latents.items()}
            weights = np.exp(ratios - ratios.max()).ravel()
            weights = np.minimum(weights, np.mean(weights) * np.sqrt(len(weights)))
            points = x[..., given].reshape(len(weights), -1)
            mean = np.average(points, axis=0, weights=weights)
            root = root_of(np.atleast_2d(np.cov(points.T, aweights=weights)) + 1e-6 * np.eye(size))
        return None


class Wide(Sampler):
    """The sampler of wide models: chains; `x` is placed as the average of the residuals has it."""

    def _whites(self, data: Tree, posterior: tuple[Linear, Array], points: Array) -> tuple[Tree, int | None]:
        """Arguments that all chains share: scales around latents that fit; coordinates are white under the posterior."""
        (average, covariance), basis = posterior, posterior[0].basis
        middle, width = (jnp.asarray(a, jnp.float32) for a in middles_and_widths(points))
        if not self.coordinates.held:
            arrays = {"roots": basis.roots @ root_of(covariance), "mean": average.centre}
            white = {n: jnp.asarray(a, jnp.float32) for n, a in arrays.items()} | {"middle": middle, "width": width}
            white |= {n: a for n, a in average.arrays().items() if n in ("scales", "turn", "index")}
            return white | {"place": jnp.asarray(basis.layout.place)}, None
        each = {name: a if _EACH[name] is None else a[0] for name, a in average.arrays().items()}
        at = partial(self._residual_at, {"middle": middle, "width": width}, (each, data[1]))
        mask = jnp.asarray(self._free, jnp.float32)

        @jax.jit
        def fitted(t: jax.Array) -> jax.Array:
            value, forward = jax.linearize(at, t)
            backward = jax.linear_transpose(forward, t)
            normal = lambda s: s + mask * backward(forward(mask * s))[0]  # noqa: E731
            return t + mask * cg(normal, -mask * (backward(value)[0] + t), maxiter=300)[0]

        start = jnp.zeros(len(mask))
        for _ in range(3):
            start = fitted(start)
        forward = jax.linearize(at, start)[1]
        square = lambda i: jnp.sum(forward(jax.nn.one_hot(i, len(mask))) ** 2)  # noqa: E731
        squares = jax.jit(lambda: lax.map(square, jnp.arange(len(mask)), batch_size=_AT_ONCE))()
        return {"middle": middle + width * start, "width": width * (1.0 / jnp.sqrt(1.0 + squares))}, None

    def _latents(self, x: jax.Array, data: Tree, white: Tree) -> tuple[Tree, Tree, Tree]:
        vector = white["middle"] + white["width"] * x
        if "roots" in white:
            t = jnp.einsum("kij,kj->ki", white["roots"], jnp.append(x[self._sites], 0.0)[white["index"]])
            t, turn = t.ravel()[white["place"]], white["turn"]
            vector = vector.at[self._sites].set(white["mean"] + white["scales"] * (t - turn @ (turn.T @ t)))
        latents = self._unravel(vector)
        return latents, 0.0, self._residual(data, latents)


def middles_and_widths(points: Array) -> tuple[Array, Array]:
    """Medians and half widths (n,) of draws (m, n)."""
    return np.median(points, axis=0), np.subtract(*np.quantile(points, (0.84, 0.16), axis=0)) / 2.0


def generator(key: jax.Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))


def draw(
    coordinates: Coordinates, mixture: Mixture, is_normal: bool, public: Tree, key: jax.Array, num_samples: int
) -> Drawn:
    """Unconstrained latents by site, (num_samples, ...), and what is wrong with NUTS's draws, if anything. Draws are independent
    where the prior is normal, or so near to its normal law, within the posterior's range, that weights can be trusted."""
    rng = generator(key)
    densities = jax.vmap(coordinates.log_prior, (0, None))
    log_prior = lambda x: np.asarray(run_once(densities, np.asarray(x, np.float32), public), float)  # noqa: E731
    points: Array | None = None
    if is_normal:
        points = mixture.draw(rng, num_samples)
    elif set(coordinates.sites) == set(coordinates.split.latents):
        points = mixture.weighted(log_prior, rng, num_samples)
    if points is None:
        sampler = Narrow if coordinates.dimension <= MOST_FULL else Wide
        samples, problem = sampler(coordinates, num_samples)(*mixture.linear(), public, key)
        sites, empty = coordinates.split.latents.items(), np.zeros(0)
        return {n: np.asarray(samples.get(n, empty), s.dtype).reshape(num_samples, *s.shape) for n, s in sites}, problem
    found = run_once(jax.vmap(coordinates.latents), np.asarray(points, np.float32))
    return {site: np.asarray(value) for site, value in found.items()}, None
