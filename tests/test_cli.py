"""Each command, as docs/command-line.md shows it, and its errors."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up import likelihood_of
from test_report_faces import plan

import dpppl
from dpppl import accounting
from dpppl.accounting import GaussianEvent
from dpppl.contrib import pages
from dpppl.contrib.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text()
SHOWN = [
    tuple(part.split("\n", 1))
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for part in re.split(r"^\$ dpppl ", block, flags=re.MULTILINE)[1:]
]


MODEL = """
import numpyro, numpyro.distributions as dist

def regression(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 1), obs=y)

def coupled(y):
    mu = numpyro.sample("mu", dist.Normal(y.mean(), 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A report and a ledger in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text(plan("full").to_json())
    Path("model.py").write_text(MODEL)
    ledger = dpppl.PrivacyLedger("survey.ledger", 1.0, 1e-5, name="Survey", full_batch_only=True)
    event = GaussianEvent(noise_multipliers=((100.0, 400),))
    ledger.reserve("first", [event], "DPSGLD, 400 steps")
    ledger.charge("first", [event], first=0, count=400)
    ledger.release("first")
    for seed, name in enumerate(("North", "South")):
        likelihood_of(seed, name).to_file(f"{name.lower()}.likelihood")
    return tmp_path


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(("line", "answer"), SHOWN)
def test_the_commands_answer_as_the_page_shows(line, answer, folder, capsys):
    assert main(shlex.split(line)) == 0
    printed = capsys.readouterr().out
    shape = ".*".join(re.escape(part) for part in answer.rstrip("\n").split("..."))
    assert re.fullmatch(shape + "\n?", printed, re.DOTALL)
    assert main([*shlex.split(line), "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_every_command_is_on_the_page():
    assert {line.split()[0] for line, _ in SHOWN} == {
        "epsilon", "calibrate", "plan", "report", "ledger", "verify", "audit", "completion", "likelihood", "pool",
    }  # fmt: skip
    assert len([line for line, _ in SHOWN if line.startswith("ledger")]) == 3


def answer(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_numbers_are_those_of_python(capsys, folder):
    cost = answer(
        capsys, "epsilon", "--noise-multiplier", "5", "--steps", "50", "--delta", "1e-6", "--relation", "replace_one"
    )
    event = GaussianEvent(noise_multipliers=((5.0, 50),), neighboring_relation="replace_one")
    assert cost["epsilon"] == dpppl.accounting.epsilon(event, 1e-6)
    assert cost["risk"]["mu"] == dpppl.accounting.trade_off(event).mu and "which of two records" in cost["headline"]
    found = answer(
        capsys, "calibrate", "--epsilon", "2", "--delta", "1e-6", "--noise-multiplier", "10", "--rate", "0.05"
    )
    allowed = GaussianEvent(noise_multipliers=((10.0, found["steps"]),), sampling_rate=0.05)
    assert 1.99 < found["epsilon"] <= 2.0 and found["epsilon"] == dpppl.accounting.epsilon(allowed, 1e-6)
    batches = answer(
        capsys,
        *"epsilon --noise-multiplier 4 --steps 10 --delta 1e-5 --batch-size 10 --num-data 100 --relation replace_one".split(),
    )
    assert "RDP" in batches["accountant"]
    charged = answer(capsys, "ledger", "export", "survey.ledger")["events"]
    assert charged == [dict.fromkeys(["batch_size", "num_data"]) | {
        "noise_multipliers": [[100.0, 400]], "sampling_rate": 1.0, "neighboring_relation": "zero_out",
        "failure_probability": 0.0, "discrete": False,
    }]  # fmt: skip


def test_reports_are_the_same_from_their_json(capsys, folder):
    assert main(["report", "run.json"]) == 0
    assert capsys.readouterr().out == str(plan("full")) + "\n"
    assert main(["report", "run.json", "--html", "run.html", "--about", "actors=only us"]) == 0
    assert Path("run.html").read_text(encoding="utf-8") == pages.to_html(plan("full"), {"actors": "only us"})


NOISE_AWARE = "audit model.py:regression --method noise-aware --noise-multiplier 1 --delta 1e-5 --data rows.npz"
COMPARED = "plan --compare noise=9,steps=9 --delta 1e-5"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("epsilon --noise-multiplier 1 --steps 10 --delta 2", "ConfigurationError: delta 2.0 must be in (0, 1)"),
        ("epsilon --steps 10 --delta 1e-5", "ConfigurationError: epsilon needs --noise-multiplier"),
        (
            "calibrate --advantage 0.1 --delta 1e-5 --noise-multiplier 2",
            "ConfigurationError: --advantage finds the noise",
        ),
        (
            "epsilon --noise-multiplier 4 --steps 9 --delta 1e-5 --batch-size 5 --num-data 50 --rate 0.1",
            "ConfigurationError: --rate is for Poisson batches",
        ),
        ("report run.json --about purpose=none", "ConfigurationError: --about is for --html and --json"),
        ("report run.json --about purpose", "ConfigurationError: --about purpose is not NAME=TEXT"),
        ("calibrate --epsilon 1 --delta 1e-5", "ConfigurationError: give --steps to find the noise"),
        ("report survey.ledger", "ConfigurationError: survey.ledger is not a report"),
        ("report none.json", "ConfigurationError: none.json: No such file or directory; give the path of a report"),
        ("report run.json --about colour=blue", "ConfigurationError: about has the unknown key colour"),
        ("ledger show run.json", "LedgerError"),
        ("ledger verify none.ledger", "LedgerError"),
        ("plan --num-data 100 --epsilon 1", "needs --num-data and --delta"),
        ("plan --num-data 100 --epsilon 1 --delta 1e-5 --ledger x", "--ledger is for --compare"),
        ("plan --compare noise=1", "needs --delta"),
        *(
            (f"{COMPARED} {more}", f"{more.split()[0]} is not for --compare")
            for more in ("--rate 1", "--epsilon 1", "--num-data 9", "--picture x", "--factors")
        ),
        ("plan --compare noise=1 --delta 1e-5", "noise=..., steps=..."),
        ("plan --compare noise=one,steps=3 --delta 1e-5", "noise is a number"),
        ("verify model.py", "should be FILE:FUNCTION"),
        ("verify gone.py:model", "should be FILE:FUNCTION"),
        ("verify model.py:absent", "has no function absent"),
        ("verify model.py:coupled --argument y=float32[9]", "UnsupportedModelError: "),
        ("verify model.py:regression --argument x=float32[9,", "nor a Python literal"),
        ("verify model.py:regression --argument x=word32[9]", "no type of numbers"),
        ("verify model.py:regression --public x", "no --argument"),
        (f"{NOISE_AWARE} --steps 3", "not with noise-aware"),
        (f"{NOISE_AWARE} --rate 0.1", "--rate is for dpsgld and svi"),
        (f"{NOISE_AWARE} --clipping-norm 2", "--clipping-norm is for dpsgld and svi"),
        (NOISE_AWARE, "is no .npz file"),
        (NOISE_AWARE.replace("rows", "none"), "No such file"),
    ],
)
def test_errors_are_those_of_python_and_say_what_to_write(line, error, folder, capsys):
    Path("rows.npz").write_text("rows")
    assert main(line.split()) == 1
    told = capsys.readouterr()
    assert re.match(r"\w+Error: ", told.err) and error in told.err and not told.out


@pytest.mark.parametrize("run", ["noise=100 steps=400", "noise=100; steps=400", "noise=100  steps=400"])
def test_a_missing_comma_is_named_with_the_run_that_works(run, folder, capsys):
    assert main(["plan", "--compare", run, "--delta", "1e-5"]) == 1
    assert 'lacks a comma between noise=... and the next: write "noise=100,steps=400"' in capsys.readouterr().err
    assert main(["plan", "--compare", "noise=100,steps=400", "--delta", "1e-5"]) == 0


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"dpppl {dpppl.__version__}\n"


def test_headers_of_a_plan_have_units(capsys):
    main("plan --num-data 20000 --epsilon 1 --delta 1e-5 --rate 1 --steps 400".split())
    out = capsys.readouterr().out
    header = out.splitlines()[1]
    assert (
        "seconds: of gradients alone" in out
        and "seconds" in header
        and "noise/norm" in header
        and "diffusion time" in header
        and "time h" not in header
    )


def test_a_changed_line_of_a_ledger_is_seen(folder, capsys):
    path = Path("survey.ledger")
    path.write_text(path.read_text().replace("400", "300"))
    assert main(["ledger", "verify", "survey.ledger"]) == 1 and "LedgerError" in capsys.readouterr().err


@pytest.mark.slow
def test_python_m_dpppl_and_wrong_usage():
    done = subprocess.run([sys.executable, "-m", "dpppl", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2 and "epsilon" in done.stderr and "usage: dpppl" in done.stderr


def test_runs_are_compared_in_order_and_against_the_ledger(capsys, folder):
    words = ["noise=200,steps=400", "noise=300,steps=100", "noise=80,steps=400"]
    found = answer(capsys, "plan", "--compare", *words, "--ledger", "survey.ledger")
    assert [run["admitted"] for run in found["runs"]] == [True, True, False] and found["delta"] == 1e-5
    events = [GaussianEvent(noise_multipliers=(pair,)) for pair in [(100.0, 400), (200.0, 400), (300.0, 100)]]
    assert found["runs"][1]["total_epsilon"] == accounting.epsilon(events, 1e-5)
    assert len(dpppl.PrivacyLedger.open("survey.ledger").events) == 1  # nothing was charged


def test_a_plan_is_drawn(tmp_path, capsys):
    picture = tmp_path / "plan.png"
    line = f"plan --num-data 1000 --epsilon 1 --delta 1e-5 --rate 1 --steps 100 --picture {picture}"
    assert main(line.split()) == 0 and picture.read_bytes().startswith(b"\x89PNG")


def test_verify_tells_what_is_private(folder, capsys):
    line = 'verify model.py:regression --argument "x=float32[20, 2]" --argument "y=float32[20]"'
    found = answer(capsys, *shlex.split(line))
    assert (
        found["private"] == ["x", "y"] and found["latents"] == {"b": [2]} and found["proved"] and found["public"] == []
    )


def test_completion_needs_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "dpppl[completion]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_noise_aware_run_is_audited_with_rows_from_a_file(folder, capsys):
    np.savez("rows.npz", x=np.ones((300, 2), np.float32), y=np.zeros(300, np.float32))
    assert main(shlex.split(f"{NOISE_AWARE} --attack one_run --html audit.html --picture audit.png")) == 0
    printed = capsys.readouterr().out
    assert (
        printed.startswith("consistent: epsilon is at least") and "NoiseAware" in printed and "300 canaries" in printed
    )
    assert "NoiseAware" in Path("audit.html").read_text() and Path("audit.png").stat().st_size > 1_000


def test_likelihoods_and_pools_have_pages(folder, capsys):
    assert main(["likelihood", "show", "north.likelihood", "--html", "north.html"]) == 0
    assert main(["pool", "north.likelihood", "south.likelihood", "--out", "both", "--html", "both.html"]) == 0
    assert "wrote both\nwrote both.html" in capsys.readouterr().out
    for name, file in (("north", "north.likelihood"), ("both", "both")):
        assert Path(f"{name}.html").read_text(encoding="utf-8") == pages.to_html(dpppl.Likelihood.from_file(file))


def test_pool_names_the_owners_that_differ(folder, capsys):
    likelihood_of(2, "West", unit="all rows of a person").to_file("west.likelihood")
    assert main(["pool", "north.likelihood", "west.likelihood", "--out", "both.likelihood"]) == 1
    assert "the unit of North is another than that of West" in capsys.readouterr().err
    assert not Path("both.likelihood").exists() and main(["likelihood", "show", "run.json"]) == 1
    assert "run.json is not a likelihood's file" in capsys.readouterr().err
