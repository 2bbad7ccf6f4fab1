"""A report's headline, its JSON and its schema, and the pages made of it. Accounts only: nothing runs."""

import functools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import numpy as np
import numpyro
import pytest
from scipy.stats import norm
from small_models import latent, seen

import dpppl
from dpppl.contrib import pages, registry
from dpppl.report import provenance, render, risk

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report-schema.json").read_text())


def normal_mean(y):
    seen(y, latent("mean"))


@functools.cache
def plan(name):
    """Plans of full batches, of Poisson batches, of runs too dear to mean anything, and of nothing."""
    subsampling = dpppl.Poisson(0.1) if name == "poisson" else dpppl.FullBatch()
    noise = {"full": 20.0, "poisson": 5.0, "dear": 0.01, "nothing": 20.0}[name]
    kernel = dpppl.DPSGLD(
        normal_mean, clipping_norm=1.0, subsampling=subsampling, step_size=1e3 if name == "dear" else 1e-2, noise_multiplier=noise,
        num_data=1_000, measure_clipping=False,
    )  # fmt: skip
    mcmc = dpppl.MCMC(kernel, num_warmup=0, num_samples=100, target_delta=1e-5, progress_bar=False)
    return mcmc.privacy_report() if name == "nothing" else mcmc.privacy_plan()


NAMES = ["full", "poisson", "dear", "nothing"]


def test_the_headline_is_a_bound_in_plain_words():
    report = plan("full")
    mu = 10.0 / report.noise_multipliers[0]  # 100 steps
    advantage = 2 * norm.cdf(mu / 2) - 1
    shown, right = map(
        float, re.search(r"advantage at most ([\d.]+) %: right at most ([\d.]+) %", report.headline).groups()
    )
    assert (
        100 * advantage <= shown < 100 * advantage + 0.1 and 50 * (1 + advantage) <= right < 50 * (1 + advantage) + 0.1
    )
    assert report.headline.startswith("If it runs as planned: someone who knows everybody else's records")
    assert report.headline in str(report) and "exactly Gaussian" in str(report) and f"{mu:.3g}" in str(report)
    assert "Nothing was asked of the data" in plan("nothing").headline
    assert "(regret)" in str(plan("poisson")) and "advantage at most 100 %" in plan("dear").headline
    swapped = replace(report, mechanism=replace(report.mechanism, neighboring_relation="replace_one"))
    assert "which of two records one person had" in swapped.headline
    seeded = provenance.KeyOrigin(provenance.KeySource.SEED, "threefry")
    guessable = replace(report, provenance=report.provenance.and_now(provenance.Status.COMPLETE, seeded))
    assert guessable.headline.endswith("This holds only against those who cannot guess the random key.")
    assert "guess the random key" not in report.headline


@pytest.mark.parametrize(
    ("share", "up", "down"),
    [(0.23, "23 %", "23 %"), (0.23001, "23.1 %", "23 %"), (1.0, "100 %", "100 %"), (0.0, "0 %", "0 %"), (1.2345e-6, "0.000124 %", "0.000123 %")],
)  # fmt: skip
def test_percentages_are_rounded_to_the_safe_side(share, up, down):
    assert (risk.percent(share), risk.percent(share, up=False)) == (up, down)


def matches(document, schema):
    return jsonschema.Draft202012Validator(schema).is_valid(document)


@pytest.mark.parametrize("name", NAMES)
def test_json_is_as_the_published_schema_says(name):
    report = plan(name)
    document = json.loads(report.to_json(about={"data_name": "Survey"}))
    assert matches(document, SCHEMA) and document["schema_version"] == render.SCHEMA_VERSION
    assert set(SCHEMA["properties"]["about"]["properties"]) == set(render.ABOUT)
    assert document["about"]["data_name"] == "Survey" and document["about"]["actors"] is None
    assert not matches(document | {"surprise": 1}, SCHEMA) and not matches(document | {"unit": "a person"}, SCHEMA)
    assert not matches(document | {"delta": 2.0}, SCHEMA)
    deltas, epsilons = document["risk"]["epsilon_of_delta"].values()
    for delta, epsilon in list(zip(deltas, epsilons))[::12]:
        assert report.epsilon_at(delta) <= epsilon * 1.002 + 1e-9 and epsilon <= report.epsilon_at(delta) * 1.1 + 0.05
    assert document["comparisons"]["growth"][-1]["epsilon"] == pytest.approx(report.epsilon or 0.0, rel=2e-3)


def test_groups_growth_and_what_sampling_saves():
    sampled, full = (plan(name).to_dict()["comparisons"] for name in ("poisson", "full"))
    assert full["without_amplification"] == plan("full").epsilon < plan("full").epsilon_for_group(2)
    assert sampled["without_amplification"] > 5 * plan("poisson").epsilon
    grown = [point["epsilon"] for point in sampled["growth"]]
    assert grown == sorted(grown) and grown[0] < 0.5 * grown[-1]
    assert [group["epsilon"] for group in full["groups"]] == [plan("full").epsilon_for_group(k) for k in (2, 5, 10)]


