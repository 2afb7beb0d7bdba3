"""Chooses the cache for a graph: shared buffers, growing tensors, OpenVINO's pages, or tensors on a plug-in's device.

Each holds one or more rows, with a length per row, and the `States` of the graph's recurrent layers, if it has any. If a method
raises, the cache is unchanged.
"""

from __future__ import annotations

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.openvino.session import OpenVINOSession
from ..backends.protocol import Graph
from ..errors import PackageError
from .growing import GrowingCache
from .on_device import OnDeviceCache
from .paged import PagedCache
from .protocol import Cache
from .shared import SharedCache

SMALLEST_CAPACITY = 64


def check_cache(session: Graph) -> None:
    """Raise `PackageError` if the graph has no cache, or mixes keys and values updated in place with growing ones."""
    kinds = {tensor.kind for tensor in session.cache_tensors}
    if not kinds:
        raise PackageError("the graph has no cache, so it would forget the tokens it was fed; export the model again")
    if kinds >= {"shared", "growing"}:
        raise PackageError(
            "the graph updates some keys and values in place and returns new tensors for others; export the model again"
        )


def make_cache(graph: Graph, *, rows: int, capacity: int | None, context_length: int) -> Cache:
    """Make the cache that the engine and the graph's tensors need.

    `capacity`: tokens per row that memory is allocated for at first; `context_length`: the most tokens of a row.
    """
    initial = min(max(capacity or SMALLEST_CAPACITY, graph.hints.window), context_length)
    if isinstance(graph, OpenVINOSession):
        return PagedCache(graph, rows=rows, capacity=initial)
    assert isinstance(graph, OnnxRuntimeSession), "there are two engines"
    session, tensors, memory = graph, graph.cache_tensors, graph.memory
    if memory is not None:
        return OnDeviceCache(session, memory, tensors, rows=rows, capacity=initial, context_length=context_length)
    if any(tensor.kind == "growing" for tensor in tensors):
        return GrowingCache(session, tensors, rows=rows)
    cache = SharedCache(session, tensors, rows=rows, capacity=initial, context_length=context_length)
    if capacity is not None:  # else the first prompt decides the capacity
        cache.grow(1, initial)
    return cache
