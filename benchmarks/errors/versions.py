"""Versions that dpppl runs with: for each set of versions an environment of its own, in which short runs and README's code are tried.

An environment takes dpppl from a wheel that is built first, the packages named from PyPI, and the others from the environment
that runs this file: run it with each Python. `--resolve` asks PyPI which newest versions the pins in pyproject.toml allow a
Python; nothing is run then.

python benchmarks/errors/versions.py [--sets "jax==0.10.0 jaxlib==0.10.0" ...]
python benchmarks/errors/versions.py --resolve 3.11 3.12 3.13
"""

import argparse
import doctest
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETS = (
    "",
    "jax==0.10.0 jaxlib==0.10.0 numpyro==0.21.0 optax==0.2.5 chex toolz numpy==2.4.6 scipy==1.17.1 arviz==0.23.4",
    "arviz==0.22.0",
    "arviz==0.21.0",
    "optax==0.2.4 chex toolz",
    "jax==0.9.2 jaxlib==0.9.2 numpyro==0.21.0",
    "jax==0.8.3 jaxlib==0.8.3 numpyro==0.21.0",
    "numpyro==0.20.1",
)
SHOWN = ("jax", "jaxlib", "numpyro", "optax", "arviz")


def smoke():
    """Short runs of each method, ArviZ's export, `dpppl verify`, and whether the C extension was taken."""
    import warnings

    warnings.simplefilter("ignore")
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    import optax
    from numpyro.infer.autoguide import AutoNormal

    import dpppl
    from dpppl.contrib.cli import main
    from dpppl.randomness import native

    def model(x, y=None):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    x = np.random.default_rng(0).uniform(-1, 1, (500, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    target = {"target_epsilon": 3.0, "target_delta": 1e-5, "print_cost": False}
    mcmc = dpppl.MCMC(dpppl.DPSGLD(model), num_warmup=50, num_samples=50, progress_bar=False, **target)
    mcmc.run(dpppl.secret_key(), x, y)
    assert mcmc.to_arviz().posterior["weights"].shape == (1, 50, 2)
    private = dpppl.NoiseAware(model, progress_bar=False, **target)
    private.run(dpppl.secret_key(), x, y)
    assert private.get_samples(allow_unconverged=True)["weights"].shape == (2_000, 2)
    svi = dpppl.SVI(model, AutoNormal(model), optax.adam(0.05), clipping_norm=1.0, **target)
    result = svi.run(dpppl.secret_key(), 20, x, y, progress_bar=False)
    assert np.all(np.isfinite(result.params["weights_auto_loc"]))
    verify = f"verify {ROOT}/models/logistic_regression.py:gaussian --argument x=float32[9,2] --argument y=int32[9]"
    assert main(verify.split()) == 0
    print(json.dumps({"extension": native.available()}))


def readme():
    """README's code, which shows what private runs gave: with the same secret keys each time."""
    from dpppl.randomness import keys

    numbers = itertools.count()
    keys.os = types.SimpleNamespace(urandom=lambda count: hashlib.shake_256(b"%d" % next(numbers)).digest(count))
    return doctest.testfile(str(ROOT / "README.md"), module_relative=False).failed


def environment(folder, packages):
    """The Python of a new environment with these packages, and with those of this one where it has none of its own."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = Path(folder) / "bin" / "python"
    site = next(Path(folder).glob("lib/python*/site-packages"))
    (site / "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed", *packages], check=True
    )
    return python


def built(folder):
    """A wheel of dpppl for this Python, C extension included."""
    tree = shutil.copytree(
        ROOT, Path(folder) / "tree", ignore=shutil.ignore_patterns(".*", "build", "docs", "tests", "*.so")
    )
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, str(tree)], check=True)
    return str(next(Path(folder).glob("dpppl-*.whl")))


def tried(wheel, packages):
    """What came of one set, a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment(folder, [wheel, *packages])
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

        def run(*command):
            return subprocess.run(
                [python, *command],
                cwd=folder,
                env=variables | {"OPENBLAS_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
            )

        ask = f"from importlib.metadata import version; print(*map(version, {SHOWN!r}))"
        found = dict(zip(SHOWN, run("-c", ask).stdout.split()))
        short = run(__file__, "--smoke")
        readme = run("-W", "ignore", __file__, "--readme")
    words = "yes" if short.returncode == 0 else "no: " + short.stderr.strip().splitlines()[-1][:90]
    extension = json.loads(short.stdout.splitlines()[-1])["extension"] if short.returncode == 0 else ""
    failed = re.findall(r"^\S*Error: .*|^Got:\n.*", readme.stdout, re.MULTILINE)[:1]
    answer = "yes" if readme.returncode == 0 else f"no: {failed or readme.stdout[-300:]}"
    found |= {"short runs": words, "extension": extension, "README": answer}
    return found


def newest(python, packages):
    """What PyPI serves a Python for the pins, by name, or why it serves nothing."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-"]
    command += ["--python-version", python, "--only-binary=:all:", "--target", "/nowhere", *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"pins": done.stderr.strip().splitlines()[-1][:90]}
    metadata = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    return {one["name"]: one["version"] for one in metadata if one["name"] in SHOWN}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--resolve", nargs="+", metavar="PYTHON")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--readme", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.readme:
        sys.exit(readme())
    if args.smoke:
        return smoke()
    if args.resolve:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        pins = [*project["dependencies"], *project["optional-dependencies"]["arviz"]]
        pins = [re.sub(r"\s", "", pin) for pin in pins]
        for python in args.resolve:
            print(python, newest(python, pins), flush=True)
        return None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    print("| Python | " + " | ".join((*SHOWN, "short runs", "extension", "README")) + " |")
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(folder)
        for one in args.sets:
            print(f"| {version} | " + " | ".join(map(str, tried(wheel, one.split()).values())) + " |", flush=True)


if __name__ == "__main__":
    main()
