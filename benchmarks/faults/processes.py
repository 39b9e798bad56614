"""Commands in processes that a fault can interrupt.

A command is a real process, forked from the harness, which has imported torch and transformers already: it starts in
milliseconds instead of seconds, and a SIGKILL is a SIGKILL. Two ranks run under torchrun's own agent
(``elastic_launch``), which forks them. Runs that torchrun restarts are started by the torchrun command, and their
ranks are new Python processes (rank.py).
"""

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
Work = Callable[[], None]


@dataclass(frozen=True)
class Interruption:
    """A signal at a moment that does not depend on the clock (except for ``delay``, in seconds)."""

    signal: signal.Signals
    after: Literal["operation", "record"]
    """``operation``: a file operation of the process inside the run's folder. ``record``: a line in the run's log."""
    number: int
    delay: float = 0.0
    rank: int = 0
    """The process that counts. SIGKILL hits only this process; other signals hit the whole job, as Ctrl-C does."""

    def __str__(self) -> str:
        later = f" + {1000 * self.delay:.0f} ms" if self.delay else ""
        return f"{self.signal.name} after {self.after} {self.number}{later}, rank {self.rank}"


@dataclass(frozen=True)
class Ended:
    code: int | None
    """Exit code, negative for a signal, None after a timeout."""
    outputs: list[str]
    """stderr of each rank."""
    agent: str = ""
    """stderr of torchrun's agent."""

    @property
    def line(self) -> str | None:
        """The clear line, if the job stopped with one: exit code 2, one last line, no traceback."""
        lines = [output.strip().splitlines()[-1:] for output in self.outputs]
        clear = [line[0] for line in lines if line and line[0].startswith("deberta: ")]
        failed = self.code == 2 or (self.agent and self.code == 1)  # torchrun's own exit code is 1
        return clear[0] if failed and clear and not self.traceback else None

    @property
    def traceback(self) -> bool:
        return any("Traceback" in output or "panicked" in output for output in self.outputs)


@dataclass(frozen=True)
class Launch:
    """How to start a job: its work, the folder in which file operations count, and its log."""

    work: Work
    folder: Path
    log: Path
    """The run's log, for moments after a record."""
    outputs: Path
    """Folder for stderr and for the number of operations."""
    processes: int = 1
    agent: bool = False
    """Whether two processes are ranks under torchrun's agent, or two users' commands at the same time."""
    restarts: int = 0
    arguments: tuple[str, ...] = ()
    """Arguments of rank.py for this launch."""


def run(launch: Launch, interruption: Interruption | None = None, timeout: float = 300) -> Ended:
    """Run a job to its end, or to its interruption. A job that takes longer than ``timeout`` is killed."""
    launch.outputs.mkdir(parents=True, exist_ok=True)
    for old in launch.outputs.glob("*.txt"):
        old.unlink()
    if launch.restarts:
        started = [_torchrun(launch, interruption)]
        timeout *= 3  # new Python processes, not forks
    elif launch.agent:
        started = [_fork(lambda: _agent(launch, interruption), launch.outputs / "agent.txt")]
    else:
        started = []
        for rank in range(launch.processes):
            started.append(_fork(lambda rank=rank: _work(launch, interruption, rank), _stderr(launch, rank)))  # type: ignore[misc]
            time.sleep(0.05 if launch.processes > 1 else 0)
    codes = _wait(started, timeout)
    for pid in started:
        _end_group(pid)
    agent = (launch.outputs / "agent.txt").read_text(errors="replace") if launch.agent else ""
    outputs = [
        _stderr(launch, rank).read_text(errors="replace") if _stderr(launch, rank).exists() else ""
        for rank in range(launch.processes)
    ]
    failed = [code for code in codes if code != 0]
    return Ended(failed[0] if failed else 0, outputs, agent)


def operations(launch: Launch, rank: int = 0) -> int:
    """Number of file operations of the last run that ended by itself."""
    return int((launch.outputs / f"operations-{rank}.txt").read_text())


