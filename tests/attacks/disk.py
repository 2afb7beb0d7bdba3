"""Exports and session saves that are killed, or whose disk fails, at every touch of the disk."""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx_textgen
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.files.replace import LONGEST_WRITE_SECONDS
from onnx_textgen.package.integrity import check_files
from onnx_textgen.package.reading import read_manifest

from .law import HARMLESS, REFUSED, Case, Law, Verdict, Violation, check_line

PACKAGE = Path(__file__).parents[1] / "packages" / "ort"
ERRORS = ("ENOSPC", "EIO", "EACCES")
KILLS = ("kill", "tear")
FRESH, FORCE, IN_TWO_STEPS = "onto nothing", "onto a package", "onto a package, where two names cannot change in one step"
TORN = ("write",)
"""Touches that can end halfway."""
REMOVALS = ("unlink", "remove", "rmdir")
Outcome = dict[str, Any]


class Worker:
    """A process that makes exports or saves, each in a process of its own; see `disk_child`. It starts when it is needed."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.process: subprocess.Popen[str] | None = None

    def do(self, target: Path, *, at: int = 0, act: str = "", how: str = FORCE, text: str = "old") -> Outcome:
        """What became of one that met `act` at a touch; of one that nothing went wrong with, if `at` is 0."""
        if self.process is None:
            command = [sys.executable, "-m", f"{__package__}.disk_child", self.what]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            atexit.register(self.process.communicate)
            self.read()
        wish = {"target": str(target), "at": at, "act": act, "text": text}
        assert self.process.stdin is not None, "it is a pipe"
        self.process.stdin.write(json.dumps(wish | {"force": how != FRESH, "in_two_steps": how == IN_TWO_STEPS}) + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> Outcome:
        """The next line of the process."""
        assert self.process is not None and self.process.stdout is not None, "it is a pipe"
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process for {self.what} has ended")
        found: Outcome = json.loads(line)
        return found


WORKERS = {what: Worker(what) for what in ("export", "session")}


def name_of(folder: Path) -> str | None:
    """The name of the whole package in a folder; None where there is nothing. Raises `Violation` for anything else."""
    if not folder.exists():
        return None
    try:
        manifest = read_manifest(folder)
        check_files(folder, manifest)
    except OnnxTextgenError as error:
        raise Violation(f"half a folder: {error}") from error
    return manifest.name


@functools.cache
def model() -> onnx_textgen.Model:
    """Whose sessions are saved."""
    return onnx_textgen.load(PACKAGE, threads=1, device="cpu")


def text_of(path: Path) -> str | None:
    """The beginning of the session in a file; None where there is none. Raises `Violation` for half of one."""
    if not path.exists():
        return None
    try:
        ids = model().load_session(path).token_ids
    except OnnxTextgenError as error:
        raise Violation(f"half a session: {error}") from error
    return model().tokenizer.decode(ids)[:3]


def is_old(path: Path) -> bool:
    """Whether a folder is the old package, stepped aside."""
    return ".old-" in path.name and name_of(path) == "tiny-ort"


def check_outcome(told: Outcome, found: str | None, before: str | None, after: str, act: str) -> Verdict:
    """The verdict, by what lies there now, what lay there, and what was to lie there."""
    if told.get("traceback"):
        raise Violation(told["traceback"].strip().splitlines()[-1])
    if found not in (before, after):
        raise Violation(f"there is {found!r} in place of {before!r} or {after!r}")
    if told["killed"]:
        return HARMLESS
    if act in KILLS:
        raise Violation("it was to be killed, and was not")
    if told["error"] is None:
        if found != after:
            raise Violation("it said nothing, and there is nothing new")
        return HARMLESS
    check_line(told["error"])
    return REFUSED


def export_case(work: Worker, how: str, at: int, act: str, folder: Path) -> Verdict:
    """An export with one failure, and the next export into the same place."""
    target = folder / "package"
    if how != FRESH:
        put_old(work, target)
    before = name_of(target)
    told = work.do(target, how=how, at=at, act=act)
    found = name_of(target)
    if how == IN_TWO_STEPS and found is None and any(map(is_old, folder.iterdir())):
        found = before  # the next export brings it back, or replaces it
    verdict = check_outcome(told, found, before, "new", act)
    if found != "new":
        check_left(told, folder, target, at)
    again = work.do(target)
    if again["killed"] or again["error"] or again["traceback"] or name_of(target) != "new":
        raise Violation(f"the next export: {again}")
    if (left := sorted(path.name for path in folder.iterdir())) != ["package"]:
        raise Violation(f"the next export leaves {left}")
    return verdict


def check_left(told: Outcome, folder: Path, target: Path, at: int) -> None:
    """Raise `Violation` where what failed, and told so, left something, unless it was a removal that failed."""
    left = [path.name for path in folder.iterdir() if path != target]
    if told.get("error") and left and told["touches"][at - 1] not in REMOVALS:
        raise Violation(f"it failed at {told['touches'][at - 1]} and left {left}")


def session_case(work: Worker, how: str, at: int, act: str, folder: Path) -> Verdict:
    """A save with one failure, and the next save into the same place, when what was left is old."""
    target = folder / "session"
    if how != FRESH:
        put_old(work, target)
    before = text_of(target)
    told = work.do(target, at=at, act=act, text="new")
    verdict = check_outcome(told, text_of(target), before, "new", act)
    check_left(told, folder, target, at)
    for path in folder.iterdir():
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - LONGEST_WRITE_SECONDS - 1))
    again = work.do(target, text="end")
    if again["killed"] or again["error"] or again["traceback"] or text_of(target) != "end":
        raise Violation(f"the next save: {again}")
    if (left := sorted(path.name for path in folder.iterdir())) != ["session"]:
        raise Violation(f"the next save leaves {left}")
    return verdict


def put_old(work: Worker, target: Path) -> None:
    """What lies at the target before."""
    if work.what == "export":
        shutil.copytree(PACKAGE, target)
    else:
        work.do(target, text="old")


def touches(work: Worker, how: str) -> list[str]:
    """The touches of the disk that an export or a save comes to where nothing fails."""
    with tempfile.TemporaryDirectory() as where:
        target = Path(where) / "target"
        if how != FRESH:
            put_old(work, target)
        found: list[str] = work.do(target, how=how)["touches"]
        return found


def points(
    what: str, hows: tuple[str, ...], acts: tuple[str, ...], check: Callable[[Worker, str, int, str, Path], Verdict]
) -> Callable[[int, random.Random], Iterator[Case]]:
    """The cases of a law: every act at every touch, in every way."""

    def cases(count: int, choose: random.Random) -> Iterator[Case]:
        work = WORKERS[what]
        every = [
            (how, at, act, name)
            for how in hows
            for at, name in enumerate(touches(work, how), 1)
            for act in acts
            if act != "tear" or name in TORN
        ]
        choose.shuffle(every)
        for how, at, act, name in every[:count]:
            yield Case(f"{act} at touch {at}, {name}, {how}", functools.partial(check, work, how, at, act))

    return cases


def law(name: str, cases: Callable[[int, random.Random], Iterator[Case]], quick: int) -> Law:
    """One of all points in time; a process forks for each, so its limits are those of all forks."""
    return Law(name, cases, whole=1_000, quick=quick, cpu_seconds=600, memory_bytes=32 << 30)


EXPORTS, SAVES = (FRESH, FORCE, IN_TWO_STEPS), (FRESH, FORCE)
LAWS = (
    (
        law(
            "An export that is killed leaves nothing or a whole package, the old one until the new one is there",
            points("export", EXPORTS, KILLS, export_case),
            quick=16,
        ),
        law(
            "An export whose disk fails says so in a line, and leaves nothing or a whole package",
            points("export", EXPORTS, ERRORS, export_case),
            quick=16,
        ),
        law(
            "A session whose save is killed is the old one or the new one",
            points("session", SAVES, KILLS, session_case),
            quick=12,
        ),
        law(
            "A session whose disk fails says so in a line, and is the old one or the new one",
            points("session", SAVES, ERRORS, session_case),
            quick=12,
        ),
    )
    if find_spec("torch") is not None
    else ()
)
