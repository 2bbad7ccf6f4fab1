"""Deliberate privacy bugs, one at a time, each caught by a named test; a bug that survives fails the run.

A mutation rewrites a few characters of one function's source and leaves the rest of the library as it is. The test
named beside it must then fail. `python -m pytest tests/access/test_mutations.py -rA` prints the table.
"""

import __future__

import functools
import importlib
import inspect
import itertools
import operator
import re
import sys
import textwrap
from dataclasses import dataclass

import jax
import pytest
import test_noise_aware

import dpppl
from dpppl.information_flow import executables
from dpppl.row_statistics.accesses import Kind


@dataclass(frozen=True)
class Mutation:
    """`bug`: what is wrong; `where`: "module:function", or a constant; `old`, `new`: source text; `test`: "module:function".
    `cached`: whether JAX may have kept what the function computed before, or keeps what it computes with the bug."""

    bug: str
    where: str
    old: str
    new: str
    test: str
    arguments: tuple = ()
    cached: bool = True


PROGRAM = "dpppl.access.mechanism:Mechanism.access"
CLIP = "dpppl.access.clipping:clip_rows"
SUM = "dpppl.access.exact_sum:sum_of_rows"
STEP = "dpppl.mcmc.bound:BoundKernel._gradient"
DRIVE = "dpppl.runs.driver:drive"
EVENT = "dpppl.access.mechanism:Mechanism.event"


def found(where, *keys):
    """What finds an argument when its test runs: an object "module:name", or what it holds under these keys."""

    def find():
        module, name = where.split(":")
        return functools.reduce(operator.getitem, keys, getattr(importlib.import_module(module), name))

    return find


_full_batch, _langevin = (lambda: dpppl.FullBatch()), found("dpppl:DPSGLD")
_dense, _words, _tied = (found(f"test_ghost:{name}") for name in ("dense", "words", "tied"))
_chain, _svi, _query = (found("test_runs:WAYS", name) for name in ("MCMC", "SVI", "query"))


