"""Deliberate bugs of the proof, the door and what they stand on, each caught by a named test: see test_mutations."""

import importlib

import jax
import pytest
from test_mutations import Mutation, check_that_it_is_caught, claimed, quoted

__all__ = ["claimed"]  # a fixture

FLOW = "dpppl.information_flow."
LATTICE = f"{FLOW}lattice:"
WALK, CONTROL = f"{FLOW}walk:Walk.", f"{FLOW}control:"
KEYS, NUMBERS, PROOF = f"{FLOW}keys:", f"{FLOW}numbers:", f"{FLOW}proof:"
DOOR, SUM = "dpppl.mechanism:Mechanism.access", "dpppl.gradients:sum_of_rows"
NOISY = "(part + scale * piece.reshape(leaf.shape)) * norm"


def caught(bug, where, old, new, table, name):
    """By one entry of a table of programs that are refused."""
    module, attribute, test, has_kind = TABLES[table]

    def entry():
        return getattr(importlib.import_module(module), attribute)[name]

    arguments = (lambda: entry()[0], lambda: entry()[1]) if has_kind else (entry,)
    return Mutation(bug, where, old, new, f"{module}:{test}", arguments)


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
    "chains": ("test_information_flow", "SHARING_CHAINS", "test_chains_that_share_noise_are_refused", False),
}

