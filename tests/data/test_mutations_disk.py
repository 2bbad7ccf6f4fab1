"""Deliberate bugs in what reads rows from disk: each is caught by a named test."""

import functools

from test_disk import DENSE, FULL, SPARSE
from test_mutations import Mutation, planted

SUMS, DRAWN, READING = "dpppl.access.exact_sum:", "dpppl.access.drawn:", "dpppl.data.disk:"
ONCE = "test_disk:test_each_row_of_blocks_counts_once"
BITS = "test_disk:check_bits"


@functools.cache
def bits(subsampling):
    return lambda: subsampling, lambda: "microbatch", "tmp_path", "monkeypatch"


MUTATIONS = [
    Mutation("rows of the last block read twice", f"{SUMS}over_blocks", "first=number * size - start", "first=jnp.int64(0)", ONCE),
    Mutation("a block is skipped", f"{SUMS}over_blocks", "used: Scalar = -(-length // size)", "used: Scalar = length // size", ONCE),
    Mutation("the first block is skipped", f"{SUMS}over_blocks", "lax.fori_loop(0, used,", "lax.fori_loop(1, used,", ONCE),
    Mutation("the last block is read beyond the end", f"{SUMS}over_blocks", "jnp.minimum(number * size, length - size)", "(number * size)", ONCE),
    Mutation("blocks of drawn rows left out too soon", f"{SUMS}over_blocks", "jnp.arange(length) + size", "jnp.arange(length)", ONCE),
    Mutation("blocks of other chunks", f"{DRAWN}Blocks.size", "max(2, most // chunk) * chunk", "most", ONCE),
    Mutation("chunks as long as a block", f"{SUMS}over_blocks", "rows, mask, chunk, until_last", "rows, mask, size, until_last", ONCE),
    Mutation("sums of blocks forgotten", f"{SUMS}over_blocks", "total=total", "total=None", ONCE),
    Mutation("places that were not drawn count", f"{DRAWN}_on_disk", "part(mask)", "None", BITS, bits(SPARSE)),
    Mutation("an index off by one", f"{DRAWN}_on_disk", "placement.drawn(part(index))", "placement.drawn(part(index) + 1)", BITS, bits(SPARSE)),
    Mutation("all rows draw as the first ones", f"{DRAWN}_on_disk", "num_rows, step, start, size)", "num_rows, step, 0, size)", BITS, bits(DENSE)),
    Mutation("rows with others' numbers", f"{DRAWN}_on_disk", "places = start + jnp.arange(size, dtype=jnp.int32)", "places = jnp.arange(size, dtype=jnp.int32)", BITS, bits(FULL)),
    Mutation("another block read ahead", f"{READING}TableReader.block", "self._submit(following, size)", "self._submit(start, size)", BITS, bits(FULL)),
    Mutation("rows drawn in another order", f"{READING}TableReader.drawn", "table.take(flat)", "table.take(flat[::-1])", BITS, bits(SPARSE)),
    Mutation("a program is kept for other rows", "dpppl.information_flow.executables:Lowered.__init__", "self._kept = kept and", "self._kept =",
             "test_disk:test_a_program_reads_the_rows_that_it_was_made_for", ("tmp_path",)),
]  # fmt: skip


test_a_bug_in_reading_is_caught, test_every_line_is_in_the_code_as_it_is = planted(MUTATIONS)
