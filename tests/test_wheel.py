"""The wheel by itself: built, installed into a clean environment outside the tree, and README's code run there."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("dpppl", "third_party", "pyproject.toml", "setup.py", "README.md", "MANIFEST.in", "LICENSE")


README = """
import doctest, hashlib, itertools, types
from dpppl.randomness import keys

numbers = itertools.count()  # README shows what private runs gave: with the same secret keys each time, they give it
keys.os = types.SimpleNamespace(urandom=lambda count: hashlib.shake_256(b"%d" % next(numbers)).digest(count))
assert not doctest.testfile("README.md", module_relative=False).failed
"""


@pytest.mark.slow
def test_the_wheel_runs_readme_outside_of_the_tree(tmp_path):
    tree, wheels, home = tmp_path / "tree", tmp_path / "wheels", tmp_path / "home"
    tree.mkdir()
    home.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, tree / name)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DPPPL_NATIVE")}

    def run(*command):
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(wheels), str(tree))
    run(sys.executable, "-m", "venv", str(tmp_path / "clean"))
    python = tmp_path / "clean" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", str(next(wheels.glob("dpppl-*.whl"))))
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # What dpppl needs comes from the environment of the tests, after the wheel's own: packages, not the tree.
    (site / "zz_dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    origin = "import dpppl; from dpppl.randomness import native; print(dpppl.__file__, native.available())"
    file, has_extension = run(python, "-c", origin).split()
    assert Path(file).is_relative_to(site)
    assert has_extension == str(shutil.which(sysconfig.get_config_var("CC").split()[0]) is not None)
    shutil.copy(ROOT / "README.md", home)
    run(python, "-c", README)
