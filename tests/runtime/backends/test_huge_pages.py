"""Memory in huge pages: which regions are collapsed, and that their contents stay."""

import mmap
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.backends.huge_pages import (
    DELAY,
    HUGE_PAGE,
    THREAD,
    collapse,
    collapse_new,
    new_memory_in_huge_pages,
    resident_regions,
    subtract,
    wait_for_collapse,
)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what memory is in use")
regions = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=6)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONNX_TEXTGEN_HUGE_PAGES")


@given(regions, regions)
def test_what_is_left_of_regions_is_every_address_that_no_known_one_has(some: list, known: list) -> None:
    for region in some:
        left = [address for start, end in subtract([region], known) for address in range(start, end)]
        assert left == [address for address in range(*region) if not any(first <= address < last for first, last in known)]


def in_huge_pages(array: np.ndarray) -> int:
    """Bytes, of the mapping that the array lies in."""
    place, inside = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(each, 16) for each in first.split("-"))
            inside = start <= place < end
        elif inside and first == "AnonHugePages:":
            return 1024 * int(line.split()[1])
    raise AssertionError("the array lies nowhere")


def small_pages(size: int) -> np.ndarray:
    """Numbers in memory that nobody asked huge pages for, as NumPy would."""
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)


@on_linux
def test_new_memory_that_is_in_use_is_collapsed_and_keeps_its_contents() -> None:
    with new_memory_in_huge_pages():
        array = small_pages(16 * HUGE_PAGE)
        array[:] = content = np.arange(array.size, dtype=np.uint32).astype(np.uint8)
    wait_for_collapse()
    assert (array == content).all()
    if in_huge_pages(array) == 0:
        pytest.skip("this kernel collapses no memory: older than Linux 6.1, or built without huge pages")
    assert in_huge_pages(array) >= 8 * HUGE_PAGE


@on_linux
def test_threads_that_write_meanwhile_lose_nothing() -> None:
    """Each adds to its own part of the memory, which is collapsed again and again, while small pages are made of it anew."""
    memory = mmap.mmap(-1, 8 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    counts = np.frombuffer(memory, dtype=np.uint32).reshape(4, -1)
    start, written, ends = counts.ctypes.data, [0] * len(counts), threading.Event()

    def write(row: int) -> None:
        while not ends.is_set():
            counts[row] += 1
            written[row] += 1

    threads = [threading.Thread(target=write, args=(row,)) for row in range(len(counts))]
    for thread in threads:
        thread.start()
    for _ in range(20):
        collapse([(start, start + 8 * HUGE_PAGE)])
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.madvise(mmap.MADV_HUGEPAGE)
    ends.set()
    for thread in threads:
        thread.join()
    assert all(written)
    for row, times in enumerate(written):
        assert (counts[row] == times).all()


@on_linux
def test_the_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_TEXTGEN_HUGE_PAGES", "0")
    with new_memory_in_huge_pages():
        array = small_pages(16 * HUGE_PAGE)
        array[:] = 1
        before = in_huge_pages(array)
    assert not any(thread.name == THREAD for thread in threading.enumerate())
    assert in_huge_pages(array) == before


@on_linux
def test_memory_that_is_hardly_in_use_stays_so() -> None:
    with new_memory_in_huge_pages():
        array = small_pages(16 * HUGE_PAGE)
        array[:1000] = 1
        before = in_huge_pages(array)  # a neighbour's, where the system has made one mapping of both
    wait_for_collapse()
    assert in_huge_pages(array) == before


@on_linux
def test_a_region_that_was_freed_does_no_harm() -> None:
    memory = mmap.mmap(-1, 4 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    memory.close()
    collapse([(start, start + 4 * HUGE_PAGE)])


@on_linux
def test_memory_that_is_released_before_the_collapse_begins_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seconds = resident_regions(), list[float]()
    memory = mmap.mmap(-1, 16 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = 1

    def wait_and_release(delay: float) -> None:
        seconds.append(delay)
        memory.madvise(mmap.MADV_DONTNEED)

    monkeypatch.setattr(time, "sleep", wait_and_release)
    collapse_new(before)
    assert seconds == [DELAY], "it had found the memory"
    assert in_huge_pages(array) == 0
    assert not array.any()
