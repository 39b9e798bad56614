"""Benchmark suites: model inference, training steps, attention alone, and the memory of attention.

The shape is v3-base's (12 heads of 64, feed-forward 3072, 256 buckets) with four layers and a small vocabulary:
embedding lookups cost almost nothing, and a large table would only hide differences behind the optimiser's time. The
training suite ends with a full step of the pretraining recipe ``small``. Peers are transformers' DeBERTa-v2, its BERT
with SDPA (the baseline: no position terms in attention), and, for inference, its ModernBERT with SDPA and ONNX Runtime
on transformers' DeBERTa as exported by torch and on our graph. All weights are random, and ours are frozen as in a
predictor. ModernBERT-base has 22 layers and v3-base 12, so
ModernBERT gets 22 layers for each 12 of the others: the ratio is that of the whole models.
"""

import ctypes
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from debertakit.attention.projections import freeze
from debertakit.bench.contest import Measurement, contest
from debertakit.bench.options import BenchOptions
from debertakit.config import DebertaConfig, preset
from debertakit.heads import DebertaForMaskedLM
from debertakit.model import DebertaModel
from debertakit.padding import IGNORED
from debertakit.precision import Resolved, autocast
from debertakit.pretraining.recipes.deberta import small

if TYPE_CHECKING:
    import onnxruntime

VOCABULARY = 1000
LONGEST_SQUARE = 2048
"""Longest workload of the peers with a tensor of length^2 per head."""


def shape(layers: int) -> DebertaConfig:
    return preset("deberta-v3-base", num_hidden_layers=layers, vocab_size=VOCABULARY, emd_steps=0)


def models(layers: int) -> dict[str, PreTrainedModel]:
    """Build the contestants. Ours and HF's have the same weights."""
    config = shape(layers)
    hf = transformers.DebertaV2Model(transformers.DebertaV2Config.from_dict(config.to_dict()))
    ours = DebertaModel(config)
    ours.load_state_dict(hf.state_dict())
    bert = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=8192, attn_implementation="sdpa"
        ),
        add_pooling_layer=False,
    )
    return {"ours": ours, "hf": hf, "bert": bert}


def modernbert(layers: int) -> PreTrainedModel:
    """ModernBERT-base with SDPA (the defaults of its config), with 22 layers for each 12 of ours."""
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=round(layers * 22 / 12),
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        attn_implementation="sdpa",
    )
    return transformers.ModernBertModel(config)


def batch(lengths: list[int]) -> dict[str, Tensor]:
    longest = max(lengths)
    ids = torch.randint(5, VOCABULARY, (len(lengths), longest))
    mask = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    return {"input_ids": ids, "attention_mask": mask.long()}


def inference(options: BenchOptions) -> Iterator[Measurement]:
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    runners = {name: model.eval() for name, model in models(options.depth).items()}
    graphs = {}
    if options.precision == "fp32":
        graphs = {"ort": _hf_graph(runners["hf"]), "onnx": _our_graph(runners["ours"])}
    runners["modernbert"] = modernbert(options.depth).eval()
    for model in runners.values():
        model.to(dtype)
    freeze(runners["ours"])
    for name, lengths in options.works("inference").items():
        inputs = batch(lengths)
        peers = [key for key in runners if key != "hf" or max(lengths) <= LONGEST_SQUARE]
        contestants = {key: _inference_run(runners[key], inputs) for key in peers}
        for key, session in graphs.items():
            if session is not None and max(lengths) <= LONGEST_SQUARE:
                contestants[key] = partial(session.run, None, {key: value.numpy() for key, value in inputs.items()})
        yield contest(name, contestants, options.time)


def _inference_run(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return model(**inputs)

    return run


def _session(path: str) -> "onnxruntime.InferenceSession":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _hf_graph(model: PreTrainedModel) -> "onnxruntime.InferenceSession | None":
    """Load transformers' DeBERTa in ONNX Runtime. Returns None if a package is not installed."""
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError:
        return None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about missing optional packages
    inputs = batch([8, 6])
    batch_dim, length_dim = torch.export.Dim("batch", max=64), torch.export.Dim("length", min=2, max=4096)
    shapes = {name: {0: batch_dim, 1: length_dim} for name in inputs}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), redirect_stdout(StringIO()):
        path = str(Path(folder) / "hf.onnx")
        torch.onnx.export(model, (), path, kwargs=inputs, dynamic_shapes=shapes, dynamo=True, verbose=False)
        return _session(path)


def _our_graph(model: PreTrainedModel) -> "onnxruntime.InferenceSession | None":
    """Load our export of the same model in ONNX Runtime. Returns None if a package is not installed."""
    from debertakit.inference.onnx import export_onnx

    assert isinstance(model, DebertaModel)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _session(str(export_onnx(model, folder)))
    except ImportError:
        return None


def training(options: BenchOptions) -> Iterator[Measurement]:
    runners = {name: model.train() for name, model in models(options.depth).items()}
    optimisers = {name: torch.optim.AdamW(model.parameters(), lr=1e-5) for name, model in runners.items()}
    for name, lengths in options.works("training").items():
        if name == "small":
            yield contest(name, small_steps(options.precision), options.time * 2)
            continue
        inputs = batch(lengths)
        losses = {key: partial(_hidden_loss, model, inputs) for key, model in runners.items()}
        steps: dict[str, Callable[[], object]] = {
            key: partial(_training_step, losses[key], optimisers[key], options.precision) for key in runners
        }
        yield contest(name, steps, options.time * 2)


