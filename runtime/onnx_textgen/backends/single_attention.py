"""A graph once more, with attention that takes the tokens of a run one by one: each as if it were alone, to the last bit.

ONNX Runtime's GroupQueryAttention adds up in another order where it has several new tokens than where it has one. All else in a
decoder of ours computes a row of several as it does a single one (products in float32, in 4 bits by blocks of 32, in 8 bits by
blocks of 32 or 64). So each GroupQueryAttention becomes a chain of itself, a link for each token: a link's keys and values come
behind those of the link before, in the same memory. Links beyond the tokens of a run are passed over, by groups, or take the last
token once more. Whether the bits are those of single tokens is measured by `speculation.verification`, not believed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ..errors import PackageError
from ..files.onnx_wire import Message
from .signature import CacheTensor

GROUPS = (2, 1, 2, 4)
"""Links that are passed over together, but for the first."""
ENDS = tuple(itertools.accumulate(GROUPS))
MOST_TOKENS = ENDS[-1]
OPERATOR, DOMAIN = "GroupQueryAttention", "com.microsoft"
BY_TOKEN, PAST, LENGTHS, LATER = slice(3), slice(3, 5), 5, slice(9, 11)
"""Inputs of the operator: queries, keys and values; what was held; tokens held; what some graphs give for each pair of tokens."""
OLDEST = 13
"""ONNX's version that the operators here are of."""
INT32, INT64 = 6, 7
"""Types of elements in ONNX."""
ONE, ZERO, AXIS, SIZES, LINKS = (f"links.{name}" for name in ("one", "zero", "axis", "sizes", "all"))
NUMBER, COUNT, LAST, TOKENS, SHIFTS = (f"links.{name}" for name in ("number", "count", "last", "tokens", "shifts"))
"""Names of what all layers share: constants; how many tokens the run has, and for each link its token and how far from the last."""


class MODEL:
    """Numbers of fields in onnx.proto."""

    GRAPH, OPERATORS = 7, 8


class GRAPH:
    """The same, of a graph."""

    NODE, NAME, INITIALIZER, OUTPUT = 1, 2, 5, 12


class NODE:
    """The same, of a node."""

    INPUT, OUTPUT, NAME, OPERATOR, ATTRIBUTE, DOMAIN = 1, 2, 3, 4, 5, 7


class ATTRIBUTE:
    """The same, of an attribute."""

    NAME, INT, TENSOR, GRAPH, TYPE = 1, 3, 5, 6, 20


class TENSOR:
    """The same, of a tensor."""

    SIZES, ELEMENT, NAME, DATA = 1, 2, 8, 9


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """The attention of one layer."""

    node: Message
    key: CacheTensor
    value: CacheTensor
    heads: int
    element: int
    """ONNX's number of the type that it computes in."""

    @property
    def output(self) -> str:
        """The name of what it gives."""
        return self.node.texts(NODE.OUTPUT)[0]

    @property
    def width(self) -> int:
        """Numbers that it gives of a token."""
        size = self.value.shape[-1]
        assert size is not None, "find_layers has looked"
        return self.heads * size

    def presents(self, link: int) -> list[str]:
        """The keys and values that a link leaves."""
        return [present_of_link(tensor.present, link) for tensor in (self.key, self.value)]


def present_of_link(present: str, link: int) -> str:
    """The output of a link that is bound to the memory of the graph's own `present`."""
    return f"{present}.link{link}"


def links_for(tokens: int) -> int:
    """How many links run for so many tokens.

    >>> [links_for(tokens) for tokens in (2, 3, 4, 9)]
    [2, 3, 5, 9]
    """
    return next(end for end in ENDS if end >= tokens)


def with_single_attention(model: bytes, cache: Sequence[CacheTensor], ids: str) -> bytes:
    """The model with a chain of links for each attention; `ids` names the input of token ids.

    Raises `PackageError` for a graph that keeps keys and values in another way than by GroupQueryAttention, in place.
    """
    whole = Message(model)
    graph = whole.messages(MODEL.GRAPH)[0]
    if not any(each.text(1) in ("", "ai.onnx") and each.number(2) >= OLDEST for each in whole.messages(MODEL.OPERATORS)):
        raise PackageError(f"its operators are older than ONNX's version {OLDEST}")
    layers = find_layers(graph, cache)
    nodes, lengths = list[bytes | Message](), set[str]()
    for content in graph.contents(GRAPH.NODE):
        node = Message(content)
        if (outputs := node.texts(NODE.OUTPUT)) and outputs[0] in layers:
            if not lengths:
                nodes += counting_nodes(ids)
            if (name := node.texts(NODE.INPUT)[LENGTHS]) not in lengths:
                nodes += lengths_of_links(name)
                lengths.add(name)
            nodes += links_of(layers[outputs[0]])
        else:
            nodes.append(content)
    graph.replace(GRAPH.NODE, [each if isinstance(each, bytes) else bytes(each) for each in nodes])
    presents = {tensor.present for layer in layers.values() for tensor in (layer.key, layer.value)}
    kept = [value for value in graph.contents(GRAPH.OUTPUT) if Message(value).text(1) not in presents]
    added = [value_of(name, layer.element) for layer in layers.values() for i in range(MOST_TOKENS) for name in layer.presents(i)]
    graph.replace(GRAPH.OUTPUT, [*kept, *added])
    graph.add(GRAPH.INITIALIZER, *constants())
    whole.replace(MODEL.GRAPH, [graph])
    return bytes(whole)


