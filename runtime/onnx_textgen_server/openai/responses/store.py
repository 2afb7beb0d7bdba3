"""Conversations that clients continue by the id of their last response. They are kept in memory only."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from fastapi import HTTPException

MAX_RESPONSES = 1024
MAX_CHARACTERS = 64 * 2**20
"""Of all conversations, as JSON."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A response, and the conversation up to and with it."""

    response: dict[str, Any]
    chat: Sequence[dict[str, Any]]
    """The messages, without the instructions."""
    characters: int


class Store:
    """The responses of a server. If there are too many, those that were not used for the longest time are dropped."""

    def __init__(self) -> None:
        self.kept = OrderedDict[str, Stored]()
        self.characters = 0

    def add(self, response: dict[str, Any], chat: Sequence[dict[str, Any]]) -> None:
        """Keep a response."""
        stored = Stored(response, chat, len(json.dumps([response, *chat])))
        self.kept[response["id"]] = stored
        self.characters += stored.characters
        while self.kept and (len(self.kept) > MAX_RESPONSES or self.characters > MAX_CHARACTERS):
            self.characters -= self.kept.popitem(last=False)[1].characters

    def get(self, response_id: str) -> Stored:
        """A response; raises 404 if it is not kept."""
        if response_id not in self.kept:
            reason = "it was deleted, not stored, or dropped for newer ones; send the whole conversation as input"
            raise HTTPException(404, f"there is no response {response_id!r:.80} here: {reason}")
        self.kept.move_to_end(response_id)
        return self.kept[response_id]

    def delete(self, response_id: str) -> None:
        """Forget a response; raises 404 if it is not kept."""
        self.characters -= self.get(response_id).characters
        del self.kept[response_id]

    def conversation(self, response_id: str | None) -> Conversation:
        """The conversation that a request continues, a new one without an id; raises 404 if it is not kept."""
        return Conversation(self, () if response_id is None else self.get(response_id).chat)


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """Stored conversation that a request continues."""

    store: Store
    before: Sequence[dict[str, Any]]
    """The messages so far."""
