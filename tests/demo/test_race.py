from dataclasses import replace

import pytest
import torch

from debertakit.demo.race import Racer, contestants, held_out, mask_accuracy, race, unigram_accuracy
from debertakit.text.corpus import prepare
from debertakit.text.tokenizer_training import train_tokenizer


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A tokenizer and a corpus in which every third word is the same."""
    folder = tmp_path_factory.mktemp("race")
    words = [f"the w{i % 40} w{(i * i) % 41}" for i in range(4000)]
    lines = "\n\n".join(" ".join(words[i : i + 40]) for i in range(0, len(words), 40))
    (folder / "text.txt").write_text(lines, encoding="utf-8")
    tokenizer = train_tokenizer([folder / "text.txt"], kind="bpe", vocab_size=320)
    return tokenizer, prepare(folder / "text.txt", tokenizer, folder / "corpus")


def test_the_contestants_differ_only_in_positions_and_learning_rate():
    deberta, bert = contestants(1.0).values()
    positions = {"relative_attention", "pos_att_type", "norm_rel_ebd", "position_biased_input", "emd_steps"}
    assert {key for key in bert.model if bert.model[key] != deberta.model.get(key)} == positions
    assert replace(bert, name="", model={}, optimizer=deberta.optimizer) == replace(deberta, name="", model={})
    assert bert.model["position_biased_input"]
    assert not bert.model["relative_attention"]


def test_all_racers_take_the_same_number_of_steps_and_are_evaluated_together(text):
    tokenizer, corpus = text
    configs = contestants(0.01).items()
    short = {name: replace(config, evaluate_tokens=1 << 11, precision="fp32") for name, config in configs}
    racers = race(short, corpus, tokenizer)
    curves = [[step for step, _ in racer.curve] for racer in racers.values()]
    assert curves[0] == curves[1]
    assert curves[0][-1] >= 1
    assert all(not racer.model.training for racer in racers.values())


def test_accuracy_counts_the_masked_words_that_the_model_predicts(text):
    tokenizer, corpus = text
    config = contestants(1.0)["DeBERTa"]
    batches, context = held_out(corpus, config)
    unigram = unigram_accuracy(corpus, batches, context)
    assert unigram.top1 > 0.2  # a third of the words are "the"
    the = int(corpus.train.token_counts().argmax())

    class Constant(torch.nn.Module):
        """Predicts the most frequent word everywhere."""

        def predict(self, packed, rows):
            return torch.nn.functional.one_hot(torch.full((len(rows),), the), len(tokenizer)).float()

    racer = Racer(Constant())
    assert mask_accuracy(racer.model, batches, context).top1 == pytest.approx(unigram.top1)
