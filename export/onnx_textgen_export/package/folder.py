"""Writes a model folder whole or not at all, whatever happens: an error, a full disk, a kill, another export into the same place.

Everything is made in a hidden sibling folder, flushed to disk, and renamed into place at the end; whatever goes wrong before
leaves nothing behind, and whatever was at the target before is still there. A lock file beside the target keeps a second export
away; a killed process loses its lock, so that the next export clears away what it left.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.package.integrity import check_files, file_record
from onnx_textgen.package.manifest import ALLOWED_FILES, MANIFEST, FileRecord, Manifest, manifest_to_json
from onnx_textgen.package.reading import read_manifest

from ..errors import ExportError

if sys.platform != "win32":  # which has no such locks, and where nobody can clear away a folder that another process uses
    import fcntl

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS})
"""What file systems without locks answer; exports into them go without."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Linux, linux/fcntl.h and linux/fs.h."""


def flush(path: Path) -> None:
    """Wait until a file or a folder's entries are on disk."""
    if sys.platform == "win32" and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)  # Windows flushes only what may be written
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


def is_complete(path: Path) -> bool:
    """Whether a folder is a model folder with every file as its manifest says."""
    try:
        check_files(path, read_manifest(path))
    except OnnxTextgenError:
        return False
    return True


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that exists, unless `force` and it is a model folder or empty."""
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
    """Turn what the file system refuses into `ExportError`."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read our reports has gone; nothing is wrong with the folder
    except OSError as error:
        raise ExportError(explain(error, target)) from error


@contextlib.contextmanager
def new_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes `target` when the block ends well and vanishes when it does not."""
    target = target.resolve()  # a link stays, and what it points to is replaced
    check_target(target, force=force)
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with only_writer(target):
                sweep(target)
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


@contextlib.contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target for what only the making of it needs; a killed export's is cleared away with the rest."""
    folder = hidden(target.resolve(), "partial")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def hidden(target: Path, kind: str) -> Path:
    """A fresh name beside the target, for a folder that is being made (`partial`) or that stepped aside (`old`)."""
    return target.with_name(f".{target.name}.{kind}-{secrets.token_hex(4)}")


def explain(error: OSError, target: Path) -> str:
    """One line for what the file system refused."""
    where = next((parent for parent in target.parents if is_there(parent)), Path(target.anchor))
    if error.errno in FULL or (error.errno is None and shutil.disk_usage(where).free < 2**20):  # numpy gives no number
        return f"cannot write {target}: the disk is full ({error.strerror or error}); free some space or give another --out"
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else target
    about = target if path.is_relative_to(where) else path
    return f"cannot write {target}: {'' if about == target else f'{about}: '}{error.strerror or error}"


def is_there(path: Path) -> bool:
    """Whether something can be seen at a path."""
    try:
        return path.exists()
    except OSError:
        return False


@contextlib.contextmanager
def only_writer(target: Path) -> Iterator[None]:
    """Hold the lock of `target`, or raise `ExportError` at once where another export holds it."""
    path = target.with_name(f".{target.name}.lock")
    handle = take_lock(path)
    if handle is None:
        raise ExportError(f"another export is writing {target}; wait until it ends, or give another --out")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder is in place, or its own error told; a lock left behind keeps nobody out
            path.unlink()  # before the lock goes: who waits for this file finds that it is no longer there
        os.close(handle)


def take_lock(path: Path) -> int | None:
    """Open and lock a file; None if another process holds it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if sys.platform != "win32":
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in NO_LOCKS:
                return handle
            os.close(handle)
            raise
        os.close(handle)  # its holder took it away in between


def finish(partial: Path, target: Path, parents: list[Path], *, force: bool) -> None:
    """Flush everything, and only then let the finished folder appear at its name. `parents` have new folders in them."""
    for path in partial.iterdir():
        flush(path)
    flush(partial)
    gc.collect()  # a session of the proof that hangs in a cycle maps weights, and Windows renames no folder with a mapped file
    put_in_place(partial, target, force=force)
    for parent in (target.parent, *parents):
        flush(parent)


def put_in_place(partial: Path, target: Path, *, force: bool) -> None:
    """Give the finished folder its name; one that is there already changes places with it, and is then cleared away."""
    check_target(target, force=force)
    if not target.exists():
        try:
            partial.rename(target)
        except OSError:
            check_target(target, force=force)  # made by someone else a moment ago
            raise
    elif exchange(partial, target):
        shutil.rmtree(partial, ignore_errors=True)
    else:
        old = hidden(target, "old")
        target.rename(old)
        try:
            partial.rename(target)
        except BaseException:
            old.rename(target)
            raise
        old.rename(partial)  # so that nobody takes for a stepped-aside folder what is half cleared away
        shutil.rmtree(partial, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Let two folders change names in one step; False where the system cannot."""
    if sys.platform == "win32":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux alone has it
    if rename is None:
        return False
    return bool(rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def sweep(target: Path) -> None:
    """Clear away what exports to `target` left when they were killed; an old folder without a new one comes back."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(partial|old)-(\d+-)?[0-9a-f]{{8}}")
    for path in list(target.parent.iterdir()):
        found = pattern.fullmatch(path.name)
        if found is None:
            continue
        if found[1] == "old" and not target.exists() and is_complete(path):
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def records(folder: Path) -> dict[str, FileRecord]:
    """Size and sha256 of every file that a model folder may hold."""
    return {path.name: file_record(path) for path in sorted(folder.iterdir()) if path.name in ALLOWED_FILES}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, the last file of a folder."""
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
