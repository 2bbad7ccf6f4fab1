"""Deliberate bugs of the proof, the door and what they stand on, each caught by a named test: see test_mutations."""

import jax
import numpy as np
from test_mutations import Mutation, found, planted

FLOW = "dpppl.information_flow."
LATTICE = f"{FLOW}lattice:"
WALK, CONTROL, FOLLOWED = f"{FLOW}walk:Walk.", f"{FLOW}walk:", f"{FLOW}rules:followed"
KEYS, RULES, PROOF = f"{FLOW}lattice:", f"{FLOW}rules:", f"{FLOW}proof:"
DOOR, SUM = "dpppl.access.mechanism:Mechanism.access", "dpppl.access.exact_sum:sum_of_rows"


def caught(bug, where, old, new, table, name):
    """By one entry of a table of programs that are refused."""
    module, attribute, test, has_kind = TABLES[table]
    keys = ((name, 0), (name, 1)) if has_kind else ((name,),)
    return Mutation(bug, where, old, new, f"{module}:{test}", tuple(found(f"{module}:{attribute}", *k) for k in keys))


TABLES = {
    "hole": ("test_information_flow_holes", "HOLES", "test_a_hole_is_closed", True),
    "leak": ("test_information_flow", "LEAKS", "test_a_leak_is_refused", True),
    "reused": ("test_information_flow", "REUSED", "test_a_key_used_twice_is_refused", False),
    "row": ("test_information_flow", "REFUSED_ROW_PROGRAMS", "test_a_row_program_only_computes", True),
    "exchange": ("test_information_flow", "EXCHANGES", "test_devices_exchange_no_rows_inside_the_door", False),
    "effect": ("test_information_flow", "EFFECTS", "test_an_effect_is_refused", False),
    "entering": (
        "test_information_flow",
        "COMPUTED",
        "test_what_was_computed_from_rows_does_not_enter_the_door",
        False,
    ),
    "form": ("test_information_flow_language", "FORMS", "test_what_is_not_followed_is_refused_with_the_cure", False),
    "branch": ("test_information_flow_language", "BRANCHES", "test_branches_are_given_no_keys", False),
    "survivor": ("test_information_flow_language", "SURVIVORS", "test_once_a_rule_that_no_test_held", False),
    "number": ("test_information_flow_language", "NUMBERS", "test_as_many_numbers_as_rows", False),
}

