"""Reads the JSON files of a Hugging Face model: config.json, generation_config.json, tokenizer_config.json and similar ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import PackageError
from ..files import text_files
from ..files.text_files import readable
from ..options.maker_settings import CHOOSING, banned, plain
from .manifest import GENERATION_CONFIG

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which JSON allows but no valid text contains."""


def read_json(path: Path, *, most: int = text_files.MOST_BYTES) -> dict[str, Any]:
    """Read a JSON object, an empty one if there is no file; raises `PackageError` for a file that is not such an object."""
    with readable(path):
        if not path.is_file():
            return {}
    value = text_files.read_json(path, most=most)
    if not isinstance(value, dict):
        raise PackageError(f"{path} should hold a JSON object, found {type(value).__name__}; fix it or fetch it again")
    return value


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the entries that are None."""
    return {key: item for key, item in value.items() if item is not None}


def read_config(folder: Path) -> dict[str, Any]:
    """Read `config.json` without nulls; of a multimodal model, the text part's entries are added where the top level has none."""
    config = without_nulls(read_json(folder / "config.json"))
    parts = [config[name] for name in ("text_config", "llm_config", "language_config") if isinstance(config.get(name), dict)]
    return without_nulls(parts[0] if parts else {}) | config


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read `tokenizer_config.json`; entries that it lacks come from the older `special_tokens_map.json`."""
    return read_json(folder / "special_tokens_map.json") | without_nulls(read_json(folder / "tokenizer_config.json"))


def token_text(value: object) -> str | None:
    """The text of a special token, given as a string or as an object with `content`; None for other values and invalid text."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and not LONE_SURROGATE.search(value) else None


def as_ids(value: object) -> tuple[int, ...]:
    """Convert an id, a list of ids or None to a tuple of ids; an id may be written as text or as a float, others are left out.

    >>> as_ids([2, "32000", 7.0, None, -1])
    (2, 32000, 7)
    """
    values = [plain(item) for item in (value if isinstance(value, list | tuple) else [value])]
    return tuple(item for item in values if isinstance(item, int) and not isinstance(item, bool) and item >= 0)


def special_id(name: str, settings: Mapping[str, Any], tokenizer: Tokenizer | None, folder: Path) -> int | None:
    """The id of `bos` or `pad`: the one in the model's settings, else that of the token in the tokenizer's settings, else None."""
    if ids := as_ids(settings.get(f"{name}_token_id")):
        return ids[0]
    text = token_text(read_tokenizer_settings(folder).get(f"{name}_token"))
    return tokenizer.token_to_id(text) if tokenizer is not None and text else None


def start_ids(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that settings begin every text with: the start of an encoder-decoder's decoder, and a first token that they force.

    >>> start_ids({"decoder_start_token_id": 2, "forced_bos_token_id": 0})
    (2, 0)
    """
    start, forced = (as_ids(settings.get(name))[:1] for name in ("decoder_start_token_id", "forced_bos_token_id"))
    return start + forced if start else ()


def suppressed_ids(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that settings exclude from every text, as Marian's exclude padding.

    >>> suppressed_ids({"bad_words_ids": [[58100], [1, 2]], "suppress_tokens": [7]})
    (58100, 7)
    """
    return tuple(word[0] for word in banned(settings) if len(word) == 1)


def generation_settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the makers say about generation: `generation_config.json`, else the entries of older checkpoints in their `config`.

    A file without `do_sample` says that texts are not drawn; so there is always an entry if there is a file.
    """
    path = folder / GENERATION_CONFIG
    with readable(path):
        has_file = path.is_file()
    if has_file:
        return {"do_sample": False} | without_nulls(read_json(path))
    return {name: config[name] for name in CHOOSING if name in config}
