"""The encoder of an encoder-decoder: reads a source text once, and gives the decoder what it attends to at every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_run import new_run_options
from ..backends.onnxruntime_session import Session
from ..backends.signature import ENCODER_STATES, LAST_HIDDEN_STATE, present_of
from ..cancellation import UNCANCELLED, CancelScope
from ..errors import PackageError
from .commit_guard import model_errors

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A source text that was read. Immutable, so rows may share it."""

    token_ids: tuple[int, ...]
    tensors: Arrays
    """By the name of the decoder's input: keys and values [1, heads, source, head_size], or hidden states [1, source, width]."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Encoder(Protocol):
    """Reads source texts for a decoder."""

    def encode(self, token_ids: Sequence[int], scope: CancelScope = UNCANCELLED) -> Encoded:
        """Read a source; raises `ModelError` if the run fails, and `InterruptedRunError` if `scope` ends it."""
        ...


class GraphEncoder:
    """An encoder whose graph returns the keys and values of the decoder's cross-attention."""

    def __init__(self, graph: Session, names: Sequence[str]) -> None:
        """`names`: those of the decoder's inputs; raises `PackageError` for one that the graph does not return."""
        self.graph = graph
        self.outputs = {name: LAST_HIDDEN_STATE if name == ENCODER_STATES else present_of(name, graph.outputs) for name in names}
        if missing := [output for output in self.outputs.values() if output not in graph.outputs]:
            raise PackageError(f"the encoder's graph does not return {missing[0]}, which the decoder takes; export the model again")

    def encode(self, token_ids: Sequence[int], scope: CancelScope = UNCANCELLED) -> Encoded:
        """See `Encoder.encode`."""
        ids = np.array([token_ids], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        feeds = {name: array for name, array in feeds.items() if name in self.graph.inputs}
        found = run_once(self.graph, list(self.outputs.values()), feeds, scope)
        return Encoded(tuple(token_ids), dict(zip(self.outputs, found, strict=True)))


def run_once(graph: Session, outputs: Sequence[str], feeds: Arrays, scope: CancelScope) -> list[npt.NDArray[Any]]:
    """Run a graph without a cache; `scope` can end the run."""
    options = new_run_options()

    def stop() -> None:
        options.terminate = True

    with model_errors("read the source"):
        found: list[npt.NDArray[Any]] = scope.run(lambda: graph.ort.run(list(outputs), dict(feeds), options), stop)
    return found
