"""Distillation losses equal numpy computations, vanish for a perfect student, and reach every layer of the student."""

import numpy as np
import pytest
import torch
import transformers

from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives
from debertakit.objectives.base import Context
from debertakit.objectives.joint import JointObjectives
from debertakit.objectives.teacher import Teacher
from debertakit.pretraining.families import make_backbone
from debertakit.text.masking import Masking
from debertakit.text.packing import Packing
from tests.models import randomise, small, word_tokenizer
from tests.objectives.material import lively, sequences

WIDE = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 64}


def deberta(folder, tokenizer, **fields):
    model = lively(DebertaForMaskedLM(small(vocab_size=len(tokenizer), **{**WIDE, **fields}))).eval()
    return save(model, folder, tokenizer)


def bert(folder, tokenizer):
    config = transformers.BertConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **WIDE)
    return save(randomise(transformers.BertModel(config)), folder, tokenizer)


def save(model, folder, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def student(tokenizer, teacher, **weights):
    model = DebertaForMaskedLM(small(vocab_size=len(tokenizer), num_hidden_layers=3))
    return lively(JointObjectives(make_backbone(model), Objectives(**{"mlm": 0.0, **weights}), teacher)).eval()


def prepared(module, corpus):
    part = module.prepare(Packing(corpus.train, 32, 256).batch(1), Context(corpus.train, Masking("token"), 3), 0.0)
    return part, part.views["plain"]


def summed(module, part):
    return dict(zip(module.weights, module(part, torch.ones(len(module.weights)))[1][:, 0].tolist(), strict=True))


def states(model, ids):
    """Hidden states of one sequence: [layers + 1][length, hidden]."""
    with torch.no_grad():
        return [state[0].double().numpy() for state in model(ids, output_hidden_states=True).hidden_states]


def projections(model, below):
    attention = model.encoder.layer[-1].attention.self
    names = ("query_proj", "key_proj", "value_proj") if hasattr(attention, "query_proj") else ("query", "key", "value")
    for name in names:
        linear = getattr(attention, name)
        yield below @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy()


def softmax(scores):
    exp = np.exp(scores - scores.max())
    return exp / exp.sum()


def divergence(student_rows, teacher_rows, heads):
    """Sum over rows of the mean over heads of KL(teacher || student), one row and one head at a time."""
    total = 0.0
    for i in range(len(student_rows)):
        for head in range(heads):
            both = []
            for rows in (teacher_rows, student_rows):
                d = rows.shape[1] // heads
                part = rows[:, head * d : (head + 1) * d]
                both.append(softmax(part @ part[i] / np.sqrt(d)))
            total += float((both[0] * np.log(both[0] / both[1])).sum()) / heads
    return total


@pytest.mark.parametrize("make", [deberta, bert])
def test_relations(corpus, tokenizer, tmp_path, make):
    teacher = Teacher.load(make(tmp_path, tokenizer), tokenizer)
    module = student(tokenizer, teacher, relations=1.0)
    part, view = prepared(module, corpus)
    assert len(set(view.lengths.tolist())) > 1  # padding is tested
    expected = 0.0
    for ids in sequences(view):
        ours, theirs = (states(model, ids)[-2] for model in (module.model.deberta, teacher.model))
        rows = zip(projections(module.model.deberta, ours), projections(teacher.model, theirs), strict=True)
        expected += sum(divergence(one, other, heads=2) for one, other in rows)
    assert summed(module, part)["relations"] == pytest.approx(expected, rel=1e-4)
    assert part.counts() == [len(view.ids)]


@pytest.mark.parametrize("make", [deberta, bert])
def test_hidden_states(corpus, tokenizer, tmp_path, make):
    teacher = Teacher.load(make(tmp_path, tokenizer), tokenizer)
    module = student(tokenizer, teacher, hidden=1.0)
    linear = module.objectives["hidden"].project
    weight, bias = (each.detach().double().numpy() for each in (linear.weight, linear.bias))
    part, view = prepared(module, corpus)
    expected = 0.0
    for ids in sequences(view):
        ours, theirs = (states(model, ids)[-1] for model in (module.model.deberta, teacher.model))
        normed = (theirs - theirs.mean(1, keepdims=True)) / np.sqrt(theirs.var(1, keepdims=True) + 1e-5)
        expected += float(((ours @ weight.T + bias - normed) ** 2).mean(1).sum())
    assert summed(module, part)["hidden"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("make", [deberta, bert])
def test_sentence_vectors_of_another_tokenizer(corpus, tokenizer, tmp_path, make):
    other = word_tokenizer("the cat a dog sees likes paints house boat in morning every day . at night river".split())
    teacher = Teacher.load(make(tmp_path, other), tokenizer)
    module = student(tokenizer, teacher, vectors=1.0)
    linear = module.objectives["vectors"].project
    weight, bias = (each.detach().double().numpy() for each in (linear.weight, linear.bias))
    part, view = prepared(module, corpus)
    expected = 0.0
    for ids in sequences(view):
        text = tokenizer.decode(ids[0], skip_special_tokens=True)
        found = states(module.model.deberta, ids)[-1].mean(0) @ weight.T + bias
        wanted = states(teacher.model, other(text, return_tensors="pt")["input_ids"])[-1].mean(0)
        expected += 1 - float(found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted))
    assert summed(module, part)["vectors"] == pytest.approx(expected, rel=1e-4)
    assert part.counts() == [len(view.lengths)]
    for name in ("relations", "hidden"):
        with pytest.raises(ValueError, match=rf"objectives\.{name} needs a teacher with the student's vocabulary"):
            student(tokenizer, teacher, **{name: 1.0})


def test_a_student_equal_to_its_teacher_has_no_loss(corpus, tokenizer, tmp_path):
    model = lively(DebertaForMaskedLM(small(vocab_size=len(tokenizer)))).eval()
    teacher = Teacher.load(save(model, tmp_path, tokenizer), tokenizer)
    module = JointObjectives(make_backbone(model), Objectives(mlm=0.0, relations=1.0), teacher).eval()
    part, _ = prepared(module, corpus)
    assert summed(module, part)["relations"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("name", ["relations", "hidden", "vectors"])
def test_the_gradient_reaches_the_student_and_not_the_teacher(corpus, tokenizer, tmp_path, name):
    teacher = Teacher.load(deberta(tmp_path, tokenizer), tokenizer)
    module = student(tokenizer, teacher, **{name: 1.0}).train()
    part, _ = prepared(module, corpus)
    module(part, torch.tensor(part.counts()).float())[0].backward()
    layers = module.model.deberta.encoder.layer
    assert all(layer.attention.self.query_proj.weight.grad.abs().sum() > 0 for layer in layers)
    assert module.model.deberta.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in teacher.model.parameters())
    assert not any("teacher" in key for key in module.state_dict())
    assert len(list(module.parameters())) == len(list(module.model.parameters())) + (0 if name == "relations" else 2)
    assert not module.trains_all_parameters  # the language-model head is not used
    assert student(tokenizer, teacher, mlm=1.0, **{name: 1.0}).trains_all_parameters
