"""Each rule of the door, of clipping, of sums and of weights left out, one at a time: a named test fails without it."""

import functools

from test_mutations import Mutation, found, planted

DOOR, CLIP, WEIGHTS, SUMS = (
    "dpppl.access.door:",
    "dpppl.access.clipping:",
    "dpppl.access.ghost_sum:",
    "dpppl.access.ghost_sum:",
)
GRADIENTS, STORED, LINEAR, MECHANISM = (
    "dpppl.access.exact_sum:",
    "dpppl.row_program.materialize:",
    "dpppl.row_program.linear_algebra:",
    "dpppl.access.mechanism:Mechanism.",
)
RULES = "test_door_rules:test_"
WEIGHTED = f"{RULES}weights_leave_room_for_rounding_and_are_zero_of_rows_that_do_not_count"
COUNTED = f"{RULES}rows_that_do_not_count_are_not_counted_as_clipped"
CLASSES, FORGED = (
    "test_mechanism:test_clipping_and_subsampling_are_of_the_doors_own_classes",
    "test_mechanism:test_a_door_bound_with_another_mechanism_is_refused",
)
STORES = "test_stored:test_differences_are_stored"
PRINTS, HALVES = (
    "test_linear_algebra:test_nothing_is_printed_of_rows_that_are_not_finite",
    "test_linear_algebra:test_what_is_not_read_may_be_infinite",
)

left_out = functools.partial(Mutation, cached=False)


