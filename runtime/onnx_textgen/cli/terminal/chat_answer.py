"""Shows an answer of a chat while it is generated: its text, its thinking folded to one line, its tool calls as cards."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...answers.visible_text import visible
from . import screen

if TYPE_CHECKING:
    from ...answers.records import ChatAnswer, ChatChunk, ToolCall

THINKING = "thinking ..."


def collect_answer(chunks: Iterator[ChatChunk]) -> tuple[screen.Answer, ChatAnswer | None]:
    """Show a stream's chunks as they come; Ctrl-C ends the stream and keeps the answer so far, which is then not returned whole."""
    made: list[ChatChunk] = []
    whole, began, words, has_text = None, time.monotonic(), 0, False
    try:
        for chunk in chunks:
            made.append(chunk)
            whole = chunk.answer or whole
            words += len(chunk.reasoning.split())
            if chunk.text and words and not has_text:
                screen.note_dim(f"thought for {time.monotonic() - began:.0f} s; /thinking shows it")
            elif chunk.reasoning and not has_text:
                screen.progress(f"{THINKING} {words:,} words")
            has_text = has_text or bool(chunk.text)
            screen.write(chunk.text, sys.stdout)
    except KeyboardInterrupt:
        pass
    finally:
        if close := getattr(chunks, "close", None):  # of a generator, where it cancels the run and releases the cache
            close()
    answer = screen.Answer(
        text="".join(chunk.text for chunk in made),
        token_ids=[token_id for chunk in made for token_id in chunk.token_ids],
        finish_reason=screen.CANCELLED if whole is None else whole.finish_reason,
        stats=None if whole is None else whole.stats,
    )
    return answer, whole


def show_call(call: ToolCall, result: str | None = None) -> None:
    """Show a call as a card on stderr, with its result if there is one."""
    from rich.panel import Panel  # noqa: PLC0415  (slow, and most chats have no calls)
    from rich.text import Text  # noqa: PLC0415

    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items()] or ["no arguments"]
    body = Text(visible("\n".join(lines)))
    if result is not None:
        body.append(f"\n= {result}".translate(screen.CONTROL_CHARACTERS), style="dim")
    title = Text(visible(call.name))
    screen.begin_line()
    screen.make_console(stderr=True).print(Panel(body, title=title, title_align="left", expand=False))