def find_layers(graph: Message, cache: Sequence[CacheTensor]) -> dict[str, Layer]:
    """Every attention by the name of its output; raises `PackageError` where the cache is not all theirs."""
    by_past, found = {tensor.past: tensor for tensor in cache}, dict[str, Layer]()
    elements = {value.text(1): element_of(value) for value in graph.messages(GRAPH.OUTPUT)}
    for node in graph.messages(GRAPH.NODE):
        if (node.text(NODE.OPERATOR), node.text(NODE.DOMAIN)) != (OPERATOR, DOMAIN):
            continue
        inputs, outputs = node.texts(NODE.INPUT), node.texts(NODE.OUTPUT)
        held = [by_past.pop(past, None) for past in inputs[PAST]]
        key, value = held if len(held) == 2 else (None, None)
        if key is None or value is None or outputs[1:] != [key.present, value.present] or any(inputs[LATER]):
            raise PackageError(f"its attention {outputs[0]!r} takes or gives more than queries, keys and values in place")
        if value.shape[-1] is None or value.kind != "shared" or value.dtype.kind != "f":
            raise PackageError(f"the sizes or the type of its {value.past} are not those that are known here")
        heads = {each.text(ATTRIBUTE.NAME): each.number(ATTRIBUTE.INT) for each in node.messages(NODE.ATTRIBUTE)}["num_heads"]
        found[outputs[0]] = Layer(node, key, value, heads, elements[key.present])
    if by_past or not found:
        raise PackageError("its keys and values are not all kept in place by GroupQueryAttention")
    return found


def counting_nodes(ids: str) -> list[Message]:
    """What says how many tokens a run has, which of them each link takes, and which groups run."""
    nodes = [
        make_node("Shape", [ids], [f"{NUMBER}.sizes"]),
        make_node("Gather", [f"{NUMBER}.sizes", f"{NUMBER}.axis"], [NUMBER]),
        make_node("Sub", [NUMBER, ONE], [LAST]),
        make_node("Add", [LAST, ONE], [COUNT]),
        make_node("Min", [LINKS, LAST], [TOKENS]),
        make_node("Sub", [TOKENS, LAST], [f"{SHIFTS}.wide"]),
        make_node("Cast", [f"{SHIFTS}.wide"], [SHIFTS], to=INT32),
    ]
    return nodes + [make_node("Greater", [NUMBER, f"links.end.{end}"], [f"links.beyond.{end}"]) for end in ENDS[:-1]]


def lengths_of_links(lengths: str) -> list[Message]:
    """What says behind how many tokens each link's token comes; the graph's own is that of the last token."""
    return [make_node("Add", [lengths, SHIFTS], [f"{lengths}.links"]), split(f"{lengths}.links", axis=-1, name=lengths)]


def split(value: str, *, axis: int, name: str) -> Message:
    """A piece for each link."""
    return make_node("Split", [value, SIZES], [f"{name}.link{link}" for link in range(MOST_TOKENS)], axis=axis)


def links_of(layer: Layer) -> Iterator[Message]:
    """The chain of one layer."""
    parts = list[str]()
    for index, name in enumerate(layer.node.texts(NODE.INPUT)[BY_TOKEN]):
        if name:
            yield make_node("Gather", [name, TOKENS], [f"{layer.output}.input{index}"], axis=1)
            yield split(f"{layer.output}.input{index}", axis=1, name=f"{layer.output}.input{index}")
    for start, end in itertools.pairwise((0, *ENDS)):
        links, found = range(start, end), [f"{layer.output}.link{link}" for link in range(start, end)]
        nodes = [attention_of_link(layer, link) for link in links]
        if not start:
            yield from nodes
            parts += found
            continue
        name = f"{layer.output}.links{start}"
        presents = [present for link in links for present in layer.presents(link)]
        made = [make_node("Concat", found, [f"{name}.then"], axis=1)]
        then = make_graph([*renamed(nodes, presents), *made], [f"{name}.then", *map(inner, presents)], layer.element)
        yield make_node(
            "If", [f"links.beyond.{start}"], [name, *presents], then_branch=then, else_branch=nothing(layer, name, presents)
        )
        parts.append(name)
    yield make_node("Concat", parts, [f"{layer.output}.links"], axis=1)
    yield make_node("Slice", [f"{layer.output}.links", ZERO, COUNT, AXIS], [layer.output])


