"""Conversations that clients continue by the id of their last response. They are kept in memory only."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import HTTPException

from .output import response_of
from .schema import ITEMS, Item, ReferenceItem

MAX_RESPONSES = 1024
MAX_BYTES = 64 * 2**20
"""Of all of them in memory, which is why they are kept as JSON: as objects they would take up to fifty times as much."""
OVERHEAD = 512
"""Bytes of an entry, without its JSON."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A response, and the conversation up to and with it."""

    response: dict[str, Any]
    chat: Sequence[dict[str, Any]]
    """The messages, without the instructions."""


class Store:
    """The responses of a server. If there are too many, those that were not used for the longest time are dropped."""

    def __init__(self) -> None:
        self.kept = OrderedDict[str, bytes]()
        self.size_bytes = 0

    def add(self, response: dict[str, Any], chat: Sequence[dict[str, Any]]) -> None:
        """Keep a response."""
        written = json.dumps([response, [*chat]], separators=(",", ":")).encode()
        self.kept[response["id"]] = written
        self.size_bytes += len(written) + OVERHEAD
        while self.kept and (len(self.kept) > MAX_RESPONSES or self.size_bytes > MAX_BYTES):
            self.size_bytes -= len(self.kept.popitem(last=False)[1]) + OVERHEAD

    def get(self, response_id: str) -> Stored:
        """A response; raises 404 if it is not kept."""
        if response_id not in self.kept:
            reason = "it was deleted, not stored, or dropped for newer ones; send the whole conversation as input"
            raise HTTPException(404, f"there is no response {response_id!r:.80} here: {reason}")
        self.kept.move_to_end(response_id)
        return Stored(*json.loads(self.kept[response_id]))

    def delete(self, response_id: str) -> None:
        """Forget a response; raises 404 if it is not kept."""
        self.get(response_id)
        self.size_bytes -= len(self.kept.pop(response_id)) + OVERHEAD

    def resolved(self, items: Iterable[Item]) -> list[Item]:
        """The items, with those that references name in their places; raises 404 for one of a response that is not kept."""
        kept, found = dict[str, Any](), list[Item]()
        for item in items:
            if not isinstance(item, ReferenceItem):
                found.append(item)
                continue
            home = response_of(item.id)
            if item.id not in kept and home in self.kept:
                kept |= {each["id"]: each for each in self.get(home).response["output"]}
            if item.id not in kept:
                raise HTTPException(404, f"there is no item {item.id!r:.80} here: its response is not kept; send the item itself")
            found += ITEMS.validate_python([kept[item.id]])
        return found

    def conversation(self, response_id: str | None) -> Conversation:
        """The conversation that a request continues, a new one without an id; raises 404 if it is not kept."""
        return Conversation(self, () if response_id is None else self.get(response_id).chat)


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """Stored conversation that a request continues."""

    store: Store
    before: Sequence[dict[str, Any]]
    """The messages so far."""
