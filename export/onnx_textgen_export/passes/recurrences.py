"""Lower the operators by which a trace represents recurrences to existing ones.

`onnx_textgen::LinearAttention` becomes ONNX Runtime's operator of that name, or for every conforming runtime a Scan over the
tokens; `onnx_textgen::SelectiveScan` becomes a Scan, which ONNX Runtime computes in a third of the time that LinearAttention takes
for it. So do `onnx_textgen::DecayedSum` (a thirtieth of the time) and `onnx_textgen::RunningMaximum`. The body of a Scan is one
token of the recurrence as `sources/recurrence` states it, so the results do not depend on how a text is split into runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_textgen.package.manifest import Target

from .graph.linear import shared_constant

DOMAIN = "onnx_textgen"


def lower_recurrences(model: ir.Model, target: Target) -> None:
    """Lower the recurrences of a model in place."""
    graph = model.graph
    for node in [node for node in graph if node.domain == DOMAIN]:
        if node.op_type == "SelectiveScan":
            replace(graph, node, *scan_of_channels(graph, node))
        elif node.op_type in ("DecayedSum", "RunningMaximum"):
            replace(graph, node, *scan_of_numbers(node))
        elif node.op_type == "LinearAttention" and target == "ort":
            same = ir.node("LinearAttention", node.inputs, node.attributes, domain="com.microsoft", num_outputs=2)
            replace(graph, node, [same], same.outputs)
            model.opset_imports["com.microsoft"] = 1
        elif node.op_type == "LinearAttention":
            replace(graph, node, *scan_of_heads(graph, node))


def replace(graph: ir.Graph, old: ir.Node, new: list[ir.Node], outputs: Sequence[ir.Value]) -> None:
    """Replace a node by others, whose `outputs` take the place of those it had."""
    for made, before in zip(outputs, old.outputs, strict=True):
        made.name, made.shape, made.type = before.name, before.shape, before.type
    ir.convenience.replace_nodes_and_values(graph, old, [old], new, old.outputs, outputs)


class Body:
    """The body of a Scan while it is written: its inputs, and its nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[ir.Value] = []
        self.nodes: list[ir.Node] = []

    def input(self, name: str) -> ir.Value:
        """A state, or one token of a scanned input."""
        value = ir.Value(name=f"{self.name}.{name}", type=ir.TensorType(ir.DataType.FLOAT))
        self.inputs.append(value)
        return value

    def do(self, operator: str, *inputs: ir.Value) -> ir.Value:
        """Add a node; returns its output."""
        node = ir.node(operator, inputs)
        node.outputs[0].name = f"{self.name}.{len(self.nodes)}"
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        self.nodes.append(node)
        return node.outputs[0]

    def scan(self, state: ir.Value, scanned: Sequence[ir.Value], *, state_after: ir.Value, output: ir.Value) -> ir.Node:
        """The Scan over the second dimension of `scanned`; its outputs are the state after the last token, and the tokens'."""
        graph = ir.Graph(self.inputs, [state_after, output], nodes=self.nodes, name=self.name)
        axes = {"scan_input_axes": [1] * len(scanned), "scan_output_axes": [1]}
        return ir.node("Scan", [state, *scanned], {"body": graph, "num_scan_inputs": len(scanned), **axes}, num_outputs=2)


def reshaped(graph: ir.Graph, value: ir.Value | None, *sizes: int) -> ir.Node:
    """A Reshape; sizes of 0 are kept."""
    shape = shared_constant(graph, f"shape_{'_'.join(map(str, sizes))}", np.array(sizes, dtype=np.int64))
    return ir.node("Reshape", [value, shape])


