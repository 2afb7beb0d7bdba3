"""A draft head's graph over the model's own token embedding: the nodes that look tokens up, and the table that they read."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnx_textgen.package.manifest import GRAPH

from ..errors import ExportError
from ..passes.graph.linear import is_constant

LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})


def read_embeddings(model: ir.Model, folder: Path, embeddings_name: str) -> None:
    """Replace an input of a head by the embeddings of `input_ids`, as the graph in `folder` computes them.

    The weights stay where they are; raises `ExportError` for a model that looks tokens up in another way than in a table.
    """
    graph, main = model.graph, ir.load(folder / GRAPH).graph
    ids, embeddings = (next(value for value in graph.inputs if value.name == each) for each in ("input_ids", embeddings_name))
    looked_up = find_embeddings(main)
    if looked_up is None or looked_up.shape is None or embeddings.shape is None or looked_up.shape[-1] != embeddings.shape[-1]:
        raise ExportError("the model does not look its tokens up in one table, as a draft head needs; leave out --draft-head")
    copies = Copies(graph, {"input_ids": ids})
    found = copies.copy_of(looked_up)
    found.type, found.shape = embeddings.type, embeddings.shape
    embeddings.replace_all_uses_with(found)
    graph.inputs.remove(embeddings)
    graph.insert_before(graph[0], copies.nodes)


def find_embeddings(graph: ir.Graph) -> ir.Value | None:
    """What `input_ids` are looked up as, in numbers; None if that is not known."""
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    found = [node.outputs[0] for node in ids.consumers() if node.op_type in LOOKUPS and node.inputs[1] is ids]
    while found and (following := follower(found[-1], found)) is not None:
        found.append(following)
    return found[-1] if found else None


def follower(value: ir.Value, found: list[ir.Value]) -> ir.Value | None:
    """What turns codes into numbers, or undoes a smoothing of the table; None after the last of these."""
    for node in value.consumers():
        others = [each for each in node.inputs if each is not None and not any(each is one for one in found)]
        dequantises = node.op_type == "DequantizeLinear" and not others
        unsmooths = node.op_type == "Mul" and bool(others) and all(str(each.name).endswith(".unsmoothing") for each in others)
        if dequantises or unsmooths:
            return node.outputs[0]
    return None


class Copies:
    """Copies, for one graph, of what another graph computes a value from."""

    def __init__(self, graph: ir.Graph, inputs: dict[str, ir.Value]) -> None:
        """`inputs`: what the copies read in the place of the other graph's inputs, by name."""
        self.graph, self.inputs = graph, inputs
        self.made: dict[ir.Value, ir.Value] = {}
        self.nodes = list[ir.Node]()
        """Copied nodes in their order."""

    def copy_of(self, value: ir.Value) -> ir.Value:
        """The copy of a value; raises `ExportError` for one that depends on other inputs."""
        if value not in self.made:
            if (node := value.producer()) is not None:
                self.copy(node)
            elif is_constant(value):
                name, tensor = f"model.{value.name}", value.const_value
                self.made[value] = ir.Value(name=name, shape=value.shape, type=value.type, const_value=tensor)
                self.graph.register_initializer(self.made[value])
            elif value.name in self.inputs:
                self.made[value] = self.inputs[value.name]
            else:
                raise ExportError(f"the model's token embedding depends on {value.name}, which a draft head does not have")
        return self.made[value]

    def copy(self, node: ir.Node) -> None:
        """Copy a node after those that it depends on."""
        inputs = [None if value is None else self.copy_of(value) for value in node.inputs]
        copied = ir.Node(node.domain, node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs))
        for old, new in zip(node.outputs, copied.outputs, strict=True):
            new.name, new.type, new.shape = f"model.{old.name}", old.type, old.shape
            self.made[old] = new
        self.nodes.append(copied)
