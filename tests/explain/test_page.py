"""The page: its content, escaping of texts, and behaviour in a real browser."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import transformers
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.explain.page import page_data, page_html, write_page
from debertakit.explain.parts import Anatomy, Subject, centred, profile, shares, striking, take_apart
from debertakit.heads import DebertaForSequenceClassification
from debertakit.model import DebertaModel
from tests.explain.material import TEXT, random_anatomy
from tests.models import randomise, small

NASTY = "</script><script>alert(1)</script><!-- & 😀 注意力 /*style*/ \u2028 \" ' $& $`"


def unpacked(compact, shape):
    steps = np.frombuffer(base64.b64decode(compact["bytes"]), np.uint8).reshape(len(compact["low"]), -1)
    values = np.array(compact["low"])[:, None] + np.array(compact["step"])[:, None] * steps
    return values.reshape(shape)


def test_data_holds_the_matrices_to_a_byte():
    text = random_anatomy()
    (model,) = page_data([[text]])["models"]
    assert (model["name"], model["layers"], model["heads"], model["parts"]) == ("random", 2, 3, ["c2c", "c2p", "p2c"])
    (data,) = model["texts"]
    span = text.attention.max() - text.attention.min()
    np.testing.assert_allclose(unpacked(data["matrices"]["attention"], (2, 3, 7, 7)), text.attention, atol=span / 500)
    part = centred(text.parts["p2c"])
    np.testing.assert_allclose(unpacked(data["matrices"]["p2c"], (2, 3, 7, 7)), part, atol=np.ptp(part) / 500)
    by_distance = unpacked(data["profile"]["attention"], (2, 3, 13))
    np.testing.assert_allclose(by_distance, profile(text).attention, atol=1e-2)
    np.testing.assert_allclose(data["shares"]["c2c"], shares([text]).content, atol=1e-4)


def test_no_text_breaks_out_of_its_data():
    text = random_anatomy()
    text = Anatomy(NASTY, [NASTY, *text.tokens[1:]], text.attention, text.parts)
    html = page_html(page_data([[text]]))

    class Scripts(HTMLParser):
        def __init__(self):
            super().__init__()
            self.found = []

        def handle_starttag(self, tag, attributes):
            if tag == "script":
                self.found.append([dict(attributes), ""])

        def handle_data(self, data):
            if self.found and self.get_starttag_text().startswith("<script"):
                self.found[-1][1] += data

    parser = Scripts()
    parser.feed(html)
    kinds = [attributes.get("type") for attributes, _ in parser.found]
    assert kinds == [None, "application/json", None]
    model = json.loads(parser.found[1][1])["models"][0]
    assert model["name"] == model["texts"][0]["tokens"][0] == NASTY


def test_nothing_is_fetched():
    html = page_html(page_data([[random_anatomy()]]))
    html = html.split("explorer-data")[0].replace('"http://www.w3.org/2000/svg"', "")  # a name, not an address
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(|XMLHttp|https?://", html)


def test_too_large_for_a_page():
    text = random_anatomy()
    wide = np.broadcast_to(np.float32(0), (24, 16, 400, 400))
    with pytest.raises(ValueError, match="too many for a page"):
        page_data([[Anatomy("large", ["t"] * 400, wide, {})], [text]])


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    root = tmp_path_factory.mktemp("models")
    randomise(DebertaForSequenceClassification(small())).save_pretrained(root / "deberta")
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    transformers.RobertaModel(transformers.RobertaConfig(vocab_size=50, **shape)).save_pretrained(root / "roberta")
    for name in ("deberta", "roberta"):
        tokenizer.save_pretrained(root / name)
    return root


def test_the_command(folders, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("captum")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a new store\nbeside the mall\n", encoding="utf-8")
    options = ["--model", str(folders / "deberta"), "--against", str(folders / "roberta")]
    files = {name: tmp_path / name for name in ("page.html", "figure.png", "shares.png")}
    options += ["--out", str(files["page.html"]), "--png", str(files["figure.png"])]
    options += ["--shares", str(files["shares.png"]), "--corpus", str(corpus), "--attribution"]
    run = CliRunner().invoke(app, ["explain", TEXT, *options])
    assert run.exit_code == 0, run.output
    assert "position" in run.output
    assert "over 2 texts" not in run.output
    assert "store" in run.output  # a line of the attribution
    assert files["page.html"].read_text(encoding="utf-8").startswith("<!doctype html>")
    for name in ("figure.png", "shares.png"):
        assert files[name].read_bytes().startswith(b"\x89PNG")
    assert "mall" in run.output.split("sum to")[1]  # of the text, not of the corpus
    assert run.output.count("sum to") == 1
    refused = CliRunner().invoke(app, ["explain", TEXT, "--model", str(folders / "deberta")])
    assert "choose an output" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([TEXT, "--out", "x.html", "--corpus", "c.txt"], "--corpus with --out takes no texts"),
        ([TEXT, "--out", "x.html", "--png", "x.png", "--corpus", "c.txt"], "--corpus is only for --shares, or"),
        ([TEXT, "--shares", "x.png", "--pair", TEXT], "--pair is only for --out, --png, --attribution"),
        ([TEXT, "--shares", "x.png", "--against", "other"], "--against is only for --out, --png"),
        ([TEXT, "--attribution", "--against", "other"], "--against is only for --out, --png"),
        ([TEXT, "--shares", "x.png", "--corpus", "c.txt"], "--shares needs either texts or --corpus FILE"),
        ([TEXT, TEXT, "--png", "x.png"], "--png draws one text, not 2"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments, said, folders, monkeypatch):
    monkeypatch.setattr(Subject, "load", lambda name: pytest.fail("it began to load"))
    refused = CliRunner().invoke(app, ["explain", "--model", str(folders / "deberta"), *arguments])
    assert isinstance(refused.exception, ValueError)
    assert said in str(refused.exception)


def test_a_page_that_is_too_large_is_refused_before_it_is_computed(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("debertakit.explain.page.LARGEST", 1000)
    monkeypatch.setattr("debertakit.explain.outputs.look", lambda *given: pytest.fail("it began to compute"))
    arguments = ["--model", str(folders / "deberta"), "--out", str(tmp_path / "page.html")]
    refused = CliRunner().invoke(app, ["explain", TEXT, *arguments])
    assert "1,600 cells are too many for a page" in str(refused.exception)  # 2 layers, 2 heads, 10 tokens, 4 matrices


def test_a_model_whose_positions_end_is_one_line(folders, tmp_path):
    arguments = ["--model", str(folders / "deberta"), "--against", str(folders / "roberta")]
    refused = CliRunner().invoke(app, ["explain", "new " * 600, *arguments, "--out", str(tmp_path / "page.html")])
    assert isinstance(refused.exception, ValueError)
    assert "roberta reads at most" in str(refused.exception)


@pytest.mark.slow
def test_in_a_real_browser(browser, tmp_path, tokenizer):
    deberta = Subject("deberta", randomise(DebertaModel(small())), tokenizer)
    texts = [take_apart(deberta, TEXT), take_apart(deberta, "the store")]
    plain = [Anatomy("plain " + NASTY, text.tokens, text.attention, {}) for text in texts]
    write_page([texts, plain], tmp_path / "page.html")
    browser.size(1200, 2000)
    browser.open(tmp_path / "page.html")

    def column(script):
        return browser.run(f"(() => {{ const m = document.querySelector('.model'); return {script} }})()")

    assert browser.run("document.querySelectorAll('.model').length") == 2
    assert browser.run("document.querySelectorAll('h2')[1].textContent") == "plain " + NASTY
    content = shares([texts[0]]).content

    # It opens on a striking head, with the selected cell in words.
    layer, head, query, key = striking(texts[0])
    assert column("[...m.querySelectorAll('.pickers select')].map(x => Number(x.value))") == [layer, head]
    assert column("m.querySelector('.shares').textContent") == told(content[layer, head], "content", "position")
    readout = column("m.querySelector('.readout').textContent")
    assert readout.startswith(f"from {texts[0].tokens[query]} to {texts[0].tokens[key]}: ")
    assert re.search(r"%.* c2c .* c2p .* p2c ", readout)

    # Layer and head by the pickers, then one further by the arrow key on the map.
    pick = "(box => { box.value = 0; box.dispatchEvent(new Event('change')) })"
    for picker in (0, 1):
        column(f"{pick}(m.querySelectorAll('.pickers select')[{picker}])")
    assert column("m.querySelector('.shares').textContent") == told(content[0, 0], "content", "position")
    column("m.querySelector('.map button[aria-pressed=true]').focus()")
    browser.press("ArrowRight")
    assert column("m.querySelectorAll('.pickers select')[1].value") == "1"
    assert column("m.querySelector('.shares').textContent") == told(content[0, 1], "content", "position")

    # Select a token: the table shows its row.
    column("m.querySelectorAll('.tokens button')[3].focus()")
    row = texts[0].attention[0, 1, 3]
    assert column("m.querySelector('caption').textContent") == "store attends to"
    assert column("m.querySelector('tbody th').textContent") == texts[0].tokens[row.argmax()]
    assert float(column("m.querySelector('tbody td').textContent").split()[0]) == pytest.approx(
        100 * row.max(), abs=0.3
    )

    # The matrix: painted, and read under the pointer and by the keyboard.
    box = column("(({left, top, width}) => [left, top, width])(m.querySelector('.c2c canvas').getBoundingClientRect())")
    left, top, width = box
    browser.point(left + width * 0.55, top + width * 0.25)  # column 5, row 2 of 10
    label = column("m.querySelector('.c2c canvas').getAttribute('aria-label')")
    value = centred(texts[0].parts["c2c"])[0, 1, 2, 5]
    assert label.startswith("Content to content (c2c). from new to beside: ")
    assert float(label.rsplit(" ", 1)[1]) == pytest.approx(value, abs=0.05)
    column("m.querySelector('.c2c canvas').focus()")
    browser.press("ArrowDown")
    assert "from store to beside" in column("m.querySelector('.c2c canvas').getAttribute('aria-label')")
    assert column("m.querySelector('.tip').textContent").startswith("new → beside")
    colours = column(
        "new Set(m.querySelector('.attention canvas').getContext('2d').getImageData(0, 0, 300, 300).data).size"
    )
    assert colours > 20

    # Thumbnails of all heads and their mean; lines between the tokens; a legend and the picture of the parts.
    assert column("m.querySelectorAll('.thumbs button').length") == 3
    column("m.querySelector('.thumbs button').click()")
    assert column("m.querySelectorAll('.pickers select')[1].selectedOptions[0].textContent") == "mean"
    mean = texts[0].attention[0].mean(0)[3, 5]
    assert float(column("m.querySelector('.readout').textContent").split(": ")[1].split()[0]) == pytest.approx(
        100 * mean, abs=0.3
    )
    column("m.querySelectorAll('.views button')[1].click()")
    assert column("m.querySelector('.attention').hidden && !m.querySelector('.lines').hidden")
    assert column("m.querySelectorAll('.lines line').length") == (texts[0].attention[0].mean(0) >= 0.03).sum()
    assert column("m.querySelectorAll('.legend').length") == 3
    assert column("m.querySelector('.idea') === null")  # two models: once for both
    assert browser.run("[...document.querySelectorAll('.idea text')].map(x => x.textContent).includes('c2p')")
    column(f"{pick.replace('= 0', '= 1')}(m.querySelectorAll('.pickers select')[1])")

    # Another text, then the other language; layer and head stay.
    browser.run(f"{pick.replace('= 0', '= 1')}(document.querySelector('main > .pickers select'))")
    assert column("m.querySelectorAll('.tokens button').length") == 4
    browser.run("document.querySelector('.language').click()")
    assert browser.run("document.documentElement.lang") == "zh"
    assert browser.run("document.querySelector('h1').textContent") == "注意力浏览器"
    content = shares([texts[1]]).content
    assert column("m.querySelector('.shares').textContent") == told(content[0, 1], "内容", "位置")

    # On a desktop the matrix is on the left, and everything else on the right. On a phone nothing sticks out.
    left = (
        "m.querySelector('.main').getBoundingClientRect().right < m.querySelector('.side').getBoundingClientRect().left"
    )
    assert not column(left)  # two models: one column each
    browser.open(one_model(texts, tmp_path / "one.html"))
    browser.size(1440, 900)
    assert column(left)
    assert browser.run("document.querySelector('.side').getBoundingClientRect().bottom") <= 900
    browser.size(360, 740)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    browser.screenshot(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 10_000
    assert browser.errors == []
    assert browser.requests == [(tmp_path / name).as_uri() for name in ("page.html", "one.html")]


def one_model(texts, file):
    write_page([texts[:1]], file)
    return file


def test_a_striking_head_looks_at_one_other_token_because_of_its_place():
    attention = np.full((2, 2, 4, 4), 0.25)
    attention[1, 0] = np.eye(4, k=1) + 0.01  # the next token
    attention[0, 0] = np.eye(4) + 0.01  # the token itself
    attention[0, 1, :, 0] = 0.99  # [CLS]
    plain = Anatomy("plain", list("sabc"), attention, {}, special=(0,))
    assert striking(plain)[:2] == (1, 0)
    position = np.zeros_like(attention)
    position[1, 1] = np.arange(4)
    content = np.zeros_like(attention)
    content[1, 0] = np.arange(4)
    parts = Anatomy("parts", list("sabc"), attention, {"c2c": content, "c2p": position}, special=(0,))
    assert striking(parts)[:2] == (1, 1)  # the only head in which position counts


def test_truncation_is_reported(browser, tmp_path, tokenizer):
    deberta = Subject("deberta", randomise(DebertaModel(small())), tokenizer)
    write_page([[take_apart(deberta, TEXT, longest=6)]], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    said = browser.run("document.querySelector('.warning').textContent")
    assert said == "The text has 10 tokens. The first 6 are shown."


def told(content, content_word, position_word):
    def percent(share):  # JavaScript rounds halves up
        return f"{int(np.floor(100 * share + 0.5))} %"

    content = float(np.round(content, 4))
    return f"{content_word} {percent(content)} · {position_word} {percent(1 - content)}"
