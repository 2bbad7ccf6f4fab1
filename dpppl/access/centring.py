"""Centred clipping: a row's gradient is clipped around what the model itself expects of it, so that nothing is biased.

For a row at z, let y run over the responses that the model could have given, and s(y) be the gradient of their log
likelihood. With the centre a for which E clip(s(y) - a) = 0, the sum of clip(s_i - a_i) has mean zero where z is the
truth, whatever share of the rows is clipped: a conditionally unbiased estimating equation of bounded influence (Künsch,
Stefanski, Carroll 1989, section 2). Where responses are too many to list, K are drawn, and the same equation is solved
over these and the real one, all weighing alike: at the truth the real one is exchangeable with the draws, so the mean
is zero for every K. The centre is computed in a row's own program; the mechanism clips what is left, so the
sensitivity is that of flat clipping whatever the centre.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpppl.access.clipping import Centred
from dpppl.access.door import NoisySum, noisy_statistic
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.randomness import keys
from dpppl.row_program.hoist import gradient, value_and_gradient
from dpppl.types import BySite, Function, Scalar, Tree

_ITERATIONS, _FEW = 10, 4

LogLikelihood = Callable[[Tree, Tree, Tree, Tree], jax.Array]
"""`log_likelihood(position, row, public, responses)`: a scalar; `responses` None for those observed."""
Respond = Callable[[Tree, Tree, Tree, jax.Array], tuple[Tree, jax.Array]]
"""`respond(position, row, public, key)`: responses (m, ...), and the weights (1 + m,) of the real one and of these."""


def draw_key(key: jax.Array, step: Scalar) -> jax.Array:
    """The key of a step's model draws. Not secret."""
    return keys.threefry(jax.random.fold_in(keys.stream(key, "draws"), step))


def squared_length(vector: jax.Array, gram: jax.Array | None = None) -> jax.Array:
    """The squared length of a vector (d,); with a `gram` matrix (d, d), `vector @ gram @ vector`."""
    if gram is None:
        return jnp.sum(vector**2)
    return jnp.maximum(jnp.sum(gram * (vector[:, None] * vector)), 0.0)


def clipped(vectors: jax.Array, norm: Scalar, gram: jax.Array | None = None) -> jax.Array:
    """Vectors (m, d) shortened to at most `norm`; lengths are those of `squared_length`."""
    lengths = jnp.sqrt(jnp.stack([squared_length(vector, gram) for vector in vectors]))
    return vectors * jnp.minimum(1.0, norm / jnp.maximum(lengths, 1e-30))[:, None]


def centre(scores: jax.Array, weights: jax.Array, norm: Scalar, gram: jax.Array | None = None) -> jax.Array:
    """The centre a (d,) with `sum_k weights_k clip(scores_k - a) = 0`, for scores (m, d) and weights (m,).

    Lengths are those of `squared_length`. Computed by repeated weighted means, without members that are not finite."""
    finite = jnp.all(jnp.isfinite(scores), axis=1)
    scores, weights = jnp.where(finite[:, None], scores, 0.0), jnp.where(finite, weights, 0.0)
    if gram is not None and len(gram) <= _FEW:
        return _centre_of_few(scores, weights, norm, gram)
    members, shares = list(scores), list(weights)  # one by one, which is several times as fast as jointly

    def mean(shares: list[Tree]) -> jax.Array:
        total = jnp.maximum(sum(shares), 1e-30)
        return sum(share * member for share, member in zip(shares, members)) / total

    def better(_: int, a: object) -> jax.Array:
        squares = [squared_length(member - a, gram) for member in members]
        factors = [jnp.minimum(1.0, norm * jax.lax.rsqrt(jnp.maximum(square, 1e-30))) for square in squares]
        return mean([share * factor for share, factor in zip(shares, factors)])

    return jax.lax.fori_loop(0, _ITERATIONS, better, mean(shares))


def _centre_of_few(scores: jax.Array, weights: jax.Array, norm: Scalar, gram: jax.Array) -> jax.Array:
    """The same, of finite scores of few numbers: each number of all members at once."""
    numbers, pairs = list(scores.T), [(i, j) for i in range(len(gram)) for j in range(i + 1)]
    factors = {(i, j): gram[i, j] * (1.0 if i == j else 2.0) for i, j in pairs}
    extended = jnp.concatenate([scores, jnp.ones_like(scores[:, :1])], axis=1)

    def mean(shares: jax.Array) -> jax.Array:
        sums = shares @ extended
        return sums[:-1] / jnp.maximum(sums[-1], 1e-30)

    def better(_: int, a: jax.Array) -> jax.Array:
        moved = [number - a[i] for i, number in enumerate(numbers)]
        square = sum(factors[i, j] * (moved[i] * moved[j]) for i, j in pairs)
        return mean(weights * jnp.minimum(1.0, norm * jax.lax.rsqrt(jnp.maximum(square, 1e-30))))

    return jax.lax.fori_loop(0, _ITERATIONS, better, mean(weights))


def unnumbered(row: Tree) -> Tree:
    """A row without its ROW_NUMBER."""
    return {label: value for label, value in row.items() if label != ROW_NUMBER}


def averaged(values: jax.Array, chances: jax.Array) -> Tree:
    """Means of arrays (m, ...) by probabilities (m,); values of probability 0 need not be finite."""

    def mean(leaf: Tree) -> jax.Array:
        shares = chances.reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.sum(jnp.where(shares > 0.0, shares * leaf, 0.0), axis=0)

    return jax.tree.map(mean, values)


