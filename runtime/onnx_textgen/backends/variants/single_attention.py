"""Rewrites a graph so that attention takes the tokens of a run one at a time: results equal those of single tokens, bit by bit.

ONNX Runtime's GroupQueryAttention sums in another order for several new tokens than for one. The other operators of this project's
decoders compute each of several tokens like a single one (products in float32, in 4 bits with blocks of 32, in 8 bits with blocks
of 32 or 64). So each GroupQueryAttention becomes a chain of copies of itself, one link per token: each link appends its keys and
values to those of the link before, in the same memory. Links that a run does not need are skipped, in groups, or compute the last
token again. `speculation.verification` measures whether the results do equal those of single tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import PackageError
from ...files.onnx_graph import (
    GRAPH,
    INT32,
    INT64,
    MODEL,
    NODE,
    element_type_of,
    make_graph,
    make_node,
    make_tensor,
    make_value_info,
    whole_numbers,
)
from ...files.onnx_wire import Message
from ...options.checks import shown
from ..signature import CacheTensor

GROUP_SIZES = (2, 1, 2, 4)
"""Links that run or are skipped together; the first group always runs."""
GROUP_ENDS = tuple(itertools.accumulate(GROUP_SIZES))
MOST_TOKENS = GROUP_ENDS[-1]
OPERATOR, DOMAIN = "GroupQueryAttention", "com.microsoft"
QKV, PAST, LENGTHS, POSITIONS, BIAS = slice(3), slice(3, 5), 5, 9, slice(10, 11)
"""Inputs of the operator: queries, keys and values; past keys and values; `seqlens_k`; positions; attention bias."""
MIN_OPSET = 13
"""The opset that the new nodes need."""
ONE, ZERO, AXIS, SIZES, LINKS = (f"links.{name}" for name in ("one", "zero", "axis", "sizes", "all"))
"""Names of constants that all layers share."""
COUNT, END, LAST, TOKENS, SHIFTS = (f"links.{name}" for name in ("count", "end", "last", "tokens", "shifts"))
"""Names of values that all layers share: number of tokens, the same as [1], index of the last token as [1]; for each link, the
index of its token, and that index minus the last one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """The attention of one layer."""

    node: Message
    key: CacheTensor
    value: CacheTensor
    heads: int
    element_type: int
    """ONNX's number of the element type of queries, keys, values and output."""

    @property
    def output(self) -> str:
        """Name of the output."""
        return self.node.texts(NODE.OUTPUT)[0]

    @property
    def width(self) -> int:
        """Numbers per token of the output."""
        size = self.value.shape[-1]
        assert size is not None, "find_layers has checked"
        return self.heads * size

    def presents(self, link: int) -> list[str]:
        """Names of the present keys and values of a link."""
        return [present_of_link(tensor.present, link) for tensor in (self.key, self.value)]


def present_of_link(present: str, link: int) -> str:
    """Name of the output of a link that a caller binds to the memory of the original output `present`."""
    return f"{present}.link{link}"


def links_for(tokens: int) -> int:
    """Return how many links run for a number of tokens.

    >>> [links_for(tokens) for tokens in (2, 3, 4, 9)]
    [2, 3, 5, 9]
    """
    return next(end for end in GROUP_ENDS if end >= tokens)


