"""How tokenizers of Mistral's models divide a text: some conversions have another model's pattern, of which transformers warns.

With `fix_mistral_regex` in the tokenizer's settings transformers corrects it, and so does an export. Without it both give the ids
of the file, and an export says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from onnx_textgen.package.hf_settings import read_json

SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Mistral's own tokenizer."""
KINDS = frozenset({"mistral", "mistral3", "voxtral", "ministral", "pixtral"})
SMALLEST = 100_000
"""Smaller vocabularies are those of SentencePiece."""
FLAG = "fix_mistral_regex"


def has_doubtful_split(folder: Path, tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer in a checkpoint of Mistral's, from before the fix, divides texts by another pattern."""
    config = read_json(folder / "config.json")
    version = re.match(r"\d+", str(config.get("transformers_version", "")))
    is_fixed = version is not None and int(version[0]) >= 5
    if is_fixed or config.get("model_type") not in KINDS or tokenizer.get_vocab_size() <= SMALLEST:
        return False
    found = json.loads(tokenizer.to_str()).get("pre_tokenizer") or {}
    steps = found.get("pretokenizers", [found])
    return any(step.get("type") == "Split" and step["pattern"].get("Regex", SPLIT) != SPLIT for step in steps)


def corrected(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with Mistral's pattern."""
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def with_mistral_split(folder: Path, settings: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[Tokenizer, str]:
    """Correct a doubtful pattern if the settings ask for it; else return what to say of it, and nothing if there is none."""
    if not has_doubtful_split(folder, tokenizer):
        return tokenizer, ""
    if settings.get(FLAG):
        return corrected(tokenizer), ""
    return tokenizer, (
        f'tokenizer: transformers warns that this checkpoint divides texts by a wrong pattern; add "{FLAG}": true to its '
        "tokenizer_config.json to correct it"
    )
