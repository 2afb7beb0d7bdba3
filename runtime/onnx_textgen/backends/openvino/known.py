"""Tells of most decoders that OpenVINO reads their graphs, without importing OpenVINO: a trial takes as long as opening a model.

Each operator here is one that OpenVINO read in graphs of this project; attention and embeddings as `operators` converts
them. Of any other graph nothing is said, and `session.check_readable` lets OpenVINO read it.
"""

from __future__ import annotations

from pathlib import Path

from ...files.graph_file import map_model
from ...files.onnx_graph import GRAPH, MODEL, NODE, whole_numbers
from ...files.onnx_wire import Message
from ..windowed_graph import BIAS, POSITIONS
from .operators import DOMAIN, UNSUPPORTED_ATTRIBUTES

STANDARD = """
Add Cast Clip Concat Cos CumSum Expand Gather GatherND Gelu Gemm LayerNormalization MatMul Max Mul Neg Pow RMSNormalization Range
ReduceSum Relu Reshape RotaryEmbedding Shape Sigmoid Sin Slice Split Squeeze Sub Transpose Unsqueeze
"""
MICROSOFT = """
FusedMatMul GatherBlockQuantized GroupQueryAttention MatMulNBits SkipLayerNormalization SkipSimplifiedLayerNormalization
"""
KNOWN = {"": frozenset(STANDARD.split()), DOMAIN: frozenset(MICROSOFT.split())}
"""Operators by domain."""
SWITCHES = {"rotary_interleaved", "interleaved"}
"""Attributes that have to be 0."""
BITS = (4, 8)
MOST_INPUTS = 12
"""Inputs of GroupQueryAttention that are known."""


def is_known(path: Path) -> bool:
    """Return whether OpenVINO is known to read the graph at `path`; False does not mean that it cannot."""
    with map_model(path) as content:
        graphs = Message(content[:]).messages(MODEL.GRAPH)
    return len(graphs) == 1 and all(is_known_node(node) for node in graphs[0].messages(GRAPH.NODE))


def is_known_node(node: Message) -> bool:
    """Return whether a node is one of `KNOWN`, in a form that OpenVINO reads."""
    operator, found = node.text(NODE.OPERATOR), whole_numbers(node)
    if operator not in KNOWN.get(node.text(NODE.DOMAIN), ()):
        return False
    if found.keys() & set(UNSUPPORTED_ATTRIBUTES) - SWITCHES or any(found.get(name) for name in SWITCHES):
        return False
    if operator == "GroupQueryAttention":
        inputs = node.texts(NODE.INPUT)
        return len(inputs) <= MOST_INPUTS and not any(inputs[POSITIONS : BIAS + 1])
    return found.get("bits", BITS[0]) in BITS
