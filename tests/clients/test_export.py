"""Exported programs and ONNX files of our classes and accelerated models, run at shapes that the export never saw."""

import io

import pytest
import torch
from torch import nn

from tests.clients.material import client
from tests.stock import VARIANTS, assert_same, pair

SHAPES = [(1, 3), (2, 9), (4, 17)]


class Logits(nn.Module):
    """A module with positional inputs and one output, as examples of the exporter write it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]


def batch(shape, kind=torch.long):
    draw = torch.Generator().manual_seed(shape[1])
    ids, mask = torch.randint(5, 101, shape, generator=draw), torch.ones(shape, dtype=kind)
    if shape[0] > 1:
        mask[-1, shape[1] // 2 :] = 0
    return ids, mask


def dynamic():
    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("length", min=2, max=64)
    return {"input_ids": {0: rows, 1: length}, "attention_mask": {0: rows, 1: length}}


def session(content):
    ort = client("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def check(run, stock, kind):
    """Equal to stock at every shape; token outputs only where there are tokens."""
    for shape in SHAPES:
        ids, mask = batch(shape)
        with torch.no_grad():
            expected = stock(ids, attention_mask=mask)[0]
        found = run(ids, mask)
        assert found.shape == expected.shape
        real = mask.bool() if kind == "ForTokenClassification" else slice(None)
        assert_same(found[real], expected[real], tolerance=5e-5)


@pytest.mark.parametrize(("variant", "strict"), [("own", False), ("own", True), ("accelerated", False)])
def test_torch_export(variant, strict):
    """The program is saved and loaded; the model itself works as before."""
    model, stock = pair(variant, num_hidden_layers=1)
    program = torch.export.export(Logits(model).eval(), batch((3, 12)), dynamic_shapes=dynamic(), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    check(torch.export.load(file).module(), stock, "ForSequenceClassification")
    with torch.no_grad():
        check(Logits(model), stock, "ForSequenceClassification")
    ids, mask = batch((2, 9))
    model.train()(input_ids=ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss.backward()


@pytest.mark.parametrize(
    ("variant", "kind"), [("own", "ForTokenClassification"), ("accelerated", "ForSequenceClassification")]
)
def test_onnx_by_dynamo(variant, kind, tmp_path):
    client("onnxscript")
    model, stock = pair(variant, kind, num_hidden_layers=1)
    file = tmp_path / "model.onnx"
    torch.onnx.export(
        Logits(model).eval(), batch((3, 12)), str(file), dynamo=True, dynamic_shapes=dynamic(), verbose=False,
        input_names=["input_ids", "attention_mask"], external_data=False,
    )  # fmt: skip
    runner = session(str(file))

    def run(ids, mask):
        return torch.from_numpy(runner.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0])

    check(run, stock, kind)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["deberta-v3-base", "deberta-base"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_onnx_by_tracing(variant, name, tmp_path):
    """The older exporter records one run, so nothing of that run (its number of tokens) may become a constant."""
    client("onnx")
    model, stock = pair(variant, name=name)
    file = io.BytesIO()
    axes = {0: "rows", 1: "length"}
    torch.onnx.export(
        Logits(model).eval(), batch((3, 12)), file, dynamo=False, opset_version=17,
        input_names=["input_ids", "attention_mask"], output_names=["logits"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "logits": {0: "rows"}},
    )  # fmt: skip
    runner = session(file.getvalue())

    def run(ids, mask):
        return torch.from_numpy(runner.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0])

    check(run, stock, "ForSequenceClassification")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_torchscript_trace_runs_at_other_shapes(variant):
    model, stock = pair(variant)
    traced = torch.jit.trace(Logits(model).eval(), batch((3, 12)))
    check(lambda ids, mask: traced(ids, mask).detach(), stock, "ForSequenceClassification")
