"""finetune(), from files to a folder that stock transformers loads."""

import json

import pytest
import torch
import transformers
from safetensors import SafetensorError

from debertakit import evaluate, finetune, load
from debertakit.finetuning.evaluation import compare_runs, read_predictions
from debertakit.finetuning.job import hold_out
from debertakit.finetuning.runs import (
    delete_old_checkpoints,
    newest_checkpoint,
    open_run,
    read_json,
    seconds_before,
    writing,
)
from debertakit.finetuning.trainer import FinetuneTrainer
from debertakit.training.checksums import write_checksums
from tests import tiny
from tests.material import lines, tsv

KINDS = {
    "single-label": "AutoModelForSequenceClassification",
    "multi-label": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "qa": "AutoModelForQuestionAnswering",
    "choice": "AutoModelForMultipleChoice",
}
QUICK = {"epochs": 1, "batch_size": 8, "lr": 5e-3}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.deberta(tmp_path_factory.mktemp("model"))


def csv(path, examples):
    return lines(path, "a,y", *(f"{example.text},{'good' if example.label == '1' else 'bad'}" for example in examples))


@pytest.mark.slow
def test_ten_lines_of_python(model, tmp_path):
    train, dev = csv(tmp_path / "train.csv", tiny.sentences(96)), csv(tmp_path / "dev.csv", tiny.sentences(32, seed=9))
    out = tmp_path / "run"
    result = finetune(model, train=train, dev=dev, text="a", label="y", out=out, epochs=6, batch_size=8, lr=5e-3)
    assert result.scores["accuracy"] > 80
    assert not list(tmp_path.glob("*.part"))
    assert {path.name for path in out.iterdir()} >= {
        "README.md", "config.json", "log.jsonl", "metrics.json", "model.safetensors", "predictions-dev.jsonl",
        "report.html", "report.md", "run.json", "tokenizer.json",
    }  # fmt: skip
    assert not (out / "checkpoints").exists()
    again = evaluate(out, file=dev, text="a", label="y")
    assert again.scores == result.scores
    examples, values = read_predictions(out / "predictions-dev.jsonl", "single-label")
    assert values == again.values
    assert [e.text for e in examples] == [e.text for e in again.examples]
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert max(line["accuracy"] for line in logged if line["kind"] == "dev") == result.scores["accuracy"]
    classify = transformers.pipeline("text-classification", model=str(out))
    assert [found["label"] for found in classify([e.text for e in examples])] == values
    record = json.loads((out / "run.json").read_text())
    assert (record["train"], record["dev"], record["data"]) == (str(train.resolve()), str(dev.resolve()), None)
    assert (record["text"], record["label"], record["separator"]) == ("a", "y", None)
    assert (record["train_examples"], record["dev_examples"]) == (96, 32)
    settings = {"train": train, "text": "a", "label": "y", "epochs": 6, "batch_size": 8, "lr": 5e-3, "resume": True}
    settings["max_length"] = record["max_length"]
    other = csv(tmp_path / "other.csv", tiny.sentences(32, seed=10))
    for given, name in (({"dev": other}, "dev '"), ({}, "dev '"), ({"dev": dev, "separator": " "}, "kind '")):
        with pytest.raises(ValueError, match=f"run contains another run, with {name}.* instead of") as raised:
            finetune(model, out, **{**settings, **given})
        assert "\n" not in str(raised.value)


