"""Entities of the user's own tagger: found in the text, stored with the corpus, the same after a resume."""

import re

import numpy as np
import pytest
import torch

from debertakit.heads import DebertaForSequenceClassification, DebertaForTokenClassification
from debertakit.pretraining.from_text import get_corpus, pretrain_from_text
from debertakit.pretraining.tagger import Tagger
from tests.models import small, word_tokenizer
from tests.pretraining.material import OBJECTS, SUBJECTS, TIMES, VERBS, config, text

WORDS = " ".join((*SUBJECTS, *VERBS, *OBJECTS, *TIMES)).split()
NAMES = {"old": "B-X", "friend": "I-X", "red": "B-X", "bird": "I-X", "small": "B-Y", "boat": "I-Y"}
LABELS = ["O", "B-X", "I-X", "B-Y", "I-Y"]


def save_tagger(folder, names):
    """A model that tags these words and no others: the label of a word is a function of its embedding alone."""
    words = word_tokenizer([*WORDS, "."])
    fields = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "type_vocab_size": 0}
    model = DebertaForTokenClassification(
        small(**fields, vocab_size=len(words), num_labels=5, id2label=dict(enumerate(LABELS)), emd_steps=0)
    )
    with torch.no_grad():
        for dense in (module.dense for name, module in model.named_modules() if name.endswith("output")):
            dense.weight.zero_()  # the layer passes its input on
        table = model.deberta.embeddings(torch.arange(len(words)), torch.zeros(len(words), dtype=torch.long))
        wanted = torch.zeros(len(words), 5)
        for word, index in words.get_vocab().items():
            wanted[index, LABELS.index(names.get(word, "O"))] = 1.0
        solved = torch.linalg.lstsq(torch.cat([table, torch.ones(len(words), 1)], 1), wanted).solution
        model.classifier.weight.copy_(solved[:-1].T)
        model.classifier.bias.copy_(solved[-1])
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    return save_tagger(tmp_path_factory.mktemp("tagger"), NAMES)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(text(12), encoding="utf-8")
    return file


def test_it_finds_the_tagged_words(tagger):
    sentence = "my old friend sees a small boat. the red bird paints the old friend."
    found = [sentence[start:end] for start, end in Tagger(str(tagger))(sentence)]
    assert found == ["old friend", "small boat", "red bird", "old friend"]
    assert Tagger(str(tagger))("  ") == []


def test_entities_are_stored_with_the_corpus_and_found_again(tagger, written, tokenizer, tmp_path):
    settings = config("masking.strategy=entity-or-token", "data.validation=0", f"data.entities=tagger:{tagger}")
    train = get_corpus(settings, [str(written)], tokenizer, tmp_path).train
    _, _, inside = train.take(train.ends[:1], train.ends[-1:])
    expected = []
    for document in written.read_text().split("\n\n"):
        names = [match.span() for match in re.finditer("old friend|red bird|small boat", document)]
        offsets = tokenizer(document, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        expected += [any(start < first < end for start, end in names) for first, _ in offsets]
    assert inside.tolist() == expected
    assert sum(expected) > 5
    before = {file: file.read_bytes() for file in (tmp_path / "corpus").rglob("*.npy")}
    get_corpus(settings, [str(written)], tokenizer, tmp_path)
    assert before == {file: file.read_bytes() for file in (tmp_path / "corpus").rglob("*.npy")}


def test_a_corpus_of_another_tagger_is_refused(tagger, written, tokenizer, tmp_path):
    settings = config("masking.strategy=entity", f"data.entities=tagger:{tagger}")
    get_corpus(settings, [str(written)], tokenizer, tmp_path)
    other = save_tagger(tmp_path / "other", {"king": "B-X"})
    changed = config("masking.strategy=entity", f"data.entities=tagger:{other}")
    with pytest.raises(ValueError, match="made from other options"):
        get_corpus(changed, [str(written)], tokenizer, tmp_path)


def test_a_run_with_a_tagger(tagger, written, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    small_run = ["model.num_hidden_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "steps=2"]
    data = ["data.step_tokens=128", "data.micro_tokens=128", "evaluate_tokens=128", "precision=fp32"]
    options = {"assignments": [*small_run, *data], "tagger": str(tagger), "tokenizer": str(tmp_path / "tokenizer")}
    metrics = pretrain_from_text("tiny-entities", str(written), tmp_path / "run", **options)
    assert np.isfinite(metrics["loss"])
    assert f"tagger:{tagger}" in (tmp_path / "run" / "run.json").read_text()
    with pytest.raises(ValueError, match="use the recipe tiny-entities"):
        pretrain_from_text("tiny", str(written), tmp_path / "other", **options)
    prepared = tmp_path / "plain"
    get_corpus(config(), [str(written)], tokenizer, prepared)
    with pytest.raises(ValueError, match="prepared without entities"):
        pretrain_from_text("tiny-entities", str(prepared / "corpus"), tmp_path / "third", **options)


def test_a_model_that_does_not_tag_is_refused(tmp_path):
    DebertaForSequenceClassification(small()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a model that tags words is needed"):
        Tagger(str(tmp_path))