def scan_of_heads(graph: ir.Graph, node: ir.Node) -> tuple[list[ir.Node], list[ir.Value]]:
    """Linear attention as a Scan; heads are [key heads, repeats], so that those that share a key are not copied."""
    query, key, value, state, decay, beta = (*node.inputs, None, None)[:6]
    assert state is not None and state.shape is not None, "a state has a shape"
    rule = node.attributes["update_rule"].as_string()
    key_heads, heads = node.attributes["q_num_heads"].as_int(), node.attributes["kv_num_heads"].as_int()
    size, value_size = (int(state.shape[axis]) for axis in (2, 3))  # type: ignore[arg-type]
    repeats = heads // key_heads
    body, before, scanned = Body(str(node.outputs[0].name)), list[ir.Node](), list[ir.Value]()

    def token(name: str, source: ir.Value | None, *sizes: int) -> ir.Value:
        before.append(reshaped(graph, source, 0, 0, key_heads, *sizes))
        scanned.append(before[-1].outputs[0])
        return body.input(name)

    now = body.input("state")
    if "gated" in rule:
        before.append(ir.node("Exp", [decay]))
        rows = size if decay is not None and decay.shape is not None and decay.shape[2] == heads * size and size > 1 else 1
        now = body.do("Mul", now, token("decay", before[-1].outputs[0], repeats, rows, 1))
    change = token("value", value, repeats, 1, value_size)
    if "delta" in rule:
        known = body.do("MatMul", token("key_row", key, 1, 1, size), now)
        change = body.do("Mul", body.do("Sub", change, known), token("beta", beta, repeats, 1, 1))
    after = body.do("Add", now, body.do("Mul", token("key", key, 1, size, 1), change))
    output = body.do("MatMul", token("query", query, 1, 1, size), after)
    before.append(reshaped(graph, state, 0, key_heads, repeats, size, value_size))
    scan = body.scan(before[-1].outputs[0], scanned, state_after=after, output=output)
    last = reshaped(graph, scan.outputs[0], 0, heads, size, value_size)
    packed = reshaped(graph, scan.outputs[1], 0, 0, heads * value_size)
    return [*before, scan, packed, last], [packed.outputs[0], last.outputs[0]]


def scan_of_channels(graph: ir.Graph, node: ir.Node) -> tuple[list[ir.Node], list[ir.Value]]:
    """The selective scan as a Scan; the rates, which are the same for every token, are read from the graph around it."""
    scaled, step, rate, write, read, state = node.inputs
    body, before, scanned = Body(str(node.outputs[0].name)), list[ir.Node](), list[ir.Value]()
    assert rate is not None and state is not None, "the operator has six inputs"

    def token(name: str, source: ir.Value | None, axis: int) -> ir.Value:
        before.append(ir.node("Unsqueeze", [source, shared_constant(graph, f"axis_{axis}", np.array([axis], dtype=np.int64))]))
        scanned.append(before[-1].outputs[0])
        return body.input(name)

    now = body.input("state")
    kept = body.do("Mul", body.do("Exp", body.do("Mul", token("step", step, 3), rate)), now)
    after = body.do("Add", kept, body.do("Mul", token("scaled", scaled, 3), token("write", write, 2)))
    output = body.do("MatMul", after, token("read", read, 3))
    scan = body.scan(state, scanned, state_after=after, output=output)
    axes = shared_constant(graph, "axis_3", np.array([3], dtype=np.int64))
    last = ir.node("Squeeze", [scan.outputs[1], axes])
    return [*before, scan, last], [last.outputs[0], scan.outputs[0]]


def scan_of_numbers(node: ir.Node) -> tuple[list[ir.Node], list[ir.Value]]:
    """A recurrence of single numbers as a Scan; its outputs are the states, so what the Scan returns as its state is not needed."""
    value, decay, state = node.inputs
    assert value is not None and decay is not None and state is not None, "the operator has three inputs"
    body = Body(str(node.outputs[0].name))
    now, new, lost = (body.input(name) for name in ("state", "value", "decay"))
    if node.op_type == "DecayedSum":
        after = body.do("Add", body.do("Mul", lost, now), new)
    else:
        after = body.do("Max", body.do("Add", now, lost), new)
    scan = body.scan(state, [value, decay], state_after=after, output=body.do("Identity", after))
    return [scan], [scan.outputs[1]]
