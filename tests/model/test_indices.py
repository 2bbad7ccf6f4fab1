"""Rows with an index out of range, or with NaN made an integer, are found wherever this enters their log likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax import lax
from small_models import latent, seen

from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.errors import UnsupportedModelError
from dpppl.model.indices import followed
from dpppl.model.split import split_model
from dpppl.model.supports import codes
from dpppl.model.units import grouped, is_outside, split_in_units
from dpppl.subsampling import FullBatch

U, EDGES, CODES = np.arange(4.0, dtype=np.float32), np.array([0.0, 1.0, 2.0], np.float32), np.array([3, 0, 9], np.int32)


def scanned(z, row, public):
    step = lambda total, i: (total + z["u"][i], total)  # noqa: E731
    return lax.scan(step, 0.0, row["ids"])[0]


def unmasked(z, row, public):
    padded = jnp.where(row["ids"] >= 0, row["ids"], 0)
    return jnp.sum(z["u"][padded])


OUT = {
    "effect": (lambda z, r, p: z["u"][r["i"]], (0, 3), (4, -1, -9, 2**31 - 1)),
    "matrix": (lambda z, r, p: jnp.outer(z["u"], z["u"])[1, r["i"]], (3,), (4, -1)),
    "two ids": (lambda z, r, p: jnp.outer(z["u"], z["u"])[r["i"], 2 - r["i"]], (0, 2), (3, -1)),
    "take": (lambda z, r, p: jnp.take(z["u"], r["i"]), (3,), (4, -1)),
    "take, clip": (lambda z, r, p: jnp.take(z["u"], r["i"], mode="clip"), (3,), (4, -1)),
    "take along an axis": (lambda z, r, p: jnp.take_along_axis(z["u"], r["i"][None], 0)[0], (3,), (4, -1)),
    "promised": (lambda z, r, p: z["u"].at[r["i"]].get(mode="promise_in_bounds"), (3,), (4, -1)),
    "filled": (lambda z, r, p: z["u"].at[r["i"]].get(mode="fill", fill_value=0.0), (3, 4), (-1,)),
    "embedding": (lambda z, r, p: jnp.ones((4, 2))[r["i"]].sum() * z["u"][0], (3,), (4, -1)),
    "dynamic slice": (lambda z, r, p: lax.dynamic_slice(z["u"], (r["i"],), (2,)).sum(), (0, 2), (3, -1)),
    "add at": (lambda z, r, p: jnp.zeros(4).at[r["i"]].add(1.0) @ z["u"], (3,), (4, -1)),
    "set at": (lambda z, r, p: z["u"].at[r["i"]].set(2.0).sum(), (3,), (4, -1)),
    "switch": (lambda z, r, p: lax.switch(r["i"], [jnp.sin, jnp.cos], z["u"][0]), (0, 1), (2, -1)),
    "public table, then effect": (lambda z, r, p: z["u"][p["codes"][r["i"]]], (0, 1), (2, 3, -1)),
    "products of an id": (lambda z, r, p: z["u"][2 * p["codes"][r["i"]]], (1,), (0, 2, 3)),
    "narrow": (lambda z, r, p: z["u"][r["i"].astype(jnp.int8)], (3,), (256, 259, -256)),
    "compiled": (lambda z, r, p: jax.jit(lambda u, i: jax.checkpoint(lambda u: u[i])(u))(z["u"], r["i"]), (3,), (4,)),
    "branch": (lambda z, r, p: lax.cond(r["i"] < 9, lambda i: z["u"][i], lambda i: 0.0, r["i"]), (3, 9), (4, 8, -1)),
    "left out": (lambda z, r, p: jnp.where(r["i"] < 4, z["u"][r["i"]], 0.0), (3, 4, 99), (-1,)),
    "weight of 0": (lambda z, r, p: (r["i"] < 4) * z["u"][r["i"]], (3, 4, 99), (-1,)),
    "compared": (lambda z, r, p: jnp.where(p["codes"][r["i"]] > 2, z["u"][0], 1.0), (0, 2), (3, -1)),
    "from the end, by the user": (
        lambda z, r, p: z["u"][jnp.where(r["i"] < 0, r["i"] + 4, r["i"])],
        (3, -1, -4),
        (4, -5),
    ),
    "from the end, for all rows": (
        lambda z, r, p: z["u"][-1] * r["i"] + z["u"][jnp.array([-1, -2])].sum(),
        (9, -9),
        (),
    ),
    "for the smallest": (lambda z, r, p: jnp.max(z["u"][r["i"] + jnp.arange(2)]), (0, 2), (3, -1)),
    "one-hot": (lambda z, r, p: jax.nn.one_hot(r["i"], 4) @ z["u"], (0, 4, -1), ()),
    "sorted": (lambda z, r, p: jnp.sort(z["u"])[jnp.argsort(r["i"] + U)[0]], (0, 7), ()),
}
CAST = {
    "float ids": (lambda z, r, p: z["u"][r["x"].astype(int)], (0.0, 3.0, 3.9, -0.5), (np.nan, np.inf, 4.0, -1.0, 3e9)),
    "a cast alone": (
        lambda z, r, p: z["u"][0] * (r["x"].astype(jnp.int32) == 3),
        (3.0, 9.0),
        (np.nan, -np.inf, 2.0**31),
    ),
    "small integers": (lambda z, r, p: z["u"][r["x"].astype(jnp.uint8)], (3.0,), (np.nan, -1.0, 256.0)),
    "yes or no": (lambda z, r, p: jnp.where(r["x"].astype(bool), z["u"][0], 1.0), (0.0, np.inf), (np.nan,)),
    "rounded": (lambda z, r, p: z["u"][jnp.int32(jnp.round(r["x"]))], (3.4,), (np.nan, 3.6)),
    "nearest": (lambda z, r, p: z["u"][jnp.argmin(jnp.abs(r["x"] - jnp.arange(4.0)))], (0.0, 9.0), (np.nan,)),
    "order": (lambda z, r, p: z["u"][jnp.argsort(r["x"] - jnp.arange(4.0))[0]], (0.0, 9.0), (np.nan,)),
    "largest two": (lambda z, r, p: z["u"][lax.top_k(r["x"] * p["edges"], 2)[1]].sum(), (0.0, 9.0), (np.nan,)),
    "sorted numbers": (lambda z, r, p: z["u"][0] * jnp.nansum(jnp.sort(r["x"] * p["edges"])), (np.nan, 9.0), ()),
    "edges below": (lambda z, r, p: z["u"][jnp.sum(r["x"] > p["edges"][:3])], (0.0, 9.0), (np.nan,)),
    "a dummy": (lambda z, r, p: z["u"][0] * (r["x"] > 1.0).astype(int), (0.0, 9.0), (np.nan,)),
    "compared, handled": (
        lambda z, r, p: z["u"][0] * jnp.where(jnp.isnan(r["x"]), 0, (r["x"] > 1.0).astype(int)),
        (np.nan, 9.0),
        (),
    ),
    "compared, reshaped": (
        lambda z, r, p: z["u"][(r["x"] > p["edges"][:3]).reshape(3, 1).sum()],
        (0.0, 9.0),
        (np.nan,),
    ),
    "two comparisons": (lambda z, r, p: z["u"][((r["x"] > 0.0) & (r["x"] < 2.0)).astype(int)], (0.0, 9.0), (np.nan,)),
    "either comparison": (lambda z, r, p: z["u"][((r["x"] > 2.0) | (r["x"] < 0.0)).astype(int)], (0.0, 9.0), (np.nan,)),
    "chosen by a comparison": (lambda z, r, p: z["u"][jnp.where(r["x"] > 1.0, 1, 0)], (0.0, 9.0), (np.nan,)),
    "cases": (lambda z, r, p: z["u"][jnp.select([r["x"] < 0.0, r["x"] < 1.0], [0, 1], 2)], (0.0, 9.0), (np.nan,)),
    "cases, handled": (
        lambda z, r, p: z["u"][jnp.select([jnp.isnan(r["x"]), r["x"] < 1.0], [0, 1], 2)],
        (np.nan, 0.0, 9.0),
        (),
    ),
    "no comparison": (lambda z, r, p: z["u"][jnp.sum(~(r["x"] > p["edges"][:3]))], (0.0, 9.0), (np.nan,)),
    "equal": (lambda z, r, p: z["u"][(r["x"] == 1.0).astype(int)], (1.0, 9.0), (np.nan,)),
    "any": (lambda z, r, p: z["u"][jnp.any(r["x"] > p["edges"]).astype(int)], (0.0, 9.0), (np.nan,)),
    "first": (lambda z, r, p: z["u"][jnp.argmax(r["x"] < p["edges"])], (0.0, 9.0), (np.nan,)),
    "by way of a float": (lambda z, r, p: z["u"][jnp.where(r["x"] > 1.0, 1.0, 0.0).astype(int)], (0.0, 9.0), (np.nan,)),
    "in a loop": (
        lambda z, r, p: z["u"][lax.scan(lambda c, e: (c | (r["x"] > e), None), False, p["edges"])[0].astype(int)],
        (0.0, 9.0),
        (np.nan,),
    ),
    "compared, known": (
        lambda z, r, p: z["u"][((r["x"] > 1.0) & ~jnp.isnan(r["x"])).astype(int)] * (r["x"] != r["x"]).astype(int),
        (np.nan, 9.0),
        (),
    ),
    "compared alone": (lambda z, r, p: jnp.where(r["x"] > 1.0, z["u"][0], 1.0), (np.nan, 9.0), ()),
    "bins": (lambda z, r, p: z["u"][jnp.searchsorted(p["edges"], r["x"])], (-9.0, 9.0), (np.nan,)),
    "too few effects": (lambda z, r, p: z["u"][:3][jnp.digitize(r["x"], p["edges"])], (1.5,), (2.5, np.nan)),
    "missing, handled": (
        lambda z, r, p: z["u"][jnp.where(jnp.isnan(r["x"]), 0.0, r["x"]).astype(int)],
        (np.nan, 3.0),
        (4.0,),
    ),
    "missing, left out": (
        lambda z, r, p: jnp.where(jnp.isnan(r["x"]), 0.0, z["u"][r["x"].astype(int)]),
        (np.nan,),
        (4.0,),
    ),
    "scaled by a latent": (lambda z, r, p: (z["u"] * r["x"]).astype(int).sum() * 1.0, (np.nan, 3.0), ()),
}
SEVERAL = {
    "scan": (scanned, ([0, 3],), ([0, 4], [-1, 0])),
    "sum": (lambda z, r, p: z["u"][r["ids"]].sum(), ([0, 3],), ([4, 0], [0, -1])),
    "padded, masked before": (unmasked, ([0, -1], [-9, -9]), ([4, -1],)),
    "padded, masked after": (
        lambda z, r, p: jnp.where(r["ids"] >= 0, z["u"][r["ids"]], 0.0).sum(),
        ([-1, 3],),
        ([-1, 4],),
    ),
    "padded, weighed": (lambda z, r, p: (r["ids"] >= 0).astype(float) @ z["u"][r["ids"]], ([-1, 3],), ([-1, 4],)),
    "padded, added": (lambda z, r, p: jnp.zeros(4).at[r["ids"]].add(r["ids"] >= 0.0) @ z["u"], ([-1, 3],), ([0, 4],)),
    "segments": (lambda z, r, p: jax.ops.segment_sum(z["u"][:2], r["ids"], 3).max(), ([0, 2],), ([0, 3], [-1, 0])),
    "chosen": (lambda z, r, p: z["u"][r["ids"]][r["ids"][0]], ([0, 9], [1, 1]), ([2, 0], [1, 9])),
    "mapped": (lambda z, r, p: jax.vmap(lambda i: z["u"][i] ** 2)(r["ids"]).sum(), ([0, 3],), ([0, 4],)),
    "compared with a latent": (
        lambda z, r, p: jnp.where(z["u"] > 2, z["u"][r["ids"][0]], 0.0).sum(),
        ([3, 9],),
        ([4, 0],),
    ),
}
TABLES = {"i": (np.int32, OUT), "x": (np.float32, CAST), "ids": (np.int32, SEVERAL)}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("field", TABLES)
def test_what_enters_a_row_is_found_out_of_range(field):
    """A row in range has the bits of the function itself, gradients included; the log likelihood of others is NaN."""
    dtype, cases = TABLES[field]
    z, public = jax.tree.map(jnp.asarray, ({"u": U}, {"edges": EDGES, "codes": CODES}))

    @jax.jit
    def compiled(row):
        def of(function):
            found = lambda z: followed(function, z, row, public)[:2]  # noqa: E731
            (value, is_out), slope = jax.value_and_grad(found, has_aux=True)(z)
            return (value, slope), jax.value_and_grad(function)(z, row, public), is_out

        return {name: of(function) for name, (function, *_) in cases.items()}

    given = {str(value): value for _, right, wrong in cases.values() for value in (*right, *wrong)}
    found = {text: compiled({field: jnp.asarray(value, dtype)}) for text, value in given.items()}
    for name, (_, right, wrong) in cases.items():
        for value in right:
            ours, plain, is_out = found[str(value)][name]
            assert not is_out and jax.tree.all(jax.tree.map(np.array_equal, ours, plain)), (name, value)
        for value in wrong:
            (ours, _), _, is_out = found[str(value)][name]
            assert is_out and np.isnan(ours), (name, value)


def effects(size, scale=None, look_up=lambda u, ids: u[ids]):
    """Normal responses around effects of groups, (size,)."""

    def model(ids, y, used=None):
        u = numpyro.sample("u", dist.Normal(jnp.zeros(size), 1.0).to_event(len(size)))
        sigma = 1.0 if scale is None else numpyro.sample("sigma", dist.HalfNormal(scale))
        with numpyro.plate("data", y.shape[0]), numpyro.handlers.mask(mask=True if used is None else used):
            numpyro.sample("y", dist.Normal(look_up(u, ids).reshape(y.shape[0], -1).sum(-1), sigma), obs=y)

    return model


DOORS = {  # the effects, how gradients of rows are formed, and whether a row is a person's
    "persons, a scale": ((5,), 1.0, "auto", True),
    "a large table": ((300, 2), None, "vmap", False),
    "factors": ((300, 2), None, "ghost", False),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", DOORS)
def test_rows_out_of_range_add_nothing_and_are_counted_as_not_finite(name):
    """Of ten rows three are out of range, and one more whose entry the model masks: that one counts as silent."""
    size, scale, strategy, in_persons = DOORS[name]
    number, y = np.arange(10), np.linspace(-1.0, 1.0, 10, dtype=np.float32)
    ids, used = np.int32(number % 5), number != 7
    wrong = np.int32(np.where(np.isin(number, [2, 4]), size[0], np.where(np.isin(number, [7, 9]), -1, ids)))
    data = [(wrong, y, used), (ids, y, used & (wrong == ids))]
    calls = [
        grouped(effects(size, scale), args, {"person": number}, "person" if in_persons else None, 2, jax.random.key(0))
        for args in data
    ]
    calls = [(args, {k: v for k, v in kwargs.items() if k != "person"}) for args, kwargs in calls]
    split = split_in_units(effects(size, scale), *calls[0])
    z = {site: jnp.full(shape.shape, 0.1) for site, shape in split.latents.items()}
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=FullBatch(), strategy=strategy, count_share=0.5)

    @jax.jit
    def released(rows):
        settings = dict(key=jax.random.key(1), noise_multiplier=1e-6)
        found = noisy_sum(mechanism, split.log_likelihood, z, rows, {}, **settings)
        return found, jax.vmap(lambda row: is_outside(split, z, row, {}))(rows)

    (found, are_outside), (expected, none) = (released(split.arrays(*call)[0]) for call in calls)
    assert are_outside.sum() == 3 and not none.any()
    assert np.allclose(2.0 * found.count[1:], [3.0, 1.0], atol=0.1) and np.allclose(
        2.0 * expected.count[1:], [0.0, 4.0], atol=0.1
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-4), found.total, expected.total))


def test_ids_are_named_with_their_cure():
    y = np.zeros(6, np.float32)
    ids = np.arange(6, dtype=np.int32) % 5
    for look_up in (
        lambda u, ids: u[ids],
        jnp.take,
        lambda u, ids: jax.vmap(lambda i: jnp.take(u, i, mode="clip"))(ids),
    ):
        [line] = codes(split_model(effects((5,), look_up=look_up), (ids, y), {}))
        assert line == "ids that index site 'u' go from 0 to 4; pass id - 1 for ids 1 to 5, and mask rows without an id"
    rounded = effects((5,), look_up=lambda u, x: u[0] * (x.astype(int) == 1))
    [line] = codes(split_model(rounded, (ids + 0.0, y), {}))
    assert line.startswith("numbers cast to integers must be finite")
    assert not codes(split_model(effects((5,), look_up=lambda u, x: u[0] * x), (ids, y), {}))

    def classes(y):
        logits = latent("logits", 3)
        seen(y, dist.Categorical(logits=logits))

    [line] = codes(split_model(classes, (ids,), {}))
    assert line.startswith("site 'y': CategoricalLogits takes classes")


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "look_up",
    [
        lambda u, ids: u[ids],
        jnp.take,
        lambda u, ids: jnp.take_along_axis(u, ids, 0),
        lambda u, ids: jax.vmap(lambda i: jnp.zeros(5).at[i].add(1.0) @ u)(ids),
        lambda u, ids: jax.vmap(lambda i: lax.dynamic_slice(u, (i,), (1,)))(ids),
        lambda u, ids: jax.vmap(lambda i: lax.switch(i, [jnp.sin, jnp.cos], u[0]))(ids),
    ],
)
def test_ids_that_are_no_integers_are_refused_with_a_cure_that_runs(look_up):
    model, y, table = (
        effects((5,), look_up=look_up),
        np.zeros(6, np.float32),
        pd.Series([0, 1, 2, 3, 4, None], dtype="Int64"),
    )
    for ids in (table, table.astype(float), np.arange(6.0), [0.0, 1.0] * 3):
        with pytest.raises(UnsupportedModelError, match=r'an id of their own, and pass ids.astype\("int32"\)'):
            split_model(model, (ids, y), {})
    split_model(model, (table.fillna(4).astype("int32"), y), {})