SCALED = "jax.tree.leaves(total), scales, norms"
_AGAIN = "native.call(native.STORED, a, x, in_place=True)", "x"
MUTATIONS = [
    # The door
    Mutation("noise dropped", PROGRAM, SCALED, "jax.tree.leaves(total), [0.0 * scale for scale in scales], norms",
             "test_mechanism:test_an_empty_batch_still_adds_noise"),
    Mutation("noise halved", PROGRAM, SCALED, "jax.tree.leaves(total), [0.5 * scale for scale in scales], norms",
             "test_mechanism:test_the_noise_has_standard_deviation_norm_times_multiplier", (1.0, 2.0)),
    Mutation("the same noise at every step", PROGRAM, 'jax.random.fold_in(keys.stream(key, "noise"), step)',
             'keys.stream(key, "noise")', "test_mechanism:test_every_draw_of_every_step_has_a_key_of_its_own",
             (dpppl.Poisson(0.5), "monkeypatch")),
    Mutation("noise in float32, with short tails", "dpppl.randomness.normal:standard_normal",
             "count = -(-size // 8)", "return jax.random.normal(key, (size,))",
             "test_mechanism:test_the_noise_reaches_beyond_float32s_tails", ("monkeypatch",)),
    Mutation("one noise for all sites", "dpppl.randomness.normal:standard_normal",
             "if not (chacha.is_chacha(key) and native.available()): return by_xla(key)[:size]",
             "return jnp.broadcast_to(by_xla(key)[:1], (size,))",
             "test_mechanism:test_sites_coordinates_and_accesses_have_independent_noise"),
    Mutation("noise without its lower bits", "dpppl.randomness.normal:_box_muller", "(low.astype(jnp.float64) + 0.5) * 2.0**-64",
             "0.5 * 2.0**-64", "test_random:test_all_128_bits_matter"),
    Mutation("pairs that tell of each other", "dpppl.randomness.normal:_box_muller", "jnp.where(swap, cosine, sine)", "sine",
             "test_random:test_the_distribution_is_standard_normal", (lambda: jax.random.key,)),
    Mutation("noise and rows from one stream", "dpppl.randomness.keys:stream", "np.uint32(zlib.crc32(name.encode()))",
             "np.uint32(0)", "test_random:test_streams_and_keys_are_unrelated"),
    Mutation("a derivative goes through", "dpppl.access.door:noisy_statistic",
             "door_p.bind(*operands, access=access)", "access(*operands)",
             "test_mechanism:test_a_derivative_through_the_door_is_refused"),
    Mutation("rows leave with the sum", "dpppl.access.door:noisy_statistic",
             "door_p.bind(*operands, access=access)",
             "[leaf + 0.0 * jnp.sum(jax.tree.leaves(rows)[0]) for leaf in door_p.bind(*operands, access=access)]",
             "test_mechanism:test_the_noised_sum_is_the_only_output", ("equations",)),
    # Clipping
    Mutation("not clipped", CLIP, "leaf * factor,", "leaf,",
             "test_mechanism:test_one_row_moves_the_output_by_at_most_the_sensitivity", (_full_batch,)),
    Mutation("rows that are not finite pass", CLIP, "factor > 0.0", "factor == factor",
             "test_mechanism:test_a_row_that_is_not_finite_is_as_good_as_zero", (float("inf"), _full_batch)),
    Mutation("rows that were not drawn count", CLIP, "keep if mask is None else keep & mask", "keep",
             "test_gradients:test_all_rows_masked_or_zero_sum_to_exactly_zero", (False,)),
    Mutation("norms of many sites in float32", "dpppl.access.clipping:_squared_norm",
             "precision=lax.Precision.HIGHEST).astype(jnp.float64)", "precision=lax.Precision.HIGHEST)",
             "test_clipping:test_squares_of_many_leaves_are_not_summed_in_float32"),
    # The sum
    Mutation("clipped after the sum", SUM, "clip(statistics, mask)",
             "clip(jax.tree.map(lambda g: jnp.sum(g, 0, keepdims=True), statistics), None)",
             "test_gradients:test_gradients_of_a_nonlinear_likelihood_are_clipped_row_by_row"),
    Mutation("rows of the last chunk counted twice", "dpppl.access.exact_sum:over_chunks", "fresh if mask is None else fresh & take(mask)",
             "mask if mask is None else take(mask)",
             "test_gradients:test_every_strategy_and_uneven_chunks_agree_with_numpy", (1_003, "microbatch")),
    Mutation("low precision", "dpppl.row_program.materialize:materialize", 'jax.default_matmul_precision("highest")', 'jax.default_matmul_precision("bfloat16")',
             "test_gradients:test_likelihoods_run_at_full_matrix_precision", ("equations",)),
    Mutation("divided by the rows drawn", "dpppl.access.exact_sum:_sum_rows", "return jnp.sum(steps, axis=0, dtype=jnp.int32)",
             "return (1.0 / len(rows)) * jnp.sum(steps, axis=0, dtype=jnp.int32)",
             "test_mechanism:test_it_is_the_clipped_sum_plus_noise"),
    # What no row enters
    Mutation("latents used twice, once in the gradient", "dpppl.row_program.hoist:_in_two", "slopes[number] += slope",
             "slopes[number] = slope", "test_shared_work:test_the_gradients_are_jaxs", ("mixed", "x64")),
    Mutation("the Jacobian of other latents", "dpppl.row_program.hoist:_in_two", "zip(used, unflat(through",
             "zip(used[::-1], unflat(through", "test_shared_work:test_the_gradients_are_jaxs", ("mixed", "x64")),
    # The sum of factors
    Mutation("a latent left out of the norm", "dpppl.access.ghost_sum:clipped_sum", "functools.reduce(jnp.add, squares)",
             "squares[0]", "test_ghost:test_the_bound_is_reached", (1e3, 0.9985)),
    Mutation("the norm of another row", "dpppl.access.ghost_sum:weigh", "clipping.weights(squared /",
             "clipping.weights(jnp.roll(squared, 1) /", "test_ghost:test_a_hostile_row_moves_the_sum_by_at_most_the_norm"),
    Mutation("the norm of the sum", "dpppl.access.ghost_sum:clipped_sum", "upper_squares(form, *parts) for",
             "jnp.mean(upper_squares(form, *parts)) + jnp.zeros(len(parts[0])) for",
             "test_ghost:test_the_bound_is_reached", (1e3, 0.9985)),
    Mutation("rows that were not drawn have weight", "dpppl.access.ghost_sum:weigh", "keep & (squared", "(squared",
             "test_ghost:test_the_bound_is_reached", (1e3, 0.9985)),
    Mutation("a row weighted once only in the norm", "dpppl.access.ghost_sum:weighted", "last.astype(dtype) * factor",
             "last.astype(dtype) * factor**2", "test_ghost:test_it_is_the_sum_of_clipped_gradients", (_dense,)),
    Mutation("underflow of squares forgotten", "dpppl.access.ghost_sum:upper_squares",
             "_squares(part) * _ROUNDED + 2.0 * part.shape[-1] * _TINY", "_squares(part) * _ROUNDED",
             "test_ghost:test_a_hostile_row_moves_the_sum_by_at_most_the_norm"),
    Mutation("one float32 block of all rows", "dpppl.access.ghost_sum:_product", "-(-len(a) // BLOCK)", "1",
             "test_ghost:test_blocks_are_added_in_float64"),
    Mutation("repeated words counted apart", "dpppl.access.factors:_distinct", "same.astype(b.dtype)",
             "jnp.eye(len(number), dtype=b.dtype)", "test_ghost:test_it_is_the_sum_of_clipped_gradients", (_words,)),
    Mutation("factors that may be computed twice", "dpppl.row_program.materialize:materialize", *_AGAIN,
             "test_ghost:test_factors_are_stored_once"),
    Mutation("gradients that may be computed twice", "dpppl.row_program.materialize:materialize", *_AGAIN,
             "test_stored:test_statistics_are_stored_once"),
    Mutation("sums counted as products", "dpppl.row_program.materialize:_multiplies", "return name in _PRODUCTS", "return name in {*_PRODUCTS, 'sub'}",
             "test_stored:test_differences_are_stored"),
    Mutation("everything of a row counts as copied", "dpppl.access.factors:_walk", "all(operand.exact for operand in operands) and", "True or",
             "test_ghost:test_factors_are_stored_once"),
    Mutation("another use of a latent forgotten", "dpppl.access.factors:_walk", "if operand.latents]", "if False]",
             "test_ghost:test_it_is_the_sum_of_clipped_gradients", (_tied,)),
    # Which rows
    Mutation("a row drawn twice", "dpppl.subsampling.distinct:_by_sorting", "& ~_repeats(value)", "",
             "test_subsampling:test_repeats_are_dropped_and_the_first_distinct_rows_are_kept", ("monkeypatch",)),
    Mutation("a batch of fixed size accounted as Poisson", "dpppl.subsampling.poisson:draw_sparse",
             "size = smallest + jnp.sum", "size = int(num_rows * rate) + 0 * jnp.sum",
             "test_subsampling:test_the_batch_size_compares_all_words", ("monkeypatch",)),
    Mutation("the modulo's bias", "dpppl.subsampling.distinct:_by_sorting", "draws <= largest_unbiased", "draws == draws",
             "test_subsampling:test_a_word_beyond_the_last_whole_multiple_is_rejected", ("monkeypatch",)),
    Mutation("a rate rounded up", "dpppl.subsampling.poisson:draw_dense", "numerator * 2**64 // denominator",
             "-(-numerator * 2**64 // denominator)", "test_subsampling:test_the_dense_threshold_is_the_rate_rounded_down",
             ("monkeypatch", 1e-7)),
    Mutation("rows are the same at every step", "dpppl.subsampling.poisson:Poisson.draw", "jax.random.fold_in(key, step)", "key",
             "test_subsampling:test_steps_under_one_key_draw_independent_rows"),
    Mutation("the cap cuts off too soon", "dpppl.subsampling.poisson:sparse_sizes", "num_rows + 1, rate) <= overflow_probability",
             "num_rows + 1, rate) <= overflow_probability**0.5", "test_subsampling:test_cap_and_tries_bound_the_overflow", (0.01, 5_000, 1e-22)),
    Mutation("a partition that is no partition", "dpppl.subsampling.partition:Partition.draw", "jax.random.fold_in(key, epoch)",
             "jax.random.fold_in(key, step)", "test_schemes:test_a_partition_draws_each_row_once_an_epoch", (13, 4)),
    # The account
    Mutation("slack of the sum forgotten", EVENT, "accounted * ACCOUNTED", "accounted",
             "test_events:test_the_event_is_what_ran"),
    Mutation("chains not charged", EVENT, "accounted = np.tile(self.subsampling.accounted(values, first), repeats)",
             "accounted = self.subsampling.accounted(values, first)",
             "test_mcmc:test_the_plan_is_the_report", ("vectorized",)),
    Mutation("overflow not charged", EVENT, "(self.subsampling.failure_probability + sampling) * values.size * repeats", "0.0",
             "test_events:test_the_event_of_poisson_sampling"),
    Mutation("chains that fail for nothing", EVENT, "values.size * repeats", "values.size",
             "test_events:test_each_step_of_each_chain_may_fail", (False,)),
    Mutation("replacing a row counted as removing it", "dpppl.access.mechanism:Mechanism.sensitivity",
             "relation_of(neighboring_relation).sensitivity", "1.0",
             "test_events:test_sensitivity_is_the_norm_or_twice_it", ("replace_one", 6.0)),
    Mutation("full batches amplified", "dpppl.subsampling.partition:Partition.accounted", "np.minimum.reduceat",
             "np.maximum.reduceat", "test_schemes:test_an_epoch_costs_what_its_least_noisy_step_costs"),
    Mutation("noise multipliers rounded up", "dpppl.accounting.events:round_down", "positive[first]",
             "positive[np.minimum(first + 1, len(positive) - 1)]",
             "test_events:test_many_noise_multipliers_are_never_rounded_up"),
    # The kernels
    Mutation("the door called with less noise than accounted", STEP, "noise_multiplier=noise_multiplier",
             "noise_multiplier=0.5 * noise_multiplier",
             "test_mcmc:test_every_step_draws_the_noise_that_is_accounted_for", ("monkeypatch",)),
    Mutation("one step number for all steps", STEP, "step=state.i", "step=0 * state.i",
             "test_mcmc:test_raw_key_data_is_the_same_key_and_steps_draw_noise_of_their_own"),
    Mutation("the account of another schedule", "dpppl.mcmc.dynamics:Dynamics.schedule", "return steps, multipliers",
             "return steps, multipliers * 1.1", "test_mcmc:test_every_step_draws_the_noise_that_is_accounted_for", ("monkeypatch",)),
    # Norms and counts
    Mutation("a count of clipped rows for nothing", "dpppl.access.mechanism:Mechanism._scales",
             "scales = [noise_multiplier / np.sqrt(1.0 - share)]", "scales = [noise_multiplier]",
             "test_step_search:test_sum_and_count_together_cost_one_access"),
    Mutation("a shortened step with the noise of none", "dpppl.mcmc.bound:BoundKernel.step",
             "jnp.maximum(noise_multiplier, kernel.langevin_multiplier(step_size))",
             "0.5 * jnp.maximum(noise_multiplier, kernel.langevin_multiplier(step_size))",
             "test_step_search:test_the_door_is_never_called_with_less_noise_than_was_charged"),
    Mutation("rows without a norm among those that are not clipped", "dpppl.access.clipping:clipping_counts",
             "jnp.where(is_finite & ~is_silent, longer, 0.0)", "longer",
             "test_door_rules:test_rows_without_a_norm_have_counts_of_their_own"),
    Mutation("a histogram with half the noise", "dpppl.access.norm_histogram:noisy_histogram", "noise_multiplier=noise_multiplier",
             "noise_multiplier=0.5 * noise_multiplier",
             "test_norms:test_a_row_moves_the_counts_by_one_and_the_noise_is_what_is_charged"),
    Mutation("silent rows among those of the shortest norms", "dpppl.access.norm_histogram:in_bin", "size + SILENT, number)", "0, number)",
             "test_norms:test_rows_are_counted_by_octave_and_rows_without_a_norm_apart"),
    Mutation("silent rows among those that have a norm", "dpppl.access.norm_histogram:_fit", "num_rows - counts[SILENT:].sum()",
             "num_rows", "test_norms:test_the_norm_is_that_of_the_rows_that_inform_the_posterior", (0.5, 400)),
    Mutation("a histogram that is not charged", "dpppl.frame.locate:locate", "opened.charge(len(frame), 1)", "None",
             "test_step_search:test_the_histogram_of_norms_is_charged_with_the_run"),
    # Runs
    Mutation("charged after access", "dpppl.runs.driver:_chunks",
             "opened.charge(group, start + count) "
             "counts = (np.asarray(value, np.int32) for value in (start, count)) "
             "state, buffers = jax.block_until_ready(program(state, plan.rows, plan.public, *counts))",
             "counts = (np.asarray(value, np.int32) for value in (start, count)); "
             "state, buffers = jax.block_until_ready(program(state, plan.rows, plan.public, *counts)); "
             "opened.charge(group, start + count)",
             "test_mcmc:test_every_step_of_every_chain_is_charged_before_it_runs", ("vectorized", "monkeypatch")),
    Mutation("a query charged after its access", "dpppl.runs.query:noisy_query",
             "opened.charge(0, 1) return np.asarray(compiled(*arguments), np.float64)",
             "value = np.asarray(compiled(*arguments), np.float64); opened.charge(0, 1); return value",
             "test_runs:test_a_run_that_stops_stays_charged_for_what_it_began", (_query, MemoryError(), "monkeypatch")),
    Mutation("a query of all rows accounted with amplification", "dpppl.runs.query:Query.charge",
             "subsampling=FullBatch()", "subsampling=__import__(\"dpppl\").Poisson(0.2)",
             "test_runs:test_a_query_is_accounted_without_amplification"),
    *(Mutation(f"{name} without a proof", "dpppl.runs.driver:prove", "information_flow.verify_jaxpr(",
               "(lambda *_, **__: None)(", "test_runs:test_a_run_that_is_refused_changes_nothing",
               (way, "claimed", "monkeypatch"))
      for name, way in (("MCMC.run", _chain), ("SVI.run", _svi))),
    Mutation("secrets of an empty name", "dpppl.runs.driver:prove", 'secret_outputs=(".rng_key",)', 'secret_outputs=("",)',
             "test_runs:test_a_run_that_stops_stays_charged_for_what_it_began", (_chain, MemoryError(), "monkeypatch")),
    Mutation("SVI charged after its access", "dpppl.runs.driver:_chunks",
             "opened.charge(group, start + count) "
             "counts = (np.asarray(value, np.int32) for value in (start, count)) "
             "state, buffers = jax.block_until_ready(program(state, plan.rows, plan.public, *counts))",
             "counts = (np.asarray(value, np.int32) for value in (start, count)); "
             "state, buffers = jax.block_until_ready(program(state, plan.rows, plan.public, *counts)); "
             "opened.charge(group, start + count)",
             "test_runs:test_a_run_that_stops_stays_charged_for_what_it_began", (_svi, MemoryError(), "monkeypatch")),
    Mutation("the key is returned", DRIVE, "state._replace(rng_key=None)", "state",
             "test_mcmc:test_raw_key_data_is_the_same_key_and_steps_draw_noise_of_their_own"),
    Mutation("keys used again", "dpppl.runs.session:session", "partial(claim, run.key, again=run.goes_on)",
             "partial(KeyOrigin.of, run.key)", "test_mcmc:test_raw_key_data_is_the_same_key_and_steps_draw_noise_of_their_own"),
    Mutation("a chain of several not charged", "dpppl.mcmc.chains:Call.charges", "(1, self.num_chains) if self.together", "(1, 1) if self.together",
             "test_mcmc:test_the_plan_is_the_report", ("vectorized",)),
    Mutation("a rerun forgets what was spent", "dpppl.runs.budget:Budget.reserve_for", "self.runs[name] = _Run(", "self.runs.clear(); self.runs[name] = _Run(", "test_mcmc:test_without_a_budget_runs_add_up"),
    Mutation("a budget without force", "dpppl.runs.budget:Account.admit", "> share * self.target_epsilon", "> 1e9",
             "test_mcmc:test_the_budget_is_for_all_that_the_object_runs", ("monkeypatch", "claimed")),
    Mutation("warmup not charged", "dpppl.runs.budget:_Run.charged", "charge.begun(count)", "charge.begun(max(0, count - 5))",
             "test_mcmc:test_without_a_budget_runs_add_up"),
    Mutation("threads admitted at once", "dpppl.runs.budget:_Run.held", "return self.planned if self.is_open else self.charged",
             "return self.charged", "test_budget:test_what_is_reserved_is_not_free"),
    Mutation("what an interrupt left is lost", "dpppl.runs.budget:Reservation.__exit__", "self._run.is_open = False",
             "self._run.is_open = True", "test_runs:test_what_an_interrupted_run_left_can_be_spent", (_svi, "monkeypatch")),
    Mutation("a copy with an account of its own", "dpppl.runs.budget:Budget.__getstate__", "run.ended()", "_Run(())",
             "test_runs:test_copies_share_an_account_and_pickles_remember_it", (_chain,)),
    Mutation("the ledger not told", "dpppl.runs.budget:Reservation.charge", "sum(after.begun) > self._known", "False",
             "test_runs:test_a_charge_that_was_cut_off_or_refused_is_made_again", (lambda: KeyboardInterrupt, "tmp_path", "monkeypatch")),
    Mutation("steps by hand not charged", "dpppl.svi.by_hand:SVIByHand.update",
             'self.budget.charge_one(charge, "SVI.update", single_steps.name_in_ledger(key), take)', "take()",
             "test_runs:test_a_ledger_counts_the_steps_of_an_object_and_of_its_copy", ("tmp_path",)),
    Mutation("a state that steps again", "dpppl.runs.single_steps:take", "step < first", "False",
             "test_single_steps:test_a_state_steps_once"),
    Mutation("a key that starts two states", "dpppl.runs.single_steps:begin", "claim(key)", "KeyOrigin.of(key)",
             "test_single_steps:test_a_key_starts_one_state"),
    Mutation("resumed under another key", "dpppl.runs.session:Run.opened",
             "cls(checkpoint.key,", "cls(key,",
             "test_runs:test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been", (_chain, 4, "tmp_path", "monkeypatch", "claimed", "capfd")),
    Mutation("a checkpoint that others can read", "dpppl.runs.checkpoint:Checkpoint.write", "0o600)", "0o644)",
             "test_runs:test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been", (_chain, 4, "tmp_path", "monkeypatch", "claimed", "capfd")),
    Mutation("replayed on other rows", "dpppl.runs.checkpoint:Checkpoint.hold", "tag.update(np.ascontiguousarray(array)",
             "(np.ascontiguousarray(array)", "test_runs:test_a_checkpoint_of_another_run_is_refused",
             ("tmp_path", "monkeypatch", "claimed")),
    Mutation("64-bit counts in the account", "dpppl.mcmc.dynamics:Dynamics.schedule",
             "np.arange(first, first + count, dtype=np.int32)", "first + jnp.arange(count)",
             "test_kernels:test_a_schedule_that_wraps_is_accounted_as_it_is_run", ("x64", _langevin)),
    # Variational inference
    Mutation("a guide that was called on data", "dpppl.svi.guides:without_data", "check_guide(guide)", "None",
             "test_svi_habits:test_a_guide_that_was_called_on_data_is_refused"),
    Mutation("a guide starts from where it was", "dpppl.svi.guides:without_data", "_as_built(guide)", "vars(guide)",
             "test_svi_habits:test_a_guide_starts_as_it_was_built_whatever_was_done_with_it"),
    Mutation("casts that tell", "dpppl.model.arguments:Arguments.arrays", 'np.errstate(all="ignore")', "np.errstate()",
             "test_leaks_svi:test_rows_beyond_float32_show_in_no_warning_and_no_error", (1e300,)),
    # Discrete noise
    Mutation("no room for rounding", "dpppl.access.mechanism:Mechanism._scales", "jnp.maximum(0.0, 1.0 - rounding) *", "1.0 *",
             "test_discrete:test_norms_make_room_for_rounding"),
    Mutation("every candidate kept", "dpppl.randomness.discrete_gaussian:_candidates", ">= _one_minus_exp(y)", ">= 0 * y",
             "test_discrete:test_a_candidate_is_kept_with_the_stated_probability"),
    Mutation("discrete noise accounted as continuous", "dpppl.accounting.curves:build", "any(e.discrete for e in events)", "False",
             "test_discrete:test_the_account_is_rdps_and_a_little_dearer"),
    Mutation("rows not rounded", "dpppl.access.exact_sum:_sum_whole_rows", "jnp.round(rows.astype(jnp.float64) * steps).astype(jnp.int64)",
             "rows.astype(jnp.float64) * steps", "test_discrete:test_outputs_are_whole_numbers_of_steps"),
    # The ledger
    Mutation("a charge that is not on the disk", "dpppl.ledger.append_only:LockedFile._append", "os.fsync(self._descriptor)", "None",
             "test_ledger:test_a_charge_is_on_the_disk_before_it_returns", ("path", "monkeypatch")),
    Mutation("a tail cut off", "dpppl.ledger.append_only:_agrees_with_head", "place >= len(checks)", "False",
             "test_ledger:test_a_file_that_lost_its_end_is_refused", ("path",)),
    Mutation("more noise takes charges back", "dpppl.ledger.book:RunEntry.after_charge",
             "np.maximum(cost, self.charged_cost)", "cost",
             "test_ledger:test_a_charge_with_a_little_more_noise_takes_nothing_back", ("path",)),
    Mutation("a ledger without force", "dpppl.ledger.privacy_ledger:PrivacyLedger._admit", "book.rule.admits(others + cost)", "True",
             "test_ledger:test_threads_race_for_the_last_of_the_budget", ("path",)),
    Mutation("room that another run has reserved", "dpppl.ledger.book:RunEntry.taken", "if self.owner is None else", "if True else",
             "test_ledger:test_what_does_not_fit_is_refused_and_leaves_no_trace", ("path",)),
    Mutation("a run killed is a run free of charge", "dpppl.ledger.book:Book.after", "owner=None, reserved=()",
             "owner=None, reserved=(), charged=(), charged_cost=self.rule.nothing", "test_ledger:test_a_run_that_goes_on_is_not_charged_twice", ("path",)),
    Mutation("decided on what was read before", "dpppl.ledger.append_only:LockedFile.__init__",
             "self.new, self.position, checks = _parse(path, data, start)",
             "self.new, self.position, checks = _parse(path, data, start); self.new = [] if start.lines else self.new[:1]",
             "test_ledger:test_objects_that_are_copied_share_the_budget", ("path",)),
    Mutation("all of delta for each branch", "dpppl.ledger.privacy_filter:_orders", "weight * share", "1.0",
             "test_ledger:test_the_branches_share_delta", (1.0, 1e-5)),
    Mutation("a subsampled run costs the Gaussian rule nothing", "dpppl.ledger.privacy_filter:_cost",
             "np.zeros(len(orders)), math.inf", "np.zeros(len(orders)), 0.0",
             "test_ledger:test_mixed_runs_are_counted_by_one_rule", ("path",)),
    # Noise-aware inference
    Mutation("accesses before their charge", "dpppl.row_statistics.releases:Accesses.asker",
             "self.before(done + 1)", "self.before(done)",
             "test_noise_aware:test_every_access_is_charged_before_it_is_made_with_noise_of_its_own"),
    Mutation("less noise than was charged", "dpppl.row_statistics.releases:Accesses.asker", "self.key, noise_multiplier)",
             "self.key, 0.5 * noise_multiplier)",
             "test_noise_aware:test_every_access_is_charged_before_it_is_made_with_noise_of_its_own"),
    Mutation("less noise than is charged goes unnoticed", "dpppl.row_statistics.releases:Accesses.asker",
             "noise_multiplier >= charged[0] * (1.0 - 1e-9)", "noise_multiplier >= 0.9 * charged[0]",
             "test_noise_aware:test_every_access_is_charged_before_it_is_made_with_noise_of_its_own"),
    Mutation("a histogram of NoiseAware that is not charged", "dpppl.row_statistics.plan:ReleasePlan.noise_multipliers", "for _, share in self.accesses",
             "for kind, share in self.accesses if kind != 'bins'",
             "test_noise_aware:test_every_access_is_charged_before_it_is_made_with_noise_of_its_own"),
    Mutation("a centre from other rows", "dpppl.row_statistics.releases:_access", "state.at, rows,",
             "state.at._replace(norm=state.at.norm + 1e-3 * jnp.mean(jax.tree.leaves(rows)[0])), rows,",
             "test_noise_aware:test_rows_of_an_access_leave_through_the_door_only"),
    Mutation("noise on one side of the diagonal", "dpppl.row_statistics.matrices:isometric", "np.sqrt(2.0)", "1.0",
             "test_noise_aware:test_a_rows_curvature_is_the_slope_of_its_expected_score", (lambda: test_noise_aware.model, None)),
    Mutation("a bound shared by curvature and scores", "dpppl.row_statistics.statistics:RowStatistics._scaled",
             "self._share(row) / at.norm", "self._share(row) / at.curvature_bound",
             "test_noise_aware:test_a_rows_curvature_is_the_slope_of_its_expected_score", (lambda: test_noise_aware.model, None)),
    Mutation("two histograms as if they were one", "dpppl.row_statistics.statistics:RowStatistics.bins", "/ np.sqrt(2.0)", "",
             "test_noise_aware:test_a_rows_curvature_is_the_slope_of_its_expected_score", (lambda: test_noise_aware.model, None)),
    Mutation("a curvature without a bound", "dpppl.row_statistics.statistics:RowStatistics.look", "found.matrix() * weight(found)",
             "found.matrix()", "test_noise_aware:test_a_rows_curvature_is_the_slope_of_its_expected_score",
             (lambda: test_noise_aware.model, None)),
    Mutation("shares of more than there is", "dpppl.row_statistics.plan:ReleasePlan.noise_multipliers", "scale / np", "0.5 * scale / np",
             "test_looks:test_a_run_is_twenty_accesses_with_the_noise_of_their_charge"),
    Mutation("one noise for all accesses", "dpppl.row_statistics.releases:Accesses.asker", "State(at, done,", "State(at, 0,",
             "test_noise_aware:test_each_access_draws_its_own_noise_of_the_sd_that_was_asked"),
    Mutation("a block left out of a row's length", "dpppl.row_statistics.basis:Basis.length", "jnp.sum(inside**2)", "jnp.sum(inside[:-1]**2)",
             "test_noise_aware_wide:test_a_rows_blocks_are_those_of_its_curvature", ("logistic",)),
    Mutation("products left out of a row's length", "dpppl.row_statistics.basis:Basis.length", "square * jnp", "0.0 * jnp",
             "test_noise_aware_wide:test_a_rows_blocks_are_those_of_its_curvature", ("logistic",)),
    Mutation("signs of ranks from the draws they are ranked among", "dpppl.row_statistics.statistics:RowStatistics._alternatives",
             "jax.random.fold_in(jax.random.fold_in(key, row[ROW_NUMBER]), 1)", "jax.random.fold_in(key, row[ROW_NUMBER])",
             "test_noise_aware:test_signed_ranks_have_mean_zero_where_the_model_is_right"),
    Mutation("a shared score that is not clipped", "dpppl.row_statistics.shared_law:SharedStatistics._influence",
             "return Influence(score, psi,", "return Influence(score, score - table.centre,",
             "test_shared_law:test_a_table_gives_each_row_what_its_own_program_gives"),
    Mutation("a cell that is not listed counts as another", "dpppl.row_statistics.shared_law:SharedStatistics._influence",
             "jnp.where(is_listed, table.scores[place], jnp.nan)", "table.scores[place]",
             "test_shared_law:test_no_row_of_a_shared_law_moves_a_release_by_more_than_its_sensitivity", (Kind.LOOK,)),
    Mutation("noise of a shared curvature in one direction only", "dpppl.row_statistics.shared_law:SharedStatistics.unpacked",
             "drawn + (total", "0.0 * drawn + (total",
             "test_shared_law:test_noise_that_a_shared_curvature_leaves_out_is_made_up"),
    Mutation("shared draws count for nothing", "dpppl.model.responses:Responses.added",
             "self.split.num_rows / self._num_shared", "1e-9 * self.split.num_rows",
             "test_shared_law:test_rows_of_drawn_responses_are_centred_by_draws_that_they_share"),
    # Keys
    Mutation("a key of 32 bits", "dpppl.randomness.keys:secret_key", "os.urandom(length).hex()", "(os.urandom(4) * (length // 4)).hex()",
             "test_random:test_every_bit_of_a_secret_key_matters", ("monkeypatch", "chacha20", 256)),
    Mutation("a reused key is not seen in another form", "dpppl.randomness.keys:_digest", "data.tobytes()", "str(id(key)).encode()",
             "test_random:test_a_key_is_claimed_once_in_whatever_form_it_comes"),
]  # fmt: skip


