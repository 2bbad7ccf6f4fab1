"""Remedies for models that cannot be split by rows, shared by several refusals."""

MANY = (
    'pass many sequences as rows: arrays of shape (num_sequences, T), numpyro.plate("data", num_sequences), and each '
    "sequence observed whole (.to_event(1))."
)
"""The remedy for time series."""
MASK_CURE = (
    "leave them out of the density: with numpyro.handlers.mask(mask=ok): numpyro.sample('y', ..., obs=jnp.where(ok, y, 0.0)), ok "
    "an argument of its own."
)
"""The remedy for latents that stand for missing values."""
MISSING_CURE = (
    "for a covariate with missing values write x = numpyro.sample('x', dist.Normal(mu, sigma), obs=x, obs_mask=ok) in the data "
    "plate, ok an argument of its own."
)
"""How to model missing covariates."""
STATEFUL = (
    "mutable state (batch norm, spectral norm, running statistics), which is changed by the rows that a layer sees; use a layer "
    "without state: flax.nnx.LayerNorm or GroupNorm instead of BatchNorm, and weights that are divided by their norm where they "
    "are used, x @ (kernel / jnp.linalg.norm(kernel)), instead of SpectralNorm or WeightNorm."
)
"""Why mutable state is refused, and the cure."""


def control_flow_message() -> str:
    """Message for sites inside NumPyro's own scan and cond."""
    return (
        "the model uses numpyro.contrib.control_flow, whose sample sites cannot be split by rows. If each row is a "
        "sequence already, carry the recursion with jax.lax.scan and write one site for all times, in the data plate, "
        "with .to_event(1); discrete states are summed out on the way, with numpyro.factor. If all data are one series, "
        f"rows must be independent: {MANY}"
    )


def nested_message(name: str) -> str:
    """Message for sites inside JAX's control flow."""
    return (
        f"site '{name}' is inside jax.lax control flow, jax.jit or jax.vmap, where NumPyro counts it once; write it "
        "outside, as one vectorised site."
    )


def random_message() -> str:
    """Message for models that draw random numbers outside of sites."""
    return (
        "the model draws random numbers of its own (numpyro.prng_key, dropout, handlers.block), so its density is not "
        "a function of its latents; switch the randomness off or make it a latent site."
    )
