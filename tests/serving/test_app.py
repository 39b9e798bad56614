"""HTTP application: correct answers to concurrent callers, limits, metrics and status endpoints."""

import asyncio
import json
import random
import threading

import httpx
import pytest
import transformers

from debertakit.inference.tasks import MaskFiller, OptionChooser, QuestionAnswerer, TextClassifier, ZeroShotClassifier
from debertakit.serving import endpoints
from debertakit.serving.app import create_app
from debertakit.serving.endpoints import ServedModel
from debertakit.serving.limits import Limits
from tests.inference import material
from tests.inference.material import LABELS, NLI

WORDS = material.WORDS


@pytest.fixture(scope="module")
def classifier():
    return TextClassifier(material.model("SequenceClassification", **LABELS), material.tokenizer())


@pytest.fixture(scope="module")
def answerer():
    return QuestionAnswerer(material.model("QuestionAnswering"), material.tokenizer())


def run(app, work):
    """Start the application, await ``work(client)``, and stop the application."""

    async def main():
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await work(client)

    return asyncio.run(main())


def post(client, path, *inputs, **others):
    return client.post(path, json={"inputs": list(inputs)}, **others)


@pytest.mark.slow
def test_every_caller_gets_its_own_answer(classifier, monkeypatch):
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 100))) for _ in range(300)]
    expected = [classifier(text).scores[0] for text in texts]
    go, original = threading.Event(), classifier.run
    monkeypatch.setattr(classifier, "run", lambda rows: (go.wait(120), original(rows))[1])

    async def work(client):
        tasks = [asyncio.create_task(post(client, "/classify", {"text": text})) for text in texts]
        while len(app.state.server.batchers["m"].queue) < 250:  # the others are in the first batch, or come later
            await asyncio.sleep(0.01)
        go.set()
        answers = await asyncio.gather(*tasks)
        return [answer.json()["results"][0]["scores"][0] for answer in answers], (await client.get("/metrics")).text

    app = create_app([ServedModel("m", classifier)], Limits(queue=1 << 20, wait=0.05, timeout=300))
    found, metrics = run(app, work)
    for own, wanted in zip(found, expected, strict=True):
        assert own["label"] == wanted.label
        assert own["score"] == pytest.approx(wanted.score, abs=1e-5)
    batches = float(next(line for line in metrics.splitlines() if line.startswith("batch_requests_count")).split()[-1])
    assert batches < 100  # requests shared batches
    assert 'requests_total{path="/classify",status="200"} 300.0' in metrics


def test_two_models_and_what_is_loaded(classifier, answerer):
    models = [ServedModel("a", classifier), ServedModel("b", classifier), ServedModel("q", answerer)]

    async def work(client):
        named = await client.post("/classify", json={"inputs": [{"text": "the cat"}], "model": "b"})
        wrong = await client.post("/classify", json={"inputs": [{"text": "the cat"}], "model": "q"})
        asked = await post(client, "/answer", {"question": "who ?", "context": "Ann lives in Rome"})
        return named, wrong, asked, await client.get("/models"), await client.get("/ready"), await client.get("/health")

    named, wrong, asked, loaded, ready, health = run(create_app(models), work)
    assert named.json()["model"] == "b"
    assert (wrong.status_code, wrong.json()["error"]) == (404, "no model 'q' for classify; there is a, b")
    assert asked.json()["results"][0].keys() == {"answer", "no_answer", "answers"}
    assert [model["task"] for model in loaded.json()] == ["classify", "classify", "answer"]
    assert ready.json() == {"ready": True, "not_ready": []}
    assert health.status_code == 200
    with pytest.raises(ValueError, match="two models have the same name"):
        create_app([models[0], models[0]])


