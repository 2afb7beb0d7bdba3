"""Writes a model folder whole or not at all.

Everything is made in a hidden sibling folder, flushed to disk, and renamed into place at the end; whatever goes wrong before
leaves nothing behind, and whatever was at the target before is still there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from onnx_textgen.artifact import ALLOWED_FILES, MANIFEST, FileRecord, Manifest, file_record, manifest_to_json

from .errors import ExportError


def flush(path: Path) -> None:
    """Wait until a file or a folder's entries are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that exists, unless `force` and it is a model folder or empty."""
    if not target.exists():
        return
    if not force:
        raise ExportError(f"{target} exists already; give another --out, or add --force to replace it")
    if not target.is_dir() or (any(target.iterdir()) and not (target / MANIFEST).is_file()):
        raise ExportError(f"{target} exists and is no model folder, so --force does not replace it; give another --out")


@contextlib.contextmanager
def new_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes `target` when the block ends well and vanishes when it does not."""
    check_target(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
    partial.mkdir()
    try:
        yield partial
        for path in partial.iterdir():
            flush(path)
        flush(partial)
        put_in_place(partial, target, force=force)
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error.strerror or error}; free some space or give another --out") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def put_in_place(partial: Path, target: Path, *, force: bool) -> None:
    """Rename the finished folder to its name; an old one steps aside first and is deleted last."""
    check_target(target, force=force)
    old = partial.with_name(partial.name.replace(".partial-", ".old-"))
    if target.exists():
        target.rename(old)
    partial.rename(target)
    flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def records(folder: Path) -> dict[str, FileRecord]:
    """Size and sha256 of every file that a model folder may hold."""
    return {path.name: file_record(path) for path in sorted(folder.iterdir()) if path.name in ALLOWED_FILES}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, the last file of a folder."""
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
