"""Wrong lines of the command line: an exit status that is not 0, and one line that is no traceback."""

import shlex

from refused_common import mcmc

from dpppl.contrib.cli import main

FILES = {
    "model.py": "import numpyro, numpyro.distributions as dist\n\ndef mean(y):\n    mu = numpyro.sample('mu', dist.Normal(0, 1))\n"
    "    with numpyro.plate('data', y.shape[0]):\n        numpyro.sample('y', dist.Normal(mu, 1), obs=y)\n\nX = 3\n",
    "broken.py": "def f(:\n", "raises.py": "import nope\n", "exits.py": "raise SystemExit(0)\n", "bad.json": "{", "list.json": "[1]",
    "other.json": '{"schema_version": "1.0"}', "bytes.json": b"\xff\xfe\x00",
}  # fmt: skip
ONE = "--noise-multiplier 1 --steps 10 --delta 1e-5"
LINES = [
    *(f"report {file}" for file in ("missing.json", ".", "bad.json", "list.json", "other.json", "bytes.json", "")),
    *(f"report run.json {more}" for more in ("--html /nope/x.html", "--html .", "--about x", "--about colour=red")),
    *(f"ledger show {file}" for file in ("missing.ledger", ".", "bad.json")), "ledger verify run.json", "ledger foo x",
    *(f"verify {place}" for place in ("model.py", "model.py:nope", "model.py:X", "missing.py:mean", "broken.py:f", "raises.py:f", "exits.py:f", "model.py:mean")),
    *(f"verify model.py:mean --argument {argument}" for argument in ("y", "y=float32[40", "y=float33[40]", "y=float32[0]", "x=float32[40]")),
    *(f"verify model.py:mean --argument y=float32[40] {more}" for more in ("--public y", "--clipping-norm -1", "--rate 2")),
    "audit model.py:mean", "audit model.py:mean --noise-multiplier 0 --steps 1 --delta 1e-5", "epsilon", f"epsilon {ONE} --rate 0",
    *(f"epsilon {ONE} {more}" for more in ("--delta 0", "--steps 0", "--steps 1.5", "--noise-multiplier nan", "--noise-multiplier -1")),
    *(f"epsilon {ONE} {more}" for more in ("--batch-size 5", "--batch-size 50 --num-data 5", "--accountant gaussian --rate .1")),
    *(f"calibrate --delta 1e-5 {more}" for more in ("--epsilon 1", "--epsilon -1 --steps 10", "--epsilon 1 --advantage .1 --steps 10")),
    "calibrate --advantage 2 --delta 1e-5 --steps 10", "plan", "plan --num-data 0 --epsilon 1 --delta 1e-5",
    *(f"plan --num-data 100 --epsilon 1 --delta 1e-5 {more}" for more in ("--rate 2", "--steps 0", "--latents 0", "--picture /nope/x.png", "--picture x.foo")),
    *(f"plan --delta 1e-5 --compare {run}" for run in ("noise=1", "missing.json", "bad.json", "other.json", "noise=a,steps=1", "noise=1,steps=nan", "noise=1,steps=1.5")),
    "plan --compare noise=1,steps=10 --ledger missing.ledger", "completion fish", "foo", "",
]  # fmt: skip


def test_wrong_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "run.json").write_text(mcmc().privacy_plan().to_json())
    wrong = {}
    for line in LINES:
        try:
            status = main(shlex.split(line))
        except SystemExit as error:  # argparse's own
            status = error.code
        except Exception as error:
            wrong[line] = repr(error)
            continue
        told = capsys.readouterr().err
        if status not in (1, 2) or "Traceback" in told or len(told) < 30:
            wrong[line] = f"{status}: {told}"
    assert not wrong, wrong
