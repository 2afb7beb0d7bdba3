"""Reads the golden texts of a text encoder again, and compares the numbers with those of the export."""

from __future__ import annotations

import numpy as np

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.protocol import Graph
from ..backends.signature import LOGITS
from ..inference.text_encoder import SENTENCE_EMBEDDING, TextEncoder
from ..package.manifest import GoldenNumbers, Manifest


def reread(graph: Graph, manifest: Manifest, golden: GoldenNumbers) -> float:
    """The largest difference of a number from the golden one, relative to the largest of these; infinite if there are others."""
    assert isinstance(graph, OnnxRuntimeSession), "text encoders are opened there"
    output = SENTENCE_EMBEDDING if manifest.pair_scoring is None else LOGITS
    types = golden.type_ids or (0,) * len(golden.token_ids)
    found = TextEncoder(graph).read([golden.token_ids], output, types=[types])[0]
    wanted = np.array(golden.numbers, np.float32)
    if found.shape != wanted.shape:
        return float("inf")
    return float(np.abs(found - wanted).max() / max(1e-9, float(np.abs(wanted).max())))
