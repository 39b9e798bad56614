"""Speed up a transformers model in place with accelerate(), and export it for ONNX Runtime.

python examples/speed_up_a_model.py [MODEL]      default: random weights, half the layers of deberta-v3-xsmall
"""

import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

from debertakit import accelerate, export_onnx, undo

SHAPE = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
POSITIONS = {"relative_attention": True, "position_buckets": 256, "pos_att_type": ["c2p", "p2c"], "share_att_key": True}
OTHERS = {"vocab_size": 1000, "norm_rel_ebd": "layer_norm", "position_biased_input": False}


def build() -> transformers.PreTrainedModel:
    if len(sys.argv) > 1:
        return transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
    config = transformers.DebertaV2Config(**SHAPE, **POSITIONS, **OTHERS)
    return transformers.DebertaV2ForSequenceClassification(config).eval()


@torch.inference_mode()
def milliseconds(model: transformers.PreTrainedModel, batch: dict[str, torch.Tensor], rounds: int = 3) -> float:
    model(**batch)  # the first call is slower
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        model(**batch)
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def main() -> None:
    torch.manual_seed(0)
    model = build()
    lengths = torch.tensor([128, 17, 60, 9])  # like real batches: padded to the longest text
    mask = (torch.arange(128) < lengths[:, None]).long()
    batch = {"input_ids": torch.randint(5, 1000, (4, 128)) * mask, "attention_mask": mask}
    with torch.inference_mode():
        expected = model(**batch).logits
        before = milliseconds(model, batch)
        accelerate(model)  # the class, the weights and the saved files stay the same
        after = milliseconds(model, batch)
        difference = (model(**batch).logits - expected).abs().max()
    print(f"transformers {before:.0f} ms, accelerated {after:.0f} ms; largest difference of a logit {difference:.1e}")

    undo(model)
    folder = Path(tempfile.mkdtemp(prefix="faster-"))
    model.save_pretrained(folder / "model")
    print(f"for ONNX Runtime: {export_onnx(folder / 'model', folder / 'onnx')}")


if __name__ == "__main__":
    main()
