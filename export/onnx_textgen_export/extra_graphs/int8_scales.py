"""Scales of a cache at 8 bits, found by feeding text of many kinds and tokens from the whole vocabulary."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.kv_cache.snapshot import Arrays

from ..sources.source import Source
from .int8_layers import Layer

LARGEST_CODE = 127
"""Codes lie from -128, which only a number beyond all that were seen gets, to this."""
CALIBRATION_TEXT = (Path(__file__).parents[1] / "texts" / "calibration_text.txt").read_text(encoding="utf-8")
"""Prose, code, tables and tongues, written for this: scales are found by it, and judged on another text."""
TOKENS = 1024
"""The most tokens of a text that scales are found by."""
MARGIN = 1.2
"""Times the largest number seen, so that larger ones fit: cutting one off costs more than a fifth of the resolution."""
SMALLEST = 1e-6
"""What a channel of nothing but zeros is taken to hold, as nothing divides by 0."""
Floats = npt.NDArray[np.float32]


def calibration_texts(source: Source, tokenizer: Tokenizer | None) -> list[list[int]]:
    """Ids from all over the vocabulary, and those of a real text where there is a tokenizer."""
    length, vocab_size = min(TOKENS, source.geometry.context_length), source.geometry.vocab_size
    drawn = np.random.default_rng(2).integers(0, vocab_size, length).tolist()
    text = [] if tokenizer is None else tokenizer.encode(CALIBRATION_TEXT).ids
    known = [token_id for token_id in text if token_id < vocab_size]  # a tokenizer may have more than the model has logits for
    return [ids for ids in (drawn, known[:length]) if ids]


def keys_and_values(source: Source, graph: Path, texts: list[list[int]]) -> Arrays:
    """What the cache holds of some texts, one behind the other, by the name of the graph's past input."""
    decoder = Decoder(open_session(graph, device="cpu"), source.geometry)
    parts = list[Arrays]()
    for ids in texts:
        prefill(decoder, ids)
        parts.append(decoder.cache.take(0, len(ids)))
    return {name: np.concatenate([part[name] for part in parts], axis=2) for name in parts[0]}


def channel_scales(seen: Floats) -> Floats:
    """What a step of each channel's codes is worth: [1, kv_heads, 1, head_size] of numbers [1, kv_heads, tokens, head_size]."""
    largest = np.maximum(np.abs(seen).max(axis=2, keepdims=True), SMALLEST)
    return np.asarray(largest * (MARGIN / LARGEST_CODE), np.float32)


def key_scales(seen: Floats, layer: Layer) -> Floats:
    """The same for keys: large enough wherever in a text they stand.

    Position turns pairs of channels, some of them slowly, so that a channel which is small in every text seen may be large in a
    longer one. The length of a pair stays. Where pairs are not known, as the operator does not turn them, any two channels of a
    head may be one: all have the scale of the longest pair there can be.
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
