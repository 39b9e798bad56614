import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from debertakit.checkpoints import convert, load_whole, merge_gdes, read_state, weights_file
from debertakit.config import DebertaConfig
from debertakit.heads import (
    DebertaForMaskedLM,
    DebertaForReplacedTokenDetection,
    DebertaForSequenceClassification,
)
from debertakit.model import DebertaModel
from tests.models import microsoft_folder, randomise, small

IDS = torch.randint(1, 101, (2, 7), generator=torch.Generator().manual_seed(3))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v2-xlarge", "deberta-v3-base"])
def test_nothing_is_lost_there_and_back(name, tmp_path):
    model = randomise(DebertaForMaskedLM(small(name)))
    model.save_pretrained(tmp_path)
    again, info = DebertaForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert same(model.state_dict(), again.state_dict())
    assert not info["missing_keys"]
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v2-xlarge", "deberta-v3-base"])
def test_stock_transformers_loads_ours_with_the_same_outputs(name, tmp_path):
    model = randomise(DebertaForSequenceClassification(small(name)))
    model.save_pretrained(tmp_path)
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(stock).__module__.startswith("transformers.")
    torch.testing.assert_close(stock(IDS).logits, model(IDS).logits, atol=1e-5, rtol=0)
    # The class name in the file is the one that stock transformers knows.
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [type(stock).__name__]


def test_a_fine_tuned_model_still_carries_the_mask_decoders_positions(tmp_path):
    pretrained = randomise(DebertaForMaskedLM(small()))
    pretrained.save_pretrained(tmp_path / "a")
    tuned = DebertaForSequenceClassification.from_pretrained(tmp_path / "a")
    positions = tuned.deberta.embeddings.position_embeddings.weight
    assert torch.equal(positions, pretrained.deberta.embeddings.position_embeddings.weight)
    assert not positions.requires_grad  # not trained, so weight decay must not change it either
    tuned.save_pretrained(tmp_path / "b")
    assert "deberta.embeddings.position_embeddings.weight" in load_file(tmp_path / "b" / "model.safetensors")


def test_a_masked_lm_trained_by_transformers_runs_without_the_mask_decoder(tmp_path):
    config = transformers.DebertaV2Config.from_dict({**small().to_dict(), "legacy": True})
    stock = randomise(transformers.DebertaV2ForMaskedLM(config))
    stock.tie_weights()
    stock.save_pretrained(tmp_path)
    ours = DebertaForMaskedLM.from_pretrained(tmp_path)
    assert ours.config.emd_steps == 0
    torch.testing.assert_close(ours(IDS).logits, stock(IDS).logits, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v3-base"])
def test_microsofts_file_with_every_head(name, tmp_path):
    config = small(name)
    mlm, rtd = randomise(DebertaForMaskedLM(config)), randomise(DebertaForReplacedTokenDetection(config))
    state = {**{k: v for k, v in rtd.state_dict().items() if "mask_predictions" in k}, **mlm.state_dict()}
    state = {k.replace("deberta.", "bert.", 1): v for k, v in state.items()}
    folder = microsoft_folder(tmp_path / "ms", config, state)
    loaded = DebertaForMaskedLM.from_pretrained(folder)
    assert loaded.dtype == torch.float32  # although the file is in half precision
    assert loaded.config.model_type == config.model_type
    assert loaded.config.emd_steps == 2
    assert same({k: v.half().float() for k, v in mlm.state_dict().items()}, loaded.state_dict())
    detector = DebertaForReplacedTokenDetection.from_pretrained(folder)
    expected = rtd.mask_predictions.classifier.weight.half().float()
    assert torch.equal(detector.mask_predictions.classifier.weight, expected)
    assert DebertaModel.from_pretrained(folder, dtype="auto").dtype == torch.float16


def test_the_generator_has_its_own_depth(tmp_path):
    config = small()
    big, little = DebertaForMaskedLM(config), randomise(DebertaForMaskedLM(small(num_hidden_layers=1)))
    folder = microsoft_folder(tmp_path / "ms", config, big.state_dict(), generator=little.state_dict())
    generator = DebertaForMaskedLM.from_pretrained(folder, generator=True)
    assert generator.config.num_hidden_layers == 1
    assert same({k: v.half().float() for k, v in little.state_dict().items()}, generator.state_dict())


def test_gdes_residual_is_kept_and_merged(tmp_path):
    config = small()
    model = randomise(DebertaForReplacedTokenDetection(config))
    table = "deberta.embeddings.word_embeddings"
    generator = {f"{table}.weight": torch.randn(101, 32)}
    residual = torch.randn(101, 32)
    state = {**model.state_dict(), f"{table}._weight": residual}
    del state[f"{table}.weight"]
    folder = microsoft_folder(tmp_path / "ms", config, state)
    with pytest.raises(ValueError, match="merge_gdes"):
        DebertaForReplacedTokenDetection.from_pretrained(folder)
    merged = merge_gdes(state, generator)
    torch.testing.assert_close(merged[f"{table}.weight"], generator[f"{table}.weight"] + residual)


def test_convert_keeps_every_tensor(tmp_path):
    config = small("deberta-base")
    mlm = DebertaForMaskedLM(config)
    state = {**mlm.state_dict(), "deberta.embeddings.word_embeddings._weight": torch.zeros(101, 32)}
    folder = microsoft_folder(tmp_path / "ms", config, state)
    convert(folder, tmp_path / "out")
    assert set(read_state(tmp_path / "out" / "model.safetensors")) == set(state)
    assert same(
        DebertaForMaskedLM.from_pretrained(tmp_path / "out").state_dict(),
        DebertaForMaskedLM.from_pretrained(folder).state_dict(),
    )


def test_sharded_files_load(tmp_path):
    model = randomise(DebertaForMaskedLM(small()))
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert same(DebertaForMaskedLM.from_pretrained(tmp_path).state_dict(), model.state_dict())


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"x": Evil()}, tmp_path / "pytorch_model.bin")
    small().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="damaged or not a weights file"):
        DebertaModel.from_pretrained(tmp_path)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="'microsoft/nothing-here' is not a folder, and no hub model"):
        DebertaModel.from_pretrained("microsoft/nothing-here")
    with pytest.raises(ValueError, match="holds no weights"):
        DebertaModel.from_pretrained(tmp_path)
    small().save_pretrained(tmp_path)
    DebertaModel(small()).save_pretrained(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        DebertaModel.from_pretrained(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"weights of DebertaForMaskedLM .* for example deberta\."):
        load_whole(DebertaForMaskedLM, tmp_path)
    with pytest.raises(ValueError, match="no DeBERTa encoder"):
        convert(tmp_path, tmp_path / "out")
    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="another architecture"):
        DebertaModel.from_pretrained(tmp_path)


