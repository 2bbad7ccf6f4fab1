"""What the verdict and the scores of NoiseAware are computed from and say, one bug at a time: a named test fails with it."""

import functools

import test_looks
import test_noise_aware
from test_mutations import Mutation, planted

from dpppl.noise_aware.measured import Pull

CHECKS, FIT = "dpppl.noise_aware.verdict:", "dpppl.row_statistics.response_ranks:"
NUMBERS = "dpppl.noise_aware.measured:"
FOUND = "test_verdict:test_each_finding_is_in_the_line_and_the_report"
CHANCE = "test_verdict:test_what_is_small_or_may_be_chance_is_not_a_finding"
MEAN_ZERO = "test_verdict:test_what_a_row_releases_has_mean_zero_under_the_model_and_is_at_most_one_long"
ALONE = "test_verdict:test_impossible_responses_are_counted_alone"
UNLIKELY, CERTAIN = (
    "test_verdict:test_the_unlikelier_of_two_responses_counts_in_full",
    "test_verdict:test_rows_of_certain_responses_are_compared_by_their_covariates",
)
SUMS = "test_verdict:test_sums_are_read_in_units_of_what_their_rows_released"
WRONG = {"fit": (0.4, 1079.0), "symmetric": ("entries of 'locs' change places",)}
ENDED = "do not read: the model does not fit where the run ended"
RECIPE, LINE, RELEASE = (
    "dpppl.noise_aware.recipe:",
    "dpppl.noise_aware.line:",
    "dpppl.noise_aware.curvature:ReleasedCurvature.",
)
CURVATURE, PARAMETERS = "dpppl.noise_aware.curvature:", "dpppl.row_program.parameters:_narrowest"
LIGHT = "test_sandwich:test_ranks_count_by_the_weight_and_their_variances_by_its_square"
NEAREST = "test_sandwich:test_dispersion_is_the_nearest_multiple_of_the_curvature"
SCORES, NONE = (
    "test_parameters:test_scores_are_those_of_jax",
    "test_parameters:test_no_parameters_where_as_many_numbers_enter_as_latents",
)
LOOKS, ROWS = "test_looks:", "dpppl.row_statistics.statistics:"
SLOPE = "test_noise_aware:test_a_rows_curvature_is_the_slope_of_its_expected_score"
BINARY = (lambda: test_noise_aware.model, 0.5)
PULL = "test_pull:test_a_right_prior_expects_what_the_data_say_and_a_wrong_one_does_not"
MOVED = "test_pull:test_the_pull_is_the_distance_to_the_likelihood"
RESPONSES = "dpppl.model.responses:Responses."
TWO_PARTS = "test_two_parts:test_what_rows_of_a_right_model_release_has_mean_zero"
SAMPLER, NARROW = "dpppl.noise_aware.posterior:Sampler.", "dpppl.noise_aware.posterior:Narrow."
OWN = "test_noise_aware_coordinates:test_with_budget_to_spare_the_posterior_is_the_models_own"
bug = functools.partial(Mutation, cached=False)

NAMES = "test_noise_aware_coordinates:test_values_without_a_name_are_found_with_their_cure"

