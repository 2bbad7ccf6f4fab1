"""The C extension is built at installation, works or is left out, and says so. (What it computes: test_chacha, test_random.)"""

import ctypes
import importlib.machinery
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from dpppl.randomness import chacha, native, normal

PROJECT = Path(__file__).parents[2]
instructions_again = native.instructions.__wrapped__


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


@pytest.mark.parametrize("broken", ["missing", "cut", "a wrong block", "a call is missing"])
def test_without_a_working_extension_xla_does_it_and_a_note_says_so(broken, monkeypatch, tmp_path, caplog):
    cut = tmp_path / "_native.so"
    cut.write_bytes(b"\x7fELF")
    found = importlib.machinery.ModuleSpec("dpppl.randomness._native", None, origin=str(cut))
    monkeypatch.delenv("DPPPL_NATIVE", raising=False)
    if broken == "a wrong block" and native.available():
        monkeypatch.setattr(native, "_RFC_8439", (0, 0))
    elif broken == "a call is missing" and native.available():
        monkeypatch.setattr(native, "CALLS", (*native.CALLS, "dpppl_of_a_later_version"))
    else:
        monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: None if broken == "missing" else found)
    assert instructions_again() == "XLA"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "C compiler" in caplog.text


def test_nothing_is_said_where_xla_was_asked_for(monkeypatch, caplog):
    monkeypatch.setenv("DPPPL_NATIVE", "0")
    assert instructions_again() == "XLA" and not caplog.records


@pytest.mark.skipif(native.instructions() == "XLA", reason="the extension was not built")
@pytest.mark.parametrize("version", ["generic", "avx2", "avx512"])
def test_every_version_gives_the_block_of_the_standard_and_the_same_numbers(version, monkeypatch):
    widths, counts = list(native._WIDTHS), (1, 16, 17, 40)
    library = ctypes.CDLL(native.importlib.util.find_spec(native._EXTENSION).origin)
    key, nonce = np.arange(32, dtype=np.uint8), np.array([1, 2, 3], np.uint32)

    def blocks(count):
        out, pointer = np.zeros((16, count), np.uint32), ctypes.c_void_p
        counter = ctypes.c_uint32(2**32 - 9)  # it wraps around
        library.dpppl_blocks(pointer(key.ctypes.data), counter, pointer(nonce.ctypes.data), ctypes.c_int64(count), pointer(out.ctypes.data))  # fmt: skip
        return out

    try:
        library.dpppl_use(0)
        expected = [blocks(count) for count in counts]
        monkeypatch.setenv("DPPPL_NATIVE", version)
        found = instructions_again()
        assert widths.index(found) <= widths.index(version) and native._passes(library)
        assert all(map(np.array_equal, map(blocks, counts), expected))
    finally:
        library.dpppl_use(16)


@pytest.mark.skipif(native.instructions() == "XLA", reason="the extension was not built")
@pytest.mark.parametrize("shapes", [[(5,)], [(30, 400), (), (17,), (0,), (9_000,)]], ids=["one", "several"])
def test_sums_are_noised_with_the_draws_of_their_key(shapes):
    """Of numbers that end within a block, float32 and float64, each part with a scale and a norm of its own; and of several keys."""
    rng = np.random.default_rng(0)
    totals, scales = [rng.normal(size=shape) for shape in shapes], [1.7 + k for k in range(len(shapes))]
    norms, dtypes = [3.0 - 0.1 * k for k in range(len(shapes))], ["float32", "float64"] * len(shapes)
    several = jax.vmap(partial(jax.random.fold_in, chacha.wrap(np.arange(8))))(np.arange(3))
    noised = partial(normal.noised, scales=scales, norms=norms, dtypes=dtypes[: len(shapes)])
    with jax.enable_x64(True):
        together = jax.jit(jax.vmap(lambda key: noised(key, totals)))(several)
        for k, key in enumerate(several):
            alone = noised(key, totals)
            draws = np.asarray(normal.standard_normal(key, sum(total.size for total in totals)))
            pieces = np.split(draws, np.cumsum([total.size for total in totals])[:-1])
            for found, each, total, piece, *rest in zip(together, alone, totals, pieces, scales, norms, dtypes):
                scale, norm, dtype = rest
                expected = ((total + scale * piece.reshape(total.shape)) * norm).astype(dtype)
                assert each.dtype == dtype and np.array_equal(each, expected) and np.array_equal(found[k], expected)
