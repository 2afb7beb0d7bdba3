"""Text to token ids and back.

Reads every kind of `tokenizer.json` (byte-level BPE, SentencePiece-style BPE, Unigram, WordPiece) with the `tokenizers` library.
Chat templates and stop strings are left to other modules.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from ..errors import PackageError, PromptError, TokenizerError
from ..files.text_files import read_text
from .infill import InfillTokens, find_infill_tokens
from .tokenizer_json import (
    BYTE_TOKEN,
    Streaming,
    byte_of_character,
    flat_components,
    read_spec,
    replacements_of,
    streaming_of,
    vocabulary_ids,
)

REPLACEMENT = "\ufffd"
MAX_FILE_BYTES = 64 * 2**20
CHARACTERS = 8
"""More than most tokens have."""
DEEPEST_BEGINNINGS = 40
"""Common beginnings within one another; `re` nests its groups no deeper than some hundred."""


class tokenizer_errors:  # noqa: N801 - a context, and a class rather than a generator because every token passes through one
    """Turn any error of the `tokenizers` library into `TokenizerError`; a panic in its Rust code is not an `Exception`."""

    __slots__ = ("doing",)

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":
            reason = str(error).strip().split("\n")[0][:200]
            raise TokenizerError(f"the tokenizer failed on {self.doing} ({reason}); export the model again") from error


def any_of(tokens: Iterable[str], depth: int = 0) -> str:
    """A regular expression for each of these texts, the longest that fits, and for nothing if there are none.

    Common beginnings stand in it once; else thousands of alternatives (`<unused1>`, `<unused2>` ...) are tried at every `<`.

    >>> any_of(["<s>", "</s>", "<s>x"])
    '<(?:/s>|s>(?:x)?)'
    """
    found = sorted(set(tokens))
    if not found:
        return "(?!)"
    if depth == DEEPEST_BEGINNINGS:
        return f"(?:{'|'.join(map(re.escape, reversed(found)))})"
    ends = zip(found[0], found[-1], strict=False)  # what the first and the last one share, all between them have
    shared = "".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends))
    rests = [token[len(shared) :] for token in found if token != shared]
    longer = "|".join(any_of(group, depth + 1) for _, group in itertools.groupby(rests, key=lambda rest: rest[0]))
    return re.escape(shared) + (f"(?:{longer})" if longer else "") + ("?" if longer and found[0] == shared else "")


def without_odd_bytes(tokens: Iterable[str]) -> Iterator[str]:
    """Tokens with U+FFFD for each byte token that belongs to no character.

    >>> [*without_odd_bytes(["a", "<0x0A>", "<0xE2>", "b"])]
    ['a', '<0x0A>', '�', 'b']
    """
    for is_byte, run in itertools.groupby(tokens, key=lambda token: BYTE_TOKEN.fullmatch(token) is not None):
        if not is_byte:
            yield from run
            continue
        for character in bytes(int(token[3:5], 16) for token in run).decode("utf-8", "surrogateescape"):
            is_odd = "\udc80" <= character <= "\udcff"
            yield from [REPLACEMENT] if is_odd else (f"<0x{byte:02X}>" for byte in character.encode())


def check_text(text: str) -> None:
    """Raise `PromptError` for what is not valid text."""
    if not isinstance(text, str):
        raise PromptError(f"a prompt should be text, found {type(text).__name__}; give a str")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"the prompt has a lone surrogate at character {error.start}; give valid Unicode text") from error


def cut_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """The tokens that are kept of one or two texts so that they fit together: the longer one is cut first, then both alike.

    >>> cut_lengths([9], 5), cut_lengths([2, 9], 6), cut_lengths([9, 9], 7), cut_lengths([1, 2], 6)
    ([5], [2, 4], [3, 4], [1, 2])
    """
    short, long = min(lengths), max(lengths)
    if len(lengths) == 1 or short + long <= room:
        return [min(lengths[0], room), *lengths[1:]]
    short = min(short, room // 2)
    kept = [short, room - short]
    return kept if lengths[0] <= lengths[1] else kept[::-1]


class TextTokenizer:
    """The tokenizer of a model folder."""

    __slots__ = (
        "_added",
        "_added_ids",
        "_byte_of_character",
        "_control",
        "_control_pattern",
        "_hidden",
        "_replaced",
        "_tokenizer",
        "bos_id",
        "eos_ids",
        "infill",
        "streaming",
        "vocab_size",
    )

    bos_id: int | None
    """The id that begins a text, if the model has one."""
    eos_ids: tuple[int, ...]
    """The ids that end a text."""
    infill: InfillTokens | None
    """The tokens of prompts for text between a prefix and a suffix, if the model was trained to write it."""
    streaming: Streaming
    """How `StreamDecoder` must decode the tokens."""
    vocab_size: int
    """One more than the highest id."""

    def __init__(self, text: str, *, eos_ids: Sequence[int] = (), bos_id: int | None = None) -> None:
        """`text`: the content of `tokenizer.json`; raises `TokenizerError` if the library cannot use it."""
        spec = read_spec(text)
        with tokenizer_errors("its file"):
            self._tokenizer = Tokenizer.from_str(text)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            added = self._tokenizer.get_added_tokens_decoder()
            decoders = flat_components(spec.get("decoder"), "decoders")
            self.streaming = streaming_of(decoders)
            self._replaced = replacements_of(decoders)
        self._added_ids = frozenset(added)
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)
        self.vocab_size = 1 + max([*vocabulary_ids(spec), *added], default=-1)
        self._added: dict[str, int] = {token.content: token_id for token_id, token in added.items()}
        self.infill = find_infill_tokens(self._added)
        self._control = {token.content: token_id for token_id, token in added.items() if token.special}
        self._control_pattern = any_of(self._control)
        self._hidden = frozenset([*self._control.values(), *eos_ids, *([] if bos_id is None else [bos_id])])
        self._byte_of_character = byte_of_character() if self.streaming is Streaming.BYTES else {}

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The ids of special tokens by their text."""
        return self._control

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """The ids of the tokens that are found in a text before all others, by their text; special tokens are among them."""
        return self._added

    @classmethod
    def from_file(cls, path: str | Path, *, sha256: str = "", eos_ids: Sequence[int], bos_id: int | None) -> TextTokenizer:
        """Read a `tokenizer.json`; raises `TokenizerError` if it cannot, or if the file's digest is not `sha256` (unless "").

        `eos_ids` and `bos_id` are left out of decoded text, whatever the file says about them.
        """
        try:
            text = read_text(Path(path), most=MAX_FILE_BYTES, sha256=sha256)
        except PackageError as error:
            raise TokenizerError(str(error)) from error
        return cls(text, eos_ids=eos_ids, bos_id=bos_id)

    def encode(self, text: str, *, add_special_tokens: bool = True, without: str = "") -> list[int]:
        """Split `text` into ids; with `add_special_tokens` also those that the tokenizer adds around a text, such as `<s>`.

        Special tokens that are written out in the text become their ids. `without`: a character whose tokens are left out.
        Raises `PromptError` if `text` is not valid text.
        """
        check_text(text)
        with tokenizer_errors("this text"):
            found = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            ids: list[int] = found.ids
            if not without:
                return ids
            return [token_id for token_id, (start, end) in zip(ids, found.offsets, strict=True) if text[start:end] != without]

    def encode_within(self, most: int, text: str, pair: str | None = None) -> tuple[list[int], list[int]]:
        """Token ids of a text, or of a pair of texts, cut to `most` tokens with those that the tokenizer adds; and their types.

        Of a pair the longer one is cut first. Raises `PromptError` as `encode` does.
        """
        texts = [text] if pair is None else [text, pair]
        for each in texts:
            check_text(each)
        with tokenizer_errors("this text"):
            room = max(0, most - self._tokenizer.num_special_tokens_to_add(is_pair=pair is not None))
            parts = [self._beginning(each, room) for each in texts]
            for part, length in zip(parts, cut_lengths([len(part.ids) for part in parts], room), strict=True):
                part.truncate(length)
            found = self._tokenizer.post_process(parts[0], parts[1] if pair is not None else None)
            return found.ids, found.type_ids

    def _beginning(self, text: str, room: int) -> Encoding:
        """The tokens of a text without added ones; at least its first `room`, as what follows them far away is not looked at."""
        size = 2 * CHARACTERS * (room + 1)
        while len(text) > size:
            found = self._tokenizer.encode(text[:size], add_special_tokens=False)
            if len(found.ids) > 2 * room:  # where a word was divided, only its own tokens are others
                return found
            size *= 4
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode `ids` to text without special tokens; bytes that are not UTF-8 become U+FFFD, and unknown ids are left out.

        The library makes U+FFFD of all byte tokens of a run (`<0x0A><0xE2>`) if one is not UTF-8; here it is that one alone.
        """
        visible = [token_id for token_id in ids if token_id not in self._hidden]
        if self._byte_of_character and not self._added_ids.isdisjoint(visible):  # whose text the library takes for bytes
            tokens = (self._token(token_id) for token_id in visible)
            return b"".join(self.token_bytes(token) for token in tokens if token is not None).decode("utf-8", "replace")
        with tokenizer_errors("these ids"):
            text: str = self._tokenizer.decode(visible, skip_special_tokens=False)
            if self.streaming is Streaming.RUNS and REPLACEMENT in text:
                tokens = (self._token(token_id) for token_id in visible)
                text = self._tokenizer.decoder.decode([*without_odd_bytes(token for token in tokens if token is not None)])
        return text

    def piece(self, token_id: int) -> str:
        """The text of one id for a person to read; a byte that is no character by itself is shown as `<0xE2>`.

        >>> tokenizer.piece(262), tokenizer.piece(158)  # doctest: +SKIP
        (' the', '<0xE2>')
        """
        token = self._token(token_id)
        if token is None:
            return f"<{token_id}>"
        if self._byte_of_character:
            text = self.token_bytes(token).decode("utf-8", "surrogateescape")
            return re.sub("[\udc80-\udcff]", lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", text)
        for old, new in self._replaced:
            token = token.replace(old, new)
        return token

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of one id, as far as the token alone determines them."""
        token = self._token(token_id)
        if token is not None and BYTE_TOKEN.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        return self.token_bytes(token) if token is not None and self._byte_of_character else self.piece(token_id).encode("utf-8")

    def difference_to(self, other: TextTokenizer) -> str:
        """Describe the first id whose tokens differ in another tokenizer; empty if none do. An id may have several tokens."""
        own, others = (
            {(token_id, token) for token, token_id in each._tokenizer.get_vocab(with_added_tokens=True).items()}
            for each in (self, other)
        )
        if own == others:
            return ""
        token_id = min(own ^ others)[0]
        one, another = (dict(sorted(pairs)).get(token_id) for pairs in (own - others, others - own))
        return f"id {token_id} is {one!r:.40} in one and {another!r:.40} in the other"

    def showing(self, is_shown: Callable[[str], bool]) -> TextTokenizer:
        """A copy that decodes also the control tokens for which `is_shown` is true, except those that begin or end a text."""
        other = copy.copy(self)
        shown = {token_id for token, token_id in self._control.items() if is_shown(token)} - {*self.eos_ids, self.bos_id}
        other._hidden = self._hidden - shown
        return other

    def split_at_control_tokens(self, text: str) -> list[tuple[str, int | None]]:
        """The pieces of a text between control tokens, each with None, and each control token with its id."""
        if not self._control:
            return [(text, None)]
        pieces = re.split(f"({self._control_pattern})", text)  # `re` keeps the compiled pattern
        return [(piece, self._control.get(piece)) for piece in pieces if piece]

    def to_json(self) -> str:
        """The content of `tokenizer.json`, without truncation and padding."""
        text: str = self._tokenizer.to_str()
        return text

    def visible_token(self, token_id: int) -> str | None:
        """The token as the vocabulary has it; None if `decode` leaves it out."""
        return None if token_id in self._hidden else self._token(token_id)

    def token_bytes(self, token: str) -> bytes:
        """The bytes of a byte-level token, one per character; one with other characters, and an added one, is encoded as UTF-8."""
        if token in self._added:
            return token.encode("utf-8")
        try:
            return bytes([self._byte_of_character[character] for character in token])
        except KeyError:
            return token.encode("utf-8")

    def _token(self, token_id: int) -> str | None:
        with tokenizer_errors("an id"):
            token: str | None = self._tokenizer.id_to_token(token_id)
        return token
