"""Resolution of the requested precision, on devices with and without native bf16."""

import pytest
import torch

from debertakit.precision import autocast, has_native_bf16, make_scaler, precision_line, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize("forced", ["0", "1"])
@pytest.mark.parametrize("hardware", ["_is_avx512_bf16_supported", "_is_amx_tile_supported", None])
def test_detection_and_the_variable_that_overrides_it(monkeypatch, hardware, forced):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda found=name == hardware: found)
    for unset in (None, ""):
        monkeypatch.delenv("DEBERTAKIT_BF16", raising=False)
        if unset is not None:
            monkeypatch.setenv("DEBERTAKIT_BF16", unset)
        assert has_native_bf16(CPU) == (hardware is not None)
    monkeypatch.setenv("DEBERTAKIT_BF16", forced)
    assert has_native_bf16(CPU) == (forced == "1")


def test_a_gpu_is_asked_for_bf16_that_it_does_not_emulate(monkeypatch):
    monkeypatch.delenv("DEBERTAKIT_BF16", raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not has_native_bf16(torch.device("cuda"))


def test_a_value_of_the_variable_that_means_nothing(monkeypatch):
    monkeypatch.setenv("DEBERTAKIT_BF16", "yes")
    with pytest.raises(ValueError, match="DEBERTAKIT_BF16='yes': must be 0 or 1"):
        has_native_bf16(CPU)


@pytest.mark.parametrize(
    ("requested", "recorded", "without", "native"),
    [
        ("auto", None, "fp32", "bf16"),
        ("fp32", None, "fp32", "fp32"),
        ("bf16", None, "bf16", "bf16"),
        ("fp16", None, "fp16", "fp16"),
        ("auto", "fp16", "fp16", "fp16"),
        ("auto", "fp32", "fp32", "fp32"),  # a run keeps its precision on any machine
        ("auto", "bf16", "bf16", "bf16"),
        ("fp32", "fp32", "fp32", "fp32"),
        ("auto", "auto", "fp32", "bf16"),  # version 1 recorded only "auto"
        ("fp32", "auto", "fp32", "fp32"),
    ],
)
def test_resolution(monkeypatch, requested, recorded, without, native):
    for forced, expected in (("0", without), ("1", native)):
        monkeypatch.setenv("DEBERTAKIT_BF16", forced)
        assert resolve_precision(requested, CPU, recorded) == expected


@pytest.mark.parametrize(("requested", "recorded"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_a_run_does_not_resume_in_another_precision(requested, recorded):
    with pytest.raises(ValueError, match=f"was started in {recorded} and cannot resume in {requested}") as raised:
        resolve_precision(requested, CPU, recorded)
    assert "\n" not in str(raised.value)


def test_an_unknown_precision():
    with pytest.raises(ValueError, match="unknown precision 'fp8'; choose from auto, fp32, bf16, fp16"):
        resolve_precision("fp8", CPU)


def test_emulated_bf16_is_warned_of_in_one_line(monkeypatch):
    lines = {}
    for forced in "01":
        monkeypatch.setenv("DEBERTAKIT_BF16", forced)
        lines |= {(precision, forced): precision_line(precision, CPU) for precision in ("fp32", "bf16")}
    assert lines["fp32", "0"] == lines["fp32", "1"] == "precision: fp32"
    assert lines["bf16", "1"] == "precision: bf16"
    assert lines["bf16", "0"].startswith("precision: bf16 (warning: this cpu emulates bf16")
    assert "\n" not in lines["bf16", "0"]
    assert precision_line("fp16", CPU).startswith("precision: fp16 (warning: fp16 is for GPUs")
    assert precision_line("fp16", torch.device("cuda")) == "precision: fp16"


def test_autocast():
    x = torch.ones(2, 2)
    with autocast("bf16", CPU):
        assert (x @ x).dtype == torch.bfloat16
    with autocast("fp16", CPU):
        assert (x @ x).dtype == torch.float16
    with autocast("fp32", CPU):
        assert (x @ x).dtype == torch.float32


def test_only_fp16_scales_the_loss():
    assert [make_scaler(precision, CPU).is_enabled() for precision in ("fp32", "bf16", "fp16")] == [False, False, True]
