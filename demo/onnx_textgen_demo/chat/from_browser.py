"""What a browser sends, checked: the open conversation, and the values that its events carry."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

from ..conversation.message_tree import Message, MessageTree
from ..conversation.open_calls import open_calls
from ..conversation.stored import read_tree
from ..limits import checked
from .tool_rounds import DECISIONS, Decision


def tree_in(stored: object) -> MessageTree:
    """The conversation of the browser, an empty one if there is none; raises `OptionError` if it is damaged."""
    return read_tree(stored) if stored else MessageTree()


def user_message(text: str, pictures: Sequence[str] = ()) -> Message:
    """A message; raises `PromptError` if it is too long."""
    return {"role": "user", "content": checked(text), **({"images": list(pictures)} if pictures else {})}


def text_of(event: gr.EventData) -> str:
    """The text that an event of the browser carries."""
    text = event.text
    if not isinstance(text, str) or not text.strip():
        raise OptionError(f"a message should be text, found {shown(text)}; type one")
    return text


def place_in(tree: MessageTree, event: gr.EventData) -> int:
    """The message that an event of the browser is about; raises `OptionError` if there is none."""
    place = event.index
    if not isinstance(place, int) or not 0 <= place < len(tree.nodes) or tree.nodes[place].is_deleted:
        raise OptionError(f"the conversation has no message {shown(place)}; reload the page")
    return place


def decision_in(tree: MessageTree, event: gr.EventData) -> tuple[int, Decision]:
    """The number of an open call and what the user decided; raises `OptionError` for a call that is not open."""
    waiting, place, number = open_calls(tree), place_in(tree, event), event.call
    if waiting is None or waiting.answer != place or number not in waiting.numbers:
        raise OptionError("this call does not wait for a decision; reload the page")
    decision = next((each for each in DECISIONS if each == event.decision), None)
    if decision is None:
        raise OptionError(f"a decision is one of {', '.join(DECISIONS)}, found {shown(event.decision)}; reload the page")
    return int(number), decision
