"""Writes model folders in processes that are killed or that race each other; run by test_folder_survival.

    python folder_writer.py kill PACKAGE FOLDER     kills a writer before each of its steps on the file system, fresh and with force
    python folder_writer.py write PACKAGE TARGET [force]     one slow writer; prints what became of it

It imports `folder` without its package, which would bring torch: a fresh process then starts in a fraction of a second.
"""

import importlib
import os
import shutil
import signal
import sys
import time
import types
from pathlib import Path

import onnx_textgen

stub = types.ModuleType("onnx_textgen_export")
stub.__path__ = [str(Path(onnx_textgen.__file__).parents[2] / "export" / "onnx_textgen_export")]
sys.modules["onnx_textgen_export"] = stub
folder = importlib.import_module("onnx_textgen_export.folder")
errors = importlib.import_module("onnx_textgen_export.errors")

STEPS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.", "ctypes.", "fcntl.")


def write(package: Path, target: Path, *, force: bool, seconds: float = 0.0) -> None:
    """Write a copy of `package`, slowly."""
    with folder.new_folder(target, force=force) as partial:
        for path in sorted(package.iterdir(), key=lambda path: path.name == "manifest.json"):
            time.sleep(seconds)
            shutil.copyfile(path, partial / path.name)


def die_at(step: int) -> None:
    """Kill this process right before its `step`-th act on the file system."""
    count = 0

    def hook(event: str, _: object) -> None:
        nonlocal count
        if event.startswith(STEPS):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def killed(package: Path, target: Path, step: int, *, force: bool) -> bool:
    """Whether a writer that was to die at `step` did; False where it ended before."""
    child = os.fork()
    if child == 0:
        die_at(step)
        write(package, target, force=force)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the writer failed by itself"
    return os.WIFSIGNALED(status)


def kill_everywhere(package: Path, where: Path) -> None:
    """Print `kills absent complete` per mode; fail where a folder is neither absent nor complete, or something stays behind."""
    at_once = folder.exchange
    for mode, force in (("fresh", False), ("force", True), ("force in two steps", True)):
        folder.exchange = at_once if mode != "force in two steps" else lambda *_: False
        seen = {"absent": 0, "complete": 0}
        for step in range(1, 1000):
            target = where / f"{mode}-{step}" / "package"
            target.parent.mkdir()
            if force:
                write(package, target, force=False)
            if not killed(package, target, step, force=force):
                break
            assert not target.exists() or folder.is_complete(target), f"half a folder after step {step}, {mode}"
            seen["complete" if target.exists() else "absent"] += 1
            write(package, target, force=True)
            assert folder.is_complete(target)
            left = [path.name for path in target.parent.iterdir()]
            assert left == ["package"], f"{left} after step {step}, {mode}"
        print(step - 1, seen["absent"], seen["complete"])


def main() -> None:
    """Do what the arguments say."""
    match sys.argv[1:]:
        case ["kill", package, where]:
            kill_everywhere(Path(package), Path(where))
        case ["write", package, target, *force]:
            try:
                write(Path(package), Path(target), force=bool(force), seconds=0.1)
                print("written")
            except errors.ExportError as error:
                print(error)


if __name__ == "__main__":
    main()
