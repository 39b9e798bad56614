"""Saving and loading as users of transformers do it: our six classes, with files of the stock class and back."""

import copy
import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import debertakit
from debertakit import DebertaConfig, DebertaForMaskedLM, DebertaForSequenceClassification, DebertaModel
from debertakit.config import preset
from tests.models import randomise, small
from tests.stock import (
    HEADS,
    KINDS,
    assert_same,
    inputs,
    main_outputs,
    needs_stock_masked_lm,
    own,
    pair,
    stock_class,
    stock_twin,
)


def results(kind, model):
    with torch.no_grad():
        return main_outputs(kind, model(**inputs(kind)), inputs(kind)["attention_mask"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [False, True])
def test_a_saved_model_comes_back_equal(kind, shards, tmp_path):
    model = own(kind)
    model.save_pretrained(tmp_path, **({"max_shard_size": "20KB"} if shards else {}))
    assert (tmp_path / "model.safetensors.index.json").is_file() == shards
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not again.training
    assert_same(results(kind, again), results(kind, model), tolerance=0)


@pytest.mark.parametrize("kind", KINDS)
def test_ours_and_stock_read_the_files_of_each_other(kind, tmp_path):
    model, stock = pair("own", kind)
    model.save_pretrained(tmp_path / "ours")
    stock.save_pretrained(tmp_path / "stock")
    theirs, info = type(stock).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert_same(results(kind, theirs), results(kind, stock), tolerance=0)
    ours, info = type(model).from_pretrained(tmp_path / "stock", output_loading_info=True)
    assert not info["missing_keys"]
    assert_same(results(kind, ours), results(kind, model), tolerance=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_auto_classes_load_what_we_save(kind, tmp_path):
    model = own(kind)
    if kind == "ForMaskedLM":
        needs_stock_masked_lm()
    model.save_pretrained(tmp_path)
    loaded = getattr(transformers, f"AutoModel{kind.removeprefix('Model')}").from_pretrained(tmp_path).eval()
    assert_same(results(kind, loaded), results(kind, model))


@pytest.mark.parametrize("name", ["deberta-v3-base", "deberta-v2-xlarge", "deberta-base"])
def test_the_auto_classes_build_the_right_architecture_from_our_config(name):
    """A v3 config must not become a v1 model only because the class is called DebertaConfig."""
    config = small(name, emd_steps=0)
    built = transformers.AutoModel.from_config(config)
    expected = DebertaModel(config).state_dict()
    assert {key: value.shape for key, value in built.state_dict().items()} == {k: v.shape for k, v in expected.items()}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_on_a_bare_encoder_is_initialised_and_reported(kind, tmp_path):
    encoder = own("Model")
    encoder.save_pretrained(tmp_path)
    model, info = getattr(debertakit, f"Deberta{kind}").from_pretrained(tmp_path, output_loading_info=True)
    _, stock_info = stock_class(model).from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == set(stock_info["missing_keys"])
    assert torch.equal(model.get_input_embeddings().weight, encoder.get_input_embeddings().weight)
    for name, weight in model.named_parameters():
        if not name.startswith("deberta."):
            assert weight.isfinite().all()
            assert weight.abs().max() < 0.2 or name.endswith("LayerNorm.weight"), name


@pytest.mark.parametrize("keyword", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("asked", [torch.float16, torch.bfloat16, torch.float32, "float16", "bfloat16"])
def test_the_requested_dtype(asked, keyword, tmp_path):
    own("ForSequenceClassification").save_pretrained(tmp_path)
    model = DebertaForSequenceClassification.from_pretrained(tmp_path, **{keyword: asked})
    expected = getattr(torch, asked) if isinstance(asked, str) else asked
    assert {weight.dtype for weight in model.parameters()} == {expected}
    assert model.dtype == expected
    assert model(**inputs()).logits.dtype == expected


@pytest.mark.parametrize("keyword", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_auto_is_the_dtype_of_the_file(stored, keyword, tmp_path):
    own("ForSequenceClassification").to(stored).save_pretrained(tmp_path)
    model = DebertaForSequenceClassification.from_pretrained(tmp_path, **{keyword: "auto"})
    assert {weight.dtype for weight in model.parameters()} == {stored}


def test_without_a_request_weights_are_fp32(tmp_path):
    """Deliberately unlike transformers 5: a half-precision file would otherwise be trained in half precision."""
    own("ForSequenceClassification").half().save_pretrained(tmp_path)
    assert DebertaForSequenceClassification.from_pretrained(tmp_path).dtype == torch.float32


@pytest.mark.parametrize("implementation", ["sdpa", "flash_attention_2", "flex_attention", "no-such-attention"])
def test_an_unsupported_attention_implementation_is_refused_as_stock_refuses_it(implementation, tmp_path):
    model, stock = pair("own")
    model.save_pretrained(tmp_path)
    for cls in (type(stock), type(model)):
        with pytest.raises((ValueError, ImportError)):
            cls.from_pretrained(tmp_path, attn_implementation=implementation)


def test_eager_attention_is_accepted(tmp_path):
    model = own("ForSequenceClassification")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager")
    assert_same(again(**inputs()).logits, model(**inputs()).logits, tolerance=0)


# Fields that config.json files on the hub contain and no DeBERTa model reads.
FOREIGN = {
    "max_seq_length": 256,
    "cls_token_id": 1,
    "unk_token_id": 3,
    "sep_token": "[SEP]",
    "padding_side": "right",
    "num_layers": 12,
    "padding": "max_length",
    "max_len": 512,
    "hidden_dropout": 0.1,
    "num_heads": 12,
    "classifier_dropout": 0.2,
    "label_names": ["a", "b"],
    "training": {"epochs": 3},
}


@pytest.mark.parametrize("field", FOREIGN)
def test_a_foreign_config_field_loads_and_survives_saving(field, tmp_path):
    model = own("ForSequenceClassification")
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: FOREIGN[field]}))
    again = DebertaForSequenceClassification.from_pretrained(tmp_path)
    assert_same(again(**inputs()).logits, model(**inputs()).logits, tolerance=0)
    assert getattr(again.config, field) == FOREIGN[field]
    again.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())[field] == FOREIGN[field]


