"""Load `deberta serve` at its capacity and at four times its capacity, with clients that misbehave.

    python -m benchmarks.overload --seconds 600 --out overload.json

The program makes five models with random weights, starts the server on loopback and measures its capacity: requests per
second with 32 clients that wait for their answers. Then two phases send requests at random times, at 1 and at 4 times
this rate, whether earlier ones were answered or not. Of the requests, most ask about one short text, some about 24 to
48 long ones. Other clients leave before the answer, send malformed bodies, send too slowly, or never read.

Every answer is compared with direct prediction of each text alone. At the end of each phase, while the load goes on,
the server gets SIGTERM: each request sent before must still be answered, and the exit code must be 0. After the first
SIGTERM the server is started again. The second phase is therefore a new process with its own memory curve.

Exits with code 1 if an answer is wrong, a status is unexpected, a request is lost, or the server logs a traceback.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import torch

from benchmarks.overload_clients import Clients, Kind, Request
from debertakit import heads
from debertakit.inference.tasks import load
from debertakit.model import DebertaModel
from tests.models import SPECIALS, randomise, small, word_tokenizer

WORDS = "the a cat dog sees likes house river in on Ann Bob lives Paris Rome good bad film is was and who where".split()
SHAPE = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}
MODELS = {
    "classify": ("SequenceClassification", {"num_labels": 3}),
    "zero-shot": ("SequenceClassification", NLI),
    "ner": ("TokenClassification", {"id2label": {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}}),
    "answer": ("QuestionAnswering", {}),
    "embed": ("", {}),
}
TOLERANCE = 2e-5
MIX = {Kind.SMALL: 0.84, Kind.BIG: 0.06, Kind.LEAVES: 0.04, Kind.MALFORMED: 0.05, Kind.SLOW: 0.008, Kind.DEAF: 0.002}
RECEIVE = 3
"""Seconds that slow clients may take (``--receive``)."""
MALFORMED = [
    (b"{", 400),
    (b"[" * 100_000, 400),
    (b'{"inputs": "\xff"}', 400),
    (b"", 422),
    (b'{"inputs": [{"text": "a \\ud800"}]}', 422),
    (b'{"inputs": [' + b",".join([b"1"] * 200_000) + b"]}", 422),
    (b'{"inputs": [{' + b",".join(b'"k%d": 1' % n for n in range(50_000)) + b"}]}", 422),
    (b'{"inputs": [' + b",".join([b'{"text": "a"}'] * 200) + b"]}", 413),
    (b" " * (1 << 20) + b"{}", 413),
]


def save_models(folder: Path) -> None:
    tokenizer = word_tokenizer(WORDS)
    tokenizer.model_max_length = 256
    for seed, (task, (head, fields)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        config = small(vocab_size=len(SPECIALS) + len(WORDS), max_position_embeddings=256, **{**SHAPE, **fields})
        model = (getattr(heads, f"DebertaFor{head}") if head else DebertaModel)(config)
        randomise(model).save_pretrained(folder / task)
        tokenizer.save_pretrained(folder / task)


def make_input(task: str, words: int, chosen: random.Random) -> dict[str, object]:
    text = " ".join(chosen.choices(WORDS, k=words))
    match task:
        case "zero-shot":
            return {"text": text, "labels": ["good", "bad film", "Paris"]}
        case "answer":
            return {"question": "who lives in Rome", "context": text}
        case _:
            return {"text": text}


def make_requests(folder: Path) -> dict[Kind, list[Request]]:
    """Requests with their expected answers, predicted directly, one text at a time."""
    chosen = random.Random(0)
    made: dict[Kind, list[Request]] = {Kind.SMALL: [], Kind.BIG: []}
    for task in MODELS:
        predict = load(folder / task, task)
        few, many = 24, 48 // (3 if task == "zero-shot" else 1)
        small_inputs = [[make_input(task, chosen.randint(4, 16), chosen)] for _ in range(few)]
        big_inputs = [[make_input(task, chosen.randint(60, 120), chosen) for _ in range(many)] for _ in range(3)]
        for kind, all_inputs in ((Kind.SMALL, small_inputs), (Kind.BIG, big_inputs)):
            for inputs in all_inputs:
                expected = [json.loads(json.dumps(asdict(predict(one)))) for one in inputs]
                made[kind].append(Request(f"/{task}", json.dumps({"inputs": inputs}).encode(), expected))
        own = [request.expected for request in made[Kind.SMALL][-few:]]
        alike = sum(difference(own[i], own[j]) <= TOLERANCE for i in range(few) for j in range(i))
        print(f"{task}: {alike} of {few * (few - 1) // 2} pairs of different texts have the same answer", flush=True)
    return made


def difference(given: object, expected: object) -> float:
    """Largest difference of two numbers at the same place; infinite if anything else differs."""
    if isinstance(expected, dict) and isinstance(given, dict):
        same = given.keys() == expected.keys()
        return max((difference(given[k], expected[k]) for k in expected), default=0.0) if same else float("inf")
    if isinstance(expected, list) and isinstance(given, list):
        same = len(given) == len(expected)
        pairs = zip(given, expected, strict=False)
        return max((difference(a, b) for a, b in pairs), default=0.0) if same else float("inf")
    if isinstance(expected, float) and isinstance(given, float):
        return abs(given - expected)
    return 0.0 if given == expected and type(given) is type(expected) else float("inf")


# ---------------------------------------------------------------------------------------------------------- server


class Server:
    """``deberta serve`` in a process, with its log and its memory."""

    def __init__(self, folder: Path, port: int, options: list[str]):
        self.folder, self.port, self.options = folder, port, options
        self.log = folder / "log"
        self.memory: list[tuple[float, float]] = []
        """(seconds since the phase began, resident MB)"""

    async def start(self) -> None:
        specs = [f"{task}={self.folder / task}::{task}" for task in MODELS]
        command = [sys.executable, "-m", "debertakit.cli", "serve", *specs, "--port", str(self.port), *self.options]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"})
        async with httpx.AsyncClient(trust_env=False) as client:
            for _ in range(1200):
                if self.process.poll() is not None:
                    raise RuntimeError(self.log.read_text()[-2000:])
                try:
                    if (await client.get(f"http://127.0.0.1:{self.port}/ready")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.1)
        raise RuntimeError("the server did not start")

    def resident(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    async def watch(self) -> None:
        began = time.monotonic()
        self.memory = []
        while self.process.poll() is None:
            self.memory.append((time.monotonic() - began, self.resident()))
            await asyncio.sleep(1)

    async def drain(self) -> tuple[int, float]:
        """Send SIGTERM. Returns the exit code and the seconds until the exit."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        while self.process.poll() is None:
            await asyncio.sleep(0.02)
        return self.process.returncode, time.monotonic() - began


