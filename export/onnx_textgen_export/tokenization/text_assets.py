"""Text assets of a package: tokenizer, chat template, special ids, defaults, settings for retrieval."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from onnx_textgen.answers.response_template import read_response_template
from onnx_textgen.derivation.derive import derive
from onnx_textgen.derivation.form_templates import response_template_of
from onnx_textgen.options.maker_settings import read_maker_settings
from onnx_textgen.package.end_tokens import all_eos_ids, read_template
from onnx_textgen.package.hf_settings import (
    generation_settings,
    read_config,
    read_tokenizer_settings,
    special_id,
    start_ids,
    suppressed_ids,
)
from onnx_textgen.package.manifest import CHAT_TEMPLATE, RESPONSE_TEMPLATE, TOKENIZER
from onnx_textgen.package.retrieval import EmbeddingSettings, RerankingSettings

from .conversion import convert_tokenizer, tokenizer_file
from .mistral_split import with_mistral_split
from .retrieval_settings import read_retrieval_settings

FOR_CHATS = {"do_sample": True, "temperature": 0.3, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""For a chat model whose makers say nothing: llama.cpp's truncation, at the best temperature in `benchmarks/first_answers.py`."""


@dataclasses.dataclass(frozen=True, slots=True)
class TextAssets:
    """Everything about text in a package."""

    tokenizer: Tokenizer | None = None
    """None: the package takes and returns token ids only."""
    chat_template: str | None = None
    response_template: Mapping[str, Any] | None = None
    """How answers are read; a package with a chat template has one."""
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    start_ids: tuple[int, ...] = ()
    """Ids that every text of an encoder-decoder begins with, where the settings name them."""
    suppressed_ids: tuple[int, ...] = ()
    """Ids that no text of an encoder-decoder may have, where the settings name them."""
    generation: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Defaults of options by the model's makers."""
    left_out: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of generation by the makers that texts do not follow."""
    remark: str = ""
    """What a user should know of the tokenizer."""
    embedding: EmbeddingSettings | None = None
    reranking: RerankingSettings | None = None

    def write(self, folder: Path) -> None:
        """Write tokenizer.json, chat_template.jinja and response_template.json, if present."""
        if self.tokenizer is not None:
            (folder / TOKENIZER).write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
        if self.chat_template is not None:
            (folder / CHAT_TEMPLATE).write_text(self.chat_template, encoding="utf-8")
        if self.response_template is not None:
            text = json.dumps(self.response_template, indent=1, ensure_ascii=False)
            (folder / RESPONSE_TEMPLATE).write_text(text + "\n", encoding="utf-8")


def read_text_assets(folder: Path, *, tokenizer: Tokenizer | None = None, adapter: Path | None = None) -> TextAssets:
    """Tokenizer, template, ids and defaults of a checkpoint folder; `generation_config.json` overrides `config.json`.

    `tokenizer` replaces the folder's own, which is then not read. The tokenizer and the template of the folder of an adapter, if
    there are any, replace those of its base. Raises `ExportError` for a tokenizer that cannot be converted exactly, and
    `PackageError` for settings that are not JSON.
    """
    config = read_config(folder)
    source = folder
    written, template = generation_settings(folder, config), read_template(folder)
    settings = config | written
    if adapter is not None:
        template = read_template(adapter) or template
        folder = adapter if tokenizer_file(adapter) else folder
    remark = ""
    if tokenizer is None and (tokenizer := convert_tokenizer(folder)) is not None:
        tokenizer, remark = with_mistral_split(folder, read_tokenizer_settings(folder), tokenizer)
    bos_id = special_id("bos", settings, tokenizer, folder)
    eos_ids = all_eos_ids(folder, tokenizer, template, generation=written, config=config)
    starts, suppressed = start_ids(settings), suppressed_ids(settings)
    if config.get("is_encoder_decoder"):
        maker = read_maker_settings(written, start_count=len(starts) or 1, suppressed=suppressed)
    else:
        maker = read_maker_settings(written or (FOR_CHATS if template is not None else {}))
    embedding, reranking = read_retrieval_settings(source, template)
    return TextAssets(
        tokenizer=tokenizer,
        chat_template=template,
        response_template=None if template is None else response_template_for(folder, template, tokenizer, bos_id, eos_ids),
        bos_id=bos_id,
        eos_ids=eos_ids,
        pad_id=special_id("pad", settings, tokenizer, folder),
        start_ids=starts,
        suppressed_ids=suppressed,
        generation=maker.options,
        left_out=maker.left_out,
        remark=remark,
        embedding=embedding,
        reranking=reranking,
    )


def response_template_for(
    folder: Path, template: str, tokenizer: Tokenizer | None, bos_id: int | None, eos_ids: Sequence[int]
) -> Mapping[str, Any]:
    """The response template of a checkpoint: the maker's own, else the one that the chat template shows."""
    own = read_tokenizer_settings(folder).get("response_template")
    if own is not None:
        return read_response_template(own, f"response_template in {folder / 'tokenizer_config.json'}").data
    bos, eos = (
        tokenizer.id_to_token(ids[0]) if tokenizer is not None and ids else None
        for ids in ([] if bos_id is None else [bos_id], eos_ids)
    )
    return response_template_of(derive(template, bos_token=bos or "", eos_token=eos or "").form)
