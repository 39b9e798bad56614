"""Load-test `deberta serve`, and the same model in a plain FastAPI app without batching, on loopback.

    python benchmarks/serving.py MODEL TEXTS [--clients 32] [--requests 2000]

MODEL is the folder of a classifier. TEXTS is a file with one text per line. The plain app predicts one request at a
time. The two servers run one after the other, each in its own process. Prints requests per second and latencies with
``--clients`` clients, and the number of answers that differ from the predictor's. Then four times as many clients
overload a server with a queue of 1,000 tokens. Prints how soon the 429 responses arrive, and the speed after the
overload.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx

PLAIN = """
import sys, uvicorn
from fastapi import FastAPI
from debertakit.inference.tasks import load
predict, app = load(sys.argv[1]), FastAPI()
@app.get("/ready")
def ready(): return {}
@app.post("/classify")
def classify(body: dict):
    return {"results": [predict(item["text"]) for item in body["inputs"]]}
uvicorn.run(app, port=int(sys.argv[2]), log_level="error", timeout_keep_alive=60)
"""


def start(command: list[str], port: int) -> subprocess.Popen:
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    )
    for _ in range(600):
        if is_ready(port):
            return process
        time.sleep(0.1)
    raise RuntimeError("the server did not start")


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    except httpx.HTTPError:
        return False


async def load(port: int, texts: list[str], clients: int, requests: int) -> tuple[float, list[tuple[int, float, dict]]]:
    """Send the requests. Returns the total seconds, and status, seconds and answer of each request."""
    found: list[tuple[int, float, dict]] = [(0, 0.0, {})] * requests
    numbers = iter(range(requests))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            began = time.perf_counter()
            writer.write(build_request("/classify", {"inputs": [{"text": texts[number % len(texts)]}]}))
            status, body = await read_response(reader)
            found[number] = (status, time.perf_counter() - began, json.loads(body))
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began, found


def build_request(path: str, body: dict) -> bytes:
    """Build the HTTP request by hand: with a hundred clients, httpx uses more CPU than the server."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


def report(name: str, seconds: float, found: list[tuple[int, float, dict]]) -> None:
    times = sorted(1e3 * second for status, second, _ in found if status == 200)
    statuses = dict(Counter(status for status, _, _ in found))
    middle, last = statistics.median(times), times[int(0.99 * (len(times) - 1))]
    print(
        f"{name}: {len(found) / seconds:.1f} requests/s, p50 {middle:.0f} ms, p99 {last:.0f} ms, {statuses}", flush=True
    )


def differences(model: str, texts: list[str], found: list[tuple[int, float, dict]]) -> int:
    from debertakit.inference.tasks import load as load_predictor

    expected = [result.scores[0] for result in load_predictor(model)(texts)]
    wrong = 0
    for number, (status, _, answer) in enumerate(found):
        if status == 200:
            own, wanted = answer["results"][0]["scores"][0], expected[number % len(texts)]
            wrong += own["label"] != wanted.label or abs(own["score"] - wanted.score) > 1e-4
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=2000)
    arguments = parser.parse_args()
    texts = [line for line in arguments.texts.read_text(encoding="utf-8").splitlines() if line.strip()][:1000]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    commands = {
        "plain FastAPI": [sys.executable, "-c", PLAIN, arguments.model, str(port)],
        "deberta serve": [sys.executable, "-m", "debertakit.cli", "serve", arguments.model, "--port", str(port)],
    }
    for name, command in commands.items():
        process = start(command, port)
        asyncio.run(load(port, texts, arguments.clients, arguments.clients))
        seconds, found = asyncio.run(load(port, texts, arguments.clients, arguments.requests))
        report(name, seconds, found)
        process.send_signal(signal.SIGTERM)
        process.wait()
    print(f"answers that differ from the predictor's: {differences(arguments.model, texts, found)} of {len(found)}")
    process = start([*commands["deberta serve"], "--queue", "1000"], port)
    loads = (("overload", 4 * arguments.clients, 2000), ("after the overload", arguments.clients, 500))
    for name, clients, requests in loads:
        seconds, found = asyncio.run(load(port, texts, clients, requests))
        report(name, seconds, found)
        rejected = [1e3 * second for status, second, _ in found if status == 429]
        if rejected:
            print(f"  429 after {statistics.median(rejected):.0f} ms (median), {max(rejected):.0f} ms (longest)")
    process.send_signal(signal.SIGTERM)
    process.wait()


if __name__ == "__main__":
    main()
