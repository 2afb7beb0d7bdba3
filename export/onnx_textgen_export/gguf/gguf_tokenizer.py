"""The tokenizer of a GGUF file: each key of `tokenizer.*` does what it does in llama.cpp, or is refused by name.

transformers builds the vocabulary and its merges. What surrounds them follows `load` in llama.cpp's llama-vocab.cpp: how a text is
split, spaces, begin and end tokens, and what holds where a key is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from onnx_textgen.errors import first_line
from onnx_textgen.options.checks import shown

from ..errors import ExportError
from ..tokenization.sentencepiece import GIVE_TOKENIZER, SPACE, build_normalizer
from .gguf_file import VOCABULARY

TEMPLATE = "tokenizer.chat_template"
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
"""GPT-2's split."""
SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", WORDS, "[0-9][0-9][0-9]"),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", WORDS)),
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais"), (WORDS,)),
    **dict.fromkeys(("trillion", "granite-docling", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"), (WORDS,)),
}
"""The patterns that divide a text one after the other, by `tokenizer.ggml.pre`; transformers has others."""
WHOLE_FIRST = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken"}
)
"""With these a piece that is a token needs no merges, and a text begins with the begin token unless the file says otherwise."""
OBEYED = frozenset(
    {
        "model",
        "pre",
        "tokens",
        "token_type",
        "scores",
        "merges",
        "precompiled_charsmap",
        "add_space_prefix",
        "remove_extra_whitespaces",
    }
    | {"add_bos_token", "add_eos_token"}
    | {f"{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
)
HARMLESS = frozenset(
    {"token_type_count"}
    | {f"{name}_token_id" for name in ("seperator", "cls", "mask", "prefix", "suffix", "middle")}
    | {f"fim_{name}_token_id" for name in ("pre", "suf", "mid", "pad", "rep", "sep")}
)
"""Keys that name tokens, which are in the vocabulary anyway."""
NEUTRAL: dict[str, Any] = {"add_sep_token": False}


def write_tokenizer(path: Path, metadata: Mapping[str, Any], folder: Path) -> None:
    """Write the tokenizer and the chat templates of a GGUF file; raises `ExportError` for what cannot be made as in llama.cpp."""
    given = {key.removeprefix(VOCABULARY): value for key, value in metadata.items() if key.startswith(VOCABULARY)}
    for key, value in given.items():
        if key not in OBEYED | HARMLESS and value != NEUTRAL.get(key):
            raise ExportError(f"{path} sets {VOCABULARY}{shown(key)[1:-1]}, which is not read; {GIVE_TOKENIZER}")
    try:
        wrapper = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False)
        follow(wrapper.backend_tokenizer, given, path)
        if templates := templates_of(metadata):
            wrapper.chat_template = templates
        wrapper.save_pretrained(folder)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"transformers cannot read the tokenizer in {path}: {first_line(error)}; {GIVE_TOKENIZER}") from error


def templates_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates by their names."""
    named = {key.removeprefix(TEMPLATE).removeprefix("."): value for key, value in metadata.items() if key.startswith(TEMPLATE)}
    return {name or "default": value for name, value in named.items() if isinstance(value, str) and name != "s"}


def follow(tokenizer: Tokenizer, given: Mapping[str, Any], path: Path) -> None:
    """Change what transformers made of a file to what llama.cpp makes of it."""
    kind, split = given.get("model"), str(given.get("pre", "default"))
    if kind == "gpt2":
        split_words(tokenizer, split, path)
    elif kind == "llama":
        mark_spaces(tokenizer, prefix=bool(given.get("add_space_prefix", True)))
    elif kind == "t5":
        normalize(tokenizer, given)
    begins = given.get("add_bos_token", kind == "llama" or (kind == "gpt2" and split in WHOLE_FIRST))
    ends = given.get("add_eos_token", kind == "t5")
    usual = {"bos": 1, "eos": 2} if kind == "llama" else {"eos": 1} if kind == "t5" else {}
    if kind == "gemma4":
        begins = False  # its chat template writes the begin token, and transformers leaves it out
    frame = [
        (tokenizer.id_to_token(token_id), token_id) if adds and token_id is not None else None
        for name, adds in (("bos", begins), ("eos", ends))
        for token_id in (given.get(f"{name}_token_id", usual.get(name)),)
    ]
    before, after = ([token[0]] if token and token[0] else [] for token in frame)
    special = [token for token in frame if token and token[0]]
    tokenizer.post_processor = processors.TemplateProcessing(single=[*before, "$A", *after], special_tokens=special)


def split_words(tokenizer: Tokenizer, split: str, path: Path) -> None:
    """Divide a text as the byte-level vocabulary's training did."""
    if split in SPLITS:
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[split]]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last])
    elif split not in GGUF_PRE_TOKENIZER_SPLITS:
        raise ExportError(f"{path} divides texts as {shown(split)[1:-1]}, whose rule is not known; {GIVE_TOKENIZER}")
    if split in WHOLE_FIRST:
        tokenizer.model.ignore_merges = True


def mark_spaces(tokenizer: Tokenizer, *, prefix: bool) -> None:
    """Write spaces as SentencePiece does; with `prefix`, one before every text, whatever it begins with."""
    marks = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), marks]) if prefix else marks
    tokenizer.pre_tokenizer = None
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)


def normalize(tokenizer: Tokenizer, given: Mapping[str, Any]) -> None:
    """Normalise a text for a Unigram vocabulary."""
    spec = SimpleNamespace(
        precompiled_charsmap=np.asarray(given.get("precompiled_charsmap", []), np.int8).tobytes(),
        remove_extra_whitespaces=bool(given.get("remove_extra_whitespaces", False)),
    )
    tokenizer.normalizer = build_normalizer(spec, prefix=bool(given.get("add_space_prefix", False)))
    tokenizer.pre_tokenizer = None
