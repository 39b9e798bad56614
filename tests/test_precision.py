import pytest
import torch

from debertakit.precision import precision


def test_no_emulated_half_precision(monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert precision("auto", torch.device("cpu")) is None
    with pytest.raises(ValueError, match="bf16"):
        precision("bf16", torch.device("cpu"))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert precision("auto", torch.device("cpu")) is torch.bfloat16
    assert precision("fp32", torch.device("cpu")) is None
