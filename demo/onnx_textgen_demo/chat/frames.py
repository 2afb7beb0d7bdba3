"""What the components of the tab show, while an answer grows and while none does, and how often it is drawn."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import gradio as gr

from .. import view
from . import turns_pane
from .answering import ChatSession
from .message_tree import MessageTree

FRAME_SECONDS = 0.08
SECONDS_PER_CHARACTER = 2e-6
"""A browser takes longer to draw a longer answer: frames wait this long per character of its HTML."""
KEEP_SECONDS = 1.0
"""Interval at which the browser keeps a growing answer, so that a reload loses little of it."""

FRAME_LENGTH = 8
Frame = tuple[Any, ...]
"""`FRAME_LENGTH` values for the components, in this order: session, conversation, turns, growing answer, message, note,
Send, Stop."""


@dataclasses.dataclass(slots=True)
class Pace:
    """When a growing answer is drawn, and when the browser keeps it."""

    next_frame: float = 0.0
    next_kept: float = 0.0

    def is_due(self) -> bool:
        """Whether it is time for a frame."""
        return time.perf_counter() >= self.next_frame

    def is_kept(self) -> bool:
        """Whether the browser should keep what is drawn."""
        now = time.perf_counter()
        if now < self.next_kept:
            return False
        self.next_kept = now + KEEP_SECONDS
        return True

    def drawn(self, latest: Frame) -> None:
        """A frame was drawn; a longer answer takes a browser longer."""
        self.next_frame = time.perf_counter() + FRAME_SECONDS + SECONDS_PER_CHARACTER * len(latest[3])


def frame(chat: ChatSession | None, tree: MessageTree, *, problem: str | None = None) -> Frame:
    """Values for the components while no answer grows; the field keeps its text."""
    note = view.status_line([], problem, is_problem=True) if problem else ""
    buttons = gr.update(interactive=True), gr.update(interactive=False)
    return (chat, tree.to_json(), turns_pane.turns_html(tree), "", gr.skip(), note, *buttons)


def growing_frame(chat: ChatSession, tree: MessageTree, *, is_kept: bool, is_first: bool, clears_field: bool) -> Frame:
    """Values for the components while an answer grows. `is_first`: with the messages before it, which then stay."""
    doing = "writing ..." if tree.nodes[tree.leaf].message["content"] else "reading ..."
    return (
        chat,
        tree.to_json() if is_kept else gr.skip(),
        turns_pane.turns_html(tree, is_busy=True) if is_first else gr.skip(),
        turns_pane.growing_html(tree),
        "" if is_first and clears_field else gr.skip(),
        view.status_line([], doing),
        gr.update(interactive=False),
        gr.update(interactive=True),
    )
