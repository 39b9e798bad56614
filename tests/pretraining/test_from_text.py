"""From the command line's sources to a run: a mixture is recorded, resumed and packed by its weights."""

import numpy as np
import pytest

from debertakit.pretraining import settings
from debertakit.pretraining.from_text import pretrain_from_text
from debertakit.text.corpus import Corpus
from debertakit.text.packing import Packing
from tests.pretraining.material import text

SIZE = (
    *("model.num_hidden_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "model.intermediate_size=64"),
    *(
        "data.tokenizer=wordpiece",
        "data.vocab_size=120",
        "data.max_length=32",
        "data.step_tokens=256",
        "precision=fp32",
    ),
    *("optimizer.warmup_steps=1", "evaluate_tokens=256"),
)


def test_a_mixture_from_text(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        (tmp_path / f"{name}.txt").write_text(text(30, seed))
    sources = [f"{tmp_path / 'a.txt'}=0.8", f"{tmp_path / 'b.txt'}=0.2"]
    out = tmp_path / "out"
    pretrain_from_text("tiny", sources, out, assignments=[*SIZE, "steps=1"])
    assert settings.load(out / "run.json").data.mixture == "0.8,0.2"
    pretrain_from_text("tiny", sources, out, assignments=["steps=2"], resume=True)
    assert settings.load(out / "run.json").steps == 2
    other = [source.rpartition("=")[0] + "=0.5" for source in sources]
    with pytest.raises(ValueError, match=r"data\.mixture=0\.8,0\.2, and --resume cannot change this to 0\.5,0\.5"):
        pretrain_from_text("tiny", other, out, assignments=["steps=2"], resume=True)
    shards = Corpus.open(out / "corpus").train
    batches = [Packing(shards, 32, 256, weights=[0.8, 0.2]).batch(step) for step in range(20)]
    first = sum(np.bincount(shards.sources[batch.documents], batch.lengths, 2) for batch in batches)
    assert first[0] / first.sum() == pytest.approx(0.8, abs=0.02)
    with pytest.raises(ValueError, match=r"deberta corpus prepare a\.txt b\.txt"):
        pretrain_from_text("tiny", [str(out / "corpus"), str(tmp_path / "a.txt")], tmp_path / "x")