def with_single_attention(model: bytes, cache: Sequence[CacheTensor], ids: str) -> bytes:
    """Replace each attention of a model by a chain of links; `ids` is the name of the input of token ids.

    Raises `PackageError` if the cache is not updated in place by GroupQueryAttention alone.
    """
    whole = Message(model)
    graph = whole.messages(MODEL.GRAPH)[0]
    if not any(each.text(1) in ("", "ai.onnx") and each.number(2) >= MIN_OPSET for each in whole.messages(MODEL.OPSETS)):
        raise PackageError(f"its opset is older than {MIN_OPSET}")
    layers = find_layers(graph, cache)
    nodes, lengths = list[bytes | Message](), set[str]()
    for content in graph.contents(GRAPH.NODE):
        node = Message(content)
        if (outputs := node.texts(NODE.OUTPUT)) and outputs[0] in layers:
            if not lengths:
                nodes += token_nodes(ids)
            if (name := node.texts(NODE.INPUT)[LENGTHS]) not in lengths:
                nodes += length_nodes(name)
                lengths.add(name)
            if (name := positions_of(node)) and name not in lengths:
                nodes += token_parts(name, name)
                lengths.add(name)
            nodes += chain_nodes(layers[outputs[0]])
        else:
            nodes.append(content)
    graph.replace(GRAPH.NODE, [each if isinstance(each, bytes) else bytes(each) for each in nodes])
    presents = {tensor.present for layer in layers.values() for tensor in (layer.key, layer.value)}
    kept = [value for value in graph.contents(GRAPH.OUTPUT) if Message(value).text(1) not in presents]
    names = [(name, layer.element_type) for layer in layers.values() for i in range(MOST_TOKENS) for name in layer.presents(i)]
    graph.replace(GRAPH.OUTPUT, [*kept, *(make_value_info(*each) for each in names)])
    graph.add(GRAPH.INITIALIZER, *constants())
    whole.replace(MODEL.GRAPH, [graph])
    return bytes(whole)


def find_layers(graph: Message, cache: Sequence[CacheTensor]) -> dict[str, Layer]:
    """Find every attention, by the name of its output; raises `PackageError` for other caches and unsupported inputs."""
    by_past, found = {tensor.past: tensor for tensor in cache}, dict[str, Layer]()
    types = {value.text(1): element_type_of(value) for value in graph.messages(GRAPH.OUTPUT)}
    for node in graph.messages(GRAPH.NODE):
        if (node.text(NODE.OPERATOR), node.text(NODE.DOMAIN)) != (OPERATOR, DOMAIN):
            continue
        inputs, outputs = node.texts(NODE.INPUT), node.texts(NODE.OUTPUT)
        pasts = [by_past.pop(past, None) for past in inputs[PAST]]
        key, value = pasts if len(pasts) == 2 else (None, None)
        if key is None or value is None or outputs[1:] != [key.present, value.present] or any(inputs[BIAS]):
            named = f"its attention {shown(outputs[0])}"
            raise PackageError(f"{named} has inputs or outputs other than queries, keys and values in place")
        if value.shape[-1] is None or value.kind != "shared" or value.dtype.kind != "f":
            raise PackageError(f"its {value.past} has a size or type that is not supported")
        heads = whole_numbers(node)["num_heads"]
        found[outputs[0]] = Layer(node, key, value, heads, types[key.present])
    if by_past or not found:
        raise PackageError("its keys and values are not all kept in place by GroupQueryAttention")
    return found


def token_nodes(ids: str) -> list[Message]:
    """Make the nodes that count the tokens of a run, assign a token to each link, and decide which groups run."""
    nodes = [
        make_node("Shape", [ids], [f"{COUNT}.sizes"]),
        make_node("Gather", [f"{COUNT}.sizes", f"{COUNT}.axis"], [COUNT]),
        make_node("Sub", [COUNT, ONE], [LAST]),
        make_node("Add", [LAST, ONE], [END]),
        make_node("Min", [LINKS, LAST], [TOKENS]),
        make_node("Sub", [TOKENS, LAST], [f"{SHIFTS}.wide"]),
        make_node("Cast", [f"{SHIFTS}.wide"], [SHIFTS], to=INT32),
    ]
    return nodes + [make_node("Greater", [COUNT, f"links.end.{end}"], [f"links.beyond.{end}"]) for end in GROUP_ENDS[:-1]]


def length_nodes(lengths: str) -> list[Message]:
    """Make the nodes that compute `seqlens_k` of each link; the graph's own value is that of the last token."""
    return [make_node("Add", [lengths, SHIFTS], [f"{lengths}.links"]), split(f"{lengths}.links", axis=-1, name=lengths)]


def split(value: str, *, axis: int, name: str) -> Message:
    """Make the node that splits a value into one part per link."""
    return make_node("Split", [value, SIZES], [f"{name}.link{link}" for link in range(MOST_TOKENS)], axis=axis)


