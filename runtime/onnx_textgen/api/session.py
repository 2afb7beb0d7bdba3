"""A session: one text, or one chat, that can be appended to, generated from, rolled back, forked and saved.

A session is defined by its token ids; its cache saves time (see `exact_history` of `load`). Its texts are rows of the model's
engine, so sessions in several threads are decoded together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, cast

from ..answers.answer_reader import AnswerReader
from ..answers.records import ChatAnswer, ChatChunk
from ..cancellation import Cancellation, CancelScope
from ..chat.chat_format import Turn
from ..errors import OptionError, PackageError, PromptError
from ..generation.continuation import Continuation
from ..generation.request import KeptContext, Request
from ..generation.steps import shifted
from ..images.image_rows import ReadImage, without_images
from ..inference.prefill import Progress
from ..options.checks import shown, whole_number
from ..options.keywords import ChatOptions, Options, TemplateInputs
from ..results import Chunk, Generation
from ..tasks.chat_encoder import ChatEncoder
from ..tasks.chats import chat_chunks, divided
from ..tasks.text_generator import TextGenerator
from ..text.prompts import Prompt, read_token_ids
from .session_file import read_session, write_session

Message = Mapping[str, Any]
"""One turn of a chat: `{"role": "user", "content": "Hello"}`."""

SHOWN_TOKENS = 10
"""Tokens of a session's end in its `repr`."""


