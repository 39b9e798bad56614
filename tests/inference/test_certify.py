"""bf16 inference, and certificates that compare bf16 and int8 with fp32 on a file of texts."""

import json

import pytest
import torch

from debertakit.inference import certify as certifying
from debertakit.inference.certificates import CERTIFICATE_FILE, Certificate
from debertakit.inference.certify import certify, int8_within_tolerance
from debertakit.inference.options import CertifyOptions, LoadOptions, ToleranceOptions
from debertakit.inference.tasks import load
from tests.inference import material
from tests.inference.material import LABELS, TEXTS

HALF = CertifyOptions(tolerance=0.5)


@pytest.fixture
def folder(tmp_path):
    return material.saved(tmp_path / "model", "SequenceClassification", **LABELS)


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    return file


def test_bf16_weights_and_fp32_outputs(folder):
    exact, lower = load(folder), load(folder, precision="bf16")
    assert next(lower.model.parameters()).dtype is torch.bfloat16
    rows = exact.encode([{"text": text} for text in TEXTS])
    for a, b in zip(exact.run(rows), lower.run(rows), strict=True):
        assert b.dtype == a.dtype
        assert 0 < abs(a - b).max() < 0.1 * abs(a).max()


@pytest.mark.parametrize("native", ["0", "1"])
def test_auto_is_fp32_until_bf16_is_certified(folder, texts, monkeypatch, native):
    monkeypatch.setenv("DEBERTAKIT_BF16", native)

    def dtype():
        return next(load(folder, precision="auto").model.parameters()).dtype

    certified = torch.bfloat16 if native == "1" else torch.float32
    assert dtype() is torch.float32
    found, stored = certify(folder, texts, HALF)
    assert found.rows == len(TEXTS)
    assert found.passed
    assert 0 < found.drift < 1
    assert json.loads(stored.read_text())["flips"] == found.flips
    assert dtype() is certified
    with open(folder / "model.safetensors", "r+b") as file:  # another weight, the same size
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    assert dtype() is torch.float32


def test_flips_are_counted_and_a_failed_certificate_is_not_used(folder, texts, monkeypatch):
    monkeypatch.setenv("DEBERTAKIT_BF16", "1")

    def wrong(model, *arguments, **options):
        predictor = load(model, *arguments, **options)
        if options.get("precision") == "bf16":
            with torch.no_grad():
                predictor.model.classifier.weight.neg_()
                predictor.model.classifier.bias.neg_()
        return predictor

    monkeypatch.setattr(certifying, "load", wrong)
    found, _ = certify(folder, texts, HALF)
    assert found.flips > len(TEXTS) / 2
    assert not found.passed
    assert "not certified" in str(found)
    assert next(load(folder, precision="auto").model.parameters()).dtype is torch.float32


def test_a_certificate_of_another_version_is_refused(folder):
    (folder / CERTIFICATE_FILE).write_text("{}")
    with pytest.raises(ValueError, match="run deberta certify again"):
        Certificate.read(folder)


def test_mistakes_say_what_would_work(folder, texts, tmp_path):
    with pytest.raises(ValueError, match="needs 200 rows; found 5"):
        certify(folder, texts, CertifyOptions())
    with pytest.raises(ValueError, match="no such folder"):
        certify(folder, texts, CertifyOptions(export=tmp_path / "none"))
    regression = material.saved(tmp_path / "regression", "SequenceClassification", num_labels=1)
    with pytest.raises(ValueError, match="compares decisions"):
        certify(regression, texts, HALF)
    with pytest.raises(ValueError, match="--precision needs --backend torch"):
        LoadOptions("onnx", "bf16")
    with pytest.raises(ValueError, match="unknown precision"):
        load(folder, precision="fp8")


def test_int8(folder, texts, tmp_path):
    pytest.importorskip("onnxruntime")
    from debertakit.inference.onnx import export_onnx

    export_onnx(folder, tmp_path / "int8", int8=True)
    found, stored = certify(folder, texts, CertifyOptions(export=tmp_path / "int8", tolerance=0.5))
    assert found.precision == "int8"
    assert found.drift > 0
    assert stored == tmp_path / "int8" / CERTIFICATE_FILE


def test_layers_stay_in_fp32_until_the_tolerance_holds(folder, texts, tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    exact = Certificate.__dict__["passed"].fget
    monkeypatch.setattr(Certificate, "passed", property(lambda self: exact(self) and self.drift < limit))
    kept_of, drifts = {}, []
    for limit in (1e9, 0.0):  # the first export passes; no export passes
        out = tmp_path / f"int8-{limit}"
        found, kept_of[limit] = int8_within_tolerance(folder, out, texts, ToleranceOptions(tolerance=0.5))
        drifts.append(found.drift)
        graph = onnx.load(out / "model.onnx").graph
        left = sum(node.op_type == "MatMulInteger" for node in graph.node)
        assert left == 2 * (6 - len(kept_of[limit]))
    assert kept_of[1e9] == ()
    assert sorted(kept_of[0.0]) == sorted(certifying.LINEAR)
    assert drifts[1] < drifts[0] / 3  # only the embeddings are in 8 bits
