"""Checks on every benchmark."""

import pytest

from debertakit.tasks.listing import PUBLISHED, SUITES
from debertakit.tasks.suites import BENCHMARKS, task
from tests.material import jsonl


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_test_set_has_a_file_to_be_written_to(name):
    assert task(name).write is not None
    assert task(name).files["test"]


def test_every_benchmark_is_listed_with_its_size():
    assert set(PUBLISHED) == set(BENCHMARKS)
    for name, found in PUBLISHED.items():
        assert found.test or found.dev, name
        assert bool(found.train) == bool(found.dev)


def test_suites_are_made_of_known_tasks():
    for suite in SUITES.values():
        assert {*suite.tasks, *suite.extra, *suite.starts, *suite.diagnostics} <= set(BENCHMARKS)
        assert {*suite.starts.values(), *suite.diagnostics.values()} <= set(BENCHMARKS)
        order = list(suite.tasks)
        assert all(order.index(b) < order.index(a) for a, b in suite.starts.items() if b in order)


def test_diagnostic_sets_keep_their_labels_and_pairs(tmp_path):
    rows = [
        {"idx": i, "premise": "p", "hypothesis": f"h{i}", "label": label, "pair_id": i // 2}
        for i, label in enumerate(("entailment", "entailment", "not_entailment", "entailment"))
    ]
    jsonl(tmp_path / "AX-g" / "AX-g.jsonl", rows)
    found = task("ax-g").read(tmp_path)
    assert list(found) == ["test"]  # not taken for a dev set, although it has labels
    assert [e.group for e in found["test"]] == ["0", "0", "1", "1"]
    scores = task("ax-g").score(found["test"], ["entailment", "not_entailment", "entailment", "entailment"])
    assert scores == {"accuracy": 50.0, "parity": 50.0}
