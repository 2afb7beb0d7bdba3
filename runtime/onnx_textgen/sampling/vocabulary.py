"""A package's vocabulary in llguidance's form.

llguidance reads `tokenizer.json` itself, but takes every added token for a special one, which is no part of any text, and yet
encodes the text that a rule forces with such tokens. Here a token is special if decoding leaves it out, and a text is encoded with
tokens that decode to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..text.tokenizer import TextTokenizer


def make_vocabulary(tokenizer: TextTokenizer, *, rows: int, eos_ids: Sequence[int]) -> Any:  # noqa: ANN401 - an LLTokenizer
    """Make llguidance's `LLTokenizer`, in which no rule allows an id that has no logit: those from `rows` on.

    Without `eos_ids` the last id, which no token has, takes their place. Raises `ValueError` for a tokenizer that llguidance cannot
    use.
    """
    from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415 - only for texts with a rule

    size = max(rows, tokenizer.vocab_size) + 1
    ends = list(eos_ids) or [size - 1]
    reading = LLTokenizer(tokenizer.to_json(), n_vocab=size, eos_token=list(eos_ids) or None, slices=[])  # slices cost time
    return LLTokenizer(TokenizerWrapper(Vocabulary(tokenizer, reading, rows, ends[0])), n_vocab=size, eos_token=ends)


class Vocabulary:
    """Input of llguidance's `TokenizerWrapper`: the bytes of the tokens, which ones are special, and how a text is encoded."""

    bos_token_id = None

    def __init__(self, tokenizer: TextTokenizer, reading: Any, rows: int, eos_token_id: int) -> None:  # noqa: ANN401 - an LLTokenizer
        """`reading`: llguidance's own, which encodes a text without the space that some tokenizers put before it."""
        self.reading, self.eos_token_id = reading, eos_token_id
        self.tokens: list[bytes] = [reading.decode_bytes([token_id]) for token_id in range(reading.vocab_size)]
        self.special_token_ids = list[int]()
        for token_id in range(reading.vocab_size):
            if token_id >= rows or tokenizer.visible_token(token_id) is None:
                self.special_token_ids.append(token_id)
            elif reading.is_special_token(token_id):
                self.tokens[token_id] = tokenizer.piece_bytes(token_id)
        self.special = frozenset(self.special_token_ids)

    def __call__(self, text: bytes) -> list[int]:
        """Encode a text, in UTF-8, with tokens that decode to it."""
        return self.encode(text.decode())

    def encode(self, text: str) -> list[int]:
        """Encode a text; one that the tokenizer changes, or takes a part of for a special token, in two halves."""
        token_ids: list[int] = self.reading.tokenize_str(text)
        is_same = b"".join(self.tokens[token_id] for token_id in token_ids) == text.encode()
        if is_same and self.special.isdisjoint(token_ids):
            return token_ids
        if middle := len(text) // 2:
            return self.encode(text[:middle]) + self.encode(text[middle:])
        longest: list[int] = self.reading.greedy_tokenize(text)
        return longest
