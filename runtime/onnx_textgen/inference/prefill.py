"""Prompts go into a decoder in parts: between two of them a caller hears how far it is, can stop, or others have their turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..cancellation import NOBODY, Watch
from .decoder import Decoder
from .graph_runner import Logits


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a prompt has been fed."""

    done: int
    total: int


def prefill(
    decoder: Decoder,
    token_ids: Sequence[int],
    *,
    row: int = 0,
    watch: Watch = NOBODY,
    on_progress: Callable[[Progress], None] | None = None,
) -> Logits:
    """Make a row hold exactly `token_ids`, fed in chunks; returns the logits [vocabulary] of the last one.

    What the row holds already is kept as far as it agrees, so the next turn of a conversation feeds only what is new.
    `on_progress` is called between chunks; what it raises ends the prefill, with the chunks fed so far in the cache.
    """
    *_, logits = prefill_in_parts(
        decoder, token_ids, row=lambda: row, size=lambda: decoder.chunk, watch=watch, on_progress=on_progress
    )
    assert logits is not None, "the last part gives logits"
    return logits


def prefill_in_parts(
    decoder: Decoder,
    token_ids: Sequence[int],
    *,
    row: Callable[[], int],
    size: Callable[[], int],
    watch: Watch = NOBODY,
    on_progress: Callable[[Progress], None] | None = None,
) -> Iterator[Logits | None]:
    """The same, with a pause after each chunk: None, and behind the last one the logits.

    `row` and `size` (tokens of the next chunk) are asked before each one, as others may have changed them meanwhile.
    """
    start, end = decoder.reusable(token_ids, row=row()), len(token_ids)
    decoder.rewind(start, row=row())
    decoder.reserve(end, row=row())
    while start < end:
        following = next_cut(start, end, size=size(), last_alone=decoder.capabilities.has_states)
        if decoder.capabilities.has_states and following == end:
            decoder.keep(row=row())  # for the same prompt again, or one that goes on from it
        logits = decoder.feed(token_ids[start:following], row=row(), watch=watch)
        if on_progress is not None:
            on_progress(Progress(following, end))
        start = following
        yield np.asarray(logits[-1]) if start == end else None


def next_cut(start: int, end: int, *, size: int, last_alone: bool) -> int:
    """Where the part of a prompt that begins at `start` ends; none has a single token but the last, where it is to be alone.

    >>> [next_cut(start, 5, size=2, last_alone=True) for start in (0, 2, 4)]
    [2, 4, 5]
    >>> [next_cut(start, 5, size=2, last_alone=False) for start in (0, 2)]
    [2, 5]
    """
    cut = end - 1 if last_alone and start < end - 1 else end
    return cut if start + size >= cut - 1 else start + size
