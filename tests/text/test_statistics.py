"""Statistics of text and of a prepared corpus, counted by hand."""

import json

import pytest
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.text.corpus import prepare
from debertakit.text.options import ReadingOptions
from debertakit.text.statistics import scripts, text_statistics
from tests.text.material import ARTICLES, byte_level


def test_counts_of_a_text(tmp_path):
    (tmp_path / "a.txt").write_text("aa bb\n\nаб\n\naa bb\n\n我们\n\n123 aa")
    found = text_statistics([tmp_path / "a.txt"], ReadingOptions())
    assert (found["documents"], found["duplicates"], found["characters"]) == (5, 1, 20)
    assert found["characters per document"] == {"mean": 4.0, "min": 2, "25%": 2, "median": 5, "75%": 5, "max": 6}
    assert found["scripts"] == {"Latin": 0.7143, "Cyrillic": 0.1429, "CJK": 0.1429}
    assert "tokens" not in found


def test_scripts_are_those_of_letters():
    from collections import Counter

    assert scripts(Counter("a1!é ひカ한")) == {"Latin": 0.4, "Hiragana": 0.2, "Katakana": 0.2, "Hangul": 0.2}
    assert scripts(Counter("12")) == {}


def test_tokens_are_those_of_the_prepared_corpus(tmp_path):
    tokenizer = byte_level()
    (tmp_path / "a.txt").write_text("\n\n".join([*ARTICLES, ARTICLES[0]]))
    text = text_statistics([tmp_path / "a.txt"], ReadingOptions(), tokenizer)
    prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", max_shard_tokens=500)
    result = CliRunner().invoke(app, ["corpus", "stats", str(tmp_path / "out"), "--json"])
    assert result.exception is None, result.output
    prepared = json.loads(result.stdout)
    for name in ("documents", "duplicates", "tokens"):
        assert prepared[name] == text[name]
    assert prepared["tokens per document"] == pytest.approx(text["tokens per document"])
    assert prepared["sources"] == {str(tmp_path / "a.txt"): 1.0}
    assert prepared["tokenizers"]


def test_the_commands(tmp_path):
    byte_level().save_pretrained(tmp_path / "tokenizer")
    for name, articles in (("a", ARTICLES[:50]), ("b", ARTICLES[40:])):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(articles))

    def deberta(*arguments):
        run = CliRunner().invoke(app, ["corpus", *map(str, arguments)])
        if run.exception and not isinstance(run.exception, SystemExit):
            raise run.exception
        return run.stdout

    files, out = (tmp_path / "a.txt", tmp_path / "b.txt"), ("--out", tmp_path / "out")
    made = deberta("prepare", *files, *out, "--tokenizer", tmp_path / "tokenizer", "--duplicates", "exact")
    assert "80 documents, 10 duplicates left out" in made
    told = deberta("stats", tmp_path / "out")
    assert "duplicates left out" in told
    assert f"{tmp_path / 'b.txt'} " in told
    told = deberta("stats", *files, "--tokenizer", tmp_path / "tokenizer")
    assert "duplicates                10" in told
    assert "Latin 100.0%" in told
    with pytest.raises(ValueError, match="no such file or folder"):
        deberta("stats", tmp_path / "c.txt")
    with pytest.raises(ValueError, match="is a prepared corpus: --tokenizer and --near read text"):
        deberta("stats", tmp_path / "out", "--near", "0.8")
