"""Longer texts from a checkpoint: what is copied, what stays, and that stock transformers computes the same."""

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

from debertakit import DebertaModel
from debertakit.cli import app
from debertakit.heads import DebertaForMaskedLM
from debertakit.loading import load_for_training, longest_input
from debertakit.pretraining import settings
from debertakit.pretraining.continued import adopt
from debertakit.pretraining.distributed import World
from debertakit.pretraining.longer import repeat_rows
from debertakit.pretraining.loop import evaluate, make_run, pretrain, train_step
from debertakit.text.packing import Packing
from debertakit.text.tokenizers import load_tokenizer
from debertakit.training.log import read
from tests.models import randomise, small
from tests.pretraining.material import config, cut_short, same, weights
from tests.pretraining.worker import torchrun

TABLE = "deberta.embeddings.position_embeddings.weight"
DISTANCES = "deberta.encoder.rel_embeddings.weight"
LIMIT = 16  # positions of the checkpoint, and the limit of its buckets


def checkpoint(folder, tokenizer, name="deberta-v3-base", **fields):
    shape = {"vocab_size": len(tokenizer), "max_position_embeddings": LIMIT}
    shape |= {"position_buckets": 8} if name != "deberta-base" else {}
    model = randomise(DebertaForMaskedLM(small(name, **{**shape, "emd_steps": 2, **fields})))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.state_dict()


def begun(init, corpus, tokenizer, *assignments):
    asked = config("data.max_length=48", *assignments)
    return make_run(adopt(asked, str(init)), corpus, tokenizer, World())


def test_a_table_is_repeated_from_its_start():
    table = torch.arange(6.0).view(3, 2)
    expected = np.resize(table.numpy(), (8, 2))  # numpy repeats an array to fill the new shape
    assert repeat_rows(table, 8).numpy().tolist() == expected.tolist()


def test_the_position_table_grows_and_the_limit_of_the_buckets_stays(corpus, tokenizer, tmp_path, capsys):
    before = checkpoint(tmp_path, tokenizer)
    run = begun(tmp_path, corpus, tokenizer)
    assert "positions from 16 start as copies of the first 16" in capsys.readouterr().err
    loaded, after = run.module.model.state_dict(), run.module.model.config
    assert (after.max_position_embeddings, after.max_relative_positions, after.position_buckets) == (48, LIMIT, 8)
    assert torch.equal(loaded[TABLE], before[TABLE].repeat(3, 1))
    assert torch.equal(loaded[DISTANCES][1:], before[DISTANCES][1:])
    assert torch.equal(loaded[DISTANCES][0], before[DISTANCES][1])  # the row that distances past the limit read
    untouched = before.keys() - {TABLE, DISTANCES}
    assert all(torch.equal(loaded[key], before[key]) for key in untouched)


@pytest.mark.parametrize("name", ["deberta-v3-base", "deberta-base"])
def test_the_encoder_starts_as_the_checkpoint_and_stock_transformers_agrees(corpus, tokenizer, tmp_path, name):
    checkpoint(tmp_path / "before", tokenizer, name)
    run = begun(tmp_path / "before", corpus, tokenizer)
    ids = torch.randint(5, len(tokenizer), (1, 48), generator=torch.Generator().manual_seed(0))
    grown = run.module.model.deberta.eval()(ids).last_hidden_state
    with torch.no_grad():
        expected = DebertaModel.from_pretrained(tmp_path / "before").eval()(ids).last_hidden_state
    torch.testing.assert_close(grown, expected, atol=1e-5, rtol=0)
    # after training, when row 0 of the relative table has changed
    for _ in range(3):
        train_step(run, 0.0)
    run.module.model.save_pretrained(tmp_path / "after")
    trained = run.module.model.deberta.eval()(ids).last_hidden_state
    assert not torch.allclose(trained, expected, atol=1e-3)
    stock = transformers.AutoModel.from_pretrained(tmp_path / "after").eval()(ids).last_hidden_state
    torch.testing.assert_close(trained, stock, atol=2e-5, rtol=1e-4)


def test_only_trained_rows_are_copied(corpus, tokenizer, tmp_path):
    """run.json says that the checkpoint's texts were shorter than its table."""
    before = checkpoint(tmp_path, tokenizer)
    (tmp_path / "run.json").write_text(config("data.max_length=8").to_json())
    grown = begun(tmp_path, corpus, tokenizer).module.model.state_dict()[TABLE]
    assert torch.equal(grown, before[TABLE][:8].repeat(6, 1))
    same_length = begun(tmp_path, corpus, tokenizer, "data.max_length=8").module.model.state_dict()[TABLE]
    assert torch.equal(same_length, before[TABLE])


