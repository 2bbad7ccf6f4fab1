"""What a resumed run of NoiseAware rests on, one bug at a time: a named test fails with it."""

import functools

import test_checkpoint
from test_mutations import Mutation, planted

ASKED, RUN = "dpppl.row_statistics.releases:Accesses.asker", "dpppl.noise_aware.runner:NoiseAware.run"
GOES_ON = "test_checkpoint:test_a_killed_run_goes_on_with_the_same_bits_at_the_price_of_one"
REFUSED = "test_checkpoint:test_a_checkpoint_of_another_run_is_refused_before_anything_is_charged"
HELD = "test_checkpoint:test_a_checkpoint_holds_all_that_decides_what_an_access_costs_and_means"
FIXTURES = ("tmp_path", "monkeypatch", "claimed")
SETTINGS, ARGUMENTS = (lambda name=name: test_checkpoint.OTHERS[name] for name in ("settings", "arguments"))
bug = functools.partial(Mutation, arguments=FIXTURES, cached=False)

MUTATIONS = [
    bug("accesses are charged as if each were the first", ASKED, "self.before(done + 1)", "self.before(1)", GOES_ON),
    bug("what is replayed is asked again", ASKED, "if place < len(kept):", "if False:", GOES_ON),
    bug("a resumed run counts beside itself", RUN, "run_charge(self, account,", "run_charge(self, self.budget.account(),", GOES_ON),
    bug("the file stays", RUN, 'opened.processes.enter("end", run.forget)', "pass", GOES_ON),
    bug("epsilon may be another", RUN, "settings = charge.noise_multipliers, repr", "settings = repr", HELD, arguments=(SETTINGS, *FIXTURES)),
    bug("the rule of widths may be another", RUN, "repr((self.bounds, self.width))", "repr(self.bounds)", HELD, arguments=(SETTINGS, *FIXTURES)),
    bug("public values may be others", RUN, "rows), public, prior", "rows), prior", HELD, arguments=(ARGUMENTS, *FIXTURES)),
    bug("rows may be others", RUN, "placing.contents(rows)", "0", REFUSED),
    bug("the prior may be another", RUN, "public, prior, settings", "public, settings", REFUSED),
]  # fmt: skip


test_a_bug_is_caught, test_every_bug_is_in_the_code_as_it_is = planted(MUTATIONS)
