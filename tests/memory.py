"""Run the kernel tests with a kernel that detects memory errors and undefined behaviour.

    make sanitize      AddressSanitizer, then UndefinedBehaviorSanitizer (needs g++)
    make valgrind      Valgrind's memcheck (needs valgrind)

Each tool has its own copy of the package in build/. The installed kernel does not change.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
TESTS = [f"tests/attention/test_{name}.py" for name in ("cpu", "arguments", "library")]
# One at a time and with -O1: with both sanitizers in one library, g++ takes many minutes to compile the kernel.
# -fno-wrapv: most Pythons compile extensions with -fwrapv, which defines signed overflow and so hides it from UBSan.
SANITIZERS = {
    "address": "-g -O1 -fno-omit-frame-pointer -fsanitize=address",
    "undefined": "-g -O1 -fno-omit-frame-pointer -fno-wrapv -fsanitize=undefined -fno-sanitize-recover=all",
}
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so"}


def build(name: str, flags: str) -> Path:
    """Copy the package to build/NAME and compile the copy's kernel with these flags. Returns the folder."""
    folder = ROOT / "build" / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "debertakit", folder / "debertakit", ignore=shutil.ignore_patterns("*.so"))
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--force"]
    command += ["--build-lib", str(folder), "--build-temp", str(folder / "temp")]
    environment = {**os.environ, "CC": "gcc", "CXX": "g++", "CFLAGS": flags, "CXXFLAGS": flags, "LDFLAGS": flags}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    if not (folder / "debertakit/attention/_kernel.so").exists():
        sys.exit("the kernel was not built; see the lines above")
    return folder


def pytest(folder: Path, prefix: list[str], arguments: list[str], **environment: str) -> int:
    """Run pytest on the copy in this folder. -s: reports of the tools are written directly to the terminal."""
    command = [*prefix, sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(folder), **environment}).returncode


def sanitize() -> int:
    if shutil.which("g++") is None:
        sys.exit("make sanitize needs g++ with its sanitizer libraries (Debian, Ubuntu: apt install g++)")
    return max(sanitize_with(name) for name in SANITIZERS)


def sanitize_with(name: str) -> int:
    print(f"{name} sanitizer: compiling the kernel", flush=True)
    folder = build(f"sanitize-{name}", SANITIZERS[name])
    if RUNTIMES[name].removesuffix("so").encode() not in (folder / "debertakit/attention/_kernel.so").read_bytes():
        sys.exit(f"the kernel was built without the {name} sanitizer")
    # Python is not sanitized, so the runtime comes first. It looks up exceptions in libstdc++ when it starts.
    libraries = [
        subprocess.run(["g++", f"-print-file-name={file}"], capture_output=True, text=True, check=True).stdout.strip()
        for file in (RUNTIMES[name], "libstdc++.so")
    ]
    # Python and torch keep memory until the process ends, so leaks cannot be told from theirs.
    return pytest(
        folder,
        [],
        TESTS,
        LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="print_stacktrace=1",
    )


def valgrind() -> int:
    """Python and torch cause reports of their own. Only reports with the kernel in their stack count."""
    if shutil.which("valgrind") is None:
        sys.exit("make valgrind needs valgrind (Debian, Ubuntu: apt install valgrind)")
    folder = build("valgrind", "-g -O1")
    report = folder / "report.xml"
    # Without this file, a crash of valgrind would look like a run without errors.
    report.unlink(missing_ok=True)
    prefix = ["valgrind", "--quiet", "--error-limit=no", "--num-callers=30", "--xml=yes", f"--xml-file={report}"]
    code = pytest(folder, prefix, TESTS, PYTHONMALLOC="malloc", OMP_NUM_THREADS="1")
    errors = ElementTree.parse(report).getroot().findall("error")
    ours = [error for error in errors if any((o.text or "").endswith("/_kernel.so") for o in error.iter("obj"))]
    for error in ours:
        print(ElementTree.tostring(error, encoding="unicode"))
    print(f"valgrind: {len(ours)} errors in the kernel, {len(errors) - len(ours)} elsewhere (Python, torch)")
    return code or bool(ours)


if __name__ == "__main__":
    sys.exit({"sanitize": sanitize, "valgrind": valgrind}[sys.argv[1]]())
