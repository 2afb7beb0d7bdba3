"""An interrupted export is resumed by the same command, and by no other one; the package is the same."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_textgen_export import ExportError, export
from onnx_textgen_export.calibration.code_search import Calibrated
from onnx_textgen_export.exporting.options import Budget, ExportOptions
from onnx_textgen_export.exporting.unfinished import held_bytes, key_of, work_folder
from support.retrieval_checkpoints import write_model


def silent(_: str) -> None:
    """Report nothing."""


def stopping_at(pattern: str, said: list[str]) -> Callable[[str], None]:
    """A report that presses Ctrl-C when a stage, or a step of it, begins."""

    def report(line: str) -> None:
        said.append(line)
        if re.match(pattern, line):
            raise KeyboardInterrupt

    return report


def files(folder: Path) -> dict[str, bytes]:
    """All but the manifest, which names the time."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_a_resumed_export_finds_no_code_twice_and_makes_the_same_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    source, found, find = write_model(tmp_path / "source"), list[str](), Calibrated.find_codes
    monkeypatch.setattr(Calibrated, "find_codes", lambda own, matrix, seen: (found.append(matrix.name), find(own, matrix, seen)))
    whole = export(source, tmp_path / "whole", precision=precision).folder
    matrices = sorted(found)
    found.clear()
    target, said = tmp_path / "target", list[str]()
    for stage in ("calibrate .*, 3 of", "measure the rounding"):
        with pytest.raises(KeyboardInterrupt):
            export(source, target, precision=precision, report=stopping_at(stage, said))
        assert not target.exists()
        assert said[-1].startswith("interrupted: the same command resumes")
    export(source, target, precision=precision, report=said.append)
    assert sorted(found) == matrices
    assert sum(line.startswith("resume: ") for line in said) == 2
    assert files(target) == files(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target", "whole"]


@pytest.mark.slow
def test_attempts_of_an_interrupted_export_are_not_made_again(tmp_path: Path) -> None:
    source, whole, said = write_model(tmp_path / "source"), list[str](), list[str]()
    wanted = export(source, tmp_path / "whole", precision="int4", report=whole.append).folder
    attempts = [line for line in whole if line.startswith("write ")]
    assert len(attempts) > 2
    with pytest.raises(KeyboardInterrupt):
        export(source, tmp_path / "target", precision="int4", report=stopping_at("compare with", said))
    resumed = list[str]()
    found = export(source, tmp_path / "target", precision="int4", report=resumed.append).folder
    assert [line for line in said if line.startswith("write ")] == attempts
    assert [line for line in resumed if line.startswith("write ")] == attempts[-1:], "the chosen one, for its files"
    verdicts = [[line for line in lines if line.startswith("rounding: ")] for lines in (whole, resumed)]
    assert verdicts[0] == verdicts[1]
    assert files(found) == files(wanted)


def test_an_export_is_the_same_only_with_the_same_files_and_options(tmp_path: Path) -> None:
    source, text = tmp_path / "source", tmp_path / "text.txt"
    source.mkdir()
    (source / "config.json").write_text("{}")
    text.write_text("Some text")
    options = ExportOptions(precision="int4", budget=Budget(calibration=text))
    key = key_of(source, options)
    assert key is not None
    assert key == key_of(source, ExportOptions(precision="int4", budget=Budget(calibration=text)))
    assert key != key_of(source, ExportOptions(precision="int8", budget=Budget(calibration=text)))
    os.utime(text, (1, 1))
    assert key != (later := key_of(source, options))
    os.utime(source / "config.json", (1, 1))
    assert later != key_of(source, options)
    assert key_of(None, options) is None, "a module may have changed"
    assert key_of(source, ExportOptions(adapter="owner/name")) is None


def leave(target: Path, key: str | None, error: type[BaseException], *, works: bool = True) -> None:
    """Do some work, and raise an error."""
    with pytest.raises(error), work_folder(target, key, silent) as folder:
        if works:
            (folder / "codes").write_text("codes")
        raise error("an error")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_work_is_kept_from_an_interrupted_export_for_the_same_one_alone(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "target"
    assert held_bytes(target) == 0
    leave(target, "one", error)
    assert held_bytes(target) == len("one" + "codes"), "the disk that a resumed export does not need again"
    with work_folder(target, "one", silent) as folder:
        assert (folder / "codes").exists()
    assert list(tmp_path.iterdir()) == [], "a finished export needs it no more"
    leave(target, "one", error)
    with work_folder(target, "other", silent) as folder:
        assert not (folder / "codes").exists()


def test_nothing_is_kept_after_an_error_or_without_work_or_of_a_source_that_is_no_file(tmp_path: Path) -> None:
    leave(tmp_path / "target", "one", ExportError)
    leave(tmp_path / "target", "one", KeyboardInterrupt, works=False)
    leave(tmp_path / "target", None, KeyboardInterrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_of_the_reports_that_is_gone_takes_no_work_away(tmp_path: Path) -> None:
    def broken(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt), work_folder(tmp_path / "target", "one", broken) as folder:
        (folder / "codes").write_text("codes")
        raise KeyboardInterrupt
    assert (folder / "codes").exists()
