"""Writes a model folder whole or not at all.

Everything is made in a hidden sibling folder, flushed to disk, and renamed into place at the end; whatever goes wrong before
leaves nothing behind, and whatever was at the target before is still there.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from onnx_textgen.artifact import ALLOWED_FILES, MANIFEST, FileRecord, Manifest, file_record, manifest_to_json, read_manifest
from onnx_textgen.errors import OnnxTextgenError

from .errors import ExportError


def flush(path: Path) -> None:
    """Wait until a file or a folder's entries are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_model_folder(path: Path) -> bool:
    """Whether a folder holds a readable manifest, files of a model and nothing else."""
    try:
        read_manifest(path)
    except OnnxTextgenError:
        return False
    return {entry.name for entry in path.iterdir()} <= ALLOWED_FILES | {MANIFEST}


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that exists, unless `force` and it is a model folder or empty."""
    if not target.exists():
        return
    if not force:
        raise ExportError(f"{target} exists already; give another --out, or add --force to replace it")
    if not target.is_dir() or (any(target.iterdir()) and not is_model_folder(target)):
        raise ExportError(f"{target} exists and is no model folder, so --force does not replace it; give another --out")


@contextlib.contextmanager
def new_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes `target` when the block ends well and vanishes when it does not."""
    target = target.resolve()  # a link stays, and what it points to is replaced
    check_target(target, force=force)
    missing = [parent for parent in target.parents if not parent.exists()]
    partial = target.parent / f".{target.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target)
        partial.mkdir()
        yield partial
        for path in partial.iterdir():
            flush(path)
        flush(partial)
        put_in_place(partial, target, force=force)
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error.strerror or error}; free some space or give another --out") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():
            for parent in missing:
                with contextlib.suppress(OSError):  # someone else may have put something there
                    parent.rmdir()


def put_in_place(partial: Path, target: Path, *, force: bool) -> None:
    """Rename the finished folder to its name; an old one steps aside first, and comes back if that fails."""
    check_target(target, force=force)
    old = partial.with_name(partial.name.replace(".partial-", ".old-"))
    if not target.exists():
        partial.rename(target)
    else:
        target.rename(old)
        try:
            partial.rename(target)
        except BaseException:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    flush(target.parent)


def sweep(target: Path) -> None:
    """Clear away what exports to `target` left when their process was killed; an old folder without a new one comes back."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(partial|old)-(\d+)-[0-9a-f]{{8}}")
    for path in list(target.parent.iterdir()):
        found = pattern.fullmatch(path.name)
        if found is None or is_running(int(found[2])):
            continue
        if found[1] == "old" and not target.exists():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def is_running(process_id: int) -> bool:
    """Whether a process of this number exists."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def records(folder: Path) -> dict[str, FileRecord]:
    """Size and sha256 of every file that a model folder may hold."""
    return {path.name: file_record(path) for path in sorted(folder.iterdir()) if path.name in ALLOWED_FILES}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, the last file of a folder."""
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
