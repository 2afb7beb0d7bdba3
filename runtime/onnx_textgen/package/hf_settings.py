"""What the JSON files beside a model say: config.json, generation_config.json, tokenizer_config.json and their kin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import OptionError, PackageError
from ..files import text_files
from ..files.text_files import readable
from ..options.generation_config import OPTION_NAMES, make_generation_config

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, as JSON can hold it and no text."""
ALWAYS = ("repetition_penalty",)
"""Defaults that hold for greedy generation too."""


def read_json(path: Path, *, most: int = text_files.MOST_BYTES) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no file; raises `PackageError` for one that cannot be read."""
    with readable(path):
        if not path.is_file():
            return {}
    value = text_files.read_json(path, most=most)
    if not isinstance(value, dict):
        raise PackageError(f"{path} should hold a JSON object, found {type(value).__name__}; mend it or fetch it again")
    return value


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that say something."""
    return {key: item for key, item in value.items() if item is not None}


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` without its nulls, the text part of a multimodal model laid open underneath."""
    config = without_nulls(read_json(folder / "config.json"))
    parts = [config[name] for name in ("text_config", "llm_config", "language_config") if isinstance(config.get(name), dict)]
    return without_nulls(parts[0] if parts else {}) | config


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` over the older `special_tokens_map.json`."""
    return read_json(folder / "special_tokens_map.json") | without_nulls(read_json(folder / "tokenizer_config.json"))


def token_text(value: object) -> str | None:
    """The text of a special token, which is written as a string or as an object with its `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and not LONE_SURROGATE.search(value) else None


def as_ids(value: object) -> tuple[int, ...]:
    """An id, a list of ids or nothing, as a tuple."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(item for item in values if isinstance(item, int) and not isinstance(item, bool))


def special_id(name: str, settings: Mapping[str, Any], tokenizer: Tokenizer | None, folder: Path) -> int | None:
    """The id of bos or pad: as the model's settings say, else the token that the tokenizer's settings name."""
    if ids := as_ids(settings.get(f"{name}_token_id")):
        return ids[0]
    text = token_text(read_tokenizer_settings(folder).get(f"{name}_token"))
    return tokenizer.token_to_id(text) if tokenizer is not None and text else None


def is_usable(name: str, value: object) -> bool:
    """Whether the runtime can take a default; checkpoints write top_k 0 or -1, or top_p 0, for none."""
    try:
        make_generation_config({}, {name: value})
    except OptionError:
        return False
    return value is not None


def generation_defaults(settings: Mapping[str, Any]) -> dict[str, int | float]:
    """The sampling options that the makers suggest and the runtime knows; those of drawing only where they draw at all."""
    names = (*SAMPLING, *ALWAYS) if settings.get("do_sample", True) else ALWAYS
    return {name: settings[name] for name in names if name in OPTION_NAMES and is_usable(name, settings.get(name))}
