"""Continued pretraining: from Microsoft's files and from our own runs, with a generator, and without one."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.config import DebertaConfig
from debertakit.heads import DebertaForMaskedLM, DebertaForReplacedTokenDetection, DebertaForSequenceClassification
from debertakit.pretraining import settings
from debertakit.pretraining.continued import adopt, load
from debertakit.pretraining.distributed import World
from debertakit.pretraining.loop import make_run, train_step
from debertakit.pretraining.recipes import recipe
from tests.models import microsoft_folder, randomise, small

TABLE = "deberta.embeddings.word_embeddings"
PACE = (
    "precision=fp32",
    "steps=20",
    "data.step_tokens=128",
    "data.micro_tokens=128",
    "data.max_length=32",
    "evaluate_tokens=128",
)


def halves(state):
    """Round to half precision, as in Microsoft's files."""
    return {key: value.half().float() for key, value in state.items()}


def v3_folder(folder, tokenizer, *, generator=True, positions=True, layers=4):
    """A v3 checkpoint as Microsoft writes them: half precision, every head, more rows than pieces, the tokenizer."""
    shape = {"vocab_size": len(tokenizer) + 9, "num_hidden_layers": layers, "max_position_embeddings": 64}
    shape |= {"position_buckets": 32}
    config = small(**shape)
    detector, words = randomise(DebertaForReplacedTokenDetection(config)), randomise(DebertaForMaskedLM(config))
    state = {**words.state_dict(), **detector.state_dict()}
    if not positions:
        del state["deberta.embeddings.position_embeddings.weight"]
    files = {}
    if generator:
        files["generator"] = randomise(DebertaForMaskedLM(small(**{**shape, "num_hidden_layers": 1}))).state_dict()
    microsoft_folder(folder, config, state, **files)
    tokenizer.save_pretrained(folder)
    return halves(state), halves(files.get("generator", {}))


def begun(init, corpus, tokenizer, *assignments, name="rtd"):
    """A run at its first step, initialised from a checkpoint."""
    config = adopt(settings.override(recipe(name), [*PACE, *assignments]), str(init))
    return make_run(config, corpus, tokenizer, World())


def deberta(*arguments):
    run = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if run.exception and not isinstance(run.exception, SystemExit):
        raise run.exception
    return run.stdout


def pretrain(name, material, out, *more, sets=()):
    options = [part for each in (*PACE, "optimizer.warmup_steps=1", *sets) for part in ("--set", each)]
    return deberta("pretrain", name, "--corpus", material / "text.txt", "--out", out, *options, *more)


def test_the_official_generator_is_taken_and_the_residual_found(corpus, tokenizer, tmp_path, capsys):
    detector, generator = v3_folder(tmp_path / "v3", tokenizer)
    run = begun(tmp_path / "v3", corpus, tokenizer)
    assert run.config.rtd.generator_layers == 1
    assert run.config.rtd.warmup_steps == 0
    assert run.module.phases(0) == ("generator", "discriminator")
    loaded = {name: model.state_dict() for name, model in run.module.models.items()}
    assert all(torch.equal(loaded["generator"][key], value) for key, value in generator.items())
    residual = loaded["model"][f"{TABLE}._weight"]
    torch.testing.assert_close(residual, detector[f"{TABLE}.weight"] - generator[f"{TABLE}.weight"])
    kept = [key for key in loaded["model"] if not key.endswith("._weight")]
    assert "mask_predictions.classifier.weight" in kept
    assert all(torch.equal(loaded["model"][key], detector[key]) for key in kept)
    line = capsys.readouterr().err
    assert "pytorch_model.generator.bin" in line
    assert "newly initialised" not in line
    ids = torch.tensor([tokenizer("the cat sees the house")["input_ids"]])
    expected = DebertaForReplacedTokenDetection.from_pretrained(tmp_path / "v3")(ids).logits
    torch.testing.assert_close(run.module.model.eval()(ids).logits, expected, atol=1e-5, rtol=0)


def test_a_residual_without_its_table_is_added_to_the_generators(corpus, tokenizer, tmp_path):
    detector, generator = v3_folder(tmp_path / "v3", tokenizer)
    residual = (detector[f"{TABLE}.weight"] - generator[f"{TABLE}.weight"]).half().float()
    stored = {**detector, f"{TABLE}._weight": residual}
    del stored[f"{TABLE}.weight"]
    torch.save({key: value.half() for key, value in stored.items()}, tmp_path / "v3/pytorch_model.bin")
    run = begun(tmp_path / "v3", corpus, tokenizer)
    torch.testing.assert_close(run.module.model.state_dict()[f"{TABLE}._weight"], residual, atol=1e-6, rtol=0)


