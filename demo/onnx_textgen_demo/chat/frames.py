"""Values for the components of the tab Chat: while an answer grows, while a function runs, and at rest."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import gradio as gr

from onnx_textgen.chat.own_functions import TOO_MANY_ROUNDS

from .. import view
from ..conversation.message_tree import MessageTree
from ..conversation.open_calls import is_stopped, open_calls
from . import turns_pane
from .answering import ChatSession
from .tool_rounds import Progress

FRAME_SECONDS = 0.08
SECONDS_PER_CHARACTER = 2e-6
"""A browser takes longer to draw a longer answer: frames wait this long per character of its HTML."""
KEEP_SECONDS = 1.0
"""Interval at which the browser keeps a growing answer, so that a reload loses little of it."""

FRAME_LENGTH = 9
Frame = tuple[Any, ...]
"""`FRAME_LENGTH` values for the components, in this order: session, conversation, turns, growing answer, message, its pictures,
note, Send, Stop."""
FIELD = 4
"""The place of the message in a frame; its pictures follow."""


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


UNCHANGED = (gr.skip(),) * FRAME_LENGTH
"""A frame that changes nothing: Gradio ends a listener only where it yields."""


@dataclasses.dataclass(slots=True)
class Drawing:
    """The frames of a run, each with what has changed since the one before."""

    clears_field: bool
    has_begun: bool = False
    pace: Pace = dataclasses.field(default_factory=Pace)
    drawn: object = None
    """The messages that are drawn: those before the answer that grows, or all while a function runs."""

    def frame_of(self, chat: ChatSession, progress: Progress) -> Frame | None:
        """The next frame; None where it is too early for one."""
        tree, now = progress.tree, (progress.running, progress.tree.leaf)
        if progress.running is None:
            if not self.pace.is_due():
                return None
            now = (None, tree.nodes[tree.leaf].parent)
            latest = growing_frame(chat, tree, is_kept=self.pace.is_kept(), is_first=self.drawn != now)
            self.pace.drawn(latest)
        elif self.drawn == now:
            return UNCHANGED
        else:
            latest = running_frame(chat, tree, progress.running)
        fields = ("", []) if self.clears_field and not self.has_begun else (gr.skip(), gr.skip())
        self.drawn, self.has_begun = now, True
        return (*latest[:FIELD], *fields, *latest[FIELD + 2 :])


def frame(chat: ChatSession | None, tree: MessageTree, *, asks: bool, problem: str | None = None) -> Frame:
    """Values for the components while no answer grows; the field keeps its text. `asks`: the user decides about open calls."""
    problem = problem or (TOO_MANY_ROUNDS if asks and is_stopped(tree) else None)
    waits = "waiting for you: run or refuse the call" if asks and open_calls(tree) else ""
    note = view.status_line([], problem or waits, is_problem=bool(problem)) if problem or waits else ""
    buttons = gr.update(interactive=True), gr.update(interactive=False)
    return (chat, tree.to_json(), turns_pane.turns_html(tree, asks=asks), "", gr.skip(), gr.skip(), note, *buttons)


def running_frame(chat: ChatSession, tree: MessageTree, name: str) -> Frame:
    """Values for the components while a function runs, or has just run."""
    doing = view.status_line([], f"running {name} ..." if name else "")
    buttons = gr.update(interactive=False), gr.update(interactive=True)
    return (chat, tree.to_json(), turns_pane.turns_html(tree, runs=True), "", gr.skip(), gr.skip(), doing, *buttons)


def growing_frame(chat: ChatSession, tree: MessageTree, *, is_kept: bool, is_first: bool) -> Frame:
    """Values for the components while an answer grows. `is_first`: with the messages before it, which then stay."""
    last = tree.nodes[tree.leaf]
    doing = "writing ..." if last.message["content"] or last.unfinished_calls else "reading ..."
    return (
        chat,
        tree.to_json() if is_kept else gr.skip(),
        turns_pane.turns_html(tree, grows=True) if is_first else gr.skip(),
        turns_pane.growing_html(tree),
        gr.skip(),
        gr.skip(),
        view.status_line([], doing),
        gr.update(interactive=False),
        gr.update(interactive=True),
    )
