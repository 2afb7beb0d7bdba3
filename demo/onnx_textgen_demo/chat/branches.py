"""Listeners after which the model does not answer: they show another branch or conversation, or change messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gradio as gr

from ..conversation.message_tree import MessageTree
from ..conversation.stored import read_tree
from ..error_messages import shown_errors
from ..limits import checked
from .answering import ChatSession
from .frames import Frame, frame
from .from_browser import place_in, text_of, tree_in
from .own_tools import OwnTools


@dataclasses.dataclass(frozen=True, slots=True)
class Branches:
    """The listeners; each returns a frame, with the buttons of open calls."""

    own: OwnTools | None

    def asks(self, request: gr.Request) -> bool:
        """Whether the page of a request offers to run open calls."""
        return self.own is not None and self.own.is_open_to(request)

    def show(self, request: gr.Request, chat: ChatSession | None, stored: object, event: gr.EventData) -> Frame:
        """Show the latest branch through a message."""
        return self.changed(request, chat, stored, lambda tree: tree.show(place_in(tree, event)))

    def rewrite(self, request: gr.Request, chat: ChatSession | None, stored: object, event: gr.EventData) -> Frame:
        """Add another version of an answer, which the user wrote."""

        def change(tree: MessageTree) -> MessageTree:
            node = tree.nodes[place_in(tree, event)]
            return tree.add(node.parent, {**node.message, "content": checked(text_of(event))})

        return self.changed(request, chat, stored, change)

    def delete(self, request: gr.Request, chat: ChatSession | None, stored: object, event: gr.EventData) -> Frame:
        """Delete a message and all that follow it."""
        return self.changed(request, chat, stored, lambda tree: tree.without(place_in(tree, event)))

    def copy(self, request: gr.Request, chat: ChatSession | None, stored: object, event: gr.EventData) -> Frame:
        """Begin another conversation with a copy of the messages up to one."""
        return self.changed(request, chat, stored, lambda tree: tree.copied_to(place_in(tree, event)))

    def changed(
        self, request: gr.Request, chat: ChatSession | None, stored: object, change: Callable[[MessageTree], MessageTree]
    ) -> Frame:
        """Show a conversation after a change."""
        with shown_errors():
            return frame(chat, change(tree_in(stored)), asks=self.asks(request))

    def open(self, request: gr.Request, chat: ChatSession | None, event: gr.EventData) -> tuple[Any, ...]:
        """Show a conversation that the browser kept or the reader imported, and its system prompt."""
        with shown_errors():
            tree = read_tree(event.conversation)
            if event.is_imported:
                tree = dataclasses.replace(tree, key=MessageTree().key)  # never instead of one that is kept
            return (*frame(chat, tree, asks=self.asks(request)), tree.system)
