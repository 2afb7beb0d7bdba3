"""Scales of a cache at 8 bits, found by feeding text of many kinds and tokens from the whole vocabulary."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from onnx_textgen.backends.cache_codes import LARGEST_CODE
from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.kv_cache.snapshot import Arrays

from ..sources.source import Source
from .attention_layers import Layer

CALIBRATION_TEXT = (Path(__file__).parents[1] / "texts" / "calibration_text.txt").read_text(encoding="utf-8")
"""Prose, code, tables and other languages, written for this: scales are found on it, and judged on another text."""
TOKENS = 1024
"""Most tokens of a text that scales are found on."""
MARGIN = 1.2
"""Factor of the largest number seen, so that larger ones fit: clipping costs more than a fifth of the resolution."""
SMALLEST = 1e-6
"""The largest number assumed of a channel of zeros, to avoid a division by 0."""
Floats = npt.NDArray[np.float32]


def calibration_texts(source: Source, tokenizer: Tokenizer | None) -> list[list[int]]:
    """Ids from the whole vocabulary, and those of a real text if there is a tokenizer."""
    length, vocab_size = min(TOKENS, source.geometry.context_length), source.geometry.vocab_size
    drawn = np.random.default_rng(2).integers(0, vocab_size, length).tolist()
    text = [] if tokenizer is None else tokenizer.encode(CALIBRATION_TEXT).ids
    known = [token_id for token_id in text if token_id < vocab_size]  # a tokenizer may have more than the model has logits for
    return [ids for ids in (drawn, known[:length]) if ids]


def keys_and_values(source: Source, graph: Path, texts: list[list[int]]) -> Arrays:
    """The cached keys and values of some texts, concatenated, by the name of the graph's past input."""
    decoder = Decoder(open_session(graph, device="cpu", whole_past=True), source.geometry)
    parts = list[Arrays]()
    for ids in texts:
        prefill(decoder, ids)
        parts.append(decoder.cache.take(0, len(ids)))
    return {name: np.concatenate([part[name] for part in parts], axis=2) for name in parts[0]}


def channel_scales(seen: Floats) -> Floats:
    """The scale of each channel's codes, [1, kv_heads, 1, head_size], for numbers [1, kv_heads, tokens, head_size]."""
    largest = np.maximum(np.abs(seen).max(axis=2, keepdims=True), SMALLEST)
    return np.asarray(largest * (MARGIN / LARGEST_CODE), np.float32)


def key_scales(seen: Floats, layer: Layer) -> Floats:
    """The scales of keys, large enough for every position.

    The rotary embedding rotates pairs of channels, some of them slowly, so a channel that is small in every text seen may be large
    in a longer one, while the length of a pair is constant. If the pairs are unknown, because the operator does not rotate keys,
    any two channels of a head may be a pair: all get the scale of the longest possible pair.
    """
    scales = channel_scales(seen)
    if not layer.rotary_size:
        return np.broadcast_to(math.sqrt(2) * scales.max(axis=3, keepdims=True), scales.shape).astype(np.float32)
    half = layer.rotary_size // 2
    if layer.attributes.get("rotary_interleaved"):
        first, second = slice(0, layer.rotary_size, 2), slice(1, layer.rotary_size, 2)
    else:
        first, second = slice(0, half), slice(half, layer.rotary_size)
    lengths = channel_scales(np.hypot(seen[..., first], seen[..., second]))
    scales[..., first] = scales[..., second] = lengths
    return scales
