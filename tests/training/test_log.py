"""log.jsonl: damaged lines cost only themselves."""

import json

import pytest

from debertakit.training.log import Log, read


def test_damaged_lines_are_named_and_skipped(tmp_path, capsys):
    lines = [json.dumps({"kind": "train", "step": step, "loss": 1.0}) for step in (1, 2, 3)]
    deep = "[" * 100_000
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([lines[0], "garb\x00age", lines[1], '{"kind": "train"}', deep, lines[2], '{"kind": "tr']))
    assert [record["step"] for record in read(path)] == [1, 2, 3]
    named = capsys.readouterr().err.splitlines()
    assert named == [f"{path}, line {number}: damaged; the line is skipped" for number in (2, 4, 5)]
    Log(tmp_path, "none", 3, "steps", since=2).close()
    assert path.read_text() == "".join(line + "\n" for line in lines[:2])


def test_a_full_disk_is_named(tmp_path):
    log = Log(tmp_path, "none", 3, "steps", since=0)
    log.file.close()
    log.file = open("/dev/full", "a")  # noqa: SIM115
    with pytest.raises(OSError, match=r"cannot write .*log\.jsonl: .*No space left on device.*--resume"):
        log.write("train", 1, loss=1.0)
    log.close()
