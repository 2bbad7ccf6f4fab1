"""Units larger than a row: how rows are grouped, and that a unit is to the mechanism what a row is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from small_models import latent, seen

from dpppl.access.centring import noisy_centred_sum
from dpppl.access.clipping import SLACK, Centred, Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.model.arguments import Arguments, Public
from dpppl.model.split import split_model
from dpppl.model.units import MASK, grouped, responses_of, split_in_units
from dpppl.subsampling import FullBatch, Poisson


def key():
    return jax.random.key(5)


def linear(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    seen(y, dist.Normal(x @ b, scale))


def logistic(x, y):
    seen(y, dist.Bernoulli(logits=x @ latent("b", 2)))


def gamma(y):
    rate = numpyro.sample("rate", dist.HalfNormal(1))
    seen(y, dist.Gamma(2.0, rate))


def wide(x, y):
    seen(y, jnp.sum(jnp.tanh(x @ latent("w", 3, 4)), -1))


def rows_of(count=30, columns=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, columns)).astype(np.float32), rng.normal(size=count).astype(np.float32)


def in_units(model, args, ids, k):
    args, kwargs = grouped(model, args, {"person": ids}, "person", k, key())
    split = split_in_units(model, args, kwargs)
    return split, *split.arrays(args, kwargs)


IDS = ["b", "a", None, "b", "c", "a", "b", float("nan"), "d", "b"]


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        np.array(IDS, object),
        pd.Series(IDS),
        pd.Series(IDS, dtype="string"),
        [{"a": (1, 2), "b": 7, "c": "x", "d": 2.5}.get(i) for i in IDS],
    ],
    ids=["list", "object", "series", "pandas string", "mixed kinds"],
)
def test_rows_of_a_person_stand_beside_each_other(ids):
    x, y = rows_of(10)
    _, rows, _ = in_units(linear, (x, y), ids, 3)
    mask = np.asarray(rows[MASK])
    assert mask.shape == (4, 3) and mask.sum(1).tolist() == [
        3,
        2,
        1,
        1,
    ]  # b, a, c, d; the rows without an id are left out
    place = {float(value): number for number, value in enumerate(y)}
    found = [[place[float(v)] for v, m in zip(unit, marks) if m] for unit, marks in zip(rows["y"], mask)]
    assert set(found[0]) < {0, 3, 6, 9} and [sorted(f) for f in found[1:]] == [[1, 5], [4], [8]]
    assert all(
        place[float(v)] in unit for values, unit in zip(rows["y"], found) for v in values
    )  # padded with their own


@pytest.mark.slow
def test_which_rows_are_kept_is_uniform_and_a_matter_of_the_key():
    y = np.arange(4, dtype=np.float32) + 1
    kept = np.zeros(4)
    for seed in range(400):
        _, kwargs = grouped(gamma, (y,), {"person": [0] * 4}, "person", 2, jax.random.key(seed))
        args, _ = grouped(gamma, (y,), {"person": [0] * 4}, "person", 2, jax.random.key(seed))
        kept[np.asarray(args[0]).astype(int) - 1] += 1
        assert kwargs[MASK].all()
    assert np.all(np.abs(kept - 200) < 50)  # 5 sd of a binomial


def test_what_is_kept_of_a_person_does_not_depend_on_the_rows_of_others():
    x, y = rows_of(40)
    ids = np.random.default_rng(1).integers(0, 6, 40)
    _, before, _ = in_units(linear, (x, y), ids, 3)
    changed = np.where((ids == ids[0])[:, None], 1e3, x).astype(np.float32)
    _, after, _ = in_units(linear, (changed, y), ids, 3)
    assert np.array_equal(before["x"][1:], after["x"][1:]) and not np.array_equal(before["x"][0], after["x"][0])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("model", "args"), [(linear, rows_of(12)), (gamma, (np.abs(rows_of(12)[1]) + 0.1,))])
def test_a_units_log_likelihood_is_the_sum_of_its_rows(model, args):
    ids = [0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 4]
    split, rows, public = in_units(model, args, ids, 5)
    single = split_model(model, args, {})
    z = {name: 0.3 + jnp.arange(np.prod(s.shape, dtype=int)).reshape(s.shape) for name, s in split.latents.items()}
    each, _ = single.arrays(args, {})
    alone = jax.jit(jax.vmap(lambda row: jax.value_and_grad(single.log_likelihood)(z, row, {})))(each)
    units = jax.jit(jax.vmap(lambda unit: jax.value_and_grad(split.log_likelihood)(z, unit, public)))(rows)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(units)):
        sums = np.stack([np.asarray(one)[np.array(ids) == i].sum(0) for i in range(5)])
        assert np.allclose(sums, other, rtol=1e-5, atol=1e-5)  # padding counts nothing, where zeros were NaN, too
    assert split.num_rows == 5 and split.log_prior(z, public) == single.log_prior(z, {})


def total_of(model, args, ids, k, mechanism, z):
    """What the door returns for units."""
    split, rows, public = in_units(model, args, ids, k)
    return noisy_sum(mechanism, split.log_likelihood, z, rows, public, key=key(), noise_multiplier=1e-6, step=0).total


CASES = [
    (linear, Flat, FullBatch()),
    (linear, Centred, FullBatch()),
    (logistic, Centred, Poisson(0.5)),
    (linear, Flat, Poisson(0.5)),
]
NORM, COUNT = 0.7, 100


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_no_person_moves_the_sum_by_more_than_the_norm(case):
    """400 cases in all: persons of 1 to 6 rows that hold hostile values, against the same data without that person."""
    model, clipping, subsampling = CASES[case]
    rng = np.random.default_rng(case)
    ids = rng.permutation(np.repeat(np.arange(8), [1, 2, 3, 4, 5, 6, 6, 1]))
    x, y = rows_of(len(ids), seed=case)
    y = (y > 0).astype(np.int32) if model is logistic else y
    split = in_units(model, (x, y), ids, 6)[0]
    mechanism = Mechanism(clipping=clipping(NORM), subsampling=subsampling)
    law = responses_of(split, 4, {}) if clipping is Centred else None
    whole = lambda z, public: (z, public)  # noqa: E731

    @jax.jit
    def run(z, rows, key):
        settings = dict(key=key, noise_multiplier=1e-6, step=0)
        if law is None:
            return noisy_sum(mechanism, split.log_likelihood, z, rows, {}, **settings).total
        return noisy_centred_sum(
            mechanism, law, law.is_binary, split.log_likelihood, whole, z, rows, {}, **settings
        ).total

    rows = {n: np.array(v) for n, v in in_units(model, (x, y), ids, 6)[1].items()}
    moved = []
    for number in range(COUNT):
        person, scale = rng.integers(8), 10.0 ** rng.uniform(-2, 12)
        with np.errstate(over="ignore"):
            own = rows | {"x": rows["x"].copy()}
            own["x"][person] = own["x"][person] * scale if number % 10 else [np.nan, np.inf][number % 2]
        without = own | {MASK: rows[MASK] & (np.arange(8) != person)[:, None]}
        z = {n: jnp.asarray(rng.normal(size=s.shape), s.dtype) for n, s in split.latents.items()}
        one, other = (run(z, given, jax.random.key(number)) for given in (own, without))
        gap = jax.tree.leaves(jax.tree.map(lambda a, b: np.sum((np.float64(a) - np.float64(b)) ** 2), one, other))
        moved.append(float(np.sqrt(sum(gap))) / NORM)
    assert max(moved) <= 1.0 + SLACK + 2e-5
    assert max(moved) > 0.6  # persons that are drawn do move it


def test_ghost_sums_of_units_are_those_of_their_gradients():
    x, y = rows_of(24, 3)
    ids = np.random.default_rng(2).integers(0, 7, 24)
    z = {"w": jnp.asarray(np.random.default_rng(3).normal(size=(3, 4)), jnp.float32)}
    found = [
        total_of(wide, (x, y), ids, 5, Mechanism(clipping=Flat(0.8), subsampling=FullBatch(), strategy=s), z)["w"]
        for s in ("vmap", "microbatch", "ghost")
    ]
    assert np.allclose(found[0], found[1], atol=1e-6) and np.allclose(found[0], found[2], atol=1e-4)


def test_responses_of_a_unit_are_drawn_jointly():
    x, y = rows_of(12)
    split, rows, public = in_units(linear, (x, y), [0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 4], 4)
    law = responses_of(split, 6, {})
    z = {"b": jnp.zeros(2), "scale": jnp.zeros(())}
    unit = {name: value[0] for name, value in rows.items()}
    values, weights = jax.jit(lambda key: law(z, unit, public, key))(key())
    assert values["y"].shape == (6, 4, 1) and np.allclose(weights, 1 / 7) and not law.is_binary
    assert len(np.unique(np.asarray(values["y"]))) == 24
    totals = jax.jit(lambda values: law.totals(z, unit, public, values))(values)
    assert np.allclose(totals[0], np.asarray(unit["y"])[:3].sum(), atol=1e-5)  # the fourth place is padding
    assert np.allclose(totals[1:], np.asarray(values["y"])[:, :3, 0].sum(1), atol=1e-5)


def test_one_person_may_have_all_rows_and_each_its_own():
    x, y = rows_of(9)
    assert in_units(linear, (x, y), ["me"] * 9, 20)[1][MASK].sum() == 9
    _, rows, _ = in_units(linear, (x, y), range(9), 1)
    assert np.array_equal(rows["y"], y[:, None]) and rows[MASK].all()


def test_public_arrays_and_trees_of_rows_keep_their_place():
    def model(data, offset=None):
        seen(data["y"], latent("mu") + offset["a"][0])

    args, kwargs = grouped(
        model, ({"y": np.ones(4)},), {"offset": {"a": Public(np.ones(1))}, "person": [1, 1, 2, 2]}, "person", 2, key()
    )
    split = split_in_units(model, args, kwargs)
    rows, public = split.arrays(args, kwargs)
    assert rows["data['y']"].shape == (2, 2) and next(iter(public.values())).shape == (1,)


def with_effects(x, y):
    with numpyro.plate("persons", 5):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
    seen(y, x[:, 0] + effect[0])


def with_fixed_size(x, y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("data", 12):
        numpyro.sample("y", dist.Normal(mu * x[:, 0], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "ids", "error", "words"),
    [
        (with_effects, [0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 4], UnsupportedModelError, "site 'effect'.*Marginalise"),
        (with_fixed_size, [*range(6)] * 2, UnsupportedModelError, "takes its size from them, as in x.shape"),
        (linear, [1, 2, 3], ConfigurationError, "person has 3 ids"),
        (linear, [None] * 12, ConfigurationError, "no row has a person"),
        (linear, [["secret"]] * 12, ConfigurationError, "no row has a person"),
        (linear, 12, ConfigurationError, "one hashable id for each row"),
    ],
)
def test_bad_ids_and_models_are_refused_by_name(model, ids, error, words):
    with pytest.raises(error, match=words) as caught:
        in_units(model, rows_of(12), ids, 3)
    assert "secret" not in str(caught.value)


def test_ids_with_the_index_of_other_rows_are_refused():
    x, y = rows_of(4)
    frame, ids = pd.DataFrame(x), pd.Series([1, 1, 2, 2], index=[3, 2, 1, 0])
    words = r"arguments 'x' and 'person' have different indices.*person\.reindex\(x\.index\)"
    for args, kwargs in (((frame,), {"y": y}), ((), {"y": y, "x": frame}), ((Public(ids), frame), {})):
        model = linear if len(args) < 2 else lambda offset, x, y=None: linear(x, y)
        with pytest.raises(ConfigurationError, match=words):
            grouped(model, args, kwargs | {"person": ids}, "person", 2, key())
    assert grouped(linear, (frame, y), {"person": ids.loc[frame.index]}, "person", 2, key())[1][MASK].all()


def test_nothing_is_grouped_without_a_name_or_twice():
    args = rows_of(4)
    assert grouped(linear, args, {}, None, 3, key()) == (args, {})
    once = functools.partial(grouped, linear, ids="person", max_rows=2, key=key())
    first = once(args, {"person": [0, 0, 1, 1]})
    assert once(*first)[1] is first[1]


@pytest.mark.parametrize(
    "other", [np.zeros(4), [0.0] * 4, jax.ShapeDtypeStruct((4,), np.float32)], ids=["array", "list", "shape"]
)
@pytest.mark.parametrize("kind", [pd.DataFrame, lambda x: pd.Series(x[:, 0])], ids=["frame", "series"])
def test_rows_out_of_the_order_of_their_index_go_with_nothing_that_has_none(kind, other):
    """A frame that was sorted or shuffled, beside an array that was not: rows went by position, without a word."""
    table = kind(np.zeros((4, 2)))
    model = lambda x, y: None  # noqa: E731
    for wrong in (table.iloc[[2, 0, 1, 3]], table[::-1]):
        for args in ((wrong, other), (other, wrong)):
            with pytest.raises(
                ConfigurationError, match=r"not in the order of its index.*sort_index\(\).*to_numpy\(\)"
            ):
                Arguments.of(model, args, {})
        for right in (wrong.sort_index(), wrong.to_numpy()):
            Arguments.of(model, (right, other), {})
        Arguments.of(model, (wrong, wrong), {})
        Arguments.of(model, (wrong, Public(np.zeros(4))), {})
    kept = kind(np.zeros((9, 2))).iloc[[1, 3, 4, 8]]  # a part of the rows, in order
    for right in (kept, table.set_axis(list("dacb")), table):
        Arguments.of(model, (right, other), {})
