"""Writes a model folder, slowly, in a process that races others; run by test_folder_survival.

    python folder_writer.py PACKAGE TARGET [force]     prints what became of it

It imports `folder` without its package, which would bring torch: a fresh process then starts in a fraction of a second.
"""

import importlib
import shutil
import sys
import time
import types
from pathlib import Path

import onnx_textgen

stub = types.ModuleType("onnx_textgen_export")
stub.__path__ = [str(Path(onnx_textgen.__file__).parents[2] / "export" / "onnx_textgen_export")]
sys.modules["onnx_textgen_export"] = stub
folder = importlib.import_module("onnx_textgen_export.package.folder")
errors = importlib.import_module("onnx_textgen_export.errors")


def write(package: Path, target: Path, *, force: bool, seconds: float) -> None:
    """Write a copy of `package`, slowly."""
    with folder.new_folder(target, force=force) as partial:
        files = (path for path in package.rglob("*") if path.is_file())
        for path in sorted(files, key=lambda path: path.name == "manifest.json"):
            time.sleep(seconds)
            copy = partial / path.relative_to(package)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)


def main() -> None:
    """Do what the arguments say."""
    package, target, *force = sys.argv[1:]
    try:
        write(Path(package), Path(target), force=bool(force), seconds=0.1)
        print("written")
    except errors.ExportError as error:
        print(error)


if __name__ == "__main__":
    main()
