"""Use the web page in a real browser: type, predict, open the explorer, switch layer, head and language."""

import re
import time

import pytest

from debertakit.inference.tasks import EntityTagger, MaskFiller, TextClassifier
from debertakit.serving.access import Access
from debertakit.serving.endpoints import SAMPLES, ServedModel
from debertakit.text.characters import UNIT
from tests.inference import material
from tests.inference.material import LABELS, NLI
from tests.models import word_tokenizer
from tests.serving.running import running

pytestmark = pytest.mark.slow
TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}


@pytest.fixture(scope="module")
def url():
    tokenizer = material.tokenizer()
    tagger = material.model(
        "TokenClassification", num_labels=4, id2label=TAGS, label2id={v: k for k, v in TAGS.items()}
    )
    nli = material.model("SequenceClassification", num_labels=3, id2label=NLI, label2id={v: k for k, v in NLI.items()})
    models = [
        ServedModel("mood", TextClassifier(material.model("SequenceClassification", **LABELS), tokenizer)),
        ServedModel("names", EntityTagger(tagger, tokenizer)),
        ServedModel("words", MaskFiller(material.model("MaskedLM"), tokenizer)),
        ServedModel("nli", TextClassifier(nli, tokenizer)),
    ]
    with running(models) as port:
        yield f"http://127.0.0.1:{port}/"


def wait(browser, script, seconds=120):
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
    wait(browser, "document.querySelectorAll('#model option').length === 4")
    assert browser.run("document.querySelector('#run').textContent") == "Predict"
    assert browser.run("document.querySelector('#fields textarea').value") == TextClassifier.fields[0].example

    assert wait(browser, "document.querySelectorAll('#result .score').length") == 3  # answered before any click
    assert browser.run("document.querySelectorAll('#fields textarea').length") == 1  # no second text
    assert browser.run("document.querySelectorAll('main > section:not([hidden]) .primary').length") == 1

    write(browser, "#fields textarea", "Bob likes the <b>film</b> .")
    click(browser, "#run")
    wait(browser, "document.querySelector('#result pre').textContent.includes('Bob likes')")
    assert browser.run("document.querySelector('#result .score').textContent").startswith("✓ ")
    best = browser.run("document.querySelector('#result .headline').firstChild.textContent")
    assert best in LABELS["label2id"]

    choose(browser, "names")
    text = "😀 Ann lives in <i>Rome</i>"
    write(browser, "#fields textarea", text)
    click(browser, "#run")
    wait(browser, "document.querySelector('#result .text')?.textContent.includes('<i>')")
    types = browser.run("[...document.querySelectorAll('#result mark small')].map(x => x.textContent)")
    shown = browser.run("document.querySelector('#result .text').textContent")
    assert types
    for kind in types:
        assert re.fullmatch(r"(PER|LOC) \d+\.\d %", kind)
        shown = shown.replace(kind, "", 1)
    assert shown == text  # shown as text, not as markup, and complete
    marks = browser.run("[...document.querySelectorAll('#result mark')].map(x => x.firstChild.textContent)")
    assert all(mark in text for mark in marks)
    hues = browser.run("[...document.querySelectorAll('#result mark')].map(x => x.className)")
    assert set(zip(types_only(types), hues, strict=True)) <= {("PER", "entity hue-0"), ("LOC", "entity hue-1")}

    click(browser, "#tab-explore")
    wait(browser, "!!document.querySelector('#explorer .model')")  # opens with an example
    write(browser, "#explore-text", "the cat sees a dog")
    browser.run("document.querySelector('#explore-against').value = 'names'")
    browser.run("document.querySelector('#explore-run').click()")
    wait(browser, "document.querySelectorAll('#explorer .model').length === 2")
    shares = "document.querySelector('#explorer .shares').textContent"
    before = browser.run(shares)
    pick = "(box => { box.value = 0; box.dispatchEvent(new Event('change')) })"
    opened = browser.run("document.querySelector('#explorer .model .pickers select').value")
    pick = pick.replace("= 0", "= " + ("1" if opened == "0" else "0"))
    browser.run(f"{pick}(document.querySelector('#explorer .model .pickers select'))")
    assert browser.run(shares) != before
    browser.screenshot(tmp_path / "explorer.png")
    assert (tmp_path / "explorer.png").stat().st_size > 10_000

    painted = "document.querySelector('#explorer .attention canvas').getContext('2d').getImageData(0, 0, 200, 200).data"
    assert browser.run(f"new Set({painted}).size") > 20

    browser.run("document.querySelector('#language').click()")
    assert browser.run("document.querySelector('#explorer figcaption b').textContent") == "注意力"
    assert browser.run("document.querySelector('#run').textContent") == "预测"
    assert browser.run("document.documentElement.lang") == "zh-CN"
    assert browser.errors == []
    assert all(request.startswith((url, "data:")) for request in browser.requests if not request.startswith("about:"))


def choose(browser, name):
    change = f"box.value = {name!r}; box.dispatchEvent(new Event('change'))"
    browser.run(f"(box => {{ {change} }})(document.querySelector('#model'))")


def click(browser, selector):
    browser.run(f"document.querySelector({selector!r}).click()")


def types_only(kinds):
    return [kind.split()[0] for kind in kinds]


def opened(browser, url):
    browser.call("Page.navigate", url=url)
    wait(browser, "document.querySelectorAll('#model option').length === 4")
    browser.run("localStorage.clear()")  # the language of an earlier test
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=url)
    wait(browser, "document.querySelectorAll('#model option').length === 4")
    wait(browser, "document.querySelectorAll('#result .score').length === 3")


