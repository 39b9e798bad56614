"""Train a model that finds answers in a text, serve it over HTTP, ask it a question, and stop the server.

python examples/question_answering_service.py [MODEL]      the default model is bundled with debertakit: no network
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import product
from pathlib import Path

from debertakit import finetune

PORT = 8123
MODEL = sys.argv[1] if len(sys.argv) > 1 else "en-small"
PEOPLE = ["Anna", "Bob", "Carol", "David", "Emma", "Frank", "Grace", "Henry"]
PLACES = ["Paris", "London", "Rome", "Berlin", "Madrid", "Vienna", "Oslo", "Athens"]


def squad(pairs: list[tuple[str, str]]) -> dict:
    """Questions in SQuAD's format, one for each text."""
    paragraphs = []
    for number, (person, place) in enumerate(pairs):
        text = f"{person} lives in {place} and works there."
        question = {"id": str(number), "question": f"Where does {person} live?"}
        question["answers"] = [{"text": place, "answer_start": text.index(place)}]
        paragraphs.append({"context": text, "qas": [question]})
    return {"version": "1.1", "data": [{"title": "people", "paragraphs": paragraphs}]}


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="answers-"))
    pairs = list(product(PEOPLE, PLACES))
    (folder / "train.json").write_text(json.dumps(squad(pairs[8:])))
    (folder / "dev.json").write_text(json.dumps(squad(pairs[:8])))
    finetune(MODEL, folder / "run", train=folder / "train.json", dev=folder / "dev.json", epochs=8, lr=1e-3)

    command = [sys.executable, "-m", "debertakit.cli", "serve", folder / "run", "--port", str(PORT)]
    server = subprocess.Popen(command)
    while server.poll() is None and socket.socket().connect_ex(("127.0.0.1", PORT)):
        time.sleep(0.2)  # it loads the model before it listens
    try:
        print(ask("Where does Mia live?", "Mia lives in Lisbon and works there."))
    finally:
        server.terminate()
        server.wait()


def ask(question: str, context: str) -> dict:
    body = json.dumps({"inputs": [{"question": question, "context": context}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/answer", body, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))["results"][0]


if __name__ == "__main__":
    main()
