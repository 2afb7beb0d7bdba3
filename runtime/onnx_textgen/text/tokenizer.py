"""Text to token ids and back, and ids to text while they are still being generated.

Reads every kind of `tokenizer.json` (byte-level BPE, SentencePiece-style BPE, Unigram, WordPiece) through the `tokenizers`
library. Knows nothing of chat templates, stop strings or models.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import PackageError, PromptError, TokenizerError
from ..files.text_files import parse_json, read_text

MAX_FILE_BYTES = 64 * 2**20
MAX_ID = 2**24
MAX_GROWTH = 256
"""Most that the replacements of a normalizer or a decoder may lengthen a text by."""
CONTEXT_TOKENS = 16
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Streaming(Enum):
    """What has to be known before a token's text is certain."""

    BYTES = "the token's bytes; only the last character may be unfinished"
    TOKENS = "the tokens before it"
    RUNS = "whether a run of byte tokens is UTF-8, which shows at its end"
    WHOLE = "all tokens"


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


def byte_of_character() -> dict[str, int]:
    """Map each character of a byte-level token to the byte it stands for (GPT-2's table).

    Printable characters of Latin-1 stand for themselves; the other bytes, in order, are the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def streaming_of(decoders: Sequence[Mapping[str, Any]]) -> Streaming:
    """Tell how tokens have to be read, given the flat list of decoder components."""
    kinds = [decoder["type"] for decoder in decoders]
    if kinds == ["ByteLevel"]:
        return Streaming.BYTES
    if not set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"}:
        return Streaming.WHOLE
    # From Fuse on, a component sees the whole text as one token: then only what it does at the beginning can be foreseen.
    after_fuse = decoders[kinds.index("Fuse") + 1 :] if "Fuse" in kinds else []
    if any(decoder["type"] != "Strip" or decoder["stop"] for decoder in after_fuse):
        return Streaming.WHOLE
    return Streaming.RUNS if "ByteFallback" in kinds else Streaming.TOKENS


def visible_space(decoders: Sequence[Mapping[str, Any]]) -> str:
    """Find the character that the decoder turns into a space, SentencePiece's U+2581 as a rule; "" if there is none."""
    for decoder in decoders:
        if decoder["type"] == "Metaspace":
            return str(decoder["replacement"])
        if decoder["type"] == "Replace" and decoder["content"] == " ":
            return str(decoder["pattern"].get("String", ""))
    return ""


def flat_components(component: Mapping[str, Any] | None, children: str) -> list[Mapping[str, Any]]:
    """List the simple components that one of `tokenizer.json` is made of; `children` names the key of a Sequence's parts."""
    if component is None:
        return []
    if component.get("type") != "Sequence":
        return [component]
    return [part for child in component[children] for part in flat_components(child, children)]


def vocabulary_ids(spec: Mapping[str, Any]) -> list[int]:
    """List the ids of the model's own vocabulary."""
    vocabulary = spec["model"]["vocab"]
    return list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))


def check_charsmap(component: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a table of characters that says it is longer than it is: the library reserves that much memory."""
    if component["type"] == "Precompiled":
        table = base64.b64decode(component["precompiled_charsmap"] or "")
        if int.from_bytes(table[:4], "little") > len(table):
            raise ValueError("its table of characters says that it is longer than it is")


def growth_of(component: Mapping[str, Any]) -> float:
    """Bound how many times longer one component may make a text; for a prefix, its length."""
    if component["type"] == "Prepend":
        return len(component["prepend"])
    if component["type"] != "Replace":
        return 1
    pattern = component["pattern"]
    return max(1, len(component["content"]) / max(1, len(pattern.get("String", ""))))


def read_spec(text: str) -> dict[str, Any]:
    """Parse a `tokenizer.json` and refuse what the library accepts and should not.

    Two words with one id, ids far outside any vocabulary, and replacements that blow a short text up until memory ends: the
    library aborts the process then, which no caller can catch.
    """
    try:
        spec = parse_json(text)
        ids = vocabulary_ids(spec)
        if len(set(ids)) != len(ids):
            raise TokenizerError("tokenizer.json gives one id to two tokens; export the model again")
        ids += [token["id"] for token in spec.get("added_tokens") or ()]
        if any(type(i) is not int or not 0 <= i < MAX_ID for i in ids):
            raise TokenizerError(f"tokenizer.json has an id outside 0..{MAX_ID - 1}; export the model again")
        for part, children in (("normalizer", "normalizers"), ("decoder", "decoders")):
            growth = 1.0
            for component in flat_components(spec.get(part), children):
                check_charsmap(component)
                growth *= growth_of(component)
            if growth > MAX_GROWTH:
                raise TokenizerError(f"the {part} in tokenizer.json may make a text {growth:,.0f} times longer; use another model")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        raise TokenizerError(f"tokenizer.json is not a tokenizer ({reason}); export the model again") from error
    return spec  # type: ignore[no-any-return]  # a dict: its keys were read above
