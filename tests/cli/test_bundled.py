"""Commands without --model use the bundled model for the language of the text, or ask for a model."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner

from debertakit import load
from debertakit.cli import app
from debertakit.cli.defaults import bundled_specs
from debertakit.data.guessing import sample_texts
from debertakit.heads import DebertaForMaskedLM
from debertakit.model_names import bundled_folder, check_model
from debertakit.pretraining.recipes import recipe
from debertakit.serving.endpoints import ServedModel
from debertakit.serving.server import parse
from debertakit.text.characters import looks_chinese
from tests.models import randomise, small, word_tokenizer

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = "a new [MASK] opened", "北京是[MASK]国的首都"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def save(folder, words):
    tokenizer = word_tokenizer(words)
    randomise(DebertaForMaskedLM(small(vocab_size=len(tokenizer), emd_steps=2))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEBERTAKIT_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save(tmp_path / "models" / "en-small", ["a", "new", "shop", "opened", "good", "bad", "film"])
    save(tmp_path / "models" / "zh-small", list("北京是中国的首都好坏电影"))
    return tmp_path / "models"


@pytest.fixture
def no_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEBERTAKIT_MODELS", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize(("text", "name", "word"), [(ENGLISH, "en-small", "opened"), (CHINESE, "zh-small", "首都")])
def test_fill_and_embed_choose_by_language_and_say_so(models, text, name, word):
    filled = run("fill", text)
    assert filled.exit_code == 0, filled.exception
    line = f"model: {name}, bundled with debertakit, for the language of the text (--model FOLDER for another one)"
    assert filled.stderr.splitlines().count(line) == 1
    assert word in filled.stdout.replace(" ", "")
    assert run("fill", text, "--model", name).stdout == filled.stdout  # the name works too, and nothing is said
    assert "bundled" not in run("fill", text, "--model", name).stderr
    embedded = run("embed", text, text)
    assert line in embedded.stderr
    vectors = [torch.tensor(json.loads(row)["embedding"]) for row in embedded.stdout.splitlines()]
    assert float(vectors[0] @ vectors[1]) == pytest.approx(1, abs=1e-5)
    assert embedded.stdout == run("predict", name, text, text, "--task", "embed").stdout


def test_embed_reads_files(models):
    Path("texts.csv").write_text("id,text\n" + "".join(f"{i},北京是首都\n" for i in range(4)), encoding="utf-8")
    result = run("embed", "texts.csv")
    assert result.exit_code == 0, result.exception
    assert "model: zh-small" in result.stderr
    assert "4 rows in texts-predictions.csv" in result.stdout


def test_explain(models):
    result = run("explain", "a new shop opened", "--out", "page.html")
    assert result.exit_code == 0, result.exception
    assert "model: en-small" in result.stderr
    Path("corpus.txt").write_text("北京是中国的首都\n" * 9, encoding="utf-8")
    result = run("explain", "--shares", "map.png", "--corpus", "corpus.txt")
    assert result.exit_code == 0, result.exception
    assert "model: zh-small" in result.stderr


@pytest.mark.parametrize(
    ("words", "name"), [(("a good film", "a bad film"), "en-small"), (("好电影", "坏电影"), "zh-small")]
)
def test_finetune_starts_from_the_bundled_model(models, words, name):
    rows = "".join(f"{words[i % 2]},{i % 2}\n" for i in range(40))
    Path("my.csv").write_text(f"a_long_english_name_of_the_column,label\n{rows}", encoding="utf-8")
    result = run("finetune", "my.csv", "--epochs", 1, "--batch-size", 8)
    assert result.exit_code == 0, result.exception
    assert f"model: {name}, bundled" in result.stderr
    assert Path(json.loads(Path("my-model/run.json").read_text())["model"]).name == name


def test_serve_serves_fill_and_embed_of_both(models):
    names = {}
    for spec in bundled_specs():
        name, folder, task = parse(spec)
        names[name] = load(folder, task).task
    assert names == {"en-small": "fill", "zh-small": "fill", "en-small-embed": "embed", "zh-small-embed": "embed"}


def test_a_folder_of_the_same_name_comes_first(models, tmp_path):
    assert check_model("en-small") == str(models / "en-small")
    save(tmp_path / "en-small", ["other"])
    assert check_model("en-small") == "en-small"


def test_without_bundled_models_the_commands_ask_for_one(no_models):
    asks = "this installation has no bundled model en-small: pass --model FOLDER, or the name of a hub model"
    for arguments in (("fill", ENGLISH), ("embed", ENGLISH), ("explain", ENGLISH, "--out", "page.html")):
        assert str(run(*arguments).exception) == asks
    assert "deberta serve FOLDER" in str(run("serve").exception)
    assert "no bundled model zh-small" in str(run("fill", CHINESE).exception)
    assert str(run("fill", ENGLISH, "--model", "en-small").exception).startswith("this installation has no bundled")
    Path("my.csv").write_text("text,label\n" + "".join(f"film {i},{i % 2}\n" for i in range(40)))
    result = run("finetune", "my.csv")
    assert "model: microsoft/deberta-v3-small (--model FOLDER for another one)" in result.stderr
    assert str(result.exception).startswith("microsoft/deberta-v3-small: no such folder")


def test_the_language_of_files_with_tags_and_escapes(tmp_path):
    (tmp_path / "ner.tsv").write_text("北\tB-LOCATION\n京\tI-LOCATION\n人\tO\n\n" * 9, encoding="utf-8")
    assert looks_chinese("".join(sample_texts(tmp_path / "ner.tsv", {})))
    (tmp_path / "rows.json").write_text(json.dumps({"data": ["北京是中国的首都"] * 9}))  # \\u5317...
    assert looks_chinese("".join(sample_texts(tmp_path / "rows.json", {})))


def test_bundle_makes_a_folder_of_fp16_weights_with_a_card(models, tmp_path):
    finished = save(tmp_path / "run", ["a", "new", "shop"])
    (finished / "run.json").write_text(recipe("hour").to_json())
    points = [
        {"step": s, "token_mask_loss": 9 - s / 5000, "token_mask_accuracy": s / 50_000}
        for s in range(1000, 41_000, 1000)
    ]
    lines = [json.dumps({"kind": "validation", "loss": 9.0, "accuracy": 0.1, **point}) for point in points]
    (finished / "log.jsonl").write_text("\n".join(lines) + "\n")
    script = [sys.executable, str(ROOT / "benchmarks" / "bundle.py")]
    made = [*script, str(finished), str(models / "en-small"), "--language", "en", "--data", "Ten words"]
    assert subprocess.run(made, capture_output=True, text=True, check=True).stdout.startswith(str(models / "en-small"))
    card = (models / "en-small" / "README.md").read_text()
    assert "Ten words. The text has the licence CC-BY-SA-4.0" in card
    assert "| 40,000 | 1.000 | 80.0% |" in card
    assert card.count("\n| ") <= 14
    half, full = load("en-small")("a [MASK]"), load(finished)("a [MASK]")
    assert half.masks[0][0].token == full.masks[0][0].token
    assert half.confidence() == pytest.approx(full.confidence(), rel=0.02)
    assert half.confidence() != full.confidence()
    unfinished = subprocess.run(
        [*script, str(tmp_path), "x", "--language", "en", "--data", "x"], capture_output=True, text=True
    )
    assert unfinished.returncode == 1
    assert unfinished.stderr.strip() == f"{tmp_path} is not a finished run: it has no model.safetensors"


@pytest.mark.parametrize(("name", "language"), [("en-small", "en"), ("zh-small", "zh")])
def test_the_page_shows_bundled_models_examples_in_their_language(name, language):
    """The byte-level vocabulary of en-small has no unknown token, but needs three for most Chinese characters."""
    if bundled_folder(name) is None:
        pytest.skip("no bundled models")
    predictor = SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(bundled_folder(name)))
    assert ServedModel(name, predictor).languages == [language]
