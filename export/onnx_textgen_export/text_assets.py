"""What a package carries besides the graph: tokenizer, chat template, special ids, generation defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from onnx_textgen.artifact import CHAT_TEMPLATE, TOKENIZER
from onnx_textgen.errors import OptionError
from onnx_textgen.generation_config import OPTION_NAMES, make_generation_config

from .end_of_turn import as_ids, every_end, read_template
from .tokenizer_conversion import convert_tokenizer, read_json, read_settings, read_tokenizer, token_text

__all__ = ["TextAssets", "read_json", "read_text_assets", "read_tokenizer"]

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
ALWAYS = ("repetition_penalty",)
"""Defaults that hold for greedy generation too."""


@dataclasses.dataclass(frozen=True, slots=True)
class TextAssets:
    """Everything about text that goes into the folder."""

    tokenizer: Tokenizer | None = None
    """None: the package takes and gives token ids only."""
    chat_template: str | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    generation: dict[str, int | float] = dataclasses.field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write tokenizer.json and chat_template.jinja where there is one."""
        if self.tokenizer is not None:
            (folder / TOKENIZER).write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
        if self.chat_template is not None:
            (folder / CHAT_TEMPLATE).write_text(self.chat_template, encoding="utf-8")


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


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` without its nulls, the text part of a multimodal model laid open underneath."""
    config = {key: value for key, value in read_json(folder / "config.json").items() if value is not None}
    parts = [config[name] for name in ("text_config", "llm_config", "language_config") if isinstance(config.get(name), dict)]
    part: dict[str, Any] = parts[0] if parts else {}
    return {key: value for key, value in part.items() if value is not None} | config


def special_id(name: str, settings: Mapping[str, Any], tokenizer: Tokenizer | None, folder: Path) -> int | None:
    """The id of bos or pad: as the model's settings say, else the token that the tokenizer's settings name."""
    if ids := as_ids(settings.get(f"{name}_token_id")):
        return ids[0]
    text = token_text(read_settings(folder).get(f"{name}_token"))
    return tokenizer.token_to_id(text) if tokenizer is not None and text else None


def read_text_assets(folder: Path, *, tokenizer: Tokenizer | None = None) -> TextAssets:
    """Tokenizer, template, ids and defaults of a checkpoint folder; `generation_config.json` wins over `config.json`.

    `tokenizer` stands in for the folder's own, which is then not read. Raises `ExportError` for a tokenizer that cannot be
    converted exactly, and for settings that are no JSON.
    """
    config = read_config(folder)
    settings = config | {key: value for key, value in read_json(folder / "generation_config.json").items() if value is not None}
    tokenizer = tokenizer or convert_tokenizer(folder)
    template = read_template(folder)
    return TextAssets(
        tokenizer=tokenizer,
        chat_template=template,
        bos_id=special_id("bos", settings, tokenizer, folder),
        eos_ids=every_end(folder, tokenizer, template, config),
        pad_id=special_id("pad", settings, tokenizer, folder),
        generation=generation_defaults(settings),
    )
