"""The C extension is built at installation, works or is left out, and says so. (What it computes: test_chacha, test_random.)"""

import ctypes
import importlib.machinery
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpppl.randomness import native

PROJECT = Path(__file__).parents[2]
available_again = native.available.__wrapped__


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [os.environ.get("CC", "cc"), "no-such-compiler"])
def test_installing_builds_it_where_there_is_a_compiler(compiler, tmp_path):
    pytest.importorskip("setuptools")
    command = ["setup.py", "--quiet", "build_ext", "--build-lib", tmp_path, "--build-temp", tmp_path / "objects"]
    subprocess.run(
        [sys.executable, *command], cwd=PROJECT, env=os.environ | {"CC": compiler}, check=True, capture_output=True
    )
    built = list((tmp_path / "dpppl" / "randomness").glob("_native*"))
    assert len(built) == (shutil.which(compiler) is not None)
    assert all(native._passes(ctypes.CDLL(str(library))) for library in built)


@pytest.mark.parametrize("broken", ["missing", "cut", "a wrong block"])
def test_without_a_working_extension_xla_does_it_and_a_note_says_so(broken, monkeypatch, tmp_path, caplog):
    cut = tmp_path / "_native.so"
    cut.write_bytes(b"\x7fELF")
    found = importlib.machinery.ModuleSpec("dpppl.randomness._native", None, origin=str(cut))
    monkeypatch.delenv("DPPPL_NATIVE", raising=False)
    if broken == "a wrong block" and native.available():
        monkeypatch.setattr(native, "_RFC_8439", (0, 0))
    else:
        monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: None if broken == "missing" else found)
    assert not available_again()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "C compiler" in caplog.text


def test_nothing_is_said_where_xla_was_asked_for(monkeypatch, caplog):
    monkeypatch.setenv("DPPPL_NATIVE", "0")
    assert not available_again() and not caplog.records
