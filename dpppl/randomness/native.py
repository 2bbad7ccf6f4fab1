"""ChaCha20, normal draws, noised sums, distinct rows and stored numbers in C for CPUs, faster than by XLA: an extension, built at
installation.

Where it was not built, with DPPPL_NATIVE=0 in the environment, or where it fails RFC 8439's test vector, XLA computes the
same. DPPPL_NATIVE=avx512, avx2 or generic forbids wider vectors: the same numbers, drawn by other instructions.
"""

import ctypes
import functools
import importlib.util
import logging
import os

import jax
import numpy as np

from dpppl.types import Tree

CALLS = BLOCKS, NORMAL, NOISED, STORED, DISTINCT = (
    "dpppl_chacha20", "dpppl_normal", "dpppl_noised", "dpppl_stored", "dpppl_distinct",
)  # fmt: skip
"""XLA custom calls, with numbers uint32 unless stated:

- key (..., 8), counter (..., 1), nonce (..., 3), to blocks (..., 16, count);
- the same, to normal draws (..., 8, count) float64;
- key, nonce, scales and norms (..., L) float64, and L arrays float64, to L arrays like these, float32 or float64;
- an array of 4 or 8 bytes a number, to itself;
- draws (..., count), number of rows (..., 1), size (..., 1) int32, to index (..., count) int32 and mask (..., count) bool."""

_EXTENSION = "dpppl.randomness._native"
_RFC_8439 = 0xE4E7F110, 0x4E3C50A2
"""First and last word of the block of section 2.3.2."""
_WIDTHS = {"generic": 4, "avx2": 8, "avx512": 16}
"""Blocks of ChaCha20 that the versions compute at a time."""


def call(target: str, like: Tree, *operands: jax.Array, in_place: bool = False) -> Tree:
    """The custom call, also under jax.vmap. `in_place`: results may be the operands' memory."""
    aliases = {k: k for k in range(len(operands))} if in_place else None
    return jax.ffi.ffi_call(target, like, vmap_method="broadcast_all", input_output_aliases=aliases)(*operands)


def available() -> bool:
    """Whether the calls are registered on CPUs; registers them the first time, or logs a warning."""
    return instructions() != "XLA"


@functools.cache
def instructions() -> str:
    """Which version draws numbers: "avx512", "avx2", "generic", or "XLA" where the calls are not registered."""
    if os.environ.get("DPPPL_NATIVE") == "0":
        return "XLA"
    library = _library()
    if library is None:
        logging.getLogger(__name__).warning(
            "dpppl's C extension was not built: XLA draws the same noise, three to five times as slowly on CPUs. Install dpppl "
            "again where a C compiler is found, or set DPPPL_NATIVE=0 to leave out this note."
        )
        return "XLA"
    for target in CALLS:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return next(name for name, width in _WIDTHS.items() if width == library.dpppl_use(_widest()))


def _library() -> ctypes.CDLL | None:
    """The extension, if it is there and works."""
    found = importlib.util.find_spec(_EXTENSION)
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
        library.dpppl_use(_widest())
    except (OSError, AttributeError):  # AttributeError: built of an older version
        return None
    return library if all(hasattr(library, target) for target in CALLS) and _passes(library) else None


def _widest() -> int:
    """The widest vectors that the environment allows, in blocks."""
    return _WIDTHS.get(os.environ.get("DPPPL_NATIVE", ""), max(_WIDTHS.values()))


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
