"""A conversation as a tree of messages: another answer, or an edited message, is another branch, and none is lost.

The browser keeps conversations as JSON, see `MessageTree.to_json`; `read_tree` in `stored` checks what comes back.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any]
"""In OpenAI's form: role, content, and `reasoning_content`, `tool_calls`, `tool_call_id` where there are such."""

ROOT = -1
"""The parent of a first message."""
VERSION = 1
TITLE_CHARS = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What an answer cost, and how it ended."""

    model: str = ""
    generated_tokens: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens that were in the cache already."""
    context_length: int = 0
    tokens_per_second: float = 0.0
    first_token_seconds: float = 0.0
    thinking_seconds: float = 0.0
    """0 if that is not known."""
    finish_reason: str = ""
    """Empty while the answer grows."""

    @property
    def context_tokens(self) -> int:
        """Tokens of the context that are full after the answer."""
        return self.prompt_tokens + self.generated_tokens


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One message of the tree."""

    parent: int
    """Index of the message before it; smaller than its own."""
    message: Message
    figures: Figures | None = None
    growing_calls: tuple[Mapping[str, Any], ...] = ()
    """Tool calls that the model still writes, in OpenAI's form: only drawn, because a part of a call must never run."""


@dataclasses.dataclass(frozen=True, slots=True)
class MessageTree:
    """A conversation, of which one branch is shown. Immutable."""

    key: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    """The name by which the browser keeps it."""
    title: str = ""
    system: str = ""
    """The system prompt."""
    nodes: tuple[Node, ...] = ()
    leaf: int = ROOT
    """The last message that is shown."""

    def path_to(self, index: int) -> list[int]:
        """The messages from the first one to that of an index."""
        path = []
        while index != ROOT:
            path.append(index)
            index = self.nodes[index].parent
        return path[::-1]

    @property
    def path(self) -> list[int]:
        """The messages that are shown."""
        return self.path_to(self.leaf)

    def messages_to(self, index: int) -> list[Message]:
        """The system prompt and the messages up to that of an index, for the model."""
        system = [{"role": "system", "content": self.system}] if self.system.strip() else []
        return [*system, *(self.nodes[each].message for each in self.path_to(index))]

    def alternatives(self) -> dict[int, list[int]]:
        """The messages after each parent, in the order of their making: another answer, or another version of what was said."""
        found: dict[int, list[int]] = {}
        for place, node in enumerate(self.nodes):
            found.setdefault(node.parent, []).append(place)
        return found

    def add(
        self,
        parent: int,
        message: Message,
        figures: Figures | None = None,
        growing_calls: tuple[Mapping[str, Any], ...] = (),
    ) -> MessageTree:
        """With another message after `parent`, which is shown; the first words of the first message are the title."""
        title = self.title or title_of(message)
        node = Node(parent, message, figures, growing_calls)
        return dataclasses.replace(self, title=title, nodes=(*self.nodes, node), leaf=len(self.nodes))

    def show(self, index: int) -> MessageTree:
        """With the latest branch through a message shown."""
        branch = {index}
        for place in range(index + 1, len(self.nodes)):
            if self.nodes[place].parent in branch:
                branch.add(place)
        return dataclasses.replace(self, leaf=max(branch))

    def before_answer(self, index: int) -> MessageTree:
        """With the message that an answer follows shown last; a message that is no answer is itself that message."""
        node = self.nodes[index]
        return dataclasses.replace(self, leaf=node.parent if node.message["role"] == "assistant" else index)

    def after_error(self) -> MessageTree:
        """Without its last node if that is an answer without a text; an earlier answer to the same message is shown again."""
        tree = self
        if self.nodes and self.nodes[-1].message == {"role": "assistant", "content": ""}:
            tree = dataclasses.replace(self, nodes=self.nodes[:-1], leaf=self.nodes[-1].parent)
        answers = tree.alternatives().get(tree.leaf) if tree.leaf != ROOT else None
        return tree.show(answers[-1]) if answers else tree

    def to_json(self) -> dict[str, Any]:
        """As JSON, which `read_tree` reads; without calls that grow."""
        nodes = [
            {"parent": node.parent, "message": node.message, "figures": node.figures and dataclasses.asdict(node.figures)}
            for node in self.nodes
        ]
        return {"version": VERSION, "key": self.key, "title": self.title, "system": self.system, "nodes": nodes, "leaf": self.leaf}


def title_of(message: Message) -> str:
    r"""The first words of a message.

    >>> title_of({"role": "user", "content": "  Tell me a story\nabout a cat"})
    'Tell me a story about a cat'
    """
    words = " ".join(str(message.get("content") or "").split())
    return words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1].rsplit(" ", 1)[0] + "…"
