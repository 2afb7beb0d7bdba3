"""What this machine can do at most: the rate at which memory is read, and at which float32 numbers are multiplied and added."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

READ_BYTES = 2**30
SIDE = 2048


def fastest(action: Callable[[], object], rounds: int = 7) -> float:
    """Median seconds of the faster half of some rounds: what the machine can do when nobody disturbs it."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return statistics.median(sorted(times)[: rounds // 2 + 1])


def read_rate(threads: int) -> float:
    """Bytes per second read by that many threads, each summing a part of an array that no cache holds."""
    parts = np.array_split(np.ones(READ_BYTES // 8, dtype=np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return READ_BYTES / fastest(lambda: list(pool.map(np.bitwise_or.reduce, parts)))


def multiply_rate() -> float:
    """Floating-point operations per second of a float32 product by NumPy's own library (its threads: OPENBLAS_NUM_THREADS)."""
    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)
    return 2 * SIDE**3 / fastest(lambda: matrix @ matrix)
