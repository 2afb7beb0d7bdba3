"""Prefill: feeds prompts in parts, between which a caller gets the progress, can stop, or lets other rows run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Generator, Sequence

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
    end_ids: Collection[int] = (),
) -> Generator[Logits | None, None, None]:
    """Like `prefill`, but yields after each part: None, and after the last part the logits. Close it if it is not used up.

    `row` and `size` (tokens of the next part, for the decoder that it is fed to) are called before each part, as other requests may
    change their values in between. `end_ids`: tokens that end a message.
    """
    decoder.choose_engine(len(token_ids), row=row())
    if decoder.engines[row()] is not None:
        yield from prefill_elsewhere(decoder, token_ids, row=row, size=size, scope=scope, on_progress=on_progress)
        return
    start, end = decoder.reusable(token_ids, row=row()), len(token_ids)
    decoder.rewind(start, row=row())
    decoder.reserve(end, row=row())
    has_states = decoder.capabilities.has_states
    returns = lengths_to_return_to(token_ids, start, end_ids) if has_states or decoder.has_windows else []
    decoder.mark([*returns, end], row=row())
    if not has_states:
        returns = []
    while start < end:
        following = part_end(start, next((length for length in returns if length > start), end), size=size(decoder))
        following = decoder.picture_boundary(token_ids, following)
        if start in returns:
            decoder.keep(row=row())
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
    reader = new_reader(decoder.prompt_engine, len(token_ids), exact_history=decoder.exact_history)
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


def lengths_to_return_to(token_ids: Sequence[int], start: int, end_ids: Collection[int]) -> list[int]:
    """Lengths of a prompt, fed from `start`, whose recurrent states and windows are kept for prompts that begin like it.

    They end before the last token, for the same prompt again; after the last message, since a template may write the next turn
    without what it wrote to begin this answer; before the last message, and shortly before its end, since agents write it otherwise
    in the next turn; and after the first message, which often is that of the system. No part between them has a single token.

    >>> lengths_to_return_to([5, 6, 9, 5, 6, 7, 9, 3, 4, 8], 0, {9})
    [3, 7, 9]
    >>> lengths_to_return_to([5, 6, 9, 5, 9, 3], 2, {9})
    [5]
    """
    found = [len(token_ids) - 1]
    ends = [length for length, token_id in enumerate(token_ids, 1) if token_id in end_ids]
    for length in sorted({*ends[:1], *ends[-2:], len(token_ids) * 31 // 32}, reverse=True):
        if start + 2 <= length <= found[0] - 2:
            found.insert(0, length)
    return found


def part_end(start: int, end: int, *, size: int) -> int:
    """The end of a part that begins at `start`, at most `end`; no part has a single token, unless only one is left.

    >>> [part_end(start, 5, size=2) for start in (0, 2)]
    [2, 5]
    """
    return end if start + size >= end - 1 else start + size
