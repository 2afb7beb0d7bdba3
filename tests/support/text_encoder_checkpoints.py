"""Tiny checkpoints of text encoders, with the files that sentence-transformers stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from support.retrieval_checkpoints import write_json

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*MARKS, *"abcdefghijklmnopqrstuvwxyz.,?", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
WIDTH, MOST = 48, 24
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def random_weights(model: torch.nn.Module) -> None:
    """Fill matrices with numbers that are large enough to matter; the row of padding stays zero, as training leaves it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0


def write_tokenizer(folder: Path, *, model_max_length: int = 64) -> None:
    """A WordPiece tokenizer of letters, in BERT's form."""
    made = Tokenizer(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    transformers.BertTokenizerFast(tokenizer_object=made, model_max_length=model_max_length, **named).save_pretrained(folder)


def write_encoder(folder: Path, *, kind: str = "BertModel", labels: int = 1, **settings: Any) -> Path:
    """A random BERT of that class, with its tokenizer."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**(SIZES | {"num_labels": labels} | settings))
    model = getattr(transformers, kind)(config).eval()
    random_weights(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_embedder(
    folder: Path,
    *,
    pooling: Mapping[str, Any] | None = None,
    more: Sequence[str] = ("Normalize",),
    general: Mapping[str, Any] | None = None,
    own: Mapping[str, Any] | None = None,
) -> Path:
    """An embedder, whose modules after the pooling are `more`; `own`: settings of the model in sentence-transformers."""
    write_encoder(folder)
    kinds = ["Transformer", "Pooling", *more]
    paths = ["" if index == 0 else f"{index}_{kind}" for index, kind in enumerate(kinds)]
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write_json(folder / "modules.json", entries)
    mean = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    width = WIDTH * (sum(map(bool, pooling.values())) if pooling else 1)
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH} | dict(pooling or mean))
    for index, kind in enumerate(more, 2):
        place = folder / f"{index}_{kind}"
        place.mkdir(exist_ok=True)
        torch.manual_seed(index)
        if kind == "Dense":
            write_json(place / "config.json", {"in_features": width, "out_features": 32, "bias": True})
            save_file({"linear.weight": torch.randn(32, width) / 4, "linear.bias": torch.randn(32)}, place / "model.safetensors")
            width = 32
        if kind == "LayerNorm":
            write_json(place / "config.json", {"dimension": width})
            save_file({"norm.weight": torch.rand(width) + 0.5, "norm.bias": torch.randn(width)}, place / "model.safetensors")
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": MOST, "do_lower_case": False} | dict(own or {}))
    write_json(folder / "config_sentence_transformers.json", dict(general or {}))
    return folder
