"""Queue of the batcher: limits, cancelled requests, and isolation of errors between callers."""

import asyncio
import threading

import pytest

from debertakit.inference.fill import MaskFiller
from debertakit.inference.tasks import TextClassifier
from debertakit.serving.batcher import Batcher, Busy, TooLarge, guessed_tokens
from debertakit.serving.limits import Limits
from tests.inference import material
from tests.inference.test_tasks import LABELS


@pytest.fixture
def classifier():
    return TextClassifier(material.model("SequenceClassification", **LABELS), material.tokenizer())


@pytest.fixture(scope="module")
def filler():
    return MaskFiller(material.model("MaskedLM"), material.tokenizer())


def run(predictor, work, **limits):
    """Start a batcher, await ``work(batcher)``, and stop the batcher."""

    async def main():
        batcher = Batcher(predictor, Limits(**limits))
        batcher.start()
        try:
            return await work(batcher)
        finally:
            await batcher.stop()

    return asyncio.run(main())


def held(monkeypatch, predictor):
    """Make ``predictor.run`` wait for an event. Returns the event and the token ids of each call."""
    go, calls, original = threading.Event(), [], predictor.run

    def waits(rows):
        calls.append([row.ids[0] for row in rows])
        go.wait(20)
        return original(rows)

    monkeypatch.setattr(predictor, "run", waits)
    return go, calls


async def until(true):
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never true")


def test_a_text_counts_once_for_each_label_or_option():
    assert guessed_tokens({"text": "a" * 400}) == 103
    assert guessed_tokens({"text": "a" * 400, "labels": ["good"] * 50}) == 50 * 104
    assert guessed_tokens({"text": "a" * 200, "pair": "b" * 200, "options": ["good", "bad!"]}) == 2 * 104
    assert guessed_tokens({"text": "好" * 4}) == 6


def test_a_request_larger_than_the_queue_is_refused(classifier, monkeypatch):
    encoded, encode = [], classifier.encode
    monkeypatch.setattr(classifier, "encode", lambda items: encoded.extend(items) or encode(items))

    async def work(batcher):
        with pytest.raises(TooLarge, match="about 503 tokens; a request may have 100"):
            await batcher.submit([{"text": "cat " * 500}])
        assert not encoded  # refused before encoding
        with pytest.raises(TooLarge, match=r"1\d\d tokens; a request may have 100"):
            await batcher.submit([{"text": "a " * 150}])  # estimated as 78
        assert batcher.waiting == 0
        assert len(await batcher.submit([{"text": "the cat"}])) == 1

    run(classifier, work, queue=100)


def test_the_queue_counts_tokens_exactly(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit([{"text": "the cat"}]))
        await until(lambda: calls)
        second = asyncio.create_task(batcher.submit([{"text": "a " * 30}]))
        await until(lambda: batcher.queue)
        before = batcher.waiting
        assert before == 32
        with pytest.raises(Busy):  # the estimate of 18 fits, the 32 tokens do not
            await batcher.submit([{"text": "a " * 30}])
        assert batcher.waiting == before
        go.set()
        await asyncio.gather(first, second)

    run(classifier, work, queue=60, wait=0)


def test_a_cancelled_request_leaves_the_queue_and_is_not_run(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit([{"text": "the cat"}]))
        await until(lambda: calls)
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(batcher.submit([{"text": "a slow dog"}]), 0.3)
        assert batcher.waiting == 0  # immediately, although the model is still running
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(asyncio.shield(first), 0.05)
        go.set()
        await first
        await batcher.submit([{"text": "the house"}])
        assert batcher.waiting == 0

    run(classifier, work, wait=0)
    dog = classifier.tokenizer.convert_tokens_to_ids("dog")
    assert len(calls) == 2
    assert not any(dog in ids for call in calls for ids in call)


def test_a_slow_callers_timeout_leaves_nothing_waiting(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(batcher.submit([{"text": "the cat"}]), 1)
        assert (len(calls), batcher.waiting) == (1, 0)
        go.set()
        assert len(await batcher.submit([{"text": "the cat"}])) == 1
        assert batcher.waiting == 0

    run(classifier, work, wait=0)


def test_rows_that_fail_fail_for_their_caller_alone(classifier, monkeypatch):
    bad, original = classifier.tokenizer.convert_tokens_to_ids("river"), classifier.run
    sizes = []

    def fails(rows):
        sizes.append(len(rows))
        if any(bad in row.ids[0] for row in rows):
            raise RuntimeError("one of them")
        return original(rows)

    monkeypatch.setattr(classifier, "run", fails)

    async def work(batcher):
        texts = ["the cat", "the river", "a dog"]
        return await asyncio.gather(*(batcher.submit([{"text": text}]) for text in texts), return_exceptions=True)

    first, second, third = run(classifier, work, wait=0.3)
    assert sizes == [3, 1, 1, 1]
    assert isinstance(second, RuntimeError)
    expected = TextClassifier(classifier.model, classifier.tokenizer)
    monkeypatch.undo()
    for found, text in ((first, "the cat"), (third, "a dog")):
        assert found[0].labels == expected(text).labels


def test_the_tokenizer_is_called_in_one_thread(filler, monkeypatch):
    threads = set()
    for name in ("encode", "decide"):
        original = getattr(filler, name)

        def noted(*given, original=original):
            threads.add(threading.current_thread().name)
            return original(*given)

        monkeypatch.setattr(filler, name, noted)
    run(filler, lambda batcher: batcher.submit([{"text": "the [MASK] sees a dog"}]))
    assert threads == {"tokenizer_0"}


def test_masks_are_limited_and_count_in_a_batch(filler, monkeypatch):
    sizes, original = [], filler.run
    monkeypatch.setattr(filler, "run", lambda rows: sizes.append(len(rows)) or original(rows))

    async def work(batcher):
        with pytest.raises(TooLarge, match="65 masks; a request may have 64"):
            await batcher.submit([{"text": "[MASK] " * 60}, {"text": "[MASK] " * 5}])
        with pytest.raises(TooLarge, match="tokens; with masks it may have 2,048"):
            await batcher.submit([{"text": "[MASK] " + "a " * 3000}])
        assert not sizes
        many = [{"text": "[MASK] " * 64}]
        found = await asyncio.gather(*(batcher.submit(many) for _ in range(4)))
        assert [len(result.masks) for (result,) in found] == [64] * 4

    run(filler, work, wait=0.3)
    assert sizes == [3, 1]  # four requests would be 264 tokens and 256 masks
