"""Checkpoints of random weights in the shapes of known models, as Hugging Face folders that every peer's converter opens."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

VOCABULARY_START = 256
"""Ids of the single bytes; what lies above is filled up with pieces that no text has."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a checkpoint's `config.json` says."""

    kind: str
    """transformers' name of the architecture."""
    sizes: dict[str, int]


SHAPES = {
    "llama-135m": Shape(
        "llama",
        {
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "intermediate_size": 1536,
            "vocab_size": 49_152,
            "max_position_embeddings": 16_384,
        },
    ),
    "qwen2-0.5b": Shape(
        "qwen2",
        {
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151_936,
            "max_position_embeddings": 16_384,
        },
    ),
}
SPREAD = 0.01
"""Standard deviation of matrices and biases; the embedding's is 1, so that logits have peaks as a trained model's have."""


def make_checkpoint(folder: Path, shape: Shape) -> None:
    """Write weights (bfloat16, tied), configuration and a tokenizer of single bytes."""
    import torch  # noqa: PLC0415 - takes seconds, and only the first run makes checkpoints
    import transformers  # noqa: PLC0415

    config = transformers.AutoConfig.for_model(shape.kind, **shape.sizes, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "embed_tokens" in name else SPREAD)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=SPREAD)
        else:
            torch.nn.init.ones_(parameter)
    model.bfloat16().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer(shape.sizes["vocab_size"])))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!"}))


def byte_tokenizer(size: int) -> dict[str, Any]:
    """A byte-level BPE without merges whose vocabulary has `size` pieces."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    bytes_first = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = bytes_first + [f"<piece {index}>" for index in range(size - VOCABULARY_START)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return json.loads(tokenizer.to_str())