def test_a_single_label_that_may_be_there_or_not(model, tmp_path):
    """Multi-label with one label: two columns of sklearn's are not two classes."""
    rows = [(e.text, "good" if e.label == "1" else "") for e in tiny.sentences(24)]
    train = tsv(tmp_path / "train.tsv", ("a", "y"), *rows)
    result = finetune(model, tmp_path / "run", train=train, text="a", label="y", separator="|", **QUICK)
    assert set(result.scores) == {"micro_f1", "macro_f1", "exact"}
    assert "| good |" in (tmp_path / "run" / "report.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_ends_as_a_model_for_stock_transformers(kind, model, tmp_path):
    task = tiny.task(kind)
    result = finetune(model, tmp_path / "run", task=task, **QUICK)
    assert result.scores
    stock = getattr(transformers, KINDS[kind]).from_pretrained(tmp_path / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    assert len(tokenizer) == len(tiny.tokenizer())
    if kind != "qa":  # there, the threshold for "no answer" has been tuned since
        assert evaluate(tmp_path / "run", task=task).scores == result.scores
    inputs = tokenizer("the film was good", "it was", return_tensors="pt")
    if kind == "choice":
        inputs = {key: value[None] for key, value in inputs.items()}
    from debertakit.loading import load_for_training

    ours = load_for_training(
        tmp_path / "run", kind, tuple(stock.config.id2label.values()) if kind != "regression" else ()
    )
    for a, b in zip(ours.eval()(**inputs).to_tuple(), stock(**inputs).to_tuple(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_parts_of_speech_from_a_column_of_conll(model, tmp_path):
    """``task.json`` keeps the number of the column; two runs are compared on accuracy over words."""
    words = {"the": ("DET", "O"), "film": ("NOUN", "O"), "was": ("VERB", "O"), "anna": ("NOUN", "B-PER")}
    sentences = ["the film was", "anna was the film", "was anna the film"] * 12
    rows = [row for text in sentences for row in (*(" ".join((w, *words[w])) for w in text.split()), "")]
    train, dev = lines(tmp_path / "a.train", *rows), lines(tmp_path / "a.testa", *rows[:24])
    options = {**QUICK, "epochs": 6, "lr": 1e-2}
    result = finetune(model, train=train, dev=dev, label="2", out=tmp_path / "run", **options)
    assert result.scores == {"accuracy": 100.0, "exact": 100.0}
    assert evaluate(tmp_path / "run", file=dev).scores == result.scores
    assert "| NOUN | 100.00 |" in (tmp_path / "run" / "report.md").read_text()
    found = load(tmp_path / "run")("anna was the film")
    assert found.headline() == "NOUN:anna;VERB:was;DET:the;NOUN:film"
    assert compare_runs(tmp_path / "run", tmp_path / "run").mcnemar_p is None


@pytest.mark.slow
def test_other_encoders_lora_and_a_frozen_encoder(tmp_path):
    bert, task = tiny.bert(tmp_path / "bert"), tiny.task("tagging")
    finetune(bert, tmp_path / "lora", task=task, lora=4, layer_decay=0.9, balanced=True, **QUICK)
    stock = transformers.BertForTokenClassification.from_pretrained(tmp_path / "lora")
    assert stock.config.id2label == {0: "O", 1: "B-LOC", 2: "B-PER"}
    base = transformers.BertModel.from_pretrained(bert)
    moved = stock.bert.encoder.layer[0].attention.self.query.weight - base.encoder.layer[0].attention.self.query.weight
    assert 0 < torch.linalg.matrix_rank(moved.detach(), atol=1e-7) <= 4
    finetune(bert, tmp_path / "frozen", task=task, freeze_encoder=True, epochs=1, batch_size=8)
    frozen = transformers.BertForTokenClassification.from_pretrained(tmp_path / "frozen")
    for name, value in base.state_dict().items():
        if "pooler" not in name:
            assert torch.equal(frozen.bert.state_dict()[name], value)
    assert json.loads((tmp_path / "frozen" / "run.json").read_text())["lr"] == 1e-3


@pytest.mark.slow
def test_seeds_and_their_summary(model, tmp_path):
    result = finetune(model, tmp_path / "run", task=tiny.task("single-label"), seeds=2, seed=3, sift=True, **QUICK)
    assert [run.folder.name for run in result.runs] == ["seed-3", "seed-4"]
    scores = [run.scores["accuracy"] for run in result.runs]
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"]
    assert found["mean"] == result.scores["accuracy"] == sum(scores) / 2
    assert (found["low"], found["high"]) == (min(scores), max(scores))
    weights = [
        transformers.AutoModelForSequenceClassification.from_pretrained(r.folder).classifier.weight for r in result.runs
    ]
    assert not torch.equal(*weights)
    metrics = json.loads((tmp_path / "run" / "seed-3" / "metrics.json").read_text())
    assert metrics["sift_overhead"] > 1
    assert "SiFT took" in (tmp_path / "run" / "seed-3" / "report.md").read_text()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(model, tmp_path, monkeypatch):
    task = tiny.task("single-label")
    settings = {"task": task, "epochs": 2, "batch_size": 8, "lr": 5e-3, "evaluate_every": 2}
    whole = finetune(model, tmp_path / "whole", **settings)
    evaluate_once, calls = FinetuneTrainer.evaluate, []

    def killed(trainer, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate_once(trainer, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(FinetuneTrainer, "evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(model, tmp_path / "cut", **settings)
    part = tmp_path / "cut.part"
    assert not (tmp_path / "cut").exists()
    assert newest_checkpoint(part / "checkpoints").name == "checkpoint-4"
    broken = part / "checkpoints" / "checkpoint-5"
    broken.mkdir()
    (broken / "trainer_state.json").write_text('{"epoch": 1.0}')  # the process ended before it wrote the checksums
    with pytest.raises(ValueError, match=r"cut\.part already contains a run\. Use --resume"):
        finetune(model, tmp_path / "cut", **settings)
    with pytest.raises(ValueError, match=r"contains another run, with lr 0\.005 instead of 0\.1"):
        finetune(model, tmp_path / "cut", **{**settings, "lr": 0.1}, resume=True)
    state = part / "checkpoints" / "checkpoint-4" / "trainer_state.json"
    assert 0 < seconds_before(state.parent) < 600
    written = json.loads(state.read_text())
    next(entry for entry in written["log_history"][::-1] if "eval_elapsed" in entry)["eval_elapsed"] += 1000
    state.write_text(json.dumps(written))
    write_checksums(state.parent)
    again = finetune(model, tmp_path / "cut", **settings, resume=True)
    assert again.scores == whole.scores
    assert 1000 < again.seconds < 1600  # of both sessions
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    done = finetune(model, tmp_path / "cut", **settings, resume=True)  # nothing left to do
    assert done.scores == again.scores


def checkpoint(root, step, best=None):
    folder = root / f"checkpoint-{step}"
    lines(folder / "model.safetensors", f"weights of step {step}")
    lines(
        folder / "trainer_state.json", json.dumps({"best_model_checkpoint": best and f"/elsewhere/checkpoint-{best}"})
    )
    write_checksums(folder)
    return folder


def test_only_an_intact_checkpoint_is_resumed(tmp_path, capsys):
    for step in (2, 10, 12, 14):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-12/model.safetensors").write_text("weights of step 13\n")  # the same size
    (tmp_path / "checkpoint-14/manifest.json").unlink()  # the process ended before it was complete
    assert newest_checkpoint(tmp_path).name == "checkpoint-10"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-2"]
    said = capsys.readouterr().err
    assert "checkpoint-12 is damaged (the content of model.safetensors has changed)" in said
    assert "checkpoint-14" not in said
    assert newest_checkpoint(tmp_path / "nothing") is None


def test_a_checkpoint_whose_best_checkpoint_is_damaged_is_not_resumed(tmp_path):
    """At the end, the Trainer loads the best checkpoint; without it, the last weights would be taken for the best."""
    checkpoint(tmp_path, 2)
    checkpoint(tmp_path, 4, best=4)
    checkpoint(tmp_path, 6, best=4)
    assert newest_checkpoint(tmp_path).name == "checkpoint-6"
    (tmp_path / "checkpoint-4/model.safetensors").write_text("")
    assert newest_checkpoint(tmp_path).name == "checkpoint-2"


def test_the_newest_and_the_best_checkpoint_are_kept(tmp_path):
    for step in (2, 4, 6, 8):
        newest = checkpoint(tmp_path, step, best=4)
    delete_old_checkpoints(newest)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-8"]


def test_a_damaged_run_json_is_named(tmp_path):
    lines(tmp_path / "run.json", '{"lr": 0.')
    with pytest.raises(ValueError, match=r"run\.json is damaged \(.*\); restore it .* or delete .* and train"):
        read_json(tmp_path / "run.json")
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").symlink_to("/proc/self/mem")  # opens, but read() fails with EIO
    with pytest.raises(OSError, match=r"Input/output error: .*run\.json"):
        read_json(tmp_path / "run.json")


@pytest.mark.parametrize("error", [SafetensorError("No space left on device"), RuntimeError("file write failed")])
def test_a_full_disk_is_one_line(error, tmp_path):
    with (
        pytest.raises(OSError, match=r"cannot write the model to .*(No space|failed).* disk space .*--resume"),
        writing("the model", tmp_path),
    ):
        raise error


def test_a_finished_run_drops_the_checkpoints_that_a_kill_left(tmp_path):
    """A kill between the renaming of the folder and the deletion of its checkpoints."""
    record = {"lr": 0.1}
    out = tmp_path / "run"
    lines(out / "run.json", json.dumps(record))
    lines(out / "metrics.json", json.dumps({"dev": {"accuracy": 1.0}, "seconds": 2.0}))
    lines(out / "checkpoints" / "checkpoint-2" / "trainer_state.json", "{}")
    assert open_run(out, record, resume=True).scores == {"accuracy": 1.0}
    assert not (out / "checkpoints").exists()


def test_without_a_dev_set_some_examples_are_held_out():
    train, dev = hold_out(list(range(100)))
    assert len(dev) == 10
    assert sorted(train + dev) == list(range(100))
    assert (train, dev) == hold_out(list(range(100)))


@pytest.mark.slow
def test_questions_that_always_have_answers_are_always_answered(model, tmp_path):
    questions = [q for q in tiny.examples("qa", 24) if q.answers]
    task = tiny.task("qa")
    always = type(task)(task.name, "qa", lambda _: {"train": questions, "dev": questions[:6]}, task.score, task.metric)
    finetune(model, tmp_path / "always", task=always, **QUICK)
    assert all(evaluate(tmp_path / "always", task=always).values)
    finetune(model, tmp_path / "sometimes", task=task, **QUICK)
    metrics = json.loads((tmp_path / "sometimes" / "metrics.json").read_text())
    assert metrics["best_f1"] >= metrics["dev"]["f1"]
    tuned = evaluate(tmp_path / "sometimes", task=task)
    assert tuned.scores["f1"] == pytest.approx(metrics["best_f1"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "pass either --task and --data"),
        ({"task": "rte", "text": "a", "data": "x"}, "text"),
        ({"task": "rte"}, "rte needs its data"),
        ({"task": "rtte", "data": "x"}, "did you mean rte"),
        ({"train": "nowhere.csv", "text": "a", "label": "y"}, r"nowhere\.csv"),
        ({"task": "rte", "lr": -1.0}, "lr is -1.0"),
        ({"task": "rte", "layer_decay": 2.0}, "layer_decay"),
        ({"task": "rte", "lora": 4, "freeze_encoder": True}, "lora"),
        ({"task": "rte", "seeds": 0}, "seeds is 0"),
        ({"train": "nowhere.csv", "colour": "red"}, "colour"),
        ({"task": "rte", "data": "x", "dev": "dev.csv"}, "dev is not an option for a benchmark"),
        ({"train": "nowhere.csv", "data": "x"}, "data is only for a benchmark"),
        ({"task": "rte", "data": "x", "evaluate_every": 0}, "evaluate_every is 0"),
    ],
)
def test_mistakes_are_named(settings, message, model, tmp_path):
    with pytest.raises(ValueError, match=message):
        finetune(model, tmp_path / "run", **settings)
    assert not list(tmp_path.iterdir())


def test_places_that_a_run_could_not_be_put_in(tmp_path):
    """Refused at the start, before the model and the data are opened."""
    given = {"task": "rte", "data": "nowhere"}
    for name in ("file", "other.part"):
        lines(tmp_path / name, "mine")
    for out, seeds in (("file", 1), ("file", 2), ("other", 1)):
        with pytest.raises(ValueError, match=r"(file|other\.part) is a file; choose another --out"):
            finetune("nowhere", tmp_path / out, seeds=seeds, **given)
    single = lines(tmp_path / "single" / "run.json", "{}").parent
    with pytest.raises(ValueError, match="single contains a single run; choose another --out for 5 runs"):
        finetune("nowhere", single, seeds=5, **given)
    lines(tmp_path / "seeds" / "seed-3" / "run.json", "{}")
    with pytest.raises(ValueError, match=r"seeds/seed-3 already contains a run\. Use --resume"):
        finetune("nowhere", tmp_path / "seeds", seeds=5, **given)
    with pytest.raises(ValueError, match=r"seeds has no run to resume \(no run\.json\)"):
        finetune("nowhere", tmp_path / "seeds", resume=True, **given)


def test_a_missing_package_is_named_before_the_work(model, tmp_path, monkeypatch):
    monkeypatch.setattr("debertakit.finetuning.evaluation.find_spec", lambda name: None if name == "seqeval" else name)
    with pytest.raises(ImportError, match=r"needs seqeval: pip install .*\[finetune\]'"):
        finetune(model, tmp_path / "run", task="rte", data=tmp_path)
    monkeypatch.setattr("debertakit.finetuning.evaluation.find_spec", lambda name: None if name == "nltk" else name)
    with pytest.raises(ImportError, match="needs nltk"):
        finetune(model, tmp_path / "run", task="cmrc2018", data=tmp_path)


def test_more_tokens_than_positions(tmp_path):
    with pytest.raises(ValueError, match="positions for only 64 tokens"):
        finetune(tiny.bert(tmp_path / "b"), tmp_path / "run", task=tiny.task("single-label"), max_length=100, **QUICK)
