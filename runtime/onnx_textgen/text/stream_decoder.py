"""Ids to text while they are being generated: only text that no later id can change."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .tokenizer import TextTokenizer
from .tokenizer_json import BYTE_TOKEN, Streaming

CONTEXT_TOKENS = 16


class StreamDecoder:
    """Turns ids into text one by one: all pushes and the flush together are exactly `decode` of all ids.

    `push` returns only text that no later id can change, and never part of a character. What a token looks like can depend on
    the beginning of the text (a leading space goes) and, for byte tokens, on their neighbours, but on nothing else: so a few
    ids are decoded behind the first ones of the text, and the cost of a token does not grow with the text.

    A run of byte tokens (`<0xE2><0x82>...`) is one string for the library, all of it characters or all of it U+FFFD, so it
    appears when the run ends. A tokenizer whose decoder is of an unknown kind gives its text at the flush.
    """

    __slots__ = ("_held", "_shown", "_start", "_tokenizer", "_utf8")

    def __init__(self, tokenizer: TextTokenizer, *, after: Sequence[int] = ()) -> None:
        """`after`: the ids before the first pushed one, say the prompt's; without them the text loses a leading space."""
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._start: list[int] = []  # the first ids that have any text
        self._shown = 0  # characters of it
        self._held: list[int] = []
        for token_id in after[-CONTEXT_TOKENS:]:
            self.push(token_id)
        if tokenizer.streaming is Streaming.WHOLE:
            self._release()

    def push(self, token_id: int) -> str:
        """Give the text that is certain now that this id is known; often that of the id itself, sometimes none."""
        token = self._tokenizer.visible_token(token_id)
        if token is None:
            return ""
        streaming = self._tokenizer.streaming
        if streaming is Streaming.BYTES:
            return self._utf8.decode(self._tokenizer.token_bytes(token))
        self._held.append(token_id)
        if streaming is Streaming.WHOLE or (streaming is Streaming.RUNS and BYTE_TOKEN.fullmatch(token)):
            return ""
        return self._release()

    def flush(self) -> str:
        """Give the rest, once no more ids will come; an unfinished character becomes U+FFFD."""
        return self._release() + self._utf8.decode(b"", final=True)

    def _release(self) -> str:
        if not self._held:
            return ""
        ids = self._start + self._held
        text = self._tokenizer.decode(ids)[self._shown :]
        if not self._shown:
            self._start, self._shown = ids, len(text)
        self._held = []
        return text
