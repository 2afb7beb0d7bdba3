"""From Anthropic's messages to the ones that the runtime takes, which have OpenAI's form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx_textgen.errors import OptionError

from .schema import CountRequest, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock, Turn


def text_of(blocks: Iterable[object]) -> str:
    """The texts among blocks, each on its own line."""
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def to_chat(body: CountRequest) -> tuple[list[dict[str, Any]], bool]:
    """The messages, and whether the last one is the beginning of the answer; raises `OptionError` for calls without results."""
    chat = list[dict[str, Any]]()
    names = {block.id: block.name for turn in body.messages for block in turn.content if isinstance(block, ToolUseBlock)}
    if body.system:
        chat.append({"role": "system", "content": text_of(body.system)})
    for role, turns in itertools.groupby(body.messages, key=lambda turn: turn.role):
        turn = Turn.model_construct(
            role=role, content=[block for each in turns for block in each.content]
        )  # one turn, as Anthropic says
        chat += [answer_of(turn)] if role == "assistant" else given_by(turn, names)
    if chat and chat[-1].get("tool_calls"):
        raise OptionError("the messages end with a tool_use; add a message of the user with its tool_result")
    return chat, body.messages[-1].role == "assistant"


def answer_of(turn: Turn) -> dict[str, Any]:
    """An earlier answer of the model."""
    thought = "\n".join(block.thinking for block in turn.content if isinstance(block, ThinkingBlock))
    calls = [call_of(block) for block in turn.content if isinstance(block, ToolUseBlock)]
    message: dict[str, Any] = {"role": "assistant", "content": text_of(turn.content)}
    return message | ({"reasoning_content": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})


def call_of(block: ToolUseBlock) -> dict[str, Any]:
    """A call of a tool."""
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}


def given_by(turn: Turn, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Return what a user gives: results of calls, and texts. `names`: the tool of each call."""
    texts = list[TextBlock]()
    for block in turn.content:
        if isinstance(block, ToolResultBlock):
            yield from said_by(turn.role, texts)
            texts.clear()
            named = {"name": names[block.tool_use_id]} if block.tool_use_id in names else {}
            yield {"role": "tool", "tool_call_id": block.tool_use_id, **named, "content": text_of(block.content)}
        elif isinstance(block, TextBlock):
            texts.append(block)
    yield from said_by(turn.role, texts)


def said_by(role: str, texts: Sequence[TextBlock]) -> Iterator[dict[str, Any]]:
    """Texts as one message, if there are some."""
    if texts:
        yield {"role": role, "content": text_of(texts)}