class Outline(HTMLParser):
    """Tags that must be closed, headings in order, and whatever a page would load."""

    def __init__(self, page):
        super().__init__()
        self.open, self.headings, self.loads, self.words = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = [value for name, value in attributes if name in ("src", "href", "srcset", "xlink:href", "action")]
        self.loads += [value for value in given if value[0] != "#"]
        if tag in ("script", "link", "iframe", "img", "object"):
            self.loads.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_startendtag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href") and value[0] != "#"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_page_needs_nothing_else(name):
    report = plan(name)
    page = pages.to_html(report, about={"data_name": "<Survey & co>", "date": "2024-05-01"})
    outline = Outline(page)
    assert not outline.open and not outline.loads and not re.search(r"url\((?!#)", page) and "@import" not in page
    assert outline.headings[0] == 1 and set(outline.headings[1:]) == {2}
    assert len(page.encode()) < 300_000 and "prefers-color-scheme:dark" in page and "@media print" in page
    words = "".join(outline.words).replace("\N{NO-BREAK SPACE}", " ")
    for line in (
        report.headline,
        *report.assumptions(),
        *report.not_covered(),
        *report.warnings(),
        "<Survey & co>",
        "2024-05-01",
    ):
        assert line in words
    assert words.count("open") >= len(render.ABOUT) - 2 and all(question in words for question in render.ABOUT.values())
    assert page == pages.page(json.loads(report.to_json({"data_name": "<Survey & co>", "date": "2024-05-01"})))


def test_arrays_in_details_are_lists_of_a_document():
    found = render.json_value({"times": np.array([1.0, np.inf]), "share": np.float32(0.5), "sites": (np.int64(2),)})
    assert json.dumps(found) == '{"times": [1.0, "inf"], "share": 0.5, "sites": [2]}'


def test_notebooks_show_the_headline_first():
    report = plan("dear")
    cell = Outline(report._repr_html_())
    assert not cell.open and not cell.loads and cell.words[0].replace("\N{NO-BREAK SPACE}", " ") == report.headline
    assert cell.words.index("This epsilon is not a meaningful guarantee.") < cell.words.index("Privacy report")


def test_what_people_say_has_names():
    with pytest.raises(dpppl.ConfigurationError, match=r"about has the unknown key colour; its keys are data_name"):
        pages.to_html(plan("full"), about={"colour": "blue"})


SAYS_WHO = {"type": "array", "items": {"type": "string"}, "minItems": 1}
WORDS = {"type": "string"}


def closed(required, **properties):
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def one_of(*values):
    return {"enum": list(values)}


