"""Tokenizers by transformers: the class of a model type, the conversion of vocabulary files, and WordPiece as a reference.

The only module outside `huggingface` that imports transformers, each name where it is needed.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from onnx_textgen.errors import first_line
from onnx_textgen.package.hf_settings import read_json

from ..errors import ExportError, named_versions
from .sentencepiece import GIVE_TOKENIZER


def class_name_of(model_type: str) -> str:
    """The name of the tokenizer class that transformers uses for a model type; "" where it knows none."""
    with named_versions():
        from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES  # noqa: PLC0415
    return str(TOKENIZER_MAPPING_NAMES.get(model_type) or "")


@dataclasses.dataclass(frozen=True, slots=True)
class Numbering:
    """The ids that a class of transformers gives the pieces of a vocabulary."""

    ids: dict[str, int]
    special: tuple[str, ...]
    """Special tokens, in the order of their ids."""
    before: tuple[str, ...]
    """Tokens before each text."""
    after: tuple[str, ...]


def numbering_of(folder: Path, class_name: str) -> Numbering:
    """Return the numbering of transformers' tokenizer class for a folder; raises `ExportError` if it cannot open it."""
    with named_versions():
        import transformers  # noqa: PLC0415
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Marian's recommends a package for another purpose
            wrapper = getattr(transformers, class_name).from_pretrained(folder, local_files_only=True)
        languages = getattr(wrapper, "lang_token_to_id", {})  # of M2M100, which keeps them outside its vocabulary
        ids = {str(token): int(token_id) for token, token_id in (wrapper.get_vocab() | languages).items()}
        codes = (*languages, *getattr(wrapper, "supported_language_codes", ()))  # the latter of Marian
        whole, bare = (wrapper("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    except Exception as error:
        raise ExportError(f"transformers cannot open the tokenizer in {folder}: {first_line(error)}; {GIVE_TOKENIZER}") from error
    if getattr(wrapper, "separate_vocabs", False):
        raise ExportError(f"{folder} has one vocabulary for sources and one for targets; {GIVE_TOKENIZER}")
    start = next(at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
    names = {token_id: token for token, token_id in ids.items()}
    around = (tuple(names[token_id] for token_id in part) for part in (whole[:start], whole[start + len(bare) :]))
    special = sorted({*wrapper.all_special_tokens, *codes}, key=lambda token: ids[token])
    return Numbering(ids, tuple(special), *around)


def from_transformers(folder: Path, settings: Mapping[str, Any], usual: str) -> Tokenizer:
    """Let transformers convert vocabulary files; `usual`: their class if no file names one."""
    with named_versions():
        import transformers  # noqa: PLC0415
    config = read_json(folder / "config.json")
    nameless = not (settings.get("tokenizer_class") or config.get("model_type") or "auto_map" in settings)
    try:
        loader: Any = getattr(transformers, usual) if nameless else transformers.AutoTokenizer
        wrapper = loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ExportError(f"transformers cannot open the tokenizer in {folder}: {first_line(error)}") from error
    if not isinstance(wrapper, transformers.PreTrainedTokenizerFast):
        raise ExportError(f"{type(wrapper).__name__} in {folder} has no tokenizer.json form; {GIVE_TOKENIZER}")
    tokenizer: Tokenizer = wrapper.backend_tokenizer
    return tokenizer


class WordPiece:
    """transformers' WordPiece in plain Python."""

    cuts: frozenset[str] = frozenset()

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        from transformers.models.bert import tokenization_bert_legacy as legacy  # noqa: PLC0415

        options = {key: settings[key] for key in ("do_lower_case", "tokenize_chinese_chars", "strip_accents") if key in settings}
        self.tokenizer: Any = legacy.BertTokenizerLegacy(str(path), **options)  # type: ignore[no-untyped-call]

    def encode(self, text: str) -> list[int]:
        """Ids without begin and end tokens."""
        return [int(token_id) for token_id in self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(text))]

    def decode(self, ids: list[int]) -> str | None:
        """None: WordPiece loses spaces, and decoders restore them differently."""
        del ids
        return None
