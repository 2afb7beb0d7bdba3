"""Decodes ids to text during generation, and returns only text that no later id can change."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .tokenizer import REPLACEMENT, TextTokenizer
from .tokenizer_json import BYTE_TOKEN, Streaming

CONTEXT_TOKENS = 16
"""The most ids of `after` that are used."""


class StreamDecoder:
    """Decodes ids one by one: the results of all pushes and the flush, joined, are exactly `decode` of all ids.

    `push` returns only text that no later id can change, and never part of a character. A token's text can depend on the
    beginning of the text (a leading space is removed) and, for byte tokens, on the rest of their character, but on nothing else.
    So new ids are decoded together with the first ids of the text only, and the cost of a token does not grow with the text.

    If the kind of the tokenizer's decoder is unknown, `flush` returns the whole text.
    """

    __slots__ = ("_held", "_is_settled", "_shown", "_start", "_tokenizer", "_utf8")

    def __init__(self, tokenizer: TextTokenizer, *, after: Sequence[int] = ()) -> None:
        """`after`: the ids before the first pushed one, such as the prompt's; without them the text loses a leading space."""
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(
            "surrogateescape" if tokenizer.streaming is Streaming.RUNS else "replace"
        )
        self._start: list[int] = []  # the first ids of the text, up to a character that no byte token after it can change
        self._shown, self._is_settled = 0, False  # characters of their text, and whether they are complete
        self._held: list[int] = []
        for token_id in after[-CONTEXT_TOKENS:]:
            self.push(token_id)
        if tokenizer.streaming is Streaming.WHOLE:
            self._release()

    def push(self, token_id: int) -> str:
        """Append an id; returns the text that it makes certain: often that of the id itself, sometimes none."""
        token = self._tokenizer.visible_token(token_id)
        if token is None:
            return ""
        streaming = self._tokenizer.streaming
        if streaming is Streaming.BYTES:
            return self._utf8.decode(self._tokenizer.token_bytes(token))
        if streaming is Streaming.NEXT:
            before, self._start = self._start, [token_id]
            return self._tokenizer.decode([*before, token_id])[len(self._tokenizer.decode(before)) :]
        self._held.append(token_id)
        if streaming is Streaming.WHOLE:
            return ""
        if streaming is Streaming.RUNS and BYTE_TOKEN.fullmatch(token):
            self._utf8.decode(self._tokenizer.piece_bytes(token_id))
            return self._release(unfinished=len(self._utf8.getstate()[0]))
        self._utf8.reset()
        return self._release()

    def flush(self) -> str:
        """Return the rest of the text after the last id; an unfinished character becomes U+FFFD."""
        text = self._release()
        return text if self._tokenizer.streaming is Streaming.RUNS else text + self._utf8.decode(b"", final=True)

    def _release(self, *, unfinished: int = 0) -> str:
        """The text of what is held, without the last ids, which begin a character."""
        end = len(self._held) - unfinished
        released, self._held = self._held[:end], self._held[end:]
        if not released:
            return ""
        ids = self._start + released
        text = self._tokenizer.decode(ids)
        new = text[self._shown :]
        if not self._is_settled:
            self._start, self._shown, self._is_settled = ids, len(text), text != "" and not text.endswith(REPLACEMENT)
        return new
