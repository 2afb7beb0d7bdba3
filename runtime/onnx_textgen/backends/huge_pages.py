"""Weights in huge pages, where Linux has them: an engine packs them into pages of 4 KiB, and a step reads all of them.

The kernel gathers such memory into pages of 2 MiB when it is asked to (MADV_COLLAPSE, since 6.1), whatever its settings. That takes
a thread some 0.1 s for 100 MiB; content and addresses stay as they are, and nothing is larger afterwards. Other systems are left
alone. `benchmarks/huge_pages.py` measures what it gives.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from collections.abc import Iterator
from pathlib import Path

HUGE_PAGE = 2 * 2**20
MADV_COLLAPSE = 25
"""From Linux's include/uapi/asm-generic/mman-common.h; 3.11's `mmap` does not name it."""
AT_A_TIME = 16 * HUGE_PAGE
"""So that a process which ends need not wait for long."""
RESIDENT = 0.95
"""What of a piece must be in use: a thread's stack, say, is mostly a promise, which would be kept."""

Piece = tuple[int, int]
"""From an address to another one."""


def pieces_in_use(smaps: str) -> list[Piece]:
    r"""The process's own memory, as opposed to files, that is in use nearly everywhere; by `/proc/self/smaps`.

    >>> header = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 "
    >>> [hex(end - start) for start, end in pieces_in_use(header + "\nSize: 4096 kB\nRss:     4096 kB\n")]
    ['0x400000']
    >>> pieces_in_use(header + "\nSize: 4096 kB\nRss:       12 kB\n")
    []
    """
    header = r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0 *(?:\[heap\])?\n(?:.*\n)*?Rss: +(\d+) kB$"
    found = ((int(start, 16), int(end, 16), 1024 * int(used)) for start, end, used in re.findall(header, smaps, re.MULTILINE))
    return [(start, end) for start, end, used in found if used >= RESIDENT * (end - start)]


def without(pieces: list[Piece], known: list[Piece]) -> Iterator[Piece]:
    """What of some pieces is in none of the known ones.

    >>> list(without([(0, 10), (20, 30)], [(2, 4), (8, 22)]))
    [(0, 2), (4, 8), (22, 30)]
    """
    known = sorted(known)
    for start, end in pieces:
        free = start
        for first, last in known:
            if first < end and last > free:
                if first > free:
                    yield free, first
                free = last
        if free < end:
            yield free, end


def gather(pieces: list[Piece]) -> None:
    """Have the kernel gather them; a piece that is gone meanwhile, or cannot be, stays as it is."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in pieces:
        first, last = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        for place in range(first, last, AT_A_TIME):
            libc.madvise(place, min(AT_A_TIME, last - place), MADV_COLLAPSE)


def memory_in_use() -> list[Piece]:
    """See `pieces_in_use`; nothing where the system does not tell."""
    try:
        return pieces_in_use(Path("/proc/self/smaps").read_text(encoding="utf-8"))
    except OSError:  # another system than Linux
        return []


@contextlib.contextmanager
def new_memory_in_huge_pages() -> Iterator[None]:
    """What is allocated within it and still there at its end is gathered behind it, in a thread."""
    before = memory_in_use()
    yield
    if new := list(without(memory_in_use(), before)):
        threading.Thread(target=gather, args=(new,), name="huge pages", daemon=True).start()
