"""The queue with jobs of a few lines of Python instead of training runs."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from debertakit.lab import jobs, worker
from debertakit.lab.jobs import Job, JobFailed, core_groups, run_jobs

SCRIPT = """
import json, os, pathlib, signal, sys, time
settings = json.load(sys.stdin)
done = pathlib.Path(settings["done"])
if sys.argv[1] == "fail":
    sys.exit("deberta: no luck")
if sys.argv[1] == "long":
    signal.signal(signal.SIGTERM, lambda *_: (done.with_suffix(".saved").touch(), sys.exit(143)))
    done.with_suffix(".began").touch()
    time.sleep(60)
affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
done.write_text(json.dumps([affinity, os.environ["OMP_NUM_THREADS"]]))
"""


def quiet(*_: object) -> None:
    pass


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "job.py").write_text(SCRIPT)
    monkeypatch.setattr(jobs, "WORKER", [sys.executable, str(tmp_path / "job.py")])
    monkeypatch.setattr(jobs, "POLL", 0.02)

    def job(name: str, kind: str = "work", **options: object) -> Job:
        done = tmp_path / f"{name}.json"
        return Job(name, kind, {"out": str(done), "done": str(done)}, done, tmp_path / f"{name}.log", **options)

    return job


def test_finished_jobs_are_not_repeated(make):
    wanted = [make("a"), make("b")]
    assert run_jobs(wanted, quiet) == set()
    before = [job.done.stat().st_mtime_ns for job in wanted]
    assert run_jobs([*wanted, make("broken", "fail", may_fail=True)], quiet) == {"broken"}
    assert [job.done.stat().st_mtime_ns for job in wanted] == before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin processes")
def test_each_job_is_pinned_to_its_cores(make):
    run_jobs([make("a")], quiet)
    cores, threads = json.loads(make("a").done.read_text())
    assert [cores] == [group for group in core_groups(1) if group == cores]
    assert threads == "1"
    every = sorted(os.sched_getaffinity(0))
    assert core_groups(len(every)) == [every]
    assert core_groups(10 * len(every)) == [every]  # more threads than cores


def test_a_failure_names_the_log_and_stops_the_others(make):
    long = make("long", "long")
    jobs_with_failure = [make("bad", "fail"), long]
    with pytest.raises(JobFailed, match=r"bad failed: no luck \(.*bad\.log\)"):
        run_jobs(jobs_with_failure, quiet)
    assert not long.finished


def test_sigterm_lets_the_jobs_save(make):
    job = make("long", "long")

    def stop(*_: object) -> None:
        if job.done.with_suffix(".began").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], stop)
    assert job.done.with_suffix(".saved").exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(os.name == "nt", reason="POSIX processes")
def test_a_job_notices_that_its_parent_is_gone(tmp_path):
    """The parent starts a child that waits for its end, and dies; the child gets SIGTERM."""
    child = f"""
        import os, pathlib, signal, sys, threading, time
        sys.path[:0] = {sys.path!r}
        from debertakit.lab import worker
        worker.ORPHAN_POLL = 0.02
        signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(tmp_path / "saved")!r}).touch(), os._exit(0)))
        threading.Thread(target=worker._stop_with, args=(int(sys.argv[1]),), daemon=True).start()
        time.sleep(120)
    """
    (tmp_path / "child.py").write_text(textwrap.dedent(child))
    start = "import os, subprocess, sys; subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid())])"
    subprocess.run([sys.executable, "-c", start, str(tmp_path / "child.py")], check=True)
    for _ in range(6000):
        if (tmp_path / "saved").exists():
            return
        time.sleep(0.02)
    raise AssertionError("the job did not stop")


def test_a_job_waits_for_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "LOCK_POLL", 0.01)
    monkeypatch.setattr(worker, "LOCK_TRIES", 3)
    folder = tmp_path / "lock"
    folder.mkdir()
    with worker.waiting_lock(Path(folder)), pytest.raises(ValueError, match="another job is writing"):  # noqa: SIM117
        with worker.waiting_lock(Path(folder)):
            pass
    with worker.waiting_lock(Path(folder)):
        pass
