"""The encoder of an encoder-decoder: reads a source text once, and gives the decoder what it attends to at every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..backends.engine_errors import model_errors
from ..backends.onnxruntime_run import new_run_options
from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.signature import ENCODER_MASK, ENCODER_STATES, LAST_HIDDEN_STATE, present_of
from ..cancellation import UNCANCELLED, CancelScope
from ..errors import PackageError

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A source text that was read. Immutable, so rows may share it."""

    token_ids: tuple[int, ...]
    tensors: Arrays
    """By the name of the decoder's input: keys and values [1, heads, source, head_size], or hidden states [1, source, width]."""

    @property
    def length(self) -> int:
        """Places of the source that a decoder attends to: its tokens, or those of sound."""
        return next((int(tensor.shape[-2]) for tensor in self.tensors.values()), len(self.token_ids))


class Encoder(Protocol):
    """Reads source texts for a decoder."""

    def encode(self, token_ids: Sequence[int], scope: CancelScope = UNCANCELLED) -> Encoded:
        """Read a source; raises `ModelError` if the run fails, and `InterruptedRunError` if `scope` ends it."""
        ...


class GraphEncoder:
    """An encoder whose graph returns the keys and values of the decoder's cross-attention."""

    def __init__(self, graph: OnnxRuntimeSession, names: Sequence[str]) -> None:
        """`names`: those of the decoder's inputs; raises `PackageError` for one that the graph does not return."""
        self.graph = graph
        self.outputs = {name: LAST_HIDDEN_STATE if name == ENCODER_STATES else present_of(name, graph.outputs) for name in names}
        if missing := [output for output in self.outputs.values() if output not in graph.outputs]:
            raise PackageError(f"the encoder's graph does not return {missing[0]}, which the decoder takes; export the model again")

    def encode(self, token_ids: Sequence[int], scope: CancelScope = UNCANCELLED) -> Encoded:
        """See `Encoder.encode`."""
        feeds = {name: array for name, array in self.feeds_of(token_ids, scope).items() if name in self.graph.inputs}
        found = run_once(self.graph, list(self.outputs.values()), feeds, scope)
        return Encoded(tuple(token_ids), dict(zip(self.outputs, found, strict=True)))

    def feeds_of(self, token_ids: Sequence[int], scope: CancelScope) -> Arrays:
        """What the graph takes of a source, by the names of its inputs; raises as `encode` does."""
        ids = np.array([token_ids], np.int64)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


class StatesEncoder:
    """An encoder whose graph returns hidden states, from which a run of the decoder computes its cross-attention's keys and values.

    Other exporters split their encoder-decoders so. The decoder's graph for that run has no past, or a branch without one.
    """

    def __init__(self, graph: OnnxRuntimeSession, first: OnnxRuntimeSession, names: Sequence[str], start_id: int) -> None:
        """`first` is the decoder's graph for that run, `names` are those of the decoder's inputs, and `start_id` begins a text.

        Raises `PackageError` for an encoder that reads no token ids, and for graphs that do not return what the decoder takes.
        """
        if others := graph.inputs.keys() - {"input_ids", "attention_mask"}:
            raise PackageError(f"the encoder takes {min(others)}; only encoders that read token ids can be opened")
        self.states, self.first, self.start_id = GraphEncoder(graph, [ENCODER_STATES]), first, start_id
        self.names = [name for name in names if name != ENCODER_STATES]
        self.outputs = [present_of(name, first.outputs) for name in self.names]
        if missing := [output for output in self.outputs if output not in first.outputs]:
            raise PackageError(f"the decoder's graph does not return {missing[0]}, which it takes later; export the model again")

    def encode(self, token_ids: Sequence[int], scope: CancelScope = UNCANCELLED) -> Encoded:
        """See `Encoder.encode`."""
        read = self.states.encode(token_ids, scope)
        if not self.names:
            return read
        roles, states = self.first.roles, read.tensors[ENCODER_STATES]
        given: dict[str, npt.NDArray[Any]] = {
            "input_ids": np.array([[self.start_id]]),
            ENCODER_MASK: np.ones((1, len(token_ids))),
            "use_cache_branch": np.zeros(1),
        }
        feeds = {roles[role].name: np.asarray(array, roles[role].dtype) for role, array in given.items() if role in roles}
        feeds |= {tensor.past: np.zeros(tensor.sized(1, 0), tensor.dtype) for tensor in self.first.cache_tensors}
        for name, taken in self.first.encoder_inputs.items():  # a branch without a past takes one too, and does not read it
            empty = [size if isinstance(size, int) else 0 for size in (1, *taken.shape[1:])]
            feeds[name] = np.asarray(states, taken.dtype) if name == ENCODER_STATES else np.zeros(empty, taken.dtype)
        found = run_once(self.first, self.outputs, feeds, scope)
        return Encoded(read.token_ids, {ENCODER_STATES: states, **dict(zip(self.names, found, strict=True))})


def run_once(
    graph: OnnxRuntimeSession, outputs: Sequence[str], feeds: Arrays, scope: CancelScope, *, doing: str = "read the source"
) -> list[npt.NDArray[Any]]:
    """Run a graph without a cache; `scope` can end the run. `doing`: for its errors."""
    options = new_run_options()

    def stop() -> None:
        options.terminate = True

    with model_errors(doing):
        found: list[npt.NDArray[Any]] = scope.run(lambda: graph.ort.run(list(outputs), dict(feeds), options), stop)
    return found
