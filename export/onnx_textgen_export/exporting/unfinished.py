"""Keeps the work of an interrupted export next to its target, for the next export of the same source with the same options.

What is kept: PyTorch's predictions of the measured texts, the codes of matrices that were calibrated, and what attempts at rounding
gave. An export that ends, well or with an error, keeps nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx_textgen

from ..reports import Report
from .options import ExportOptions

KEY = "key"
"""The file that says which export the work belongs to."""


def key_of(source_path: Path | None, options: ExportOptions) -> str | None:
    """Return what two exports have in common whose work is the same; None if that cannot be told from files.

    source_path: the file or folder that the weights are read from; None for a module.
    """
    given = (options.tokenizer, options.adapter, *options.adapters.values(), options.chosen_budget.calibration)
    if source_path is None:
        return None
    paths = [source_path, *(Path(each) for each in given if isinstance(each, str | Path))]
    if not all(path.exists() for path in paths):  # a name on the hub, for example
        return None
    files = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for path in paths for each in files_of(path)]
    return hashlib.sha256(repr((onnx_textgen.__version__, files, options)).encode()).hexdigest()


def files_of(path: Path) -> list[Path]:
    """Every file of a folder, or the file itself."""
    return sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


def place_of(target: Path) -> Path:
    """The folder of the work on a target."""
    target = target.resolve()
    return target.with_name(f".{target.name}.unfinished")


def held_bytes(target: Path) -> int:
    """Return the disk that earlier work on a target holds, which an export takes over or frees."""
    return sum(path.stat().st_size for path in files_of(place_of(target)) if path.is_file())


@contextlib.contextmanager
def work_folder(target: Path, key: str | None, report: Report) -> Iterator[Path]:
    """A folder next to the target for intermediate files, with those of an interrupted export that had the same key.

    Only one process at a time may be in it: the one that holds the target's lock.
    """
    folder = place_of(target)
    if key is None or not holds(folder, key):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    else:
        report("resume: with what an interrupted export of the same source left")
    is_kept = False
    try:
        (folder / KEY).write_text(key or "", encoding="utf-8")
        yield folder
    except (KeyboardInterrupt, SystemExit):
        if is_kept := key is not None and len(list(folder.iterdir())) > 1:
            with contextlib.suppress(OSError):  # whoever reads the reports may have gone
                report(f"interrupted: the same command resumes with what {folder} holds; remove that if you do not need it")
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def holds(folder: Path, key: str) -> bool:
    """Return whether a folder has work of an export with this key."""
    try:
        return (folder / KEY).read_text(encoding="utf-8") == key
    except (OSError, UnicodeDecodeError):
        return False