def centred_gradient(
    log_likelihood: LogLikelihood, respond: Respond, norm: float,
    complete: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]] | None = None,
) -> Function:  # fmt: skip
    """The statistic of (position, row, (public, key)) whose clipping at `norm` is centred: a pytree like `position`.

    `complete(position, row, public)` gives a row with its missing values filled in, (m, ...), and their probabilities given what
    it observes, (m,): then the mean over these of the clipped, centred score of the complete row. Its mean is that for complete
    rows, whatever part of what is observed decides which values are missing."""

    def statistic(position: BySite, row: Tree, public_and_key: Tree) -> Tree:
        public, key = public_and_key
        number, row = row[ROW_NUMBER], unnumbered(row)
        drawn, weights = respond(position, row, public, jax.random.fold_in(key, number))

        def score(responses: object) -> jax.Array:
            return ravel_pytree(gradient(log_likelihood)(position, row, public, responses))[0]

        real, others = score(None), jax.vmap(score)(drawn)

        def centred(own: jax.Array) -> jax.Array:
            return own - centre(jnp.concatenate([own[None], others]), weights, norm)

        if complete is None:
            return ravel_pytree(position)[1](centred(real))
        filled, chances = complete(position, row, public)
        psi = jax.vmap(lambda responses: clipped(centred(score(responses))[None], norm)[0])(filled)
        speaks = jnp.all(jnp.isfinite(real))
        return ravel_pytree(position)[1](jnp.where(speaks, averaged(psi, chances), jnp.nan))

    return statistic


def binary_gradient(log_likelihood: LogLikelihood, norm: float) -> Function:
    """`centred_gradient` for a single response with two values, from one gradient: chains take half of the time.

    The two scores are opposite, with lengths as the other's probability, so that the clipped and centred score is
    s(y) min(1, norm / longest)."""

    def statistic(position: BySite, row: Tree, public_and_key: Tree) -> Tree:
        log_prob, score = value_and_gradient(log_likelihood)(position, unnumbered(row), public_and_key[0], None)
        length = jnp.sqrt(sum(jnp.sum(s**2) for s in jax.tree.leaves(score)))
        factor = binary_factor(odds_of(log_prob), length, norm)
        return jax.tree.map(lambda s: s * factor.astype(s.dtype), score)

    return statistic


def odds_of(log_prob: jax.Array) -> jax.Array:
    """p / (1 - p): by how much the other score of a binary response is longer than that of the one observed."""
    return jnp.exp(log_prob) / jnp.maximum(-jnp.expm1(log_prob), 1e-30)


def binary_factor(odds: jax.Array, length: jax.Array, norm: Scalar) -> jax.Array:
    """min(1, norm / max(|s(0)|, |s(1)|)), from the odds of what was observed and the length of its score."""
    return jnp.minimum(1.0, norm / jnp.maximum(length * jnp.maximum(1.0, odds), 1e-30))


def _shortened(statistic: Function, norm: Scalar) -> Function:
    """A statistic at most `norm` long."""

    def found(position: BySite, row: Tree, rest: Tree) -> Tree:
        value, unravel = ravel_pytree(statistic(position, row, rest))
        return unravel(clipped(value[None], norm)[0])

    return found


def noisy_centred_sum(
    mechanism: Mechanism, responses: Tree, is_binary: bool, log_likelihood: LogLikelihood,
    to_latents: Callable[[Tree, jax.Array], tuple[Tree, Tree]], position: Tree, rows: Tree, public: Tree,
    num_positions: int = 1, *, key: jax.Array, noise_multiplier: Scalar, step: Scalar,
) -> NoisySum:  # fmt: skip
    """`door.noisy_sum` of centred gradients with respect to `position`.

    - **mechanism** - the mechanism, with centred clipping.
    - **responses** - the model's `Responses`.
    - **is_binary** - whether the position gives one response with two values, see `binary_gradient`.
    - **log_likelihood** - as for `centred_gradient`.
    - **to_latents** - `to_latents(position, public)`: the model's unconstrained latents there, and its Public arrays.
    - **position** - what gradients are taken in.
    - **num_positions** - of more than one, on the first axis, each is centred by responses of its own, and clipped at its part of
      the norm: together they are at most as long.
    - **rows**, **public**, **key**, **noise_multiplier**, **step** - as for `door.noisy_statistic`."""
    clipping, log_likelihood = mechanism.clipping, mechanism.marked(log_likelihood)
    assert isinstance(clipping, Centred)
    norm = clipping.clipping_norm / num_positions**0.5
    if is_binary:
        statistic = binary_gradient(log_likelihood, norm)
    else:

        def respond(position: BySite, row: Tree, public: Tree, key: jax.Array) -> Tree:
            z, public = to_latents(position, public)
            return responses(z, row, public, key)

        def complete(position: BySite, row: Tree, public: Tree) -> Tree:
            z, public = to_latents(position, public)
            return responses.completions(z, row, public)

        gaps = complete if responses.missing else None
        statistic = centred_gradient(log_likelihood, respond, norm, gaps)
    of_all = statistic if num_positions == 1 else jax.vmap(_shortened(statistic, norm), (0, None, None))
    return noisy_statistic(
        mechanism, of_all, position, rows, (public, draw_key(key, step)), key=key, noise_multiplier=noise_multiplier,
        step=step, number=ROW_NUMBER,
    )  # fmt: skip
