"""A Bayesian low-rank adapter in a public flax.nnx network (Hu et al. 2021): only the adapter learns from private rows."""

import jax
import numpyro
import numpyro.distributions as dist
from flax import nnx


def adapted(network, name, rank, seed=0):
    """A copy of `network` whose layer `name`, an nnx.Linear, has an nnx.LoRA adapter of rank `rank`. The adapter starts at zero:
    its first factor is drawn with `seed`, its second one is zero."""
    graph, weights = nnx.split(network)
    copy = nnx.merge(graph, weights)
    base = getattr(copy, name)
    setattr(copy, name, nnx.LoRA(base.in_features, rank, base.out_features, base_module=base, rngs=nnx.Rngs(seed)))
    return copy


def parts(network):
    """(graph, adapter, public): the structure of an adapted network, its adapter's arrays, and the arrays that stay."""
    return nnx.split(network, nnx.LoRAParam, ...)


def low_rank_adapter(x, y=None, public=None, *, graph, adapter, prior_scale=1.0):
    """`x` (N, D), labels `y` (N,); `public`, `graph` and `adapter` from `parts`. Sites: a (inputs, rank), b (rank, outputs).

    Entries of `a` have the prior N(0, 1) and those of `b` N(0, prior_scale^2 / rank), so those of `a @ b` have sd prior_scale."""
    arrays = jax.tree.leaves(adapter)
    inputs, rank = arrays[0].shape
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([inputs, rank]).to_event(2))
    b = numpyro.sample("b", dist.Normal(0.0, prior_scale * rank**-0.5).expand(arrays[1].shape).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits(x, {"a": a, "b": b}, public, graph, adapter)), obs=y)


def logits(x, draw, public, graph, adapter):
    """Class logits of inputs (N, D), given one draw of the adapter's factors by site."""
    factors = jax.tree.unflatten(jax.tree.structure(adapter), [draw["a"], draw["b"]])
    return nnx.merge(graph, factors, public)(x)
