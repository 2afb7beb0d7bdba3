"""Calls of the last answer that have no result yet, and the results that they get."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_textgen.answers.records import ToolCall, tool_result
from onnx_textgen.chat.own_functions import MOST_ROUNDS, NOT_ALLOWED

from .message_tree import Message, MessageTree
from .parts import results_of


@dataclasses.dataclass(frozen=True, slots=True)
class OpenCalls:
    """Calls of one answer that wait for a decision."""

    answer: int
    """Index of the answer in the tree."""
    numbers: tuple[int, ...]
    """Which of its calls, from 0."""


def open_calls(tree: MessageTree) -> OpenCalls | None:
    """The calls that wait at the end of the shown branch; None if there are none, or if the model has called too often."""
    path = tree.path
    results = list(itertools.takewhile(lambda index: tree.nodes[index].message["role"] == "tool", reversed(path)))[::-1]
    if len(results) == len(path) or rounds(tree) > MOST_ROUNDS:
        return None
    answer = path[len(path) - len(results) - 1]
    calls = tree.nodes[answer].message.get("tool_calls") or []
    found, _ = results_of(calls, [tree.nodes[each].message for each in results])
    numbers = tuple(number for number, result in enumerate(found) if result is None)
    return OpenCalls(answer, numbers) if numbers else None


def rounds(tree: MessageTree) -> int:
    """How many answers with calls there are since the user said something."""
    since = itertools.takewhile(lambda index: tree.nodes[index].message["role"] != "user", reversed(tree.path))
    return sum(bool(tree.nodes[index].message.get("tool_calls")) for index in since)


def is_stopped(tree: MessageTree) -> bool:
    """Whether the model has called too often for one question."""
    return rounds(tree) > MOST_ROUNDS


def call_in(tree: MessageTree, answer: int, number: int) -> Mapping[str, Any]:
    """A call of an answer, in OpenAI's form."""
    call: Mapping[str, Any] = tree.nodes[answer].message["tool_calls"][number]
    return call


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call; None if they are no JSON object."""
    arguments = call["function"]["arguments"]
    try:
        found = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    return dict(found) if isinstance(found, Mapping) else None


def as_tool_call(call: Mapping[str, Any], arguments: dict[str, Any]) -> ToolCall:
    """A call in OpenAI's form as the runtime has it."""
    return ToolCall(call["id"], call["function"]["name"], arguments, json.dumps(arguments, ensure_ascii=False))


def with_result(tree: MessageTree, call: Mapping[str, Any], result: str) -> MessageTree:
    """With the result of a call after the last message."""
    return tree.add(tree.leaf, tool_result(as_tool_call(call, {}), result))


def with_the_rest_refused(tree: MessageTree) -> MessageTree:
    """With every open call refused: the user continued without them, and a template may want a result for each."""
    waiting = open_calls(tree)
    for number in waiting.numbers if waiting is not None else ():
        tree = with_result(tree, call_in(tree, waiting.answer, number), NOT_ALLOWED)  # type: ignore[union-attr]  # none, no number
    return tree


def in_order_of_calls(messages: Sequence[Message]) -> list[Message]:
    """Messages with the results of an answer in the order of its calls, however they were decided; templates may leave out ids."""
    ordered, calls = list[Message](), list[str]()
    for is_result, group in itertools.groupby(messages, key=lambda message: message["role"] == "tool"):
        found = list(group)
        if is_result:
            found.sort(key=lambda message: place_of(message, calls))
        else:
            calls = [call["id"] for call in found[-1].get("tool_calls") or []]
        ordered += found
    return ordered


def place_of(result: Message, calls: Sequence[str]) -> int:
    """Which call a result belongs to; after all of them if to none."""
    known = result.get("tool_call_id") in calls
    return calls.index(result["tool_call_id"]) if known else len(calls)
