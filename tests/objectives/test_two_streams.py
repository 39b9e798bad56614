"""Two streams through DeBERTa's encoder, compared with the definition in numpy, and with gradients."""

import numpy as np
import pytest
import torch

from debertakit.attention import use_backend
from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives
from debertakit.objectives.base import Context
from debertakit.objectives.joint import JointObjectives
from debertakit.objectives.two_streams import two_streams
from debertakit.padding import Recorder
from debertakit.pretraining.families import make_backbone
from debertakit.text.masking import Masking
from debertakit.text.packing import Packing
from tests.models import small
from tests.numpy_deberta import NumpyDeberta
from tests.objectives.material import cross_entropy, lively


@pytest.fixture(scope="module")
def module(tokenizer):
    model = DebertaForMaskedLM(small(vocab_size=len(tokenizer), emd_steps=0))
    return lively(JointObjectives(make_backbone(model), Objectives(mlm=0, plm=1)))


def prepare(corpus, module, tokens=48, strategy="token"):
    context = Context(corpus.train, Masking(strategy, rate=0.3), seed=3)
    return module.prepare(Packing(corpus.train, 16, tokens).batch(1), context, 0.0)


def in_numpy(model, ids, order, mask):
    """Both streams by their definition: the content rows of the last layer, and the logits of each target."""
    numpy = NumpyDeberta(model.state_dict(), model.config)
    first = order == 0
    before = first[None] | (order[None] < order[:, None]) & ~first[:, None]  # [query, key]
    content, query = numpy.embed(ids), numpy.embed(np.full(len(ids), mask))
    itself = before | np.eye(len(ids), dtype=bool)
    for layer in range(model.config.num_hidden_layers):
        query = numpy.layer(layer, content, query, seen=before)
        content = numpy.layer(layer, content, content, seen=itself)
    return content, numpy.words(query)


def split(view):
    lengths = view.lengths.tolist()
    return zip(view.ids.split(lengths), view.order.split(lengths), strict=True)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_both_streams_equal_their_definition(corpus, module, backend):
    part = prepare(corpus, module)
    view, targets = part.views["permuted"], part.targets["plm"]
    mask = corpus.train.vocabulary["mask"]
    packed, queries = two_streams(view, targets.rows)
    recorder = Recorder(packed, hidden_states=True, attentions=False)
    with torch.no_grad(), use_backend(backend):
        module.model.deberta.encode(packed, recorder=recorder)
        _, hidden = module.backbone.hidden_rows(view, None, targets.rows)
        logits = module.backbone.word_logits(hidden)
    streams = packed.pack(recorder.hidden_states[-1])
    content = np.delete(streams.numpy(), queries.numpy(), axis=0)  # each sequence sorted by its order
    expected, found = [in_numpy(module.model, i.numpy(), o.numpy(), mask) for i, o in split(view)], []
    for (rows, words), (_, order) in zip(expected, split(view), strict=True):
        sort = order.argsort(stable=True)
        np.testing.assert_allclose(content[: len(order)], rows[sort.numpy()], atol=5e-4)
        content = content[len(order) :]
        found.append(words[order.numpy() > 0])
    np.testing.assert_allclose(logits.numpy(), np.concatenate(found), atol=5e-4)


def test_the_loss(corpus, module):
    part = prepare(corpus, module, strategy="ngram")
    view, mask = part.views["permuted"], corpus.train.vocabulary["mask"]
    expected = 0.0
    for ids, order in split(view):
        _, logits = in_numpy(module.model, ids.numpy(), order.numpy(), mask)
        for place in order.nonzero().squeeze(-1).tolist():
            expected += cross_entropy(torch.from_numpy(logits[place]), int(ids[place]))
    with torch.no_grad():
        loss, figures = module(part, torch.tensor(part.counts(), dtype=torch.float32))
    assert float(figures[0, 0]) == pytest.approx(expected, rel=1e-4)
    assert float(loss) == pytest.approx(expected / part.counts()[0], rel=1e-4)


def test_a_query_sees_what_comes_before_it_and_never_its_own_token(corpus, module):
    """d loss_t / d content_j is nonzero exactly for the tokens j before t in the order."""
    part = prepare(corpus, module)
    view, targets = part.views["permuted"], part.targets["plm"]
    embedded = []
    hook = module.model.deberta.embeddings.register_forward_hook(
        lambda _, __, output: embedded.append(output.requires_grad_())
    )
    _, hidden = module.backbone.hidden_rows(view, None, targets.rows)
    hook.remove()
    losses = torch.nn.functional.cross_entropy(module.backbone.word_logits(hidden), targets.labels, reduction="none")
    packed, queries = two_streams(view, targets.rows)
    content = np.delete(np.arange(len(packed.words)), queries.numpy())
    keys = torch.arange(len(view.ids)).split(view.lengths.tolist())
    sorted_rows = torch.cat([rows[view.order[rows].argsort(stable=True)] for rows in keys]).tolist()
    sequence = view.sequence_of(torch.arange(len(view.ids)))
    seen = {True: 0, False: 0}
    for number, row in enumerate(targets.rows.tolist()):
        (gradient,) = torch.autograd.grad(losses[number], embedded[0], retain_graph=True)
        moved = gradient.abs().amax(-1)
        own_query = int(queries[number])
        for place, j in zip(content.tolist(), sorted_rows, strict=True):
            before = sequence[j] == sequence[row] and (view.order[j] == 0 or view.order[j] < view.order[row])
            assert (moved[place] > 0) == before, (row, j)
            seen[bool(before)] += int(view.order[j] > 0 and sequence[j] == sequence[row])
        others = [int(q) for q in queries if int(q) != own_query]
        assert moved[others].max() == 0
        assert moved[own_query] > 0
    assert min(seen.values()) > 5  # among the targets themselves, both ways


def test_all_weights_learn(corpus, module):
    part = prepare(corpus, module)
    loss, _ = module(part, torch.tensor(part.counts(), dtype=torch.float32))
    loss.backward()
    assert not [key for key, p in module.named_parameters() if p.requires_grad and p.grad is None]
    module.zero_grad()


def test_the_tag_of_the_hub(module):
    assert module.pipeline_tag == "fill-mask"
