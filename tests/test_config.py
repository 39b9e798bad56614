import json

import pytest
import transformers

from debertakit.config import PRESETS, DebertaConfig, preset
from tests.models import small


@pytest.mark.parametrize("name", PRESETS)
def test_presets_save_as_stock_configs_and_come_back(name, tmp_path):
    config = preset(name)
    config.save_pretrained(tmp_path)
    stock = transformers.AutoConfig.from_pretrained(tmp_path)
    assert stock.model_type == config.model_type
    assert stock.hidden_size == config.hidden_size
    assert DebertaConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_a_file_that_leaves_fields_out_means_what_transformers_means(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2", "pos_att_type": "none"}))
    config = DebertaConfig.from_pretrained(tmp_path)
    assert not config.relative_attention
    assert config.position_biased_input
    assert config.norm_rel_ebd == "none"
    assert config.emd_steps == -1


def test_microsofts_spelling_is_read():
    config = DebertaConfig.from_dict({"relative_attention": True, "pos_att_type": "p2c|c2p", "padding_idx": 5})
    assert config.pos_att_type == ["p2c", "c2p"]
    assert config.pad_token_id == 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hiden_size": 3}, "hidden_size"),
        ({"model_type": "bert"}, "another architecture"),
        ({"hidden_size": 100, "num_attention_heads": 3}, "num_attention_heads"),
        ({"pos_att_type": "c2x"}, "c2x"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd"),
        ({"emd_steps": 1, "position_biased_input": True}, "position_biased_input"),
        ({"relative_attention": False}, "relative_attention"),
        ({"conv_kernel_size": 4}, "conv_kernel_size"),
        ({"model_type": "deberta"}, "v1"),
        ({"position_buckets": 2}, "position_buckets"),
        ({"hidden_size": "768"}, "hidden_size='768': must be an integer"),
    ],
)
def test_unknown_and_contradictory_fields_raise(fields, message):
    with pytest.raises(ValueError, match=message):
        DebertaConfig(**fields)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="no config at"):
        DebertaConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not a JSON config"):
        DebertaConfig.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="unknown preset"):
        preset("deberta-v4")


def test_a_file_keeps_the_fields_of_other_software_and_the_constructor_refuses_them(tmp_path):
    """Also names that resemble ours: real files contain max_seq_length, cls_token_id, num_layers and so on."""
    small().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    foreign = {"sentence_transformers": {"version": "5"}, "max_seq_length": 3, "cls_token_id": 1, "hiden_size": 3}
    (tmp_path / "config.json").write_text(json.dumps({**content, **foreign}))
    config = DebertaConfig.from_pretrained(tmp_path)
    assert config.max_seq_length == 3
    assert config.to_dict() == {**small().to_dict(), **foreign}
    config.save_pretrained(tmp_path / "again")
    assert foreign.items() <= json.loads((tmp_path / "again" / "config.json").read_text()).items()
    assert DebertaConfig.from_dict(config.to_dict(), num_labels=5).max_seq_length == 3
    with pytest.raises(ValueError, match="did you mean 'hidden_size'"):
        DebertaConfig(hiden_size=3)


def test_keywords_override_the_file(tmp_path):
    small().save_pretrained(tmp_path)
    config = DebertaConfig.from_pretrained(tmp_path, num_labels=7, hidden_dropout_prob=0.3)
    assert (config.num_labels, config.hidden_dropout_prob) == (7, 0.3)
