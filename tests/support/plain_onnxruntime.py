"""Logits of a decoder's graph by ONNX Runtime alone, with no code of ours, for figures that are to be checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime


def open_plain(graph: Path) -> onnxruntime.InferenceSession:
    """A session on the CPU with ONNX Runtime's own settings."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # our graphs list an input with a default value, of which it warns
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def plain_logits(session: onnxruntime.InferenceSession, ids: Sequence[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of a text that is read at once, with an empty cache of its length."""
    feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    for each in session.get_inputs():
        if each.name.startswith("past_key_values"):
            sizes = {"batch": 1, "cache_length": len(ids)}
            feeds[each.name] = np.zeros([sizes.get(size, size) for size in each.shape], np.float32)
    positions = {each.name: np.arange(len(ids)) for each in session.get_overridable_initializers()}  # of all tokens, not the last
    return session.run(["logits"], feeds | positions)[0][0]


def mean_divergence(got: np.ndarray, want: np.ndarray) -> float:
    """The mean KL divergence of predictions [tokens, vocabulary], given as logits, from the wanted ones, in nats."""
    ours, theirs = (logits.astype(np.float64) - logits.max(-1, keepdims=True) for logits in (got, want))
    ours, theirs = (each - np.log(np.exp(each).sum(-1, keepdims=True)) for each in (ours, theirs))
    return float((np.exp(theirs) * (theirs - ours)).sum(-1).mean())
