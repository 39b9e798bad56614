"""deberta generate and deberta evaluate --perplexity, called through the CLI."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from debertakit.cli import app
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM
from debertakit.generation.writing import load_writer, write
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.text.tokenizers import load_tokenizer
from tests.generation.material import translator, writer
from tests.pretraining.material import text as sentences


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """Folders of an autoregressive model and a DeBERTa-D, with their tokenizers."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.txt").write_text(sentences(20), encoding="utf-8")
    tokenizer = train_tokenizer(folder / "text.txt", kind="unigram", vocab_size=320, progress=False)
    torch.manual_seed(0)
    for name, model in (("causal", writer(vocab_size=330)), ("d", translator(vocab_size=len(tokenizer)))):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder / "causal", folder / "d"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_prompts_alone_and_together_give_the_same(folders):
    for folder in folders:
        model, tokenizer = load_writer(folder), load_tokenizer(folder)
        assert isinstance(model, DebertaForSeq2SeqLM) == (folder.name == "d")
        prompts = ["the cat", "every child forgets the long road", ""]
        together = write(model, tokenizer, prompts, max_new_tokens=12)
        assert together == [write(model, tokenizer, [prompt], max_new_tokens=12)[0] for prompt in prompts]
        assert any(together)
        assert not any("[" in text for text in together)  # no special token is written, nor a row without a piece


def test_a_model_with_absolute_positions_stops_at_the_last(folders):
    tokenizer = load_tokenizer(folders[0])
    model = writer("absolute", vocab_size=330, max_position_embeddings=16, position_buckets=8)
    short, long = "the cat", "every child forgets the long road " * 5
    assert write(model, tokenizer, [short], max_new_tokens=100, min_new_tokens=5)[0]
    with pytest.raises(ValueError, match="fills all 16 positions"):
        write(model, tokenizer, [long], max_new_tokens=100)


def test_the_prompt_is_read_both_ways_in_prefix_mode(folders):
    model, tokenizer = load_writer(folders[0]), load_tokenizer(folders[0])
    prompts = ["every child forgets the long road", "the cat sees a boat", "my old friend", "in winter the king"]
    plain, prefix = (write(model, tokenizer, prompts, max_new_tokens=12, prefix_mode=mode) for mode in (False, True))
    assert plain != prefix
    with pytest.raises(ValueError, match="DeBERTa-D's encoder is always bidirectional"):
        write(load_writer(folders[1]), tokenizer, prompts, prefix_mode=True)


def test_the_command_streams_one_prompt_and_writes_files(folders, tmp_path):
    model, tokenizer = load_writer(folders[0]), load_tokenizer(folders[0])
    prompts = ["the cat", "every child forgets", "my old friend"]
    expected = write(model, tokenizer, prompts, max_new_tokens=6, num_beams=2)
    (tmp_path / "in.txt").write_text("\n".join(prompts), encoding="utf-8")
    found = run("generate", "--model", folders[0], "--file", tmp_path / "in.txt", "--out", tmp_path / "out.txt",
                "--beams", "2", "--max-new-tokens", "6", "--batch-size", "2")  # fmt: skip
    assert found.exit_code == 0, found.exception
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == expected
    found = run("generate", "the cat", "--model", folders[0], "--max-new-tokens", "6")
    assert not (tmp_path / "out.txt.part").exists()
    written = write(model, tokenizer, ["the cat"], max_new_tokens=6)[0]
    assert "".join(found.stdout.split()) == "".join(f"the cat {written}".split())
    again = [run("generate", "the cat", "--model", folders[0], "--sample", "--seed", seed).stdout for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_perplexity_and_mistakes(folders, tmp_path):
    (tmp_path / "text.txt").write_text(sentences(2), encoding="utf-8")
    found = run("evaluate", folders[0], "--perplexity", tmp_path / "text.txt", "--window", "32")
    assert "per token" in found.stdout
    assert "bits per byte" in found.stdout
    missing = run("evaluate", "/nowhere/at-all", "--perplexity", tmp_path / "text.txt")
    assert "'/nowhere/at-all' is not a folder, and no hub model" in str(missing.exception)
    for mistake, said in (
        (("--model", folders[0]), "pass either a prompt, or --file with one prompt per line"),
        (("--model", folders[0], "--file", tmp_path / "text.txt"), "--file and --out go together"),
        (("--model", "m", "the cat", "--top-k", "5"), "--top-k is not an option of a run without --sample"),
        (("--model", "m", "the cat", "--batch-size", "5"), "--batch-size is not an option of a run without --file"),
        (("--model", "m", "the cat", "--beams", "0"), "beams=0: must be >= 1"),
        (("--model", folders[0], "--file", tmp_path / "text.txt", "--out", tmp_path / "no/out.txt"), "no/out.txt.part"),
        (("--model", "/nowhere", "the cat"), "/nowhere: no such folder"),
    ):
        found = run("generate", *mistake)
        assert isinstance(found.exception, (ValueError, OSError))
        assert said in str(found.exception)