# ------------------------------------------------------------------------------------------------------------ phases


@dataclass
class Phase:
    name: str
    rate: float
    seconds: float
    clients: Clients = field(repr=False)
    drain: tuple[int, float] = (-1, 0.0)
    memory: list[tuple[float, float]] = field(default_factory=list)


async def capacity(port: int, requests: dict[Kind, list[Request]], seconds: float) -> float:
    """Answers per second with 32 clients that wait for their answers, without misbehaving ones."""
    clients, chosen = Clients(port, requests, MALFORMED, RECEIVE), random.Random(1)
    until = time.monotonic() + seconds
    weights = [MIX[Kind.SMALL], MIX[Kind.BIG]]

    async def client() -> None:
        while time.monotonic() < until:
            await clients.send(chosen.choices([Kind.SMALL, Kind.BIG], weights)[0])

    await asyncio.gather(*(client() for _ in range(32)))
    answered = sum(1 for one in clients.answered if one.status == 200)
    clients.close()
    return answered / seconds


async def run_phase(server: Server, name: str, rate: float, seconds: float, clients: Clients, again: bool) -> Phase:
    """Send requests for ``seconds``, then through the drain, and (``again``) until the server is back."""
    phase = Phase(name, rate, seconds, clients)
    chosen, tasks = random.Random(name), set()
    memory = asyncio.ensure_future(server.watch())
    stop = asyncio.Event()

    async def arrivals() -> None:
        due = time.monotonic()
        while not stop.is_set():
            due += chosen.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.ensure_future(clients.send(chosen.choices(list(MIX), list(MIX.values()))[0]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def probes() -> None:
        while not stop.is_set():
            await clients.send(Kind.HEALTH)
            await asyncio.sleep(0.25)

    arriving = asyncio.gather(arrivals(), probes())
    await asyncio.sleep(seconds)
    clients.drain_began = time.monotonic()
    phase.drain = await server.drain()
    phase.memory = list(server.memory)
    if again:
        await server.start()
    stop.set()
    memory.cancel()
    await arriving
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    clients.close()
    return phase


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else float("nan")


def report(phase: Phase, failures: list[str]) -> dict[str, object]:
    """Check the phase and return its row of the table."""
    clients = phase.clients
    usual = [one for one in clients.answered if one.began < clients.drain_began]
    times = {
        (kind, status): [1e3 * one.seconds for one in usual if one.kind is kind and one.status == status]
        for kind in (Kind.SMALL, Kind.BIG)
        for status in (200, 429)
    }
    checked = [one for one in clients.answered if one.request is not None and one.status == 200]
    worst, wrong = 0.0, 0
    for one in checked:
        assert one.request is not None
        found = difference(one.results, one.request.expected)
        wrong += found > TOLERANCE
        worst = max(worst, found) if found != float("inf") else worst
    warm = [mb for at, mb in phase.memory if at >= phase.seconds / 5]
    refused = times[Kind.SMALL, 429] + times[Kind.BIG, 429]
    health = [1e3 * one.seconds for one in usual if one.kind is Kind.HEALTH]
    row: dict[str, object] = {
        "phase": phase.name,
        "seconds": phase.seconds,
        "requests per second": round(phase.rate, 1),
        "sent": dict(clients.sent),
        "statuses": {kind: dict(Counter(one.status for one in usual if one.kind is kind)) for kind in Kind},
        "statuses after SIGTERM": dict(
            Counter(one.status for one in clients.answered if one.began >= clients.drain_began)
        ),
        "checked answers": len(checked),
        "checked texts": sum(len(one.request.expected) for one in checked if one.request),
        "wrong": wrong,
        "largest difference": worst,
        "small p50, p99 (ms)": [round(percentile(times[Kind.SMALL, 200], share), 1) for share in (0.5, 0.99)],
        "big p50, p99 (ms)": [round(percentile(times[Kind.BIG, 200], share), 1) for share in (0.5, 0.99)],
        "429 p50, p99, longest (ms)": [round(percentile(refused, share), 1) for share in (0.5, 0.99, 1)],
        "/health p50, p99 (ms)": [round(percentile(health, share), 1) for share in (0.5, 0.99)],
        "lost": clients.lost,
        "memory at 1/5, largest after, last (MB)": [round(warm[0]), round(max(warm)), round(warm[-1])] if warm else [],
        "drain: exit code, seconds": [phase.drain[0], round(phase.drain[1], 1)],
    }
    unexpected = Counter((one.kind, one.status) for one in clients.answered if not one.expected)
    for text, bad in (
        (f"{wrong} wrong answers", wrong),
        (f"{clients.lost} requests sent before SIGTERM got no answer", clients.lost),
        (f"exit code {phase.drain[0]} after SIGTERM", phase.drain[0]),
        (f"unexpected: {dict(unexpected)}", unexpected),
        (f"client errors: {clients.errors[:3]}", clients.errors),
    ):
        if bad:
            failures.append(f"{phase.name}: {text}")
    return row


async def run(arguments: argparse.Namespace, folder: Path) -> tuple[list[dict[str, object]], list[str]]:
    save_models(folder)
    requests = make_requests(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--queue", str(arguments.queue), "--receive", str(RECEIVE), "--connections", "2000"]
    server = Server(folder, port, options)
    rows, failures = [], []
    await server.start()
    try:
        rate = await capacity(port, requests, arguments.calibrate)
        print(f"capacity: {rate:.1f} requests/s", flush=True)
        for name, times, again in (("capacity", 1, True), ("overload", 4, False)):
            clients = Clients(port, requests, MALFORMED, RECEIVE)
            phase = await run_phase(server, name, times * rate, arguments.seconds, clients, again)
            row = report(phase, failures)
            row["memory curve (s, MB)"] = [[round(at), round(mb)] for at, mb in phase.memory[::30]]
            print(json.dumps(row, indent=1), flush=True)
            rows.append(row)
    finally:
        server.process.kill()
    log = server.log.read_text()
    if "Traceback" in log:
        failures.append("traceback in the log: " + log[log.index("Traceback") :][:3000])
    return rows, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="seconds per phase")
    parser.add_argument("--calibrate", type=float, default=20, help="seconds in which the capacity is measured")
    parser.add_argument("--queue", type=int, default=8192, help="--queue of the server")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, failures = asyncio.run(run(arguments, Path(folder)))
    if arguments.out:
        arguments.out.write_text(json.dumps({"phases": rows, "failures": failures}, indent=1) + "\n")
    print("\n".join(failures) or "no failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
