import json

import pytest
import torch
import transformers

from debertakit import heads
from debertakit.config import DebertaConfig
from debertakit.finetuning.parameters import add_lora, freeze_encoder, parameter_groups
from debertakit.loading import (
    HEADS,
    SavedModel,
    TaskSettings,
    copy_settings,
    describe,
    has_head_dropout,
    load_for_training,
    longest_input,
)
from tests import tiny

LABELS = ("no", "yes", "maybe")


def test_deberta_gets_our_heads_and_others_transformers(tmp_path):
    ours = load_for_training(tiny.deberta(tmp_path / "d"), "single-label", LABELS, cls_dropout=0.3)
    assert isinstance(ours, heads.DebertaForSequenceClassification)
    assert ours.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert ours.config.problem_type == "single_label_classification"
    assert ours.dropout.p == 0.3
    theirs = load_for_training(tiny.bert(tmp_path / "b"), "tagging", LABELS)
    assert isinstance(theirs, transformers.BertForTokenClassification)
    assert load_for_training(tmp_path / "b", "regression").config.num_labels == 1
    assert isinstance(load_for_training(tmp_path / "d", "choice"), heads.DebertaForMultipleChoice)
    assert isinstance(load_for_training(tmp_path / "d", "qa"), heads.DebertaForQuestionAnswering)


@pytest.mark.parametrize("kind", HEADS)
def test_the_dropout_before_every_head_is_applied(tmp_path, kind):
    folder = tiny.deberta(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = load_for_training(folder, kind, LABELS if kind in ("single-label", "tagging") else (), cls_dropout=0.5)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]).expand(1, 2 if kind == "choice" else 1, 4)}
    inputs = inputs if kind == "choice" else {"input_ids": inputs["input_ids"][0]}
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(model(**inputs)[0], model(**inputs)[0])
    model.eval()
    assert torch.equal(model(**inputs)[0], model(**inputs)[0])
    assert has_head_dropout(folder, kind)


def test_heads_of_transformers_without_dropout(tmp_path):
    bert = tiny.bert(tmp_path)
    assert [kind for kind in HEADS if not has_head_dropout(bert, kind)] == ["qa"]


@pytest.mark.parametrize("kind", ["albert", "distilbert", "xlnet", "mpnet"])
def test_the_dropout_before_the_classifier_goes_by_each_familys_name(tmp_path, kind):
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    if kind == "distilbert":
        shape = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
    if kind == "xlnet":
        shape = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    config = transformers.AutoConfig.for_model(kind, vocab_size=40, **shape)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    model = load_for_training(tmp_path, "single-label", LABELS, cls_dropout=0.3)
    assert model.config.num_labels == 3
    applied = any(module.p == 0.3 for module in model.modules() if isinstance(module, torch.nn.Dropout))
    assert applied == has_head_dropout(tmp_path, "single-label") == (kind in ("albert", "distilbert"))


def test_weights_are_fp32_whatever_the_file_holds(tmp_path):
    folder = tiny.bert(tmp_path)
    transformers.BertModel.from_pretrained(folder).half().save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float16"
    assert {p.dtype for p in load_for_training(folder, "single-label", LABELS).parameters()} == {torch.float32}


def test_a_head_for_other_labels_is_replaced(tmp_path):
    folder = tiny.deberta(tmp_path)
    load_for_training(folder, "single-label", LABELS).save_pretrained(folder)
    again = load_for_training(folder, "single-label", LABELS)
    assert torch.equal(again.classifier.weight, load_for_training(folder, "single-label", LABELS).classifier.weight)
    assert load_for_training(folder, "single-label", ("a", "b")).classifier.out_features == 2


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_for_training(tmp_path, "qa")
    with pytest.raises(ValueError, match="nowhere"):
        load_for_training("nowhere/at-all", "qa")


def test_a_damaged_or_newer_task_file_is_named(tmp_path):
    folder = tiny.deberta(tmp_path)
    (folder / "task.json").write_text("{")
    with pytest.raises(ValueError, match=r"task\.json is not a JSON file"):
        describe(folder)
    (folder / "task.json").write_text("[]")
    with pytest.raises(ValueError, match=r"task\.json should hold a JSON object"):
        describe(folder)
    (folder / "task.json").write_text('{"max_length": 9, "stride": 4}')
    with pytest.raises(ValueError, match="unknown field 'stride'"):
        describe(folder)


