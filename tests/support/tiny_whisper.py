"""A tiny random Whisper of two languages, whose windows have two seconds."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

import onnx_textgen
from onnx_textgen_export import export

SECONDS, MELS = 2, 80
CONTROL = ["endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "startoflm", "startofprev", "nospeech"]
TIMES = [f"{step / 50:.2f}" for step in range(SECONDS * 50 + 1)]


def tokenizer() -> Tokenizer:
    """One token a byte, then the control tokens and the times."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([f"<|{name}|>" for name in (*CONTROL, "notimestamps", *TIMES)])
    return made


def write_whisper(folder: Path, *, seed: int = 0) -> WhisperForConditionalGeneration:
    """Write the checkpoint; returns its model."""
    torch.manual_seed(seed)
    words = tokenizer()
    ids = {name: words.token_to_id(f"<|{name}|>") for name in (*CONTROL, "notimestamps")}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), ids["endoftext"])
    halves = {f"{half}_{name}": size for half in ("encoder", "decoder") for name, size in (("layers", 2), ("attention_heads", 2))}
    config = WhisperConfig(
        vocab_size=words.get_vocab_size(),
        d_model=32,
        encoder_ffn_dim=48,
        decoder_ffn_dim=64,
        num_mel_bins=MELS,
        max_source_positions=SECONDS * 50,
        max_target_positions=96,
        decoder_start_token_id=ids["startoftranscript"],
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **ends,
        **halves,
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(0, 0.3)
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=ids["startoftranscript"],
        **ends,
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": ids[code] for code in ("en", "de")},
        task_to_id={task: ids[task] for task in ("transcribe", "translate")},
        no_timestamps_token_id=ids["notimestamps"],
        begin_suppress_tokens=[0, ids["endoftext"]],
        suppress_tokens=[1, 2],
        max_initial_timestamp_index=50,
        max_length=96,
    )
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return model


def open_whisper(folder: Path) -> onnx_textgen.Model:
    """The runtime's model of such a checkpoint, exported into a folder."""
    write_whisper(folder / "checkpoint")
    return onnx_textgen.load(export(folder / "checkpoint", folder / "package").folder, device="cpu", threads=1)
