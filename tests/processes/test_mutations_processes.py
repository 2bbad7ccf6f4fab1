"""Deliberate bugs of runs of several processes, each caught by a named test: see test_mutations."""

from test_mutations import Mutation, planted

SAID, TOGETHER, SUM = "dpppl.processes.messages:", "dpppl.runs.processes:ProcessGroup.", "dpppl.runs.placing:"
ALIKE = "test_checksum:test_it_does_not_depend_on_how_rows_are_dealt_out"

MUTATIONS = [
    Mutation("a charge that is not awaited", f"{SAID}enter", 'from_first_process = _heard(number, "all", what)', "from_first_process = None",
             "test_messages:test_nobody_acts_before_process_0_has"),
    Mutation("a charge before all have come", f"{SAID}_led_after_all", "_heard(number, process, what)", "pass",
             "test_messages:test_process_0_acts_after_all_have_come"),
    Mutation("a refusal that stays in process 0", f"{SAID}_led", '_tell(number, "all", what, None, error)', '_tell(number, "all", what, None)',
             "test_messages:test_what_process_0_refuses_all_raise"),
    Mutation("a failure that nobody is told", f"{SAID}watched", '_tell(number, index(), "", None, error)', "pass",
             "test_messages:test_a_process_that_fails_tells_the_others"),
    Mutation("keys that differ", f"{TOGETHER}agree", '"key": digest(key)', '"key": ""', "test_messages:test_what_differs_is_named", ("key",)),
    Mutation("public arrays that differ", f"{TOGETHER}agree", "other.get(name) != first[name]", 'name == "key" and other != first',
             "test_messages:test_what_differs_is_named", ("public arrays",)),
    Mutation("a checksum of padding", f"{SUM}_total", "numbers <= num_rows", "numbers <= array.shape[0]", ALIKE),
    Mutation("a checksum by the number of devices", "dpppl.runs.placing:contents", "number_of(rows)))",
             "number_of(rows)), getattr(devices_of(placement_of(rows)), 'devices', 1))", ALIKE),
    Mutation("noise in every process", "dpppl.access.drawn:from_first",
             "lax.cond(placement.index() == 0, function, nothing)", "function()",
             "test_sharded:test_the_bits_do_not_depend_on_the_number_of_devices", ("full", False)),
]  # fmt: skip


test_a_mutation_is_caught, test_every_line_is_in_the_code_as_it_is = planted(MUTATIONS)
