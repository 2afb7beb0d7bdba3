"""The loop: feed, choose, append, until something ends the text.

One text at a time as a stream of chunks, or several side by side. What a text wants is its `Continuation`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from .continuation import Continuation
from .decoder import Decoder, Logits, Progress, prefill
from .errors import OptionError
from .results import Chunk


def feed_prompt(
    decoder: Decoder, continuation: Continuation, *, row: int = 0, on_progress: Callable[[Progress], None] | None = None
) -> Logits:
    """Feed what the row does not hold yet of a prompt, by the clock; returns the logits [vocabulary] of its last token."""
    continuation.reused_tokens = decoder.reusable(continuation.prompt_ids[:-1], row=row)
    start = time.perf_counter()
    logits = prefill(decoder, continuation.prompt_ids, row=row, on_progress=on_progress)
    continuation.prefill_seconds = time.perf_counter() - start
    return logits


def run(
    decoder: Decoder, continuation: Continuation, on_progress: Callable[[Progress], None] | None = None
) -> Generator[Chunk, None, None]:
    """One text, a chunk per token."""
    logits = feed_prompt(decoder, continuation, on_progress=on_progress)
    while continuation.finish_reason is None:
        token_id, changes = continuation.choose(logits), decoder.changes
        yield continuation.accept(token_id, logits)
        if continuation.finish_reason is None:
            if decoder.changes != changes:
                raise OptionError("another stream used this context meanwhile; give each of them one of its own: new_context()")
            logits = decoder.feed([token_id])[-1]


def run_together(decoder: Decoder, rows: list[Continuation]) -> None:
    """The same loop over several texts: each prompt alone into its row, then one step for all at a time."""
    logits = []
    for index, row in enumerate(rows):
        row.started = time.perf_counter()  # the rows fed before it are not on its clock
        logits.append(feed_prompt(decoder, row, row=index))
    while any(active := [row.finish_reason is None for row in rows]):
        token_ids = [row.choose(logits[index]) if active[index] else 0 for index, row in enumerate(rows)]
        for index, row in enumerate(rows):
            if active[index]:
                row.accept(token_ids[index], logits[index])
        if any(active := [row.finish_reason is None for row in rows]):
            logits = list(decoder.step(token_ids, active))
