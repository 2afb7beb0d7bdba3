"""A model folder appears whole or not at all, and never in the place of something else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_textgen.artifact import find_package
from onnx_textgen_export import ExportError
from onnx_textgen_export.folder import new_folder


def fill(target: Path, *, force: bool = False) -> None:
    with new_folder(target, force=force) as folder:
        for path in find_package().iterdir():
            shutil.copy(path, folder)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_failure_leaves_nothing_not_even_the_parent_folders(tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), new_folder(tmp_path / "a" / "b" / "package") as folder:
            (folder / "model.onnx").write_text("half")
            raise error
    assert names(tmp_path) == []


def test_what_looks_like_a_manifest_but_is_none_is_kept_even_with_force(tmp_path: Path) -> None:
    extension = tmp_path / "extension"
    extension.mkdir()
    (extension / "manifest.json").write_text('{"manifest_version": 3}')
    with pytest.raises(ExportError, match="is no model folder"):
        fill(extension, force=True)
    fill(tmp_path / "package")
    (tmp_path / "package" / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="is no model folder"):
        fill(tmp_path / "package", force=True)
    assert (tmp_path / "package" / "notes.txt").read_text() == "mine"


def test_the_old_package_comes_back_when_the_new_one_cannot_take_its_place(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "package"
    fill(target)
    before, rename = names(tmp_path), Path.rename

    def failing(self: Path, other: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(28, "No space left on device")
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ExportError, match="No space left on device"):
        fill(target, force=True)
    assert names(tmp_path) == before


def test_a_link_stays_a_link_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", force=True)
    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


def test_leftovers_of_killed_exports_are_cleared_and_those_of_running_ones_kept(tmp_path: Path) -> None:
    dead, alive = dead_process(), os.getpid()
    for process in (dead, alive):
        (tmp_path / f".package.partial-{process}-0123abcd").mkdir()
    (tmp_path / f".other.partial-{dead}-0123abcd").mkdir()
    fill(tmp_path / f".package.old-{dead}-0123abcd")
    with pytest.raises(ExportError, match="exists already"):
        fill(tmp_path / "package")  # the old one came back first
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".other.partial-{dead}-0123abcd",
        f".package.partial-{alive}-0123abcd",
        "package",
    ]


def test_a_parent_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot write"):
        fill(tmp_path / "file" / "deeper" / "package")
