"""What a package contains apart from the graph: tokenizer, chat template, special ids, generation defaults."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tokenizers import Tokenizer

from onnx_textgen.package.end_tokens import all_eos_ids, read_template
from onnx_textgen.package.hf_settings import generation_defaults, read_config, read_json, special_id, without_nulls
from onnx_textgen.package.manifest import CHAT_TEMPLATE, TOKENIZER

from .conversion import convert_tokenizer, tokenizer_file


@dataclasses.dataclass(frozen=True, slots=True)
class TextAssets:
    """Everything about text in a package."""

    tokenizer: Tokenizer | None = None
    """None: the package takes and returns token ids only."""
    chat_template: str | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    generation: dict[str, int | float] = dataclasses.field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write tokenizer.json and chat_template.jinja, if present."""
        if self.tokenizer is not None:
            (folder / TOKENIZER).write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
        if self.chat_template is not None:
            (folder / CHAT_TEMPLATE).write_text(self.chat_template, encoding="utf-8")


def read_text_assets(folder: Path, *, tokenizer: Tokenizer | None = None, adapter: Path | None = None) -> TextAssets:
    """Tokenizer, template, ids and defaults of a checkpoint folder; `generation_config.json` overrides `config.json`.

    `tokenizer` replaces the folder's own, which is then not read. The tokenizer and the template of the folder of an adapter, if
    there are any, replace those of its base. Raises `ExportError` for a tokenizer that cannot be converted exactly, and
    `PackageError` for settings that are not JSON.
    """
    config = read_config(folder)
    written = without_nulls(read_json(folder / "generation_config.json"))
    settings = config | written
    template = read_template(folder)
    if adapter is not None:
        template = read_template(adapter) or template
        folder = adapter if tokenizer_file(adapter) else folder
    tokenizer = tokenizer or convert_tokenizer(folder)
    return TextAssets(
        tokenizer=tokenizer,
        chat_template=template,
        bos_id=special_id("bos", settings, tokenizer, folder),
        eos_ids=all_eos_ids(folder, tokenizer, template, generation=written, config=config),
        pad_id=special_id("pad", settings, tokenizer, folder),
        generation=generation_defaults(settings),
    )
