"""Samples of the posterior: the exact prior times the surrogate of the likelihood."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

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
from dpppl.noise_aware.coordinates import MOST_FULL, Coordinates, Known, Prior
from dpppl.noise_aware.curvature import Array, eigh, times
from dpppl.noise_aware.frame import Frame
from dpppl.noise_aware.surrogate import Surrogate, moments, root_of
from dpppl.types import Tree

_NUM_WARMUP, _DIVERGING, _R_HAT = 200, 0.02, 1.1
_AT_ONCE = 64
_EACH = {"start": 0, "slopes": 0, "centre": None, "scales": None, "turn": None, "index": None}
_CHAINS = 30
_CANDIDATES, _TAIL, _LEAST, _HEAVY = 8, 0.2, 0.25, 0.7
_ROUNDS, _DEGREES = 4, 5


class Linear(NamedTuple):
    """Residuals (k b,) that are linear in coordinates: minus log likelihoods are half their squares.

    - **start**, **slopes** - (n, k, b): residuals at `centre`; (n, k, b, b), by scaled and reflected latents.
    - **centre**, **frame** - coordinates (d,), and how latents are scaled and reflected."""

    start: Array
    slopes: Array
    centre: Array
    frame: Frame

    @classmethod
    def of(cls, means: Array, covariances: Array, prior: Array, origin: Array, frame: Frame) -> "Linear":
        """Those that make means (n, k, b) and covariances of u under a normal prior of covariance `prior`, where latents have the
        mean `origin`."""
        centre = means.mean(axis=0)
        total = np.linalg.inv(covariances)
        values, vectors = eigh(total - np.linalg.inv(prior))
        # a mixture may be wider than the prior
        roots = np.sqrt(np.maximum(values, 1e-9 * np.linalg.eigvalsh(total).max()))
        slopes = (vectors * roots[..., None, :]).swapaxes(-1, -2)
        missing = times(vectors.swapaxes(-1, -2), times(total, means)) / roots
        return cls(times(slopes, centre) - missing, slopes @ frame.inverse, origin + frame.latents(centre), frame)

    def arrays(self) -> dict[str, Tree]:
        """For `_residual`, without the leading axis where all share them."""
        frame = self.frame
        found = {"start": self.start, "slopes": self.slopes, "centre": self.centre, "scales": frame.scales}
        floats = {name: jnp.asarray(a, jnp.float32) for name, a in (found | {"turn": frame.turn}).items()}
        return floats | {"index": jnp.asarray(frame.layout.numbers)}


def _residual(data: Tree, vector: jax.Array) -> jax.Array:
    moved = (vector - data["centre"]) / data["scales"]
    moved = jnp.append(moved - data["turn"] @ (data["turn"].T @ moved), 0.0)[data["index"]]
    return (data["start"] + jnp.einsum("kij,kj->ki", data["slopes"], moved)).ravel()


class Sampler:
    """NUTS chains over the latents of a model, as one vector, under its prior times exp(-|residual|^2 / 2); compiled once for all
    surrogates. Each chain has a residual of its own; all give as many samples. `x` (n,) is nearly white: see `_place`, and
    `_wide_latents` for wide models.

    - **coordinates**, **num_samples** - those of the model; of all chains together."""

    def __init__(self, coordinates: Coordinates, num_samples: int) -> None:
        latents = coordinates.split.latents
        zeros, self._unravel = ravel_pytree({site: jnp.zeros(s.shape, s.dtype) for site, s in latents.items()})
        self.dimension, self.coordinates, self.num_samples = len(zeros), coordinates, num_samples
        self._is_wide = coordinates.dimension > MOST_FULL
        members = lambda sites: {n: jnp.full(s.shape, n in sites) for n, s in latents.items()}  # noqa: E731
        inside = [np.asarray(ravel_pytree(members(s))[0]) for s in (coordinates.moves, coordinates.sites)]
        self._moves, self._sites = inside
        self._own, self._given = np.flatnonzero(self._moves), np.flatnonzero(~self._moves)
        self._slopes = jax.jit(lambda t, frame, data: (lambda at: (at(t), jax.jacobian(at)(t)))(self._at(frame, data)))

    def __call__(
        self, linear: Linear, average: Linear, covariance: Array, public: Tree, key: jax.Array
    ) -> tuple[dict[str, Array], str | None]:
        """Unconstrained latents by site, and what is wrong with them, if anything. `average`: of all that `linear` holds."""
        prior_key, key, weights_key = jax.random.split(key, 3)
        draws = self.coordinates.draws(public, prior_key)
        points = np.asarray(jax.vmap(lambda z: ravel_pytree(z)[0])(draws), np.float64)
        data = linear.arrays()
        count = len(linear.start)
        if self._is_wide:
            frames = self._wide_frame(average, covariance, points, public)
        else:
            frames = self._white(data, points, public)
            if (independent := self._weighted(data, public, frames, count, generator(weights_key))) is not None:
                return independent, None
        chain = partial(self._chain, num_samples=-(-self.num_samples // count))
        chains = jax.vmap(chain, ((_EACH, None), None if self._is_wide else 0, 0))
        # Of narrow models compiling takes longer than running; a second run finds the program.
        arguments = (data, public), frames, jax.random.split(key, count)
        placed, diverged = run_once(chains, *arguments, quickly=not self._is_wide)
        # In the order of time: what drifts or is stuck makes the halves differ.
        samples = {n: np.asarray(v).swapaxes(0, 1).reshape(-1, *v.shape[2:]) for n, v in placed.items()}
        samples = {site: value[: self.num_samples] for site, value in samples.items()}
        diverging = float(np.mean(np.asarray(diverged)))
        with np.errstate(all="ignore"):
            r_hat = max(float(np.max(split_gelman_rubin(value[None]))) for value in samples.values())
        if diverging <= _DIVERGING and r_hat <= _R_HAT:
            return samples, None
        return samples, f"NUTS did not explore the posterior ({diverging:.0%} divergences, split R-hat {r_hat:.2f})"

    def _density(self, x: jax.Array, data: Tree, frame: Tree) -> tuple[Tree, Tree]:
        """Latents by site, and the log density of x but for a constant."""
        latents, log_det, residual = self._latents(x, data, frame)
        return latents, self.coordinates.split.log_prior(latents, data[1]) + log_det - 0.5 * jnp.sum(residual**2)

    def _weighted(
        self, data: Tree, public: Tree, frames: Tree, count: int, rng: np.random.Generator
    ) -> dict[str, Array] | None:
        """Independent draws by site, or None where weights cannot be trusted (`resampled`). Latents that are `moves` are proposed
        from their normal law given the others; the others from a t law that is adapted to the weights of earlier proposals
        (Cappe, Guillin, Marin, Robert 2004)."""
        each, given, size = -(-self.num_samples // count), self._given, len(self._given)
        mean, root, degrees = np.zeros(size), np.eye(size), max(_DEGREES, size)
        each_of = lambda x, data, frame: lax.map(partial(self._density, data=data, frame=frame), x, batch_size=_AT_ONCE)  # noqa: E731
        shape, program = (count, _CANDIDATES * each), jax.vmap(each_of, (0, (_EACH, None), 0))
        score = compiled(program, jnp.zeros((*shape, self.dimension)), (data, public), frames)
        for _ in range(_ROUNDS):
            x = rng.standard_normal((*shape, self.dimension))
            free = x[..., given] / np.sqrt(rng.chisquare(degrees, shape) / degrees)[..., None]
            proposed = -0.5 * (degrees + size) * np.log1p(np.sum(free**2, axis=-1) / degrees)
            proposed -= 0.5 * np.sum(x[..., self._own] ** 2, axis=-1)
            x[..., given] = mean + free @ root.T
            latents, logs = score(jnp.asarray(x, jnp.float32), (data, public), frames)
            ratios = np.asarray(logs, np.float64) - proposed
            ratios = np.where(np.isfinite(ratios), ratios, -np.inf)
            if (chosen := resampled(list(ratios), np.full(count, each), rng)) is not None:
                numbers = (np.arange(count)[:, None], np.array(chosen))
                order = rng.permutation(count * each)[: self.num_samples]
                return {n: np.asarray(v)[numbers].reshape(-1, *v.shape[2:])[order] for n, v in latents.items()}
            weights = np.exp(ratios - ratios.max()).ravel()
            weights = np.minimum(weights, np.mean(weights) * np.sqrt(len(weights)))
            points = x[..., given].reshape(len(weights), -1)
            mean = np.average(points, axis=0, weights=weights)
            root = root_of(np.atleast_2d(np.cov(points.T, aweights=weights)) + 1e-6 * np.eye(size))
        return None

    def _chain(self, data: Tree, frame: Tree, key: jax.Array, num_samples: int) -> Tree:
        """Latents by site, (num_samples, ...), and whether they diverged."""

        @jax.jit  # traced once
        def potential(x: jax.Array) -> Tree:
            return -self._density(x, data, frame)[1]

        def body(state: Tree, _: object) -> Tree:
            state = step(state)
            return state, (state.z, state.diverging)

        start, step = hmc(potential_fn=potential, algo="NUTS")
        options = dict(step_size=0.5, target_accept_prob=0.9, max_tree_depth=7, rng_key=key)
        state = start(jnp.zeros(self.dimension), _NUM_WARMUP, **options)
        # One loop for both phases: its body is most of what is compiled.
        places, diverging = lax.scan(body, state, None, length=_NUM_WARMUP + num_samples)[1]
        latents = jax.vmap(lambda x: self._latents(x, data, frame)[0])(places[_NUM_WARMUP:])
        return latents, diverging[_NUM_WARMUP:]

    def _latents(self, x: jax.Array, data: Tree, frame: Tree) -> tuple[Tree, Tree, Tree]:
        """Latents, the log determinant of their derivatives, and their residual."""
        if self._is_wide:
            latents = self._wide_latents(x, frame)
            return latents, 0.0, _residual(data[0], self.coordinates.vector(latents, data[1]))
        t, log_det = self._place(x, data, frame)
        return self._unravel(frame["middle"] + frame["width"] * t), log_det, self._at(frame, data)(t)

    def _at(self, frame: Tree, data: Tree) -> Callable[[Tree], Tree]:
        """The residual of latents in units of their prior's spread."""

        def residual(t: jax.Array) -> jax.Array:
            latents = self._unravel(frame["middle"] + frame["width"] * t)
            return _residual(data[0], self.coordinates.vector(latents, data[1]))

        return residual

    def _white(self, data: Tree, points: Array, public: Tree) -> Tree:
        """Arguments of `_place` for each chain; `points`: latents drawn from the prior, (m, n). Latents that are coordinates
        themselves or `moves` are placed where they fit, and the spread of all others is that of a linear residual around
        these."""
        middle, width = middles_and_widths(points)
        covariance = np.atleast_2d(np.cov(np.clip((points - middle) / width, -4.0, 4.0).T))  # of heavy tails, too
        scales = {"middle": jnp.asarray(middle, jnp.float32), "width": jnp.asarray(width, jnp.float32)}
        precision, free = np.linalg.inv(covariance), self._sites | self._moves
        given, own = self._given, self._own
        prior_root = np.linalg.cholesky(np.linalg.inv(covariance[np.ix_(own, own)])).T
        frames = []
        for number in range(len(data["start"])):
            each = {name: a if _EACH[name] is None else a[number] for name, a in data.items()}
            start = np.zeros(len(middle))
            for _ in range(3):  # exact after two: first the latents that are measured, then those that move
                found = self._slopes(jnp.asarray(start, jnp.float32), scales, (each, public))
                value, slope = (np.asarray(v, np.float64) for v in found)
                total = slope[:, free].T @ slope[:, free] + precision[np.ix_(free, free)]
                start[free] = np.linalg.solve(total, slope[:, free].T @ (slope[:, free] @ start[free] - value))
            root = root_of(np.linalg.inv(slope.T @ slope + precision)[np.ix_(given, given)])
            frames.append(scales | {"around": start[given], "root": root, "prior_root": prior_root})
        return {name: jnp.asarray(np.array([f[name] for f in frames]), jnp.float32) for name in frames[0]}

    def _place(self, x: jax.Array, data: Tree, frame: Tree) -> tuple[Tree, Tree]:
        """Latents, in units of their prior's spread, and the log determinant of their derivatives by x. The residual is affine in
        the latents that are `moves`: these get the mean and covariance that they would have under a normal prior, given all
        others."""
        given, own, at = self._given, self._own, self._at(frame, data)
        t = jnp.zeros_like(x).at[given].set(frame["around"] + frame["root"] @ x[given])
        if not len(own):
            return t, 0.0
        along = lambda moved: at(t.at[own].set(moved))  # noqa: E731
        value, slope = along(t[own]), jax.jacfwd(along)(t[own])
        q, r = jnp.linalg.qr(jnp.concatenate([slope, frame["prior_root"]]))
        moved = solve_triangular(r, x[own] - q[: len(value)].T @ value)
        return t.at[own].set(moved), -jnp.sum(jnp.log(jnp.abs(jnp.diag(r))))

    def _wide_frame(self, average: Linear, covariance: Array, points: Array, public: Tree) -> Tree:
        """Arguments of `_wide_latents` for all chains: a scale of its own for each latent around latents that fit; but where the
        latents are the coordinates, these white under a posterior of this `covariance` (k, b, b) of u, the others as in their
        prior."""
        middle, width = (jnp.asarray(a, jnp.float32) for a in middles_and_widths(points))
        frame = average.frame
        if not self.coordinates.held:
            arrays = {"roots": frame.roots @ root_of(covariance), "mean": average.centre}
            return {"middle": middle, "width": width} | {n: jnp.asarray(a, jnp.float32) for n, a in arrays.items()} | {
                n: a for n, a in average.arrays().items() if n in ("scales", "turn", "index")
            } | {"place": jnp.asarray(frame.layout.place)}  # fmt: skip
        data = {name: a if _EACH[name] is None else a[0] for name, a in average.arrays().items()}
        at, free = self._at({"middle": middle, "width": width}, (data, public)), self._sites | self._moves
        mask = jnp.asarray(free, jnp.float32)

        @jax.jit
        def fitted(t: jax.Array) -> jax.Array:
            value, forward = jax.linearize(at, t)
            backward = jax.linear_transpose(forward, t)
            normal = lambda s: s + mask * backward(forward(mask * s))[0]  # noqa: E731
            return t + mask * cg(normal, -mask * (backward(value)[0] + t), maxiter=300)[0]

        start = jnp.zeros(len(free))
        for _ in range(3):
            start = fitted(start)
        forward = jax.linearize(at, start)[1]
        square = lambda i: jnp.sum(forward(jax.nn.one_hot(i, len(free))) ** 2)  # noqa: E731
        squares = jax.jit(lambda: lax.map(square, jnp.arange(len(free)), batch_size=_AT_ONCE))()
        return {"middle": middle + width * start, "width": width * (1.0 / jnp.sqrt(1.0 + squares))}

    def _wide_latents(self, x: jax.Array, frame: Tree) -> Tree:
        latents = frame["middle"] + frame["width"] * x
        if "roots" in frame:
            where, turn = np.flatnonzero(self._sites), frame["turn"]
            t = jnp.einsum("kij,kj->ki", frame["roots"], jnp.append(x[where], 0.0)[frame["index"]])
            t = t.ravel()[frame["place"]]
            latents = latents.at[where].set(frame["mean"] + frame["scales"] * (t - turn @ (turn.T @ t)))
        return self._unravel(latents)