def test_positions_at_the_input_grow_too(corpus, tokenizer, tmp_path):
    before = checkpoint(tmp_path, tokenizer, emd_steps=0, position_biased_input=True)
    assert torch.equal(begun(tmp_path, corpus, tokenizer).module.model.state_dict()[TABLE], before[TABLE].repeat(3, 1))


def test_relative_positions_alone_need_no_table(corpus, tokenizer, tmp_path):
    before = checkpoint(tmp_path, tokenizer, emd_steps=0)
    run = begun(tmp_path, corpus, tokenizer)
    loaded = run.module.model.state_dict()
    assert TABLE not in loaded
    assert loaded[DISTANCES].shape == before[DISTANCES].shape
    # and from random weights: the length of the texts is not a size of this model
    small_table = ("model.emd_steps=0", "model.max_position_embeddings=24", "data.max_length=48")
    fresh = make_run(config(*small_table), corpus, tokenizer, World())
    assert fresh.module.model.config.max_position_embeddings == 24
    assert not fresh.module.model.config.clamp_distances


def test_a_longer_run_from_text_to_prediction(material, tokenizer, tmp_path):
    checkpoint(tmp_path / "before", tokenizer)
    sets = ["steps=2", "data.max_length=48", "data.step_tokens=128", "evaluate_tokens=128", "precision=fp32"]
    options = [part for each in sets for part in ("--set", each)]
    out = tmp_path / "after"
    arguments = ["--corpus", material / "text.txt", "--init", tmp_path / "before", "--out", out, *options]
    result = CliRunner().invoke(app, ["pretrain", "tiny", *map(str, arguments)])
    assert result.exception is None, result.output
    assert longest_input(load_for_training(out, "single-label", ("a", "b")), load_tokenizer(out)) == (48, False)
    filled = CliRunner().invoke(app, ["fill", "the cat sees " * 10 + "the [MASK]", "--model", str(out)])
    assert filled.exit_code == 0, filled.output


# ------------------------------------------------------------------------------------------------- growing length

GROWING = ("data.max_length=32", "data.length_schedule=8:0.25,16:0.25,32:0.5")


def test_lengths_of_a_schedule():
    data = config(*GROWING).data
    assert [data.length_at(step / 8) for step in range(8)] == [8, 8, 16, 16, 32, 32, 32, 32]
    assert data.length_at(1.0) == 32
    assert config("data.max_length=32").data.length_at(0.0) == 32


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("8:0.5,16:0.5", "must grow up to data.max_length=32"),
        ("16:0.5,8:0.25,32:0.25", "must grow"),
        ("8:0.5,32:0.6", "must add up to 1"),
        ("8:0.0,32:1.0", "must add up to 1"),
        ("8:nan,32:1", "must add up to 1"),
        ("8,32", "expected LENGTH:SHARE"),
    ],
)
def test_a_wrong_schedule_is_named(schedule, message):
    with pytest.raises(ValueError, match=message):
        config("data.max_length=32", f"data.length_schedule={schedule}")


def test_the_texts_grow_with_the_run(corpus, tokenizer):
    run = make_run(config(*GROWING, "steps=8"), corpus, tokenizer, World())
    lengths = []
    for step in range(8):
        train_step(run, 0.0)
        lengths.append(run.packing.max_length)
        batch = run.packing.batch(step)
        expected = Packing(corpus.train, lengths[-1], run.config.data.step_tokens, run.config.seed).batch(step)
        assert batch.input_ids.tolist() == expected.input_ids.tolist()
        assert batch.lengths.max() <= lengths[-1]
    assert lengths == [8, 8, 16, 16, 32, 32, 32, 32]
    assert run.validation.max_length == 32
    assert evaluate(run)["loss"] > 0


@pytest.mark.slow
def test_a_growing_run_resumes_with_the_same_bits(corpus, tokenizer, tmp_path, exact_sums):
    run = config(*GROWING, "steps=8", "checkpoint_every=1")
    pretrain(run, corpus, tokenizer, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        cut_short(patch, at=3)
        with pytest.raises(KeyboardInterrupt):
            pretrain(run, corpus, tokenizer, tmp_path / "cut")
    pretrain(run, corpus, tokenizer, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    with pytest.raises(ValueError, match=r"data\.length_schedule=8:0\.25,16:0\.25,32:0\.5"):
        settings.check_resumed(run, config("data.max_length=32"), tmp_path)


@pytest.mark.slow
def test_two_processes_grow_as_one_does(material, corpus, tokenizer, tmp_path):
    sets = (*GROWING, "steps=4", "log_every=1", "optimizer.eps=1e-3")
    torchrun(2, material, tmp_path / "two", *sets)
    pretrain(config(*sets), corpus, tokenizer, tmp_path / "one")
    one, two = ([r["loss"] for r in read(tmp_path / n / "log.jsonl") if r["kind"] == "train"] for n in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-5)