def test_depth_is_the_files_unless_asked_for_and_a_lost_layer_is_told(tmp_path):
    model = randomise(DebertaModel(small(num_hidden_layers=3)))
    model.save_pretrained(tmp_path)
    small(num_hidden_layers=12).save_pretrained(tmp_path)
    assert DebertaModel.from_pretrained(tmp_path).config.num_hidden_layers == 3
    assert DebertaModel.from_pretrained(tmp_path, num_hidden_layers=2).config.num_hidden_layers == 2
    given = DebertaModel.from_pretrained(tmp_path, config=small(), hidden_dropout_prob=0.3)
    assert given.config.hidden_dropout_prob == 0.3
    state = {key: value for key, value in model.state_dict().items() if ".layer.1." not in key}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="2 layers, but layer 1 is missing"):
        DebertaModel.from_pretrained(tmp_path)


def test_a_revision_is_asked_of_the_hub(monkeypatch):
    asked = []

    def cached_file(name, file, **options):
        asked.append(options.get("revision"))
        raise OSError

    monkeypatch.setattr(transformers.utils, "cached_file", cached_file)
    with pytest.raises(ValueError, match="is not a folder, and no hub model"):
        DebertaModel.from_pretrained("someone/model", revision="v1")
    assert set(asked) == {"v1"}


def test_the_shards_of_a_hub_model_are_fetched(tmp_path, monkeypatch):
    model = randomise(DebertaForMaskedLM(small()))
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    asked = []

    def cached_file(name, file, **options):
        asked.append(file)
        return str(tmp_path / file) if (tmp_path / file).is_file() else None

    monkeypatch.setattr(transformers.utils, "cached_file", cached_file)
    index = weights_file("someone/sharded")
    assert index.name == "model.safetensors.index.json"
    assert {path.name for path in tmp_path.glob("*.safetensors")} <= set(asked)
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(ValueError, match=r"names model-.*\.safetensors, which the hub did not provide"):
        weights_file("someone/sharded")


def test_an_unknown_activation_is_named():
    with pytest.raises(ValueError, match="unknown activation 'foo'"):
        DebertaModel(small(hidden_act="foo"))


def test_config_of_a_file_with_v2_names_and_v1_type(tmp_path):
    """Microsoft's newer trainer splits v1's fused projections but does not change the config."""
    model = randomise(DebertaModel(small(share_att_key=False, norm_rel_ebd="none", position_buckets=-1)))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "deberta"}))
    loaded = DebertaModel.from_pretrained(tmp_path)
    assert isinstance(loaded.config, DebertaConfig)
    assert loaded.config.model_type == "deberta-v2"
    assert same(loaded.state_dict(), model.state_dict())


def test_a_model_that_would_answer_at_random_is_refused(tmp_path):
    randomise(DebertaForSequenceClassification(small(emd_steps=0))).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"weights of DebertaForMaskedLM .* for example lm_predictions"):
        load_whole(DebertaForMaskedLM, tmp_path)
    assert not load_whole(DebertaForSequenceClassification, tmp_path).training