@pytest.mark.parametrize("positions", [True, False])
def test_a_generator_is_grown_from_the_lower_half_and_warmed_up(corpus, tokenizer, tmp_path, capsys, positions):
    detector, _ = v3_folder(tmp_path / "v3", tokenizer, generator=False, positions=positions)
    run = begun(tmp_path / "v3", corpus, tokenizer)
    grown = run.module.generator.state_dict()
    assert run.module.generator.config.num_hidden_layers == 2
    assert run.module.generator.config.emd_steps == (2 if positions else 0)
    assert {key.split(".")[3] for key in grown if ".layer." in key} == {"0", "1"}
    for key, value in grown.items():  # embeddings, two layers, relative table, head: all of the detector's file
        assert torch.equal(value, detector[key]), key
    assert not run.module.model.state_dict()[f"{TABLE}._weight"].any()
    assert "made from its lower 2 layers" in capsys.readouterr().err
    assert run.config.rtd.warmup_steps == 2  # a tenth of the run
    assert [run.module.phases(step) for step in (1, 2)] == [("warmup",), ("generator", "discriminator")]
    # the detector stands still until then
    before = run.module.model.eval()(torch.arange(1, 9)[None]).logits
    for _ in range(2):
        train_step(run, 0.0)
    assert torch.equal(run.module.model.eval()(torch.arange(1, 9)[None]).logits, before)


def test_how_long_a_grown_generator_is_warmed_up_has_to_be_said_with_minutes(tokenizer, tmp_path):
    v3_folder(tmp_path, tokenizer, generator=False)
    rtd = settings.override(recipe("rtd"), ["minutes=1"])
    with pytest.raises(ValueError, match=r"--set rtd.warmup_steps=N"):
        adopt(rtd, str(tmp_path))
    assert adopt(settings.override(rtd, ["rtd.warmup_steps=7"]), str(tmp_path)).rtd.warmup_steps == 7
    with pytest.raises(ValueError, match=r"rtd\.warmup_steps=10 must be less than steps=10"):
        settings.override(recipe("rtd"), ["steps=10", "rtd.warmup_steps=10"])


@pytest.mark.parametrize("sharing", ["es", "nes"])
def test_other_sharings_go_on_from_the_detectors_table(corpus, tokenizer, tmp_path, sharing):
    detector, generator = v3_folder(tmp_path / "v3", tokenizer)
    run = begun(tmp_path / "v3", corpus, tokenizer, f"rtd.sharing={sharing}")
    tables = [model.get_input_embeddings().weight for model in run.module.models.values()]
    assert torch.equal(tables[0], detector[f"{TABLE}.weight"])
    assert torch.equal(tables[1], (detector if sharing == "es" else generator)[f"{TABLE}.weight"])


def test_what_a_checkpoint_lacks_is_new_and_named(tokenizer, tmp_path):
    v3_folder(tmp_path / "v3", tokenizer, generator=False)
    state = torch.load(tmp_path / "v3/pytorch_model.bin")
    bare = {key: value for key, value in state.items() if key.startswith("deberta.")}
    torch.save(bare, tmp_path / "v3/pytorch_model.bin")
    config = DebertaConfig.from_pretrained(tmp_path / "v3", emd_steps=2)
    half = DebertaConfig(**{**config.to_dict(), "num_hidden_layers": 2})
    (line,) = load([DebertaForReplacedTokenDetection(config), DebertaForMaskedLM(half)], str(tmp_path / "v3"), None, 32)
    assert line.endswith("newly initialised: replaced-token head, language-model head")
    del bare["deberta.encoder.layer.0.output.dense.weight"]
    torch.save(bare, tmp_path / "v3/pytorch_model.bin")
    with pytest.raises(ValueError, match="lacks 1 tensors of the encoder"):
        load([DebertaForMaskedLM(config)], str(tmp_path / "v3"), None, 32)


