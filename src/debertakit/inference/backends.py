"""``backend="auto"``: the fastest of torch and the exports in the model's folder, measured when the model is loaded.

    deberta export onnx MODEL --out MODEL/onnx                            # fp32
    deberta export onnx MODEL --out MODEL/int8 --int8 --check texts.csv

An export is a candidate if it was made from the present weights of the model (``EXPORT_FILE`` holds their hash). An
int8 export also needs a certificate that passed.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from debertakit.files import naming, write_json
from debertakit.inference.certificates import Certificate, hash_of_weights
from debertakit.inference.predictor import Network
from debertakit.installation import missing
from debertakit.loading import SavedModel

EXPORT_FILE = "export.json"
SHAPES = ((1, 32), (8, 128))
"""Texts and tokens of the measured batches: a short text, as on a server, and a batch, as in a file."""
ROUNDS = 5


def record_export(source: Path, out: Path, precision: str) -> None:
    """Store which weights an export was made from."""
    write_json(out / EXPORT_FILE, {"precision": precision, "weights": hash_of_weights(source)})


def usable_exports(saved: SavedModel) -> dict[str, Path]:
    """Find the exports in a model's folder that give its answers: {"onnx int8": folder}."""
    folder = Path(str(saved))
    found: dict[str, Path] = {}
    if missing("onnx"):
        return found
    weights = ""
    for file in sorted(folder.glob(f"*/{EXPORT_FILE}")):
        with naming(file):
            export = json.loads(file.read_text(encoding="utf-8"))
        weights = weights or hash_of_weights(folder)
        if export["weights"] == weights and (export["precision"] == "fp32" or _certified(file.parent)):
            found[f"onnx {export['precision']}"] = file.parent
    return found


def _certified(folder: Path) -> bool:
    certificate = Certificate.read(folder)
    return certificate is not None and certificate.passed and certificate.weights == hash_of_weights(folder)


def fastest(networks: dict[str, Network], choices: int = 0) -> tuple[str, str]:
    """Return the name of the fastest network and a line that says how fast each is.

    ``choices``: options per text, if the networks take [batch, choices, length].
    """
    seconds = dict.fromkeys(networks, 1.0)
    for shape in SHAPES:
        ids = torch.ones(shape, dtype=torch.int64)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if choices:
            inputs = {name: value[:, None].expand(-1, choices, -1).contiguous() for name, value in inputs.items()}
        for name, each in _interleaved({name: _run(network, inputs) for name, network in networks.items()}).items():
            seconds[name] *= each
    best = min(seconds, key=seconds.__getitem__)
    slower = {name: math.sqrt(each / seconds[best]) for name, each in seconds.items() if name != best}
    others = ", ".join(f"{ratio:.1f} times as fast as {name}" for name, ratio in slower.items())
    return best, f"{best}: {others} on short texts and batches" if others else best


def _run(network: Network, inputs: dict[str, torch.Tensor]) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return network(**{name: value.to(network.device) for name, value in inputs.items()})

    return run


def _interleaved(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return each run's median time in seconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            time.sleep(0.02)  # threads of the previous run stop spinning
            start = time.perf_counter()
            run()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