def test_a_problem_clears_the_answer_and_uses_the_words_of_the_page(browser, url):
    opened(browser, url)
    write(browser, "#fields textarea", "   ")
    click(browser, "#run")
    assert "“Text” is empty" in wait(browser, "document.querySelector('#status.problem')?.textContent")
    assert browser.run("document.querySelector('#result').textContent") == ""
    write(browser, "#fields textarea", "a" * 100_001)
    click(browser, "#run")
    wait(browser, "!document.querySelector('#status').textContent.includes('empty')")
    said = wait(browser, "document.querySelector('#status.problem')?.textContent")
    assert said == "“Text” has 100001 characters; at most 100000"
    choose(browser, "words")
    write(browser, "#fields textarea", "no mask")
    click(browser, "#run")
    assert "has no [MASK]" in wait(browser, "document.querySelector('#status.problem')?.textContent")


def test_a_filled_word_stands_in_the_sentence(browser, url):
    opened(browser, url)
    choose(browser, "words")
    text = "The  cat [MASK] a dog ."
    write(browser, "#fields textarea", text)
    click(browser, "#run")
    wait(browser, "document.querySelector('#result .text')?.textContent.includes('  cat')")
    word = browser.run("document.querySelector('.candidate span').textContent")
    assert browser.run("document.querySelector('#result .text').textContent") == text.replace("[MASK]", word)
    click(browser, ".candidate:nth-of-type(2)")
    other = browser.run("document.querySelectorAll('.candidate')[1].querySelector('span').textContent")
    assert browser.run("document.querySelector('#result .text').textContent") == text.replace("[MASK]", other) != word


def test_pairs_and_examples(browser, url):
    opened(browser, url)
    choose(browser, "nli")
    wait(browser, "document.querySelectorAll('#fields textarea').length === 2")
    wait(browser, "document.querySelector('#result pre').textContent.includes('pair')")
    for name in ("mood", "names", "words", "nli"):
        choose(browser, name)
        assert browser.run("document.querySelectorAll('#examples button').length") > 1
    click(browser, "#examples button:last-of-type")
    last = browser.run("document.querySelector('#fields textarea').value")
    wait(browser, f"document.querySelector('#result pre').textContent.includes({last!r})")


def test_a_phone_sees_it_whole(browser, url):
    browser.size(380, 800)
    browser.call("Page.navigate", url=url)
    wait(browser, "document.querySelectorAll('#model option').length === 4")
    assert browser.run("document.documentElement.scrollWidth") <= 380
    click(browser, "#tab-explore")
    wait(browser, "!!document.querySelector('#explorer .model')")
    assert browser.run("document.documentElement.scrollWidth") <= 380
    assert browser.errors == []


def test_the_example_and_the_model_follow_the_language(browser):
    models = [
        ServedModel(name, MaskFiller(material.model("MaskedLM"), word_tokenizer([*UNIT.findall(sample), *",.，。"])))
        for name, sample in SAMPLES.items()
    ]
    assert [model.languages for model in models] == [["en"], ["zh"]]
    with running(models) as port:
        browser.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
        wait(browser, "document.querySelectorAll('#result .score').length")
        click(browser, "#tab-explore")
        wait(browser, "document.querySelector('#explorer h2')?.textContent === 'en'")
        click(browser, "#language")
        wait(browser, "document.querySelector('#explorer h2')?.textContent === 'zh'")
        wait(browser, "document.querySelector('#result .text').textContent.includes('北京')")
        assert browser.run("document.querySelector('#model').value") == "zh"
        click(browser, "#tab-try")
        write(browser, "#fields textarea", "我们看[MASK]影")
        click(browser, "#language")  # a text of the user's own stays, and so does its model
        assert browser.run("document.querySelector('#model').value") == "zh"
        assert browser.run("document.querySelector('#fields textarea').value") == "我们看[MASK]影"
        assert browser.errors == []


def docs_of(browser, url):
    browser.call("Page.navigate", url=f"{url}docs")
    return wait(browser, "document.querySelectorAll('.operation').length")


def test_the_api_page_needs_nothing_from_other_servers(browser, url):
    browser.requests.clear()
    browser.errors.clear()
    assert docs_of(browser, url) == 7  # /classify, /ner, /fill, /explain, /models, /health, /ready
    operation = "document.querySelector('.operation')"
    assert browser.run(f"{operation}.querySelector('h2').textContent") == "POST /classify"
    names = browser.run(f"[...{operation}.querySelectorAll('td:first-child')].map(cell => cell.textContent)")
    assert names[:4] == ["inputs", "inputs[].text", "inputs[].pair", "model"]
    browser.run(f"{operation}.querySelector('button').click()")
    shown = wait(browser, f"{operation}.querySelector('pre:last-child:not([hidden])')?.textContent")
    assert shown.startswith("200\n")
    assert '"labels"' in shown
    assert browser.errors == []
    assert all(request.startswith((url, "data:")) for request in browser.requests if not request.startswith("about:"))


def test_pages_with_an_api_key(browser):
    """The browser asks for the key as a password, then sends it with every request of the page."""
    model = ServedModel(
        "mood", TextClassifier(material.model("SequenceClassification", **LABELS), material.tokenizer())
    )
    with running([model], access=Access("secret")) as port:
        browser.errors.clear()
        browser.call("Page.navigate", url=f"http://user:secret@127.0.0.1:{port}/models")  # as if typed in its dialog
        wait(browser, "document.body?.textContent.includes('mood')")
        browser.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
        wait(browser, "document.querySelectorAll('#model option').length === 1")
        browser.run("document.querySelector('#run').click()")
        assert wait(browser, "document.querySelectorAll('#result .score').length") == 3
        assert docs_of(browser, f"http://127.0.0.1:{port}/")
        assert browser.errors == []
