"""Fuzz a running `deberta serve` with schemathesis, from its own OpenAPI schema.

    python -m benchmarks.fuzz_api --examples 300 --seed 1

schemathesis generates valid and invalid requests for every operation and checks status, content type, headers and body
of each answer against the schema. The server runs on a free port with an API key, on models with random weights. Exits
with code 1 if schemathesis finds a failure, the server ends, or its log contains a traceback.

One check is off: ``positive_data_acceptance``. JSON Schema cannot state all of our rules (text or words but not both; a
limit in tokens), so some requests that fit the schema get 422 or 413.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from benchmarks.overload import MODELS, Server, save_models

KEY = "fuzz-key"


async def start(folder: Path) -> Server:
    save_models(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Server(folder, port, ["--api-key", KEY, "--public", "/ready"])
    await server.start()
    return server


def check_own(server: Server) -> None:
    """Raise unless the port belongs to the server that we started: never fuzz somebody else's."""
    answer = httpx.get(f"http://127.0.0.1:{server.port}/models", headers={"X-API-Key": KEY}, trust_env=False)
    names = [model["name"] for model in answer.json()] if answer.status_code == 200 else []
    if server.process.poll() is not None or names != list(MODELS):
        raise RuntimeError(f"port {server.port} does not belong to the server that this program started")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=300, help="generated requests per operation and phase")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = asyncio.run(start(Path(folder)))
        try:
            check_own(server)
            command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json"]
            command += ["--header", f"X-API-Key:{KEY}", "--seed", str(arguments.seed), "--continue-on-failure"]
            command += ["--max-examples", str(arguments.examples), "--no-shrink"]
            command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
            path = os.pathsep.join(filter(None, [os.environ.get("SCHEMATHESIS"), os.environ.get("PYTHONPATH")]))
            found = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}).returncode
            ended = server.process.poll() is not None
        finally:
            server.process.kill()
        log = server.log.read_text()
    answered = sum('"status"' in line for line in log.splitlines())
    server_errors = sum('"status": 5' in line for line in log.splitlines())
    print(f"{answered} requests answered, {server_errors} with status 5xx, {log.count('Traceback')} tracebacks")
    if "Traceback" in log:
        print(log[log.index("Traceback") :][:3000])
    sys.exit(bool(found or ended or "Traceback" in log))


if __name__ == "__main__":
    main()