def middles_and_widths(points: Array) -> tuple[Array, Array]:
    """Medians and half widths (n,) of draws (m, n)."""
    return np.median(points, axis=0), np.subtract(*np.quantile(points, (0.84, 0.16), axis=0)) / 2.0


class Mixture(NamedTuple):
    """A posterior under a normal prior: normal given the curvature, which is drawn from what its release left open.

    - **mean**, **prior** - latents at u = 0, and (k, b, b): the prior covariance of u.
    - **means**, **covariances** - (n, k, b) and (n, k, b, b), equally weighted.
    - **surrogate** - the likelihood.

    Gradients near the posterior mean say next to nothing of the curvature, and weights by their evidence would prefer small ones,
    whose posteriors are wide."""

    mean: Array
    prior: Array
    means: Array
    covariances: Array
    surrogate: Surrogate

    @classmethod
    def of(cls, surrogate: Surrogate, prior: Prior) -> "Mixture":
        """A function of the releases alone: the draws of curvatures have a seed of their own."""
        frame = surrogate.frame
        covariance = frame.from_latents(prior.covariance(frame))
        return cls(prior.mean, covariance, *surrogate.posteriors(covariance), surrogate)

    def moments(self) -> Known:
        """Mean and variances of the coordinates."""
        frame, (mean, spread) = self.surrogate.frame, moments(self.means, self.covariances)
        return Known(self.mean + frame.latents(mean), frame.variances(spread))

    def log_density(self, number: int, value: float) -> float:
        """Log posterior density of one coordinate, by its number, at a value."""
        from scipy.special import logsumexp

        frame = self.surrogate.frame
        means = self.mean[number] + frame.latents(self.means)[:, number]
        variances = np.array([frame.variances(covariance)[number] for covariance in self.covariances])
        logs = -0.5 * ((value - means) ** 2 / variances + np.log(2.0 * np.pi * variances))
        return float(logsumexp(logs) - np.log(len(logs)))

    def linear(self) -> tuple[Linear, Linear, Array]:
        """Likelihoods: one for each normal distribution of a part of them, and that of all together, whose covariance (k, b, b)
        is the last."""
        step, frame = max(1, len(self.means) // _CHAINS), self.surrogate.frame
        mean, spread = moments(self.means, self.covariances)
        each = Linear.of(self.means[::step], self.covariances[::step], self.prior, self.mean, frame)
        return each, Linear.of(mean[None], spread[None], self.prior, self.mean, frame), spread

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Independent draws (count, d), as many of each normal distribution."""
        chosen, drawn = rng.permutation(np.arange(count) % len(self.means)), np.empty((count, len(self.mean)))
        for number in np.unique(chosen):
            own = np.flatnonzero(chosen == number)
            drawn[own] = self.mean + self.surrogate.frame.latents(self._drawn(number, len(own), rng))
        return drawn

    def _drawn(self, number: int, count: int, rng: np.random.Generator) -> Array:
        noise = rng.standard_normal((count, *self.means.shape[1:]))
        return np.asarray(self.means[number] + times(root_of(self.covariances[number]), noise))

    def weighted(self, log_prior: Callable[[Array], Array], rng: np.random.Generator, count: int) -> Array | None:
        """Draws (count, d) under another prior than the normal one, or None where the two differ too much for weights.

        Of each normal distribution `_CANDIDATES` times as many are drawn, weighted by the priors' ratio, and resampled.

        - **log_prior** - the exact log density of coordinates (n, d), but for a constant."""
        numbers, wanted = np.unique(np.arange(count) % len(self.means), return_counts=True)
        u = [self._drawn(number, _CANDIDATES * more, rng) for number, more in zip(numbers, wanted)]
        points = [self.mean + self.surrogate.frame.latents(each) for each in u]
        together, precision = np.concatenate(u), np.linalg.inv(self.prior)
        ratios = log_prior(np.concatenate(points)) + 0.5 * np.sum(together * times(precision, together), axis=(1, 2))
        chosen = resampled(np.split(ratios, np.cumsum([len(each) for each in u])[:-1]), wanted, rng)
        if chosen is None:
            return None
        return rng.permutation(np.concatenate([each[places] for each, places in zip(points, chosen)]))


def resampled(ratios: Sequence[Array], wanted: Array, rng: np.random.Generator) -> list[Array] | None:
    """Of each group of candidates, by the logs of their weights, the places of as many as are wanted, resampled evenly (Kitagawa
    1996); None where weights cannot be trusted: few candidates hold them, or the largest ones follow a generalised Pareto law of
    a large shape (Vehtari, Simpson, Gelman, Yao, Gabry 2024)."""
    from scipy.stats import genpareto

    shares = [np.exp(each - np.max(each)) for each in ratios]
    shares = [each / np.sum(each) for each in shares]
    every = np.sort(np.concatenate([each * len(each) for each in shares]))
    tail = every[-int(_TAIL * len(every)) :]
    if not (np.isfinite(tail).all() and 1.0 / np.mean(every**2) >= _LEAST):
        return None
    if tail[-1] > 1.1 * tail[0] and genpareto.fit(tail - tail[0], floc=0.0)[0] > _HEAVY:
        return None
    places = [np.searchsorted(np.cumsum(s), (rng.random() + np.arange(n)) / n) for s, n in zip(shares, wanted)]
    return [np.minimum(each, len(share) - 1) for each, share in zip(places, shares)]


def generator(key: jax.Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))


def draw(
    coordinates: Coordinates, mixture: Mixture, is_normal: bool, public: Tree, key: jax.Array, num_samples: int
) -> tuple[dict[str, Array], str | None]:
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
        return Sampler(coordinates, num_samples)(*mixture.linear(), public, key)
    found = run_once(jax.vmap(coordinates.latents), np.asarray(points, np.float32))
    return {site: np.asarray(value) for site, value in found.items()}, None
