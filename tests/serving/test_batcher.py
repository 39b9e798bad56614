"""Queue of the batcher: limits, cancelled requests, and isolation of errors between callers."""

import asyncio
import os
import sys
import threading
import time

import pytest

from debertakit.inference.tasks import EntityTagger, MaskFiller, OptionChooser, TextClassifier, ZeroShotClassifier
from debertakit.serving import batcher as batching
from debertakit.serving.batcher import NICE, Batcher, Busy, TooLarge, WorkerEnded, estimated_tokens, part_bounds
from debertakit.serving.limits import Limits
from tests.inference import material
from tests.inference.material import LABELS


@pytest.fixture
def classifier():
    return TextClassifier(material.model("SequenceClassification", **LABELS), material.tokenizer())


@pytest.fixture(scope="module")
def filler():
    return MaskFiller(material.model("MaskedLM"), material.tokenizer())


@pytest.fixture(scope="module")
def tagger():
    tags = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
    names = {"num_labels": 4, "id2label": tags, "label2id": {name: index for index, name in tags.items()}}
    return EntityTagger(material.model("TokenClassification", **names), material.tokenizer())


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
        go.wait(120)
        return original(rows)

    monkeypatch.setattr(predictor, "run", waits)
    return go, calls


async def until(true):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never true")


def test_a_text_counts_once_for_each_label_or_option():
    zero_shot, choose = ZeroShotClassifier.fields, OptionChooser.fields
    assert estimated_tokens({"text": "a" * 400}, zero_shot) == 103
    assert estimated_tokens({"text": "a" * 400, "labels": ["good"] * 50}, zero_shot) == 50 * 104
    assert estimated_tokens({"text": "a" * 200, "pair": "b" * 200, "options": ["good", "bad!"]}, choose) == 2 * 104
    assert estimated_tokens({"text": "好" * 4}, zero_shot) == 6
    assert estimated_tokens({"text": "a " * 50_000}, zero_shot) == 50_003  # short words are tokens too


def test_words_count_once(tagger):
    """They were counted like labels: a list of 500 words was refused as too large."""
    item = tagger.check({"words": ["London"] * 500})
    assert estimated_tokens(item, EntityTagger.fields) == 3 + 3499 // 4
    assert len(run(tagger, lambda batcher: batcher.submit([item]))) == 1


def test_a_request_larger_than_the_queue_is_refused(classifier, monkeypatch):
    encoded, encode = [], classifier.encode
    monkeypatch.setattr(classifier, "encode", lambda items: encoded.extend(items) or encode(items))

    async def work(batcher):
        with pytest.raises(TooLarge, match="about 503 tokens; a request may have 100"):
            await batcher.submit([{"text": "cat " * 500}])
        assert not encoded  # refused before encoding
        with pytest.raises(TooLarge, match=r"1\d\d tokens; a request may have 100"):
            await batcher.submit([{"text": "a " * 150}])  # estimated as 78
        assert batcher.in_work == 0
        assert len(await batcher.submit([{"text": "the cat"}])) == 1

    run(classifier, work, queue=100)


def test_the_queue_counts_tokens_exactly(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit([{"text": "the cat"}]))
        await until(lambda: calls)
        second = asyncio.create_task(batcher.submit([{"text": "a " * 30}]))
        await until(lambda: batcher.queue)
        before = batcher.in_work
        assert before == 4 + 32  # the one that runs and the one that waits
        with pytest.raises(Busy):  # the estimate of 18 fits, the 32 tokens do not
            await batcher.submit([{"text": "a " * 30}])
        assert batcher.in_work == before
        go.set()
        await asyncio.gather(first, second)

    run(classifier, work, queue=60, wait=0)


def test_a_cancelled_request_leaves_the_queue_and_is_not_run(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit([{"text": "the cat"}]))
        await until(lambda: calls)
        dog = asyncio.create_task(batcher.submit([{"text": "a slow dog"}]))
        await until(lambda: batcher.queue)
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(dog, 0.01)
        assert batcher.in_work == 4  # immediately: only what the model is still running
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(asyncio.shield(first), 0.05)
        go.set()
        await first
        await batcher.submit([{"text": "the house"}])
        assert batcher.in_work == 0

    run(classifier, work, wait=0)
    dog = classifier.tokenizer.convert_tokens_to_ids("dog")
    assert len(calls) == 2
    assert not any(dog in ids for call in calls for ids in call)


