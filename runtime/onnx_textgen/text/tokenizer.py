"""Text to token ids and back.

Reads every kind of `tokenizer.json` (byte-level BPE, SentencePiece-style BPE, Unigram, WordPiece) through the `tokenizers`
library. Knows nothing of chat templates, stop strings or models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from ..errors import PackageError, PromptError, TokenizerError
from ..files.text_files import read_text
from .tokenizer_json import (
    BYTE_TOKEN,
    Streaming,
    byte_of_character,
    flat_components,
    read_spec,
    streaming_of,
    visible_space,
    vocabulary_ids,
)

MAX_FILE_BYTES = 64 * 2**20


class tokenizer_errors:  # noqa: N801 - a context, and a class rather than a generator because every token passes through one
    """Turn whatever the `tokenizers` library raises into `TokenizerError`; a panic in its Rust code is no `Exception`."""

    __slots__ = ("doing",)

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":
            reason = str(error).strip().split("\n")[0][:200]
            raise TokenizerError(f"the tokenizer failed on {self.doing} ({reason}); export the model again") from error


class TextTokenizer:
    """The tokenizer of a model folder."""

    __slots__ = ("_byte_of_character", "_hidden", "_space", "_tokenizer", "bos_id", "eos_ids", "streaming", "vocab_size")

    bos_id: int | None
    """The id that begins a text, if the model has one."""
    eos_ids: tuple[int, ...]
    """The ids that end a text."""
    streaming: Streaming
    """How `StreamDecoder` has to read the tokens."""
    vocab_size: int
    """One more than the highest id."""

    def __init__(self, text: str, *, eos_ids: Sequence[int] = (), bos_id: int | None = None) -> None:
        """`text`: what `tokenizer.json` holds; raises `TokenizerError` if that is no tokenizer this library can use."""
        spec = read_spec(text)
        with tokenizer_errors("its file"):
            self._tokenizer = Tokenizer.from_str(text)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            added = self._tokenizer.get_added_tokens_decoder()
            decoders = flat_components(spec.get("decoder"), "decoders")
            self.streaming = streaming_of(decoders)
            self._space = visible_space(decoders)
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)
        self.vocab_size = 1 + max([*vocabulary_ids(spec), *added], default=-1)
        special_ids = [token_id for token_id, token in added.items() if token.special]
        self._hidden = frozenset([*special_ids, *eos_ids, *([] if bos_id is None else [bos_id])])
        self._byte_of_character = byte_of_character() if self.streaming is Streaming.BYTES else {}

    @classmethod
    def from_file(cls, path: str | Path, *, sha256: str = "", eos_ids: Sequence[int], bos_id: int | None) -> TextTokenizer:
        """Read a `tokenizer.json`, with `sha256` only one of this digest.

        `eos_ids` and `bos_id` are left out of decoded text whatever the file says of them.
        """
        try:
            text = read_text(Path(path), most=MAX_FILE_BYTES, sha256=sha256)
        except PackageError as error:
            raise TokenizerError(str(error)) from error
        return cls(text, eos_ids=eos_ids, bos_id=bos_id)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Split `text` into ids; with `add_special_tokens` also those the tokenizer puts around a text, such as `<s>`.

        Special tokens written out in the text become their ids. Raises `PromptError` if `text` is no valid text.
        """
        if not isinstance(text, str):
            raise PromptError(f"a prompt should be text, found {type(text).__name__}; give a str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(f"the prompt holds a lone surrogate at character {error.start}; give valid Unicode text") from error
        with tokenizer_errors("this text"):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Join `ids` to text, special tokens left out; bytes that are no UTF-8 become U+FFFD, ids of no token nothing."""
        visible = [token_id for token_id in ids if token_id not in self._hidden]
        with tokenizer_errors("these ids"):
            text: str = self._tokenizer.decode(visible, skip_special_tokens=False)
        return text

    def piece(self, token_id: int) -> str:
        """Show what one id stands for, to a person: its text, `<0xE2>` for a byte that is no character by itself.

        >>> tokenizer.piece(262), tokenizer.piece(158)  # doctest: +SKIP
        (' the', '<0xE2>')
        """
        token = self._token(token_id)
        if token is None:
            return f"<{token_id}>"
        if self._byte_of_character:
            text = self.token_bytes(token).decode("utf-8", "surrogateescape")
            return re.sub("[\udc80-\udcff]", lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", text)
        return token.replace(self._space, " ") if self._space else token

    def piece_bytes(self, token_id: int) -> bytes:
        """Give the bytes that one id stands for, as far as a token tells them by itself."""
        token = self._token(token_id)
        if token is not None and BYTE_TOKEN.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        return self.token_bytes(token) if token is not None and self._byte_of_character else self.piece(token_id).encode("utf-8")

    def difference_to(self, other: TextTokenizer) -> str:
        """In what way some id does not mean the same to another tokenizer; empty where all do."""
        own, others = (
            {token_id: token for token, token_id in each._tokenizer.get_vocab(with_added_tokens=True).items()}
            for each in (self, other)
        )
        for token_id in sorted(own.keys() | others.keys()):
            if own.get(token_id) != others.get(token_id):
                return f"id {token_id} is {own.get(token_id)!r:.40} in one and {others.get(token_id)!r:.40} in the other"
        return ""

    def to_json(self) -> str:
        """What `tokenizer.json` holds, without truncation and padding."""
        text: str = self._tokenizer.to_str()
        return text

    def visible_token(self, token_id: int) -> str | None:
        """Spell the token as the vocabulary does; None for one that `decode` leaves out."""
        return None if token_id in self._hidden else self._token(token_id)

    def token_bytes(self, token: str) -> bytes:
        """Give the bytes that a byte-level token spells, one character a byte; tokens of other characters stand for themselves."""
        try:
            return bytes([self._byte_of_character[character] for character in token])
        except KeyError:
            return token.encode("utf-8")

    def _token(self, token_id: int) -> str | None:
        with tokenizer_errors("an id"):
            token: str | None = self._tokenizer.id_to_token(token_id)
        return token
