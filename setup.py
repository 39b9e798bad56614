"""Builds the fused attention kernel as a plain shared library beside ``cpu.py``, which loads it with ctypes.

All else about the package stands in pyproject.toml. The kernel is optional: where there is no C++ compiler the
installation goes on without it, and ``debertakit.attention.cpu.reason()`` says so.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildKernel(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # No Python inside, so no Python version in the name: cpu.py looks for exactly this file.
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # no PyInit function to export


kernel = Extension(
    "debertakit.attention._kernel",
    sources=["src/debertakit/attention/kernel.cpp"],
    language="c++",
    # No -march: the file holds one version per instruction set and chooses at run time.
    extra_compile_args=["-std=c++17", "-O3", "-ffp-contract=fast", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,
)

setup(ext_modules=[kernel], cmdclass={"build_ext": BuildKernel})
