"""Run the tests on several Pythons, library versions and CPU settings, and keep the results.

    python -m tests.matrix                          every row, one after another
    python -m tests.matrix --only python-3.13       one row (repeat --only for more)
    python -m tests.matrix --list
    python -m tests.matrix --markdown docs/machines.md --only none    rewrite the table from the kept results

A row with its own Python or versions gets an environment from `make install`; the other rows use the current
interpreter. Environments and results (one JSON object per line) are kept in --folder, outside the repository.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "debertakit-matrix"
SUITE = ("tests", "--ignore=tests/clients")
NUMERIC = (  # the fast half of everything that CPU instructions, threads or the kernel can change
    *("tests/attention", "tests/objectives", "tests/pretraining", "tests/generation", "tests/inference"),
    *("tests/test_model.py", "tests/test_heads.py", "tests/test_decoding.py", "tests/test_acceleration.py"),
    *("-m", "not slow"),
)
BF16 = {"on": "1", "off": "0"}
PRECISION = ("tests/test_precision.py", "tests/finetuning", "tests/pretraining", "tests/objectives")


@dataclass(frozen=True)
class Row:
    name: str
    tests: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    python: str = ""  # "3.10"; empty: the current interpreter
    versions: str = "constraints.txt"  # or "lowest", "newest"


ROWS = [
    Row("default", SUITE),
    *(Row(f"aten-{isa}", NUMERIC, {"ATEN_CPU_CAPABILITY": isa}) for isa in ("default", "avx2", "avx512")),
    *(
        Row(f"onednn-{isa.lower()}", NUMERIC, {"ONEDNN_MAX_CPU_ISA": isa})
        for isa in ("SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16")
    ),
    *(Row(f"bf16-{state}", PRECISION, {"DEBERTAKIT_BF16": value}) for state, value in BF16.items()),
    *(Row(f"threads-{count}", NUMERIC, {"OMP_NUM_THREADS": str(count)}) for count in (1, 2, 4)),
    Row("no-kernel", NUMERIC, {"DEBERTAKIT_KERNEL": "0"}),
    *(Row(f"python-{version}", SUITE, python=version) for version in ("3.10", "3.11", "3.12", "3.13")),
    *(
        Row(f"python-{version}-bf16-{state}", PRECISION, {"DEBERTAKIT_BF16": value}, python=version)
        for version in ("3.10", "3.13")
        for state, value in BF16.items()
    ),
    Row("lowest", SUITE, python="3.10", versions="lowest"),
    Row("newest", SUITE, python="3.13", versions="newest"),
]

PROBE = """
import json, platform, torch
from importlib.metadata import version
from debertakit.attention import cpu
facts = {name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
library = cpu._library()[0]
facts |= {"python": platform.python_version(), "aten": torch.backends.cpu.get_cpu_capability()}
facts["kernel"] = "off" if library is None else library.attention_isa().decode()
facts["bf16"] = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
print(json.dumps(facts))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="ROW", help="run this row; repeat for more rows")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--folder", type=Path, default=CACHE, help="environments and results (default: %(default)s)")
    parser.add_argument("--workers", default="2", help="pytest processes")
    parser.add_argument("--markdown", type=Path, help="rewrite the table in this file from the last result of each row")
    arguments = parser.parse_args()
    if arguments.list:
        return print("\n".join(row.name for row in ROWS))
    names = [] if arguments.only == ["none"] else arguments.only or [row.name for row in ROWS]
    if unknown := set(names) - {row.name for row in ROWS}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; see --list")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results = arguments.folder / "results.jsonl"
    failed = False
    for row in (row for row in ROWS if row.name in names):
        result = run(row, arguments.folder, arguments.workers)
        with results.open("a") as file:
            print(json.dumps(result), file=file)
        print(table_line(result), *result["failures"], sep="\n  ", flush=True)
        failed = failed or bool(result["failed"]) or not result["passed"]
    if arguments.markdown:
        last = {result["row"]: result for result in map(json.loads, results.read_text().splitlines())}
        write_table(arguments.markdown, [last[row.name] for row in ROWS if row.name in last])
    sys.exit(failed)