MUTATIONS = [
    # The lattice
    caught("rows or not is not", f"{LATTICE}join", "first.data if first.data is second.data else Data.DERIVED", "first.data",
           "leak", "a carry in later turns"),
    caught("one key or another is the first", f"{LATTICE}join", "first.key if first.key == second.key else LOST", "first.key",
           "survivor", "a key that changes"),
    caught("one number or another is the first", f"{WALK}follow", "and a.terms == b.terms", "",
           "form", "the step of the turn before"),
    caught("a part of rows is rows", f"{LATTICE}Value.derived", "self._replace(data=Data.DERIVED)", "self",
           "entering", "row by row"),
    caught("any secret key is public", f"{LATTICE}Value.lost", "self.key and LOST", "None", "reused", "one key or another, lost"),
    # The table
    caught("every second is every one", FOLLOWED, "- {1}", "- {1, 2}", "survivor", "every second child"),
    caught("the start of a slice", FOLLOWED, "number_of(axis(k), n)", "number_of(axis(k))",
           "survivor", "the start of a slice"),
    caught("the place of one element", FOLLOWED, "Integer(n) if out.shape[k] == 1", "Integer(0) if out.shape[k] == 1",
           "survivor", "one element in two ways"),
    caught("casts keep all bits", FOLLOWED, "first.number if is_followed(out) else None", "first.number",
           "hole", "a counter that is cast"),
    caught("squares of numbers are rows of them", FOLLOWED, "and len(out.shape) == 1", "",
           "survivor", "numbers of a square"),
    caught("numbers of all bits", FOLLOWED, "is_followed(out) and", "", "hole", "small numbers"),
    caught("folds are forgotten", FOLLOWED, "or number is None", "or False", "form", "a child of any number"),
    caught("one key by each number, or each by its own", FOLLOWED,
           "or (of_key and of_number and of_key != of_number)", "", "hole", "keys that are broadcast"),
    caught("a split of no shape", FOLLOWED, "len(shape) != 1: return lost", "len(shape) != 1: return [(None, first.key)]",
           "survivor", "no children"),
    caught("splits of all sizes are alike", FOLLOWED, '("split", *shape)', '("split",)', "hole", "two splits"),
    caught("bits that a type has not", f"{RULES}is_followed", "jnp.iinfo(dtype).bits >= 32", "True",
           "hole", "integers of four bits"),
    # Keys
    Mutation("all bits of a step are folded in", f"{KEYS}_differ", "-(-lowest // FOLDED) * FOLDED > highest", "lowest > 0",
             "test_information_flow_holes:test_a_count_wraps_after_32_bits"),
    caught("draws are not compared with accesses", f"{KEYS}conflicts", "first.streams or second.streams",
           "first.streams and second.streams", "reused", "an access and a draw"),
    caught("an access is not compared with itself", f"{KEYS}conflicts", "uses[: number + 1]", "uses[:number]",
           "reused", "a loop"),
    caught("any key is another key", f"{KEYS}_apart", "if LOST in (first.key, second.key): return False",
           "if LOST in (first.key, second.key): return True", "hole", "a draw from a key that was computed"),
    caught("any two accesses are one", f"{KEYS}_apart", "first is second", "True", "reused", "two accesses"),
    caught("one loop is enough", f"{KEYS}_differ", "agreed == shared", "bool(agreed)", "hole", "the inner loop forgotten"),
    caught("folds are splits", f"{KEYS}_differ", "one.how != two.how", "False", "hole", "related children"),
    caught("the last turn forgotten", f"{KEYS}_largest", "variable.length - 1", "variable.length - 2",
           "reused", "steps that overlap"),
    Mutation("unknown numbers are small", f"{KEYS}_largest", "math.inf if variable.length is None",
             "9 if variable.length is None", "test_information_flow_language:test_integer_arguments_may_be_equal"),
    Mutation("unknown numbers stand still", f"{KEYS}_agrees",
             "all(_agrees(inner, agreed) for index in variable.indices for inner in index.terms)", "True",
             "test_information_flow_language:test_integer_arguments_may_be_equal"),
    Mutation("unknown numbers are one", f"{KEYS}_differ", "if v in two.child.terms and", "if",
             "test_information_flow_language:test_integer_arguments_may_be_equal"),
    caught("neighbouring turns are one", f"{KEYS}_differ", "and one.child.offset == two.child.offset", "",
           "hole", "shifted keys"),
    caught("turns of all numbers agree", f"{KEYS}_differ", "left == right and", "",
           "survivor", "a turn that another counter meets"),
    Mutation("long loops do not wrap", f"{KEYS}_differ", "and _largest(left[0]) < FOLDED", "",
             "test_information_flow_holes:test_a_count_wraps_after_32_bits"),
    # Branches, loops, devices
    caught("branches only compute", f"{WALK}equation", "self.only_computes(equation, program)", "pass", "branch", "of equal keys"),
    caught("conditions only compute", f"{WALK}while_loop", 'self.only_computes(equation, parameters["cond_jaxpr"])', "pass",
           "hole", "a callback in a condition"),
    caught("a body runs anyway", f"{WALK}while_loop", 'self.only_computes(equation, parameters["body_jaxpr"])', "pass",
           "effect", "in a loop"),
    caught("secret conditions end nothing", f"{WALK}while_loop", "if predicate.is_secret", "if False",
           "leak", "the end of a while loop"),
    caught("counters stop at their limit", f"{WALK}follow", "moves[counting] == 1", "moves[counting] != 0",
           "hole", "a counter that jumps over the end"),
    caught("limits stand still", f"{CONTROL}_counter", "if out is given", "", "hole", "a limit that moves"),
    caught("any condition is below", f"{CONTROL}_counter", '!= [named("lt")]', 'not in ([named("lt")], [named("gt")])',
           "hole", "a counter above its end"),
    caught("loops that may not end are one turn", f"{WALK}while_loop", "None if counting is None", "1 if counting is None",
           "survivor", "one step in a loop without an end"),
    caught("one turn more", f"{WALK}scan", "{iteration: Integer(length)}", "{iteration: Integer(length + 1)}",
           "survivor", "a count after a loop"),
    caught("reversed scans", f"{WALK}scan", 'value.lost() if equation.params["reverse"] else', "", "form", "steps backwards"),
    caught("stacked outputs", f"{WALK}scan", "value.lost() for value in stacked", "value for value in stacked",
           "leak", "the outputs of a scan, as they are"),
    caught("a turn is no turn", f"{WALK}follow", "self.within(iteration)", "self.within()", "reused", "a loop"),
    caught("devices are one", f"{WALK}devices", "self.within(*numbers.values())", "self.within()", "reused", "every device"),
    Mutation("parts of rows are rows", f"{WALK}devices", "return value.lost()", "return value",
             "test_information_flow:test_rows_are_not_dealt_out_to_devices"),
    # The walk
    caught("what is computed is public", f"{WALK}equation",
           "Data.PUBLIC if all(value.data is Data.PUBLIC for value in inputs) else Data.DERIVED", "Data.PUBLIC",
           "leak", "a sum"),
    caught("keys that are computed with are public", f"{WALK}equation",
           "LOST if any(value.key is not None for value in inputs) else None", "inputs and inputs[0].key", "hole",
           "a draw from a key that was computed with"),
    caught("operations only compute", f"{WALK}only_computes", "if is_access else problem_with(inner)", "", "effect", "in a reduction"),
    caught("branches draw", f"{WALK}only_computes", "or kind_of(inner.primitive) is Kind.DRAW", "", "branch", "of draws"),
    caught("computed rows enter", f"{WALK}through_door", "value.data is Data.DERIVED", "False", "entering", "centred rows"),
    caught("anything enters beside rows", f"{WALK}through_door", "value.data is not Data.PUBLIC", "False",
           "entering", "latents from rows"),
    caught("keys may enter", f"{WALK}through_door", "value.key is not None and k != roles.key", "False",
           "hole", "the access' key in the likelihood"),
    caught("chains are one", f"{WALK}through_door", "self.variables.union(chains)", "self.variables",
           "survivor", "equal numbers for chains"),
    Mutation("public noise", f"{WALK}through_door", "if secret.key is None", "if False",
             "test_information_flow:test_a_door_without_a_secret_key_is_refused"),
    Mutation("any generator", "dpppl.information_flow.rules:other_generators", "v.aval.dtype not in _generators()", "False",
             "test_information_flow_holes:test_only_named_generators"),
    caught("draws are not noted", f"{WALK}equation", "if inputs[0].key is not None", "if False",
           "reused", "an access and a draw"),
    caught("draws of an array are one", f"{WALK}use", "number_of(counter(length))", "Integer(0)",
           "hole", "draws of an array of keys"),
    caught("callbacks are given rows", f"{WALK}check_effects", "if value.is_secret", "if False", "effect", "print"),
    Mutation("callbacks return what is public", f"{WALK}check_effects", "elif equation.outvars:", "elif False:",
             "test_information_flow_holes:test_what_a_callback_returns_is_refused_whatever_is_public", (lambda: 1.0,)),
    Mutation("captured arrays are public", f"{WALK}known", "if problem is not None", "if False",
             "test_information_flow:test_captured_arrays_are_refused_unless_they_are_declared"),
    # Numbers that stand in a program
    caught("equal numbers count once", "dpppl.jaxprs:count_numbers", "len(own), sum", "0, sum",
           "number", "added"),
    caught("places do not count", "dpppl.jaxprs:_numbers", "for places in often for place in places", "for places in () for place in places", "number", "as places"),
    Mutation("numbers of a likelihood do not count", f"{WALK}programs", "self.doors[equation.primitive](equation.params).program",
             "", "test_information_flow_language:test_numbers_in_a_likelihood_are_counted"),
    Mutation("long arrays are public", f"{PROOF}_problem_with", "if long else None", "if False else None",
             "test_information_flow_language:test_arrays_as_long_as_the_rows_are_not_public"),
    # The program of a row
    caught("a row's program may print", f"{RULES}problem_with", "kind is Kind.CALLBACK or effects",
           "False", "row", "a print in a derivative"),
    caught("devices may talk", f"{RULES}problem_with", "kind is Kind.DEVICES or names_axis", "False", "exchange", "psum"),
    caught("any rule of batching", f"{RULES}problem_with", "kind is Kind.UNKNOWN", "False", "row", "a rule of batching"),
    caught("a row's program is not checked", "dpppl.access.door:Access.__post_init__",
           "information_flow.check_row_program(self.program)", "pass", "row", "a callback without rows"),
    # The proof
    Mutation("an empty name for secrets", f"{PROOF}verify_jaxpr", "not name for name in secret_outputs", "False for _ in ()",
             "test_information_flow_holes:test_an_empty_name_keeps_no_output_secret"),
    caught("rows leave", f"{PROOF}verify_jaxpr", "value.data is Data.ROWS", "False", "leak", "rows as they are"),
    caught("what is computed leaves", f"{PROOF}verify_jaxpr", "value.data is Data.DERIVED", "False", "leak", "a sum"),
    # The door
    caught("one key for all chains", "dpppl.access.door:_batch", "if axes[k] is None", "if False", "reused", "one key for all chains"),
    Mutation("batched rows", "dpppl.access.door:_batch", "any(axes[k] is not None for k in access.roles.rows)", "False",
             "test_information_flow:test_batched_rows_are_refused"),
    Mutation("one noise for two sites", "dpppl.randomness.normal:added",
             "jnp.split(draws, np.cumsum([total.size for total in totals])[:-1])",
             "[draws[:total.size] for total in totals]",
             "test_mechanism:test_two_sites_have_independent_noise"),
    Mutation("noise of the subsampling", DOOR, 'keys.stream(key, "noise"), step', 'keys.stream(key, "subsampling"), step',
             "test_mechanism:test_every_draw_of_every_step_has_a_key_of_its_own",
             (lambda: __import__("dpppl").Poisson(0.5), "monkeypatch")),
    Mutation("a step of 16 bits", DOOR, 'keys.stream(key, "noise"), step', 'keys.stream(key, "noise"), step % 2**16',
             "test_mechanism:test_every_draw_of_every_step_has_a_key_of_its_own",
             (lambda: __import__("dpppl").Poisson(0.5), "monkeypatch")),
    Mutation("noise subtracted again", "dpppl.randomness.normal:added", "total + scale * piece", "total + 0 * scale * piece",
             "test_mechanism:test_an_empty_batch_still_adds_noise"),
    Mutation("the same row many times", DOOR, "total = sum_of_rows(of_row, drawn, clip",
             "total = sum_of_rows(of_row, drawn._replace(rows=jax.tree.map(lambda x: x[jnp.zeros(len(x), int)], drawn.rows)), clip",
             "test_mechanism:test_it_is_the_clipped_sum_plus_noise"),
    Mutation("a public key for the noise", DOOR, 'jax.random.fold_in(keys.stream(key, "noise"), step)',
             "jax.random.fold_in(jax.random.key(7), step)",
             "test_mechanism:test_the_same_key_gives_the_same_output_and_another_key_another"),
    Mutation("gradients of neighbours", SUM, "clipped = clip(statistics, mask)",
             "clipped = clip(jax.tree.map(lambda g: g + jnp.roll(g, 1, 0), statistics), mask)",
             "test_gradients:test_every_strategy_and_uneven_chunks_agree_with_numpy", (513, "auto")),
    Mutation("gradients centred", SUM, "clipped = clip(statistics, mask)",
             "clipped = clip(jax.tree.map(lambda g: g - jnp.mean(g, 0), statistics), mask)",
             "test_gradients:test_every_strategy_and_uneven_chunks_agree_with_numpy", (512, "auto")),
    Mutation("1,024 rows in 32 bits", SUM, "chunk <= rows_ and", "chunk <= 2 * rows_ and",
             "test_gradients:test_aligned_rows_do_not_overflow", (1024, "vmap")),
    Mutation("one site's norm for all", "dpppl.access.clipping:scaled",
             "sum(_squared_norm(leaf) for leaf in jax.tree.leaves(units))", "_squared_norm(jax.tree.leaves(units)[0])",
             "test_gradients:test_every_strategy_and_uneven_chunks_agree_with_numpy", (5, "microbatch")),
    Mutation("counts of rows that were not drawn", "dpppl.access.clipping:with_count", "counts if mask is None else", "counts if True else",
             "test_mechanism:test_rows_that_were_not_drawn_are_not_counted"),
    Mutation("a ChaCha20 fold of 16 bits", "dpppl.randomness.chacha:_folded_words", "_words(key, data,", "_words(key, data & np.uint32(0xFFFF),",
             "test_mechanism:test_all_32_bits_of_a_step_make_another_key", (found("dpppl.randomness.chacha:chacha20"),)),
    # Programs that are taken for equal
    *(Mutation(f"programs that differ in {what} are one", f"{FLOW}executables:_form", old, new,
               "test_executables:test_other_programs_are_lowered_by_themselves", entry)
      for what, old, new, entry in [
          ("a setting", ", *settings))", "))", (lambda: lambda x: x**2, lambda: lambda x: x**3)),
          ("a constant", 'part(tuple(getattr(value, "consts", ())))', "()",
           (lambda: lambda x: x + np.arange(2.0), lambda: lambda x: x + np.arange(2.0)[::-1])),
          ("an operand", "of(e.invars)", "None", (lambda: lambda x: x - 1.0, lambda: lambda x: 1.0 - x)),
      ]),
    Mutation("accesses that differ in their program are one", f"{FLOW}executables:_form", "for field in fields(value))",
             "for field in fields(value)[:1])", "test_executables:test_another_model_shape_or_setting_is_another_program",
             (lambda: {"power": 4}, lambda: _no_programs())),
]  # fmt: skip


def _no_programs():
    from dpppl.information_flow import executables

    executables.clear()
    return executables._kept


test_a_bug_of_the_proof_is_caught, test_every_bug_is_in_the_code_as_it_is = planted(MUTATIONS)


def test_the_table_is_long():
    assert len(MUTATIONS) >= 60 and len({mutation.bug for mutation in MUTATIONS}) == len(MUTATIONS)
    jax.clear_caches()
