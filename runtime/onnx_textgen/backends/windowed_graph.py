"""Rewrites a graph so that attention with a sliding window works over a cache that holds the end of a text.

GroupQueryAttention masks by distance and numbers tokens by their columns in the cache. So it can be given a cache whose columns
begin later in the text, if it is told how many columns are used, and at which positions of the text to rotate new queries and keys.
Each such operator gets these as inputs of the graph: `window_lengths` [batch], the last column used; `window_total`, the most
columns used by a row after the run; `window_positions` [batch, new]. The sizes of its cache are called `window_N` for a window of N
tokens, by which `signature` knows them. ONNX Runtime's attribute `sliding_window_cache` is not used: it forgets without a margin,
so that drafts could not be rolled back.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import PackageError
from ..files.graph_file import OUR_PRODUCER, map_model, producer_of
from ..files.onnx_graph import GRAPH, INT32, INT64, MODEL, NODE, element_type_of, make_value_info, whole_numbers, with_branches
from ..files.onnx_wire import Message
from .signature import WINDOW_LENGTHS, WINDOW_POSITIONS, WINDOW_TOTAL
from .window import length_name

OPERATOR, DOMAIN = "GroupQueryAttention", "com.microsoft"
PASTS, LENGTHS, TOTAL, POSITIONS, BIAS, SCALES = slice(3, 5), 5, 6, 9, 10, slice(12, None)
"""Inputs of the operator: past keys and values; `seqlens_k`; the total; positions; an attention bias; what a newer form may add."""
MOST_BYTES = 2**24
"""A graph of this project has its weights in another file, and is smaller."""
MARK = b"local_window_size"
"""The attribute of attention with a window; a graph without these bytes is not parsed."""
PROPERTIES = 14
"""Field number of a model's metadata."""
SWITCH = "rotary_switch"
"""Metadata of graphs that rotate all keys again in long texts, for which they need the whole text in one run."""

Shape = list[int | str]


def windowed_model(path: Path) -> bytes | None:
    """The content of a graph of this project, rewritten; None if no layer of it can hold less than the whole text.

    A file that is no graph is left to the engine, which says what is wrong.
    """
    if path.stat().st_size > MOST_BYTES or producer_of(path) != OUR_PRODUCER:
        return None
    with map_model(path) as content:
        if content.find(MARK) < 0:
            return None
        whole = content[:]
    with contextlib.suppress(PackageError, ValueError):
        model = Message(whole)
        return None if any(each.text(1) == SWITCH for each in model.messages(PROPERTIES)) else with_windows(model)
    return None


def with_windows(model: Message) -> bytes | None:
    """The model with windows in the cache; None if it has no attention that can have one.

    All layers hold as many tokens as the largest window needs.
    """
    (graph,) = model.messages(MODEL.GRAPH)
    nodes = [Message(content) if OPERATOR.encode() in content else content for content in graph.contents(GRAPH.NODE)]
    values = {each.text(1): each for field in (GRAPH.INPUT, GRAPH.OUTPUT) for each in graph.messages(field)}
    uses = collections.Counter(name for node in graph.messages(GRAPH.NODE) for name in names_read(node))
    found = [(node, size) for node in nodes if isinstance(node, Message) and (size := window_of(node, values, uses))]
    if not found:
        return None
    length = length_name(max(size for _, size in found))
    renamed = set[str]()
    for node, _ in found:
        renamed.update(node.texts(NODE.INPUT)[PASTS], node.texts(NODE.OUTPUT)[1:])
        rewire(node)
    graph.replace(GRAPH.NODE, [bytes(node) for node in nodes])
    for field in (GRAPH.INPUT, GRAPH.OUTPUT):
        graph.replace(field, [with_length(each, length) if each.text(1) in renamed else each for each in graph.messages(field)])
    graph.add(GRAPH.INPUT, make_value_info(WINDOW_LENGTHS, INT32, ["batch"]), make_value_info(WINDOW_TOTAL, INT32, []))
    if any(rotates(node) for node, _ in found):
        graph.add(GRAPH.INPUT, make_value_info(WINDOW_POSITIONS, INT64, ["batch", "new"]))
    model.replace(MODEL.GRAPH, [graph])
    return bytes(model)


def window_of(node: Message, values: dict[str, Message], uses: collections.Counter[str]) -> int:
    """The window of an attention whose cache can be rewritten; 0 for any other node.

    Its keys and values must be inputs and outputs of the graph, updated in place, that no other node reads.
    """
    inputs, outputs = node.texts(NODE.INPUT), node.texts(NODE.OUTPUT)
    if (node.text(NODE.OPERATOR), node.text(NODE.DOMAIN)) != (OPERATOR, DOMAIN) or len(outputs) != 3:
        return 0
    size = whole_numbers(node).get("local_window_size", 0)
    others = [inputs[index] for index in (POSITIONS, BIAS) if index < len(inputs)] + inputs[SCALES]
    pasts, presents = inputs[PASTS], outputs[1:]
    is_alone = all(uses[past] == 1 for past in pasts) and not any(uses[present] for present in presents)
    if len(inputs) <= TOTAL or not 0 < size < 2**31 or any(others) or not is_alone or not values.keys() >= {*pasts, *presents}:
        return 0
    shapes = [shape_of(values[name]) for name in (*pasts, *presents)]
    lengths = {shape[2] if len(shape) == 4 else 0 for shape in shapes}
    return size if len(lengths) == 1 and isinstance(lengths.pop(), str) else 0


def names_read(node: Message) -> Iterator[str]:
    """The values that a node reads, in its branches too."""
    for inner in with_branches([node]):
        yield from inner.texts(NODE.INPUT)


def rotates(node: Message) -> bool:
    """Return whether an attention rotates queries and keys itself."""
    return bool(whole_numbers(node).get("do_rotary"))


def rewire(node: Message) -> None:
    """Let an attention read the lengths and positions of a windowed cache."""
    inputs = node.texts(NODE.INPUT)
    inputs[LENGTHS : TOTAL + 1] = [WINDOW_LENGTHS, WINDOW_TOTAL]
    if rotates(node):
        inputs += [""] * (POSITIONS + 1 - len(inputs))
        inputs[POSITIONS] = WINDOW_POSITIONS
    node.replace(NODE.INPUT, inputs)


def shape_of(value: Message) -> Shape:
    """The sizes in ONNX's description of a tensor; empty if it has none."""
    tensors = [tensor for kind in value.messages(2) for tensor in kind.messages(1)]
    sizes = [size for tensor in tensors for shape in tensor.messages(2) for size in shape.messages(1)]
    return [size.text(2) or size.number(1) for size in sizes]


def with_length(value: Message, length: str) -> Message:
    """The description of keys or values with another name of their length."""
    batch, heads, _, size = shape_of(value)
    return make_value_info(value.text(1), element_type_of(value), [batch, heads, length, size])