def test_accelerate_takes_a_model_whose_config_has_foreign_fields():
    stock = stock_twin(own("ForSequenceClassification"))
    expected = stock(**inputs()).logits
    for field, value in FOREIGN.items():
        setattr(stock.config, field, value)
    assert_same(debertakit.accelerate(stock)(**inputs()).logits, expected)


def test_a_misspelt_field_in_code_is_still_an_error():
    with pytest.raises(ValueError, match="hidden_size"):
        preset("deberta-v3-base", hiden_size=64)


def test_config_survives_save_load_copy_and_dict(tmp_path):
    config = small(num_labels=4, hidden_dropout_prob=0.3)
    config.save_pretrained(tmp_path)
    assert DebertaConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert DebertaConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert copy.deepcopy(config).to_dict() == config.to_dict()
    assert DebertaConfig.from_dict(json.loads(config.to_json_string(use_diff=False))).to_dict() == config.to_dict()


def test_labels_of_the_config_size_the_head(tmp_path):
    names = {0: "no", 1: "perhaps", 2: "yes", 3: "never"}
    own("Model").save_pretrained(tmp_path)
    model = DebertaForSequenceClassification.from_pretrained(
        tmp_path, id2label=names, label2id={value: key for key, value in names.items()}
    )
    assert model.config.num_labels == 4
    assert model(**inputs()).logits.shape == (3, 4)


def test_a_head_of_another_size_is_refused_or_replaced_on_request(tmp_path):
    model = own("ForSequenceClassification")
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        DebertaForSequenceClassification.from_pretrained(tmp_path, num_labels=7)
    changed = DebertaForSequenceClassification.from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True)
    assert changed.classifier.weight.shape == (7, 32)
    assert torch.equal(changed.pooler.dense.weight, model.pooler.dense.weight)