MUTATIONS = [
    # The lattice
    caught("rows or not is not", f"{LATTICE}join", "first.data if first.data is second.data else Data.DERIVED", "first.data",
           "leak", "rows, or zeros"),
    caught("a secret key or a public one is secret", f"{LATTICE}join_keys", "known._replace(exact=False)", "known",
           "chains", "a secret key or a public one"),
    caught("one key or another is their parent", f"{LATTICE}join_keys", "for step, _ in common), False)",
           "for step, _ in common), True)", "hole", "a key from a branch"),
    caught("a path is cut and still exact", f"{LATTICE}Key.renamed", "Key(self.root, tuple(path), False)",
           "Key(self.root, tuple(path), True)", "hole", "a key that a device made"),
    # Integers
    caught("bits that a type has not", f"{NUMBERS}bits_of", "int(jnp.iinfo(dtype).bits)", "int(np.dtype(dtype).itemsize * 8)",
           "hole", "integers of four bits"),
    caught("the last value forgotten", f"{NUMBERS}exact", "max(0, length - 1)", "max(0, length - 2)",
           "hole", "clamped at the end"),
    caught("numbers never wrap", f"{NUMBERS}exact", "least <= low and high <= most", "True",
           "hole", "a counter that is cast and cast back"),
    caught("indices never clamp", f"{NUMBERS}_inside", "range_[1] <= most", "True", "hole", "indices that clamp"),
    caught("indices are never negative", f"{NUMBERS}_inside", "0 <= range_[0]", "True", "hole", "negative indices"),
    caught("all indices are in range", f"{NUMBERS}_inside", "range_ is not None and 0 <= range_[0] and range_[1] <= most",
           "True", "hole", "an unknown index"),
    caught("axes of other lengths are one", f"{NUMBERS}_reshape", "if [old[k] for k in long] != [new[k] for k in new_long]",
           "if False", "hole", "keys in another shape"),
    caught("bits come back", f"{NUMBERS}_converted", "if exact(number, old, lengths) is not None else None", "",
           "hole", "a counter that is cast and cast back"),
    caught("casts keep all bits", f"{NUMBERS}_converted", "number._replace(bits=min(number.bits, new))", "number",
           "hole", "a counter that is cast"),
    caught("products of counters", f"{NUMBERS}_product", "None if second.terms else", "", "hole", "a product of counters"),
    caught("sometimes is never", f"{NUMBERS}_less", "(second[0] <= first[1] and first[0] < second[1])", "False",
           "hole", "numbers chosen"),
    caught("above is below", f"{NUMBERS}below", 'equation.primitive is not named("lt")',
           'equation.primitive not in (named("lt"), named("gt"))', "hole", "a counter above its end"),
    # Keys
    Mutation("all bits of a step are folded in", f"{KEYS}Use.paths", "bits=min(FOLD_BITS, self.step.bits)",
             "bits=self.step.bits", "test_information_flow_holes:test_numbers_of_64_bits_wrap_when_they_are_folded_in"),
    caught("draws are not compared with accesses", f"{KEYS}conflicts", "first.is_access or second.is_access",
           "first.is_access and second.is_access", "reused", "an access and a draw"),
    caught("an access is not compared with itself", f"{KEYS}conflicts", "uses[: number + 1]", "uses[:number]",
           "reused", "a loop"),
    caught("any key is another key", f"{KEYS}_apart", "first.key.root, second.key.root): return False",
           "first.key.root, second.key.root): return True", "hole", "a draw from a key that was computed"),
    caught("any two accesses are one", f"{KEYS}_apart", "first is second", "True", "reused", "two accesses"),
    caught("one loop is enough", f"{KEYS}_Equations.exclude", "all(map(self._together, self.shared))",
           "any(map(self._together, self.shared))", "hole", "the inner loop forgotten"),
    caught("folds are splits", f"{KEYS}_Equations.exclude", "one.how == two.how for", "True for", "hole", "related children"),
    caught("splits of all sizes are alike", f"{KEYS}derived", '("split", shape, k)', '("split", k)', "hole", "two splits"),
    caught("the last turn forgotten", f"{KEYS}_Equations._bound", "max(0, length - 1)", "max(0, length - 2)",
           "reused", "steps that overlap"),
    caught("unknown numbers are small", f"{KEYS}_Equations._bound", "math.inf if length is None", "9 if length is None",
           "hole", "unknown numbers far apart"),
    caught("unknown numbers stand still", f"{KEYS}_Equations._together",
           "all(self._together(inner) for number in variable[2] for inner, _ in number.terms)", "True",
           "hole", "unknown numbers in shifted turns"),
    caught("numbers of all bits", f"{KEYS}_Equations._tighten", "2 ** min(one.bits, two.bits)", "2**64",
           "hole", "a step that wraps"),
    caught("one counter in two loops", f"{KEYS}_Equations._tighten", "variable in self.shared and a == b",
           "variable in self.shared", "reused", "a counter and its double"),
    caught("different offsets, different numbers", f"{KEYS}_Equations._solve",
           "if wanted % math.gcd(modulus, *terms.values()): return False", "if wanted: return False",
           "reused", "two steps a turn"),
    caught("bounds too tight", f"{KEYS}_Equations._solve", "(-(-least // c), most // c)", "(least // c + 1, most // c)",
           "hole", "epochs that overlap"),
    caught("keys that are repeated differ", f"{KEYS}_single", "if length == 1", "if False", "hole", "keys that are broadcast"),
    # Branches, loops, devices
    caught("branches run anyway", f"{CONTROL}_deciding", "if predicate.is_secret", "if False", "effect", "in a branch"),
    caught("conditions do not matter", f"{CONTROL}_under", "if not predicate.is_secret", "if True",
           "leak", "a branch whose ways end alike"),
    caught("a condition runs anyway", f"{CONTROL}while_loop",
           'place=walk.at("condition"), control=_deciding(walk, predicate)', 'place=walk.at("condition")',
           "hole", "a callback in a condition"),
    caught("a body runs anyway", f"{CONTROL}while_loop", 'place=walk.at("body"), control=_deciding(walk, predicate)',
           'place=walk.at("body")', "effect", "in a loop"),
    caught("conditions run as often as bodies", f"{CONTROL}while_loop", "if len(walk.uses) > before", "if False",
           "hole", "a draw in a condition"),
    caught("counters stop at their limit", f"{CONTROL}_most_turns",
           "None in (start.renamed({turn: None}), limit.renamed({turn: None}))", "limit.renamed({turn: None}) is None",
           "hole", "a counter that jumps over the end"),
    caught("limits stand still", f"{CONTROL}_most_turns",
           "None in (start.renamed({turn: None}), limit.renamed({turn: None}))", "start.renamed({turn: None}) is None",
           "hole", "a limit that moves"),
    caught("every loop ends", f"{CONTROL}_most_turns", "if predicate.below is None: return None",
           "if predicate.below is None: return 9", "hole", "a loop without an end"),
    caught("one turn more", f"{CONTROL}scan", "{turn: Number(length)}", "{turn: Number(length + 1)}",
           "hole", "a count that goes back"),
    caught("after a loop as in it", f"{CONTROL}while_loop", "value.renamed({turn: None})", "value",
           "hole", "a count after a loop"),
    caught("numbers that a turn makes anew", f"{CONTROL}_counted", "before if stride.terms else", "",
           "hole", "numbers that change places"),
    caught("a slice of rows is rows", f"{CONTROL}scan", '{("axis", 0): place}).derived()', '{("axis", 0): place})',
           "entering", "row by row"),
    caught("devices are one", f"{CONTROL}devices", "walk.variables | set(found.values())", "walk.variables",
           "reused", "every device"),
    Mutation("parts of rows are rows", f"{CONTROL}_part", "if set(dealt) <= {0} else value.renamed(names).derived()", "",
             "test_information_flow:test_rows_that_devices_are_dealt_differently_do_not_meet"),
    Mutation("rows are dealt alike", f"{CONTROL}devices", "> 1:", "> 9:",
             "test_information_flow:test_rows_that_devices_are_dealt_differently_do_not_meet"),
    # The walk
    caught("what is computed is public", f"{WALK}plain",
           "Data.PUBLIC if all(value.data is Data.PUBLIC for value in inputs) else Data.DERIVED", "Data.PUBLIC",
           "leak", "a sum"),
    caught("one choice for all", f"{WALK}plain", "not number.terms and", "", "hole", "numbers chosen in turn"),
    caught("words of keys are keys", f"{WALK}plain", "LOST if raw else part.key", "part.key", "reused", "raw children"),
    caught("operations only compute", f"{WALK}check_within", "or effects_of(inner)", "and False",
           "effect", "in a reduction"),
    caught("computed rows enter", f"{WALK}through_door", "value.data is Data.DERIVED", "False", "entering", "centred rows"),
    caught("anything enters beside rows", f"{WALK}through_door", "value.data is not Data.PUBLIC", "False",
           "entering", "latents from rows"),
    caught("keys may enter", f"{WALK}through_door", "value.key is not None and k != roles.key", "False",
           "hole", "the access' key in the likelihood"),
    caught("chains are one", f"{WALK}through_door", "self.variables | set(chains)", "self.variables",
           "chains", "one key for all chains"),
    caught("keys need not be followed", f"{WALK}access", "not key.exact", "False",
           "chains", "a secret key or a public one"),
    Mutation("public noise", f"{WALK}access", "if key is None", "if False",
             "test_information_flow:test_a_door_without_a_secret_key_is_refused"),
    Mutation("any generator", f"{WALK}access", "equation.invars[roles.key].aval.dtype not in roles.generators", "False",
             "test_information_flow_holes:test_only_named_generators"),
    caught("draws are not noted", f"{WALK}draw", "if inputs[0].key is not None", "if False",
           "reused", "an access and a draw"),
    caught("draws of an array are one", f"{WALK}use", "multiple(element)", "Number(0)", "hole", "draws of an array of keys"),
    caught("callbacks are given rows", f"{WALK}check_effects", "if value.is_secret", "if False", "effect", "print"),
    Mutation("callbacks return what is public", f"{WALK}check_effects", "elif equation.outvars:", "elif False:",
             "test_information_flow_holes:test_what_a_callback_returns_is_refused_whatever_is_public", (lambda: 1.0,)),
    Mutation("strangers run anyway", f"{WALK}unknown", "or self.control", "or None",
             "test_information_flow:test_a_stranger_in_a_branch_is_refused"),
    Mutation("captured arrays are public", f"{WALK}constant", "if problem is not None", "if False",
             "test_information_flow:test_captured_arrays_are_refused_unless_they_are_declared"),
    # The program of a row
    caught("a row's program may print", f"{FLOW}rows:_problem_with", "kind is Kind.CALLBACK or effects_of(equation)",
           "False", "row", "a print in a derivative"),
    caught("devices may talk", f"{FLOW}rows:_problem_with", "if crosses_devices(equation)", "if False", "exchange", "psum"),
    caught("any rule of batching", f"{FLOW}rows:_problem_with", "kind is Kind.UNKNOWN", "False", "row", "a rule of batching"),
    caught("a row's program is not checked", "dpppl.door:Access.__post_init__",
           "information_flow.check_row_program(self.program, _key_types())", "pass", "row", "a callback without rows"),
    # The proof
    Mutation("an empty name for secrets", f"{PROOF}verify_jaxpr", "not name for name in secret_outputs", "False for _ in ()",
             "test_information_flow_holes:test_an_empty_name_keeps_no_output_secret"),
    caught("rows leave", f"{PROOF}verify_jaxpr", "value.data is Data.ROWS", "False", "leak", "rows as they are"),
    caught("what is computed leaves", f"{PROOF}verify_jaxpr", "value.data is Data.DERIVED", "False", "leak", "a sum"),
    # The door
    caught("one key for all chains", "dpppl.door:_batch", "if axes[k] is None", "if False", "chains", "one key for all chains"),
    Mutation("batched rows", "dpppl.door:_batch", "any(axes[k] is not None for k in access.roles.rows)", "False",
             "test_information_flow:test_batched_rows_are_refused"),
    Mutation("one noise for two sites", DOOR, "jnp.split(noise, np.cumsum(sizes)[:-1])", "[noise[:n] for n in sizes]",
             "test_mechanism:test_two_sites_have_independent_noise"),
    Mutation("noise of the subsampling", DOOR, 'random.stream(key, "noise"), step', 'random.stream(key, "subsampling"), step',
             "test_mechanism:test_every_draw_of_every_step_has_a_key_of_its_own",
             (lambda: __import__("dpppl").Poisson(0.5), "monkeypatch")),
    Mutation("a step of 16 bits", DOOR, 'random.stream(key, "noise"), step', 'random.stream(key, "noise"), step % 2**16',
             "test_mechanism:test_every_draw_of_every_step_has_a_key_of_its_own",
             (lambda: __import__("dpppl").Poisson(0.5), "monkeypatch")),
    Mutation("noise subtracted again", DOOR, NOISY, "(part + 0 * scale * piece.reshape(leaf.shape)) * norm",
             "test_mechanism:test_an_empty_batch_still_adds_noise"),
    Mutation("the same row many times", DOOR, "total = sum_of_rows(of_row, drawn,",
             "drawn = jax.tree.map(lambda x: x[jnp.zeros(len(x), int)], drawn); total = sum_of_rows(of_row, drawn,",
             "test_mechanism:test_it_is_the_clipped_sum_plus_noise"),
    Mutation("a public key for the noise", DOOR, 'jax.random.fold_in(random.stream(key, "noise"), step)',
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
    Mutation("one site's norm for all", "dpppl.clipping:_scaled",
             "sum(_squared_norm(leaf) for leaf in jax.tree.leaves(scaled))", "_squared_norm(jax.tree.leaves(scaled)[0])",
             "test_gradients:test_every_strategy_and_uneven_chunks_agree_with_numpy", (5, "microbatch")),
    Mutation("counts of rows that were not drawn", "dpppl.clipping:Adaptive.clip", "counted if mask is None else", "counted if True else",
             "test_mechanism:test_rows_that_were_not_drawn_are_not_counted"),
    Mutation("a ChaCha20 fold of 16 bits", "dpppl.chacha:_fold_in", "_words(key, data,", "_words(key, data & np.uint32(0xFFFF),",
             "test_mechanism:test_all_32_bits_of_a_step_make_another_key", (lambda: _chacha(),)),
]  # fmt: skip


def _chacha():
    from dpppl.chacha import chacha20

    return chacha20


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[m.bug for m in MUTATIONS])
def test_a_bug_of_the_proof_is_caught(mutation, request, claimed):
    check_that_it_is_caught(mutation, request, claimed)


def test_every_bug_is_in_the_code_as_it_is():
    assert all(quoted(mutation) for mutation in MUTATIONS)


def test_the_table_is_long():
    assert len(MUTATIONS) >= 60 and len({mutation.bug for mutation in MUTATIONS}) == len(MUTATIONS)
    jax.clear_caches()
