"""Compare the exported graph with our torch models, for several input shapes."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from debertakit import heads
from debertakit.cli import app
from debertakit.config import DebertaConfig
from debertakit.inference.onnx import OnnxModel, export_onnx, onnx_model
from debertakit.model import DebertaModel
from tests.models import randomise, small, word_tokenizer

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def session(source) -> "ort.InferenceSession":
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = source if isinstance(source, bytes) else str(source)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def batch(shape, config, padded=True):
    ids = torch.randint(5, config.vocab_size, shape)
    mask = torch.ones_like(ids)
    if padded and shape[-1] > 4:
        mask[..., -1, -3:] = 0  # at the end of one sequence
        mask[..., 0, 2] = 0  # and inside another
    inputs = {"input_ids": ids, "attention_mask": mask}
    if config.type_vocab_size > 0:
        inputs["token_type_ids"] = torch.randint(0, config.type_vocab_size, shape)
    return inputs


def check(model, shapes, tolerance=1e-4):
    runner = session(onnx_model(model).SerializeToString())
    for shape in shapes:
        inputs = batch(shape, model.config)
        with torch.no_grad():
            expected = model(**inputs)
        names = [output.name for output in runner.get_outputs()]
        given = runner.run(None, {key: value.numpy() for key, value in inputs.items()})
        for name, value in zip(names, given, strict=True):
            assert value.shape == tuple(expected[name].shape), (name, shape)
            np.testing.assert_allclose(value, expected[name].numpy(), atol=tolerance, rtol=0, err_msg=f"{name} {shape}")


SHAPES = [(1, 1), (1, 2), (3, 9), (2, 40)]
HEADS = [
    DebertaModel,
    heads.DebertaForMaskedLM,
    heads.DebertaForReplacedTokenDetection,
    heads.DebertaForSequenceClassification,
    heads.DebertaForTokenClassification,
    heads.DebertaForQuestionAnswering,
]


@pytest.mark.parametrize("kind", HEADS)
def test_every_head(kind):
    check(randomise(kind(small())), SHAPES)


def test_multiple_choice():
    check(randomise(heads.DebertaForMultipleChoice(small())), [(1, 2, 5), (3, 4, 17)])


VARIANTS = {
    "v1": {"name": "deberta-base"},
    "convolution": {"name": "deberta-v2-xlarge"},
    "one layer, convolution": {"name": "deberta-v2-xlarge", "num_hidden_layers": 1},
    "own position projections": {"share_att_key": False},
    "c2p": {"pos_att_type": ["c2p"]},
    "p2c": {"pos_att_type": ["p2c"]},
    "no positions": {"relative_attention": False, "pos_att_type": [], "norm_rel_ebd": "none"},
    "absolute positions and segments": {"position_biased_input": True, "emd_steps": 0, "type_vocab_size": 2},
    "narrow words": {"embedding_size": 20},
    "wide heads": {"attention_head_size": 24},
    "mask decoder with its own layers": {"emd_steps": 3, "share_emd_layers": False, "emd_information": "embeddings"},
    "mask decoder that adds nothing": {"emd_information": "none"},
    "small buckets": {"position_buckets": 8, "max_position_embeddings": 20},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant(variant):
    """Cover the mask decoder and the classifier, whose last layer computes only the first token."""
    config = VARIANTS[variant]
    if variant != "small buckets":
        check(randomise(heads.DebertaForMaskedLM(small(**config))), [(2, 19)])
    check(randomise(heads.DebertaForSequenceClassification(small(**config))), [(2, 19), (1, 45)])


def test_a_model_that_learnt_on_since_its_last_export():
    model = randomise(heads.DebertaForSequenceClassification(small(num_hidden_layers=1)))
    onnx_model(model)
    check(randomise(model), [(2, 9)])


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v3-base"])
def test_past_512_tokens(name):
    check(randomise(heads.DebertaForMaskedLM(small(name))), [(1, 700)])


def test_a_sequence_of_padding_alone_is_no_nan():
    model = randomise(DebertaModel(small()))
    inputs = {key: value.numpy() for key, value in batch((2, 6), model.config, padded=False).items()}
    inputs["attention_mask"][1] = 0
    (hidden,) = session(onnx_model(model).SerializeToString()).run(None, inputs)
    assert np.isfinite(hidden).all()
    assert not hidden[1].any()


def test_standard_operators_only_and_no_positions_computed_at_run_time():
    """Position projections are constants: every Gemm belongs to a linear layer on the tokens."""
    proto = onnx_model(randomise(DebertaModel(small())), opset=21)
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 21}
    onnx.checker.check_model(proto, full_check=True)
    constants = {constant.name for constant in proto.graph.initializer}
    gemms = [node.input[1] for node in proto.graph.node if node.op_type == "Gemm"]
    assert len(gemms) == 2 * 6
    assert set(gemms) <= constants
    assert not any("rel_embeddings" in name for name in constants)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint with its tokenizer, as fine-tuning writes it."""
    path = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(1)
    model = randomise(heads.DebertaForSequenceClassification(small(hidden_size=64, intermediate_size=128)), 0.1)
    model.save_pretrained(path)
    word_tokenizer(["good", "bad", "film"]).save_pretrained(path)
    return path