class Session:
    """A session, made by `Model.session`. Only one thread at a time may use it; other sessions may run in other threads."""

    def __init__(self, generator: TextGenerator, inputs: TemplateInputs | None = None) -> None:
        """`inputs`: what the template of a chat gets in addition to the messages; raises `OptionError` for other names."""
        if other := sorted((inputs or {}).keys() - TemplateInputs.__annotations__.keys()):
            raise OptionError(f"a session takes {', '.join(TemplateInputs.__annotations__)}, found {shown(other[0])}")
        self.generator, self.opened, self.encoder = generator, generator.opened, generator.encoder
        self.inputs: TemplateInputs = inputs or {}
        self.context = KeptContext()
        self.opened.cache_tensors  # noqa: B018 - raises at once for a model that was closed
        self.messages: list[Message] = []
        """The turns of a chat; empty if the session is a plain text."""
        self._token_ids: list[int] = []
        self.pictures: Sequence[ReadImage] = ()
        """The pictures of a plain text, which holds them; a chat's messages have theirs."""
        self._version = 0
        """Number of changes to the session; by it a stream detects that the session changed after the stream began."""

    def __repr__(self) -> str:
        held = f"{len(self.messages)} messages, " if self.messages else ""
        end = ""
        if self._token_ids and self.opened.optional_tokenizer is not None:
            end = f", ending {self.opened.tokenizer.decode(without_images(self._token_ids)[-SHOWN_TOKENS:])!r}"
        return f"<onnx_textgen.Session with {self.opened.manifest.name!r}: {held}{len(self):,} tokens{end}>"

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All token ids so far, those of pictures below 0; of a chat, the prompt of the last generation and its answer."""
        return tuple(self._token_ids)

    @property
    def text(self) -> str:
        """The text of `token_ids`, without special tokens."""
        return self.opened.tokenizer.decode(without_images(self._token_ids))

    def __len__(self) -> int:
        return len(self._token_ids)

    def append(self, more: Prompt | Message | Sequence[Message]) -> None:
        """Append a text, token ids, or one or more chat messages.

        The first text gets the special tokens of a prompt, a later text gets none. A session is a text or a chat, never both.
        Raises `PromptError` for anything else, and if the session would no longer fit in the context; `TemplateError` if the chat
        template refuses the messages.
        """
        messages = as_messages(more)
        if messages is not None:
            if self._token_ids and not self.messages:
                raise PromptError("this session is a plain text and takes no chat messages; begin another session for them")
            new = ChatEncoder(self.encoder).held(messages)
            self.encode_chat([*self.messages, *new])  # raises if the template refuses them, or they are too long
            self.messages += new
        elif self.messages:
            raise PromptError('this session is a chat; append messages such as {"role": "user", "content": "Hello"}')
        else:
            self._token_ids = self.ids_with(cast("Prompt", more))
            if self.opened.images is not None:
                self.pictures = self.opened.images.rows.of(self._token_ids)
        self._version += 1

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of messages by the template; raises `TemplateError` and `PromptError`."""
        return ChatEncoder(self.encoder).encode(messages, **self.inputs)

    def ids_with(self, more: Prompt) -> list[int]:
        """The ids so far and those of `more`; raises `PromptError`."""
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
        """Generate from the session, one chunk per token. The chunks stay in it, also if the stream is closed before its end.

        Options are those of `GenerationConfig`. Raises as `Model.stream` does.
        """
        continuation, scope = self.begin(options, cancel)
        return self.chunks(continuation, scope, on_progress, self._version)

    def generate(self, *, cancel: Cancellation | None = None, **options: Unpack[Options]) -> Generation:
        """Generate from the session; returns the new text only. Raises as `Model.generate` does."""
        continuation, scope = self.begin(options, cancel)
        for _ in self.chunks(continuation, scope, None, self._version):
            pass
        return continuation.result()

    def chat(self, *, cancel: Cancellation | None = None, **options: Unpack[ChatOptions]) -> ChatAnswer:
        """Generate the next answer of a chat, and append it as a message, with its thinking and its tool calls.

        Options are those of `Model.chat`, except what the session was made with. Append the results of calls as messages, see
        `tool_result`, and call again. Raises as `Model.chat` does.
        """
        answers = [chunk.answer for chunk in self.stream_chat(cancel=cancel, **options) if chunk.answer is not None]
        return answers[0]

    def stream_chat(
        self,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        cancel: Cancellation | None = None,
        **options: Unpack[ChatOptions],
    ) -> Generator[ChatChunk, None, None]:
        """`chat`, one chunk after the other; the answer so far stays in the session, also if the stream is closed early."""
        inputs, others = divided(options)
        if not self.messages:
            raise PromptError('the session has no messages; append one such as {"role": "user", "content": "Hello"}')
        turn = ChatEncoder(self.encoder).turn(self.messages, **{**self.inputs, **inputs})
        config = {"max_new_tokens": self.generator.limits.context_length, **others}
        continuation, scope = self.begin(config, cancel, turn)
        reader = turn.reader(continuation.constraint)
        return chat_chunks(self.chunks(continuation, scope, on_progress, self._version, reader), continuation, reader)

    def begin(
        self, options: Mapping[str, Any], cancel: Cancellation | None, turn: Turn | None = None
    ) -> tuple[Continuation, CancelScope]:
        """Begin a continuation of the session; streams that were begun earlier then raise `OptionError`."""
        config = self.generator.config(options)
        generator = self.generator.for_adapter(config.adapter)
        if config.has_several_texts:
            raise OptionError("a session generates one text; for more, call generate() of the model, or of forks")
        if turn is not None:
            prompt_ids = list(turn.prompt_ids)
        else:
            prompt_ids = self.encode_chat(self.messages) if self.messages else self._token_ids
        if not prompt_ids:
            raise PromptError("the session is empty; append a text, token ids or chat messages first")
        continuation = generator.begin(prompt_ids, config, turn=turn)
        self._version += 1
        return continuation, CancelScope(cancel, config.max_time)

    def chunks(
        self,
        continuation: Continuation,
        scope: CancelScope,
        on_progress: Callable[[Progress], None] | None,
        version: int,
        reader: AnswerReader | None = None,
    ) -> Generator[Chunk, None, None]:
        """Yield the request's chunks and append each to the session; `version` is the session's when the request began.

        `reader`: gets the chunks from the caller, and divides them for the message that is appended.

        The engine may be ahead of the caller: tokens that were chosen but not yet yielded are not part of the session.
        """
        self.check_version(version)
        request = Request(continuation, scope, on_progress=on_progress, context=self.context)
        token_ids, text, has_answer = list(continuation.prompt_ids), "", False
        engine = self.generator.for_adapter(continuation.config.adapter).engine
        with contextlib.closing(engine.chunks(request)) as chunks:
            try:
                for chunk in chunks:
                    self.check_version(version)
                    token_ids, text = [*token_ids, *chunk.token_ids], text + chunk.text
                    has_answer = has_answer or bool(chunk.token_ids) or chunk.finish_reason in ("eos", "stop")
                    if len(token_ids) > continuation.limits.context_length:
                        token_ids = shifted(token_ids)
                    self._token_ids = token_ids
                    yield chunk
            finally:
                if self._version == version and self.messages and has_answer:
                    self.messages.append({"role": "assistant", "content": text} if reader is None else reader.message())

    def check_version(self, version: int) -> None:
        """Raise `OptionError` for a stream if the session changed after the stream began."""
        if self._version != version:
            raise OptionError("the session was appended to, rolled back or generated from meanwhile; end a stream first")

    def rewind(self, length: int | None = None, *, messages: int | None = None) -> None:
        """Remove all tokens after the first `length`, or all turns of a chat after the first `messages`.

        Raises `OptionError` for a number larger than the session has, and for `length` in a chat.
        """
        if (length is None) == (messages is None):
            raise OptionError("rewind takes one number: of tokens, or of messages=N")
        if messages is not None:
            count = whole_number("messages", messages, 0, len(self.messages))
            # If the template refuses the shorter chat, this raises before anything is removed.
            self._token_ids = self.encode_chat(self.messages[:count]) if count else []
            del self.messages[count:]
        elif self.messages:
            raise OptionError("a chat is rewound by whole messages; rewind with messages=N")
        else:
            del self._token_ids[whole_number("length", length, 0, len(self._token_ids)) :]
        self._version += 1

    def fork(self) -> Session:
        """Make another session with the same tokens and messages; later changes to one do not affect the other."""
        other = Session(self.generator, self.inputs)
        other.messages, other._token_ids = list(self.messages), list(self._token_ids)
        other.pictures = self.pictures
        other.context.snapshot = self.context.snapshot
        return other

    def save(self, path: str | Path) -> None:
        """Write the session to a file that `Model.load_session` of the same model reads, in another process too.

        The file appears whole or not at all. Raises `PackageError` if it cannot be written.
        """
        opened, snapshot = self.opened, self.context.snapshot
        write_session(Path(path), opened.digest, self._token_ids, self.messages, snapshot, adapters=opened.adapter_digests)

    @classmethod
    def load(cls, generator: TextGenerator, path: str | Path, inputs: TemplateInputs | None = None) -> Session:
        """Read a session that `save` wrote; raises `PackageError` for any other file, a damaged one, or one of another model."""
        session, opened = cls(generator, inputs), generator.opened
        token_ids, messages, session.context.snapshot = read_session(
            Path(path), opened.digest, opened.new_context(), adapters=opened.adapter_digests
        )
        if token_ids:
            session._token_ids = generator.encoder.encode(token_ids, new_tokens=0)
        if messages and opened.chat_template is None:
            raise PackageError(f"{path} is a chat, and this package has no chat template; load it with one that has")
        session.messages = messages
        return session


def as_messages(more: object) -> list[Message] | None:
    """The chat messages in `more`, one or a list of them; None if it is something else."""
    if isinstance(more, Mapping):
        return [dict(more)]
    if isinstance(more, Sequence) and more and all(isinstance(each, Mapping) for each in more):
        return [dict(cast("Message", each)) for each in more]
    return None
