"""Use the web page in a real browser: type, predict, open the explorer, switch layer, head and language."""

import socket
import threading
import time

import pytest
import uvicorn

from debertakit.inference.tasks import EntityTagger, TextClassifier
from debertakit.serving.app import create_app
from debertakit.serving.endpoints import ServedModel
from tests.inference import material
from tests.inference.material import LABELS

pytestmark = pytest.mark.slow
TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}


@pytest.fixture(scope="module")
def url():
    tokenizer = material.tokenizer()
    tagger = material.model(
        "TokenClassification", num_labels=4, id2label=TAGS, label2id={v: k for k, v in TAGS.items()}
    )
    models = [
        ServedModel("mood", TextClassifier(material.model("SequenceClassification", **LABELS), tokenizer)),
        ServedModel("names", EntityTagger(tagger, tokenizer)),
    ]
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(models), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def wait(browser, script, seconds=20):
    for _ in range(int(seconds * 10)):
        if found := browser.run(script):
            return found
        time.sleep(0.1)
    raise AssertionError(f"never true: {script}")


def write(browser, selector, text):
    browser.run(f"document.querySelector({selector!r}).value = {text!r}")


def test_type_predict_explore_and_change_language(browser, url, tmp_path):
    browser.size(1100, 900)
    browser.call("Page.navigate", url=url)
    wait(browser, "document.querySelectorAll('#model option').length === 2")
    assert browser.run("document.querySelector('#run').textContent") == "Predict"
    assert browser.run("document.querySelector('#fields textarea').value") == TextClassifier.fields[0].example

    write(browser, "#fields textarea", "Bob likes the <b>film</b> .")
    browser.run("document.querySelector('#run').click()")
    assert wait(browser, "document.querySelectorAll('#result .score').length") == 3
    assert browser.run("document.querySelector('#result .score').textContent").startswith("✓ ")

    browser.run(
        "(box => { box.value = 'names'; box.dispatchEvent(new Event('change')) })(document.querySelector('#model'))"
    )
    text = "😀 Ann lives in <i>Rome</i>"
    write(browser, "#fields textarea", text)
    browser.run("document.querySelector('#run').click()")
    wait(browser, "!!document.querySelector('#result .text')")
    types = browser.run("[...document.querySelectorAll('#result mark small')].map(x => x.textContent)")
    shown = browser.run("document.querySelector('#result .text').textContent")
    for kind in types:
        shown = shown.replace(kind, "", 1)
    assert shown == text  # shown as text, not as markup, and complete
    marks = browser.run("[...document.querySelectorAll('#result mark')].map(x => x.firstChild.textContent)")
    assert all(mark in text for mark in marks)

    browser.run("document.querySelector('#tab-explore').click()")
    write(browser, "#explore-text", "the cat sees a dog")
    browser.run("document.querySelector('#explore-against').value = 'names'")
    browser.run("document.querySelector('#explore-run').click()")
    wait(browser, "document.querySelectorAll('#explorer .model').length === 2")
    shares = "document.querySelector('#explorer .shares').textContent"
    before = browser.run(shares)
    pick = "(box => { box.value = 0; box.dispatchEvent(new Event('change')) })"
    browser.run(f"{pick}(document.querySelector('#explorer .model .pickers select'))")
    assert browser.run(shares) != before
    browser.screenshot(tmp_path / "explorer.png")
    assert (tmp_path / "explorer.png").stat().st_size > 10_000

    painted = "document.querySelector('#explorer .attention canvas').getContext('2d').getImageData(0, 0, 200, 200).data"
    assert browser.run(f"new Set({painted}).size") > 20

    browser.run("document.querySelector('#language').click()")
    assert browser.run("document.querySelector('#explorer figcaption').textContent") == "注意力"
    assert browser.run("document.querySelector('#run').textContent") == "预测"
    assert browser.run("document.documentElement.lang") == "zh-CN"
    assert browser.errors == []
    assert all(request.startswith((url, "data:")) for request in browser.requests if not request.startswith("about:"))


def test_a_problem_is_shown(browser, url):
    browser.call("Page.navigate", url=url)
    wait(browser, "document.querySelectorAll('#model option').length === 2")
    write(browser, "#fields textarea", "   ")
    browser.run("document.querySelector('#form').noValidate = true; document.querySelector('#run').click()")
    assert "empty" in wait(browser, "document.querySelector('#status.problem')?.textContent")


def test_a_phone_sees_it_whole(browser, url):
    browser.size(380, 800)
    browser.call("Page.navigate", url=url)
    wait(browser, "document.querySelectorAll('#model option').length === 2")
    assert browser.run("document.documentElement.scrollWidth") <= 380
