"""The published likelihood: the run's own posterior, other priors, several owners."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import markupsafe
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from made_up import SITES, WIDE, facts, likelihood_of, log_density, log_prior, mixture_of, surrogate_of
from numpyro import handlers

import dpppl
from dpppl.contrib import pages
from dpppl.noise_aware.curvature import Curvature
from dpppl.noise_aware.mixture import Mixture
from dpppl.noise_aware.publishing import published
from dpppl.noise_aware.surrogate import Surrogate
from dpppl.published.likelihood import Likelihood
from dpppl.published.priors import Row, Sensitivity
from dpppl.published.records import Owner
from dpppl.published.supports import KINDS, Site, coordinates
from dpppl.row_statistics.coordinates import Prior


def differences(mixture, found, rng):
    """How far prior times likelihood is from the posterior's density at its draws, but for a constant."""
    z = mixture.draw(rng, 60)
    with jax.enable_x64(True):
        logs = np.asarray(found.log_prob(jnp.asarray(z)))
    off = logs + log_prior(mixture, z) - log_density(mixture, z)
    return np.ptp(off)


def test_prior_times_likelihood_is_the_posterior():
    mixture = mixture_of()
    found = published(mixture)
    assert differences(mixture, found, np.random.default_rng(1)) < 1e-6
    for wrong in (
        {"offsets": 1.1 * found.offsets},
        {"log_weights": 0.0 * found.log_weights},
        {"slopes": found.slopes * 1.01},
    ):
        assert differences(mixture, found._replace(**wrong), np.random.default_rng(1)) > 1e-2


def test_so_it_is_in_blocks_with_directions_that_couple_them_and_unknown_shares():
    rng = np.random.default_rng(0)
    size, pieces = 50, [np.arange(25), np.arange(25, 50)]
    draws = rng.standard_normal((100, size)) + 2.0 * rng.standard_normal((100, 1))
    prior = Prior(np.zeros(size), np.ones(size), pieces, None, draws / draws.std(axis=0))
    basis = prior.first()
    assert basis.turn.shape[1] and np.any(basis.turn)
    surrogate = surrogate_of(WIDE, np.eye(3), np.ones(3), 0.5)
    shape = basis.roots.shape
    real = basis.layout.real
    vectors = np.tile(np.eye(shape[-1]), (5, shape[0], 1, 1))
    values = rng.gamma(3.0, 1.0, (5, *shape[:2])) * real
    curvature = surrogate.curvature._replace(
        values=values, vectors=vectors, ratio=np.tile(np.eye(shape[-1]), (shape[0], 1, 1))
    )
    wide = surrogate._replace(
        basis=basis, centre=0.1 * real, gradient=rng.standard_normal(shape[:2]) * real, curvature=curvature,
        off_block=0.3 * real, trace=1.0, unknown=0.2 * real,
    )  # fmt: skip
    mixture = Mixture.of(wide, prior)
    assert differences(mixture, published(mixture), rng) < 1e-5


def test_values_are_constrained_and_leading_axes_are_mapped_over():
    likelihood, rng = likelihood_of(), np.random.default_rng(0)
    values = {"scale": np.exp(rng.normal(size=(4, 1))), "w": rng.normal(size=(4, 5, 2)), "other": 1.0}
    found = likelihood.log_prob(values)
    one = likelihood.log_prob({"scale": values["scale"][2, 0], "w": values["w"][2, 3]})
    z = jnp.array([np.log(values["scale"][2, 0]), *values["w"][2, 3]])
    assert found.shape == (4, 5) and np.isclose(found[2, 3], one, rtol=1e-5)
    assert np.isclose(one, likelihood.owners[0].mixture.log_prob(z), rtol=1e-5)
    slope = jax.grad(lambda v: likelihood.log_prob(v))({"scale": 1.3, "w": jnp.zeros(2)})
    assert all(np.all(np.isfinite(x)) and np.any(x) for x in jax.tree.leaves(slope))


