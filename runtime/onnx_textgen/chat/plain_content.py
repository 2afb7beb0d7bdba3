"""Keeps what messages contain plain text: a control token that a message writes out gets no meaning, such as to end a turn.

A private mark is written into each such text before the template is rendered, and its tokens are taken out of the ids afterwards.
So no template has to know of it, and a chat in which nobody writes control tokens is encoded as if there were none of this. The
template's own control tokens, and those of a plain prompt, keep their meaning.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import TemplateError
from ..text.chat_template import plain_data, plain_message
from ..text.tokenizer import TextTokenizer, any_of

MARKS = tuple(map(chr, range(0xE000, 0xF900)))
"""Characters for private use, which no vocabulary has. One that is in no message is taken."""
LOOKS_LIKE_CONTROL = re.compile(r"[<\[{|\uff5c].*[>\]}|\uff5c]", re.DOTALL)
WRITTEN_BY_MODELS = ("content", "reasoning_content", "reasoning", "thinking")
"""Fields of a model's own messages from whose text a template may read thinking and calls."""
Message = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat."""

    marked: str
    mark: str = ""
    """Parts the control tokens that messages wrote; "" if there are none."""
    pictures: tuple[int, ...] = ()
    """The numbers of the pictures that it has, in their order."""

    @property
    def text(self) -> str:
        """The chat as the model reads it."""
        return self.marked.replace(self.mark, "")

    def encode(self, tokenizer: TextTokenizer) -> list[int]:
        """The ids of the chat, in which the template has written the special tokens."""
        return tokenizer.encode(self.marked, add_special_tokens=False, without=self.mark)


class PlainContent:
    """Finds and marks the control tokens in the messages of one tokenizer and chat template."""

    def __init__(
        self, tokenizer: TextTokenizer, template: str, is_written: Callable[[str], bool], others: Sequence[str] = ()
    ) -> None:
        """`is_written`: whether the model writes this token in its answers, as the marks of its thinking and of its calls.

        Control tokens are the special ones, further ones that the template writes, and `others`.
        """
        by_template = (token for token in tokenizer.added_tokens if token in template and LOOKS_LIKE_CONTROL.fullmatch(token))
        tokens = {token for token in (*tokenizer.special_tokens, *by_template, *others) if len(token) > 1}
        self.tokens, self.is_written = tokens, is_written
        self.everywhere = re.compile(any_of(tokens))
        self.beginnings = frozenset(token[:length] for token in self.tokens for length in range(1, len(token)))
        self.longest = max(map(len, self.tokens), default=0)

    @functools.cached_property
    def of_others(self) -> re.Pattern[str]:
        """Matches the control tokens that a message of the model itself should not have either."""
        return re.compile(any_of(token for token in self.tokens if not self.is_written(token)))

    def rendered(self, render: Callable[..., str], messages: Sequence[Message], **others: object) -> Rendered:
        """What `render(messages, **others)` returns, if the control tokens in all of these are plain text.

        Raises `TemplateError` for what is no JSON, and for texts that have every character for private use.
        """
        plain = [plain_message(message, position) for position, message in enumerate(messages)]
        data = {name: plain_data(value, name) for name, value in others.items()}
        texts = [*texts_in([plain, data])]
        if not any(map(self.needs_mark, texts)):
            return Rendered(render(plain, **data))
        told = "\n".join(texts)
        used = set(told)
        mark = next((mark for mark in MARKS if mark not in used and escaped(mark) not in told), None)
        if mark is None:
            raise TemplateError("the messages have all characters for private use (U+E000 to U+F8FF); leave one out")
        text = render(
            [self.marked_message(message, mark) for message in plain],
            **{name: self.marked(value, mark) for name, value in data.items()},
        )
        return Rendered(text.replace(escaped(mark), mark), mark)

    def needs_mark(self, text: str) -> bool:
        """Return whether a text has a control token, or ends as one begins, which the next text may complete."""
        return self.everywhere.search(text) is not None or self.ends_open(text.rstrip())

    def ends_open(self, text: str) -> bool:
        """Return whether a text ends with the beginning of a control token."""
        return any(text[-length:] in self.beginnings for length in range(1, min(self.longest, len(text) + 1)))

    def marked_message(self, message: Message, mark: str) -> dict[str, Any]:
        """A message with marks; the model's own thinking and calls, which the template may look for, get none."""
        by_model = WRITTEN_BY_MODELS if message.get("role") == "assistant" else ()
        return {
            key: self.marked(value, mark, self.of_others if key in by_model else self.everywhere) for key, value in message.items()
        }

    def marked(self, value: Any, mark: str, tokens: re.Pattern[str] | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """A JSON value whose texts have a mark within each control token, and one after the beginning of a token at their end."""
        change = functools.partial(self.marked, mark=mark, tokens=tokens)
        if isinstance(value, str):
            end = len(value.rstrip())
            closed = f"{value[:end]}{mark}{value[end:]}" if self.ends_open(value[:end]) else value
            return (tokens or self.everywhere).sub(lambda found: f"{found[0][0]}{mark}{found[0][1:]}", closed)
        if isinstance(value, Mapping):
            return {change(str(key)): change(item) for key, item in value.items()}
        return list(map(change, value)) if isinstance(value, list | tuple) else value


def escaped(mark: str) -> str:
    r"""A mark as a template writes it that turns a text to JSON in ASCII: `\ue000`."""
    return json.dumps(mark)[1:-1]


def texts_in(value: object) -> Iterator[str]:
    """All texts of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for each in pair for text in texts_in(each))
    elif isinstance(value, list | tuple):
        yield from (text for each in value for text in texts_in(each))
