"""Exports and session saves that are killed, or whose disk fails, at every touch of the disk."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.files.replace import LONGEST_WRITE_SECONDS
from onnx_textgen.package.integrity import check_files
from onnx_textgen.package.reading import read_manifest
from support.examples import examples

from .law import HARMLESS, PACKAGE, REFUSED, Violation, check_line, count, open_model
from .over_http import ROOT

KILLS, ERRORS = ("kill", "tear"), ("ENOSPC", "EIO", "EACCES")
FRESH, FORCE, IN_TWO_STEPS = "onto nothing", "onto an old one", "onto an old one, where two names cannot change in one step"
TORN, REMOVALS = ("write",), ("unlink", "remove", "rmdir")
"""Touches that can end halfway; those whose failure leaves what was to be removed."""
EXPORT, SESSION = "export", "session"
Outcome = dict[str, Any]


class Worker:
    """A process that makes exports or saves, each in a process of its own; see `disk_child`."""

    def __init__(self, what: str) -> None:
        command = [sys.executable, "-m", f"{__package__}.disk_child", what]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.what = what
        self.read()

    def do(self, target: Path, *, at: int = 0, act: str = "", how: str = FORCE, text: str = "old") -> Outcome:
        """What became of one that met `act` at a touch; of one that nothing went wrong with, if `at` is 0."""
        wish = {"target": str(target), "at": at, "act": act, "text": text}
        assert self.process.stdin is not None, "it is a pipe"
        self.process.stdin.write(json.dumps(wish | {"force": how != FRESH, "in_two_steps": how == IN_TWO_STEPS}) + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> Outcome:
        """The next line of the process."""
        assert self.process.stdout is not None, "it is a pipe"
        found: Outcome = json.loads(self.process.stdout.readline())
        return found

    def put_old(self, target: Path) -> None:
        """Put what lies at the target before."""
        if self.what == EXPORT:
            shutil.copytree(PACKAGE, target)
        else:
            self.do(target)

    def begin(self, folder: Path, how: str) -> Path:
        """The target in a folder, with what lies there before."""
        target = folder / "target"
        if how != FRESH:
            self.put_old(target)
        return target

    @functools.cached_property
    def points(self) -> list[tuple[str, int, str]]:
        """Each way to begin, each touch of the disk that it then comes to where nothing fails, and all that may happen there."""
        found = []
        for how in (FRESH, FORCE, IN_TWO_STEPS) if self.what == EXPORT else (FRESH, FORCE):
            with tempfile.TemporaryDirectory() as folder:
                touches = self.do(self.begin(Path(folder), how), how=how)["touches"]
            found += [
                (how, at, act) for at, name in enumerate(touches, 1) for act in (*KILLS, *ERRORS) if act != "tear" or name in TORN
            ]
        return found


@pytest.fixture(scope="module")
def exporter() -> Iterator[Worker]:
    """A process that exports."""
    worker = Worker(EXPORT)
    yield worker
    worker.process.communicate()


@pytest.fixture(scope="module")
def saver() -> Iterator[Worker]:
    """A process that saves sessions."""
    worker = Worker(SESSION)
    yield worker
    worker.process.communicate()


@functools.cache
def model() -> onnx_textgen.Model:
    """Whose sessions are saved."""
    return open_model(PACKAGE)


def found_at(path: Path, what: str) -> str | None:
    """The name of the whole package, or the beginning of the session, that lies there; raises `Violation` for half of one."""
    if not path.exists():
        return None
    try:
        if what == SESSION:
            return model().tokenizer.decode(model().load_session(path).token_ids)[:3]
        manifest = read_manifest(path)
        check_files(path, manifest)
    except OnnxTextgenError as error:
        raise Violation(f"half of one: {error}") from error
    return {"tiny-ort": "old"}.get(manifest.name, manifest.name)


def check_outcome(told: Outcome, found: str | None, before: str | None, act: str) -> None:
    """Judge what was told, by what lies there now, and what lay there."""
    if told.get("traceback"):
        raise Violation(told["traceback"].strip().splitlines()[-1])
    if found not in (before, "new"):
        raise Violation(f"there is {found!r} in place of {before!r} or what is new")
    if (act in KILLS) != told["killed"]:
        raise Violation("it was to be killed, and was not, or the other way")
    if not told["killed"] and told["error"] is None and found != "new":
        raise Violation("it said nothing, and there is nothing new")
    if error := told.get("error"):
        check_line(error)
    count(REFUSED if error else HARMLESS)


def check_point(worker: Worker, how: str, at: int, act: str) -> None:
    """Let an export or a save meet one failure, and judge it, and the next one into the same place."""
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        target = worker.begin(folder, how)
        before = found_at(target, worker.what)
        told = worker.do(target, how=how, at=at, act=act, text="new")
        found = found_at(target, worker.what)
        if how == IN_TWO_STEPS and found is None:
            aside = (path for path in folder.iterdir() if ".old-" in path.name)
            found = next((found_at(path, worker.what) for path in aside), None)  # the next export brings it back, or replaces it
        check_outcome(told, found, before, act)
        left = [path.name for path in folder.iterdir() if path != target]
        if told.get("error") and left and found != "new" and told["touches"][at - 1] not in REMOVALS:
            raise Violation(f"it failed at {told['touches'][at - 1]} and left {left}")
        for path in folder.iterdir() if worker.what == SESSION else ():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - LONGEST_WRITE_SECONDS - 1))
        again = worker.do(target, text="new")
        if again["killed"] or again["error"] or again["traceback"] or found_at(target, worker.what) != "new":
            raise Violation(f"the next one: {again}")
        if (left := [path.name for path in folder.iterdir()]) != ["target"]:
            raise Violation(f"the next one leaves {left}")


@examples(14)
@given(data=st.data())
def test_an_export_that_is_killed_or_whose_disk_fails_says_so_and_leaves_nothing_or_a_whole_package(
    exporter: Worker, data: st.DataObject
) -> None:
    check_point(exporter, *data.draw(st.sampled_from(exporter.points)))


@examples(25)
@given(data=st.data())
def test_a_session_whose_save_is_killed_or_whose_disk_fails_is_the_old_one_or_the_new_one(
    saver: Worker, data: st.DataObject
) -> None:
    check_point(saver, *data.draw(st.sampled_from(saver.points)))
