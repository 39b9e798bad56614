import json
import time

import pytest
import torch

from debertakit.attention import cpu
from debertakit.bench import report, suites
from debertakit.bench.contest import Measurement, Timing, contest
from debertakit.bench.options import WORKS, BenchOptions


def test_contest_times_every_contestant_in_turn():
    calls = []

    def run(name, seconds):
        return lambda: (calls.append(name), time.sleep(seconds))

    result = contest("1x1", {"ours": run("ours", 0.002), "hf": run("hf", 0.006)}, seconds=0.5)
    assert 2 < result.ratio("hf") < 4
    assert result.ratio("bert") is None
    assert abs(calls.count("ours") - calls.count("hf")) == 0
    rounds = {tuple(calls[i : i + 2]) for i in range(2, len(calls), 2)}
    assert rounds == {("ours", "hf"), ("hf", "ours")}  # everybody runs behind everybody


def test_rows_have_a_column_for_every_peer(tmp_path):
    result = Measurement("8x128", {"ours": Timing(1.0, 0.9, 1.1), "hf": Timing(2.0, 1.9, 2.1), "bert": None})
    report.write_results(tmp_path / "x.json", "inference", [result])
    (row,) = json.loads((tmp_path / "x.json").read_text())
    assert (row["work"], row["ours_ms"], row["hf_ms"], row["bert_ms"], row["ort_ms"]) == ("8x128", 1.0, 2.0, None, None)
    assert "2.00x" in report.line(result)
    report.plot(tmp_path / "x.png", "inference", [result])
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_options_select_workloads():
    assert BenchOptions(work=["4x512"]).works("inference") == {"4x512": [512] * 4}
    assert list(BenchOptions(quick=True).works("memory")) == ["1x1024", "1x2048"]
    assert BenchOptions().works("training") == WORKS["training"]
    with pytest.raises(ValueError, match="--work 16x128: bench attention has 1x32, "):
        BenchOptions(work=["16x128"]).works("attention")
    with pytest.raises(ValueError, match="choose avx2 or avx512"):
        BenchOptions(isa="sse")


def test_isa_limits_torch_its_libraries_and_our_kernel(monkeypatch):
    monkeypatch.setattr("os.environ", environ := {})
    BenchOptions().apply_isa()
    assert not environ
    BenchOptions(isa="avx2").apply_isa()
    assert environ == {
        "DEBERTAKIT_KERNEL": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "DEBERTAKIT_BF16": "0",
    }


def test_inference_measures_every_peer_that_fits(monkeypatch):
    monkeypatch.setattr(suites, "contest", lambda work, contestants, seconds: (work, sorted(contestants)))
    monkeypatch.setattr(suites, "_hf_graph", lambda model: None)
    monkeypatch.setattr(suites, "_our_graph", lambda model: type("Session", (), {"run": print}))
    options = BenchOptions(layers=1, work=["1x16", "1x8192"])
    assert list(suites.inference(options)) == [
        ("1x16", ["bert", "hf", "modernbert", "onnx", "ours"]),
        ("1x8192", ["bert", "modernbert", "ours"]),
    ]


def test_contestants_do_the_same_work():
    models = {name: model.eval() for name, model in suites.models(1).items()}
    inputs = suites.batch([9, 5])
    with torch.inference_mode():
        outputs = {name: model(**inputs).last_hidden_state for name, model in models.items()}
    mask = inputs["attention_mask"].bool()
    torch.testing.assert_close(outputs["ours"][mask], outputs["hf"][mask], atol=1e-5, rtol=0)
    assert outputs["bert"].shape == outputs["ours"].shape
    counts = {name: sum(p.numel() for p in model.encoder.layer.parameters()) for name, model in models.items()}
    assert counts["ours"] == counts["hf"] == counts["bert"]


@pytest.mark.slow
def test_every_contestant_of_the_small_recipe_learns_its_batch():
    torch.manual_seed(0)
    steps = suites.small_steps()
    for step in steps.values():
        losses, optimiser, _ = step.args
        before = losses().item()
        for group in optimiser.param_groups:
            group["lr"] = 1e-3
        for _ in range(3):
            step()
        assert losses().item() < before - 0.1


def test_attention_alone_agrees_too():
    x = torch.randn(2, 20, 768)
    with torch.no_grad():
        ours, hf = (suites.attention_forward(name, 2, 20)(x) for name in ("ours", "hf"))
    torch.testing.assert_close(ours, hf.flatten(0, 1), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "contestant",
    [pytest.param("ours", marks=pytest.mark.skipif(not cpu.available(), reason=cpu.reason() or "built")), "hf"],
)
def test_peak_memory_is_measured_in_a_process_of_its_own(contestant):
    peak = suites.peak_memory(contestant, 1024)
    scores = 12 * 1024 * 1024 * 4 / 2**20  # one [heads, length, length] tensor, in MB
    assert peak < scores * 1.5 if contestant == "ours" else peak > scores * 2
