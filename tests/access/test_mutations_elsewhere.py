"""Other libraries' defects planted here, one at a time, each caught by a named test: see test_mutations."""

from test_mutations import SCALED, Mutation, planted

import dpppl

SUM, ROUND, MASK = (
    "dpppl.access.exact_sum:sum_of_rows",
    "dpppl.access.exact_sum:_sum_rows",
    "dpppl.access.clipping:clip_rows",
)
PROGRAM, NORMAL = "dpppl.access.mechanism:Mechanism.access", "dpppl.randomness.normal:standard_normal"
DOOR, ACCOUNTS = "test_elsewhere:test_", "test_elsewhere_accounts:test_"
BITS = f"{DOOR}an_extreme_row_leaves_the_stored_bits_of_all_others"
ORDER = f"{DOOR}rows_in_another_order_have_the_same_sum"
NOISE = f"{DOOR}every_released_coordinate_has_its_noise"
COUNTS = f"{DOOR}counts_and_histograms_have_noise_in_every_coordinate"
FEW = f"{DOOR}one_row_and_no_row_are_accesses_like_others"
SELECTED = f"{ACCOUNTS}a_selections_epsilon_bounds_its_definition"
TUNED = f"{ACCOUNTS}the_account_of_tune_is_that_of_its_definition"
PRICES = f"{ACCOUNTS}with_noise_without_end_epsilon_is_finite_and_at_least_zero"

SHARED = (
    "dpppl.randomness.normal:noised", "native.call(native.NOISED, like, *chacha.words_of_normal(key), scales, norms, *totals)",
    "[native.call(native.NOISED, [one], *chacha.words_of_normal(key), scale[None], norm[None], total)[0] "
    "for one, scale, norm, total in zip(like, scales, norms, totals)]",
)  # fmt: skip

CONSTANT = "test_elsewhere_runs:test_no_constant_comes_of_the_number_of_rows"
FORM = "test_elsewhere_runs:test_what_is_released_has_the_form_that_it_has_on_neighbours"
SELECT, TUNE = "dpppl.accounting.additive:_selected", "dpppl.contrib.tuning:tune"


