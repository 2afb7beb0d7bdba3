"""What this machine is, and what it can do at most: the rates at which memory is read, and float32 numbers multiplied and added."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def cpu_fields() -> dict[str, str]:
    """What Linux says of the last core; empty elsewhere."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def instructions() -> set[str]:
    """The processor's instruction sets, by Linux's names."""
    return set(cpu_fields().get("flags", "").split())


def processor() -> str:
    """The processor's name, its cores, and those of its instructions that products of few bits are made of (Linux on x86)."""
    special = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in instructions()]
    return ", ".join([cpu_fields().get("model name", platform.machine()), f"{os.cpu_count()} cores", *special])
