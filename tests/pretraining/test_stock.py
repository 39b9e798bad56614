"""Continued pretraining of transformers' own checkpoints: at step 0 the loss is that of the stock model."""

import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from debertakit.objectives.joint import JointObjectives
from debertakit.pretraining.continued import adopt, load, tokenizer_of
from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import make_run, pretrain, train_step
from debertakit.pretraining.models import make_models
from tests.models import randomise
from tests.pretraining.material import config

SHAPE = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SHAPE |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 40}
OWN = {
    "bert": {},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 0},
    "albert": {"embedding_size": 16, "classifier_dropout_prob": 0.0},
    "electra": {"embedding_size": 16},
}
HEAD = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "albert": "AlbertForMaskedLM"}
HEAD |= {"electra": "ElectraForMaskedLM"}
LENGTH = ("data.max_length=32",)


def checkpoint(folder, tokenizer, family, head=None, **fields):
    """A checkpoint as stock transformers writes it."""
    kind = transformers.CONFIG_MAPPING[family]
    asked = {**SHAPE, **OWN[family], "vocab_size": len(tokenizer) + 3, **fields}
    model = randomise(getattr(transformers, head or HEAD[family])(kind(**asked)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def masked_batch(run):
    """The first part of the first step, as stock models read it: ids and labels, padded."""
    packed = run.packing.batch(0, 0, 1)
    part = run.module.prepare(packed, run.context, 0.0)
    view = part.views["masked"]
    labels = torch.full_like(view.ids, -100)
    labels[torch.from_numpy(view.masked.positions)] = torch.from_numpy(view.masked.targets)
    lengths = view.lengths.tolist()
    ids = pad_sequence(view.ids.split(lengths), batch_first=True, padding_value=0)
    labels = pad_sequence(labels.split(lengths), batch_first=True, padding_value=-100)
    mask = pad_sequence([torch.ones(n, dtype=torch.long) for n in lengths], batch_first=True)
    return part, {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("family", OWN)
def test_the_loss_at_step_0_is_that_of_stock_transformers(corpus, tokenizer, tmp_path, family):
    checkpoint(tmp_path, tokenizer, family)
    adopted = adopt(config(*LENGTH), str(tmp_path))  # a recipe of DeBERTa: the checkpoint decides the family
    assert adopted.family == family
    run = make_run(adopted, corpus, tokenizer, World())
    assert isinstance(run.module, JointObjectives)
    part, batch = masked_batch(run)
    run.module.eval()
    with torch.no_grad():
        loss, _ = run.module(part, torch.tensor([float(len(batch["labels"][batch["labels"] >= 0]))]))
        expected = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(**batch).loss
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    first = train_step(run, 0.0)
    assert first["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_a_run_ends_as_a_stock_checkpoint_with_the_tokenizer(corpus, tokenizer, tmp_path):
    before = checkpoint(tmp_path / "bert", tokenizer, "bert").state_dict()
    assert tokenizer_of(str(tmp_path / "bert")).get_vocab() == tokenizer.get_vocab()
    run = adopt(config(*LENGTH, "steps=1", "optimizer.lr=1e-9"), str(tmp_path / "bert"))
    pretrain(run, corpus, tokenizer, tmp_path / "out")
    after = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out")
    assert after.config.vocab_size == len(tokenizer) + 3
    for key, value in after.state_dict().items():
        torch.testing.assert_close(value, before[key], atol=1e-6, rtol=0)


def test_the_pair_head_is_loaded_or_named_as_new(corpus, tokenizer, tmp_path, capsys):
    pairs = (*LENGTH, "objectives.nsp=1")
    before = checkpoint(tmp_path / "with", tokenizer, "bert", "BertForPreTraining").state_dict()
    model = make_run(adopt(config(*pairs), str(tmp_path / "with")), corpus, tokenizer, World()).module.model
    assert torch.equal(model.state_dict()["cls.seq_relationship.weight"], before["cls.seq_relationship.weight"])
    assert "newly" not in capsys.readouterr().err
    checkpoint(tmp_path / "without", tokenizer, "bert")
    make_run(adopt(config(*pairs), str(tmp_path / "without")), corpus, tokenizer, World())
    assert "newly initialised: bert.pooler" in capsys.readouterr().err


@pytest.mark.parametrize("family", OWN)
def test_positions_grow(corpus, tokenizer, tmp_path, family, capsys):
    before = checkpoint(tmp_path, tokenizer, family).state_dict()
    run = make_run(adopt(config("data.max_length=64"), str(tmp_path)), corpus, tokenizer, World())
    key = next(key for key in before if key.endswith("position_embeddings.weight"))
    reserved = 1 if family == "roberta" else 0  # the row of its padding id 0
    old, grown = before[key], run.module.model.state_dict()[key]
    trained = 40 - reserved
    assert len(grown) == 64 + reserved
    assert torch.equal(grown[:40], old)
    assert torch.equal(grown[40:], old[reserved : 64 + reserved - 40 + reserved])
    assert f"positions from {trained} start as copies of the first {trained}" in capsys.readouterr().err
    assert train_step(run, 0.0)["loss"] > 0


def test_electra_continues_with_its_generator(corpus, tokenizer, tmp_path):
    detector = checkpoint(tmp_path, tokenizer, "electra", "ElectraForPreTraining").state_dict()
    electra = config(*LENGTH, name="electra-tiny")
    with pytest.raises(ValueError, match="has no generator: pass --init-generator"):
        adopt(electra, str(tmp_path))
    shape = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 32, "num_hidden_layers": 1}
    words = checkpoint(tmp_path / "generator", tokenizer, "electra", **shape).state_dict()
    run = make_run(adopt(electra, str(tmp_path)), corpus, tokenizer, World())
    assert (run.config.rtd.generator_layers, run.config.rtd.generator_width) == (1, 0.5)
    loaded = {name: model.state_dict() for name, model in run.module.models.items()}
    layer = "electra.encoder.layer.0.output.dense.weight"
    assert torch.equal(loaded["model"][layer], detector[layer])
    assert torch.equal(loaded["generator"][layer], words[layer])
    key = "discriminator_predictions.dense.weight"
    assert torch.equal(loaded["model"][key], detector[key])
    assert train_step(run, 0.0)["rtd"] > 0


def test_albert_with_layers_of_its_own(corpus, tokenizer, tmp_path):
    before = checkpoint(tmp_path / "own", tokenizer, "albert", num_hidden_groups=2).state_dict()
    model = make_run(adopt(config(*LENGTH), str(tmp_path / "own")), corpus, tokenizer, World()).module.model
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    checkpoint(tmp_path / "inner", tokenizer, "albert", inner_group_num=2)
    with pytest.raises(ValueError, match="one group, or one group for each layer"):
        adopt(config(*LENGTH), str(tmp_path / "inner"))


def test_what_cannot_continue_is_one_clear_line(tokenizer, tmp_path):
    kind = transformers.BertConfig(**SHAPE, vocab_size=len(tokenizer))
    transformers.BertForSequenceClassification(kind).save_pretrained(tmp_path / "tuned")
    with pytest.raises(ValueError, match=r"was fine-tuned .it is a BertForSequenceClassification"):
        adopt(config(), str(tmp_path / "tuned"))
    transformers.XLNetModel(transformers.XLNetConfig(n_layer=1, d_model=8, n_head=1, d_inner=8)).save_pretrained(
        tmp_path / "xlnet"
    )
    with pytest.raises(ValueError, match="checkpoint of xlnet; --init continues DeBERTa, BERT, RoBERTa, ALBERT, ELEC"):
        adopt(config(), str(tmp_path / "xlnet"))
    checkpoint(tmp_path / "bert", tokenizer, "bert")
    other = adopt(config(*LENGTH), str(tmp_path / "bert"))
    checkpoint(tmp_path / "bert", tokenizer, "bert", intermediate_size=48)
    with pytest.raises(ValueError, match="does not fit the model"):
        load(make_models(other, tokenizer), str(tmp_path / "bert"), None, 32)
