"""What the remaining ranks of a job say when one of them ends."""

import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from debertakit.training.ranks import is_lost_rank, naming_lost_ranks

SCRIPT = """
import os, signal
import torch, torch.distributed as dist
from datetime import timedelta
from debertakit.training.ranks import connect, naming_lost_ranks
try:
    with naming_lost_ranks():
        connect("gloo", timedelta(minutes=5))
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
except ConnectionError as error:
    print(error, flush=True)
"""


@pytest.mark.slow
def test_the_lost_rank_is_named(tmp_path):
    """Three ranks without torchrun, which would end the others itself before they notice. Like the agent of torchrun,
    this process holds their store: in rank 0, the store would end with rank 0 while rank 2 still reads it."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    environment |= {"MASTER_PORT": str(store.port), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    said = [process.communicate(timeout=300)[0] for process in ranks]
    for rank in (0, 2):
        assert said[rank].startswith(f"rank {rank} stopped because rank 1 of 3 ended"), said
    assert not said[1]


RESTARTED = """
import os, pathlib, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from debertakit.training.ranks import connect, naming_lost_ranks
rank, start = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if rank == 0 and start == 1:
    time.sleep(2)  # the other rank looks for its address first
with naming_lost_ranks():
    connect("gloo", timedelta(minutes=5))
    if rank == 0 and start == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.ones(1)
    dist.all_reduce(total)
pathlib.Path(sys.argv[1], f"start-{start}-rank-{rank}").write_text(f"{total.item():.0f}")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_starts_the_ranks_again(tmp_path):
    (tmp_path / "job.py").write_text(RESTARTED)
    out = tmp_path / "out"
    out.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [*torchrun, str(tmp_path / "job.py"), str(out)], capture_output=True, text=True, env=environment, timeout=300
    )
    assert found.returncode == 0, found.stderr
    assert {file.name: file.read_text() for file in out.iterdir()} == {"start-1-rank-0": "2", "start-1-rank-1": "2"}


def test_another_rank_is_lost_before_the_ranks_are_connected(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    error = RuntimeError("Gloo connectFullMesh failed with [...] timed out connecting: SO_ERROR: Connection refused")
    with pytest.raises(ConnectionError, match="rank 1 stopped because rank 0 of 2 ended"), naming_lost_ranks():
        raise error


def test_other_errors_stay_what_they_are(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), naming_lost_ranks():
        raise RuntimeError("shapes cannot be multiplied")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="Connection reset"), naming_lost_ranks():
        raise RuntimeError("Connection reset by peer")
    assert not is_lost_rank(ValueError("Connection reset by peer"))
