"""Deliberate bugs in numbers of the accounts: each is caught by a number that is known by hand."""

from test_mutations import Mutation, planted

ACCOUNTING, BY_HAND = "dpppl.accounting.", "test_accounting:test_a_number_is_what_it_is_by_hand"


def wrong(bug, where, old, new, number):
    return Mutation(bug, ACCOUNTING + where, old, new, BY_HAND, (number,))


MUTATIONS = [
    wrong("one run of a selection counted", "selection:SelectionEvent.failure_probability", "self.mean * max", "max", "failures of a selection"),
    wrong("the candidate that fails least", "selection:SelectionEvent.failure_probability", "* max(", "* min(", "failures of a selection"),
    wrong("the shortest candidate", "selection:SelectionEvent.num_accesses", "max(", "min(", "accesses of a selection"),
    wrong("a failure without e^epsilon", "privacy_spent:delta", "math.log1p(math.exp(-epsilon)) + epsilon", "0.0", "failures raise delta"),
    wrong("the failure of one event", "privacy_spent:_failure_probability", "math.fsum", "max", "failures raise delta"),
    wrong("failures left out of the trade-off", "tradeoff:trade_off", "+ epsilons) * beta", "+ epsilons) * 0.0", "failures raise the advantage"),
    wrong("rounding of one access", "additive:_divergences", "accesses * hidden", "hidden", "rounding of many accesses"),
    wrong("rounding of whole orders everywhere", "additive:_divergences", "1e-14, 2e-13)", "1e-14, 1e-14)", "rounding of fractional orders"),
    wrong("rounding of large orders", "additive:_divergences", "hidden + 1e-15 * alpha**2", "hidden", "rounding of fixed-size batches"),
    wrong("rounding of discrete numbers", "additive:_divergences", "1e-12 * alpha", "0.0 * alpha", "rounding of discrete noise"),
    wrong("counts that do not multiply", "dp_events:_accesses", "count * event.count", "event.count", "a composed sample"),
    wrong("one access of a batch for all", "dp_events:_sampled", "1 / gaussian_mu(seen)", "seen[0].noise_multipliers[0][0]", "a composed sample"),
    wrong("the last run for all", "prices:compare", "(*total, *own)", "own", "costs before"),
    wrong("the risk at the other prior", "tradeoff:TradeOff.bayes_risk", "return rarer *", "return prior *", "risk of a common row"),
    wrong("rows of a step counted once", "planning:_Problem._option", "rate * count * self.num_data", "rate * self.num_data", "rows of a plan"),
    wrong("seconds at a million rows a second", "planning:_Problem._option", "rows / self.rows_per_second", "rows / 1e6", "seconds of a plan"),
    wrong("learned by all rows", "planning:_Problem._option", "** 2 / self.num_data", "** 2", "learned by a plan"),
]  # fmt: skip


test_a_bug_in_a_number_is_caught, test_every_line_is_in_the_code_as_it_is = planted(MUTATIONS)
