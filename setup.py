"""Builds the C extension, which may fail: XLA computes the same without it. All else is in pyproject.toml."""

from setuptools import Extension, setup

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # so that every processor draws the same numbers
)
native = Extension(
    "dpppl.randomness._native",
    ["dpppl/randomness/native.c"],
    include_dirs=["third_party"],
    depends=["third_party/xla/ffi/api/c_api.h"],
    extra_compile_args=list(FLAGS),
    libraries=["m"],
    optional=True,
)
setup(ext_modules=[native])