def quoted(mutation):
    """Where the function is, the function, what is in its place, and its source with the bug."""
    module_name, path = mutation.where.split(":")
    module = importlib.import_module(module_name)
    *owners, name = path.split(".")
    owner = getattr(module, owners[0]) if owners else module
    original = inspect.getattr_static(owner, name)
    if not (callable(original) or isinstance(original, property | classmethod)):
        (source,) = re.findall(rf"^{name} = .*$", inspect.getsource(module), re.MULTILINE)
        assert source.count(mutation.old) == 1, f"{name} is not {mutation.old!r}"
        return module, owners, owner, name, original, None, source.replace(mutation.old, mutation.new)
    function = original.fget if isinstance(original, property) else inspect.unwrap(original)
    source = textwrap.dedent(inspect.getsource(function))
    pattern = r"\s+".join(map(re.escape, mutation.old.split()))
    assert len(re.findall(pattern, source)) == 1, f"{mutation.where} does not contain {mutation.old!r} exactly once"
    return module, owners, owner, name, original, function, re.sub(pattern, lambda _: mutation.new, source)


def mutated(mutation, monkeypatch):
    """Put the function with the bug in the place of the right one, for one test."""
    module, owners, owner, name, original, function, changed = quoted(mutation)
    namespace = dict(vars(module))
    exec(compile(changed, f"<{mutation.bug}>", "exec", __future__.annotations.compiler_flag), namespace)
    if function is None:
        return monkeypatch.setattr(module, name, namespace[name])
    # the library's own functions must stay visible to each other: run in the module's own globals
    made = namespace[name]
    raw = made.fget if isinstance(made, property) else inspect.unwrap(made)
    rebound = type(raw)(raw.__code__, vars(module), raw.__name__, raw.__defaults__, raw.__closure__)
    rebound.__kwdefaults__ = raw.__kwdefaults__
    monkeypatch.setattr(owner, name, property(rebound) if isinstance(original, property) else rebound)
    if isinstance(function, type(raw)) and not raw.__code__.co_freevars and not function.__code__.co_freevars:
        monkeypatch.setattr(function, "__code__", raw.__code__)  # for tables that hold the function itself
    for module in [m for n, m in sys.modules.items() if n.split(".")[0] == "dpppl" or n.startswith("test_")]:
        if not owners and vars(module).get(name) is original:
            monkeypatch.setattr(module, name, rebound)