def attention_of_link(layer: Layer, link: int) -> Message:
    """One link: attention of its token over what the link before left, and itself."""
    inputs = layer.node.texts(NODE.INPUT)
    inputs[BY_TOKEN] = [f"{layer.output}.input{index}.link{link}" if name else "" for index, name in enumerate(inputs[BY_TOKEN])]
    if link:
        inputs[PAST] = layer.presents(link - 1)
    inputs[LENGTHS] = f"{inputs[LENGTHS]}.link{link}"
    attention = Message(bytes(layer.node))
    attention.replace(NODE.INPUT, inputs)
    attention.replace(NODE.OUTPUT, [f"{layer.output}.link{link}", *layer.presents(link)])
    attention.replace(NODE.NAME, [f"{layer.output}.link{link}"])
    return attention


def inner(name: str) -> str:
    """What is called so outside of a branch, inside of it."""
    return f"{name}.then"


def renamed(nodes: list[Message], names: Sequence[str]) -> list[Message]:
    """Nodes of a branch, whose own values may not be called as the branch's results are outside."""
    for node in nodes:
        for field in (NODE.INPUT, NODE.OUTPUT):
            node.replace(field, [inner(name) if name in names else name for name in node.texts(field)])
    return nodes


def nothing(layer: Layer, name: str, presents: Sequence[str]) -> Message:
    """The branch of a group that is passed over: no tokens, and no keys and values."""
    shapes = {f"{name}.else": (1, 0, layer.width)} | {f"{present}.else": (0,) for present in presents}
    nodes = [
        make_node("Constant", [], [output], value=make_tensor(output, b"", shape, layer.element))
        for output, shape in shapes.items()
    ]
    return make_graph(nodes, shapes, layer.element)


def constants() -> list[Message]:
    """The numbers that all layers share."""
    lists = {ONE: [1], ZERO: [0], AXIS: [1], LINKS: range(MOST_TOKENS), SIZES: [1] * MOST_TOKENS}
    arrays = {name: np.array(numbers, "<i8") for name, numbers in lists.items()}
    arrays |= {f"{NUMBER}.axis": np.array(1, "<i8")} | {f"links.end.{end}": np.array(end, "<i8") for end in ENDS[:-1]}
    return [make_tensor(name, array.tobytes(), array.shape, INT64) for name, array in arrays.items()]


def make_node(operator: str, inputs: Iterable[str], outputs: Iterable[str], **attributes: int | Message) -> Message:
    """A node of ONNX's own operators; the kind of a message says whether it is a tensor or a graph."""
    node = Message().add(NODE.INPUT, *inputs).add(NODE.OUTPUT, *outputs).add(NODE.OPERATOR, operator)
    for name, value in attributes.items():
        kind, field = (2, ATTRIBUTE.INT) if isinstance(value, int) else (5, ATTRIBUTE.GRAPH)
        if operator == "Constant":
            kind, field = 4, ATTRIBUTE.TENSOR
        node.add(NODE.ATTRIBUTE, Message().add(ATTRIBUTE.NAME, name).add(field, value).add(ATTRIBUTE.TYPE, kind))
    return node


def make_graph(nodes: Sequence[Message], outputs: Iterable[str], element: int) -> Message:
    """A branch, whose values from outside need no mention."""
    names = list(outputs)
    graph = Message().add(GRAPH.NODE, *nodes).add(GRAPH.NAME, names[0])
    return graph.add(GRAPH.OUTPUT, *(value_of(name, element) for name in names))


def make_tensor(name: str, data: bytes, shape: Sequence[int], element: int) -> Message:
    """A constant."""
    tensor = Message().add(TENSOR.SIZES, *shape).add(TENSOR.ELEMENT, element).add(TENSOR.NAME, name)
    return tensor.add(TENSOR.DATA, data)


def value_of(name: str, element: int) -> Message:
    """What ONNX calls the type of a value: a tensor of any sizes."""
    return Message().add(1, name).add(2, Message().add(1, Message().add(1, element)))


def element_of(value: Message) -> int:
    """The type of the elements of such a value."""
    return next((tensor.number(1) for kind in value.messages(2) for tensor in kind.messages(1)), 0)
