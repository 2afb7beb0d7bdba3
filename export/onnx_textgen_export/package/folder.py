"""Writes a model folder completely or not at all, despite errors, a full disk, a kill, or another export to the same place.

If anything fails, no file is left and the former target is unchanged (`onnx_textgen.files.replace`). A lock file next to the target
excludes a second export; a killed process loses its lock, and the next export removes what it left.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.files.replace import flush, hidden, put_folder, replaced_file, sweep
from onnx_textgen.package.integrity import check_files, file_record, package_files
from onnx_textgen.package.manifest import MANIFEST, FileRecord, Manifest, is_allowed, manifest_to_json
from onnx_textgen.package.reading import read_manifest

from ..errors import ExportError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS})
"""Errors of file systems without locks; exports to them proceed without one."""


def is_model_folder(path: Path) -> bool:
    """Return whether a folder holds a readable manifest, files of a model and nothing else."""
    try:
        read_manifest(path)
    except OnnxTextgenError:
        return False
    names = (entry.relative_to(path).as_posix() for entry in path.rglob("*") if not entry.is_dir())
    return all(is_allowed(name) or name == MANIFEST for name in names)


def is_complete(path: Path) -> bool:
    """Return whether a folder is a model folder with every file as its manifest says."""
    try:
        check_files(path, read_manifest(path))
    except OnnxTextgenError:
        return False
    return True


def check_target(target: Path, *, force: bool) -> None:
    """Raise `ExportError` for an existing target, unless `force` is set and it is a model folder or empty."""
    with writing(target):
        if not target.exists():
            return
        if not force:
            raise ExportError(f"{target} exists already; give another --out, or add --force to replace it")
        is_ours = target.is_dir() and (not any(target.iterdir()) or is_model_folder(target))
    if not is_ours:
        raise ExportError(f"{target} exists and is no model folder, so --force does not replace it; give another --out")


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn errors of the file system into `ExportError`."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of the reports has gone; the folder is fine
    except OSError as error:
        raise ExportError(explain(error, target)) from error


@contextlib.contextmanager
def new_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes `target` if the block succeeds and is removed if it raises."""
    target = target.resolve()  # a link is kept, and what it points to is replaced
    check_target(target, force=force)
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with only_writer(target):
                sweep(target, older_than=0.0, is_whole=is_complete)
                partial = hidden(target, "partial")
                try:
                    partial.mkdir()
                    yield partial
                    finish(partial, target, [parent.parent for parent in missing], force=force)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    finally:
        if not target.exists():
            for parent in missing:
                with contextlib.suppress(OSError):  # someone else may have put something there
                    parent.rmdir()


def explain(error: OSError, target: Path) -> str:
    """One line for an error of the file system."""
    where = next((parent for parent in target.parents if is_there(parent)), Path(target.anchor))
    if error.errno in FULL or (error.errno is None and shutil.disk_usage(where).free < 2**20):  # numpy gives no number
        return f"cannot write {target}: the disk is full ({error.strerror or error}); free some space or give another --out"
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else target
    about = target if path.is_relative_to(where) else path
    return f"cannot write {target}: {'' if about == target else f'{about}: '}{error.strerror or error}"


def is_there(path: Path) -> bool:
    """Return whether a path exists and may be looked at."""
    try:
        return path.exists()
    except OSError:
        return False


@contextlib.contextmanager
def only_writer(target: Path) -> Iterator[None]:
    """Hold the lock of `target`; raises `ExportError` immediately if another export holds it."""
    path = target.with_name(f".{target.name}.lock")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ExportError(f"another export is writing {target}; wait until it ends, or give another --out") from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder is in place, or its error is raised; a leftover lock file excludes nobody
            path.unlink()  # before the lock is released: a waiting process finds that the file is gone
        lock.release()


def finish(partial: Path, target: Path, parents: list[Path], *, force: bool) -> None:
    """Put the finished folder into place; `parents`: folders in which folders were created."""
    if sys.platform == "win32":
        gc.collect()  # closes sessions of the proof: they map weights, and Windows cannot rename a folder with a mapped file
    check_target(target, force=force)
    try:
        put_folder(partial, target)
    except OSError:
        check_target(target, force=force)  # another process made it a moment ago
        raise
    for parent in parents:
        flush(parent)


def records(folder: Path) -> dict[str, FileRecord]:
    """Size and sha256 of every file that a model folder may hold."""
    return {name: file_record(folder / name) for name in package_files(folder)}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, the last file of a folder."""
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")


def replace_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace `manifest.json` in one step."""
    with replaced_file(folder / MANIFEST) as partial:
        partial.write_text(manifest_to_json(manifest), encoding="utf-8")
