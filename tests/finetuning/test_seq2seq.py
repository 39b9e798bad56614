"""Translation and summarisation, from files to a folder that is resumed, scored and compared."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel
from typer.testing import CliRunner

from debertakit import compare_runs
from debertakit.cli import app
from debertakit.data.pairs import Pair
from debertakit.finetuning.runs import newest_checkpoint
from debertakit.finetuning.seq2seq import PairFiles, evaluate_pairs, finetune_pairs, saved_options, score_texts
from debertakit.finetuning.seq2seq_trainer import PairRows, Seq2SeqTrainer
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
from debertakit.generation.writing import _inputs, load_writer
from debertakit.loading import describe, load_for_training
from tests.finetuning.pairs import OPTIONS, PEER, make_model, make_pairs, make_tokenizer, save_encoder
from tests.models import randomise, small
from tests.ranks import run_ranks


@pytest.fixture(scope="module")
def pairs():
    return make_pairs()


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return make_tokenizer(pairs)


@pytest.fixture(scope="module")
def encoder(tokenizer, tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"), tokenizer)


@pytest.fixture(scope="module")
def sides(pairs, tmp_path_factory):
    """The pairs in two parallel files."""
    folder = tmp_path_factory.mktemp("sides")
    for side in (0, 1):
        (folder / f"{side}.txt").write_text("\n".join(pair[side] for pair in pairs), encoding="utf-8")
    return folder / "0.txt", folder / "1.txt"


@pytest.fixture(scope="module")
def seeds(encoder, pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "seeds"
    return finetune_pairs(encoder, out, "translation", pairs, pairs[:8], OPTIONS, seed=3, seeds=2)


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def interrupt(monkeypatch, evaluation, run):
    """Call ``run`` and interrupt it at this evaluation."""
    evaluate_once, calls = Seq2SeqTrainer.evaluate, []

    def interrupted(trainer, *args, **kwargs):
        calls.append(1)
        if len(calls) == evaluation:
            raise KeyboardInterrupt
        return evaluate_once(trainer, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Seq2SeqTrainer, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()


@pytest.mark.slow
def test_an_interrupted_run_resumes_exactly(encoder, pairs, tmp_path, monkeypatch):
    options = replace(OPTIONS, epochs=3)

    def run(name, chosen=options, **given):
        return finetune_pairs(encoder, tmp_path / name, "translation", pairs, pairs[:5], chosen, **given)

    whole = run("whole")
    interrupt(monkeypatch, 2, lambda: run("cut"))
    part = tmp_path / "cut.part"
    steps = read(part / "checkpoints" / "checkpoint-4" / "trainer_state.json")["max_steps"]
    assert steps > 8  # three epochs, and step 4 is inside the first or second
    assert newest_checkpoint(part / "checkpoints").name == "checkpoint-4"
    with pytest.raises(ValueError, match=r"cut\.part already contains a run\. Use --resume"):
        run("cut")
    with pytest.raises(ValueError, match=r"contains another run, with lr 0\.005 instead of 1\.0; choose another"):
        run("cut", replace(options, lr=1.0), resume=True)
    again = run("cut", resume=True)
    assert again.scores == whole.scores
    names = ("model.safetensors", "predictions-dev.jsonl")
    for name in names:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    logs = []
    for folder in (tmp_path / "whole", tmp_path / "cut"):
        lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
        logs.append([(line["kind"], line["step"], line["loss"]) for line in lines])
    assert logs[0] == logs[1]
    assert not part.exists()
    assert run("cut", resume=True).scores == whole.scores  # nothing left to do


def test_the_folder_of_a_run(encoder, pairs, seeds):
    folder = seeds.folder / "seed-3"
    assert {path.name for path in folder.iterdir()} >= {
        "README.md", "config.json", "log.jsonl", "metrics.json", "model.safetensors", "predictions-dev.jsonl",
        "report.html", "report.md", "run.json", "tokenizer.json",
    }  # fmt: skip
    assert not (folder / "checkpoints").exists()
    record, metrics = read(folder / "run.json"), read(folder / "metrics.json")
    assert (record["kind"], record["task"], record["metric"]) == ("seq2seq", "translation", "bleu")
    assert (record["train_examples"], record["dev_examples"], record["precision"]) == (60, 8, "fp32")
    assert set(metrics["dev"]) == {"bleu", "chrf"}
    assert metrics["signatures"]["bleu"].startswith("nrefs:1")
    assert "## Worst examples" in (folder / "report.md").read_text(encoding="utf-8")
    assert "pipeline_tag: translation" in (folder / "README.md").read_text(encoding="utf-8")
    again = evaluate_pairs(folder, "translation", pairs[:8])
    assert again.figures == metrics["dev"]
    assert len(load_writer(folder).decoder.layer) == load_for_training(encoder, "regression").config.num_hidden_layers


def test_seeds_and_their_summary(seeds):
    assert [run.folder.name for run in seeds.runs] == ["seed-3", "seed-4"]
    found = read(seeds.folder / "summary.json")
    assert found["chrf"]["mean"] == seeds.scores["chrf"] == sum(run.scores["chrf"] for run in seeds.runs) / 2
    weights = [(run.folder / "model.safetensors").read_bytes() for run in seeds.runs]
    assert weights[0] != weights[1]
    assert "over 2 seeds" in str(seeds)
    assert "nrefs:1" in str(seeds)


@pytest.mark.slow
def test_two_systems_are_compared(encoder, pairs, seeds, tmp_path):
    options = replace(OPTIONS, epochs=30)
    good = finetune_pairs(encoder, tmp_path / "good", "translation", pairs, pairs[:8], options)
    found = compare_runs(good.folder, seeds.folder / "seed-3", resamples=200)
    assert found.a == pytest.approx(good.scores["bleu"])
    assert found.b == pytest.approx(seeds.runs[0].scores["bleu"])
    assert found.difference > 20
    assert found.low > 0
    assert max(found.bootstrap_p, found.randomisation_p) < 0.05
    assert found.mcnemar_p is None
    same = command("evaluate", seeds.folder, seeds.folder, "--compare", "--resamples", 100)
    assert "difference +0.00, 95 % interval [+0.00, +0.00]" in same.stdout
    assert "approximate randomisation: p = 1.0000" in same.stdout
    other = finetune_pairs(encoder, tmp_path / "other", "translation", pairs, pairs[1:9], replace(OPTIONS, epochs=1))
    with pytest.raises(ValueError, match="predictions on different examples"):
        compare_runs(good.folder, other.folder)


def test_training_in_bf16_on_any_machine(encoder, pairs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DEBERTAKIT_BF16", "1")

    def run(name, precision, **given):
        options = replace(OPTIONS, precision=precision, epochs=1)
        return finetune_pairs(encoder, tmp_path / name, "translation", pairs, pairs[:5], options, **given)

    run("half", "auto")
    assert "precision: bf16\n" in capsys.readouterr().err
    run("full", "fp32")
    assert [read(tmp_path / name / "run.json")["precision"] for name in ("half", "full")] == ["bf16", "fp32"]
    half, full = (load_writer(tmp_path / name).state_dict() for name in ("half", "full"))
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in half.values())
    assert any(not torch.equal(half[name], full[name]) for name in half)
    losses = [read(tmp_path / name / "metrics.json")["loss"] for name in ("half", "full")]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    with pytest.raises(ValueError, match="was started in bf16 and cannot resume in fp32"):
        run("half", "fp32", resume=True)
    monkeypatch.setenv("DEBERTAKIT_BF16", "0")
    run("half", "auto", resume=True)  # a machine without bf16 accepts the recorded precision
    with pytest.raises(ValueError, match="unknown precision 'fp8'"):
        replace(OPTIONS, precision="fp8")


def train(encoder, out, step_tokens):
    """One of two processes."""
    options = replace(OPTIONS, epochs=4, step_tokens=step_tokens)
    result = finetune_pairs(encoder, out, "translation", make_pairs(), make_pairs()[:7], options, seeds=2)
    Path(f"{out}-{os.environ['RANK']}.json").write_text(json.dumps(result.scores))


@pytest.mark.slow
def test_two_processes_do_what_one_does(pairs, tokenizer, tmp_path):
    """As torchrun starts them: each takes half of the pairs in a step, and half of the dev set."""
    whole = sum(row.tokens for row in PairRows.encode(pairs, tokenizer, OPTIONS).rows) + 2
    encoder = save_encoder(tmp_path / "encoder", tokenizer, dropout=0.0)
    run_ranks(2, train, encoder, tmp_path / "two", whole)
    first, second = (read(tmp_path / f"two-{rank}.json") for rank in (0, 1))
    assert first == second
    assert "bleu" in first
    options = replace(OPTIONS, epochs=4, step_tokens=whole)
    finetune_pairs(encoder, tmp_path / "one", "translation", pairs, pairs[:7], options, seeds=2)
    for seed in ("seed-0", "seed-1"):
        two, one = tmp_path / "two" / seed, tmp_path / "one" / seed
        assert read(two / "run.json")["processes"] == 2
        logs = [[json.loads(line)["loss"] for line in (run / "log.jsonl").open()] for run in (two, one)]
        assert len(logs[0]) == 5  # four steps and an evaluation
        assert logs[0] == pytest.approx(logs[1], rel=1e-5)
        texts = [(run / "predictions-dev.jsonl").read_text(encoding="utf-8") for run in (two, one)]
        assert texts[0] == texts[1]
    assert (tmp_path / "two" / "summary.json").is_file()


def test_the_command_adds_a_decoder_trains_and_scores(encoder, sides, tmp_path):
    given = ["finetune", "--model", encoder, "--out", tmp_path / "out", "--task", "translation"]
    files = ["--source", sides[0], "--target", sides[1]]
    found = command(*given, *files, "--epochs", 1)
    assert found.exit_code == 0, found.exception
    assert "bleu" in found.stdout
    assert "nrefs:1" in found.stdout
    texts = (tmp_path / "out" / "predictions-dev.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(texts) == 6  # a tenth was held out
    for more, message in (
        (("--source", sides[0], "--out", tmp_path / "new"), "source and target texts in two files"),
        ((*files, "--lora", "8"), "--lora is not an option of --task translation"),
        ((*files, "--minutes", "-1"), "minutes is -1.0; it must be > 0"),
        ((*files, "--resume", "--epochs", 1, "--lr", "1"), "contains another run, with lr 0.0003 instead of 1.0"),
    ):
        assert message in str(command(*given, *more).exception)
    wrong = command("finetune", "--model", "m", "--out", "o", "--task", "rte", "--minutes", "3")
    assert "--minutes is not an option of --task rte" in str(wrong.exception)
    scored = command("evaluate", tmp_path / "out", "--task", "translation", *files, "--out", tmp_path / "t")
    assert "on 60 pairs" in scored.stdout
    assert "nrefs:1" in scored.stdout
    assert len((tmp_path / "t" / "written.txt").read_text(encoding="utf-8").splitlines()) == 60
    wrong = command("evaluate", encoder, "--task", "translation", *files)
    assert "is not a DeBERTa-D; train one with deberta finetune --task translation" in str(wrong.exception)


def test_lengths_and_rates_of_the_command_arrive(encoder, pairs, tokenizer, tmp_path):
    """And a decoder begins and ends with the tokens of its tokenizer."""
    table = "".join(f"{pair.source},{pair.target}\n" for pair in pairs)
    (tmp_path / "pairs.csv").write_text(f"body,subject\n{table}", encoding="utf-8")
    given = ["finetune", "--model", encoder, "--out", tmp_path / "out", "--task", "summarisation"]
    given += ["--train", tmp_path / "pairs.csv", "--text", "body", "--label", "subject", "--max-source", "5"]
    given += ["--max-target", "4", "--weight-decay", "0.5", "--decoder-layers", "1", "--lr", "2e-3", "--epochs", "1"]
    found = command(*given)
    assert found.exit_code == 0, found.exception
    record = read(tmp_path / "out" / "run.json")
    assert (record["max_source"], record["max_target"], record["weight_decay"], record["lr"]) == (5, 4, 0.5, 2e-3)
    assert (record["train_table"], record["train_columns"]) == (str(tmp_path / "pairs.csv"), ["body", "subject"])
    assert set(read(tmp_path / "out" / "metrics.json")["dev"]) == {"rouge1", "rouge2", "rougeL"}
    assert saved_options(tmp_path / "out").max_target == 4
    model = load_writer(tmp_path / "out")
    assert len(model.decoder.layer) == 1
    assert model.config.decoder_start_token_id == tokenizer.cls_token_id
    assert model.config.eos_token_id == tokenizer.sep_token_id


def test_a_folder_of_version_1_is_evaluated_as_before(pairs, tokenizer, tmp_path):
    model = make_model(tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    settings = {"epochs": 1, "max_source": 5, "max_target": 3, "beams": 1, "optimizer": {"lr": 1}, "seed": 0}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    options = saved_options(tmp_path)
    assert (options.max_source, options.max_target, options.beams) == (5, 3, 1)
    found = evaluate_pairs(tmp_path, "translation", pairs[:4])
    assert found.texts == score_texts(model.eval(), tokenizer, pairs[:4], options, "bleu").texts
    with pytest.raises(ValueError, match=r"has no run to resume \(no run\.json\)"):
        finetune_pairs(tmp_path, tmp_path, "translation", pairs, resume=True)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match="cannot hold out a dev set from a single example"):
        finetune_pairs("nowhere", tmp_path / "out", "translation", [Pair("red", "rot")])
    with pytest.raises(ValueError, match="unknown task 'translate'; choose from translation, summarisation"):
        finetune_pairs("nowhere", tmp_path / "out", "translate", [])
    with pytest.raises(ValueError, match="two files, or one table"):
        PairFiles(source="a", table="b").read()


def absolute(tokenizer):
    encoder = small(vocab_size=len(tokenizer), emd_steps=0, position_biased_input=True)
    return DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=encoder, decoder_layers=1))


@pytest.mark.parametrize(
    "make",
    [
        absolute,
        lambda tokenizer: BartForConditionalGeneration(BartConfig(vocab_size=len(tokenizer), **PEER)),
        lambda tokenizer: MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **PEER)),
    ],
    ids=["deberta-d", "bart", "marian"],
)
def test_sources_are_padded_where_encoders_with_absolute_positions_expect_it(pairs, tokenizer, make):
    model, sources = randomise(make(tokenizer)), [pair.source for pair in pairs[:12]]
    inputs = _inputs(model, tokenizer, sources, None)
    together = model.get_encoder()(**inputs).last_hidden_state
    for source, mask, states in zip(sources, inputs["attention_mask"].bool(), together, strict=True):
        alone = model.get_encoder()(**_inputs(model, tokenizer, [source], None)).last_hidden_state[0]
        torch.testing.assert_close(states[mask], alone, rtol=1e-4, atol=1e-4)


def test_the_encoder_of_a_deberta_d_takes_any_head(tokenizer, tmp_path):
    whole = make_model(tokenizer)
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_for_training(tmp_path, "single-label", ("no", "yes"))
    assert type(model).__name__ == "DebertaForSequenceClassification"
    assert model.config.id2label == {0: "no", 1: "yes"}
    ids = tokenizer("red cat", return_tensors="pt")["input_ids"]
    ours, theirs = model.eval().deberta(ids), whole.eval().encoder(ids)
    assert torch.equal(ours.last_hidden_state, theirs.last_hidden_state)
    assert describe(tmp_path).tokenizer()("red cat")["input_ids"] == ids[0].tolist()
