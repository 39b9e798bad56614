"""One seeded run: start a job, inject a fault, resume as a user would, and compare with the undisturbed run."""

import random
import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from benchmarks.faults.damage import Damaged, damage, enlarge, small_disk
from benchmarks.faults.jobs import Job, jobs, make_material
from benchmarks.faults.processes import Ended, Interruption, operations, run

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
DAMAGE = ("read error", "flipped bit", "truncation")
DISK, RESTART = "disk full", "SIGKILL, restarted"
KINDS = (*SIGNALS, RESTART, DISK, *DAMAGE)
Outcome = Literal["resumed", "clear line", "lost"]


@dataclass(frozen=True)
class Reference:
    """The undisturbed run of a job."""

    result: dict[str, bytes]
    operations: int
    records: int
    bytes: int
    """Disk use at the end."""


@dataclass
class Run:
    number: int
    job: str
    kind: str
    fault: str = ""
    outcome: Outcome = "lost"
    why: str = ""
    """The clear line, or the reason for which the run is lost."""


@dataclass
class Harness:
    folder: Path
    references: dict[str, Reference] = field(default_factory=dict)

    @property
    def material(self) -> Path:
        return self.folder / "material"

    def reference(self, job: Job) -> Reference:
        if not self.material.exists():
            make_material(self.material)
        if job.name not in self.references:
            folder = self.folder / "reference"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            alone = job if job.agent else replace(job, processes=1)
            launch = alone.launch(self.material, folder, self.folder / "outputs", False)
            ended = run(launch)
            result = job.result(folder)
            if ended.code != 0 or not result:
                raise RuntimeError(f"{job.name} fails without a fault: {ended}")
            log = folder / job.log.replace(".part", "")
            records = log.read_bytes().count(b"\n") if log.exists() else 0
            used = sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))
            self.references[job.name] = Reference(result, operations(launch), records, used)
        return self.references[job.name]

    def inject(self, number: int, seed: int, job: Job, kind: str) -> Run:
        """Do run ``number``. Everything random in it comes from the seed and the number."""
        draw = random.Random(f"{seed}/{number}")
        reference = self.reference(job)
        folder = self.folder / "work"
        outcome = Run(number, job.name, kind)
        share = draw.uniform(0.1, 1.0)
        late = draw.uniform(0.3, 1.0)
        for attempt in range(8):  # a disk that was large enough, or a moment before there was a file to damage
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            disk: AbstractContextManager[None] = nullcontext()
            if kind == DISK:
                share *= 0.8 if attempt else 1.0
                disk = small_disk(folder, int(share * reference.bytes))
                outcome.fault = f"disk of {share * reference.bytes / 1024:.0f} KiB"
            with disk:
                if self._happened(outcome, job, kind, folder, draw, min(1.0, late + attempt / 8)):
                    return outcome
        outcome.why = "the fault never happened"
        return outcome

    def _happened(self, outcome: Run, job: Job, kind: str, folder: Path, draw: random.Random, late: float) -> bool:
        """Start the job, inject the fault and resume. Returns False if the fault did not happen."""
        reference = self.reference(job)
        outputs = self.folder / "outputs"
        if kind == DISK:
            interruption = None
        else:
            interruption = _interruption(job, kind, reference, draw, late)
            outcome.fault = str(interruption)
        restarted = kind == RESTART
        started = replace(job, restarts=1) if restarted else job
        launch = started.launch(self.material, folder, outputs, restarted)
        first = run(launch, interruption)
        if first.code == 0 and not restarted:
            return False
        if wrong := _wrong_stop(first, kind, job):
            outcome.why = wrong
            return True
        if wrong := _half_written(job.result(folder), reference.result):
            outcome.why = f"accepted as complete after the fault: {wrong}"
            return True
        if restarted:
            self._judge(outcome, first, job, folder, (), "")
            return True
        damaged: list[Damaged] = []
        target = ""
        if kind in DAMAGE:
            shutil.rmtree(self.folder / "backups", ignore_errors=True)
            found = {name: files for name, pattern in job.targets.items() if (files := _files(folder, pattern))}
            if not found:
                return False
            target = draw.choice(sorted(found))
            damaged = [damage(draw.choice(found[target]), kind, draw, self.folder / "backups")]
            outcome.fault += f"; {target}: {damaged[0].what}"
        if kind == DISK:
            enlarge(folder)
        job = job if job.agent else replace(job, processes=1)  # one of two commands is repeated
        complete = not damaged and not _missing(job.result(folder), reference.result) and not _leftover(folder)
        # A signal after the last operation, or the other of two commands did the work: nothing is left to repeat.
        again = Ended(0, []) if complete and not job.agent else run(job.launch(self.material, folder, outputs, True))
        self._judge(outcome, again, job, folder, damaged, target)
        return True

    def _judge(
        self, outcome: Run, ended: Ended, job: Job, folder: Path, damaged: Sequence[Damaged], target: str
    ) -> None:
        """Set the outcome of the resumed run. After a clear line, follow its advice."""
        reference = self.reference(job).result
        for attempt in range(3):
            if ended.code == 0:
                expected = {name: value for name, value in reference.items() if name != "log.jsonl" or target != "log"}
                wrong = _half_written(job.result(folder), expected) or _missing(job.result(folder), expected)
                wrong = wrong or _leftover(folder)
                outcome.outcome = "lost" if wrong else "clear line" if attempt else "resumed"
                outcome.why = wrong or outcome.why
                return
            if ended.line is None:
                outcome.why = _reason(ended)
                return
            outcome.why = ended.line.replace(str(folder), "OUT")
            if str(folder) not in ended.line and " --" not in ended.line:
                outcome.why = f"the line names no file and no option: {outcome.why}"
                return
            _follow(ended.line, folder, damaged)
            ended = run(job.launch(self.material, folder, self.folder / "outputs", True))
        outcome.why = f"the advice did not help: {outcome.why}"


