"""Writes a file or a folder completely or not at all: made under a hidden name next to its target, flushed, and renamed into place.

If anything fails before the rename, the former target is unchanged. What a kill leaves is removed by a later write (`sweep`). A
target that is a link stays one, and what it points to is replaced. Two writers at once are for the caller to exclude.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LONGEST_WRITE_SECONDS = 3600.0
"""A hidden file or folder that is older belongs to no running process, where no lock excludes other writers."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Linux, linux/fcntl.h and linux/fs.h."""


def hidden(target: Path, kind: str) -> Path:
    """An unused name next to the target, for what is in the making (`partial`) or is being replaced (`old`)."""
    return target.with_name(f".{target.name}.{kind}-{secrets.token_hex(4)}")


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A file to write, which becomes `path` if the block succeeds and is removed if it raises."""
    target = Path(os.path.realpath(path))
    sweep(target, older_than=LONGEST_WRITE_SECONDS)
    partial = hidden(target, "partial")
    try:
        yield partial
        flush(partial)
        partial.replace(target)
        flush(target.parent)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def put_folder(partial: Path, target: Path) -> None:
    """Flush a finished folder and give it its name; an existing folder is exchanged with it and then removed."""
    for path in partial.rglob("*"):
        flush(path)
    flush(partial)
    if not target.exists():
        partial.rename(target)
    elif not exchange(partial, target):
        old = hidden(target, "old")
        target.rename(old)
        try:
            partial.rename(target)
        except BaseException:
            old.rename(target)
            raise
        old.rename(partial)  # so that a half-removed folder is never restored
    flush(target.parent)
    shutil.rmtree(partial, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; False if the system cannot."""
    if sys.platform == "win32":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # only Linux has it
    if rename is None:
        return False
    return bool(rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def sweep(target: Path, *, older_than: float, is_whole: Callable[[Path], bool] = lambda _: False) -> None:
    """Remove what killed writers left next to the target, if that is older than `older_than` seconds.

    is_whole: whether a folder that was being replaced is complete; it comes back if the target is missing.
    """
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(partial|old)-(\d+-)?[0-9a-f]{{8}}")
    with contextlib.suppress(OSError):  # a folder that cannot be listed, or what another process removes: not needed for this write
        for path in list(target.parent.iterdir()):
            found = pattern.fullmatch(path.name)
            if found is None or time.time() - path.stat(follow_symlinks=False).st_mtime < older_than:
                continue
            if found[1] == "old" and not target.exists() and is_whole(path):
                path.rename(target)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def flush(path: Path) -> None:
    """Wait until a file or a folder's entries are on disk."""
    if sys.platform == "win32" and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)  # Windows flushes only writable files
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that flushes no folders
            raise
    finally:
        os.close(handle)
