"""Reads the JSON files of a Hugging Face model: config.json, generation_config.json, tokenizer_config.json and similar ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import OptionError, PackageError
from ..files import text_files
from ..files.text_files import readable
from ..options.generation_config import OPTION_NAMES
from ..options.merging import make_generation_config

SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which JSON allows but no valid text contains."""
GREEDY_OPTIONS = ("repetition_penalty",)
"""Options that also apply to greedy generation."""


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
    """Convert an id, a list of ids or None to a tuple of ids; other values are left out."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(item for item in values if isinstance(item, int) and not isinstance(item, bool))


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
    start, forced = (settings.get(name) for name in ("decoder_start_token_id", "forced_bos_token_id"))
    if not isinstance(start, int):
        return ()
    return (start, forced) if isinstance(forced, int) else (start,)


def suppressed_ids(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that settings exclude from every text, as Marian's exclude padding.

    >>> suppressed_ids({"bad_words_ids": [[58100], [1, 2]]})
    (58100,)
    """
    found = settings.get("bad_words_ids")
    words = found if isinstance(found, list) else []
    return tuple(word[0] for word in words if isinstance(word, list) and len(word) == 1 and isinstance(word[0], int))


def is_usable(name: str, value: object) -> bool:
    """Return whether the runtime accepts a default; some checkpoints switch top_k off by 0 or -1, and top_p by 0."""
    try:
        make_generation_config({}, {name: value})
    except OptionError:
        return False
    return value is not None


def generation_defaults(settings: Mapping[str, Any]) -> dict[str, int | float]:
    """The makers' defaults that the runtime accepts; with `do_sample` false, only those that also apply to greedy generation."""
    names = (*SAMPLING_OPTIONS, *GREEDY_OPTIONS) if settings.get("do_sample", True) else GREEDY_OPTIONS
    return {name: settings[name] for name in names if name in OPTION_NAMES and is_usable(name, settings.get(name))}