@pytest.mark.parametrize(
    "values, words",
    [
        ({"w": np.zeros(2)}, "no value is given for \\['scale'\\]"),
        ({"w": np.zeros(3), "scale": 1.0}, "shape \\(2,\\)"),
        ({"w": np.zeros((4, 2)), "scale": np.ones(3)}, "leading axes"),
        (3.0, "give values by site"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, words):
    with pytest.raises(dpppl.ConfigurationError, match=words):
        likelihood_of().log_prob(values)


def weighted_moments(likelihood, mixture, prior, rng):
    """Mean and variances under another normal prior, by importance sampling from a run's posterior."""
    z = mixture.draw(rng, 20_000)
    logs = np.asarray(likelihood.owners[0].mixture.log_prob(jnp.asarray(z, jnp.float32)), float)
    logs += -0.5 * np.sum(((z - prior.mean) / prior.scales) ** 2, axis=1) - log_density(mixture, z)
    weights = np.exp(logs - logs.max())
    mean = np.average(z, axis=0, weights=weights)
    return mean, np.average((z - mean) ** 2, axis=0, weights=weights)


def test_a_changed_prior_gives_the_posterior_of_a_run_with_that_prior():
    """A prior one sd away and as narrow as the posterior moves the mean by half an sd; 20,000 weighted draws err by .02 sd. A run
    with that prior takes draws of the curvature as equally likely under it, not under the first prior: a tenth of an sd here."""
    likelihood, mixture = likelihood_of(), mixture_of()
    surrogate, before = mixture.surrogate, mixture.moments()
    sd = np.sqrt(before.variance)
    prior = Prior(before.mean + sd, sd, [np.arange(3)])
    # u is measured from the prior mean, in units of the first prior's scales
    moved = surrogate._replace(centre=surrogate.centre + surrogate.basis.to_u(mixture.mean - prior.mean))
    own = Prior(prior.mean, sd, prior.pieces, np.diag((sd / surrogate.basis.scales) ** 2))
    known = Mixture.of(moved, own).moments()
    mean, variance = weighted_moments(likelihood, mixture, prior, np.random.default_rng(2))
    narrow = np.sqrt(known.variance)
    assert np.max(np.abs(mean - known.mean) / narrow) < 0.15 and np.max(np.abs(np.sqrt(variance) / narrow - 1.0)) < 0.05
    unchanged, _ = weighted_moments(likelihood, mixture, WIDE, np.random.default_rng(2))
    assert np.max(np.abs(unchanged - known.mean) / narrow) > 0.5  # the prior matters


def shared(num_owners, noise, seed, draws=1):
    """Information and pull of owners whose rows are normal, and their likelihoods."""
    rng = np.random.default_rng(seed)
    x = [rng.standard_normal((40, 3)) for _ in range(num_owners)]
    parts = [(each.T @ each, each.T @ (each @ np.array([0.3, -0.5, 1.0]) + rng.standard_normal(40))) for each in x]
    owners = [
        Owner(facts(f"owner {i}"), published(Mixture.of(surrogate_of(WIDE, *part, noise, draws, rng=rng), WIDE)))
        for i, part in enumerate(parts)
    ]
    return parts, [Likelihood(SITES, (owner,)) for owner in owners]


def curvature_and_mode(likelihood):
    """Minus the Hessian of a normal log likelihood by coordinates, and its mode."""
    h, slope = np.zeros((3, 3)), np.zeros(3)
    for mixture in (owner.mixture for owner in likelihood.owners):
        by_z = mixture.slopes[0, 0] / mixture.scales[mixture.numbers[0]]
        h += by_z.T @ by_z
        slope += by_z.T @ (by_z @ mixture.centre[mixture.numbers[0]] - mixture.offsets[0, 0])
    return h, np.linalg.solve(h, slope)


def test_without_noise_the_pool_is_the_likelihood_of_all_rows():
    parts, likelihoods = shared(3, 1e-9, 0)
    h, mode = curvature_and_mode(dpppl.pool(likelihoods))
    information, pull = (sum(x) for x in zip(*parts))
    assert np.allclose(h, information, rtol=1e-4, atol=1e-3) and np.allclose(
        mode, np.linalg.solve(information, pull), atol=1e-4
    )
    assert not np.allclose(curvature_and_mode(dpppl.pool(likelihoods[:2]))[0], information, rtol=0.1)


def test_the_pool_counts_the_noise_of_each_owner():
    """60 pools of three owners: chi-squared of 180 degrees, whose mean of 3 has an sd of .32; with noise forgotten it is above 6."""
    right, wrong = [], []
    for seed in range(60):
        parts, likelihoods = shared(3, 400.0, seed)
        h, mode = curvature_and_mode(dpppl.pool(likelihoods))
        off, information = mode - np.array([0.3, -0.5, 1.0]), sum(part[0] for part in parts)
        right.append(off @ h @ off)
        wrong.append(off @ information @ off)
    assert abs(np.mean(right) - 3.0) < 1.0 and np.mean(wrong) > 6.0


def test_uncertain_curvatures_do_not_pull_a_pool_towards_the_places_of_its_looks():
    """Four owners stand 4 sds on one side of the truth, 0. Their scores and curvatures have noise of all signs, of one sd, so first
    orders cancel. Draws of a curvature h given M are quantiles of the law exp(-(M - h)^2 / 2 s^2) / h, as if log h were uniform."""
    basis, truth, cv, far = Prior(np.zeros(1), np.ones(1), [np.arange(1)], np.eye(1)).first(), 100.0, 0.2, 4.0
    owners, centre, zeros = [], far * (2.0 / truth) ** 0.5, np.zeros((1, 1))
    for curvature_sign, score_sign in np.ndindex(2, 2):
        released = truth * (1.0 + cv * (2 * curvature_sign - 1))
        grid = np.linspace(1.0, 3.0 * truth, 20_000)
        mass = np.cumsum(np.exp(-0.5 * ((released - grid) / (cv * truth)) ** 2) / grid)
        h = np.interp((np.arange(60) + 0.5) / 60, mass / mass[-1], grid)
        curvature = Curvature(h[:, None, None], np.ones((60, 1, 1, 1)), np.ones((1, 1, 1)))
        score = -truth * centre + (2 * score_sign - 1) * (2.0 * truth) ** 0.5
        surrogate = Surrogate(basis, np.array([[centre]]), np.array([[score]]), truth, curvature, zeros, 1.0, zeros)
        found = published(Mixture.of(surrogate, Prior(np.zeros(1), np.ones(1), [np.arange(1)], np.eye(1))))
        owners.append(Owner(facts(str(len(owners))), found))
    z = jnp.linspace(-0.5, 0.5, 4_001)
    modes = []
    for log_prob in (
        Likelihood((Site("mean", ()),), tuple(owners)).log_prob({"mean": z}),
        sum(owner.mixture.log_prob(z[:, None]) for owner in owners),  # each owner as if it were alone
    ):
        modes.append(float(z[jnp.argmax(log_prob)]) / (2.0 / truth / 4.0) ** 0.5)
    assert abs(modes[0]) < 0.08 and modes[1] > 0.15, modes


def test_values_by_owner_are_each_owners_own():
    pooled, rng = dpppl.pool([likelihood_of(0, "A"), likelihood_of(1, "B")]), np.random.default_rng(0)
    values = {"scale": np.exp(rng.normal(size=(3, 2))), "w": rng.normal(size=(3, 2, 2))}
    found = pooled.log_prob(values, by_owner=True)
    each = [{name: value[:, i] for name, value in values.items()} for i in range(2)]
    z = [coordinates(SITES, own) for own in each]
    assert np.allclose(found, sum(owner.mixture.log_prob(own, 2) for owner, own in zip(pooled.owners, z)), rtol=1e-5)
    assert not np.allclose(found, pooled.log_prob(each[0]), rtol=0.1)
    equal = {name: np.repeat(value[:, :1], 2, axis=1) for name, value in values.items()}
    assert np.allclose(pooled.log_prob(equal, by_owner=True), pooled.log_prob(each[0]), rtol=1e-5)
    with pytest.raises(dpppl.ConfigurationError, match=r"values by site are \(..., 2, \*shape\), one for each owner"):
        pooled.log_prob(each[0], by_owner=True)


def test_owners_that_differ_are_refused_by_name():
    first = likelihood_of(0, "A")
    for changed, words in (
        (
            {"columns": {"x": "float32[3]"}},
            "columns of A and B differ: 'x' is float32\\[2\\] at one and float32\\[3\\]",
        ),
        ({"columns": {"z": "float32[2]"}}, "'x' is float32\\[2\\] at one and none"),
        ({"public": {"knots": "1"}}, "Public arguments of A and B differ: 'knots'"),
        ({"unit": "all rows of a person"}, "the unit of A is another"),
        ({"relation": "replace one row"}, "the relation of A"),
        ({"program": "q"}, "one model"),
        ({"program": "q", "versions": {"jax": "2"}}, "any_program=True"),
    ):
        with pytest.raises(dpppl.ConfigurationError, match=words):
            dpppl.pool([first, likelihood_of(1, "B", **changed)])
    assert len(dpppl.pool([first, likelihood_of(1, "B", program="q")], any_program=True).owners) == 2
    for site in (
        Site("scale", (), "unit_interval"),
        Site("scale", (), "interval", (0.0, 2.0)),
        Site("s", (), "positive"),
    ):
        other = Likelihood((site, SITES[1]), likelihood_of(1, "B").owners)
        with pytest.raises(dpppl.ConfigurationError, match="sites of A and B differ: 'scale'"):
            dpppl.pool([first, other])
    with pytest.raises(dpppl.ConfigurationError, match="given twice"):
        dpppl.pool([first, dpppl.pool([likelihood_of(1, "B"), first])])
    with pytest.raises(dpppl.ConfigurationError, match="pool takes likelihoods"):
        dpppl.pool([first, "b.likelihood"])


def test_each_owner_keeps_its_budget_and_the_same_persons_have_the_sum():
    pooled = dpppl.pool([likelihood_of(0, "A"), likelihood_of(1, "B", epsilon=2.0, delta=2e-5, is_refused=True)])
    words = str(pooled)
    assert "A: 100 rows or units, epsilon 1 at delta 1e-05" in words and "B: 100 rows or units, epsilon 2 at" in words
    assert "all owners: has the sum, epsilon 3 at delta 3e-05" in words and "refuses the run of B" in words
    assert pooled.report()["epsilon_of_disjoint_rows"] == 2.0 and pooled.report()["epsilon_of_recurring_persons"] == 3.0


def test_a_page_holds_the_words_of_a_pool_and_the_table_and_the_picture_of_priors():
    pooled = dpppl.pool([likelihood_of(0, "A & co"), likelihood_of(1, "B")])
    page = pages.to_html(pooled)
    assert page.startswith("<!doctype html>") and pooled.headline in page and "A &amp; co" in page
    assert all(str(markupsafe.escape(words)) in page.replace("&nbsp;", " ") for _, words in pooled.rows)
    draws = np.random.default_rng(0).normal(size=(9, 2))
    rows = [Row(prior, f"w[{i}]", 1.25 + i, 0.5, 0.5, 1.5, 0.75) for i in range(2) for prior in ("wide", "far")]
    table = Sensitivity(tuple(rows), {"wide": {"w": draws}, "far": {"w": draws}}, (("far", "told <so>"),), 0.9)
    page = pages.to_html(table)
    assert "w[1], far" in page and "2.25 | 0.5 | 0.5 to 1.5 | 75%" in page and "told &lt;so&gt;" in page
    assert page.count("<svg") == 1 and "median and 90% interval" in page and "w[1]" in str(table)


def test_a_pool_says_where_errors_are_common_to_owners():
    def pooled(arrival, count):
        likelihoods = [likelihood_of(seed, f"owner {seed}") for seed in range(count)]
        owners = [
            Owner(o.facts, o.mixture._replace(arrival=np.array(arrival))) for one in likelihoods for o in one.owners
        ]
        return str(Likelihood(SITES, tuple(owners)))

    assert "owners summed scores 4.0 sd from their estimates" in pooled(4.0, 3) and "by 1.4 sd" in pooled(4.0, 3)
    assert "Read with care" not in pooled(4.0, 1) and "Read with care" not in pooled(2.0, 3)
    assert likelihood_of().owners[0].mixture.arrival < likelihood_of().owners[0].mixture.reach


def test_a_pool_tells_a_misfit_that_no_owner_can_see():
    """Ten owners, each with third moments of ranks one and a half standard errors off."""

    def pooled(departures, count=10, cut=0.2, **changed):
        ranks = lambda x: np.array([[0.0, 0.0, x], [0.02] * 3, [0.1] * 3])  # noqa: E731
        each = [likelihood_of(seed, f"owner {seed}", num_rows=500, **changed).owners[0] for seed in range(count)]
        moved = [o.mixture._replace(ranks=ranks(x), cut=np.array(cut)) for o, x in zip(each, departures)]
        return str(Likelihood(SITES, tuple(Owner(o.facts, m) for o, m in zip(each, moved))))

    common = [0.03] * 10
    assert "Do not read: responses of all owners together" in pooled(common)
    assert "this may move the pool by 1.3 sd" in pooled(common)  # (5,000 .03^2 / .1)^(1/2) .2
    assert "Read with care: responses" in pooled(common, cut=0.1)
    clean = pooled(common, 1), pooled([0.03, -0.03] * 5), pooled(common, cut=0.01), pooled(common, width="sandwich")
    assert not any("responses of" in words for words in clean)


PRIOR = {"scale": dist.LogNormal(0.0, 1.0), "w": dist.Normal(0.0, 2.0)}


def test_the_factor_of_a_model_is_the_likelihood():
    likelihood = likelihood_of()

    def effects():
        numpyro.deterministic(
            "w", numpyro.sample("mean", dist.Normal(0, 1)) + numpyro.sample("z", dist.Normal(0, 1).expand([2]))
        )
        numpyro.sample("scale", dist.LogNormal(0, 1))

    for prior in (PRIOR, effects):
        trace = handlers.trace(handlers.seed(likelihood.model(prior), 0)).get_trace()
        values = {name: trace[name]["value"] for name in ("scale", "w")}
        assert np.isclose(trace["published"]["fn"].log_factor, likelihood.log_prob(values), rtol=1e-5)
        assert np.shape(values["w"]) == (2,)


@pytest.mark.parametrize(
    "prior, words",
    [
        ({"w": dist.Normal(0, 1)}, "a distribution for each of"),
        ({"w": dist.Normal(0, 1).expand([3]), "scale": dist.HalfNormal(1)}, "does not give \\(2,\\)"),
        ({"w": 1.0, "scale": dist.HalfNormal(1)}, "give a NumPyro distribution"),
        (lambda: numpyro.sample("w", dist.Normal(0, 1)), "no site for \\['scale'\\]"),
        (lambda: [numpyro.sample(n, dist.HalfNormal(1)) for n in ("w", "scale")], "site 'w' of the prior has shape"),
        (None, "a dict of distributions"),
    ],
)
def test_priors_that_do_not_fit_are_refused(prior, words):
    with pytest.raises(dpppl.ConfigurationError, match=words):
        handlers.seed(likelihood_of().model(prior), 0)()


def test_draws_far_from_all_looks_are_told():
    likelihood, mixture = likelihood_of(), mixture_of()
    z = mixture.draw(np.random.default_rng(5), 400)
    values = {"scale": np.exp(z[:, 0]), "w": z[:, 1:]}
    distances = np.asarray(likelihood.owners[0].mixture.distance(jnp.asarray(z, jnp.float32)))
    share = np.mean(distances > likelihood.owners[0].mixture.reach)
    assert share < 0.03 and not likelihood.far_from_looks(values)
    assert "where A made no look" in likelihood.far_from_looks(values | {"w": z[:, 1:] + 3.0})[0]
    owner = likelihood.owners[0]
    wide = Likelihood(SITES, (Owner(owner.facts, owner.mixture._replace(reach=np.array(1e9))),))
    assert not wide.far_from_looks(values)
    assert "from the maximum of the likelihood of A" in wide.far_from_looks(values | {"w": z[:, 1:] + 3.0})[0]


def test_the_fall_of_a_likelihood_is_its_distance_from_the_maximum():
    """Of one normal law: half the square is what the log likelihood has lost."""
    mixture = published(mixture_of(draws=1))
    z = jnp.asarray(mixture_of().draw(np.random.default_rng(0), 20), jnp.float32)
    logs = mixture.log_prob(z) - mixture.log_weights[0]
    assert np.allclose(-0.5 * mixture.fall(z) ** 2, logs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_nuts_under_the_own_prior_gives_the_own_posterior_and_a_table_tells_priors_apart():
    """2,000 draws: errors of .04 sd or so."""
    likelihood, mixture = likelihood_of(), mixture_of()
    # log-normal: the same prior as WIDE's of the coordinates
    found = likelihood.sample(jax.random.key(0), PRIOR)
    z = np.column_stack([np.log(found["scale"]), found["w"]])
    known = mixture.moments()
    assert np.max(np.abs(z.mean(axis=0) - known.mean) / np.sqrt(known.variance)) < 0.2
    assert np.max(np.abs(z.std(axis=0) / np.sqrt(known.variance) - 1.0)) < 0.1
    table = likelihood.sensitivity(
        jax.random.key(1), {"own": PRIOR, "far": PRIOR | {"w": dist.Normal(6.0, 0.01)}}, num_samples=600
    )
    assert [row.element for row in table.rows[::2]] == ["scale", "w[0]", "w[1]"] and "where A made no look" in str(
        table
    )
    assert {prior for prior, _ in table.findings} == {"far"}
    assert min(row.learned for row in table.rows if row.prior == "own" and row.element != "scale") > 0.8
    assert max(row.learned for row in table.rows if row.prior == "far" and row.element != "scale") < 0.3


CODE = """
import sys, json, jax.numpy as jnp, dpppl
likelihood = dpppl.Likelihood.from_file(sys.argv[1])
print(json.dumps([float(likelihood.log_prob({"scale": 1.5, "w": jnp.array([0.2, -0.1])})), str(likelihood)]))
"""


def test_a_file_is_read_by_a_process_that_has_neither_model_nor_rows(tmp_path):
    import json

    likelihood = dpppl.pool([likelihood_of(0, "A"), likelihood_of(1, "B")])
    likelihood.to_file(tmp_path / "a.likelihood")
    found = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "a.likelihood")], capture_output=True, text=True, check=True
    )
    value, words = json.loads(found.stdout)
    assert np.isclose(value, likelihood.log_prob({"scale": 1.5, "w": jnp.array([0.2, -0.1])}), rtol=1e-6)
    assert words == str(likelihood)


def test_each_support_that_a_file_names_maps_as_numpyro_does():
    for kind, count in KINDS.items():
        known = getattr(dist.constraints, kind)
        support = known(*[-0.5, 2.0][:count]) if count else known
        shape = (3, 3) if "cholesky" in kind or "matrix" in kind or "definite" in kind else (3,)
        site = Site.from_support("a", shape, support)
        value = dist.biject_to(support)(jnp.linspace(-0.5, 0.6, site.size).reshape(site.transform.inverse_shape(shape)))
        assert site.kind == kind and np.all(np.isfinite(site.unconstrained(value))), kind
        assert np.allclose(site.unconstrained(value), np.linspace(-0.5, 0.6, site.size), atol=1e-3), kind
        assert Site.from_support("a", (), dist.constraints.independent(support, 0)).kind == kind
    for support in (dist.constraints.sphere, dist.constraints.interval(np.zeros(2), np.array([1.0, 2.0]))):
        with pytest.raises(dpppl.ConfigurationError, match="site 'a'"):
            Site.from_support("a", (2,), support)
