"""Check an installed wheel: cibuildwheel runs this in a fresh environment, without the other tests' packages."""

import subprocess
import sys
from importlib.resources import files

from debertakit.attention import cpu

for page in ("serving", "explain"):
    assert any(files(f"debertakit.{page}").joinpath("page").iterdir()), f"no page in debertakit.{page}"
assert files("debertakit").joinpath("py.typed").is_file()
print("fused kernel:", cpu.reason() or "available")
assert cpu.available() or sys.platform == "win32", cpu.reason()
subprocess.run([sys.executable, "-m", "debertakit.cli", "--version"], check=True)
