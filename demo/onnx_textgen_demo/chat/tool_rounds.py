"""Rounds of answers and calls: the model answers, permitted calls run, and it answers again.

Yields often, so that the page can end a round where its reader has left; a function that was started then runs to its end unheard.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Mapping
from typing import Any, Literal

from onnx_textgen import Cancellation
from onnx_textgen.chat.own_functions import NOT_ALLOWED, OwnFunctions

from ..background import in_background
from ..conversation.message_tree import Message, MessageTree
from ..conversation.open_calls import arguments_of, as_tool_call, call_in, open_calls, with_result
from .answering import ChatSession, answers_to
from .own_tools import ToolUse

Decision = Literal["run", "always", "refuse"]
DECISIONS: tuple[Decision, ...] = ("run", "always", "refuse")
NOT_AWAITED = "the user stopped waiting for this call"


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """A conversation while the model answers or a function runs."""

    tree: MessageTree
    running: str | None = None
    """The name of the function that runs; None while the last message grows."""


Steps = Generator[Progress, None, MessageTree]


def answered(
    tree: MessageTree,
    chat: ChatSession,
    options: Mapping[str, Any],
    *,
    name: str,
    use: ToolUse | None,
    beginning: Message | None = None,
) -> Generator[Progress, None, None]:
    """Yield the conversation until an answer has no calls, or has one that the user has to decide.

    `beginning`: of the first answer, see `answers_to`. Raises as `answers_to` does; what was yielded last then has the text so far.
    """
    while True:
        answer = tree
        for answer in answers_to(tree, tree.leaf, chat, options, name=name, beginning=beginning):
            yield Progress(answer)
        beginning = None
        if use is None:
            return
        tree = yield from with_permitted_calls(answer, chat, use)
        if not is_answerable(tree, chat):
            return


def decided(tree: MessageTree, chat: ChatSession, use: ToolUse, number: int, decision: Decision) -> Steps:
    """Yield the conversation while an open call is run or refused, and then all others that are permitted; returns it."""
    waiting = open_calls(tree)
    assert waiting is not None
    call = call_in(tree, waiting.answer, number)
    if decision == "always":
        use.permissions.names.add(call["function"]["name"])
    if decision == "refuse":
        tree = with_result(tree, call, NOT_ALLOWED)
        yield Progress(tree, "")
    else:
        tree = yield from with_call_run(tree, chat, use.functions, call)
    return (yield from with_permitted_calls(tree, chat, use))


def with_permitted_calls(tree: MessageTree, chat: ChatSession, use: ToolUse) -> Steps:
    """Yield the conversation while those open calls run for which nobody has to be asked; returns it."""
    waiting = open_calls(tree)
    for number in waiting.numbers if waiting is not None else ():
        call = call_in(tree, waiting.answer, number)  # type: ignore[union-attr]  # without one there is no number
        if call["function"]["name"] in use.permissions.names and not chat.cancel.cancelled:
            tree = yield from with_call_run(tree, chat, use.functions, call)
    return tree


def with_call_run(tree: MessageTree, chat: ChatSession, functions: OwnFunctions, call: Mapping[str, Any]) -> Steps:
    """Yield the conversation while a call runs; returns it with the result."""
    name, arguments = call["function"]["name"], arguments_of(call)
    if arguments is None:
        result = "the arguments are no JSON object"
    else:
        made = as_tool_call(call, arguments)
        result = yield from awaited(in_background(lambda: functions.run(made), lambda: Progress(tree, name)), chat.cancel)
    tree = with_result(tree, call, result)
    yield Progress(tree, name)
    return tree


def awaited(running: Generator[Progress, None, str], cancel: Cancellation) -> Generator[Progress, None, str]:
    """Yield progress until a function has its result, or the user stops waiting for it."""
    with contextlib.closing(running):
        while not cancel.cancelled:
            try:
                yield next(running)
            except StopIteration as ended:
                result: str = ended.value
                return result
    return NOT_AWAITED


def is_answerable(tree: MessageTree, chat: ChatSession) -> bool:
    """Whether the model should answer now: every call has its result, and the user has not stopped it."""
    is_result = tree.nodes[tree.leaf].message["role"] == "tool"
    return is_result and open_calls(tree) is None and not chat.cancel.cancelled
