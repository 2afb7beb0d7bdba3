"""Drafts from a draft head: one layer over the model's own hidden states (EAGLE-3, Li et al. 2025).

The head reads pairs of a token and the model's hidden states of the token before it, and predicts the token after the pair. For
tokens that it has guessed itself it reads its own states in their place. It has separate keys and values, which follow the text:
after each draft, pairs with its own states are rolled back, and those of accepted tokens are fed with the model's states.

The states of a prompt's beginning that was reused from a cache are unknown, so the head begins after it. Its positions then count
from there, which makes no difference to rotary embeddings.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..backends.protocol import Graph
from ..backends.signature import DRAFT_STATES, NEXT_STATES, OWN_STATES
from ..cancellation import CancelScope
from ..errors import PackageError
from ..inference.decoder import Decoder
from ..inference.graph_runner import Listener, Logits
from ..package.manifest import Geometry
from .draft_model import Assistant

MOST_KEPT = 2048
"""The most tokens whose states are kept until the head reads them; it was trained on texts of about this length."""

States = npt.NDArray[np.float32]


class KnownStates:
    """The model's hidden states of consecutive tokens of a text, which the head has not read yet."""

    def __init__(self) -> None:
        self.first = 0
        """Position in the text of the first token whose states are held."""
        self.parts: list[States] = []
        """[tokens, width] each, in order."""

    @property
    def end(self) -> int:
        """Position after the last token whose states are held."""
        return self.first + sum(map(len, self.parts))

    def add(self, start: int, states: States) -> None:
        """Hold the states [tokens, width] of tokens from `start`; those of rolled back tokens are replaced.

        >>> known = KnownStates()
        >>> known.add(4, np.zeros((3, 8), np.float32))
        >>> known.add(5, np.zeros((1, 8), np.float32))
        >>> known.first, known.end
        (4, 6)
        """
        if self.first <= start <= self.end:
            self.keep(start)
        else:
            self.first, self.parts = start, []
        self.parts.append(states)
        while self.end - self.first > MOST_KEPT and len(self.parts) > 1:
            self.first += len(self.parts.pop(0))

    def keep(self, end: int) -> None:
        """Drop the states of tokens from position `end` on."""
        while self.parts and self.end > end:
            last = self.parts.pop()
            if (left := end - self.end) > 0:
                self.parts.append(last[:left])

    def take(self, end: int) -> States:
        """Return the states [tokens, width] of the tokens up to `end`, and hold none any more."""
        self.keep(end)
        taken, self.first, self.parts = np.concatenate(self.parts), end, []
        return taken


class DraftHead(Assistant):
    """The drafts of a head over the model's hidden states, for one text."""

    name = "draft head"
    begun = 0
    """Position in the text of the first token whose states the head has read."""

    @functools.cached_property
    def states(self) -> KnownStates:
        """The model's states that it has not read yet."""
        return KnownStates()

    @functools.cached_property
    def own(self) -> States:
        """Its own state [1, width] after the last pair, for the next guess."""
        raise AssertionError("a run sets it")

    @property
    def listener(self) -> Listener | None:
        """See `Drafter.listener`."""
        return None if self.has_failed or not self.length else self.states.add

    def draft(self, most: int, scope: CancelScope) -> list[int]:
        """See `Assistant.draft`; [] if the states of a token before the last one are not known."""
        return super().draft(most, scope) if self.states.end >= len(self.text) - 1 > self.states.first else []

    def close(self) -> None:
        """Release keys, values and states."""
        super().close()
        self.states.keep(0)

    def catch_up(self, decoder: Decoder, scope: CancelScope) -> Logits:
        """Feed the pairs of the text that the head has not seen; returns the logits [vocabulary] after the last one."""
        if self.states.first != self.begun + self.known:
            self.begun, self.known = self.states.first, 0
        decoder.rewind(self.known)
        states = self.states.take(len(self.text) - 1)
        new = self.text[len(self.text) - len(states) :]
        for start in range(0, len(new), decoder.part_size):
            part = slice(start, start + decoder.part_size)
            logits = self.run(decoder, new[part], states[part], self.nothing(decoder, OWN_STATES), scope)
        self.known += len(new)
        return logits

    def feed(self, decoder: Decoder, token_ids: Sequence[int], scope: CancelScope) -> Logits:
        """Feed a guessed token with the head's own state; returns the logits [vocabulary] after it."""
        return self.run(decoder, token_ids, self.nothing(decoder, DRAFT_STATES), self.own, scope)

    def run(self, decoder: Decoder, token_ids: Sequence[int], states: States, own: States, scope: CancelScope) -> Logits:
        """Feed tokens, each with a state of the model or, after those, of the head; returns the logits [vocabulary] of the last."""
        decoder.runner.extra_inputs = {DRAFT_STATES: states[None], OWN_STATES: own[None]}
        logits: Logits = decoder.feed(token_ids, scope=scope)[-1]
        self.own = np.asarray(decoder.last_extra_outputs[0][0, -1:], dtype=np.float32)
        return logits

    @staticmethod
    def nothing(decoder: Decoder, role: str) -> States:
        """No states [0, width] for an input of the head's graph."""
        width = decoder.runner.roles[role].shape[-1]
        assert isinstance(width, int), "open_head_decoder has checked"
        return np.zeros((0, width), np.float32)


def open_head_decoder(graph: Graph, geometry: Geometry) -> Decoder:
    """An empty decoder of a head for a model of this geometry; raises `PackageError` for a graph that is no head."""
    roles = graph.roles
    if not {DRAFT_STATES, OWN_STATES} <= roles.keys() or NEXT_STATES not in graph.outputs:
        raise PackageError("the draft head takes or gives other states than a head does; export the model again")
    if any(len(roles[role].shape) != 3 or not isinstance(roles[role].shape[-1], int) for role in (DRAFT_STATES, OWN_STATES)):
        raise PackageError("the draft head takes states of no known width; export the model again")
    return Decoder(graph, geometry, extra_outputs=(NEXT_STATES,))
