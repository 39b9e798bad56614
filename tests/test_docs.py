"""Run the code of README and docs: Python blocks and cheap commands are executed, all other commands are parsed.

A page runs from top to bottom in one namespace, in a folder with tiny models and files under the names that the pages
use. `<!-- not run: reason -->` above a block excludes it.
"""

import csv
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import debertakit
from debertakit.cli import app
from tests import tiny
from tests.commands import check
from tests.finetuning.pairs import make_pairs
from tests.generation.material import translator, writer
from tests.material import lines, tsv
from tests.pretraining.material import text as documents

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ +)*(deberta|make|pip|torchrun) .*")
COMMANDS = re.compile(r"^ *" + COMMAND.pattern, re.MULTILINE)
# Subcommands that a page executes. The others train for minutes, serve, or name folders that do not exist.
EXECUTED = {
    "README.md": ("models", "recipes"),
    "docs/explain.md": ("explain",),
    "docs/generation.md": ("fill", "generate"),
    "docs/inference.md": ("predict",),
    "docs/onnx.md": ("export",),
    "docs/tutorial.md": ("finetune", "predict", "evaluate"),
    "docs/tutorial.zh.md": ("finetune", "predict", "evaluate"),
}


@dataclass(frozen=True)
class Block:
    line: int
    language: str  # "python" or "sh"
    text: str
    reason: str  # why it is not run; empty: it is run

    def commands(self) -> list[list[str]]:
        """Words of each command, without comments and environment variables."""
        found = []
        for row in self.text.replace("\\\n", " ").splitlines():
            if COMMAND.fullmatch(row):
                words = shlex.split(row, comments=True)
                found.append(words[[not re.match(r"[A-Z_]+=", word) for word in words].index(True) :])
        return found


