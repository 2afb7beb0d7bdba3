"""From Anthropic's messages to the ones that the runtime takes, which have OpenAI's form."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx_textgen.errors import OptionError

from ..requests.content_parts import Part, content_of
from ..requests.turns import written
from .schema import CountRequest, ThinkingBlock, ToolResultBlock, ToolUseBlock, Turn

BILLING = "x-anthropic-billing-header:"


def content_of_blocks(blocks: Iterable[object]) -> str | list[dict[str, Any]]:
    """The texts among blocks, each on its own line, and what is none."""
    return content_of((block for block in blocks if isinstance(block, Part)), between="\n")


def to_chat(body: CountRequest) -> tuple[list[dict[str, Any]], bool]:
    """The messages, and whether the last one is the beginning of the answer; raises `OptionError` for calls without results."""
    chat = list[dict[str, Any]]()
    names = {block.id: block.name for turn in body.messages for block in turn.content if isinstance(block, ToolUseBlock)}
    if system := [block for block in body.system if not is_billing(block)]:
        chat.append({"role": "system", "content": content_of_blocks(system)})
    for role, turns in itertools.groupby(body.messages, key=lambda turn: turn.role):
        turn = Turn.model_construct(
            role=role, content=[block for each in turns for block in each.content]
        )  # one turn, as Anthropic says
        chat += [answer_of(turn)] if role == "assistant" else given_by(turn, names)
    if chat and chat[-1].get("tool_calls"):
        raise OptionError("the messages end with a tool_use; add a message of the user with its tool_result")
    return chat, body.messages[-1].role == "assistant"


def is_billing(block: Part) -> bool:
    """Return whether a block is Claude Code's tag for bills: it differs in every request, and nothing after it would be cached."""
    text = (block.text or "").strip()
    return text.startswith(BILLING) and "\n" not in text


def answer_of(turn: Turn) -> dict[str, Any]:
    """An earlier answer of the model."""
    thought = "\n".join(block.thinking for block in turn.content if isinstance(block, ThinkingBlock))
    calls = [call_of(block) for block in turn.content if isinstance(block, ToolUseBlock)]
    message: dict[str, Any] = {"role": "assistant", "content": content_of_blocks(turn.content)}
    return message | ({"reasoning_content": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})


def call_of(block: ToolUseBlock) -> dict[str, Any]:
    """A call of a tool."""
    function = {"name": block.name, "arguments": written(block.input)}
    return {"id": block.id, "type": "function", "function": function}


def given_by(turn: Turn, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Return what a user gives: results of calls, and texts. `names`: the tool of each call."""
    texts = list[Part]()
    for block in turn.content:
        if isinstance(block, ToolResultBlock):
            yield from said_by(turn.role, texts)
            texts.clear()
            named = {"name": names[block.tool_use_id]} if block.tool_use_id in names else {}
            yield {"role": "tool", "tool_call_id": block.tool_use_id, **named, "content": content_of_blocks(block.content)}
        elif isinstance(block, Part):
            texts.append(block)
    yield from said_by(turn.role, texts)


def said_by(role: str, texts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """What a user says as one message, if it is something."""
    if texts:
        yield {"role": role, "content": content_of_blocks(texts)}