def run(row: Row, folder: Path, workers: str) -> dict:
    python = install(row, folder) if row.python else Path(sys.executable)
    # PYTHONPATH: an environment in --folder may have been installed from another checkout
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **row.environment}
    probe = subprocess.run(
        [python, "-W", "ignore", "-c", PROBE], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    report, log = folder / f"{row.name}.xml", folder / f"{row.name}.log"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-n", workers, "--dist", "worksteal", f"--junitxml={report}", *row.tests]
    start = time.monotonic()
    with log.open("w") as output:
        code = subprocess.run(command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT).returncode
    if not report.exists():
        raise SystemExit(f"{row.name}: pytest ended with exit code {code} and wrote no report; see {log}")
    suite = ElementTree.parse(report).getroot().find("testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    return {
        "row": row.name,
        "date": time.strftime("%Y-%m-%d"),
        "commit": git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else ""),
        "machine": machine(),
        "settings": " ".join(f"{name}={value}" for name, value in row.environment.items()),
        "tests": "all" if row.tests == SUITE else shlex.join(row.tests),
        **json.loads(probe.stdout.splitlines()[-1]),
        "passed": counts["tests"] - failed - counts["skipped"],
        "failed": failed,
        "skipped": counts["skipped"],
        "seconds": round(time.monotonic() - start),
        "failures": re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(), re.MULTILINE),
    }


def install(row: Row, folder: Path) -> Path:
    """Return the Python of the row's environment. `make install` creates or updates the environment if needed."""
    name = f"python-{row.python}" if row.versions == "constraints.txt" else row.name
    venv, constraints = folder / name, folder / f"{name}.txt"
    wanted = {
        "constraints.txt": (ROOT / "constraints.txt").read_text(),
        "lowest": "\n".join(f"{name}=={floor}" for name, floor in floors()) + "\n",
        "newest": "",
    }[row.versions]
    if not constraints.exists() or constraints.read_text() != wanted:  # write only changes: make compares file dates
        constraints.write_text(wanted)
    command = ["make", "--no-print-directory", "install", f"PYTHON={interpreter(row.python)}", f"VENV={venv}"]
    subprocess.run([*command, f"CONSTRAINTS={constraints}"], cwd=ROOT, check=True)
    return venv / "bin" / "python"


def floors() -> list[tuple[str, str]]:
    """Read the lower bounds in pyproject.toml: [("torch", "2.9"), ...]"""
    _, _, requirements = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")
    return re.findall(r'"([a-z-]+)(?:\[\w+\])?>=([\d.]+)', requirements)


def interpreter(version: str) -> Path:
    """Find `python3.10` (for example) in pyenv or on the PATH."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    found = pyenv[-1] if pyenv else shutil.which(f"python{version}")
    if found is None:
        raise SystemExit(f"no Python {version} in ~/.pyenv or on the PATH")
    return Path(found)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown CPU'}, {os.cpu_count()} cores"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def table_line(result: dict) -> str:
    versions = f"torch {result['torch']}, transformers {result['transformers']}, numpy {result['numpy']}"
    seen = f"{result['aten']}, kernel {result['kernel']}"
    outcome = f"{result['passed']:,} passed, {result['failed']} failed, {result['skipped']} skipped"
    part = "all" if result["tests"] == "all" else "part"
    command = f"`make test-matrix ARGS='--only {result['row']}'`"
    return (
        f"| {command} | {result['settings'] or '–'} | {result['python']} | {versions} | {seen} | {part} | "
        f"{outcome} | {result['seconds'] / 60:.0f} min | {result['date']}, {result['commit']} |"
    )


def write_table(file: Path, results: list[dict]) -> None:
    """Replace the text between the two markers in the file."""
    head = (
        "| command | settings | Python | versions | torch's CPU capability, our kernel | tests | outcome | time | run |"
    )
    machines = sorted({result["machine"] for result in results})
    table = "\n".join([f"Machine: {'; '.join(machines)}.", "", head, "|---" * 9 + "|", *map(table_line, results)])
    before, mark, rest = file.read_text().partition("<!-- matrix -->\n")
    _, end, after = rest.partition("<!-- end of matrix -->")
    if not mark or not end:
        raise SystemExit(f"{file}: no <!-- matrix --> ... <!-- end of matrix --> marks")
    file.write_text(f"{before}{mark}{table}\n{end}{after}")


if __name__ == "__main__":
    main()