def blocks(page: Path) -> list[Block]:
    """Fenced blocks in Python or shell, and indented blocks that start with a command."""
    pattern = (
        r"(?:<!-- not run: (?P<reason>.+?) -->\n+)?"
        r"(?:^```(?P<language>\w+)\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?:    [^\n]*\n|\n(?=    ))+))"
    )
    found = []
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        if match["indented"]:
            code = re.sub(r"^    ", "", match["indented"], flags=re.MULTILINE)
            if any(COMMAND.fullmatch(row) for row in code.splitlines()):
                found.append(Block(line, "sh", code, match["reason"] or ""))
        elif match["language"] in ("python", "sh", "bash", "console"):
            language = "python" if match["language"] == "python" else "sh"
            found.append(Block(line, language, match["fenced"], match["reason"] or ""))
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_block_is_found(capsys):
    found = {name(page): blocks(page) for page in PAGES}
    every = [block for page in found.values() for block in page]
    run = [block for block in every if not block.reason]
    code, commands = sum(block.language == "python" for block in run), sum(len(block.commands()) for block in run)
    with capsys.disabled():
        print(f"\ndocs: {code} Python blocks run, {commands} commands checked, {len(every) - len(run)} blocks not run")
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum(block.language == "python" for block in every) == sum(page.count("```python\n") for page in pages) > 0
    assert sum(len(block.commands()) for block in every) == sum(len(COMMANDS.findall(page)) for page in pages) > 0
    assert not set(EXECUTED) - set(found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist_with_their_options(page):
    for block in blocks(page):
        if block.language == "sh" and not block.reason:
            for words in block.commands():
                check(words)


@pytest.mark.parametrize(
    "command",
    [
        "deberta fnord",
        "deberta fill --fnord",
        "deberta finetune ... --fnord",
        "deberta export onnx",
        "torchrun --nproc-per-node 8 -m debertakit.cli pretrain tiny --fnord",
        "make fnord",
        "pip install '.[fnord]'",
    ],
)
def test_wrong_commands_are_found(command):
    with pytest.raises(AssertionError):
        check(shlex.split(command))


def make_models() -> None:
    for folder in ("microsoft/deberta-base", "microsoft/deberta-v3-small", "my-deberta", "模型", *BUNDLED):
        tiny.deberta(Path(folder))
    for folder in ("your/deberta-v3-classifier", "my-model", "MODEL", "CLASSIFIER"):
        tiny.with_head(Path(folder), "SequenceClassification")
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    tiny.with_head(
        Path("NLI-MODEL"), "SequenceClassification", id2label=labels, label2id={v: k for k, v in labels.items()}
    )
    tiny.with_head(Path("QA-MODEL"), "QuestionAnswering", num_labels=2)
    tiny.with_head(Path("my-reranker"), "SequenceClassification", num_labels=1)
    tiny.bert(Path("roberta-base"))
    for folder, model in {"mt": writer, "en-de": translator}.items():
        model(vocab_size=len(tiny.tokenizer())).save_pretrained(folder)
        tiny.tokenizer().save_pretrained(folder)


def make_files() -> None:
    texts = [text.text for text in tiny.sentences(12)]
    columns = {"text": ("review", "a", "内容"), "label": ("stars", "y", "标签")}
    for file, seed in {"train": 1, "dev": 2, "new": 3, "reviews": 4, "训练": 1, "验证": 2}.items():
        rows = [[row.text] * 3 + [row.label] * 3 for row in tiny.sentences(12, seed)]
        with open(f"{file}.csv", "w", encoding="utf-8", newline="") as opened:
            csv.writer(opened).writerows([[*columns["text"], *columns["label"]], *rows])
    for file in ("texts.txt", "prompts.txt"):
        lines(Path(file), *texts)
    Path("text.txt").write_text(documents(60), encoding="utf-8")
    for split in ("train", "test"):
        for language, side in zip(("en", "de"), zip(*make_pairs(20), strict=True), strict=True):
            lines(Path(f"{split}.{language}"), *side)
    for split in ("train", "dev", "test"):
        rows = [(i, text, "it was", ("entailment", "not_entailment")[i % 2]) for i, text in enumerate(texts)]
        head = ("index", "sentence1", "sentence2", "label")
        cut = 3 if split == "test" else 4
        tsv(Path("glue_data/RTE") / f"{split}.tsv", head[:cut], *(row[:cut] for row in rows))


def make_runs(page: str) -> None:
    """Train the runs that a page takes for granted."""
    if page == "docs/data.md":
        debertakit.finetune("my-deberta", "run", task="rte", data="glue_data", epochs=1)
    if page == "docs/finetuning.md":
        data = {"train": "train.csv", "dev": "dev.csv", "text": "a", "label": "y"}
        debertakit.finetune("my-deberta", "other-run", **data, epochs=1)


BUNDLED = ("models/en-small", "models/zh-small")
TRAINING = (
    "README.md",
    "README.zh.md",
    "docs/api.md",
    "docs/finetuning.md",
    "docs/generation.md",
    "docs/tutorial.md",
    "docs/tutorial.zh.md",
)  # pages whose code trains for seconds
WITH_CODE = [page for page in PAGES if name(page) in EXECUTED or any(b.language == "python" for b in blocks(page))]
MARKED = [pytest.param(page, marks=[pytest.mark.slow] * (name(page) in TRAINING), id=name(page)) for page in WITH_CODE]


@pytest.mark.parametrize("page", MARKED)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    executed = EXECUTED.get(name(page), ())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEBERTAKIT_MODELS", str(tmp_path / "models"))
    make_models()
    make_files()
    make_runs(name(page))
    namespace: dict[str, object] = {}
    for block in blocks(page):
        if block.reason:
            continue
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
        for words in block.commands() if block.language == "sh" else ():
            if words[0] == "deberta" and words[1] in executed and "ray" not in words:  # a cluster takes 20 s to start
                result = CliRunner().invoke(app, words[1:])
                assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}{result.exception}"
