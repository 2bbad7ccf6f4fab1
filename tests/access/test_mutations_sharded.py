"""Deliberate bugs of accesses on several devices, each caught by a named test: see test_mutations."""

from test_mutations import Mutation, planted

DRAWN, PLACED = "dpppl.access.drawn:", "dpppl.data.rows:Sharded."
BITS, ONCE = (
    "test_sharded:test_the_bits_do_not_depend_on_the_number_of_devices",
    "test_sharded:test_each_row_that_is_drawn_counts_once",
)

MUTATIONS = [
    Mutation("noise on every device", f"{DRAWN}from_first", "lax.cond(placement.index() == 0, function, nothing)",
             "function()", BITS, ("full", False)),
    Mutation("the sum of one device's rows leaves", "dpppl.access.exact_sum:over_drawn", "placement.total(total)", "total", BITS, ("full", False)),
    Mutation("devices are not added up", f"{PLACED}total", "jax.lax.psum(values, self.axes)", "values", BITS, ("full", False)),
    Mutation("padding counts", f"{DRAWN}rows_of_step", "if length * devices.devices > num_rows:", "if False:", BITS, ("full", False)),
    Mutation("padding counts beside a mask", f"{DRAWN}rows_of_step", "mask & (places < num_rows)", "mask | (places >= num_rows)", BITS, ("dense", False)),
    Mutation("a row that two devices count", f"{DRAWN}_own", "(index - first < length)", "(index - first <= length)", ONCE, ("partition",)),
    Mutation("a row that no device counts", f"{DRAWN}_own", "(index >= first)", "(index > first)", ONCE, ("partition",)),
    Mutation("rows that were not drawn", f"{DRAWN}_own", "own if mask is None else own & mask", "own", ONCE, ("sparse",)),
    Mutation("draws that differ by device", f"{DRAWN}rows_of_step", "subsampling.draw_part(key,",
             "subsampling.draw_part(jax.random.fold_in(key, placement.index()),", ONCE, ("sparse",)),
    Mutation("thresholds that differ by device", f"{DRAWN}rows_of_step", "subsampling.draw_part(key,",
             "subsampling.draw_part(jax.random.fold_in(key, placement.index()),", ONCE, ("dense",)),
    Mutation("chains that a device takes from another", f"{PLACED}on_devices", "me * (len(x) // over)", "0",
             "test_sharded:test_chains_on_an_axis_of_their_own_have_the_same_bits"),
    Mutation("draws of its own for each part", "dpppl.subsampling.poisson:draw_dense", "start + jnp.arange(count)", "jnp.arange(count)",
             "test_sharded:test_thresholds_of_many_rows_are_drawn_by_blocks"),
]  # fmt: skip


test_a_mutation_is_caught, test_every_line_is_in_the_code_as_it_is = planted(MUTATIONS)
