"""How many continuations of one package one runtime writes as others do, within a limit of time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from onnx_textgen.diagnostics.runtimes.protocol import Runtime, Task
from onnx_textgen.package.manifest import Manifest

Continuations = list[tuple[int, ...]]
SHORT = 8
"""New tokens of the first run, and of all runs if that one was slow."""


def write(
    runtime: Runtime, folder: Path, manifest: Manifest, prompts: Sequence[tuple[int, ...]], *, tokens: int, limit_seconds: float
) -> tuple[Continuations, int]:
    """As many continuations as the time allows, and the tokens of each: `tokens`, or `SHORT` where the runtime is slow.

    Raises the errors of `Runtime.continue_greedily`.
    """
    begun = time.perf_counter()
    found = runtime.continue_greedily(folder, manifest, [Task(prompts[0], SHORT)])
    took = time.perf_counter() - begun
    length, count = tokens if took < limit_seconds / 4 else SHORT, 1
    if length != SHORT:
        found = []
    while len(found) < len(prompts) and time.perf_counter() - begun + took * 2 < limit_seconds:
        before = time.perf_counter()
        part = prompts[len(found) : len(found) + count]
        found += runtime.continue_greedily(folder, manifest, [Task(prompt, length) for prompt in part])
        took, count = time.perf_counter() - before, count * 2
    return found, length


def equal(found: Continuations, reference: Continuations, tokens: int) -> int:
    """How many are the same as the first of the reference, as far as `tokens`."""
    return sum(one == other[:tokens] for one, other in zip(found, reference, strict=False))
