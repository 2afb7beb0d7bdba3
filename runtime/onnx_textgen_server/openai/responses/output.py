"""The output items of an answer, and the events that tell of them while they are written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from onnx_textgen.answers.records import AnswerDelta, ToolCallDelta

Event = dict[str, Any]
Kind = Literal["reasoning", "message", "function_call"]
PARTS: Mapping[str, dict[str, Any]] = {
    "reasoning": {"type": "reasoning_text", "text": ""},
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
}
"""The empty part of each item that is a text."""
RESPONSE = "resp_"
PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


class Output:
    """Makes items and events from what each step adds to an answer. An event is valid until the next one is made."""

    def __init__(self, response_id: str) -> None:
        """`response_id`: of the response that the items belong to; their ids have it in them."""
        self.response_id = response_id
        self.items = list[dict[str, Any]]()
        self.place: tuple[Kind, int] | None = None
        """The kind of the item that is being written, and which call it is."""
        self.numbers = itertools.count()

    def event(self, name: str, **fields: Any) -> Event:  # noqa: ANN401 - of each event
        """The next event."""
        return {"type": f"response.{name}", "sequence_number": next(self.numbers), **fields}

    def of_item(self, name: str, **fields: Any) -> Event:  # noqa: ANN401 - of each event
        """The next event, about the item that is being written."""
        return self.event(name, item_id=self.items[-1]["id"], output_index=len(self.items) - 1, **fields)

    def push(self, delta: AnswerDelta) -> Iterator[Event]:
        """The events for a step."""
        if delta.reasoning:
            yield from self.write("reasoning", delta.reasoning)
        if delta.text:
            yield from self.write("message", delta.text)
        for call in delta.tool_calls:
            yield from self.call(call)

    def write(self, kind: Kind, text: str) -> Iterator[Event]:
        """The events for more of a text."""
        if self.place != (kind, 0):
            own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self.begin(kind, 0, {**own, "content": []})
            self.items[-1]["content"].append(dict(PARTS[kind]))
            yield self.of_item("content_part.added", content_index=0, part=PARTS[kind])
        (part,) = self.items[-1]["content"]
        part["text"] += text
        yield self.of_item(f"{part['type']}.delta", content_index=0, delta=text, **self.logprobs(kind))

    def logprobs(self, kind: Kind) -> dict[str, Any]:
        """A field that clients read in the events of a message, always empty."""
        return {"logprobs": []} if kind == "message" else {}

    def call(self, call: ToolCallDelta) -> Iterator[Event]:
        """The events for a part of a call."""
        if self.place != ("function_call", call.index):
            yield from self.begin("function_call", call.index, {"call_id": call.id, "name": call.name, "arguments": ""})
        if call.arguments:
            self.items[-1]["arguments"] += call.arguments
            yield self.of_item("function_call_arguments.delta", delta=call.arguments)

    def begin(self, kind: Kind, index: int, fields: dict[str, Any]) -> Iterator[Event]:
        """Begin an item, after the one before it is done."""
        yield from self.finish()
        self.place = (kind, index)
        own_id = f"{PREFIXES[kind]}_{self.response_id.removeprefix(RESPONSE)}_{len(self.items)}"
        self.items.append({"id": own_id, "type": kind, "status": "in_progress", **fields})
        yield self.event("output_item.added", output_index=len(self.items) - 1, item=self.items[-1])

    def finish(self, *, is_cut: bool = False) -> Iterator[Event]:
        """End the item that is being written; `is_cut`: before its own end."""
        if self.place is None:
            return
        (kind, _), item = self.place, self.items[-1]
        self.place, item["status"] = None, "incomplete" if is_cut else "completed"
        if kind == "function_call":
            yield self.of_item("function_call_arguments.done", arguments=item["arguments"])
        else:
            (part,) = item["content"]
            yield self.of_item(f"{part['type']}.done", content_index=0, text=part["text"], **self.logprobs(kind))
            yield self.of_item("content_part.done", content_index=0, part=part)
        yield self.event("output_item.done", output_index=len(self.items) - 1, item=item)


def response_of(item_id: str) -> str:
    """The id of the response that an item belongs to.

    >>> response_of("msg_0f7a_2")
    'resp_0f7a'
    """
    return RESPONSE + item_id.partition("_")[2].rpartition("_")[0]
