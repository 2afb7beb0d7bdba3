"""What may lie in the place of a file."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path


def device(minor: int) -> Callable[[Path], None]:
    """Makes a device; a link to one where that needs more rights than we have."""

    def make(place: Path) -> None:
        try:
            os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        except OSError:
            place.symlink_to("/dev/zero")

    return make


def listen(place: Path) -> None:
    """A socket in the file system."""
    with socket.socket(socket.AF_UNIX) as made:
        where = Path.cwd()
        os.chdir(place.parent)  # the path of a socket may have a hundred characters
        try:
            made.bind(place.name)
        finally:
            os.chdir(where)


def make_sparse(place: Path) -> None:
    """A file of 64 GiB that takes no room."""
    with place.open("wb") as file:
        file.truncate(2**36)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "is missing": lambda _: None,
    "is a folder": Path.mkdir,
    "is a pipe": os.mkfifo,
    "is a socket": listen,
    "is a device without end": device(5),
    "is an empty device": device(3),
    "is a link to itself": lambda place: place.symlink_to(place.name),
    "is of 64 GiB of nothing": make_sparse,
    **{
        f"is a link to {target}": lambda place, target=target: place.symlink_to(target)  # type: ignore[misc]
        for target in ("nowhere", "/", "/dev/zero", "/dev/stdin", "/proc/self/mem", "/etc/hostname")
    },
}
