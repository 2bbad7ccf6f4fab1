"""Build the C library, which may fail: XLA computes the same without it. All else is in pyproject.toml."""

import shutil

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# Without fused multiplications and additions every processor draws the same numbers.
FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
CLANG_CL = ["/O2", "-Wno-everything", *(f"/clang:{flag}" for flag in FLAGS)]


class BuildLibrary(build_ext):
    """Build a library without Python's API: one file for every Python."""

    def build_extension(self, extension):
        """Choose flags by compiler. MSVC has no vector types, so on Windows its own copy of clang compiles."""
        if self.compiler.compiler_type == "msvc":
            self.compiler.initialize()
            self.compiler.cc = shutil.which("clang-cl") or r"C:\Program Files\LLVM\bin\clang-cl.exe"
            extension.extra_compile_args, extension.libraries = CLANG_CL, []
        super().build_extension(extension)

    def get_export_symbols(self, extension):
        """Name the functions of the library. There is no PyInit."""
        return extension.export_symbols


class AnyPython(bdist_wheel):
    """Tag the wheel `py3-none-<platform>`."""

    def get_tag(self):
        """Leave out the version of Python."""
        return "py3", "none", super().get_tag()[2]


native = Extension(
    "dpppl.randomness._native",
    ["dpppl/randomness/native.c"],
    include_dirs=["third_party"],
    depends=["third_party/xla/ffi/api/c_api.h"],
    extra_compile_args=FLAGS,
    libraries=["m"],
    export_symbols=[
        "dpppl_blocks",
        "dpppl_use",
        "dpppl_chacha20",
        "dpppl_normal",
        "dpppl_noised",
        "dpppl_stored",
        "dpppl_distinct",
    ],
    py_limited_api=True,
    optional=True,
)
setup(ext_modules=[native], cmdclass={"build_ext": BuildLibrary, "bdist_wheel": AnyPython})
