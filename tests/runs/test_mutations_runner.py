"""What runners share, one bug at a time: a named test fails with it."""

import functools

import test_private_runner
import test_readable
from test_mutations import Mutation, planted

RUNNER, KERNEL, READ = (f"dpppl.{module}:" for module in ("runs.private_runner", "mcmc.checks", "findings.finding"))
SAME = "test_private_runner:test_a_privacy_is_the_same_as_its_settings_by_themselves"
REFUSED = "test_private_runner:test_a_privacy_that_does_not_fit_is_refused"
APART = "test_private_runner:test_a_kernel_and_its_runner_do_not_contradict_each_other"
WARNED = "test_readable:test_results_that_are_refused_are_returned_with_a_warning"
MCMC, SVI = (lambda name=name: test_private_runner.WAYS[name] for name in ("MCMC", "SVI"))
ROWS, COUNTED = "test_counted_rows:test_what_was_measured_of_the_rows_comes_first", "dpppl.findings.counted_rows:"
CLIPPED, FRAMED = "dpppl.frame.norms:clipped_at", "test_frame:test_the_norm_of_a_run_in_a_metric"
MOVED, MISFIT = (
    "dpppl.frame.metric:Metric._moved",
    "test_frame:test_a_misfit_that_the_frame_saw_speaks_against_a_run_that_clips",
)
MEASURED, CHARGED = "dpppl.frame.locate:locate", "test_locate:test_each_access_is_charged_before_it_is_made"
LEDGER = "dpppl.ledger.privacy_ledger:PrivacyLedger.charge"
bug = functools.partial(Mutation, cached=False)

MUTATIONS = [
    bug("a reserve of Privacy is not kept", f"{RUNNER}PrivateRunner.__init__", "reserve=self.privacy.reserve", "reserve=0.0", SAME, (SVI,)),
    bug("the number of rows of Privacy is dropped", f"{KERNEL}checked_kernel", "kernel.copy(num_data=privacy.num_data)", "kernel",
        SAME, (MCMC,)),
    bug("settings by themselves are ignored", f"{RUNNER}_alone", "getattr(short, field.name) != field.default", "False", REFUSED, (SVI, "tmp_path")),
    bug("the kernel's noise is overruled", f"{KERNEL}checked_kernel", "getattr(kernel, name) not in (None, value)", "False", APART),
    bug("refused results come without a word", f"{READ}warn_of", "if found:", "if False:",
        WARNED, (lambda: test_readable.chain, 3, 2_000)),
    bug("results are refused in every case", "dpppl.mcmc.verdict:refused_alone", "if not np.all(_has_arrived(own))", "if True",
        WARNED, (lambda: test_readable.chain, 3, 2_000)),
    bug("what was measured of the rows comes last", f"{READ}ranked", "not finding.of_rows", "finding.of_rows", ROWS, ("short",)),
    bug("rows do not explain other findings", f"{READ}ranked", "if finding.of_rows", "if False", ROWS, ("short, silent",)),
    bug("few rows without a gradient explain all", f"{COUNTED}CountedRows.findings", "self.silent > MOST", "True", ROWS, ("short, few silent",)),
    bug("a frame's histogram is taken for all information", CLIPPED, "min(kept(norm), held / expected)", "kept(norm)", FRAMED),
    bug("rows that a frame's histogram hides are not clipped", CLIPPED, "lost += unseen *", "lost += 0.0 *", FRAMED),
    bug("a misfit that the frame saw is dropped", MOVED, "self.fit is None", "True", MISFIT,
        (lambda: {"link": ("w[0]", -0.1, 14.0, 9)}, 0.3, "read with care: the model does not fit")),
    bug("a misfit counts where nothing is cut off", MOVED, "run.is_wrong and not", "not", MISFIT,
        (lambda: {"link": ("w[0]", -0.1, 8.4, 9)}, 0.04, "read: ")),
    bug("clipped curvature counts in full in a frame", CLIPPED, "kept=kept(norm)", "kept=1.0", FRAMED),
    bug("a norm in a frame leaves no time", CLIPPED, ">= RELAXATIONS", ">= 0.0", FRAMED),
    bug("a run that holds few of the information is read", f"{COUNTED}of_information", "informed < LITTLE", "False",
        "test_frame:test_the_verdict_notes_information_that_clipping_takes", (0.49, ("few rows hold the rest, as rare events do",))),
    bug("accesses of a frame are not charged", MEASURED, "locator.metric(partial(opened.charge, 0))", "locator.metric(lambda until: None)",
        CHARGED, ("monkeypatch", "tmp_path", True)),
    bug("a histogram is not charged", MEASURED, "opened.charge(len(frame), 1)", "None", CHARGED, ("monkeypatch", "tmp_path", False)),
    bug("steps are not reserved before the histogram", MEASURED, "replace(plan, charges=charges,", "replace(plan, charges=charges[:-1],", CHARGED,
        ("monkeypatch", "tmp_path", False)),
    bug("steps may have less noise than was planned", "dpppl.runs.budget:Charge.pays_for", "and bool(", "or bool(", CHARGED,
        ("monkeypatch", "tmp_path", False)),
    bug("a frame with less noise than is charged goes unnoticed", "dpppl.frame.locate:Locator.metric", "before, noises)", "before)",
        "test_frame:test_no_access_of_a_frame_has_less_noise_than_is_charged", ("monkeypatch",)),
    bug("what a run has reserved is free", "dpppl.runs.budget:_Run.held", "self.planned if self.is_open else self.charged", "self.charged",
        "test_budget:test_what_is_reserved_is_not_free"),
    bug("a charge takes room that others have reserved", LEDGER, 'self._admit(self._book, run_id, np.maximum(run.taken, cost), "charge", asked)',
        "None", "test_ledger:test_a_charge_that_costs_more_than_was_reserved_needs_room_of_its_own", ("path",)),
    bug("a run is charged by any process", LEDGER, "run.owner != this_process()", "False",
        "test_ledger:test_a_run_is_charged_by_the_process_that_holds_it", ("path", "monkeypatch")),
    bug("rows are counted for nothing", "dpppl.mcmc.verdict:ChainVerdict.findings", "of_rows, ", "", ROWS, ("short",)),
]  # fmt: skip


test_a_bug_is_caught, test_every_bug_is_in_the_code_as_it_is = planted(MUTATIONS)
