"""The buttons below a message, as icons with a name: the style sheet draws them, and shows the name while one is pointed at.

A press is reported by `turns_pane.js` under the name in `data-does`, with the index of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..conversation.message_tree import Message


def tools_html(message: Message, index: int, *, end: int, alternatives: Sequence[int], count: int) -> str:
    """The buttons of a message.

    `end`: the message, or the last result of its calls: up to there another chat copies. `count`: how many a deletion takes.
    """
    is_answer = message["role"] == "assistant"
    text = str(message.get("content") or "")
    noun = "answer" if is_answer else "message"
    made = [pager(index, alternatives, noun), copy_button(text, "Copy message")]
    if not message.get("tool_calls"):  # in another version, its calls would have no results
        made.append(glyph("edit", "edit", index, f"Edit this {noun}"))
    if is_answer:
        made.append(glyph("retry", "again", index, "Write another answer"))
    made.append(glyph("copy", "branch", end, "New chat from here"))
    made.append(glyph("delete", "delete", index, "Delete", f' data-asks="Delete {counted(count)}?"'))
    return f'<div class="turn-tools">{"".join(made)}</div>'


def counted(count: int) -> str:
    """A number of messages, in words.

    >>> counted(1), counted(4)
    ('this message', '4 messages')
    """
    return "this message" if count == 1 else f"{count:,} messages"


def pager(index: int, alternatives: Sequence[int], noun: str) -> str:
    """Buttons to the alternatives of a message; nothing if there is only one."""
    count = len(alternatives)
    if count < 2:
        return ""
    place = alternatives.index(index)
    before = alternatives[place - 1] if place > 0 else None
    after = alternatives[place + 1] if place + 1 < count else None
    return (
        f'<span class="pager">{glyph("select", "before", before, f"Previous {noun}")}<span>{place + 1}/{count}</span>'
        f"{glyph('select', 'after', after, f'Next {noun}')}</span>"
    )


def glyph(does: str, picture: str, index: int | None, name: str, more: str = "") -> str:
    """A button that is an icon; disabled without a message."""
    place = " disabled" if index is None else f' data-index="{index}"'
    return f'<button type="button" class="glyph glyph-{picture}" data-does="{does}"{place}{more} aria-label="{name}"></button>'


def copy_button(text: str, name: str) -> str:
    """A button that copies a text as it was written."""
    return f'<button type="button" class="copy glyph glyph-copy" data-text="{escape(text)}" aria-label="{name}"></button>'
