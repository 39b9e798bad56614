"""Options that do not go together are told before a model is loaded."""

from pathlib import Path

import pytest

from debertakit.inference.command import predict

FILES = {"file": Path("in.csv"), "out": Path("out.csv")}


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "give texts, or --file"),
        (["a"], FILES, "give texts, or --file"),
        ([], {"file": Path("in.csv")}, "--file needs --out"),
        ([], {**FILES, "engine": "spark"}, "local or ray"),
        (["a"], {"engine": "ray"}, "--engine ray is for files"),
        ([], {**FILES, "workers": 2}, "--workers belongs to --engine ray"),
    ],
)
def test_options_that_do_not_go_together(texts, options, message):
    with pytest.raises(ValueError, match=message):
        predict("/nowhere/at-all", texts, **options)
