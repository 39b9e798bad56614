"""Published size of every benchmark and the files that it is read from (``deberta tasks``), and the leaderboards that
score several tasks together (``deberta benchmark``).

Sizes are examples as we count them: answers for MultiRC, queries for ReCoRD, sentences for tagging. MNLI has a second
dev and test set (mismatched) of about the same size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Published:
    collection: str
    train: int
    dev: int
    test: int
    files: str
    """Files that the reader looks for. Other names and formats that it accepts are in docs/data.md."""


_TSV = "train.tsv, dev.tsv, test.tsv"
_JSONL = "train.jsonl, val.jsonl, test.jsonl"
_JSON = "train.json, dev.json, test.json"

PUBLISHED: dict[str, Published] = {
    "cola": Published("GLUE", 8_551, 1_043, 1_063, f"CoLA: {_TSV}"),
    "sst2": Published("GLUE", 67_349, 872, 1_821, f"SST-2: {_TSV}"),
    "mrpc": Published("GLUE", 3_668, 408, 1_725, f"MRPC: {_TSV}"),
    "stsb": Published("GLUE", 5_749, 1_500, 1_379, f"STS-B: {_TSV}"),
    "qqp": Published("GLUE", 363_846, 40_430, 390_965, f"QQP: {_TSV}"),
    "mnli": Published("GLUE", 392_702, 9_815, 9_796, "MNLI: train.tsv, dev_matched.tsv, test_matched.tsv, ..."),
    "qnli": Published("GLUE", 104_743, 5_463, 5_463, f"QNLI: {_TSV}"),
    "rte": Published("GLUE", 2_490, 277, 3_000, f"RTE: {_TSV}"),
    "wnli": Published("GLUE", 635, 71, 146, f"WNLI: {_TSV}"),
    "ax": Published("GLUE", 0, 0, 1_104, "diagnostic: diagnostic.tsv"),
    "boolq": Published("SuperGLUE", 9_427, 3_270, 3_245, f"BoolQ: {_JSONL}"),
    "cb": Published("SuperGLUE", 250, 56, 250, f"CB: {_JSONL}"),
    "copa": Published("SuperGLUE", 400, 100, 500, f"COPA: {_JSONL}"),
    "multirc": Published("SuperGLUE", 27_243, 4_848, 9_693, f"MultiRC: {_JSONL}"),
    "record": Published("SuperGLUE", 100_730, 10_000, 10_000, f"ReCoRD: {_JSONL}"),
    "superglue-rte": Published("SuperGLUE", 2_490, 277, 3_000, f"RTE: {_JSONL}"),
    "wic": Published("SuperGLUE", 5_428, 638, 1_400, f"WiC: {_JSONL}"),
    "wsc": Published("SuperGLUE", 554, 104, 146, f"WSC: {_JSONL}"),
    "ax-b": Published("SuperGLUE", 0, 0, 1_104, "AX-b: AX-b.jsonl"),
    "ax-g": Published("SuperGLUE", 0, 0, 356, "AX-g: AX-g.jsonl"),
    "squad": Published("SQuAD", 87_599, 10_570, 0, "train-v1.1.json, dev-v1.1.json"),
    "squad2": Published("SQuAD", 130_319, 11_873, 0, "train-v2.0.json, dev-v2.0.json"),
    "race": Published("RACE", 87_866, 4_887, 4_934, "train/high/*.txt, train/middle/*.txt, dev/..., test/..."),
    "swag": Published("SWAG", 73_546, 20_006, 20_005, "train.csv, val.csv, test.csv"),
    "conll2003": Published("CoNLL", 14_041, 3_250, 3_453, "eng.train, eng.testa, eng.testb"),
    "wnut17": Published("WNUT", 3_394, 1_009, 1_287, "train.conll, dev.conll, test.conll (any CoNLL file)"),
    "tnews": Published("CLUE", 53_360, 10_000, 10_000, f"tnews: {_JSON}"),
    "afqmc": Published("CLUE", 34_334, 4_316, 3_861, f"afqmc: {_JSON}"),
    "ocnli": Published("CLUE", 50_437, 2_950, 3_000, f"ocnli: {_JSON}"),
    "cluener": Published("CLUE", 10_748, 1_343, 1_345, f"cluener: {_JSON}"),
    "cmrc2018": Published("CLUE", 10_142, 3_219, 2_000, "cmrc2018: cmrc2018_train.json, cmrc2018_dev.json, ..."),
    "chnsenticorp": Published("ChnSentiCorp", 9_600, 1_200, 1_200, f"chnsenticorp: {_TSV}"),
}


@dataclass(frozen=True)
class Suite:
    """A leaderboard over several tasks."""

    title: str
    tasks: tuple[str, ...]
    """In the order of training. The score of the suite is the mean of their scores."""
    starts: Mapping[str, str] = field(default_factory=dict)
    """Task -> task whose model it starts from, as in the paper: RTE, MRPC and STS-B start from MNLI."""
    diagnostics: Mapping[str, str] = field(default_factory=dict)
    """Test set without training data -> task whose model predicts it."""
    extra: tuple[str, ...] = ()
    """Tasks that are trained with the suite but are not part of the leaderboard."""


SUITES: dict[str, Suite] = {
    "glue": Suite(
        "GLUE",
        ("mnli", "cola", "sst2", "mrpc", "stsb", "qqp", "qnli", "rte", "wnli"),
        starts={"rte": "mnli", "mrpc": "mnli", "stsb": "mnli"},
        diagnostics={"ax": "mnli"},
    ),
    "superglue": Suite(
        "SuperGLUE",
        ("boolq", "cb", "copa", "multirc", "record", "superglue-rte", "wic", "wsc"),
        starts={"superglue-rte": "mnli", "cb": "mnli"},
        diagnostics={"ax-b": "superglue-rte", "ax-g": "superglue-rte"},
    ),
    "clue": Suite("CLUE", ("tnews", "afqmc", "ocnli", "cluener", "cmrc2018"), extra=("chnsenticorp",)),
}