def test_limits(classifier):
    app = create_app([ServedModel("m", classifier)], Limits(body=3000, inputs=3, characters=100))
    cases = {
        413: [[{"text": "a"}] * 4, [{"text": "a" * 101}], [{"text": "a" * 5000}]],
        422: [[], [{"text": ""}], [{"txt": "a"}], [{"text": 3}], [{"text": "a", "more": 1}]],
    }

    async def work(client):
        found = {}
        for status, bodies in cases.items():
            found[status] = [await client.post("/classify", json={"inputs": inputs}) for inputs in bodies]

        async def slow_body():
            for _ in range(50):
                yield b" " * 100

        found[413].append(await client.post("/classify", content=slow_body()))
        found[422].append(await client.post("/classify", content=b"{"))
        return found

    for status, answers in run(app, work).items():
        assert [answer.status_code for answer in answers] == [status] * len(answers)
        assert all(answer.json()["error"] for answer in answers)


def test_limits_of_labels_options_masks_and_tokens():
    tokenizer = material.tokenizer()
    nli = {"id2label": NLI, "label2id": {name: index for index, name in NLI.items()}}
    models = [
        ServedModel("z", ZeroShotClassifier(material.model("SequenceClassification", **nli), tokenizer)),
        ServedModel("c", OptionChooser(material.model("MultipleChoice"), tokenizer)),
        ServedModel("f", MaskFiller(material.model("MaskedLM"), tokenizer)),
    ]
    many = [f"label {number}" for number in range(129)]
    cases = [
        ("/zero-shot", {"text": "the cat", "labels": many}, 422, "128"),
        ("/zero-shot", {"text": "the cat " * 1000, "labels": many[:128]}, 413, "tokens; a request may have 4,000"),
        ("/zero-shot", {"text": "the cat", "labels": many[:3]}, 200, ""),
        ("/choose", {"text": "the cat", "options": many}, 422, "128"),
        ("/fill", {"text": "[MASK] " * 65}, 413, "65 masks; a request may have 64"),
        ("/fill", {"text": "[MASK] " + "a " * 3000}, 413, "with masks it may have 2,048"),
        ("/fill", {"text": "[MASK] " * 20}, 200, ""),
    ]

    async def work(client):
        return [await post(client, path, body) for path, body, _, _ in cases]

    for answer, (_, _, status, said) in zip(run(create_app(models, Limits(queue=4000)), work), cases, strict=True):
        assert answer.status_code == status, answer.text
        assert said in answer.text


@pytest.mark.parametrize("given", [{"timeout": float("inf")}, {"timeout": float("nan")}, {"timeout": 0}, {"wait": -1}])
def test_limits_that_cannot_be(given):
    with pytest.raises(ValueError, match="finite"):
        Limits(**given)


def test_a_full_queue_refuses_at_once_and_empties(classifier, monkeypatch):
    encoded, encode = [], classifier.encode
    monkeypatch.setattr(classifier, "encode", lambda items: encoded.extend(items) or encode(items))
    app = create_app([ServedModel("m", classifier)], Limits(queue=400))
    text = "the cat " * 25

    async def work(client):
        answers = await asyncio.gather(*(post(client, "/classify", {"text": text}) for _ in range(60)))
        return answers, await post(client, "/classify", {"text": text})

    answers, later = run(app, work)
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status_code == 429)
    assert later.status_code == 200
    assert len(encoded) == statuses.count(200) + 1  # refused requests were not encoded


def test_what_takes_too_long_is_given_up(classifier, monkeypatch):
    go, original = threading.Event(), classifier.run
    monkeypatch.setattr(classifier, "run", lambda rows: (go.wait(120), original(rows))[1])
    app = create_app([ServedModel("m", classifier)], Limits(timeout=0.1))

    async def work(client):
        answer = await post(client, "/classify", {"text": "the cat"})
        go.set()
        return answer

    assert run(app, work).status_code == 504