def run_named_test(mutation, request, claimed):
    """Run the test that is to catch the bug, with keys that nobody has used."""
    module, name = mutation.test.split(":")
    fixtures = {
        "equations": lambda: request.getfixturevalue("equations"),
        "claimed": lambda: claimed,
        "x64": lambda: True,
        "capfd": lambda: request.getfixturevalue("capfd"),
        "tmp_path": lambda: request.getfixturevalue("tmp_path_factory").mktemp("run"),
        "path": lambda: request.getfixturevalue("tmp_path_factory").mktemp("ledger") / "ledger",
    }
    claimed.clear()
    executables.clear()
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64("x64" in mutation.arguments):
        fixtures["monkeypatch"] = lambda: patch
        arguments = [
            fixtures[a]() if isinstance(a, str) and a in fixtures else a() if callable(a) else a
            for a in mutation.arguments
        ]
        getattr(importlib.import_module(module), name)(*arguments)


PASSED = set()


def check_that_it_is_caught(mutation, request, claimed):
    """The named test passes as the library is, which is seen once for all bugs that it catches, and fails with the bug."""
    if (mutation.test, mutation.arguments) not in PASSED:
        run_named_test(mutation, request, claimed)
        PASSED.add((mutation.test, mutation.arguments))
    survived, traced = (
        True,
        mutation.cached and not mutation.where.startswith("dpppl.information_flow."),
    )  # what only reads traced programs
    with pytest.MonkeyPatch.context() as patch:
        mutated(mutation, patch)
        if traced:
            jax.clear_caches()
        try:
            run_named_test(mutation, request, claimed)
        except Exception as error:
            survived = isinstance(error, NameError | SyntaxError | ImportError)
        except pytest.fail.Exception:
            survived = False
    executables.clear()
    if traced:
        jax.clear_caches()
    assert not survived, f"{mutation.bug} was not caught by {mutation.test}"
    print(f"{mutation.bug:50} caught by {mutation.test}")


def planted(mutations, thinned=1):
    """Make the two tests of a table: a named test catches each bug, and each bug, thinned or not, is in the code as it is."""

    @pytest.mark.thinned(thinned)
    @pytest.mark.slow
    @pytest.mark.parametrize("mutation", mutations, ids=[m.bug for m in mutations])
    def is_caught(mutation, request, claimed):
        check_that_it_is_caught(mutation, request, claimed)

    def is_in_the_code():
        assert all(quoted(mutation)[-1] for mutation in mutations) and len({m.bug for m in mutations}) == len(mutations)
        for module, name in (mutation.test.split(":") for mutation in mutations):
            assert callable(getattr(importlib.import_module(module), name))

    return is_caught, is_in_the_code


test_a_privacy_bug_is_caught, test_every_bug_is_in_the_code_as_it_is_and_named_tests_exist = planted(
    MUTATIONS, thinned=2
)


def test_the_table_is_long_and_spread():
    assert len(MUTATIONS) >= 40
    by_function = itertools.groupby(sorted(m.where for m in MUTATIONS))
    assert all(len(list(group)) <= 4 for _, group in by_function)
