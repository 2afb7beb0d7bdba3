"""A step of a text: its new tokens are fed, with guesses of what follows them, and where the context is full, it is shifted."""

from __future__ import annotations

import numpy as np

from ..cancellation import Watch
from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.prefill import prefill
from .continuation import Continuation


def go_on(decoder: Decoder, continuation: Continuation, watch: Watch, *, row: int = 0) -> Logits:
    """Feed the tokens that were appended and not fed yet; returns the logits [vocabulary] of the last.

    Guesses of what follows them are fed along, where the text asks for that. Where the tokens do not fit in the context, what
    `shifted` leaves of the text takes its place.
    """
    if (known := take_verified(decoder, continuation, row)) is not None:
        return known
    held, new = decoder.token_ids[row], continuation.take_unfed()
    room = continuation.limits.context_length - len(held) - len(new)
    if room < 0:
        return prefill(decoder, shifted([*held, *new], keep=continuation.kept_tokens), row=row, watch=watch)
    draft, verifier = propose(decoder, continuation, len(new), room, watch), continuation.verifier
    if not draft:
        logits: Logits = decoder.feed(new, row=row, watch=watch)[-1]
        return logits
    both = [*new, *draft]
    if verifier:
        rows = decoder.verify(both, verifier, row=row, watch=watch)
    else:
        rows = decoder.feed(both, row=row, every_position=True, watch=watch)
    continuation.verified.extend(zip(draft, rows[len(new) :], strict=True))
    return np.asarray(rows[len(new) - 1])


def propose(decoder: Decoder, continuation: Continuation, new: int, room: int, watch: Watch) -> list[int]:
    """Guesses of what follows the text and its `new` tokens, at most `room`; none where they could not be taken back."""
    drafter, left = continuation.drafter, continuation.config.max_new_tokens - len(continuation.token_ids) - 1
    if continuation.verifier is not None:  # several tokens that a rule forces are fed as they are without guesses
        left = min(left, continuation.verifier.most_tokens - new) if new == 1 else 0
    if drafter is None or not decoder.capabilities.can_verify_drafts or min(room, left) < 1:
        return []
    return drafter.propose(continuation.token_ids, min(room, left), watch)


def take_verified(decoder: Decoder, continuation: Continuation, row: int) -> Logits | None:
    """The logits [vocabulary] behind the tokens that were appended, where they were guessed and fed already; else None.

    Guesses that turned out wrong are forgotten.
    """
    unfed, verified, logits = continuation.unfed, continuation.verified, None
    if not verified:
        return None
    if continuation.verifier is not None and len(unfed) > 1:  # without guesses these would be fed in one run
        forget_guesses(decoder, continuation, row)
        return None
    while unfed and verified and unfed[0] == verified[0][0]:
        unfed.pop(0)
        logits = verified.popleft()[1]
        continuation.right_guesses += 1
    if unfed or not verified:
        forget_guesses(decoder, continuation, row)
    return None if unfed else logits


def forget_guesses(decoder: Decoder, continuation: Continuation, row: int) -> None:
    """Take back what was fed and is no part of the text, and let the drafter know how many guesses were right."""
    if continuation.verified:
        decoder.rewind(len(decoder.token_ids[row]) - len(continuation.verified), row=row)
        continuation.verified.clear()
    if continuation.drafter is not None:
        continuation.drafter.judge(continuation.right_guesses)
    continuation.right_guesses = 0


def shifted(token_ids: list[int], *, keep: int) -> list[int]:
    """The first `keep` tokens and the newer half of the others.

    Keys were turned by their positions, so the half is computed anew at its new place.

    >>> shifted([1, 2, 3, 4, 5, 6], keep=2)
    [1, 2, 5, 6]
    """
    return token_ids[:keep] + token_ids[keep + (len(token_ids) - keep + 1) // 2 :]
