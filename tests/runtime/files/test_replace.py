"""A file or folder is replaced completely or not at all."""

import os
from pathlib import Path

import pytest

from onnx_textgen.files.replace import LONGEST_WRITE_SECONDS, replaced_file, sweep


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replaced_file(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    with replaced_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    with replaced_file(tmp_path / "link") as partial:
        partial.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_text() == "new"


def test_only_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    names = [".file.partial-01234567", ".file.old-01234567", ".file.partial-mine", ".other.partial-01234567", "file"]
    for name in names:
        (tmp_path / name).write_text("")
    sweep(tmp_path / "file", older_than=LONGEST_WRITE_SECONDS)
    assert {path.name for path in tmp_path.iterdir()} == set(names), "a writer may be at it"
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    sweep(tmp_path / "file", older_than=LONGEST_WRITE_SECONDS)
    assert {path.name for path in tmp_path.iterdir()} == set(names[2:])
