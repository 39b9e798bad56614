import errno
import hashlib

import pytest

from debertakit import files
from debertakit.files import file_hash, replacing, write_json, write_text


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "run.json"
    write_text(path, "old")

    def interrupted():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    write_json(path, {"text": "新"})
    assert path.read_text(encoding="utf-8") == '{\n "text": "新"\n}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_folder_replaces_a_folder_and_what_an_earlier_attempt_left(tmp_path):
    path = tmp_path / "tokenizer"
    for folder, name in ((path, "old"), (tmp_path / "tokenizer.part", "left over")):
        folder.mkdir()
        (folder / name).touch()
    with replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
    assert [file.name for file in path.iterdir()] == ["new"]
    assert [folder.name for folder in tmp_path.iterdir()] == ["tokenizer"]


def test_hashes_are_those_of_the_standard_library(tmp_path):
    content = bytes(range(256)) * 5000  # more than one block
    (tmp_path / "file").write_bytes(content)
    assert file_hash(tmp_path / "file", "sha256") == hashlib.sha256(content).hexdigest()
    assert file_hash(tmp_path / "file", "blake2b") == hashlib.blake2b(content, digest_size=16).hexdigest()


def test_the_old_folder_is_deleted_only_after_the_new_one_is_there(tmp_path, monkeypatch):
    path = tmp_path / "final"
    remove = files.remove

    def check(target):
        if target.exists():
            assert (path / "file").read_text() == "new"
        remove(target)

    for content in ("old", "new"):
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / "file").write_text(content)
            monkeypatch.setattr(files, "remove", check)
        monkeypatch.undo()
    assert [folder.name for folder in tmp_path.iterdir()] == ["final"]


def test_an_error_of_write_names_the_file(tmp_path):
    def full():
        with replacing(tmp_path / "run.json"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: .*run\.json\.part"):
        full()