def token_parts(value: str, name: str) -> list[Message]:
    """Make the nodes that split a value [batch, tokens, ...] into the part of each link's token."""
    return [make_node("Gather", [value, TOKENS], [f"{name}.links"], axis=1), split(f"{name}.links", axis=1, name=name)]


def positions_of(node: Message) -> str:
    """Name of the positions that an attention rotates by; empty if it counts them itself."""
    return "".join(node.texts(NODE.INPUT)[POSITIONS : POSITIONS + 1])


def chain_nodes(layer: Layer) -> Iterator[Message]:
    """Make the nodes of one layer's chain."""
    parts = list[str]()
    for index, name in enumerate(layer.node.texts(NODE.INPUT)[QKV]):
        if name:
            yield from token_parts(name, f"{layer.output}.input{index}")
    for start, end in itertools.pairwise((0, *GROUP_ENDS)):
        links, found = range(start, end), [f"{layer.output}.link{link}" for link in range(start, end)]
        nodes = [make_link(layer, link) for link in links]
        if not start:
            yield from nodes
            parts += found
            continue
        name = f"{layer.output}.links{start}"
        presents = [present for link in links for present in layer.presents(link)]
        concat = make_node("Concat", found, [f"{name}.then"], axis=1)
        results = [f"{name}.then", *map(name_in_branch, presents)]
        run = make_graph([*rename_in_branch(nodes, presents), concat], results, layer.element_type)
        skip = empty_branch(layer, name, presents)
        yield make_node("If", [f"links.beyond.{start}"], [name, *presents], then_branch=run, else_branch=skip)
        parts.append(name)
    yield make_node("Concat", parts, [f"{layer.output}.links"], axis=1)
    yield make_node("Slice", [f"{layer.output}.links", ZERO, END, AXIS], [layer.output])


def make_link(layer: Layer, link: int) -> Message:
    """Make one link: attention of its token over the presents of the link before."""
    inputs = layer.node.texts(NODE.INPUT)
    inputs[QKV] = [f"{layer.output}.input{index}.link{link}" if name else "" for index, name in enumerate(inputs[QKV])]
    if link:
        inputs[PAST] = layer.presents(link - 1)
    inputs[LENGTHS] = f"{inputs[LENGTHS]}.link{link}"
    if positions := positions_of(layer.node):
        inputs[POSITIONS] = f"{positions}.link{link}"
    attention = Message(bytes(layer.node))
    attention.replace(NODE.INPUT, inputs)
    attention.replace(NODE.OUTPUT, [f"{layer.output}.link{link}", *layer.presents(link)])
    attention.replace(NODE.NAME, [f"{layer.output}.link{link}"])
    return attention


def name_in_branch(name: str) -> str:
    """Name of a branch's result inside the branch."""
    return f"{name}.then"


def rename_in_branch(nodes: list[Message], names: Sequence[str]) -> list[Message]:
    """Rename results of a branch in its nodes: inside, they cannot have the names of the outputs of the `If`."""
    for node in nodes:
        for field in (NODE.INPUT, NODE.OUTPUT):
            node.replace(field, [name_in_branch(name) if name in names else name for name in node.texts(field)])
    return nodes


def empty_branch(layer: Layer, name: str, presents: Sequence[str]) -> Message:
    """Make the branch that skips a group: its output has no tokens, its presents are empty."""
    shapes = {f"{name}.else": (1, 0, layer.width)} | {f"{present}.else": (0,) for present in presents}
    nodes = [
        make_node("Constant", [], [output], value=make_tensor(output, b"", shape, layer.element_type))
        for output, shape in shapes.items()
    ]
    return make_graph(nodes, shapes, layer.element_type)


def constants() -> list[Message]:
    """Make the constants that all layers share."""
    lists = {ONE: [1], ZERO: [0], AXIS: [1], LINKS: range(MOST_TOKENS), SIZES: [1] * MOST_TOKENS}
    arrays = {name: np.array(numbers, "<i8") for name, numbers in lists.items()}
    arrays |= {f"{COUNT}.axis": np.array(1, "<i8")} | {f"links.end.{end}": np.array(end, "<i8") for end in GROUP_ENDS[:-1]}
    return [make_tensor(name, array.tobytes(), array.shape, INT64) for name, array in arrays.items()]
