"""Prefill: feeds prompts in parts, between which a caller gets the progress, can stop, or lets other rows run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence

import numpy as np

from ..cancellation import UNCANCELLED, CancelScope
from .decoder import Decoder
from .graph_runner import Logits
from .hand_over import lend, new_reader, take_over


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """The tokens of a prompt that have been fed, and all its tokens."""

    done: int
    total: int


def prefill(
    decoder: Decoder,
    token_ids: Sequence[int],
    *,
    row: int = 0,
    scope: CancelScope = UNCANCELLED,
    on_progress: Callable[[Progress], None] | None = None,
) -> Logits:
    """Make a row hold exactly `token_ids`, fed in parts; returns the logits [vocabulary] of the last one.

    The tokens that the row already has in common with them are reused, so the next turn of a conversation feeds only new tokens.
    `on_progress` is called after each part; if it raises, the prefill ends, and the parts fed so far stay in the cache.
    """
    *_, logits = prefill_in_parts(
        decoder, token_ids, row=lambda: row, size=lambda feeding: feeding.part_size, scope=scope, on_progress=on_progress
    )
    assert logits is not None, "the last part returns logits"
    return logits


def prefill_in_parts(
    decoder: Decoder,
    token_ids: Sequence[int],
    *,
    row: Callable[[], int],
    size: Callable[[Decoder], int],
    scope: CancelScope = UNCANCELLED,
    on_progress: Callable[[Progress], None] | None = None,
) -> Generator[Logits | None, None, None]:
    """Like `prefill`, but yields after each part: None, and after the last part the logits. Close it if it is not used up.

    `row` and `size` (tokens of the next part, for the decoder that it is fed to) are called before each part, as other requests may
    change their values in between.
    """
    decoder.choose_engine(len(token_ids), row=row())
    if decoder.engines[row()] is not None:
        yield from prefill_elsewhere(decoder, token_ids, row=row, size=size, scope=scope, on_progress=on_progress)
        return
    start, end = decoder.reusable(token_ids, row=row()), len(token_ids)
    decoder.rewind(start, row=row())
    decoder.reserve(end, row=row())
    while start < end:
        following = part_end(start, end, size=size(decoder), last_alone=decoder.capabilities.has_states)
        if decoder.capabilities.has_states and following == end:
            decoder.keep(row=row())  # for the same prompt again, or one that continues it
        logits = decoder.feed(token_ids[start:following], row=row(), scope=scope)
        if on_progress is not None:
            on_progress(Progress(following, end))
        start = following
        yield np.asarray(logits[-1]) if start == end else None


def prefill_elsewhere(
    decoder: Decoder,
    token_ids: Sequence[int],
    *,
    row: Callable[[], int],
    size: Callable[[Decoder], int],
    scope: CancelScope,
    on_progress: Callable[[Progress], None] | None,
) -> Generator[Logits | None, None, None]:
    """`prefill_in_parts` on the second engine; the row gets keys and values after the last part, or after an early end."""
    assert decoder.prompt_engine is not None, "the row's engine is it"
    reader = new_reader(decoder.prompt_engine, len(token_ids))
    start = decoder.reusable(token_ids, row=row())
    decoder.rewind(start, row=row())
    first = lend(decoder, row(), reader, start)
    is_over = False
    try:
        for logits in prefill_in_parts(reader, token_ids, row=lambda: 0, size=size, scope=scope, on_progress=on_progress):
            if logits is not None:
                is_over = True
                take_over(reader, decoder, row(), first)
            yield logits
    finally:
        if not is_over:
            take_over(reader, decoder, row(), first)


def part_end(start: int, end: int, *, size: int, last_alone: bool) -> int:
    """The end of the part that begins at `start`; no part has a single token, but with `last_alone` the last token is alone.

    >>> [part_end(start, 5, size=2, last_alone=True) for start in (0, 2, 4)]
    [2, 4, 5]
    >>> [part_end(start, 5, size=2, last_alone=False) for start in (0, 2)]
    [2, 5]
    """
    limit = end - 1 if last_alone and start < end - 1 else end
    return limit if start + size >= limit - 1 else start + size
