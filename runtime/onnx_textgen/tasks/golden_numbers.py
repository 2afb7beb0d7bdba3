"""Reads the golden texts of a text encoder again, and compares the numbers with those of the export."""

from __future__ import annotations

import numpy as np

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.protocol import Graph
from ..encoders.text_encoder import TextEncoder, output_of
from ..errors import PackageError
from ..package.manifest import GoldenNumbers, Manifest


def reread(graph: Graph, manifest: Manifest, golden: GoldenNumbers) -> float:
    """The largest difference of a number from the golden one, relative to the largest of these.

    Raises `PackageError` if the graph gives another number of them.
    """
    assert isinstance(graph, OnnxRuntimeSession), "text encoders are opened there"
    types = golden.type_ids or (0,) * len(golden.token_ids)
    found = TextEncoder(graph).read([golden.token_ids], output_of(manifest), types=[types])[0]
    wanted = np.array(golden.numbers, np.float32)
    if found.shape != wanted.shape:
        raise PackageError(
            f"the graph gives {found.size:,} numbers for a golden text and the manifest has {wanted.size:,}; export it again"
        )
    return float(np.abs(found - wanted).max() / max(1e-9, float(np.abs(wanted).max())))
