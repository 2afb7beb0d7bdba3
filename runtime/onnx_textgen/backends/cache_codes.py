"""Keys and values at 8 bits, for an engine that does not run the graph which keeps them so: its scales, codes and their numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import PackageError
from ..files.graph_file import map_model
from ..files.onnx_graph import FLOAT, GRAPH, MODEL, NODE, TENSOR, with_branches
from ..files.onnx_wire import Message

OPERATOR = "GroupQueryAttention"
PASTS, SCALES = slice(3, 5), slice(12, 14)
"""Inputs of the operator: past keys and values, and the scales of their codes."""
LARGEST_CODE = 127
"""The largest code; the smallest, -128, is only used for numbers beyond those seen in calibration."""

CacheScales = Mapping[str, npt.NDArray[np.float32]]
"""What each channel's codes are multiplied with, [1, kv_heads, 1, head_size], by the name of the past input."""
NO_SCALES: CacheScales = {}
"""For a cache that holds keys and values in floating point."""


def read_scales(path: Path) -> CacheScales:
    """The scales in the graph at `path`; raises `PackageError` if it is not a graph, or one whose scales cannot be used."""
    with map_model(path) as content:
        graph = Message(b"".join(Message(content[:]).contents(MODEL.GRAPH)))
        constants = {tensor.text(TENSOR.NAME): tensor for tensor in graph.messages(GRAPH.INITIALIZER)}
        found = {
            past: constants.get(name, Message())
            for node in with_branches(graph.messages(GRAPH.NODE))
            if len(inputs := node.texts(NODE.INPUT)) > SCALES.start and node.text(NODE.OPERATOR) == OPERATOR
            for past, name in zip(inputs[PASTS], inputs[SCALES], strict=True)
        }
    if not found:
        raise PackageError(f"{path.name} keeps no keys and values at 8 bits; export the model again with --int8-cache")
    return {past: scales_of(tensor, path) for past, tensor in found.items()}


def scales_of(tensor: Message, path: Path) -> npt.NDArray[np.float32]:
    """The numbers of a constant; raises `PackageError` unless they, and what codes are found with, are positive and finite."""
    shape, data = [value for number, _, value in tensor.fields if number == TENSOR.SIZES], b"".join(tensor.contents(TENSOR.DATA))
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) != 4 or tensor.number(TENSOR.ELEMENT_TYPE) != FLOAT or len(data) != 4 * math.prod(sizes):
        raise PackageError(f"{path.name} has no scales for its cache of 8 bits; export the model again")
    scales = np.frombuffer(data, np.dtype("<f4")).reshape(sizes)
    with np.errstate(all="ignore"):
        is_usable = (scales > 0) & np.isfinite(scales * -LARGEST_CODE) & np.isfinite(1 / scales)
    if not is_usable.all():
        raise PackageError(f"{path.name} has scales that are no positive numbers; export the model again")
    return scales


def to_codes(numbers: npt.NDArray[np.float32], scales: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """The codes of finite keys or values, to the last bit those that the graph would store."""
    steps = np.rint(numbers * (1 / scales))
    return np.asarray(steps.clip(-LARGEST_CODE - 1, LARGEST_CODE), dtype=np.int8)


def from_codes(codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Keys or values as attention reads them."""
    return np.asarray(codes * scales, dtype=np.float32)
