"""Reads `tokenizer.json`: refuses files that the library should not accept, and finds out how its tokens become text."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from ..errors import TokenizerError
from ..files.text_files import parse_json

MAX_ID = 2**24
MAX_GROWTH = 256
"""The most times longer that a normalizer or a decoder may make a text."""
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Streaming(Enum):
    """Facts that decide when a token's text is certain."""

    BYTES = "the token's bytes; only the last character may be unfinished"
    TOKENS = "the tokens before it"
    NEXT = "the token before it; a space between both is certain with the second"
    RUNS = "the tokens before it, and for a byte token, the rest of its character"
    WHOLE = "all tokens"


def byte_of_character() -> dict[str, int]:
    """Map each character of a byte-level token to its byte (GPT-2's table).

    Printable characters of Latin-1 are their own bytes; the other bytes, in order, are the characters from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def streaming_of(decoders: Sequence[Mapping[str, Any]]) -> Streaming:
    """Decide how tokens must be decoded, from the flat list of decoder components."""
    kinds = [decoder["type"] for decoder in decoders]
    if kinds == ["ByteLevel"]:
        return Streaming.BYTES
    if kinds == ["BPEDecoder"]:  # which makes a space of the end of each word but the last
        return Streaming.NEXT
    if not set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"}:
        return Streaming.WHOLE
    # After Fuse, a component gets the whole text as one token: only a change at its beginning can be known early.
    after_fuse = decoders[kinds.index("Fuse") + 1 :] if "Fuse" in kinds else []
    if any(decoder["type"] != "Strip" or decoder["stop"] for decoder in after_fuse):
        return Streaming.WHOLE
    return Streaming.RUNS if "ByteFallback" in kinds else Streaming.TOKENS


def replacements_of(decoders: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the decoder's replacements in a token: usually a space for SentencePiece's U+2581."""
    found = list[tuple[str, str]]()
    for decoder in decoders:
        if decoder["type"] == "Metaspace":
            found.append((str(decoder["replacement"]), " "))
        elif decoder["type"] == "Replace" and (old := decoder["pattern"].get("String")):
            found.append((str(old), str(decoder["content"])))
    return found


def flat_components(component: Mapping[str, Any] | None, children: str) -> list[Mapping[str, Any]]:
    """Flatten a component of `tokenizer.json` to a list; `children` is the key under which a Sequence has its components."""
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
    """Raise `ValueError` if a character table states a length above its real one: the library would allocate that memory."""
    if component["type"] == "Precompiled":
        table = base64.b64decode(component["precompiled_charsmap"] or "")
        if int.from_bytes(table[:4], "little") > len(table):
            raise ValueError("its character table states a length above its real one")


def growth_of(component: Mapping[str, Any]) -> float:
    """The most times longer that one component can make a text; for a prefix, its length."""
    if component["type"] == "Prepend":
        return len(component["prepend"])
    if component["type"] != "Replace":
        return 1
    pattern = component["pattern"]
    return max(1, len(component["content"]) / max(1, len(pattern.get("String", ""))))


def read_spec(text: str) -> dict[str, Any]:
    """Parse a `tokenizer.json`; raises `TokenizerError` if it is malformed, or if the library should not accept it.

    Refused are two tokens with one id, ids far outside any vocabulary, and replacements that make a short text so long that memory
    runs out: then the library aborts the process, which no caller can catch.
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
