import csv

import numpy as np
import pytest

from debertakit.demo import documentation


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Parsing the standard library takes seconds."""
    found = list(documentation.docstrings())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documentation, "docstrings", lambda: iter(found))
        yield


@pytest.mark.slow
def test_the_text_is_pythons_own_and_has_documents():
    texts = list(documentation.python_documentation())
    assert len(texts) > 200
    assert any("with statement" in text or "`with`" in text for text in texts)
    assert np.median([len(text) for text in texts]) > 300


@pytest.mark.slow
def test_the_task_has_every_package_and_no_text_names_its_package(tmp_path):
    texts = documentation.write_task(tmp_path / "task.csv")
    with (tmp_path / "task.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == texts
    assert {row["package"] for row in rows} == set(documentation.PACKAGES)
    assert not [row for row in rows if row["package"] in row["text"].casefold()]