CARD = closed(
    ["url_slug", "status", "tier", "deployment"],
    url_slug={"type": "string", "pattern": "^[a-z0-9-]+$"},
    status=one_of("Converted", "Draft", "Pending", "Changes Required", "Approved", "Approved (Update Requested)", "Approved (Pending)"),
    tier=one_of(1, 2, 3),
    deployment=closed(
        ["basic"],
        basic=closed(
            ["name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region", "publication_date"],
            name=WORDS, data_curators=SAYS_WHO, description=WORDS, intended_use=WORDS, data_product_region=WORDS,
            data_product_type=one_of("Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API", "SQL queries"),
            publication_date={"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"},
            data_product_sector=one_of("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
        ),
        dp_variant=closed(
            [], data_domain=WORDS, unprotected_quantities=WORDS,
            variant_name=one_of("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
        ),
        privacy_loss=closed(
            [], privacy_unit=WORDS, privacy_unit_details=WORDS, privacy_parameters_details=WORDS,
            privacy_parameters=closed([], epsilon={"type": "number"}, delta={"type": ["number", "string"]}, rho={"type": "number"}),
        ),
        deployment_model=closed(
            [], model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"), model_name_details=WORDS, actors=WORDS,
            release_type=one_of("One release", "Many releases"), release_type_details=WORDS,
            data_source_type=one_of("Static", "Dynamic"), data_source_type_details=WORDS,
            access_type=one_of("Interactive", "Non-interactive"), access_type_details=WORDS,
        ),
        accounting=closed([], post_processing=WORDS, composition=WORDS),
        implementation=closed([], preprocessing_and_hyperparameter_tuning=WORDS, mechanisms=WORDS, justification=WORDS),
        administrative=closed(["registry_authors"], sources=WORDS, notes=WORDS, registry_authors=SAYS_WHO),
    ),
)  # fmt: skip
"""Names and allowed values of the registry's schema, as of July 2026."""


@pytest.mark.parametrize("name", ["full", "poisson", "dear"])
def test_a_registry_card_is_valid_and_leaves_five_fields_to_people(name):
    report = plan(name)
    card = registry.card(report, {"date": "2025-03-01"})
    assert matches(card, CARD) and json.dumps(card).count("To be stated: ") == 5
    assert card["deployment"]["privacy_loss"]["privacy_parameters"] == {"epsilon": report.epsilon, "delta": 1e-5}
    said = {
        "date": "2025-03-01",
        "data_name": "Survey",
        "purpose": "wages",
        "actors": "us",
        "justification": "law",
        "preprocessing": "none",
    }
    full = registry.card(report, said, curators=["Office"], region="Utopia")
    assert matches(full, CARD) and "To be stated" not in json.dumps(full) and full["url_slug"].endswith("-on-survey")
    assert not matches(card | {"approved": True}, CARD)


def test_a_card_needs_a_date_and_an_epsilon():
    for about in ({}, {"date": "1 March"}):
        with pytest.raises(dpppl.ConfigurationError, match="date"):
            registry.card(plan("full"), about)
    with pytest.raises(dpppl.ConfigurationError, match="target_delta"):
        registry.card(replace(plan("full"), delta=None), {"date": "2025-03-01"})


def test_the_page_answers_what_nist_asks_or_says_that_it_is_open():
    page = pages.to_html(plan("poisson"), {"justification": "as agreed with the board"})
    asked = page[page.index("What NIST SP 800-226 asks") :]
    for question in (
        "Which definition",
        "unit of privacy",
        "Who is trusted",
        "compose",
        "sensitivity",
        "hazards",
        "collected",
    ):
        assert question in asked
    assert "as agreed with the board" in asked and asked.count('<td class="open">') == 3
    known = pages.to_html(plan("poisson"), dict.fromkeys(render.ABOUT, "told"))
    assert known[known.index("What NIST SP 800-226 asks") :].count('<td class="open">') == 0
    assert not re.search(r"https?://(?!www.w3.org)", page)


ASKED = {  # a lay reader's questions, and what must be in the answer of a run that was read, of one refused, and of a plan
    "Who is protected?": (
        "Each of the 3,000 records of the survey",
        "Each of the 3,000 records",
        "Each of the 1,000 records",
    ),
    "How sure is it?": ("is right at most 5", "is right at most 5", "If it runs as planned"),
    "What may be concluded?": ("statements about that population", "Nothing about the data", "open"),
    "How many analyses are left?": (
        "counts what is run on these data",
        "or for one run of epsilon",
        "Unknown: no ledger",
    ),
    "What if a person objects?": ("that were published stay", "that were published stay", "that were published stay"),
}


def test_sentences_of_a_page_are_sentences():
    """Where persons are the unit, several together are several persons."""
    report = replace(plan("full"), laws=("mean: prior Normal",))
    page = pages.to_html(report, {"variables": "a score", "model": "one mean"}).replace("&nbsp;", " ")
    assert "A score. One mean. In a statistician&#39;s words, mean: prior Normal" in page and ".;" not in page
    assert "the results stand in the publication" in page and "Somebody with several records is protected less" in page
    persons = dpppl.NoiseAware(normal_mean, target_epsilon=1.0, target_delta=1e-5, unit="person", max_rows_per_unit=3)
    assert "Several together, as of a family, are protected less" in pages.to_html(persons.privacy_plan())


@pytest.mark.slow
def test_the_page_answers_a_lay_reader(tmp_path):
    """Of a run that may be read, one whose responses are wrong, and a plan. Mutant: the verdict is not asked."""
    y = np.random.default_rng(0).normal(0.3, 1.0, size=3_000).astype(np.float32)
    ledger = dpppl.PrivacyLedger(tmp_path / "survey", epsilon=5.0, delta=1e-5, full_batch_only=True)
    documents, budget = [], dpppl.Privacy(epsilon=1.5, delta=1e-5, ledger=ledger)
    for data in (y, np.where(np.arange(3_000) % 3, y, np.nan)):
        private = dpppl.NoiseAware(normal_mean, privacy=budget, print_cost=False, progress_bar=False)
        private.run(dpppl.secret_key(), data)
        documents.append(private.privacy_report())
    said = (
        pages.to_html(documents[0], {"data_name": "the survey"}),
        pages.to_html(documents[1]),
        pages.to_html(plan("full")),
    )
    for number, page in enumerate(said):
        answers = page.replace("&nbsp;", " ").split('<table class="plain">')[1].split("</table>")[0]
        for question, expected in ASKED.items():
            assert expected[number] in answers.split(f"{question}</th>")[1].split("</td>")[0]
    rows = dict(documents[0].rows())
    assert (rows["records"], rows["variables"], rows["latents of the model"]) == (
        "3,000; this number is public",
        "y",
        "mean",
    )
    assert rows["rows that say nothing"].startswith("outside the support none, not finite none")
    chain = pages.to_html(plan("full"), verdict=private.verdict)
    assert "Nothing about the data: automatic checks refuse the results" in chain


def test_parts_add_up():
    svi = dpppl.SVI(normal_mean, numpyro.infer.autoguide.AutoNormal(normal_mean), target_epsilon=1.0, target_delta=1e-5)
    parts = svi.privacy_plan(50).to_dict()["comparisons"]["parts"]
    assert len(parts) == 2 and sum(part["share"] for part in parts) == pytest.approx(1.0)
    assert parts[0]["part"].startswith("1 access of all rows") and parts[0]["share"] == pytest.approx(0.01, rel=0.01)
    assert "alone, 1&nbsp;% of all" in pages.to_html(svi.privacy_plan(50))
