"""Parts of an ONNX graph as messages: the field numbers of onnx.proto, and new nodes, tensors and descriptions of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .onnx_wire import Message, read_varint

FLOAT, UINT8, INT8, INT32, INT64, FLOAT16 = 1, 2, 3, 6, 7, 10
"""Element types in ONNX."""


class MODEL:
    """Field numbers of a model in onnx.proto."""

    IR_VERSION, GRAPH, OPSETS = 1, 7, 8


class GRAPH:
    """Field numbers of a graph."""

    NODE, NAME, INITIALIZER, INPUT, OUTPUT = 1, 2, 5, 11, 12


class NODE:
    """Field numbers of a node."""

    INPUT, OUTPUT, NAME, OPERATOR, ATTRIBUTE, DOMAIN = 1, 2, 3, 4, 5, 7


class ATTRIBUTE:
    """Field numbers of an attribute."""

    NAME, INT, TEXT, TENSOR, GRAPH, TYPE = 1, 3, 4, 5, 6, 20


class TENSOR:
    """Field numbers of a tensor."""

    SIZES, ELEMENT_TYPE, NAME, DATA, EXTERNAL = 1, 2, 8, 9, 13


def with_branches(nodes: Iterable[Message]) -> Iterator[Message]:
    """Nodes, and those in their branches, in any order."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.messages(NODE.ATTRIBUTE):
            for branch in attribute.messages(ATTRIBUTE.GRAPH):
                pending += branch.messages(GRAPH.NODE)


def whole_numbers(node: Message) -> dict[str, int]:
    """The whole numbers among a node's attributes, by name."""
    return {each.text(ATTRIBUTE.NAME): each.number(ATTRIBUTE.INT) for each in node.messages(NODE.ATTRIBUTE)}


def make_node(operator: str, inputs: Iterable[str], outputs: Iterable[str], **attributes: int | Message) -> Message:
    """Make a node of a standard operator; a message attribute is a tensor for `Constant`, else a graph."""
    node = Message().add(NODE.INPUT, *inputs).add(NODE.OUTPUT, *outputs).add(NODE.OPERATOR, operator)
    for name, value in attributes.items():
        kind, field = (2, ATTRIBUTE.INT) if isinstance(value, int) else (5, ATTRIBUTE.GRAPH)
        if operator == "Constant":
            kind, field = 4, ATTRIBUTE.TENSOR
        node.add(NODE.ATTRIBUTE, Message().add(ATTRIBUTE.NAME, name).add(field, value).add(ATTRIBUTE.TYPE, kind))
    return node


def make_text_attribute(name: str, text: str) -> Message:
    """Make an attribute of a node that is a text."""
    return Message().add(ATTRIBUTE.NAME, name).add(ATTRIBUTE.TEXT, text).add(ATTRIBUTE.TYPE, 3)


def make_graph(nodes: Sequence[Message], outputs: Iterable[str], element_type: int) -> Message:
    """Make the graph of a branch; it needs no inputs, because a branch can use every value outside."""
    names = list(outputs)
    graph = Message().add(GRAPH.NODE, *nodes).add(GRAPH.NAME, names[0])
    return graph.add(GRAPH.OUTPUT, *(make_value_info(name, element_type) for name in names))


def make_tensor(name: str, data: bytes, shape: Sequence[int], element_type: int) -> Message:
    """Make a constant tensor."""
    tensor = Message().add(TENSOR.SIZES, *shape).add(TENSOR.ELEMENT_TYPE, element_type).add(TENSOR.NAME, name)
    return tensor.add(TENSOR.DATA, data)


def sizes_of(tensor: Message) -> list[int]:
    """The sizes of a constant tensor."""
    found = list[int]()
    for number, _, value in tensor.fields:
        if number == TENSOR.SIZES and isinstance(value, int):
            found.append(value)
        elif number == TENSOR.SIZES and isinstance(value, bytes):  # written together, as protobuf allows too
            position = 0
            while position < len(value):
                size, position = read_varint(value, position)
                found.append(size)
    return found


def make_value_info(name: str, element_type: int, shape: Sequence[int | str] | None = None) -> Message:
    """Make ONNX's description of a tensor; a size may be a name, and without a shape it may have any."""
    tensor = Message().add(1, element_type)
    if shape is not None:
        tensor.add(2, Message().add(1, *(Message().add(1 if isinstance(size, int) else 2, size) for size in shape)))
    return Message().add(1, name).add(2, Message().add(1, tensor))


def element_type_of(value: Message) -> int:
    """The element type in ONNX's description of a value; 0 if it has none."""
    return next((tensor.number(1) for kind in value.messages(2) for tensor in kind.messages(1)), 0)
