"""A pattern of which transformers warns is named, and corrected where the settings ask for it."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from onnx_textgen_export.exporting.checks import text_lines
from onnx_textgen_export.tokenization.text_assets import read_text_assets

WRONG = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    ("config", "settings", "remarks", "text"),
    [
        ({"transformers_version": "4.57.1"}, {}, 1, ["eBay"]),
        ({}, {"fix_mistral_regex": True}, 0, ["e", "Bay"]),
        ({"transformers_version": "5.0.0"}, {}, 0, ["eBay"]),
        ({"model_type": "llama"}, {}, 0, ["eBay"]),
    ],
)
def test_a_wrong_pattern_is_named_or_corrected(
    tmp_path: Path, config: dict[str, Any], settings: dict[str, Any], remarks: int, text: list[str]
) -> None:
    alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet()})
    merges = [("a", "y"), ("B", "ay"), ("e", "Bay")]
    vocab = {piece: index for index, piece in enumerate([*alphabet, *map("".join, merges), *map(str, range(100, 100_100))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    split = pre_tokenizers.Split(Regex(WRONG), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", **config}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **settings}))
    assets = read_text_assets(tmp_path)
    assert len([*text_lines(assets)]) == remarks
    assert assets.tokenizer is not None
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert assets.tokenizer.encode("eBay").tokens == reference.tokenize("eBay") == text