def test_a_file_without_the_tied_output_matrix_is_complete(tmp_path):
    """transformers does not write a tied weight twice; its absence is nothing to report."""
    config = transformers.DebertaV2Config.from_dict({**small(emd_steps=0).to_dict(), "legacy": True})
    stock = randomise(transformers.DebertaV2ForMaskedLM(config))
    stock.tie_weights()
    stock.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert "cls.predictions.decoder.weight" not in saved
    model, info = DebertaForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert_same(results("ForMaskedLM", model), results("ForMaskedLM", stock))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_encoder_layers_reports_missing_weights_like_stock(kind, tmp_path):
    """Only the word embeddings are in the file. Stock initialises the rest and names it in `missing_keys`."""
    model = own(kind)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    words = {key: value for key, value in state.items() if key.endswith("word_embeddings.weight")}
    save_file(words, tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, expected = stock_class(model).from_pretrained(tmp_path, output_loading_info=True)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == set(expected["missing_keys"])
    assert torch.equal(again.get_input_embeddings().weight, model.get_input_embeddings().weight)
    assert all(weight.isfinite().all() for weight in again.parameters())


def test_input_and_output_words_stay_one_matrix(tmp_path):
    model = own("ForMaskedLM")
    model.save_pretrained(tmp_path)
    shapes = [tuple(value.shape) for value in load_file(tmp_path / "model.safetensors").values()]
    assert shapes.count((101, 32)) == 1
    again = DebertaForMaskedLM.from_pretrained(tmp_path)
    before = again(**inputs("ForMaskedLM")).logits
    with torch.no_grad():
        again.get_input_embeddings().weight[100] += 1.0  # a word that the batch may hold only as an answer
    ids = inputs("ForMaskedLM")["input_ids"].clamp(max=99)
    changed = again(ids).logits - DebertaForMaskedLM.from_pretrained(tmp_path)(ids).logits
    assert changed[..., 100].abs().min() > 1e-6
    assert changed[..., :100].abs().max() < 1e-6
    assert before.shape[-1] == 101


@pytest.mark.parametrize("kind", KINDS)
def test_resized_embeddings(kind, tmp_path):
    model = own(kind)
    batch = inputs(kind)
    mask = batch["attention_mask"]
    before = main_outputs(kind, model(**batch), mask)
    table = model.resize_token_embeddings(110)
    assert model.get_input_embeddings() is table
    assert model.config.vocab_size == table.num_embeddings == 110
    after = main_outputs(kind, model(**batch), mask)
    assert_same([value[..., : old.shape[-1]] for value, old in zip(after, before, strict=True)], before)
    model.save_pretrained(tmp_path)
    assert_same(results(kind, type(model).from_pretrained(tmp_path)), after)
    new = {**batch, "input_ids": batch["input_ids"].clamp(min=105)}
    assert all(value.isfinite().all() for value in main_outputs(kind, model(**new), mask))
    model.resize_token_embeddings(50, pad_to_multiple_of=16)
    assert model.config.vocab_size == 64
    model(**{**batch, "input_ids": batch["input_ids"].clamp(max=63)})


@pytest.mark.parametrize("kind", KINDS)
def test_input_embeddings_can_be_read_and_replaced(kind):
    model = own(kind)
    assert isinstance(model.get_input_embeddings(), nn.Embedding)
    table = nn.Embedding(101, 32)
    model.set_input_embeddings(table)
    assert model.get_input_embeddings() is table
    assert model.base_model.embeddings.word_embeddings is table
    model(**inputs(kind))


def test_weights_can_live_on_disk(tmp_path):
    """Big models are loaded with a device map of the accelerate package."""
    pytest.importorskip("accelerate", reason="pip install 'debertakit[finetune]'")
    model = own("ForSequenceClassification")
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    places = {
        name: "cpu" for name, part in model.named_modules() if next(part.parameters(recurse=False), None) is not None
    }
    places = {name: "disk" if ".layer.1." in name else place for name, place in places.items()}
    offloaded = type(model).from_pretrained(tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk")
    with torch.no_grad():
        assert_same(offloaded(**inputs()).logits, model(**inputs()).logits)
        assert_same(offloaded(**inputs()).logits, model(**inputs()).logits)


def test_a_state_dict_can_be_given_instead_of_a_file():
    model = own("ForSequenceClassification")
    state = {key: value.clone() for key, value in model.state_dict().items()}
    again = type(model).from_pretrained(None, config=model.config, state_dict=state)
    assert_same(again(**inputs()).logits, model(**inputs()).logits, tolerance=0)
