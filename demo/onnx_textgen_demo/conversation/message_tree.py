"""A conversation as a tree of messages: another answer, or an edited message, is another branch, and none is lost.

The browser keeps conversations as JSON, see `MessageTree.to_json`; `read_tree` in `stored` checks what comes back.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any

from .user_pictures import with_parts

Message = Mapping[str, Any]
"""In OpenAI's form: role, content, and `reasoning_content`, `tool_calls`, `tool_call_id` where there are such. The pictures of a
user's message are `images`."""

DELETED: Message = {"role": "deleted"}
"""Stands where a message was, so that every other one keeps its place: two tabs of a browser may change a conversation at once."""
ROOT = -1
"""The parent of a first message."""
VERSION = 1
TITLE_CHARS = 60
CUT_OFF = ("", "length", "cancelled", "deadline")
"""How an answer ends that the model would continue; empty: it grew when the page was closed."""
BRANCHED = "Branch: "
"""Begins the title of a conversation that another one was copied to."""


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
    unfinished_calls: tuple[Mapping[str, Any], ...] = ()
    """Tool calls that the model still writes, or was cut off in, in OpenAI's form: only drawn, a part of a call must never run."""

    @property
    def is_deleted(self) -> bool:
        """Whether the message was deleted."""
        return self.message == DELETED

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        figures = self.figures and dataclasses.asdict(self.figures)
        unfinished = {"unfinished_calls": list(self.unfinished_calls)} if self.unfinished_calls else {}
        return {"parent": self.parent, "message": self.message, "figures": figures, **unfinished}


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
        """The messages from the first one to that of an index, without those that were deleted."""
        path = []
        while index != ROOT:
            path.append(index)
            index = self.nodes[index].parent
        return [each for each in reversed(path) if not self.nodes[each].is_deleted]

    @property
    def path(self) -> list[int]:
        """The messages that are shown."""
        return self.path_to(self.leaf)

    def messages_to(self, index: int) -> list[Message]:
        """The system prompt and the messages up to that of an index, for the model."""
        system = [{"role": "system", "content": self.system}] if self.system.strip() else []
        return [*system, *(with_parts(self.nodes[each].message) for each in self.path_to(index))]

    def alternatives(self) -> dict[int, list[int]]:
        """Return the children of each message, oldest first: alternative answers, or versions of a message."""
        found: dict[int, list[int]] = {}
        for place, node in enumerate(self.nodes):
            if not node.is_deleted:
                found.setdefault(node.parent, []).append(place)
        return found

    def branch_from(self, index: int) -> set[int]:
        """A message, and all that follow it in any version."""
        branch = {index}
        for place in range(index + 1, len(self.nodes)):
            if self.nodes[place].parent in branch:
                branch.add(place)
        return branch

    def counts(self) -> list[int]:
        """How many messages each branch has: its first one, and all that follow in any version; results of tools do not count."""
        counts = [int(node.message["role"] in ("user", "assistant")) for node in self.nodes]
        for place in range(len(self.nodes) - 1, 0, -1):
            if (parent := self.nodes[place].parent) != ROOT:
                counts[parent] += counts[place]
        return counts

    def add(
        self,
        parent: int,
        message: Message,
        figures: Figures | None = None,
        unfinished_calls: tuple[Mapping[str, Any], ...] = (),
    ) -> MessageTree:
        """With another message after `parent`, which is shown; the first words of the first message are the title."""
        title = self.title or title_of(message)
        node = Node(parent, message, figures, unfinished_calls)
        return dataclasses.replace(self, title=title, nodes=(*self.nodes, node), leaf=len(self.nodes))

    def show(self, index: int) -> MessageTree:
        """With the latest branch through a message shown."""
        return dataclasses.replace(self, leaf=max(each for each in self.branch_from(index) if not self.nodes[each].is_deleted))

    def living(self, index: int) -> int:
        """The message at an index, or the last one before it that was not deleted; `ROOT` if there is none."""
        return next(reversed(self.path_to(index)), ROOT)

    def without(self, index: int) -> MessageTree:
        """With a message deleted, and all that follow it in any version; another version of it is shown, if there is one."""
        gone = self.branch_from(index)
        nodes = tuple(Node(node.parent, DELETED) if place in gone else node for place, node in enumerate(self.nodes))
        parent = nodes[index].parent
        tree = dataclasses.replace(self, nodes=nodes, leaf=self.living(parent))
        others = tree.alternatives()
        if not others:
            return dataclasses.replace(tree, title="")
        return tree.show(others[parent][-1]) if parent in others else tree

    def copied_to(self, index: int) -> MessageTree:
        """Another conversation, of the messages up to that of an index."""
        path = self.path_to(index)
        nodes = tuple(dataclasses.replace(self.nodes[each], parent=place - 1) for place, each in enumerate(path))
        title = f"{BRANCHED}{self.title.removeprefix(BRANCHED)}"
        return MessageTree(title=title, system=self.system, nodes=nodes, leaf=len(path) - 1)

    def before_answer(self, index: int) -> MessageTree:
        """With the message that an answer follows shown last; a message that is no answer is itself that message."""
        node = self.nodes[index]
        return dataclasses.replace(self, leaf=node.parent if node.message["role"] == "assistant" else index)

    def can_be_continued(self, index: int) -> bool:
        """Whether the model can continue a message: text of an answer that was cut off, or that the user has written."""
        node = self.nodes[index]
        is_text = node.message["role"] == "assistant" and bool(node.message["content"]) and not node.message.get("tool_calls")
        return is_text and not node.unfinished_calls and (node.figures is None or node.figures.finish_reason in CUT_OFF)

    def after_error(self) -> MessageTree:
        """Without its last node if that is an empty answer; an earlier answer to the same message is shown again."""
        tree = self
        if self.nodes and self.nodes[-1].message == {"role": "assistant", "content": ""} and not self.nodes[-1].unfinished_calls:
            tree = dataclasses.replace(self, nodes=self.nodes[:-1], leaf=self.nodes[-1].parent)
        answers = tree.alternatives().get(tree.leaf) if tree.leaf != ROOT else None
        return tree.show(answers[-1]) if answers else tree

    def to_json(self) -> dict[str, Any]:
        """As JSON, which `read_tree` reads."""
        nodes = [node.to_json() for node in self.nodes]
        return {"version": VERSION, "key": self.key, "title": self.title, "system": self.system, "nodes": nodes, "leaf": self.leaf}


def title_of(message: Message) -> str:
    r"""The first words of a message.

    >>> title_of({"role": "user", "content": "  Tell me a story\nabout a cat"})
    'Tell me a story about a cat'
    """
    words = " ".join(str(message.get("content") or "").split())
    return words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1].rsplit(" ", 1)[0] + "…"
