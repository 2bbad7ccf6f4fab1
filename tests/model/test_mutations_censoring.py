"""What draws of censored responses are, and which rows are out of range, one bug at a time: a named test fails with it."""

from test_mutations import Mutation, planted

CENSORING, CHECKS = "dpppl.model.censoring:", "dpppl.model.censoring_checks:"
ZERO = "test_censoring:test_clipped_scores_have_mean_zero_where_the_censoring_law_is_declared"
REFUSED = "test_censoring:test_an_incomplete_law_is_refused_with_a_cure"
INDICES, RANGE = "dpppl.model.indices:", "test_indices:test_what_enters_a_row_is_found_out_of_range"
OUTSIDE = "test_censoring:test_rows_against_their_declaration_are_outside"
MUTATIONS = [
    Mutation("an indicator is swapped", f"{CENSORING}observed", "time < limit if is_left else time > limit",
             "time > limit if is_left else time < limit", ZERO, ("column",)),
    Mutation("the density of a censored row in place of the survival function", f"{CENSORING}with_indicators",
             "type(inner)(inner.base_dist, *indicators)", "inner.base_dist", ZERO, ("column",)),
    Mutation("centring ignores censoring", f"{CENSORING}observed", "Censored(combined(time, limit), (time < limit if is_left else time > limit,))",
             "Censored(time, (time != time,))", ZERO, ("column",)),
    Mutation("only one of several limits counts", f"{CENSORING}observed", "for other in limits[1:]", "for other in limits[:1]",
             ZERO, ("competing",)),
    Mutation("left is right", f"{CENSORING}_inspected", "(left, right))", "(right, left))", ZERO, ("interval",)),
    Mutation("times that the site observes", f"{CHECKS}_check_inputs", "own and own.issubset(limits)", "False",
             REFUSED, ("known where censored",)),
    Mutation("a site that does not name in return", f"{CHECKS}_check_part", "or name not in censoring.declared(other)", "",
             REFUSED, ("not in return",)),
    Mutation("times after their limit", f"{CENSORING}is_outside", "outside |= ~(sign * value <= sign * limit + slack)", "pass", OUTSIDE),
    Mutation("an index past the end is in range", f"{INDICES}_outside", "(index < 0) | (index > last)", "index < 0", RANGE, ("ids",)),
    Mutation("NaN is an integer", f"{INDICES}_not_an_integer", "~((whole >= float(low)) & (whole < float(high) + 1.0))",
             "(whole < float(low)) | (whole >= float(high) + 1.0)", RANGE, ("x",)),
    Mutation("the nearest place to NaN is one", f"{INDICES}_out_of_range", "jnp.any(jnp.isnan(operands[0].value)", "jnp.any(jnp.isinf(operands[0].value)", RANGE, ("x",)),
    Mutation("comparisons of NaN are known", f"{INDICES}_step", "if _compares(equation):", "if False:", RANGE, ("x",)),
    Mutation("integers of comparisons are known", f"{INDICES}_outputs", "(_either(b, s), None)", "(b, None)", RANGE, ("x",)),
    Mutation("a sure case does not decide", f"{INDICES}_passed", "marks[0] &= ~decided", "marks[0] &= ~(decided & False)", RANGE, ("x",)),
    Mutation("a row out of range is usable", "dpppl.model.supports:is_outside", "jnp.zeros((), bool) if out_of_range is None else out_of_range",
             "jnp.zeros((), bool)", "test_indices:test_rows_out_of_range_add_nothing_and_are_counted_as_not_finite", ("factors",)),
]  # fmt: skip


test_a_bug_is_caught, test_every_bug_is_in_the_code_as_it_is = planted(MUTATIONS)
