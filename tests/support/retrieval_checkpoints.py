"""Tiny checkpoints of an embedding model and of a reranker, with the settings that sentence-transformers stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
END = "<|end|>"
"""What the tokenizer appends to every text, as Qwen3-Embedding's does."""
PROMPTS = {"query": "Find what answers: ", "document": ""}
WIDTH = 64
RERANKER_TEMPLATE = (
    "{%- for m in messages if m.role == 'system' %}[I]{{ m.content }}{% endfor -%}"
    "{%- for m in messages if m.role == 'query' %}[Q]{{ m.content }}{% endfor -%}"
    "{%- for m in messages if m.role == 'document' %}[D]{{ m.content }}{% endfor -%}"
    "{%- if add_generation_prompt %}[A]{% endif -%}"
)
"""A template for a query and a document; the instruction comes first."""


def write_json(path: Path, value: object) -> None:
    """Write a value, and the folder for it."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_model(folder: Path, *, chat_template: str | None = None) -> Path:
    """A random Qwen3 with a tokenizer of bytes, which appends `END` to a text."""
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
    config = transformers.Qwen3Config(
        **sizes,
        num_key_value_heads=2,
        vocab_size=len(LETTERS) + 1,
        max_position_embeddings=256,
        eos_token_id=len(LETTERS),
        tie_word_embeddings=True,
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(LETTERS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    end = [processors.TemplateProcessing(single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, len(LETTERS))])]
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), *end])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=END, eos_token=END, padding_side="left", model_max_length=256
    )
    fast.chat_template = chat_template
    fast.save_pretrained(folder)
    return folder


def write_embedding_model(
    folder: Path, *, pooling: Mapping[str, Any] | None = None, normalize: bool = True, general: Mapping[str, Any] | None = None
) -> Path:
    """An embedding model, with the files that Qwen3-Embedding has; `pooling`: instead of the last token."""
    write_model(folder)
    listed = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["" if name == "Transformer" else f"{index}_{name}" for index, name in enumerate(listed)]
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (name, path) in enumerate(zip(listed, paths, strict=True))
    ]
    write_json(folder / "modules.json", entries)
    last = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **(pooling or last), "include_prompt": True}
    )
    if normalize:
        (folder / "2_Normalize").mkdir(exist_ok=True)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 256, "do_lower_case": False})
    settings = {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", settings | dict(general or {}))
    return folder


def write_reranker(
    folder: Path,
    *,
    score: Mapping[str, Any] | None = None,
    general: Mapping[str, Any] | None = None,
    chat_template: str | None = RERANKER_TEMPLATE,
) -> Path:
    """A reranker, with the files that a `CrossEncoder` of sentence-transformers has; `score`: other tokens than y and n."""
    write_model(folder, chat_template=chat_template)
    entries = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_LogitScore",
            "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
        },
    ]
    write_json(folder / "modules.json", entries)
    answers = {"true_token_id": LETTERS.index("y"), "false_token_id": LETTERS.index("n")}
    write_json(folder / "1_LogitScore" / "config.json", answers | dict(score or {}))
    call = {"method": "forward", "method_output_name": "logits"}
    settings = {
        "transformer_task": "text-generation",
        "modality_config": {"text": call, "message": {**call, "format": "flat"}},
        "module_output_name": "causal_logits",
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
    }
    write_json(folder / "sentence_bert_config.json", settings)
    named = {"prompts": {"web": "Answer the question."}, "default_prompt_name": "web", "model_type": "CrossEncoder"}
    more = {"activation_fn": "torch.nn.modules.activation.Sigmoid", **(general or {})}
    write_json(folder / "config_sentence_transformers.json", named | more)
    return folder
