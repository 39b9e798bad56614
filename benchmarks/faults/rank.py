"""One rank of a job under torchrun: NAME MATERIAL FOLDER OUTPUTS INTERRUPTION (as JSON). Started by processes.py."""

import json
import signal
import sys
from pathlib import Path

from benchmarks.faults import processes
from benchmarks.faults.jobs import jobs


def main(name: str, material: str, folder: str, outputs: str, interruption: str) -> None:
    job = next(job for job in jobs() if job.name == name)
    fields = json.loads(interruption)
    planned = fields and processes.Interruption(**{**fields, "signal": signal.Signals(fields["signal"])})
    processes.rank(job.launch(Path(material), Path(folder), Path(outputs), True), planned)


if __name__ == "__main__":
    main(*sys.argv[1:])
