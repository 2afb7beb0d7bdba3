"""The model's answer to a conversation, while it grows.

The session of a browser tab keeps keys and values of what was read. It is given all messages before each answer, so that it serves
any branch of any conversation: what two of them share is not computed again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnx_textgen import Cancellation
from onnx_textgen.answers.answer_reader import joined
from onnx_textgen.answers.records import AnswerDelta, ToolCall, call_as_json, message_of
from onnx_textgen.api.session import Session

from ..conversation.message_tree import Figures, Message, MessageTree
from ..conversation.open_calls import in_order_of_calls

if TYPE_CHECKING:
    from onnx_textgen import ChatAnswer, ChatChunk, Model
    from onnx_textgen.chat.own_functions import OwnFunctions


@dataclasses.dataclass(slots=True)
class ChatSession:
    """A session of one model, and the cancellation of its running answer."""

    model: Model
    session: Session
    functions: OwnFunctions | None = None
    """The functions that its model may call."""
    cancel: Cancellation = dataclasses.field(default_factory=Cancellation)


def session_for(model: Model, kept: ChatSession | None, functions: OwnFunctions | None = None) -> ChatSession:
    """The session that was kept, if it is of this model and these functions; else another one. It is not cancelled."""
    if kept is not None and kept.model is model and kept.functions is functions:
        kept.cancel = Cancellation()
        return kept
    session = model.session() if functions is None else model.session(tools=list(functions.tools.values()))
    return ChatSession(model, session, functions)


def answers_to(
    tree: MessageTree, parent: int, chat: ChatSession, options: Mapping[str, Any], *, name: str, beginning: Message | None = None
) -> Generator[MessageTree, None, None]:
    """Yield the conversation with a growing answer after message `parent`; `name`: the model's on the page.

    `beginning`: an answer that the model continues; what is yielded begins with its text.
    Raises as `Model.stream_chat` does; what was yielded last then has the text so far. `chat.cancel` ends the answer.
    """
    chat.session.rewind(messages=0)  # keeps the cache
    chat.session.append(in_order_of_calls([*tree.messages_to(parent), *([] if beginning is None else [beginning])]))
    growing = GrowingAnswer(chat, name)
    if beginning is None:
        yield growing.in_tree(tree, parent)
    else:
        growing.text, growing.reasoning = str(beginning["content"]), str(beginning.get("reasoning_content") or "")
        options = {**options, "continue_final_message": True}
    with contextlib.closing(chat.session.stream_chat(cancel=chat.cancel, **options)) as chunks:
        for chunk in chunks:
            growing.add(chunk)
            yield growing.in_tree(tree, parent)


@dataclasses.dataclass(slots=True)
class GrowingAnswer:
    """An answer so far, in its parts, and its figures."""

    chat: ChatSession
    name: str
    text: str = ""
    """What it began with."""
    reasoning: str = ""
    """The thinking before that."""
    so_far: AnswerDelta = dataclasses.field(default_factory=AnswerDelta)
    generated_tokens: int = 0
    started: float = dataclasses.field(default_factory=time.perf_counter)
    first_token: float | None = None
    answer: ChatAnswer | None = None
    """The whole answer, at its end."""

    def add(self, chunk: ChatChunk) -> None:
        """Add the next chunk."""
        more = AnswerDelta(chunk.text, chunk.reasoning, chunk.tool_calls)
        self.so_far, self.answer = joined([self.so_far, more]), chunk.answer
        self.generated_tokens += len(chunk.token_ids)
        if self.first_token is None and chunk.token_ids:
            self.first_token = time.perf_counter()

    def in_tree(self, tree: MessageTree, parent: int) -> MessageTree:
        """The conversation with the answer so far."""
        if self.answer is not None:
            cut, said = self.answer.cut_call, self.said(self.answer.text, self.answer.reasoning, self.answer.tool_calls)
            return tree.add(parent, said, self.figures(), () if cut is None else (cut.as_json(),))
        unfinished = tuple(call_as_json(call.id, call.name, call.arguments) for call in self.so_far.tool_calls)
        return tree.add(parent, self.said(self.so_far.text, self.so_far.reasoning, ()), self.figures(), unfinished)

    def said(self, text: str, reasoning: str, calls: Sequence[ToolCall]) -> Message:
        """The message, with what it began with."""
        return message_of(self.text + text, self.reasoning + reasoning, calls)

    def figures(self) -> Figures:
        """The figures so far; exact with the last chunk."""
        length = self.chat.model.manifest.geometry.context_length
        if self.answer is not None:
            stats = self.answer.stats
            return Figures(
                model=self.name,
                generated_tokens=stats.generated_tokens,
                prompt_tokens=stats.prompt_tokens,
                reused_tokens=stats.reused_tokens,
                context_length=length,
                tokens_per_second=stats.decode_tokens_per_second,
                first_token_seconds=stats.first_token_seconds,
                finish_reason=self.answer.finish_reason,
            )
        if self.first_token is None:
            return Figures(model=self.name)
        elapsed = time.perf_counter() - self.first_token
        return Figures(
            model=self.name,
            generated_tokens=self.generated_tokens,
            prompt_tokens=max(0, len(self.chat.session) - self.generated_tokens),
            context_length=length,
            tokens_per_second=(self.generated_tokens - 1) / elapsed if elapsed > 0.05 else 0.0,
            first_token_seconds=self.first_token - self.started,
        )