@pytest.mark.slow
def test_the_command_continues_and_continues_again(material, tokenizer, tmp_path):
    detector, _ = v3_folder(tmp_path / "v3", tokenizer, generator=False, layers=2)
    figures = pretrain("rtd", material, tmp_path / "one", "--init", tmp_path / "v3", sets=("steps=3",))
    assert "rtd_auc" in figures
    run = settings.load(tmp_path / "one/run.json")
    assert run.rtd.warmup_steps == 0  # a tenth of three
    assert run.model["vocab_size"] == len(tokenizer) + 9
    assert (tmp_path / "one/tokenizer/tokenizer.json").read_text() == (tmp_path / "v3/tokenizer.json").read_text()
    stock = transformers.AutoModel.from_pretrained(tmp_path / "one")
    ours = DebertaForReplacedTokenDetection.from_pretrained(tmp_path / "one")
    assert type(stock).__name__ == "DebertaV2Model"
    now = load_file(tmp_path / "one/model.safetensors")
    assert torch.equal(now[f"{TABLE}.weight"], ours.get_input_embeddings().weight)
    moved = (now[f"{TABLE}.weight"] - detector[f"{TABLE}.weight"]).abs().max()
    assert 0 < moved < 0.01  # 3 steps from where it was, not from nowhere
    # the run is a checkpoint to go on from, with its generator; and a cut run needs no --init to go on
    pretrain("rtd", material, tmp_path / "two", "--init", tmp_path / "one", sets=("steps=2", "checkpoint_every=1"))
    again = settings.load(tmp_path / "two/run.json")
    assert (again.rtd.generator_layers, again.model["emd_steps"]) == (1, 2)
    deberta("pretrain", "rtd", "--corpus", material / "text.txt", "--out", tmp_path / "two", "--resume")
    # the generator may be elsewhere, and must not be deeper than what it grows from
    with pytest.raises(ValueError, match="lacks 16 tensors of the encoder"):
        pretrain("rtd", material, tmp_path / "deep", "--init", tmp_path / "v3", sets=("rtd.generator_layers=3",))
    elsewhere = ("--init", tmp_path / "v3", "--init-generator", tmp_path / "one/generator")
    pretrain("rtd", material, tmp_path / "three", *elsewhere, sets=("steps=1",))
    assert settings.load(tmp_path / "three/run.json").init_generator == str(tmp_path / "one/generator")


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v2-xlarge"])
def test_v1_and_v2_go_on_by_mlm_with_their_head_and_mask_decoder(material, tokenizer, tmp_path, name):
    config = small(name, vocab_size=len(tokenizer))
    model = randomise(DebertaForMaskedLM(config))
    folder = microsoft_folder(tmp_path / "ms", config, model.state_dict())
    tokenizer.save_pretrained(folder)
    sets = ("steps=1", "optimizer.lr=1e-9", "model.hidden_dropout_prob=0")
    pretrain("deberta-base", material, tmp_path / "out", "--init", folder, sets=sets)
    run = settings.load(tmp_path / "out/run.json")
    assert (run.model["model_type"], run.model["emd_steps"]) == (config.model_type, 2)
    assert (run.model["hidden_dropout_prob"], run.model["num_hidden_layers"]) == (0.0, 2)
    after = DebertaForMaskedLM.from_pretrained(tmp_path / "out").state_dict()
    for key, value in halves(model.state_dict()).items():
        torch.testing.assert_close(after[key], value, atol=1e-6, rtol=0)
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "out")).__module__.startswith("transformers.")


def test_a_wrong_init_is_one_clear_error(material, tokenizer, tmp_path):
    def refused(message, *more, name="rtd"):
        with pytest.raises(ValueError, match=message):
            pretrain(name, material, tmp_path / "out", *more)
        assert not (tmp_path / "out").exists()

    refused("rtd continues from a checkpoint: pass --init")
    refused("nowhere/at-all: no such folder", "--init", "nowhere/at-all")
    refused("--init-generator needs --init", "--init-generator", "x", name="v3-tiny")
    v3_folder(tmp_path / "v3", tokenizer)
    (tmp_path / "v3/tokenizer.json").unlink()
    refused("no tokenizer in .*v3.*--tokenizer", "--init", tmp_path / "v3")
    DebertaForSequenceClassification(small()).save_pretrained(tmp_path / "tuned")
    refused("was fine-tuned .it contains classifier", "--init", tmp_path / "tuned")


def test_a_tokenizer_larger_than_the_table_is_refused(corpus, tokenizer, tmp_path):
    v3_folder(tmp_path / "v3", tokenizer)
    config = json.loads((tmp_path / "v3/config.json").read_text())
    assert config["vocab_size"] > len(tokenizer)
    adopted = adopt(recipe("rtd"), str(tmp_path / "v3"))
    fewer = settings.override(adopted, ["model.vocab_size=50", "data.max_length=32"])
    with pytest.raises(ValueError, match=r"vocab_size=50 is less than the tokenizer's"):
        make_run(fewer, corpus, tokenizer, World())