MUTATIONS = [
    # Whose classes
    left_out("classes made of the door's own", f"{DOOR}_check_classes", "type(value) not in _EXACT[name]", "not isinstance(value, _EXACT[name])",
             CLASSES, (lambda: {"clipping": found("test_mechanism:Loose")()(1.0)},)),
    left_out("accesses made of the door's own", f"{DOOR}_check_classes", "[access] if type(access) is not Access else []", "[]", FORGED, ("equations",)),
    left_out("mechanisms made of the door's own", f"{DOOR}_check_classes", "type(access.mechanism) is not Mechanism",
             "not isinstance(access.mechanism, Mechanism)", FORGED, ("equations",)),
    left_out("an access is made of anything", f"{DOOR}Access.__post_init__", "_check_classes(self)", "None", FORGED, ("equations",)),
    left_out("anything is bound", f"{DOOR}_shapes", "_check_classes(access)", "None", FORGED, ("equations",)),
    left_out("anything is proved", f"{DOOR}_roles", '_check_classes(parameters["access"])', "None", FORGED, ("equations",)),
    left_out("containers of any class", f"{DOOR}plain_structure", "return jax.tree.structure(rebuilt(tree))", "return tree",
             "test_mechanism:test_no_container_of_the_callers_is_put_together_behind_the_door", (found("test_mechanism:Meeting"), lambda: list)),
    # What a row's linear algebra sees
    left_out("LAPACK sees infinities", f"{LINEAR}_of_finite", "jnp.isfinite(x)", "~jnp.isnan(x)", PRINTS, ("value", "capfd")),
    left_out("linear algebra in calls sees all", f"{LINEAR}_outputs", "program = on_finite(program, [True] * len(inputs_of(program)))", "pass",
             PRINTS, ("slope", "capfd")),
    left_out("what came of zeros counts", f"{LINEAR}_of_finite", "chosen(y, jnp.nan)", "chosen(y, 0.0)", HALVES),
    left_out("the other half is looked at", f"{LINEAR}_of_finite", "if equation.primitive in _HALVES", "if False", HALVES),
    # Clipping
    left_out("any norm", f"{CLIP}Flat.__post_init__", "not 1e-30 <= norm <= 1e18", "norm < 0", "test_clipping:test_a_clipping_norm_that_bounds_nothing_is_refused", (1e19,)),
    left_out("rows not drawn are counted", f"{CLIP}with_count", "counts if mask is None else", "counts if True else", COUNTED),
    left_out("infinities count as clipped", f"{CLIP}clipping_counts", "jnp.where(is_finite & ~is_silent,", "jnp.where(~is_silent,",
             f"{RULES}rows_without_a_norm_have_counts_of_their_own"),
    left_out("long rows' squares in float32", "dpppl.access.clipping:_squared_norm", "or last > _LONGEST_FLOAT32_SUM", "", "test_clipping:test_norms_ask_for_full_matrix_precision_and_short_sums", ("equations",)),
    # Weights of factors
    left_out("rows not drawn are counted by factors", f"{WEIGHTS}clipped_sum", "jnp.where(keep[:, None], own, 0.0)", "own", "test_ghost:test_factors_are_clipped_as_gradients", (True,)),
    left_out("rows not drawn weigh", f"{WEIGHTS}weigh", "jnp.where(keep, clipping.weights(squared / (norm * _BELOW) ** 2), 0.0)",
             "clipping.weights(squared / (norm * _BELOW) ** 2)", WEIGHTED),
    left_out("rows that are not finite weigh", f"{WEIGHTS}weigh", "keep & (squared <= _MOST_SQUARED)", "keep & ~(squared <= 0)", WEIGHTED),
    left_out("no room for rounding of weights", f"{WEIGHTS}_BELOW", "1.0 - 1.1e-3", "1.0", WEIGHTED),
    left_out("short rows are lengthened", f"{CLIP}_flat_weights", "jnp.minimum(np.ones((), squared_norms.dtype), 1.0 / jnp.sqrt(squared_norms))",
             "1.0 / jnp.sqrt(squared_norms)", WEIGHTED),
    left_out("kinds without a rule are weighed", f"{WEIGHTS}supports", "type(clipping) is Flat", "isinstance(clipping, Flat)",
             f"{RULES}only_a_kind_with_a_rule_is_weighed"),
    left_out("weight zero times infinity", f"{SUMS}weighted", "jnp.where(factor > 0, last.astype(dtype) * factor, np.zeros((), dtype))",
             "last.astype(dtype) * factor", f"{RULES}rows_of_weight_zero_add_exactly_nothing", ("whole",)),
    left_out("weight zero of the other factor only", f"{SUMS}weighted", "jnp.where(spread(weights, parts[0]) > 0, parts[0].astype(dtype), np.zeros((), dtype))",
             "parts[0].astype(dtype)", f"{RULES}rows_of_weight_zero_add_exactly_nothing", ("outer",)),
    left_out("norms as they are rounded", f"{SUMS}_ROUNDED", "1.0 + 7e-5", "1.0", f"{RULES}norms_are_bounded_from_above"),
    # Sums
    left_out("chunks left out too soon", f"{GRADIENTS}over_chunks", "jnp.arange(num_rows) + chunk - begin, 0)", "jnp.arange(num_rows) - begin, 0)",
             f"{RULES}each_row_of_uneven_chunks_counts_once_and_those_left_out_do_not"),
    left_out("rows counted in two chunks", f"{GRADIENTS}over_chunks", "fresh & take(mask)", "take(mask)",
             f"{RULES}each_row_of_uneven_chunks_counts_once_and_those_left_out_do_not"),
    Mutation("sums that depend on their order", f"{GRADIENTS}_sum_rows", "jnp.round(rows.astype(jnp.float64) * 2.0**_BITS)", "rows.astype(jnp.float64) * 2.0**_BITS",
             "test_gradients:test_sums_are_whole_numbers_of_steps", (10, "vmap", 2.0**-26)),
    left_out("a coarse grid for many latents", f"{GRADIENTS}sum_of_rows", "if chunk <= rows_ and size <= size_", "if chunk <= rows_",
             "test_door_rules:test_rows_of_many_latents_take_a_finer_grid"),
    # What is stored
    left_out("conversions counted as products", f"{STORED}_PRODUCTS", ' - {"convert_element_type"}', "", "test_stored:test_conversions_and_half_precision_are_stored"),
    left_out("few digits counted as products", f"{STORED}_multiplies", "if any(v.aval.dtype not in (jnp.float32, jnp.float64)", "if any(False", "test_stored:test_conversions_and_half_precision_are_stored"),
    left_out("dot products counted as products", f"{STORED}_multiplies", 'equation.params["dimension_numbers"][0][0]) == 1', 'equation.params["dimension_numbers"][0][0]) >= 1', STORES),
    left_out("sums over axes counted as products", f"{STORED}_multiplies", 'equation.params["axes"]) == 1', 'equation.params["axes"]) >= 1', "test_stored:test_sums_of_what_a_row_holds_are_stored"),
]  # fmt: skip


test_a_rule_left_out_is_missed, test_every_rule_is_in_the_code_as_it_is = planted(MUTATIONS, thinned=2)