def plan(runs: int, names: Sequence[str], kinds: Sequence[str]) -> list[tuple[Job, str]]:
    """Every pair of job and kind in turn."""
    pairs = [
        (job, kind)
        for kind in KINDS
        for job in jobs()
        if (not names or job.name in names) and (not kinds or kind in kinds) and (kind != RESTART or job.agent)
    ]
    return [pairs[number % len(pairs)] for number in range(runs)]


def _interruption(job: Job, kind: str, reference: Reference, draw: random.Random, late: float) -> Interruption:
    chosen = SIGNALS.get(kind, signal.SIGKILL)
    rank = draw.randrange(2) if job.agent and chosen == signal.SIGKILL else 0
    after: Literal["operation", "record"] = "operation"
    if reference.records and (rank or draw.random() < 0.3):
        after = "record"
    total = reference.operations if after == "operation" else reference.records
    number = max(1, round(late * total)) if kind in DAMAGE else draw.randint(1, total)
    return Interruption(chosen, after, number, draw.choice((0.0, 0.0, draw.uniform(0.0, 0.03))), rank)


def _wrong_stop(ended: Ended, kind: str, job: Job) -> str | None:
    """What is wrong with the way in which the job stopped at the fault."""
    if ended.code is None:
        return "hangs after the fault"
    if ended.traceback:
        return _reason(ended)
    if kind == DISK and ended.code != 0 and ended.line is None:
        return _reason(ended)
    if job.agent and kind == "SIGKILL" and ended.code != 0 and not re.search(r"rank\s*:?\s*[01]", ended.agent):
        return f"does not name the rank that died: {ended.agent[-300:]}"
    return None


def _half_written(found: dict[str, bytes], expected: dict[str, bytes]) -> str | None:
    wrong = [name for name, content in found.items() if name in expected and content != expected[name]]
    return f"{', '.join(wrong)} differ from the undisturbed run" if wrong else None


def _missing(found: dict[str, bytes], expected: dict[str, bytes]) -> str | None:
    missing = [name for name in expected if name not in found]
    return f"no {', '.join(missing)}" if missing else None


def _leftover(folder: Path) -> str | None:
    left = [path.relative_to(folder).as_posix() for path in folder.rglob("*.part*")]
    return f"left behind: {', '.join(left)}" if left else None


def _reason(ended: Ended) -> str:
    if ended.code is None:
        return "hangs"
    for output in ended.outputs:
        if "Traceback" in output or "panicked" in output:
            return f"traceback, exit code {ended.code}: {output.strip().splitlines()[-1]}"
    return f"exit code {ended.code}: {(' / '.join(ended.outputs) + ended.agent).strip()[-300:]}"


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file() and path.stat().st_size)


def _follow(line: str, folder: Path, damaged: Sequence[Damaged]) -> None:
    """Do what a clear line advises: delete, start anew, or only repeat the command. Else put the damaged file back."""
    if "prepare the corpus again" in line and "delete" not in line:
        return
    if "choose another --out" in line and "--resume" not in line:
        for path in folder.iterdir():
            _delete(path)
        return
    advised = re.search(r"\b(?:delete|remove) (\S+)", line)
    if advised:
        place = Path(advised[1].rstrip(",;.:"))
        if not place.is_relative_to(folder):  # "delete the folder", "remove it": the one that the line names
            named = [Path(word.rstrip(",;.:")) for word in line.split() if word.startswith(str(folder))]
            place = named[0] if named else folder
            place = place.parent if "delete the folder" in line and not place.is_dir() else place
        if place != folder and place.exists():
            _delete(place)
            return
    for each in damaged:
        each.repair()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