def _stderr(launch: Launch, rank: int) -> Path:
    return launch.outputs / f"stderr-{rank}.txt"


def _fork(work: Work, stderr: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    code = 1
    try:
        code = _main(work, stderr)
    finally:
        os._exit(code)


def _main(work: Work, stderr: Path) -> int:
    """Do ``work`` as the main program of this process, and end as Python would. Returns the exit code."""
    code = 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    file = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _work(launch: Launch, interruption: Interruption | None, rank: int) -> None:
    """The work of one process, with its interruption."""
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    mine = interruption if interruption is not None and interruption.rank == rank and first else None
    count = _watch(launch, mine)
    try:
        launch.work()
    finally:
        (launch.outputs / f"operations-{rank}.txt").write_text(str(count()))


def _watch(launch: Launch, interruption: Interruption | None) -> Callable[[], int]:
    """Count the file operations of this process; send the signal at its moment. Returns the counter."""
    seen, prefix = 0, str(launch.folder)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event not in OPERATIONS or not isinstance(arguments[0], (str, os.PathLike)):
            return
        if not os.fspath(arguments[0]).startswith(prefix):
            return
        seen += 1
        if interruption is not None and interruption.after == "operation" and seen == interruption.number:
            if interruption.delay:
                threading.Timer(interruption.delay, act).start()
            else:
                act()

    def act() -> None:
        assert interruption is not None
        if interruption.signal == signal.SIGKILL or not launch.agent:
            os.kill(os.getpid(), interruption.signal)
        elif interruption.signal == signal.SIGTERM:
            os.kill(os.getppid(), interruption.signal)  # a scheduler ends torchrun, which ends its ranks
        else:
            os.killpg(0, interruption.signal)  # Ctrl-C reaches every process of the terminal's job

    def poll() -> None:
        assert interruption is not None
        while True:
            try:
                records = launch.log.read_bytes().count(b"\n")
            except OSError:
                records = 0
            if records >= interruption.number:
                time.sleep(interruption.delay)
                act()
                return
            time.sleep(0.001)

    sys.addaudithook(hook)
    if interruption is not None and interruption.after == "record":
        threading.Thread(target=poll, daemon=True).start()
    return lambda: seen


def _torchrun(launch: Launch, interruption: Interruption | None) -> int:
    """Start torchrun. Returns its process id."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--monitor-interval=0.1"]
    command += [f"--nproc-per-node={launch.processes}", f"--max-restarts={launch.restarts}"]
    rank = ["-m", "benchmarks.faults.rank", *launch.arguments, json.dumps(interruption and asdict(interruption))]
    with (launch.outputs / "agent.txt").open("w") as stderr:
        return subprocess.Popen([*command, *rank], stdout=stderr, stderr=stderr, start_new_session=True).pid


def _agent(launch: Launch, interruption: Interruption | None) -> None:
    """What torchrun does, with ranks that are forked instead of started anew."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=launch.processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=str(os.getpid()),
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
    )
    try:
        elastic_launch(config, rank)(launch, interruption)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except SignalException as error:
        sys.exit(128 + error.sigval)
    except KeyboardInterrupt:
        sys.exit(130)


def rank(launch: Launch, interruption: Interruption | None) -> None:
    """Do the work of one rank, in the process that torchrun's agent started."""
    number = int(os.environ["RANK"])
    if code := _main(lambda: _work(launch, interruption, number), _stderr(launch, number)):
        os._exit(code)


def _wait(pids: list[int], timeout: float) -> list[int | None]:
    """Wait for the processes; kill the jobs of those that take too long. Returns their exit codes."""
    end = time.monotonic() + timeout
    codes: dict[int, int | None] = {}
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = None
        time.sleep(0.002)
    return [codes[pid] for pid in pids]


def _end_group(pid: int) -> None:
    """Kill what is left of a job, such as ranks whose agent was killed."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    time.sleep(0.05)
