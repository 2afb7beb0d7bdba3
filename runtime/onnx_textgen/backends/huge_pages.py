"""Moves weights into huge pages, on Linux: engines allocate them in pages of 4 KiB, and each decode step reads all of them.

Linux 6.1 and later collapse memory into pages of 2 MiB on request (MADV_COLLAPSE), whatever the system's settings. That takes a
thread about 0.1 s for 100 MiB; contents, addresses and memory use do not change, also while other threads write there. Meanwhile
whoever needs new memory waits, so it begins a moment after a model is open: the first token of a new process would come 0.1 s
later. On other systems nothing happens, nor if the environment variable ONNX_TEXTGEN_HUGE_PAGES is 0.
docs/performance_method.md has the gain.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "ONNX_TEXTGEN_HUGE_PAGES"
HUGE_PAGE = 2 * 2**20
MADV_COLLAPSE = 25
"""From Linux's include/uapi/asm-generic/mman-common.h; Python 3.11's `mmap` does not define it."""
BYTES_PER_CALL = 16 * HUGE_PAGE
"""Small enough that a process that ends does not wait long for a call."""
THREAD = "huge pages"
"""Name of the thread that does it."""
DELAY = 1.0
"""Seconds after opening, in which most models have read a short prompt."""
MIN_RESIDENT = 0.95
"""Resident share of a region that is collapsed: the unused rest, most of a thread's stack for example, would be allocated too."""

Region = tuple[int, int]
"""Start and end addresses of memory."""


def parse_smaps(smaps: str) -> list[Region]:
    r"""Find the anonymous regions that are almost fully resident in the text of `/proc/self/smaps`.

    >>> header = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 "
    >>> [hex(end - start) for start, end in parse_smaps(header + "\nSize: 4096 kB\nRss:     4096 kB\n")]
    ['0x400000']
    >>> parse_smaps(header + "\nSize: 4096 kB\nRss:       12 kB\n")
    []
    """
    header = r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0 *(?:\[heap\])?\n(?:.*\n)*?Rss: +(\d+) kB$"
    found = ((int(start, 16), int(end, 16), 1024 * int(used)) for start, end, used in re.findall(header, smaps, re.MULTILINE))
    return [(start, end) for start, end, used in found if used >= MIN_RESIDENT * (end - start)]


def subtract(regions: list[Region], known: list[Region]) -> Iterator[Region]:
    """Yield the parts of `regions` that lie outside the `known` ones.

    >>> list(subtract([(0, 10), (20, 30)], [(2, 4), (8, 22)]))
    [(0, 2), (4, 8), (22, 30)]
    """
    known = sorted(known)
    for start, end in regions:
        free = start
        for first, last in known:
            if first < end and last > free:
                if first > free:
                    yield free, first
                free = last
        if free < end:
            yield free, end


def collapse(regions: list[Region]) -> None:
    """Ask the kernel to collapse regions into huge pages; failures, for example for freed memory, are ignored."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in regions:
        first, last = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        for address in range(first, last, BYTES_PER_CALL):
            libc.madvise(address, min(BYTES_PER_CALL, last - address), MADV_COLLAPSE)


def collapse_new(before: list[Region]) -> None:
    """Collapse the regions that are resident now and were not `before`, as far as they still are after `DELAY` seconds too."""
    if new := list(subtract(resident_regions(), before)):
        time.sleep(DELAY)
        resident = resident_regions()
        collapse(list(subtract(resident, list(subtract(resident, new)))))


def resident_regions() -> list[Region]:
    """The process's regions as in `parse_smaps`; none if the system is not Linux."""
    try:
        return parse_smaps(Path("/proc/self/smaps").read_text(encoding="utf-8"))
    except OSError:
        return []


@contextlib.contextmanager
def new_memory_in_huge_pages() -> Iterator[None]:
    """Collapse the memory that the body allocates and does not free into huge pages: in a thread, `DELAY` seconds later.

    What the caller and other threads allocate before that thread has looked counts too. A process that forks within these seconds
    gets memory twice that parent and child would have shared: fork later, or switch this off.
    """
    if os.environ.get(VARIABLE) == "0":
        yield
        return
    before = resident_regions()
    yield
    threading.Thread(target=collapse_new, args=(before,), name=THREAD, daemon=True).start()


def wait_for_collapse() -> None:
    """Wait until no memory is about to move, as whoever measures a model that was just opened should."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
