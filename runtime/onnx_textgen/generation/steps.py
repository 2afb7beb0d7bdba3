"""One step of a text: feeds its pending tokens, with a draft of the next ones, and shifts the context when it is full."""

from __future__ import annotations

import numpy as np

from ..cancellation import CancelScope
from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.prefill import prefill
from .continuation import Continuation


def feed_pending(decoder: Decoder, continuation: Continuation, scope: CancelScope, *, row: int = 0) -> Logits:
    """Feed the tokens that were appended and not fed yet; returns the logits [vocabulary] of the last.

    If the text uses drafts, a draft of the next tokens is fed with them. If the tokens do not fit in the context, the text in the
    cache is replaced by what `shifted` leaves of it.
    """
    if (known := accept_verified(decoder, continuation, row)) is not None:
        return known
    held, new = decoder.token_ids[row], continuation.take_pending()
    room = continuation.limits.context_length - len(held) - len(new)
    if room < 0:
        return prefill(decoder, shifted([*held, *new]), row=row, scope=scope)
    draft, verifier = propose(decoder, continuation, len(new), room, scope), continuation.verifier
    if not draft:
        logits: Logits = decoder.feed(new, row=row, scope=scope)[-1]
        return logits
    both = [*new, *draft]
    if verifier:
        rows = decoder.verify(both, verifier, row=row, scope=scope)
    else:
        rows = decoder.feed(both, row=row, every_position=True, scope=scope)
    continuation.verified.extend(zip(draft, rows[len(new) :], strict=True))
    return np.asarray(rows[len(new) - 1])


def propose(decoder: Decoder, continuation: Continuation, new: int, room: int, scope: CancelScope) -> list[int]:
    """A draft of at most `room` tokens after the text and its `new` tokens; empty if it could not be rolled back."""
    drafter, left = continuation.drafter, continuation.config.max_new_tokens - len(continuation.token_ids) - 1
    if continuation.verifier is not None:  # several tokens that a constraint forces are fed without a draft
        left = min(left, continuation.verifier.most_tokens - new) if new == 1 else 0
    if drafter is None or not decoder.capabilities.can_verify_drafts or min(room, left) < 1:
        return []
    return drafter.propose(continuation.token_ids, min(room, left), scope)


def accept_verified(decoder: Decoder, continuation: Continuation, row: int) -> Logits | None:
    """Accept pending tokens that were drafted and fed already; returns the logits [vocabulary] after them, None if some are left.

    If the text continues with another token than the draft, the rest of the draft is rolled back.
    """
    pending, verified, logits = continuation.pending_ids, continuation.verified, None
    if not verified:
        return None
    if continuation.verifier is not None and len(pending) > 1:  # without drafts these are fed in one run
        roll_back_draft(decoder, continuation, row)
        return None
    while pending and verified and pending[0] == verified[0][0]:
        pending.pop(0)
        logits = verified.popleft()[1]
        continuation.accepted_of_draft += 1
    if pending or not verified:
        roll_back_draft(decoder, continuation, row)
    return None if pending else logits


def roll_back_draft(decoder: Decoder, continuation: Continuation, row: int) -> None:
    """Roll back drafted tokens that are not part of the text, and tell the drafter how many were accepted."""
    if continuation.verified:
        decoder.rewind(len(decoder.token_ids[row]) - len(continuation.verified), row=row)
        continuation.verified.clear()
    if continuation.drafter is not None:
        continuation.drafter.record_accepted(continuation.accepted_of_draft)
    continuation.accepted_of_draft = 0


def shifted(token_ids: list[int]) -> list[int]:
    """The newer half of the tokens; keys are rotated by position, so it must be computed again at its new positions.

    >>> shifted([1, 2, 3, 4, 5])
    [4, 5]
    """
    return token_ids[(len(token_ids) + 1) // 2 :]