def test_a_slow_callers_timeout_leaves_nothing_waiting(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        slow = asyncio.create_task(batcher.submit([{"text": "the cat"}]))
        await until(lambda: calls)
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(slow, 0.01)
        assert (len(calls), batcher.in_work) == (1, 4)  # the model is still running it
        go.set()
        assert len(await batcher.submit([{"text": "the cat"}])) == 1
        assert batcher.in_work == 0

    run(classifier, work, wait=0)


def test_rows_that_fail_fail_for_their_caller_alone(classifier, monkeypatch):
    bad, original = classifier.tokenizer.convert_tokens_to_ids("river"), classifier.run
    sizes, go = [], threading.Event()

    def fails(rows):
        sizes.append(len(rows))
        go.wait(120)
        if any(bad in row.ids[0] for row in rows):
            raise RuntimeError("one of them")
        return original(rows)

    monkeypatch.setattr(classifier, "run", fails)

    async def work(batcher):
        before = asyncio.create_task(batcher.submit([{"text": "good"}]))
        await until(lambda: sizes)
        texts = ["the cat", "the river", "a dog"]
        tasks = [asyncio.create_task(batcher.submit([{"text": text}])) for text in texts]
        await until(lambda: len(batcher.queue) == 3)
        go.set()
        await before
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = run(classifier, work, wait=0)
    assert sizes == [1, 3, 1, 1, 1]
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
    go, calls = held(monkeypatch, filler)

    async def work(batcher):
        with pytest.raises(TooLarge, match="65 masks; a request may have 64"):
            await batcher.submit([{"text": "[MASK] " * 60}, {"text": "[MASK] " * 5}])
        with pytest.raises(TooLarge, match="tokens; with masks it may have 2,048"):
            await batcher.submit([{"text": "[MASK] " + "a " * 3000}])
        assert not calls
        before = asyncio.create_task(batcher.submit([{"text": "the [MASK]"}]))
        await until(lambda: calls)
        many = [asyncio.create_task(batcher.submit([{"text": "[MASK] " * 64}])) for _ in range(4)]
        await until(lambda: len(batcher.queue) == 4)
        go.set()
        await before
        assert [len(result.masks) for (result,) in await asyncio.gather(*many)] == [64] * 4

    run(filler, work, wait=0)
    assert [len(call) for call in calls] == [1, 3, 1]  # four requests would be 264 tokens and 256 masks


# ---------------------------------------------------------------------------------------------------------- turns


def test_a_small_request_passes_a_large_one(classifier, monkeypatch):
    """A large legal request held the model until its end: 128 texts of 60 tokens are 4 batches of 2,048 tokens."""
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        large = [asyncio.create_task(batcher.submit([{"text": "a " * 58}] * 128)) for _ in range(3)]
        await until(lambda: calls and len(batcher.queue) == 3)
        small = asyncio.create_task(batcher.submit([{"text": "the cat"}]))
        await until(lambda: len(batcher.queue) == 4)
        go.set()
        await small
        before = len(calls)
        results = await asyncio.gather(*large)
        assert batcher.in_work == 0
        return before, results

    before, results = run(classifier, work, wait=0)
    assert before <= 3  # of 12 batches
    expected = TextClassifier(classifier.model, classifier.tokenizer)("a " * 58)
    assert [len(each) for each in results] == [128] * 3
    for result in (result for each in results for result in each):
        assert result.scores[0].label == expected.scores[0].label
        assert result.scores[0].score == pytest.approx(expected.scores[0].score, abs=1e-5)


def test_a_batch_takes_turns_and_keeps_to_the_budget(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit([{"text": "good"}]))
        await until(lambda: calls)
        texts = ["cat " * 58, "dog " * 58, "house " * 58]
        rest = [asyncio.create_task(batcher.submit([{"text": text}] * 60)) for text in texts]
        await until(lambda: len(batcher.queue) == 3)
        go.set()
        await asyncio.gather(first, *rest)

    run(classifier, work, wait=0)
    assert all(sum(map(len, call)) <= classifier.budget for call in calls)
    words = [{ids[1] for ids in call} for call in calls[1:]]
    assert len(calls) == 7
    assert all(len(kinds) == 3 for kinds in words[:-1])


def test_many_options_are_run_in_pieces(monkeypatch):
    chooser = OptionChooser(material.model("MultipleChoice"), material.tokenizer())
    item = {"text": "the cat " * 20, "options": [f"{word} {other}" for word in material.WORDS for other in ("a", "b")]}
    expected = chooser(item)
    sizes, original = [], chooser.run
    monkeypatch.setattr(chooser, "run", lambda rows: sizes.append(sum(r.tokens for r in rows)) or original(rows))
    (found,) = run(chooser, lambda batcher: batcher.submit([item]))
    assert len(sizes) > 1
    assert max(sizes) <= chooser.budget
    assert found.index == expected.index
    assert found.scores == pytest.approx(expected.scores, abs=1e-5)


def test_large_requests_are_encoded_in_parts(classifier, monkeypatch):
    assert list(part_bounds([10])) == [(0, 1)]
    assert list(part_bounds([4000, 90, 10, 5000, 1])) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    encoded, original = [], classifier.encode
    monkeypatch.setattr(classifier, "encode", lambda items: encoded.append(len(items)) or original(items))
    draw = [{"text": " ".join(material.WORDS[: 1 + n % 20])} for n in range(100)]
    monkeypatch.setattr(batching, "PART", 64)
    found = run(classifier, lambda batcher: batcher.submit(draw))
    assert len(encoded) > 10
    expected = TextClassifier(classifier.model, classifier.tokenizer)(draw)
    assert [result.labels for result in found] == [result.labels for result in expected]


def test_a_request_that_leaves_drops_the_rows_that_wait(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        large = asyncio.create_task(batcher.submit([{"text": "dog " * 58}] * 100))
        await until(lambda: calls)
        large.cancel()
        await until(lambda: not batcher.queue)
        running = sum(map(len, calls[0]))
        assert batcher.in_work == running
        go.set()
        await until(lambda: batcher.in_work == 0)

    run(classifier, work, wait=0)
    assert len(calls) == 1


# --------------------------------------------------------------------------------------------------------- worker


def test_a_worker_that_ends_is_started_again(classifier, monkeypatch, caplog):
    monkeypatch.setattr(batching, "RESTART", 0.2)

    async def work(batcher):
        await until(lambda: batcher.ready)
        batcher.thread.shutdown()  # the worker cannot hand its batch to the model thread
        with pytest.raises(WorkerEnded):
            await batcher.submit([{"text": "the cat"}])
        assert not batcher.ready
        waiting = asyncio.create_task(batcher.submit([{"text": "the dog"}]))  # waits for the new worker
        await until(lambda: batcher.ready)
        assert len(await waiting) == 1
        batcher.worker.cancel()
        await until(lambda: not batcher.ready)
        await until(lambda: batcher.ready)
        assert len(await batcher.submit([{"text": "the cat"}])) == 1
        return batcher.restarts, batcher.in_work

    assert run(classifier, work) == (2, 0)
    assert "worker ended" in caplog.text


def test_a_stuck_model_is_not_ready(classifier, monkeypatch):
    go, calls = held(monkeypatch, classifier)

    async def work(batcher):
        task = asyncio.create_task(batcher.submit([{"text": "the cat"}]))
        await until(lambda: calls)
        assert batcher.ready
        batcher.busy_since -= batcher.limits.timeout
        assert not batcher.ready
        go.set()
        await task
        assert batcher.ready

    run(classifier, work)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_computing_threads_yield_to_the_event_loop(classifier):
    """With five models on two cores, a 429 took 4.9 s at equal priority, because the event loop waited for a core."""

    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    batcher = Batcher(classifier)
    for executor in (batcher.thread, batcher.encoders):
        assert executor.submit(niceness).result() == min(19, before + NICE)
        executor.shutdown()
    assert niceness() == before
