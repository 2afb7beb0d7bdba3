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
    """What a checkpoint's `config.json` says, and how far its context reaches."""

    kind: str
    """transformers' name of the architecture."""
    context: int
    sizes: dict[str, int]
    cycle: int = 0
    """Where above 0, every token is followed by another one, and so many make a cycle; see `cycles`."""


LLAMA = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
    "max_position_embeddings": 16_384,
}
SHAPES = {
    "llama-135m": Shape("llama", 16_384, LLAMA),
    "qwen2-0.5b": Shape(
        "qwen2",
        16_384,
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
    "gpt2-124m": Shape(
        "gpt2", 1024, {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257, "n_positions": 1024, "n_ctx": 1024}
    ),
    "editor-163m": Shape("llama", 16_384, LLAMA, cycle=128),
}
SPREAD = 0.01
"""Standard deviation of matrices and biases; the embedding's is 1, so that logits have peaks as a trained model's have."""


def make_checkpoint(folder: Path, shape: Shape) -> None:
    """Write weights (bfloat16, tied but for those that edit), configuration and a tokenizer of single bytes."""
    import torch  # noqa: PLC0415 - takes seconds, and only the first run makes checkpoints
    import transformers  # noqa: PLC0415

    tied = shape.cycle == 0
    config = transformers.AutoConfig.for_model(shape.kind, **shape.sizes, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "embed_tokens" in name or "wte" in name else SPREAD)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=SPREAD)
        else:
            torch.nn.init.ones_(parameter)
    if not tied:
        rows = torch.arange(shape.sizes["vocab_size"])
        for tokens in cycles(shape):
            rows[tokens.start : tokens.stop] = rows[tokens.start : tokens.stop].roll(1)
        with torch.no_grad():  # what stands out of a token's own embedding, as it does at the end too, is the next token
            model.get_output_embeddings().weight.copy_(model.get_input_embeddings().weight[rows])
    model.bfloat16().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer(shape.sizes["vocab_size"])))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!"}))


def cycles(shape: Shape) -> list[range]:
    """Tokens in the order in which the model of a shape that edits goes through them, whatever came before the last one.

    So it writes a whole cycle behind a faulty copy of it, as a model does that is asked to mend a text. None for other shapes.
    """
    if not shape.cycle:
        return []
    return [
        range(start, start + shape.cycle) for start in range(VOCABULARY_START, shape.sizes["vocab_size"] - shape.cycle, shape.cycle)
    ]


def byte_tokenizer(size: int) -> dict[str, Any]:
    """A byte-level BPE without merges whose vocabulary has `size` pieces."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    bytes_first = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = bytes_first + [f"<piece {index}>" for index in range(size - VOCABULARY_START)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return json.loads(tokenizer.to_str())