MUTATIONS = [
    # A mean's rounding that moves all other rows
    Mutation("rows less their mean", SUM, "clip(statistics, mask)",
             "clip(jax.tree.map(lambda g: g - jnp.mean(jnp.where(jnp.isfinite(g), g, 0.0), axis=0), statistics), mask)", BITS, ("auto",)),
    Mutation("a grid as fine as the longest row allows", SUM, "jax.tree.map(lambda leaf: _sum_rows(leaf, bits), clipped)",
             "jax.tree.map(lambda leaf: _sum_rows(leaf * jnp.max(jnp.abs(leaf)), bits), clipped)", BITS, ("auto",)),
    Mutation("rounding after the sum", ROUND, "return jnp.sum(steps, axis=0).astype(jnp.int64)",
             "return jnp.round(jnp.sum(rows.astype(jnp.float32), axis=0) * 2.0**_BITS).astype(jnp.int64)", BITS, ("vmap",)),
    # Sums that depend on an order, on masked rows and on padding
    Mutation("a sum in float32", ROUND, "return jnp.sum(steps, axis=0).astype(jnp.int64)",
             "return jnp.round(jnp.sum(rows.astype(jnp.float32), axis=0) * 2.0**_BITS).astype(jnp.int64)", ORDER, ("vmap",)),
    Mutation("masked rows that count", MASK, "keep if mask is None else keep & mask", "keep", ORDER, ("auto",)),
    Mutation("rows weighted by their place", SUM, "clip(statistics, mask)",
             "clip(jax.tree.map(lambda g: g * (1.0 + 1e-4 * jnp.arange(len(g)).reshape(-1, *[1] * (g.ndim - 1))), statistics), mask)",
             ORDER, ("vmap",)),
    # The last element without noise
    Mutation("no noise on the last number", "dpppl.randomness.normal:noised", "standard_normal(key, sum(total.size for total in totals))",
             "jnp.append(standard_normal(key, sum(total.size for total in totals))[:-1], np.float64(0.0))", NOISE, (False, "threefry2x32")),
    Mutation("no noise on the last of an odd number", NORMAL, "return by_xla(key)[:size]",
             "return by_xla(key)[:size] * (np.arange(size) < max(1, size - size % 2 * (size > 1)))", NOISE, (False, "threefry2x32")),
    Mutation("noise that begins again after 64 numbers", NORMAL, "return by_xla(key)[:size]",
             "return jnp.resize(by_xla(key)[:min(size, 64)], (size,))", NOISE, (False, "threefry2x32")),
    Mutation("a count without noise", "dpppl.access.mechanism:Mechanism._scales",
             "scales += [noise_multiplier * COUNT_SENSITIVITY / np.sqrt(share)]", "scales += [0.0 * noise_multiplier]", COUNTS, ("sum and count",)),
    Mutation("a histogram's last bin without noise", "dpppl.access.norm_histogram:noisy_histogram", ").total", ").total.at[-1].set(0.0)",
             COUNTS, ("histogram",)),
    # An empty batch, and one row
    Mutation("divided by the rows that were drawn", PROGRAM, SCALED,
             "jax.tree.leaves(total), scales, [norm / (1.0 if drawn.mask is None else jnp.maximum(drawn.mask.sum(), 1) / len(drawn.mask)) for norm in norms]",
             FEW, (2, lambda: dpppl.Poisson(0.5))),
    Mutation("no noise where no row is drawn", PROGRAM, SCALED,
             "jax.tree.leaves(total), [scale * jnp.any(part != 0) for part, scale in zip(jax.tree.leaves(total), scales)], norms", FEW, (1, lambda: dpppl.FullBatch())),
    # Selection priced as something else
    Mutation("a selection priced as one run", SELECT, "one + more + (1 + event.shape) * np.min((1 - 1 / alpha) * one - math.log(event.gamma) / alpha)", "one", SELECTED, (10.0, 1.0)),
    Mutation("a selection priced without its second order", SELECT, "(1 + event.shape) * np.min(", "0.0 * np.min(", TUNED, (5.0, 1.0)),
    Mutation("a Poisson number of runs priced as one", SELECT, "one + more + event.mean * np.array(deltas)", "one", SELECTED, (10.0, None)),
    Mutation("a selection priced as the cheapest candidate", SELECT, "one = np.max(", "one = np.min(", TUNED, (5.0, 1.0)),
    Mutation("scores for nothing", TUNE, "(*plan.events, of_score)", "plan.events", TUNED, (5.0, 1.0)),
    Mutation("the first candidate's price for all", TUNE, "for plan in plans)), mean=", "for plan in plans[:1])), mean=", TUNED, (20.0, 0.5)),
    Mutation("scores with less noise than is charged", TUNE, "noise_multiplier=noise)", "noise_multiplier=0.1 * noise)",
             f"{ACCOUNTS}the_index_of_the_winner_tells_no_more_than_is_charged", ("monkeypatch",)),
    Mutation("a selection that the ledger is not charged", TUNE, "opened.charge(0, 1)", "pass",
             "test_tuning:test_a_poisson_number_of_runs_may_be_none", ("tmp_path",)),
    # Noise without end
    Mutation("a root where there is none", "dpppl.accounting.curves:gaussian_epsilon", "mu == 0 or _gaussian_log_delta(mu, 0.0) <= target", "mu == 0",
             PRICES, ("full batch", 1, 1e-5)),
    Mutation("noise that dp_accounting cannot tell from none", "dpppl.accounting.additive:_with_less_noise", "min(sigma, most)", "sigma",
             PRICES, ("without replacement", 1, 1e-5)),
    Mutation("noise in the denominator of a share", "dpppl.runs.histogram:histogram_charge", "max(cost, 1e-12)", "(cost - 1e-16)",
             f"{ACCOUNTS}runs_with_noise_without_end_have_a_finite_price"),
    # A constant taken from the number of rows
    Mutation("divided by the rows held", PROGRAM, SCALED,
             "jax.tree.leaves(total), scales, [norm / len(jax.tree.leaves(rows)[0]) for norm in norms]", CONSTANT, ("query", "monkeypatch", "capfd")),
    Mutation("a query's noise from the number of rows", "dpppl.runs.query:noisy_query", "noise_multiplier = float(charge.noise_multipliers[0])",
             "noise_multiplier = float(charge.noise_multipliers[0]) * (1.0 + 1.0 / len(next(iter(query.rows.values()))))", CONSTANT, ("query", "monkeypatch", "capfd")),
    Mutation("SVI's rate from the number of rows", "dpppl.svi.step:svi_step", "row_sum.direction(noisy.total, rate)",
             "row_sum.direction(noisy.total, 63.0 / len(jax.tree.leaves(rows)[0]))", CONSTANT, ("SVI", "monkeypatch", "capfd")),
    Mutation("a chain's rate from the number of rows", "dpppl.mcmc.bound:BoundKernel._gradient", "rate = mechanism.subsampling.rate",
             "rate = 63.0 / number_of(rows)", CONSTANT, ("MCMC", "monkeypatch", "capfd")),
    Mutation("NoiseAware's noise from the number of rows", "dpppl.row_statistics.releases:_access", "noise_multiplier=state.noise_multiplier",
             "noise_multiplier=state.noise_multiplier * (1.0 + 1.0 / len(jax.tree.leaves(rows)[0]))", CONSTANT, ("NoiseAware", "monkeypatch", "capfd")),
    Mutation("a share of the rows is printed", "dpppl.runs.session:session", "announce(report, reservation.before, request.notes,",
             'announce(report, reservation.before, [f"a row is {1.0 / len(next(iter(request.rows.values()))):.9f} of the data"],', CONSTANT, ("SVI", "monkeypatch", "capfd")),
    # Lengths, types, domains and edges taken from data
    Mutation("a type as small as the values allow", "dpppl.model.array_likes:_as_array", "if isinstance(value, (*ARRAYS, np.generic, type, list, tuple)): return value",
             "if isinstance(value, (*ARRAYS, np.generic, type, list, tuple)): return value.astype(np.int8) if getattr(value, 'dtype', None) == np.float32 and np.all(np.isin(value, (0, 1))) else value",
             FORM, ("SVI", "monkeypatch", "capfd")),
    Mutation("a histogram's edges from the longest row", "dpppl.runs.histogram:Histogram.program", "self.statistic, z, rows, public,",
             "lambda *a: jax.numpy.roll(self.statistic(*a), int(any(np.any(np.abs(x) > 1e3) for x in map(np.asarray, jax.tree.leaves(arguments[1]))))), z, rows, public,",
             FORM, ("norms", "monkeypatch", "capfd")),
    Mutation("a bound from the data", "dpppl.runs.query:noisy_query", "def statistic(_: object, row: Tree, public: Tree) -> Tree: return jnp.asarray(query.statistic(row, public), float)",
             "largest = float(max(np.max(np.nan_to_num(np.asarray(x, float))) for x in query.rows.values()))\n    def statistic(_: object, row: Tree, public: Tree) -> Any:\n        return jnp.minimum(jnp.asarray(query.statistic(row, public), float), largest)",
             FORM, ("query", "monkeypatch", "capfd")),
    Mutation("fewer iterates where a value is missing", "dpppl.svi.runner:SVI.run", "thinning = thinning_for(state.optim_state, num_steps, thinning)",
             "thinning = thinning_for(state.optim_state, num_steps, thinning) + int(any(np.any(np.isnan(np.asarray(x, float))) for x in jax.tree.leaves(rows)))",
             FORM, ("SVI", "monkeypatch", "capfd")),
    # Masked rows, other orders, one row
    Mutation("norms of what stands in masked rows", "dpppl.access.norm_histogram:gradient_norm", "for leaf in leaves))",
             "for leaf in leaves) + 1e-6 * sum(jnp.sum(1.0 * x) ** 2 for x in jax.tree.leaves(row)))", "test_elsewhere_runs:test_masked_rows_change_nothing", ("norms",)),
    Mutation("rows of a run weighted by their place", SUM, "clip(statistics, mask)",
             "clip(jax.tree.map(lambda g: g * (1.0 + 1e-3 * jnp.arange(len(g)).reshape(-1, *[1] * (g.ndim - 1))), statistics), mask)",
             "test_elsewhere_runs:test_rows_in_another_order_change_nothing", ("SVI",)),
    Mutation("divided by one row less", "dpppl.runs.private_score:private_score", "charge, key, budget) / arguments.num_rows", "charge, key, budget) / (arguments.num_rows - 1)",
             "test_elsewhere_runs:test_one_row_is_data_like_others", ("query",)),
    # Equal keys
    Mutation("sites of a run share noise", *SHARED,
             "test_elsewhere_runs:test_equal_sites_and_steps_of_svi_share_no_noise"),
    Mutation("sites of a chain share noise", *SHARED,
             "test_elsewhere_runs:test_equal_sites_steps_chains_and_devices_share_no_noise", ("vectorized",)),
    Mutation("chains share their key", "dpppl.mcmc.chains:_first_states", "states = bound.init(chain_key, call.num_warmup", "chain_key = chain_key if num_chains == 1 else chain_key[jnp.zeros(num_chains, int)]; states = bound.init(chain_key, call.num_warmup",
             "test_elsewhere_runs:test_equal_sites_steps_chains_and_devices_share_no_noise", ("sequential",)),
]  # fmt: skip


test_another_librarys_defect_is_caught, test_every_defect_is_planted_in_the_code_as_it_is = planted(MUTATIONS)
