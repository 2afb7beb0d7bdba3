"""Reads whole texts at once, by a graph without a cache: an embedder's, or a cross-encoder's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.protocol import mask_of
from ..backends.signature import LAST_HIDDEN_STATE, LOGITS
from ..cancellation import UNCANCELLED, CancelScope
from ..errors import ModelError, PackageError
from ..package.manifest import Manifest
from .encoder import run_once

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
SENTENCE_EMBEDDING = "sentence_embedding"
"""The output [texts, width] of an embedder, by the name that other exporters use."""
OUTPUTS = frozenset({LAST_HIDDEN_STATE, SENTENCE_EMBEDDING, LOGITS})


def output_of(manifest: Manifest) -> str:
    """The output of a text encoder's graph that its makers mean: scores of pairs, or vectors."""
    return SENTENCE_EMBEDDING if manifest.pair_scoring is None else LOGITS


class TextEncoder:
    """An open graph that reads texts."""

    def __init__(self, graph: OnnxRuntimeSession, pad_id: int | None = None) -> None:
        """`pad_id`: what follows the end of a shorter text. Raises `PackageError` for a graph that is none of a text encoder."""
        self.graph, self.pad_id = graph, pad_id or 0
        if (others := graph.inputs.keys() - {IDS, MASK, TYPES}) or IDS not in graph.inputs:
            raise PackageError(
                f"the graph takes {min(others, default='no token ids')}, which no text encoder does; export it again"
            )
        if graph.outputs.keys().isdisjoint(OUTPUTS):
            raise PackageError("the graph returns no vectors and no scores; export the model again")

    def width(self, output: str) -> int:
        """Numbers of the last axis of an output; raises `PackageError` if the graph does not have it."""
        if output not in self.graph.outputs:
            raise PackageError(f"the graph has no output {output}; export the model again")
        shape, _ = self.graph.outputs[output]
        if not shape or not isinstance(shape[-1], int):
            raise PackageError(f"the graph does not say how many numbers {output} has; export the model again")
        return shape[-1]

    def read(
        self,
        texts: Sequence[Sequence[int]],
        output: str,
        *,
        types: Sequence[Sequence[int]] = (),
        scope: CancelScope = UNCANCELLED,
    ) -> npt.NDArray[np.float32]:
        """An output [texts, ...] of token ids in one run; where it has tokens, what comes after the end of a text is undefined.

        `types`: those of the tokens, see `GoldenNumbers.type_ids`. Raises `ModelError` if the run fails or gives no numbers, and
        `InterruptedRunError` if `scope` ends it.
        """
        lengths = [len(each) for each in texts]
        mask = mask_of(lengths)
        given = {IDS: padded(texts, mask, self.pad_id), MASK: mask, TYPES: padded(types, mask) if types else np.zeros_like(mask)}
        feeds = {name: array for name, array in given.items() if name in self.graph.inputs}
        (found,) = run_once(self.graph, [output], feeds, scope, doing="read the text")
        numbers: npt.NDArray[np.float32] = np.asarray(found, np.float32)
        if not np.isfinite(numbers[mask > 0] if output == LAST_HIDDEN_STATE else numbers).all():
            raise ModelError("the model's numbers are not finite; check it with: onnx-textgen verify DIR")
        return numbers


def padded(rows: Sequence[Sequence[int]], mask: npt.NDArray[np.int64], fill: int = 0) -> npt.NDArray[Any]:
    """Rows as one array, with `fill` after the end of each."""
    found = np.full_like(mask, fill)
    found[mask > 0] = [each for row in rows for each in row]
    return found
