"""Build the fused attention kernel as a plain shared library next to ``cpu.py``, which loads it with ctypes.

All other package settings are in pyproject.toml. The kernel is optional: without a C++ compiler, the installation
continues without the kernel, and ``debertakit.attention.cpu.reason()`` gives the reason.
"""

import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildKernel(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # The library does not use the Python API, so its name has no Python version. cpu.py looks for this exact name.
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # no PyInit function to export


class BuildWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        # One wheel per platform, for every Python: the kernel is loaded with ctypes.
        return "py3", "none", super().get_tag()[2]


FOLDER = Path("src/debertakit/attention/kernel")
SOURCES = sorted(FOLDER.iterdir())

kernel = Extension(
    "debertakit.attention._kernel",
    sources=[str(FOLDER / "dispatch.cpp")],
    depends=list(map(str, SOURCES)),
    language="c++",
    # cpu.py compares this number with its sources, and refuses a library that was built from others.
    define_macros=[("DEBERTAKIT_SOURCE", f"{zlib.crc32(b''.join(path.read_bytes() for path in SOURCES))}u")],
    # No -march: dispatch.cpp compiles the kernel once per instruction set and selects one at run time.
    extra_compile_args=["-std=c++17", "-O3", "-ffp-contract=fast", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,
)

setup(ext_modules=[kernel], cmdclass={"build_ext": BuildKernel, "bdist_wheel": BuildWheel})
