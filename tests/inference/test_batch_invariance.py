"""The answer for a text does not depend on the other texts in its batch.

The kernel computes each sequence by itself: its output is bitwise the same in any batch. Matrix products are not: the
library chooses another order of sums for another number of rows, so outputs agree to rounding.
"""

import numpy as np
import pytest
import torch

from debertakit.attention import Layout, RelativePositions, cpu
from debertakit.inference.answer import QuestionAnswerer
from debertakit.inference.classify import TextClassifier
from debertakit.inference.fill import MaskFiller
from debertakit.inference.tag import EntityTagger
from tests.attention.tables import with_tables
from tests.inference import material

TEXTS = ["good", "the cat sees a dog", "北京大学在中国", "a dog lives in Paris , the cat in Rome " * 6, "film"]
TASKS = [
    (TextClassifier, "SequenceClassification", lambda text: {"text": text}),
    (EntityTagger, "TokenClassification", lambda text: {"text": text}),
    (QuestionAnswerer, "QuestionAnswering", lambda text: {"question": "who sees a dog ?", "context": text}),
    (MaskFiller, "MaskedLM", lambda text: {"text": f"{text} [MASK] ."}),
]


@pytest.mark.parametrize(("predictor", "head", "item"), TASKS, ids=[task[1] for task in TASKS])
def test_alone_or_in_any_batch(predictor, head, item):
    predict = predictor(material.model(head), material.tokenizer())
    rows = predict.encode([item(text) for text in TEXTS])
    alone = [predict.run([row])[0] for row in rows]
    orders = (range(len(rows)), reversed(range(len(rows))), [*range(len(rows))] * 3)
    for order in map(list, orders):
        for index, output in zip(order, predict.run([rows[i] for i in order]), strict=True):
            np.testing.assert_allclose(output, alone[index], atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(not cpu.available(), reason=cpu.reason() or "built")
@pytest.mark.parametrize("length", [1, 7, 64, 130])
def test_the_kernel_is_bitwise_the_same(length):
    """A sequence first, in the middle and last among others."""
    torch.manual_seed(length)
    relative = RelativePositions(span=16, buckets=16, max_position=64)
    tables = [torch.randn(2 * relative.span, 2, 16) for _ in range(2)]
    own = [torch.randn(length, 2, 16) for _ in range(3)]

    def attended(before: int, after: int) -> torch.Tensor:
        runs = [n for n in (before, length, after) if n]
        layout = Layout.from_lengths(torch.tensor(runs, dtype=torch.int32))
        packed = [torch.cat([torch.randn(before, 2, 16), x, torch.randn(after, 2, 16)]) for x in own]
        return with_tables(cpu.attend)(*packed, *tables, layout, relative, 0.2)[before : before + length]

    alone = attended(0, 0)
    assert all(torch.equal(alone, attended(*others)) for others in ((5, 0), (0, 90), (33, 200)))
