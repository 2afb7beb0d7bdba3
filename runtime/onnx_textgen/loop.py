"""The loop: feed, choose, append, until something ends the text.

One text over a context of its own as a stream of chunks, or the texts of one prompt side by side; the texts of many callers are the
`engine`'s. What a text wants is its `Continuation`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from .cancellation import InterruptedRunError, Watch
from .continuation import Continuation
from .decoder import Decoder, Logits, Progress, prefill
from .errors import OptionError
from .results import Chunk


def feed_prompt(
    decoder: Decoder, continuation: Continuation, *, row: int = 0, on_progress: Callable[[Progress], None] | None = None
) -> Logits:
    """Feed what the row does not hold yet of a prompt, by the clock; returns the logits [vocabulary] of its last token."""
    continuation.reused_tokens = decoder.reusable(continuation.prompt_ids, row=row)
    start = time.perf_counter()
    try:
        return prefill(decoder, continuation.prompt_ids, row=row, on_progress=on_progress)
    finally:
        continuation.prefill_seconds = time.perf_counter() - start


def go_on(decoder: Decoder, continuation: Continuation, *, row: int = 0) -> Logits:
    """Feed the tokens that were appended and not fed yet; returns the logits [vocabulary] of the last.

    Where they do not fit in the context, what `shifted` leaves of the text takes its place.
    """
    held, new = decoder.token_ids[row], continuation.take_unfed()
    if len(held) + len(new) <= continuation.limits.context_length:
        logits: Logits = decoder.feed(new, row=row)[-1]
        return logits
    return prefill(decoder, shifted([*held, *new], keep=continuation.kept_tokens), row=row)


def shifted(token_ids: list[int], *, keep: int) -> list[int]:
    """The first `keep` tokens and the newer half of the others.

    Keys were turned by their positions, so the half is computed anew at its new place.

    >>> shifted([1, 2, 3, 4, 5, 6], keep=2)
    [1, 2, 5, 6]
    """
    return token_ids[:keep] + token_ids[keep + (len(token_ids) - keep + 1) // 2 :]


def run(
    decoder: Decoder, continuation: Continuation, watch: Watch, on_progress: Callable[[Progress], None] | None = None
) -> Generator[Chunk, None, None]:
    """One text, a chunk per token."""
    with watch.active():
        decoder.watch = watch
        try:
            logits = feed_prompt(decoder, continuation, on_progress=on_progress)
            while continuation.finish_reason is None:
                token_id, changes = continuation.choose(logits), decoder.changes
                yield continuation.accept(token_id, logits)
                while continuation.finish_reason is None and continuation.is_forced:
                    yield continuation.accept(continuation.forced.popleft())
                if decoder.changes != changes:
                    raise OptionError("another stream used this context meanwhile; give each of them one of its own: new_context()")
                if continuation.finish_reason is None:
                    decoder.watch = watch
                    logits = go_on(decoder, continuation)
        except InterruptedRunError as interrupted:
            yield continuation.finish(interrupted.reason)


def step_together(
    decoder: Decoder,
    rows: list[Continuation],
    logits: list[Logits],
    on_choice: Callable[[int, int, Logits], None] = lambda index, token_id, logits: None,
) -> None:
    """Go on with texts whose prompts the rows hold, and whose next tokens have these `logits`; raises `InterruptedRunError`.

    `on_choice` is told the row, the token and the logits [vocabulary] it was chosen by.
    """
    while any(active := [row.finish_reason is None for row in rows]):
        for index, row in enumerate(rows):
            if active[index]:
                token_id = row.choose(logits[index])
                on_choice(index, token_id, logits[index])
                row.accept(token_id, logits[index])
        active = [row.finish_reason is None for row in rows]
        for index, row in enumerate(rows):
            if active[index] and len(decoder.token_ids[index]) >= row.limits.context_length:
                logits[index] = go_on(decoder, row, row=index)
                active[index] = False
        if any(active):
            stepped = decoder.step([row.take_unfed()[0] if on else 0 for row, on in zip(rows, active, strict=True)], active)
            logits = [new if on else old for new, old, on in zip(stepped, logits, active, strict=True)]
