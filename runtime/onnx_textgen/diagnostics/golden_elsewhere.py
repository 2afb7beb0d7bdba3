"""Compares a package's golden continuations with those that another runtime writes, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..inference.decoder import Decoder
from ..inference.prefill import prefill
from ..package.manifest import GoldenRun, Manifest
from .runtimes.protocol import Rounding, Runtime, Task


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """One golden continuation, and what the other runtime wrote instead."""

    prompt_tokens: int
    new_tokens: int
    """Tokens of the continuation before an id that ends a text."""
    is_exact: bool
    """Whether the continuation is the one of products in float32, where that differs from the package's own."""
    first_difference: int | None
    """Index of the first token that differs; None if the two are equal."""
    expected_id: int | None = None
    """The recorded token there; None: the text ends."""
    found_id: int | None = None
    """The other runtime's token there; None: it ends the text."""
    gap: float | None = None
    """How near the two largest logits are there in our own runtime, as a part of the largest one's size."""

    @property
    def is_equal(self) -> bool:
        """Whether the other runtime wrote the same."""
        return self.first_difference is None


def compare_golden(runtime: Runtime, folder: Path, manifest: Manifest, new_decoder: Callable[[], Decoder]) -> list[Comparison]:
    """Have a runtime continue every golden prompt; `new_decoder` makes our own empty decoders, for the gaps.

    Raises the errors of `Runtime.continue_greedily`.
    """
    expected = [expected_ids(run, manifest, runtime.rounding) for run in manifest.golden]
    tasks = [Task(run.prompt_ids, len(ids)) for run, (ids, _) in zip(manifest.golden, expected, strict=True)]
    written = runtime.continue_greedily(folder, manifest, tasks)
    found = []
    for run, (ids, is_exact), new_ids in zip(manifest.golden, expected, written, strict=True):
        known = before_end(ids, manifest.eos_ids)
        place = first_difference(known, new_ids)
        compared = Comparison(len(run.prompt_ids), len(known), is_exact, place)
        if place is not None:
            compared = dataclasses.replace(
                compared,
                expected_id=known[place] if place < len(known) else None,
                found_id=new_ids[place] if place < len(new_ids) else None,
                gap=gap_after(new_decoder(), (*run.prompt_ids, *known[:place])),
            )
        found.append(compared)
    return found


def expected_ids(run: GoldenRun, manifest: Manifest, rounding: Rounding) -> tuple[tuple[int, ...], bool]:
    """The ids that a runtime should write, and whether they are those of products in float32.

    A package whose own continuation is that of float32 has none of the second kind.
    """
    if rounding == "none" and not manifest.is_exact and run.exact_ids:
        return run.exact_ids, True
    return run.new_ids, False


def before_end(ids: Sequence[int], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """The ids before the first that ends a text.

    >>> before_end([5, 6, 1, 7], eos_ids=[1])
    (5, 6)
    """
    ends = [place for place, token_id in enumerate(ids) if token_id in eos_ids]
    return tuple(ids[: ends[0]] if ends else ids)


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """Index of the first place where two texts differ, also by ending; None if there is none.

    >>> first_difference([1, 2], [1, 3]), first_difference([1, 2], [1]), first_difference([1], [1])
    (1, 1, None)
    """
    if tuple(expected) == tuple(found):
        return None
    same = [a == b for a, b in zip(expected, found, strict=False)]
    return same.index(False) if False in same else len(same)


def gap_after(decoder: Decoder, ids: Sequence[int]) -> float:
    """The difference of the two largest logits after `ids`, as a part of the largest absolute logit."""
    logits = prefill(decoder, ids)
    second, first = np.partition(logits, -2)[-2:]
    return float((first - second) / np.abs(logits).max())
