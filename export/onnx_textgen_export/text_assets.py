"""What a package carries besides the graph: tokenizer, chat template, special ids, generation defaults."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from onnx_textgen.artifact import CHAT_TEMPLATE, TOKENIZER
from onnx_textgen.errors import OptionError, first_line
from onnx_textgen.generation_config import make_generation_config

from .errors import ExportError

DEFAULTS = ("temperature", "top_k", "top_p", "min_p")


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
            self.tokenizer.save(str(folder / TOKENIZER))
        if self.chat_template is not None:
            (folder / CHAT_TEMPLATE).write_text(self.chat_template, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ExportError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ExportError(f"{path} should hold a JSON object, found {type(value).__name__}")
    return value


def is_usable(name: str, value: object) -> bool:
    """Whether the runtime can take a sampling default; checkpoints write top_k 0 or -1, or top_p 0, for none."""
    try:
        make_generation_config({}, {name: value})
    except OptionError:
        return False
    return value is not None


def read_tokenizer(path: Path) -> Tokenizer:
    """Open a tokenizer.json."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise ExportError(f"{path} is no tokenizer.json: {first_line(error)}") from error


def as_ids(value: object) -> tuple[int, ...]:
    """An id, a list of ids or nothing, as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)  # type: ignore[arg-type]


def open_tokenizer(folder: Path) -> tuple[Tokenizer | None, str | None]:
    """The checkpoint's tokenizer, converted to tokenizer.json's form where it is in another, and its chat template."""
    if (folder / TOKENIZER).is_file() and not (folder / "tokenizer_config.json").is_file():
        return read_tokenizer(folder / TOKENIZER), None
    if not any((folder / name).is_file() for name in (TOKENIZER, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")):
        return None, None
    try:
        wrapper = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ExportError(f"transformers cannot open the tokenizer in {folder}: {first_line(error)}") from error
    if not isinstance(wrapper, PreTrainedTokenizerFast):
        raise ExportError(
            f"{type(wrapper).__name__} in {folder} has no tokenizer.json form; convert it with the tokenizers library"
        )
    template = wrapper.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return wrapper.backend_tokenizer, template


def read_text_assets(folder: Path) -> TextAssets:
    """Tokenizer, template, ids and defaults of a checkpoint folder; `generation_config.json` wins over `config.json`."""
    settings: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        settings |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    tokenizer, template = open_tokenizer(folder)
    defaults = {name: settings[name] for name in DEFAULTS if is_usable(name, settings.get(name))}
    bos = as_ids(settings.get("bos_token_id"))
    return TextAssets(
        tokenizer=tokenizer,
        chat_template=template,
        bos_id=bos[0] if bos else None,
        eos_ids=as_ids(settings.get("eos_token_id")),
        pad_id=next(iter(as_ids(settings.get("pad_token_id"))), None),
        generation=defaults if settings.get("do_sample", True) else {},
    )
