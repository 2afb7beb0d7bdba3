"""Where ONNX Runtime places the operators of a graph: what a device has no kernel for is left to the CPU.

ONNX Runtime records this while it opens a graph. Arithmetic of sizes on the CPU costs nothing. Attention there is another matter:
keys and values of the whole text would be copied between the device and the CPU for each token.
"""

from __future__ import annotations

import collections
from typing import Any

RECORD = ("session.record_ep_graph_assignment_info", "1")
"""The session option that records it."""
ATTENTION = frozenset({"GroupQueryAttention", "Attention", "MultiHeadAttention"})
CPU_PROVIDER = "CPUExecutionProvider"


def placed_operators(session: Any) -> dict[str, frozenset[str]]:  # noqa: ANN401 - ONNX Runtime's session
    """The kinds of operators that each execution provider computes, in a session that was opened with `RECORD`."""
    found = collections.defaultdict[str, set[str]](set)
    for part in session.get_provider_graph_assignment_info():
        found[part.ep_name].update(node.op_type for node in part.get_nodes())
    return {provider: frozenset(operators) for provider, operators in found.items()}
