"""A session: one text, or one chat, that is appended to, generated from, rolled back, forked and saved.

A session is its token ids. The cache it keeps only saves time: a session writes what `generate` would write from the same ids, to
the last token. Its texts are rows of the model's engine, so sessions in several threads are decoded together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, cast

from ..cancellation import Cancellation, CancelScope
from ..errors import OptionError, PackageError, PromptError
from ..generation.continuation import Continuation
from ..generation.request import KeptContext, Request
from ..generation.steps import shifted
from ..inference.prefill import Progress
from ..options.checks import whole_number
from ..options.keywords import Options
from ..results import Chunk, Generation
from ..text.prompts import Prompt, read_token_ids
from .session_file import read_session, write_session
from .text_generator import TextGenerator

Message = Mapping[str, Any]
"""One turn of a chat: `{"role": "user", "content": "Hello"}`."""

SHOWN_TOKENS = 10
"""Of a session's end, where Python shows it."""


class Conversation:
    """See the module; `Model.session` makes one. One thread at a time may use it; other sessions may run in other threads."""

    def __init__(self, generator: TextGenerator) -> None:
        self.generator, self.opened, self.encoder = generator, generator.opened, generator.encoder
        self.context = KeptContext()
        self.opened.cache_tensors  # noqa: B018 - raises at once for a model that was closed
        self.messages: list[Message] = []
        """The turns of a chat; empty where the session is a plain text."""
        self._token_ids: list[int] = []
        self._turns = 0
        """Counts what changed the session; a stream sees by it that it is no longer the last."""

    def __repr__(self) -> str:
        held = f"{len(self.messages)} messages, " if self.messages else ""
        end = ""
        if self._token_ids and self.opened.tokenizer_if_any is not None:
            end = f", ending {self.opened.tokenizer.decode(self._token_ids[-SHOWN_TOKENS:])!r}"
        return f"<onnx_textgen.Conversation with {self.opened.manifest.name!r}: {held}{len(self):,} tokens{end}>"

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Everything so far; of a chat, what was last generated from and the answer."""
        return tuple(self._token_ids)

    @property
    def text(self) -> str:
        """The same as text, special tokens left out."""
        return self.opened.tokenizer.decode(self._token_ids)

    def __len__(self) -> int:
        return len(self._token_ids)

    def append(self, more: Prompt | Message | Sequence[Message]) -> None:
        """Go on with a text, with token ids, or with one or more chat messages.

        A text at the beginning gets the special tokens of a prompt, a later one none. A session is a text or a chat, never both.
        Raises `PromptError` for what is neither, and where it no longer fits in the context.
        """
        messages = as_messages(more)
        if messages is not None:
            if self._token_ids and not self.messages:
                raise PromptError("this session is a plain text, which takes no chat messages; begin another one for them")
            self.encoder.encode_chat([*self.messages, *messages])  # raises for what the template refuses, and what is too long
            self.messages += messages
        elif self.messages:
            raise PromptError('this session is a chat; append messages such as {"role": "user", "content": "Hello"}')
        else:
            self._token_ids = self.lengthened(cast("Prompt", more))
        self._turns += 1

    def lengthened(self, more: Prompt) -> list[int]:
        """The ids so far and those of what is appended; raises `PromptError`."""
        if not self._token_ids:
            return self.encoder.encode(more)
        if not isinstance(more, str):
            new = read_token_ids(more)
        elif more:
            new = self.opened.tokenizer.encode(more, add_special_tokens=False)
        else:
            raise PromptError("the text to append is empty; give some text")
        return self.encoder.encode([*self._token_ids, *new], new_tokens=0)

    def stream(
        self,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        cancel: Cancellation | None = None,
        **options: Unpack[Options],
    ) -> Generator[Chunk, None, None]:
        """Go on from here, a chunk per token; what came stays in the session, also where the stream is closed before its end.

        Options are those of `GenerationConfig`. Raises as `Model.stream` does.
        """
        continuation, scope = self.begin(options, cancel)
        return self.chunks(continuation, scope, on_progress, self._turns)

    def generate(self, *, cancel: Cancellation | None = None, **options: Unpack[Options]) -> Generation:
        """Go on from here; the result is the new text alone. Raises as `Model.generate` does."""
        continuation, scope = self.begin(options, cancel)
        for _ in self.chunks(continuation, scope, None, self._turns):
            pass
        return continuation.result()

    def begin(self, options: Mapping[str, Any], cancel: Cancellation | None) -> tuple[Continuation, CancelScope]:
        """A continuation of what there is; streams that were begun before it are no longer the last."""
        config = self.generator.config(options)
        if config.gives_several:
            raise OptionError("a session goes on with one text; search or draw several with generate() of the model, or of forks")
        prompt_ids = self.encoder.encode_chat(self.messages) if self.messages else self._token_ids
        if not prompt_ids:
            raise PromptError("the session is empty; append a text, token ids or chat messages first")
        continuation = self.generator.begin(prompt_ids, config)
        self._turns += 1
        return continuation, CancelScope(cancel, config.max_time)

    def chunks(
        self, continuation: Continuation, scope: CancelScope, on_progress: Callable[[Progress], None] | None, turn: int
    ) -> Generator[Chunk, None, None]:
        """The request's chunks; what the caller was given is appended to the session, whose count of turns was `turn` then.

        The engine may be ahead of the caller: tokens that were chosen and not given are no part of the session.
        """
        self.check_turn(turn)
        request = Request(continuation, scope, on_progress=on_progress, context=self.context)
        token_ids, text, has_answer = list(continuation.prompt_ids), "", False
        with contextlib.closing(self.generator.engine.chunks(request)) as chunks:
            try:
                for chunk in chunks:
                    self.check_turn(turn)
                    token_ids, text = [*token_ids, *chunk.token_ids], text + chunk.text
                    has_answer = has_answer or bool(chunk.token_ids) or chunk.finish_reason in ("eos", "stop")
                    if len(token_ids) > continuation.limits.context_length:
                        token_ids = shifted(token_ids, keep=continuation.kept_tokens)
                    self._token_ids = token_ids
                    yield chunk
            finally:
                if self._turns == turn and self.messages and has_answer:
                    self.messages.append({"role": "assistant", "content": text})

    def check_turn(self, turn: int) -> None:
        """Raise `OptionError` for a stream that is no longer the last thing which was done with the session."""
        if self._turns != turn:
            raise OptionError("the session was appended to, rolled back or generated from meanwhile; end a stream first")

    def rewind(self, length: int | None = None, *, messages: int | None = None) -> None:
        """Forget all but the first `length` tokens, or all but the first so many messages of a chat.

        Raises `OptionError` beyond what there is, and where a chat is to be cut within a message.
        """
        if (length is None) == (messages is None):
            raise OptionError("rewind takes one number: of tokens, or of messages=N")
        if messages is not None:
            count = whole_number("messages", messages, 0, len(self.messages))
            self._token_ids = (
                self.encoder.encode_chat(self.messages[:count]) if count else []
            )  # raises before anything is forgotten
            del self.messages[count:]
        elif self.messages:
            raise OptionError("a chat goes back by whole messages; rewind with messages=N")
        else:
            del self._token_ids[whole_number("length", length, 0, len(self._token_ids)) :]
        self._turns += 1

    def fork(self) -> Conversation:
        """Another session with the same tokens and messages; from here on each changes alone."""
        other = Conversation(self.generator)
        other.messages, other._token_ids = list(self.messages), list(self._token_ids)
        other.context.snapshot = self.context.snapshot
        return other

    def save(self, path: str | Path) -> None:
        """Write the session to a file that `Model.load_session` reads, in another process too, with the same model alone.

        The file appears whole or not at all. Raises `PackageError` where it cannot be written.
        """
        write_session(Path(path), self.opened.digest, self._token_ids, self.messages, self.context.snapshot)

    @classmethod
    def load(cls, generator: TextGenerator, path: str | Path) -> Conversation:
        """Read what `save` wrote; raises `PackageError` for another file, a damaged one, or one of another model."""
        session, opened = cls(generator), generator.opened
        token_ids, messages, session.context.snapshot = read_session(Path(path), opened.digest, opened.new_context())
        if token_ids:
            session._token_ids = generator.encoder.encode(token_ids, new_tokens=0)
        if messages and opened.chat_template is None:
            raise PackageError(f"{path} is a chat, and this model has no chat template")
        session.messages = messages
        return session


def as_messages(more: object) -> list[Message] | None:
    """Chat messages, if that is what this is: one, or a list of them."""
    if isinstance(more, Mapping):
        return [dict(more)]
    if isinstance(more, Sequence) and more and all(isinstance(each, Mapping) for each in more):
        return [dict(cast("Message", each)) for each in more]
    return None
