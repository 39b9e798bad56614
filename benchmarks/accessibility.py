"""Check the web page, the explorer, the API page and reports with axe-core, in light and dark, English and Chinese.

    npm pack axe-core && tar xf axe-core-*.tgz
    make bench-accessibility ARGS="package/axe.min.js runs/films/report.html"

Serves models with random weights, opens each page in Chromium, and prints the violations of WCAG 2.2 A and AA and of
axe's best practices. Exits with code 1 if there is one, or an error in the browser's console.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from debertakit.inference.tasks import EntityTagger, MaskFiller, TextClassifier
from debertakit.serving.endpoints import ServedModel
from tests.chromium import Chromium
from tests.inference import material
from tests.serving.running import running

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}


def served() -> list[ServedModel]:
    tokenizer = material.tokenizer()
    tagger = material.model("TokenClassification", num_labels=4, id2label=TAGS)
    classifier = material.model("SequenceClassification", **material.LABELS)
    return [
        ServedModel("mood", TextClassifier(classifier, tokenizer)),
        ServedModel("names", EntityTagger(tagger, tokenizer)),
        ServedModel("words", MaskFiller(material.model("MaskedLM"), tokenizer)),
    ]


def wait(browser: Chromium, script: str) -> None:
    until = time.monotonic() + 60
    while not browser.run(script):
        if time.monotonic() > until:
            raise SystemExit(f"never true: {script}")
        time.sleep(0.1)


def visit(browser: Chromium, url: str, language: str) -> None:
    browser.call("Page.navigate", url="about:blank")  # a new fragment alone would not load the page
    browser.call("Page.navigate", url=url)
    wait(browser, "document.readyState === 'complete' && location.href !== 'about:blank'")
    switch = "document.querySelector('#language, .switch')"
    if browser.run(f"{switch}?.innerText.trim() === {'中文' if language == 'zh' else 'English'!r}"):
        browser.run(f"{switch}.click()")


def violations(browser: Chromium, axe: str) -> list[str]:
    browser.run(axe)
    rules = json.dumps({"runOnly": RULES, "resultTypes": ["violations"]})
    found = browser.run(f"axe.run(document, {rules}).then(r => r.violations)")
    return [f"{rule['id']}: {node['html'][:100]}" for rule in found for node in rule["nodes"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("files", type=Path, nargs="*", help="pages to check as well: reports, explorers")
    options = parser.parse_args()
    axe, checks, total = options.axe.read_text(encoding="utf-8"), 0, 0
    with tempfile.TemporaryDirectory() as profile, running(served()) as port:
        browser, root = Chromium(Path(profile)), f"http://127.0.0.1:{port}/"
        pages = {  # address -> true when the page is complete
            root: "document.querySelectorAll('#result .score').length > 0",
            f"{root}#explore": "!!document.querySelector('#explorer .model')",
            f"{root}docs": "!!document.querySelector('.operation')",
            **{file.resolve().as_uri(): "true" for file in options.files},
        }
        for width, scheme, language in product((1440, 390), ("light", "dark"), ("en", "zh")):
            browser.size(width, 900)
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            for address, complete in pages.items():
                visit(browser, address, language)
                wait(browser, complete)
                found = violations(browser, axe)
                print(
                    f"{len(found)} violations: {width} {scheme} {language} {address}", *found, sep="\n    ", flush=True
                )
                checks, total = checks + 1, total + len(found)
        print(f"{checks} checks, {total} violations, {len(browser.errors)} console errors", *browser.errors, sep="\n")
        browser.close()
    sys.exit(1 if total or browser.errors else 0)


if __name__ == "__main__":
    main()
