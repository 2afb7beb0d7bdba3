"""A model folder appears whole or not at all, and never in the place of something else."""

import errno
import shutil
from pathlib import Path

import pytest

from onnx_textgen.files import replace
from onnx_textgen.package.locate import find_package
from onnx_textgen_export import ExportError
from onnx_textgen_export.package.folder import check_target, is_complete, new_folder


def fill(target: Path, *, force: bool = False) -> None:
    with new_folder(target, force=force) as folder:
        shutil.copytree(find_package(), folder, dirs_exist_ok=True)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


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
    monkeypatch.setattr(replace, "exchange", lambda *_: False)  # as where the system has no such step
    with pytest.raises(ExportError, match="No space left on device"):
        fill(target, force=True)
    assert names(tmp_path) == before


def test_a_link_stays_a_link_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", force=True)
    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


def test_leftovers_of_killed_exports_are_cleared_and_those_of_others_kept(tmp_path: Path) -> None:
    (tmp_path / ".package.partial-0123abcd").mkdir()
    (tmp_path / ".package.partial-123-0123abcd").mkdir()  # as earlier releases named them
    (tmp_path / ".other.partial-0123abcd").mkdir()
    (tmp_path / ".package.lock").touch()
    fill(tmp_path / "package")
    assert names(tmp_path)[0] == ".other.partial-0123abcd"
    assert {path.name for path in tmp_path.iterdir()} == {".other.partial-0123abcd", "package"}


def test_a_folder_that_stepped_aside_comes_back_only_whole(tmp_path: Path) -> None:
    fill(tmp_path / ".package.old-0123abcd")
    with pytest.raises(ExportError, match="exists already"):
        fill(tmp_path / "package")
    assert is_complete(tmp_path / "package")
    (tmp_path / "package").rename(tmp_path / ".package.old-0123abcd")
    (tmp_path / ".package.old-0123abcd" / "onnx" / "model_quantized.onnx_data").unlink()
    fill(tmp_path / "package")
    assert {path.name for path in tmp_path.iterdir()} == {"package"}


def test_a_parent_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot write"):
        fill(tmp_path / "file" / "deeper" / "package")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full (No space left on device); free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full (Disk quota exceeded); free some space"),
        (OSError("4096 requested and 0 written"), "4096 requested and 0 written"),
        (PermissionError(errno.EACCES, "Permission denied", "/elsewhere/weights"), "/elsewhere/weights: Permission denied"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    ],
)
def test_what_the_disk_refuses_is_one_line_and_leaves_nothing(tmp_path: Path, error: OSError, line: str) -> None:
    with pytest.raises(ExportError) as raised, new_folder(tmp_path / "package") as folder:
        (folder / "model.onnx").write_text("half")
        raise error
    assert str(raised.value).startswith(f"cannot write {tmp_path / 'package'}: {line}")
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["exists", "iterdir"])
def test_a_target_that_cannot_be_looked_at_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    fill(tmp_path / "package")
    look = getattr(Path, step)

    def refuse(path: Path) -> object:
        if path == tmp_path / "package" or (step == "exists" and path == tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(Path, step, refuse)
    for look_at in (lambda: check_target(tmp_path / "package", force=True), lambda: fill(tmp_path / "package", force=True)):
        with pytest.raises(ExportError, match=r"cannot write .*package: .*Permission denied"):
            look_at()


def test_a_lock_that_cannot_be_taken_away_is_no_failure_of_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        fill(tmp_path / "package")
    assert is_complete(tmp_path / "package")
    assert {path.name for path in tmp_path.iterdir()} == {"package", ".package.lock"}
    fill(tmp_path / "package", force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"package"}


def test_a_reader_of_the_reports_that_goes_away_is_no_fault_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), new_folder(tmp_path / "package"):
        raise BrokenPipeError
    assert names(tmp_path) == []


def test_a_second_export_into_the_same_place_is_told_at_once(tmp_path: Path) -> None:
    for force in (False, True):
        with new_folder(tmp_path / "package", force=force) as first:
            with pytest.raises(ExportError, match=r"another export is writing .*package; wait until it ends"):
                fill(tmp_path / "package", force=force)
            shutil.copytree(find_package(), first, dirs_exist_ok=True)
        assert is_complete(tmp_path / "package")
    assert {path.name for path in tmp_path.iterdir()} == {"package"}


def test_what_someone_puts_at_the_target_during_an_export_stays(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="exists already"), new_folder(tmp_path / "package"):
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "notes.txt").write_text("mine")
    assert names(tmp_path) == ["package", "package/notes.txt"]


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fcntl", reason="these locks are POSIX's")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    fill(tmp_path / "package")
    assert {path.name for path in tmp_path.iterdir()} == {"package"}
