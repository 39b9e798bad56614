"""backend="auto": which exports are candidates, and which candidate is chosen."""

import pytest
import torch

from debertakit.inference import backends
from debertakit.inference.certify import certify
from debertakit.inference.onnx import OnnxModel, export_onnx
from debertakit.inference.options import CertifyOptions, LoadOptions
from debertakit.inference.tasks import load
from debertakit.loading import describe
from tests.inference import material
from tests.inference.material import LABELS, TEXTS

pytest.importorskip("onnxruntime")


@pytest.fixture
def folder(tmp_path):
    return material.saved(tmp_path / "model", "SequenceClassification", **LABELS)


def names(folder):
    return sorted(backends.usable_exports(describe(folder)))


def test_auto_without_exports_is_torch_and_says_how_to_export(folder):
    predictor = load(folder, backend="auto")
    assert not isinstance(predictor.model, OnnxModel)
    assert "deberta export onnx" in predictor.backend
    assert load(folder).backend == ""


def test_int8_needs_a_certificate_and_every_export_the_present_weights(folder, tmp_path):
    export_onnx(folder, folder / "onnx")
    export_onnx(folder, folder / "int8", int8=True)
    assert names(folder) == ["onnx fp32"]
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    certify(folder, texts, CertifyOptions(tolerance=0.5, export=folder / "int8"))
    assert names(folder) == ["onnx fp32", "onnx int8"]
    network = describe(folder).network()
    with torch.no_grad():
        next(network.parameters()).add_(1)
    network.save_pretrained(folder)  # trained further
    assert names(folder) == []


@pytest.mark.parametrize("winner", ["torch fp32", "onnx fp32"])
def test_auto_takes_the_fastest_and_says_which(folder, monkeypatch, winner):
    export_onnx(folder, folder / "onnx")
    times = {"torch fp32": 2.0, "onnx fp32": 2.0, winner: 1.0}
    monkeypatch.setattr(backends, "_interleaved", lambda runs: {name: times[name] for name in runs})
    predictor = load(folder, backend="auto")
    assert isinstance(predictor.model, OnnxModel) == (winner == "onnx fp32")
    assert predictor.backend.startswith(f"{winner}: 2.0 times as fast as")
    assert "backend" not in predictor.settings()
    for ours, exact in zip(predictor(TEXTS), load(folder)(TEXTS), strict=True):
        assert ours.headline() == exact.headline()


def test_every_candidate_of_multiple_choice_is_timed(tmp_path):
    folder = material.saved(tmp_path / "model", "MultipleChoice")
    export_onnx(folder, folder / "onnx")
    assert " times as fast as " in load(folder, backend="auto").backend


def test_embed_leaves_the_exports_of_another_head_alone(folder, monkeypatch):
    export_onnx(folder, folder / "onnx")
    assert load(folder, "embed", backend="auto").backend.startswith("torch fp32: the folder has no export")
    monkeypatch.setattr(backends, "missing", lambda extra: ["onnxruntime"])
    assert names(folder) == []


def test_auto_refuses_a_precision_that_no_export_has():
    with pytest.raises(ValueError, match="fp32 or auto, not bf16"):
        LoadOptions(backend="auto", precision="bf16")