MUTATIONS = [
    bug("latents that enter otherwise, too", "dpppl.likelihood.unnamed:cure_of", "any(inputs[name] not in reached for name in gains)",
        "gains", NAMES, ("beside itself",)),
    bug("values that no latents can take", "dpppl.likelihood.unnamed:_Value.gains", "and sizes[n] >= self.size", "",
        NAMES, ("more values than latents",)),
    bug("a wrong model is not refused", f"{CHECKS}misfit", "not lines or run.widths.is_sandwich", "True",
        FOUND, (lambda: WRONG, ENDED)),
    bug("the mildest finding comes first", "dpppl.findings.finding:ranked", "(finding.level,", "(-finding.level,",
        FOUND, (lambda: WRONG, ENDED)),
    bug("checks that see nothing", f"{CHECKS}misfit", "run.unseen > most_unseen", "False", FOUND, (lambda: {"unseen": 12.0}, "too few")),
    bug("a departure that harms nothing", f"{CHECKS}against", " and run.harm[0] >= LEAST_HARM", "",
        CHANCE, (lambda: {"fit": (0.01, 50.0), "harm": (0.9, 0.0, 0.0)},)),
    bug("a departure by value that harms nothing", f"{CHECKS}against", "run.harm[1] >= LEAST_HARM and", "",
        CHANCE, (lambda: {"link": ("w[0]", 0.01, 90.0, 4), "harm": (0.0, 0.9, 0.0)},)),
    bug("ranks and outliers count apart", f"{CHECKS}against", " or together >= times * together_sure", "",
        FOUND, (lambda: {"fit": (0.1, 8.2), "impossible": (0.067, 0.021)}, "18 of 3 with")),
    bug("a refused run says what it has learned", f"{CHECKS}NoiseAwareVerdict.share_learned", "if self.refusals", "if False",
        "test_verdict:test_notebooks_show_the_line_and_the_words_by_site"),
    bug("latents that are no coordinates have no word", "dpppl.noise_aware.conclusion:judged", "beyond=words", "beyond={}",
        OWN, (0.25, "monkeypatch")),
    bug("proposals are not weighed by their density", f"{NARROW}_weighted", "ratios = np.asarray(logs, np.float64) - proposed",
        "ratios = np.asarray(logs, np.float64)", OWN, (0.25, "monkeypatch")),
    bug("weights of draws that move with others are not transformed", f"{SAMPLER}_density", "+ log_det", "", OWN,
        (0.25, "monkeypatch")),
    bug("candidates are drawn regardless of their weights", "dpppl.noise_aware.mixture:resampled", "np.cumsum(s)",
        "np.linspace(0.0, 1.0, len(s))", OWN, (0.25, "monkeypatch")),
    bug("fewer outliers than expected count", f"{CHECKS}against", "max(share / std, 0.0)", "(share / std)",
        CHANCE, (lambda: {"fit": (0.1, 8.2), "impossible": (-0.067, 0.021)},)),
    bug("many comparisons count as one", f"{CHECKS}against", "link_chance / count", "link_chance",
        CHANCE, (lambda: {"link": ("w[0]", 0.1, 9.0, 4)},)),
    bug("outliers that may be noise", f"{NUMBERS}MeasuredReleases.has_impossible", "and share >= STANDS_OUT * std", "",
        CHANCE, (lambda: {"impossible": (0.01, 0.004)},)),
    bug("directions that noise hides are not told", f"{CHECKS}of_looks", "run.resolved >= least_resolved", "True",
        FOUND, (lambda: {"resolved": 0.6}, "read with care: noise hides the directions")),
    bug("missing rows count by their share alone", "dpppl.findings.counted_rows:stands_out", "max(SHARE, STANDS_OUT * std)", "SHARE",
        CHANCE, (lambda: {"outside": 0.02},)),
    bug("moments that the model moves", f"{FIT}moments_of_rank", "moments - (moments @ weights)[:, None]", "moments", MEAN_ZERO),
    bug("moments twice as long as is paid for", f"{FIT}assembled", "[FIT * moments", "[2.0 * FIT * moments", MEAN_ZERO),
    bug("moments longer than is paid for", f"{FIT}assembled", "[FIT * moments", "[0.7 * moments",
        "test_verdict:test_no_row_releases_more_than_one", (2,), cached=True),
    bug("outliers count in the ranks", f"{FIT}assembled", "speaks & possible", "speaks", ALONE),
    bug("outliers less than the model expects", f"{FIT}impossible", "found[0] - found @ weights", "found[0]", ALONE),
    bug("places that a unit does not fill count", f"{FIT}ranked_unit", "mask & rows.possible", "rows.possible",
        "test_correlated_units:test_ranks_of_units_have_mean_zero_where_their_number_of_rows_follows_what_they_observe"),
    bug("squares of ranks are sums of them", f"{FIT}ranked_unit", "[:, None] ** 2)[0]", "[:, None])[0] ** 2",
        "test_correlated_units:test_ranks_of_units_have_mean_zero_where_their_number_of_rows_follows_what_they_observe"),
    bug("likely responses count in full", f"{FIT}ranked", "jnp.maximum(jnp.max(jnp.abs(signed)), 1e-6)", "1.0", UNLIKELY, (0.02,)),
    bug("signs follow how much responses vary", f"{FIT}ranked", "(1.0 + jnp.mean(squares)) / 2.0", "1.0", CERTAIN),
    bug("as many links as one", f"{FIT}Fit.from_sums", "np.sqrt(len(along))", "1.0", SUMS),
    bug("noise of one of many links", f"{FIT}Fit.from_sums", "[FIT, FIT, length, SKEW]", "[FIT, FIT, LINK, SKEW]", SUMS),
    bug("noise of a whole number", f"{FIT}Fit.from_sums", "[FIT, FIT, length, SKEW]", "[FIT, FIT, length, 1.0]", SUMS),
    bug("skewness that the model moves", f"{FIT}skewness", "moments - moments @ weights", "moments", MEAN_ZERO),
    bug("skewness longer than is paid for", f"{FIT}skewness", "1.264", "1.0", "test_verdict:test_skewness_is_at_most_one_long"),
    bug("skewness is not told", f"{CHECKS}against", "chi_squared >= times * skew_sure", "False",
        FOUND, (lambda: {"skew": (0.1, 60.0)}, "do not read: the model is wrong: responses have another")),
    bug("a departure that only clipped rows feel", f"{NUMBERS}MeasuredReleases.moved", "* self.cut", "",
        "test_verdict:test_a_model_that_does_not_fit_is_refused_where_clipping_may_have_moved_estimates",
        (lambda: {"fit": (0.1, 50.0)},)),
    bug("harm of one sd is a note", f"{NUMBERS}MeasuredReleases.is_wrong", "self.moved >= least", "self.moved >= 2.0 * least",
        "test_verdict:test_a_model_that_does_not_fit_is_refused_where_clipping_may_have_moved_estimates",
        (lambda: {"fit": (0.1, 50.0)},)),
    bug("sure tails are as others", f"{NUMBERS}MeasuredReleases.is_wrong", "if self.tails < 1.0", "if self.tails < 2.0",
        "test_verdict:test_a_model_that_does_not_fit_is_refused_where_clipping_may_have_moved_estimates",
        (lambda: {"fit": (0.1, 50.0)},)),
    bug("tails that noise hides", f"{NUMBERS}MeasuredReleases.is_wrong", "or self.cut >= MOST_CUT", "",
        "test_verdict:test_a_model_that_does_not_fit_is_refused_where_clipping_may_have_moved_estimates",
        (lambda: {"fit": (0.1, 50.0)},)),
    bug("a departure between modes", f"{NUMBERS}MeasuredReleases.is_wrong", "or bool(self.symmetric)", "",
        "test_verdict:test_a_model_that_does_not_fit_is_refused_where_clipping_may_have_moved_estimates",
        (lambda: {"fit": (0.1, 50.0)},)),
    bug("a skewness that harms nothing", f"{CHECKS}against", " and run.harm[2] >= LEAST_HARM", "",
        CHANCE, (lambda: {"skew": (0.1, 60.0), "harm": (0.0, 0.0, 0.9)},)),
    bug("harm that does not grow with the rows", f"{FIT}Fit.from_sums", "np.sqrt(num_rows * x)", "np.sqrt(x)", SUMS),
    bug("the prior's pull is not told", f"{CHECKS}conflict", "is_pulled = chance < LEAST_CHANCE and moved >= LEAST_HARM", "is_pulled = False",
        FOUND, (lambda: {"pull": Pull(1e-4, 3.0, "w[0]")}, "moves 'w[0]' by 3.0 posterior sd")),
    bug("means under the prior scatter as latents do", f"{NUMBERS}Pull.of", " / (1.0 - left[is_learned])", "", PULL),
    bug("directions under the prior are not turned", f"{NUMBERS}Pull.of", "vectors.T @ inverse @ off", "inverse @ off", PULL),
    bug("the prior's own scales", f"{NUMBERS}Pull.of", "root @ vectors @ pulled", "vectors @ pulled", MOVED),
    bug("heavy tails are a normal prior's", "dpppl.row_statistics.coordinates:_are_normal", "& (np.abs(np.mean(z**4, axis=0) - 3.0) < 0.3)", "",
        "test_pull:test_only_normal_priors_are_compared"),
    bug("curvatures are as long as their blocks", "dpppl.row_statistics.basis:Basis.length_of_product", ", 0.0) + off_block)", ", 0.0))",
        "test_noise_aware_wide:test_rows_are_as_long_as_their_curvatures_also_hostile_ones"),
    bug("ranks of a light row count in full", f"{FIT}assembled", "FIT * moments * share", "FIT * moments", LIGHT),
    bug("ranks by value of a light row count in full", f"{FIT}assembled", "by_value * share", "by_value", LIGHT),
    bug("variances of a light row count by its weight", f"{FIT}assembled", "share**2 *", "share *", LIGHT),
    bug("a light row that is next to impossible counts in full", f"{FIT}assembled", "departure * share", "departure", LIGHT),
    bug("the share of sums of entries", f"{CURVATURE}dispersion", "np.sum(noisy * curvature) / size", "np.sum(noisy) / size", NEAREST),
    bug("noise of a sum of squares", f"{CURVATURE}dispersion", "std / np.sqrt(size)", "std / size", NEAREST),
    bug("dispersion that may be noise", f"{CHECKS}of_scores", "STANDS_OUT * std", "0.0",
        "test_sandwich:test_the_verdict_says_where_scores_vary_by_more_than_noise_explains"),
    bug("parameters that a response enters", PARAMETERS, "np.inf if v in of_response else max", "max", SCORES, ("mixture",)),
    bug("vectors as wide as numbers", PARAMETERS, "max(1, v.aval.size)", "1", NONE),
    bug("more parameters than pay", PARAMETERS, "size <= _MOST", "True", NONE),
    bug("masks of what was observed on what is drawn", f"{RESPONSES}_counted", "row, public, given), {*", "row, public, {}), {*",
        TWO_PARTS, ("hurdle",)),
    bug("masked answers count once for each value", f"{RESPONSES}__call__", "if self.has_gaps:", "if not self.has_gaps:",
        TWO_PARTS, ("two answers",)),
    bug("scores that scatter are not told", f"{CHECKS}unfinished", "not run.chi_squared <", "not 0.0 <",
        FOUND, (lambda: {"chi_squared": 2.8, "degrees": 16}, "do not read: scores scatter 2.80")),
    bug("looks that disagree are not told", f"{CHECKS}of_looks", "max(run.agreement, run.arrival) >= skewed_disagreement", "False",
        FOUND, (lambda: {"agreement": 5.0}, "read with care: the late looks disagree")),
    bug("curvatures of looks count alike", f"{RELEASE}mean", "** -2.0", "** 0.0",
        "test_noise_aware_curvature:test_releases_are_averaged_by_their_noise"),
    bug("scores of long curvatures are weighed down", f"{ROWS}RowStatistics.look", "found.psi, found.matrix()", "found.psi * weight(found), found.matrix()",
        SLOPE, BINARY),
    bug("a survey weight counts twice in a curvature", f"{ROWS}RowStatistics._scaled", "matrix * (self._share(row)", "matrix * (self._share(row) ** 2", SLOPE, BINARY),
    bug("squares of scores beyond what is paid for", f"{ROWS}units", "xp.sqrt(rest * scores)", "xp.sqrt(rest)",
        "test_look_sensitivity:test_no_row_is_longer_than_one_and_some_are_that_long", ("two responses",)),
    bug("information that is missing is there", f"{ROWS}RowStatistics.look", " - product(found.psi, found.score)", "",
        "test_missing_values:test_the_curvature_of_incomplete_rows_is_the_slope_of_their_scores"),
    bug("a line forgets where its look was", f"{LINE}Line.with_look", "look.scores + times(slope.h, at)", "look.scores",
        f"{LOOKS}test_a_line_is_kalmans_filter_where_slopes_are_known", ("monkeypatch",)),
    bug("looks before count in full", f"{LINE}Line.with_look", "_KEPT * self.information", "self.information",
        f"{LOOKS}test_looks_before_count_four_fifths"),
    bug("the longest scores decide the metric", f"{RECIPE}_stage", "np.argmin(", "np.argmax(",
        f"{LOOKS}test_late_looks_are_made_in_the_metric_of_the_shortest_scores", (1,)),
    bug("slopes are known far away", f"{LINE}Line._spread_by", "1.0 + by *", "1.0 + 0.0 *",
        f"{LOOKS}test_where_the_mean_moves_far_its_slope_is_in_error"),
    bug("rows sample nothing", f"{LINE}Line.posterior", "_spread_by(1.0,", "_spread_by(0.0,",
        f"{LOOKS}test_looks_are_made_where_the_posterior_is_not_where_the_likelihood_is"),
    bug("a pull in other coordinates is a place", f"{LINE}Line.carried", "pull = times(root,", "pull = times(basis.inverse,",
        f"{LOOKS}test_a_line_says_the_same_in_other_coordinates", (lambda: test_looks.full(6),)),
    bug("one norm for misfits and none", "dpppl.noise_aware.bounds:norm_of_looks", "expected.fit.squared_harm / len(known) *", "0.0 *",
        "test_bounds:test_a_misfit_makes_the_norm_longer_and_none_leaves_it_where_error_is_least", (30.0, "monkeypatch")),
    bug("surely other tails change no norm", "dpppl.noise_aware.bounds:norm_of_looks", "_GUARD * expected.fit.tails", "0.0",
        "test_bounds:test_surely_other_tails_are_worth_half_of_the_sampling_variance"),
    bug("as if at the truth", f"{FIT}Fit.from_sums", "(1.0 + excess)", "1.0", SUMS),
]  # fmt: skip


test_a_bug_is_caught, test_every_bug_is_in_the_code_as_it_is = planted(MUTATIONS)
