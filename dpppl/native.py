"""ChaCha20, normal draws and distinct rows in C for CPUs, many times as fast as by XLA: compiled once by the system's compiler.

The shared library is kept in the user's cache folder, under a digest of the source, the compiler and the machine's kind.
Without a compiler, with DPPPL_NATIVE=0 in the environment, or where the library fails RFC 8439's test vector, XLA computes
the same.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

BLOCKS, NORMAL, DISTINCT = "dpppl_chacha20", "dpppl_normal", "dpppl_distinct"
"""XLA custom calls. The first two: key (..., 8), counter (..., 1), nonce (..., 3), uint32, to blocks (..., 16, count) uint32,
or to normal draws (..., 8, count) float64. The third: draws (..., count) uint32, number of rows (..., 1) uint32, size (..., 1)
int32, to index (..., count) int32 and mask (..., count) bool."""

_SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-std=gnu11", "-shared", "-fPIC")
_RFC_8439 = 0xE4E7F110, 0x4E3C50A2
"""First and last word of the block of section 2.3.2."""


def call(target: str, like: Any, *operands: Any) -> Any:
    """The custom call, also under jax.vmap."""
    return jax.ffi.ffi_call(target, like, vmap_method="broadcast_all")(*operands)


@functools.cache
def available() -> bool:
    """Whether the calls are registered on CPUs; compiles and registers them the first time."""
    if os.environ.get("DPPPL_NATIVE") == "0":
        return False
    try:
        library = ctypes.CDLL(str(_compiled()))
    except (OSError, AttributeError, subprocess.SubprocessError):  # AttributeError: no owners of folders here
        return False
    if not _passes(library):
        return False
    for target in (BLOCKS, NORMAL, DISTINCT):
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return True


def _compiled() -> Path:
    """The shared library. Raises OSError without a compiler, or without a folder that nobody else may write to."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    facts = _SOURCE.read_bytes(), _FLAGS, jax.__version__, compiler, platform.platform(), _instructions()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpppl"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise PermissionError(f"{folder} can be written to by others")
    library = folder / f"native-{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:
            made = Path(own) / library.name
            arguments = [compiler, *_FLAGS, "-I", jax.ffi.include_dir(), str(_SOURCE), "-o", str(made), "-lm"]
            subprocess.run(arguments, check=True, capture_output=True, timeout=60)
            made.replace(library)
    return library


def _instructions() -> list[str]:
    """What this machine's processor can do, as far as the system says: a folder may be shared by several machines."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else [platform.processor()]
    return sorted({line for line in lines if line.lower().startswith(("flags", "features"))})


def _passes(library: ctypes.CDLL) -> bool:
    """Whether it gives the block of RFC 8439, section 2.3.2."""
    key, nonce, out = (
        np.arange(32, dtype=np.uint8),
        np.array([0x09000000, 0x4A000000, 0], np.uint32),
        np.zeros(16, np.uint32),
    )
    address = lambda x: ctypes.c_void_p(x.ctypes.data)  # noqa: E731
    library.dpppl_blocks(address(key), ctypes.c_uint32(1), address(nonce), ctypes.c_int64(1), address(out))
    return (int(out[0]), int(out[-1])) == _RFC_8439