def test_a_folder_runs_without_this_package(folder, tmp_path):
    file = export_onnx(folder, tmp_path)
    assert {f.name for f in tmp_path.iterdir()} >= {"model.onnx", "config.json", "tokenizer.json"}
    code = f"""
        import sys
        import numpy, onnxruntime, tokenizers
        tokenizer = tokenizers.Tokenizer.from_file({str(tmp_path / "tokenizer.json")!r})
        session = onnxruntime.InferenceSession({str(file)!r}, providers=["CPUExecutionProvider"])
        encoded = tokenizer.encode("a good film")
        inputs = {{"input_ids": [encoded.ids], "attention_mask": [encoded.attention_mask]}}
        print(*session.run(["logits"], {{k: numpy.array(v) for k, v in inputs.items()}})[0][0].tolist())
        assert "torch" not in sys.modules and "debertakit" not in sys.modules
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    model = heads.DebertaForSequenceClassification.from_pretrained(folder)
    from debertakit.text.tokenizers import load_tokenizer

    inputs = load_tokenizer(folder)("a good film", return_tensors="pt")
    expected = model.eval()(inputs["input_ids"]).logits[0]
    np.testing.assert_allclose([float(x) for x in run.stdout.split()], expected.detach().numpy(), atol=1e-4)
    assert DebertaConfig.from_pretrained(tmp_path).architectures == ["DebertaV2ForSequenceClassification"]


def test_int8(folder, tmp_path):
    """Outputs are close to fp32, linear weights are int8, and the small head stays in fp32."""
    full, short = export_onnx(folder, tmp_path / "full"), export_onnx(folder, tmp_path / "int8", int8=True)
    proto = onnx.load(short)
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    assert types["layer.1.output.weight_quantized"] == onnx.TensorProto.INT8
    assert types["classifier.weight"] == onnx.TensorProto.FLOAT
    assert sum(node.op_type == "MatMulInteger" for node in proto.graph.node) == 2 * 6
    scales = next(t for t in proto.graph.initializer if t.name == "layer.1.output.weight_scale")
    assert list(scales.dims) == [64]  # one scale per channel
    weights = onnx.numpy_helper.to_array(
        next(t for t in proto.graph.initializer if t.name == "layer.1.output.weight_quantized")
    )
    assert np.abs(weights).max() <= 64  # seven bits
    assert types["embeddings.words_int8"] == onnx.TensorProto.INT8
    assert types["layer.1.position_key_fp16"] == onnx.TensorProto.FLOAT16
    assert "embeddings.words" not in types
    inputs = {key: value.numpy() for key, value in batch((4, 20), small(), padded=True).items()}
    inputs["input_ids"] %= 7
    (a,), (b,) = session(full).run(None, inputs), session(short).run(None, inputs)
    assert 0 < np.linalg.norm(a - b) < 0.05 * np.linalg.norm(a)


def test_called_like_a_model(folder, tmp_path):
    export_onnx(folder, tmp_path)
    given, model = OnnxModel(tmp_path), heads.DebertaForSequenceClassification.from_pretrained(folder)
    inputs = batch((3, 8), model.config)
    with torch.no_grad():
        torch.testing.assert_close(given.eval()(**inputs).logits, model(**inputs).logits, atol=1e-4, rtol=0)
        alone = {"input_ids": inputs["input_ids"]}  # without a mask there is no padding
        torch.testing.assert_close(given(**alone)["logits"], model(**alone).logits, atol=1e-4, rtol=0)
    assert given.config.id2label == model.config.id2label
    with pytest.raises(ValueError, match=r"no model\.onnx in"):
        OnnxModel(folder)


def test_the_command(folder, tmp_path):
    run = CliRunner().invoke(app, ["export", "onnx", str(folder), "--out", str(tmp_path / "short"), "--int8"])
    assert run.exit_code == 0, run.output
    assert "opset 20, int8" in run.output
    assert (tmp_path / "short" / "model.onnx").is_file()
    refused = CliRunner().invoke(app, ["export", "onnx", str(tmp_path / "missing"), "--out", str(tmp_path / "out")])
    assert isinstance(refused.exception, ValueError)
    assert not (tmp_path / "out").exists()


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="opset 11"):
        export_onnx(DebertaModel(small()), tmp_path, opset=11)
    with pytest.raises(ValueError, match="'quick_gelu' cannot be exported to ONNX"):
        onnx_model(DebertaModel(small(hidden_act="quick_gelu")))
    with pytest.raises(ValueError, match="float16"):
        onnx_model(DebertaModel(small()).half())
    with pytest.raises(ValueError, match="p2p"):
        onnx_model(DebertaModel(small(pos_att_type=["c2p", "p2c", "p2p"])))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install .*\[onnx\]'"):
        export_onnx(DebertaModel(small()), tmp_path)
    assert not list(tmp_path.iterdir())
