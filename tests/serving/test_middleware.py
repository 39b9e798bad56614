"""What is refused before an endpoint runs: hosts, keys, bodies that are slow, large or costly to check."""

import asyncio
import time

import httpx
import pytest

from debertakit.inference.tasks import TextClassifier
from debertakit.serving.access import Access
from debertakit.serving.app import create_app
from debertakit.serving.endpoints import ServedModel
from debertakit.serving.limits import Limits
from debertakit.serving.middleware import Body
from tests.inference import material
from tests.inference.material import LABELS

PATHS = ["/", "/page/app.js", "/docs", "/openapi.json", "/metrics", "/ready", "/models", "/health", "/nothing"]


@pytest.fixture(scope="module")
def model():
    return ServedModel("m", TextClassifier(material.model("SequenceClassification", **LABELS), material.tokenizer()))


def run(app, work):
    async def main():
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        async with app.router.lifespan_context(app), client:
            return await work(client)

    return asyncio.run(main())


def statuses(app, paths, **options):
    async def work(client):
        return [(await client.get(path, **options)).status_code for path in paths]

    return dict(zip(paths, run(app, work), strict=True))


def test_a_key_guards_everything_but_health(model):
    app = create_app([model], access=Access("secret"))
    assert statuses(app, PATHS) == {path: 200 if path == "/health" else 401 for path in PATHS}
    known = statuses(app, PATHS, headers={"x-api-key": "secret"})
    assert known == {path: 404 if path == "/nothing" else 200 for path in PATHS}
    public = create_app([model], access=Access("secret", public=("/health", "/metrics")))
    assert [path for path, status in statuses(public, PATHS).items() if status == 200] == ["/metrics", "/health"]


def test_the_schema_says_which_paths_need_the_key(model):
    paths = create_app([model], access=Access("secret", public=("/health", "/metrics"))).openapi()["paths"]
    assert "security" not in paths["/health"]["get"]
    assert "/metrics" not in paths  # not in the schema, and no reason to fail
    assert all("security" in operation for path in paths if path != "/health" for operation in paths[path].values())


def test_a_browser_is_asked_for_the_key(model):
    app = create_app([model], access=Access("secret"))

    async def work(client):
        return await client.get("/", headers={"accept": "text/html"}), await client.get("/models")

    page, fetched = run(app, work)
    assert page.headers["www-authenticate"].startswith("Basic ")
    assert "www-authenticate" not in fetched.headers


def test_the_key_is_checked_before_the_body(model):
    app = create_app([model], access=Access("secret"))

    async def never():
        yield b'{"inputs"'
        raise AssertionError("the body was read")

    async def work(client):
        return await client.post("/classify", content=b"{"), await client.post("/classify", content=never())

    assert [answer.status_code for answer in run(app, work)] == [401, 401]


def test_other_hosts_are_refused(model):
    app = create_app([model], access=Access(hosts=("api.example.org",)))

    async def work(client):
        hosts = ["localhost", "127.0.0.1:8000", "api.example.org", "evil.example"]
        return [await client.get("/models", headers={"host": host}) for host in hosts]

    answers = run(app, work)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400]
    assert "--allowed-host" in answers[-1].json()["error"]


def test_every_answer_has_security_headers(model, monkeypatch):
    app = create_app([model], access=Access("secret"))

    async def work(client):
        key = {"x-api-key": "secret"}
        return [
            await client.get("/", headers=key),
            await client.get("/docs", headers=key),
            await client.get("/models"),
            await client.get("/nothing", headers=key),
            await client.post("/classify", content=b"{", headers=key),
        ]

    for answer in run(app, work):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_no_page_loads_from_other_servers(model):
    async def work(client):
        return [(await client.get(path)).text for path in ("/docs", "/page/docs.js", "/page/ask.js", "/")]

    assert not any("//" in text.replace("// ", "") for text in run(create_app([model]), work))


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [{"text": "a \\ud800 b"}]}',
        b'{"inputs": [{"text": "a", "pair": "\\udc00"}]}',
        b'{"inputs": [{"text": "a", "\\ud800": 1}]}',
        b'{"inputs": [{"text": "a"}], "model": "\\ud800"}',
        b'{"inputs": [{"text": "a"}], "\\ud800": 1}',
    ],
)
def test_lone_surrogates_are_invalid(model, body):
    async def work(client):
        return await client.post("/classify", content=body, headers={"content-type": "application/json"})

    answer = run(create_app([model]), work)
    assert answer.status_code == 422
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 100_000, 400),
        (b'{"inputs": [' + b"[" * 100_000, 400),
        (b'{"inputs": "\xff"}', 400),
        (b'{"inputs": ' + b"9" * 10_000 + b"}", 400),
        (b'{"inputs": [' + b",".join([b"1"] * 500_000) + b"]}", 422),
        (b'{"inputs": [' + b",".join([b'{"text": "a"}'] * 60_000) + b"]}", 413),
        (b'{"inputs": [{' + b",".join(b'"k%d": 1' % n for n in range(80_000)) + b"}]}", 422),
        (b"{" + b",".join(b'"k%d": 1' % n for n in range(80_000)) + b"}", 422),
        (b'{"inputs": [{"text": NaN}]}', 422),
        (b'{"inputs": [{"text": "a"}', 400),
        (b"null", 422),
        (b"", 422),
    ],
)
def test_wrong_bodies_are_refused_quickly(model, body, status):
    """A body of 1 MB with 500,000 wrong inputs held the server for 15 seconds."""

    async def work(client):
        began = time.process_time()  # not the clock: other processes may keep the cores busy
        answer = await client.post("/classify", content=body, headers={"content-type": "application/json"})
        return answer, time.process_time() - began

    answer, seconds = run(create_app([model], Limits(body=1 << 21)), work)
    assert answer.status_code == status
    assert len(answer.json()["error"]) < 600
    assert seconds < 1


def body_messages(*chunks):
    """``receive`` of a client that sends chunks and then waits."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]

    async def receive():
        if messages:
            return messages.pop(0)
        await asyncio.sleep(60)

    return receive, messages


def refused_by(limits, chunks, headers=()):
    async def never(scope, receive, send):
        raise AssertionError("the endpoint was called")

    async def main():
        sent = []

        async def send(message):
            sent.append(message)

        middleware = Body(never, limits)
        receive, left = body_messages(*chunks)
        await middleware({"type": "http", "headers": list(headers)}, receive, send)
        return sent[0]["status"], len(left), middleware.held

    return asyncio.run(main())


def test_a_body_is_limited_while_it_arrives():
    chunks = [b"a" * 100] * 50
    assert refused_by(Limits(body=1000), chunks) == (413, 39, 0)  # not read to its end
    assert refused_by(Limits(body=1000), chunks, [(b"content-length", b"5000")]) == (413, 50, 0)
    assert refused_by(Limits(body=1000), chunks, [(b"content-length", b"9" * 5000)]) == (413, 50, 0)
    assert refused_by(Limits(receive=0.1), chunks) == (408, 0, 0)


def test_the_endpoint_is_cancelled_when_the_client_leaves():
    cancelled = []

    async def endpoint(scope, receive, send):
        assert (await receive())["body"] == b"abc"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main():
        messages = [{"type": "http.request", "body": b"abc"}, {"type": "http.disconnect"}]

        async def receive():
            return messages.pop(0)

        await Body(endpoint, Limits())({"type": "http", "headers": []}, receive, None)

    asyncio.run(main())
    assert cancelled == [True]
