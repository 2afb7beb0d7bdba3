"""Verifies drafts in one run whose results equal those of a run per token, to the last bit: so drafts do not change a text.

The verifier is a second session of the graph over the same cache, with attention over one token at a time (`single_attention`). It
is opened when the first text with drafts begins. Where ONNX Runtime's own kernels multiply, it takes the memory of the weights a
second time; this project's kernels share them. Whether a product computes each row of a batch as a single row depends on the
precision, on ONNX Runtime and on the processor. So this is measured once, on the machine that runs the graph. If the results
differ, no drafts are made, unless the caller asks for the fast way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from ..backends.huge_pages import new_memory_in_huge_pages
from ..backends.onnxruntime_session import OnnxRuntimeSession, open_variant
from ..backends.protocol import Graph
from ..backends.signature import LOGITS
from ..backends.variants.single_attention import MOST_TOKENS, with_single_attention
from ..errors import LOG, ModelError, OnnxTextgenError, PackageError, first_line
from ..inference.decoder import Decoder
from ..inference.verifier import Verifier
from ..machine_limits import available_bytes
from ..package.manifest import Geometry

TOKENS_BEFORE = 8
"""Tokens that are fed before those that the measurement compares."""


class Verification:
    """The verifier of a model, opened at its first use. Safe to use from several threads."""

    def __init__(self, graph: Graph, geometry: Geometry, weight_bytes: Callable[[], int]) -> None:
        """`weight_bytes`: how much memory a second session of the graph takes."""
        self.graph, self.geometry, self.weight_bytes = graph, geometry, weight_bytes
        self._lock = threading.Lock()
        self._found: list[Verifier | None] = []

    def verifier(self) -> Verifier | None:
        """The verifier; None if a run of several tokens would differ from single ones here; the log says why."""
        with self._lock:
            if not self._found:
                try:
                    if not (isinstance(self.graph, OnnxRuntimeSession) and self.graph.shares_weights):
                        check_memory(self.weight_bytes())
                    self._found.append(make_verifier(self.graph, self.geometry))
                except (OnnxTextgenError, OSError) as error:
                    why = first_line(error)
                    LOG.warning('no tokens are guessed: %s; draft_verification "fast" may guess, and may change a text', why)
                    self._found.append(None)
            return self._found[0]


def check_memory(needed: int) -> None:
    """Raise `PackageError` if fewer than `needed` bytes of memory are free."""
    if (free := available_bytes()) is not None and free < needed:
        raise PackageError(f"exact verification opens the weights again, {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")


def make_verifier(graph: Graph, geometry: Geometry) -> Verifier:
    """Open the graph a second time and measure it; raises `PackageError` or `ModelError` if it cannot verify drafts."""
    if not isinstance(graph, OnnxRuntimeSession) or graph.path is None or graph.device.kind != "cpu":
        raise PackageError("exact draft verification needs ONNX Runtime on the CPU")
    if graph.outputs[graph.name_of(LOGITS)][0][1] == 1:
        raise PackageError("the graph gives logits of the last token alone")
    if graph.rotary_switch is not None or geometry.context_length < TOKENS_BEFORE + MOST_TOKENS:
        raise PackageError(f"LongRoPE models and contexts under {TOKENS_BEFORE + MOST_TOKENS} tokens cannot verify drafts exactly")
    model = with_single_attention(graph.model(), graph.cache_tensors, graph.roles["input_ids"].name)
    with new_memory_in_huge_pages():
        verifier = Verifier(open_variant(graph, model))
    for adapter in graph.adapters or (None,):
        measure(verifier, graph, geometry, adapter)
    return verifier


def measure(verifier: Verifier, graph: Graph, geometry: Geometry, adapter: str | None = None) -> None:
    """Raise `ModelError` if runs of several tokens have other logits, or leave other keys and values, than single ones."""
    ids = np.random.default_rng(0).integers(0, geometry.vocab_size, TOKENS_BEFORE + MOST_TOKENS).tolist()
    before, new = ids[:TOKENS_BEFORE], ids[TOKENS_BEFORE:]
    alone, together = (Decoder(graph, geometry, capacity=len(ids), adapter=adapter) for _ in range(2))
    alone.feed(before)
    together.feed(before)
    logits = np.concatenate([alone.feed([token_id]) for token_id in new])
    for tokens in range(2, len(new) + 1):
        together.rewind(len(before))
        found = together.verify(new[:tokens], verifier)
        length = len(before) + tokens
        want, left = (decoder.cache.take(0, length) for decoder in (alone, together))
        if not np.array_equal(found, logits[:tokens]) or any(not np.array_equal(want[name], left[name]) for name in want):
            raise ModelError(f"{tokens} tokens in one run are computed otherwise than one by one")