def test_a_failing_model_does_not_end_the_server(classifier, monkeypatch):
    app = create_app([ServedModel("m", classifier)])
    original, calls = classifier.run, []

    def fails_once(rows):
        calls.append(len(rows))
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return original(rows)

    monkeypatch.setattr(classifier, "run", fails_once)

    async def main():
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                first = await post(client, "/classify", {"text": "the cat"})
                return first, await post(client, "/classify", {"text": "the cat"})

    first, second = asyncio.run(main())
    assert (first.status_code, second.status_code) == (500, 200)
    assert "memory" not in first.text


def explain(client, text="the cat sees a dog", **others):
    return client.post("/explain", json={"model": "m", "text": text, **others})


def test_only_what_explains_is_explained(classifier):
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=60, **shape))
    other = ServedModel("other", TextClassifier(bert, classifier.tokenizer))

    async def work(client):
        return await explain(client, model="other"), await explain(client, against="other")

    for answer in run(create_app([ServedModel("m", classifier), other]), work):
        assert answer.status_code == 422
        assert answer.json() == {"error": "other cannot be explained: only DeBERTa models that run in torch can"}


def test_one_explanation_at_a_time_and_not_for_ever(classifier, monkeypatch):
    app = create_app([ServedModel("m", classifier)], Limits(timeout=3))
    go, original = threading.Event(), endpoints.look
    monkeypatch.setattr(endpoints, "look", lambda *given: (go.wait(120), original(*given))[1])

    async def work(client):
        both = await asyncio.gather(explain(client), explain(client))
        go.set()
        return both

    slow, refused = run(app, work)
    assert (slow.status_code, refused.status_code) == (504, 429)
    assert refused.headers["retry-after"] == "1"
    assert run(app, explain).status_code == 200  # the next request is accepted


def test_an_explanation_keeps_to_its_threads(classifier, monkeypatch):
    """/explain uses the one tokenizer thread, because tokenizers keep state, and does not block the event loop."""
    threads = {}
    for name in ("encode", "look", "page_data"):
        original = getattr(endpoints, name)

        def noted(*given, name=name, original=original):
            threads[name] = threading.current_thread().name
            return original(*given)

        monkeypatch.setattr(endpoints, name, noted)
    answer = run(create_app([ServedModel("m", classifier)]), lambda client: explain(client, "the cat " * 100))
    assert len(answer.json()["models"][0]["texts"][0]["tokens"]) == 64
    assert (threads["encode"], threads["look"]) == ("tokenizer_0", "model_0")
    assert threads["page_data"] not in ("tokenizer_0", "model_0", threading.current_thread().name)


def test_the_page_and_the_explorer(classifier):
    async def work(client):
        parts = [await client.get(path) for path in ("/", "/page/app.js", "/page/style.css", "/page/explorer.js")]
        body = {"model": "m", "text": "the cat sees a dog"}
        return parts, await client.get("/page/secrets"), await client.post("/explain", json=body)

    parts, wrong, explained = run(create_app([ServedModel("m", classifier)]), work)
    assert [part.status_code for part in parts] == [200] * 4
    assert parts[0].headers["content-type"].startswith("text/html")
    assert "http://" not in parts[0].text + parts[1].text  # no external resources
    assert "https://" not in parts[0].text + parts[1].text
    assert wrong.status_code == 404
    (model,) = explained.json()["models"]
    assert (model["layers"], model["heads"], model["texts"][0]["tokens"][1]) == (2, 2, "the")


def test_logs_hold_no_text(classifier, caplog):
    app = create_app([ServedModel("m", classifier)])
    with caplog.at_level("INFO", "debertakit.serving"):
        run(app, lambda client: post(client, "/classify", {"text": "cat likes Paris"}))
        run(app, lambda client: post(client, "/classify", {"text": "Paris", "cat": 1}))
    lines = [record.message for record in caplog.records if record.name == "debertakit.serving"]
    assert [json.loads(line)["status"] for line in lines] == [200, 422]
    assert not any("Paris" in line for line in lines)
