"""Build the fused attention kernel as a plain shared library next to ``cpu.py``, which loads it with ctypes.

All other package settings are in pyproject.toml. The kernel is optional: without a C++ compiler, the installation
continues without the kernel, and ``debertakit.attention.cpu.reason()`` gives the reason.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildKernel(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # The library does not use the Python API, so its name has no Python version. cpu.py looks for this exact name.
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # no PyInit function to export


kernel = Extension(
    "debertakit.attention._kernel",
    sources=["src/debertakit/attention/kernel.cpp"],
    language="c++",
    # No -march: the source has one version per instruction set and selects one at run time.
    extra_compile_args=["-std=c++17", "-O3", "-ffp-contract=fast", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,
)

setup(ext_modules=[kernel], cmdclass={"build_ext": BuildKernel})
