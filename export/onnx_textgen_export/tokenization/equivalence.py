"""Compares a converted tokenizer with the original, id by id, on texts that conversions get wrong.

The originals are SentencePiece's processor, a plain form of the byte-level BPE of the GPT-2 release, and transformers' WordPiece in
Python. Texts that contain an added token are left out if the original does not know that token.
"""

from __future__ import annotations

import functools
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import regex
from tokenizers import Tokenizer

from ..errors import ExportError
from .probe_texts import PROBES
from .sentencepiece import GIVE_TOKENIZER

SHOWN = 12


class Reference(Protocol):
    """The original implementation."""

    @property
    def cuts(self) -> frozenset[str]:
        """Added tokens that the original finds in a text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids without begin and end tokens."""
        ...

    def decode(self, ids: list[int]) -> str | None:
        """The text of ids, or None if the original cannot decode them."""
        ...


def prove_tokenizer(converted: Tokenizer, original: Reference, name: str, texts: Iterable[str] = PROBES) -> None:
    """Raise `ExportError` naming the first text that the conversion encodes or decodes differently."""
    written = Tokenizer.from_str(converted.to_str())  # what a package will hold
    added = {token.content for token in written.get_added_tokens_decoder().values()} - original.cuts
    for text in texts:
        if any(token in text for token in added):
            continue
        ids, want = written.encode(text, add_special_tokens=False).ids, original.encode(text)
        if ids != want:
            raise ExportError(differs(name, text, f"ids {shorten(ids)} where the original gives {shorten(want)}"))
        back, meant = written.decode(ids, skip_special_tokens=False), original.decode(want)
        if meant is not None and back != meant:
            raise ExportError(differs(name, text, f"decodes to {back!r:.60} where the original gives {meant!r:.60}"))


def differs(name: str, text: str, how: str) -> str:
    """One line on the difference of a conversion."""
    return f"{name} cannot be converted exactly: {text!r:.60} {how}; {GIVE_TOKENIZER}"


def shorten(ids: Sequence[int]) -> str:
    """The first few ids."""
    return str(list(ids)) if len(ids) <= SHOWN else f"[{', '.join(map(str, ids[:SHOWN]))}, ... {len(ids)} in all]"


class SameFile:
    """The original tokenizer.json on disk, as the reference of its converted form."""

    cuts: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(path))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        """Ids without begin and end tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str | None:
        """The text of ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


class ByteLevelBPE:
    """Byte-level BPE as OpenAI released it with GPT-2 (encoder.py), which reads `vocab.json` and `merges.txt`.

    It takes from the conversion only what those files lack: how text is split into words.
    """

    cuts: frozenset[str] = frozenset()

    def __init__(self, folder: Path, converted: Tokenizer) -> None:
        self.vocab: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        pairs = [tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.texts = {token_id: text for text, token_id in self.vocab.items()}
        self.letter_of = byte_letters()
        self.byte_of = {letter: byte for byte, letter in self.letter_of.items()}
        self.cut = word_cutter(json.loads(converted.to_str()))

    def encode(self, text: str) -> list[int]:
        """Ids without begin and end tokens."""
        words = ["".join(self.letter_of[byte] for byte in word.encode()) for word in self.cut(text)]
        return [self.vocab[piece] for word in words for piece in self.pieces(word) if piece in self.vocab]

    def pieces(self, word: str) -> list[str]:
        """Merge the pair of the lowest rank, everywhere, until no pair has a rank."""
        parts = list(word)
        while len(parts) > 1:
            best = min(itertools.pairwise(parts), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            joined: list[str] = []
            for part in parts:
                if joined and (joined[-1], part) == best:
                    joined[-1] += part
                else:
                    joined.append(part)
            parts = joined
        return parts

    def decode(self, ids: list[int]) -> str | None:
        """The text of ids, with invalid characters replaced."""
        return bytes(self.byte_of[letter] for token_id in ids for letter in self.texts[token_id]).decode(errors="replace")


def byte_letters() -> dict[int, str]:
    """The letter that represents each byte in `vocab.json`: the byte's character if visible, else one from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + index) for index, byte in enumerate(hidden)}


GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def word_cutter(spec: dict[str, Any]) -> Callable[[str], list[str]]:
    """The function that splits text into words, from the parsed tokenizer.json.

    Raises `ExportError` for steps that are not known here, because they cannot be proved.
    """
    patterns: list[str] = []
    prefix = False
    step = spec.get("pre_tokenizer") or {}
    for part in step.get("pretokenizers", [step]):
        match part:
            case {"type": "ByteLevel"}:
                prefix = prefix or part["add_prefix_space"]
                patterns += [GPT2_WORDS] if part.get("use_regex", True) else []
            case {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": pattern}}:
                patterns.append(pattern)
            case {"type": "Digits", "individual_digits": True}:
                patterns.append(r"\p{N}")
            case _:
                kind = part.get("type")
                raise ExportError(f"vocab.json with the step {kind} cannot be proved here; {GIVE_TOKENIZER}")
    forms = [part.get("type") for part in (spec.get("normalizer") or {}).get("normalizers", [spec.get("normalizer") or {}])]
    normalise = functools.partial(unicodedata.normalize, "NFC") if "NFC" in forms else str

    def cut(text: str) -> list[str]:
        text = normalise(text)
        words = [" " + text if prefix and not text.startswith(" ") else text] if text else []
        for pattern in patterns:
            words = [piece for word in words for piece in isolate(pattern, word)]
        return words

    return cut


def isolate(pattern: str, text: str) -> list[str]:
    """Split `text` before and after every match.

    >>> isolate("b+", "abba")
    ['a', 'bb', 'a']
    """
    pieces, start = [], 0
    for match in regex.finditer(pattern, text):
        pieces += [text[start : match.start()], match.group()]
        start = match.end()
    return [piece for piece in [*pieces, text[start:]] if piece]
