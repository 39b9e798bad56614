"""Checks on every benchmark."""

import pytest

from debertakit.tasks.suites import BENCHMARKS


@pytest.mark.parametrize("task", BENCHMARKS.values(), ids=lambda task: task.name)
def test_the_test_set_has_a_file_to_be_written_to(task):
    assert task.write is not None
    assert task.files["test"]