def test_a_hub_model_keeps_its_settings(tmp_path, monkeypatch):
    """task.json and the pooling of a hub model are read from the hub, and copied by an export."""
    stored, out = tmp_path / "hub", tmp_path / "out"
    (stored / "1_Pooling").mkdir(parents=True)
    out.mkdir()
    (stored / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    TaskSettings(24, None).save(stored)

    def cached_file(name, file, **options):
        assert name == "someone/model"
        return str(stored / file) if (stored / file).is_file() else None

    monkeypatch.setattr("transformers.utils.cached_file", cached_file)
    saved = SavedModel("someone/model", DebertaConfig(), "", TaskSettings.read("someone/model"))
    assert saved.settings == TaskSettings(24, None)
    assert saved.pooling == "cls"
    copy_settings(saved, out)
    assert TaskSettings.read(out) == TaskSettings(24, None)
    assert SavedModel(str(out), DebertaConfig(), "", TaskSettings()).pooling == "cls"


def test_an_export_of_an_adapter_keeps_its_settings_and_the_pooling_of_its_base(tmp_path):
    base, adapter, out = tmp_path / "base", tmp_path / "adapter", tmp_path / "out"
    for folder in (base / "1_Pooling", adapter, out):
        folder.mkdir(parents=True)
    (base / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    TaskSettings(24, None).save(base)
    TaskSettings(16, 0.0).save(adapter)
    copy_settings(SavedModel(str(base), DebertaConfig(), "", TaskSettings.read(adapter), adapter), out)
    assert TaskSettings.read(out) == TaskSettings(16, 0.0)
    assert SavedModel(str(out), DebertaConfig(), "", TaskSettings()).pooling == "cls"


def test_an_adapter_folder_may_have_its_own_tokenizer(tmp_path):
    base, adapter = tiny.deberta(tmp_path / "base"), tmp_path / "adapter"
    adapter.mkdir()
    config = {"base_model_name_or_path": str(base), "task_type": "SEQ_CLS", "peft_type": "LORA"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    plain = describe(adapter).tokenizer()
    plain.add_tokens(["<new>"])
    plain.save_pretrained(adapter)
    assert len(describe(adapter).tokenizer()) == len(describe(base).tokenizer()) + 1
    with pytest.raises(ValueError, match=r"is an adapter; give its base model, .*base"):
        load_for_training(adapter, "single-label", LABELS)


def test_the_longest_input(tmp_path):
    from transformers import RobertaConfig, RobertaForSequenceClassification

    tokenizer = tiny.tokenizer()
    assert longest_input(load_for_training(tiny.deberta(tmp_path / "d"), "qa"), tokenizer) == (64, False)
    assert longest_input(load_for_training(tiny.bert(tmp_path / "b"), "qa"), tokenizer) == (64, True)
    shape = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    roberta = RobertaForSequenceClassification(RobertaConfig(vocab_size=9, max_position_embeddings=34, **shape))
    assert longest_input(roberta, tokenizer) == (32, True)
    roberta(torch.full((1, 32), 5))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        roberta(torch.full((1, 33), 5))


@pytest.mark.parametrize("make", [tiny.deberta, tiny.bert])
def test_deeper_layers_learn_more_slowly(make, tmp_path):
    model = load_for_training(make(tmp_path), "single-label", LABELS)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed = {name for name in names.values() if "bias" not in name and "LayerNorm" not in name}
    groups = parameter_groups(model, decayed, lr=1.0, weight_decay=0.1, layer_decay=0.5)
    rate = {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert set(rate) == {name for name, p in model.named_parameters() if p.requires_grad}
    prefix = model.base_model_prefix
    assert rate["classifier.weight"] == (1.0, 0.1)
    assert rate["classifier.bias"] == (1.0, 0.0)
    assert rate[f"{prefix}.encoder.layer.1.output.dense.weight"] == (0.5, 0.1)
    assert rate[f"{prefix}.encoder.layer.0.output.dense.weight"] == (0.25, 0.1)
    assert rate[f"{prefix}.embeddings.word_embeddings.weight"] == (0.125, 0.1)
    pooler = next(name for name in rate if "pooler" in name and "weight" in name)
    assert rate[pooler] == (1.0, 0.1)


@pytest.mark.parametrize("make", [tiny.deberta, tiny.bert])
def test_lora_trains_low_rank_updates_and_the_head(make, tmp_path):
    model = load_for_training(make(tmp_path), "single-label", LABELS)
    inputs = tiny.tokenizer()("the film was good", return_tensors="pt")
    before = model.eval()(**inputs).logits
    adapted = add_lora(model, rank=4)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert all("lora" in name or "classifier" in name or "pooler" in name for name in trained)
    assert any("lora" in name for name in trained)
    assert any("classifier" in name for name in trained)
    torch.testing.assert_close(adapted.eval()(**inputs).logits, before)  # begins as the model that it adapts
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1)
    after = adapted(**inputs).logits
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(**inputs).logits, after, atol=1e-5, rtol=1e-4)


def test_a_frozen_encoder(tmp_path):
    model = load_for_training(tiny.deberta(tmp_path), "single-label", LABELS)
    freeze_encoder(model)
    trained = {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"pooler", "classifier"}