def _hidden_loss(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs).last_hidden_state.float().square().mean()


def _training_step(loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer, precision: Resolved = "fp32") -> None:
    optimiser.zero_grad(set_to_none=True)
    with autocast(precision, torch.device("cpu")):
        value = loss()
    value.backward()
    optimiser.step()


def small_steps(precision: Resolved = "fp32") -> dict[str, Callable[[], object]]:
    """Training steps of the recipe ``small``: its shape and tokens, with head and loss on the masked rows only.

    Ours runs the mask decoder. The peers apply the head to the masked rows of their last layer, which is less work
    than in the stock models.
    """
    recipe = small()
    config = DebertaConfig(vocab_size=recipe.data.vocab_size, **recipe.model)
    fields = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    dropout = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    same = {name: getattr(config, name) for name in (*fields, *dropout)}
    ours = DebertaForMaskedLM(config)
    hf = transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config.from_dict(config.to_dict() | {"legacy": True}))
    bert = transformers.BertForMaskedLM(transformers.BertConfig(**same, attn_implementation="sdpa"))
    length = recipe.data.max_length
    ids = torch.randint(5, config.vocab_size, (recipe.data.step_tokens // length, length))
    masked = torch.rand(ids.shape) < recipe.masking.rate
    losses: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: ours(input_ids=ids, labels=ids.where(masked, IGNORED)).loss,
        "hf": lambda: F.cross_entropy(hf.cls(hf.deberta(ids).last_hidden_state[masked]), ids[masked]),
        "bert": lambda: F.cross_entropy(bert.cls(bert.bert(ids).last_hidden_state[masked]), ids[masked]),
    }
    optimisers = {
        name: torch.optim.AdamW(model.train().parameters(), lr=1e-5, fused=True)
        for name, model in {"ours": ours, "hf": hf, "bert": bert}.items()
    }
    return {name: partial(_training_step, losses[name], optimisers[name], precision) for name in losses}


def attention(options: BenchOptions) -> Iterator[Measurement]:
    """One layer's attention with its projections: forward alone, and forward and backward ("+")."""
    for name, lengths in options.works("attention").items():
        hidden = torch.randn(len(lengths), lengths[0], 768)
        for backward in (False, True):
            contestants = {key: _attention_run(key, hidden, backward) for key in ("ours", "hf", "bert")}
            yield contest(name + ("+" if backward else ""), contestants, options.time / 2)


def _attention_run(contestant: str, hidden: Tensor, backward: bool) -> Callable[[], object]:
    """Return a closure that runs one contestant's self-attention on [batch, length, 768]."""
    forward = attention_forward(contestant, hidden.shape[0], hidden.shape[1])

    def run() -> None:
        with torch.set_grad_enabled(backward):
            x = hidden.detach().requires_grad_(backward)
            out = forward(x)
            if backward:
                out.sum().backward()

    return run


def attention_forward(contestant: str, batch_size: int, length: int) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    model = models(1)[contestant].eval()
    layer = model.encoder.layer[0].attention.self
    if contestant == "bert":
        return lambda x: layer(x)[0]
    mask = torch.ones(batch_size, length, dtype=torch.long)
    if contestant == "hf":
        encoder = model.encoder

        def hf(x: Tensor) -> Tensor:
            wide, relative = encoder.get_attention_mask(mask), encoder.get_rel_pos(x)
            return layer(x, wide, relative_pos=relative, rel_embeddings=encoder.get_rel_embedding())[0]

        return hf

    from debertakit.attention.layout import Layout
    from debertakit.attention.projections import project
    from debertakit.model import attention_context, relative_table

    layout = Layout.rectangular(batch_size, length, "cpu")

    def ours(x: Tensor) -> Tensor:
        table = relative_table(model.encoder, model.config, layout)
        return attention_context(layer, project(layer, x.flatten(0, 1)), model.config, layout, table)

    return ours


@dataclass(frozen=True)
class Peak:
    work: str
    ours_mb: float
    hf_mb: float | None
    bert_mb: float | None

    def row(self) -> dict[str, object]:
        return {"work": self.work, "ours_mb": self.ours_mb, "hf_mb": self.hf_mb, "bert_mb": self.bert_mb}


def memory(options: BenchOptions) -> Iterator[Peak]:
    """Peak memory that one layer's attention (forward and backward) adds to a separate process."""
    if not Path("/proc/self/clear_refs").exists():
        raise ValueError("deberta bench memory needs Linux (/proc/self)")
    for name, (length,) in options.works("memory").items():
        hf = peak_memory("hf", length) if length <= 4096 else None  # above that, transformers needs over 20 GB
        yield Peak(name, peak_memory("ours", length), hf, peak_memory("bert", length))


def peak_memory(contestant: str, length: int) -> float:
    """Megabytes, measured in a fresh process: the recorded peak of a process does not go down."""
    code = f"from debertakit.bench.suites import _print_peak; _print_peak({contestant!r}, {length})"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout.split()[-1])


def _print_peak(contestant: str, length: int) -> None:
    forward = attention_forward(contestant, 1, length)
    warm = torch.randn(1, 16, 768, requires_grad=True)
    attention_forward(contestant, 1, 16)(warm).sum().backward()
    x = torch.randn(1, length, 768, requires_grad=True)
    # Free the memory left from building the models, and reset the kernel's peak-memory counter (Linux only).
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    forward(x).sum().backward()
    print(round((_status("VmHWM") - before) / 1024, 1))


def _status(field: str) -> int:
    """Read a field of /proc/self/status, in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])
