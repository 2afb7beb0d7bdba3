"""The embeddings of a text: rows of the model's table, looked up by the same nodes of its graph as in every run.

These nodes and their weights are opened as a separate small graph. If a graph looks ids up in another way, no embeddings are shown.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from onnx_textgen.backends.onnxruntime_session import WEIGHTS_FOLDER, OnnxRuntimeSession, make_options, open_on
from onnx_textgen.backends.protocol import CPU
from onnx_textgen.errors import PackageError
from onnx_textgen.files.onnx_wire import Message
from onnx_textgen.package.manifest import ENCODER_GRAPH

if TYPE_CHECKING:
    from onnx_textgen import Model

Embeddings = npt.NDArray[np.float32]
"""[tokens, width]"""

MOST_BYTES = 256 * 2**20
"""A larger file, with its weights inside, is not read a second time for a picture."""
LOOKUPS = ("Gather", "GatherBlockQuantized")
"""Operators that look up rows of a table; inputs: table, ids."""
OFFSETS = ("Reshape", "Add", "Reshape")
"""Operators that add an offset to each block of the rows."""
SAME_IDS = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that may precede the lookup; input: ids."""
RESULT = "embeddings"

# Numbers of fields in onnx.proto.
GRAPH = 7
NODE, INITIALIZER, INPUT, OUTPUT = 1, 5, 11, 12
NODE_INPUT, NODE_OUTPUT, OPERATOR, ATTRIBUTE = 1, 2, 4, 5
TENSOR_NAME, VALUE_NAME, VALUE_TYPE = 8, 1, 2
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TYPE = 1, 3, 20
FLOAT, INT_ATTRIBUTE = 1, 2


@functools.lru_cache(maxsize=4)
def embeddings_of(model: Model, token_ids: tuple[int, ...]) -> Embeddings | None:
    """The embeddings of some ids of a prompt, in an encoder-decoder those of its encoder; None if the graph does not show them.

    The embeddings of the last few texts, of all visitors, are cached, so that moving forwards and backwards opens no graph.
    """
    path = model.graph.path if isinstance(model.graph, OnnxRuntimeSession) else model.folder / model.generator.opened.graph_name
    if model.manifest.encoder is not None:
        path = model.folder / ENCODER_GRAPH
    try:
        found = look_up(path, model.graph.roles["input_ids"].name, token_ids)
    except Exception:  # noqa: BLE001 - an unusual graph costs a picture, and no more
        return None
    width = model.manifest.geometry.hidden_size
    return found if found.ndim == 2 and len(found) == len(token_ids) and found.shape[1] == (width or found.shape[1]) else None


def look_up(path: Path | None, ids_name: str, token_ids: Sequence[int]) -> Embeddings:
    """Run only the lookup of the graph at `path`; raises `PackageError` if it has none."""
    if path is None or path.stat().st_size > MOST_BYTES:
        raise PackageError("the graph is not read again")
    options = make_options(threads=1)
    options.add_session_config_entry(WEIGHTS_FOLDER, str(path.parent))
    session = open_on(path, CPU, options, model=lookup_alone(path.read_bytes(), ids_name))
    _, element = session.inputs[ids_name]
    ids = np.asarray([token_ids], np.int32 if element == "tensor(int32)" else np.int64)
    rows: Embeddings = session.ort.run([RESULT], {ids_name: ids})[0]
    return rows.reshape(len(token_ids), -1)


def lookup_alone(data: bytes, ids_name: str) -> bytes:
    """A graph of only the nodes that turn ids into embeddings; raises `PackageError` if there are none."""
    model = Message(data)
    (graph,) = model.messages(GRAPH)
    nodes = graph.messages(NODE)
    makers = {name: node for node in nodes for name in node.texts(NODE_OUTPUT)}
    inputs = {Message(value).text(VALUE_NAME): value for value in graph.contents(INPUT)}
    weights = {Message(value).text(TENSOR_NAME): value for value in graph.contents(INITIALIZER)}
    lookup = next(
        (
            node
            for node in nodes
            if node.text(OPERATOR) in LOOKUPS
            and leads_to(ids_name, node.texts(NODE_INPUT)[1], makers)
            and not names_before(node.texts(NODE_INPUT)[0], makers) & inputs.keys() - weights.keys()
        ),
        None,
    )
    if lookup is None:
        raise PackageError("no node of the graph looks ids up in a table")
    result = with_offsets(lookup.texts(NODE_OUTPUT)[0], nodes)
    needed = names_before(result, makers)
    if needed & inputs.keys() - weights.keys() != {ids_name}:
        raise PackageError("the graph's lookup takes more than ids")
    as_float = Message().add(NODE_INPUT, result).add(NODE_OUTPUT, RESULT).add(OPERATOR, "Cast").add(ATTRIBUTE, cast_to_float())
    kept = [node for node in nodes if needed & set(node.texts(NODE_OUTPUT))]
    graph.replace(NODE, [*kept, as_float])
    graph.replace(INITIALIZER, [value for name, value in weights.items() if name in needed])
    graph.replace(INPUT, [inputs[ids_name]])
    graph.replace(OUTPUT, [Message().add(VALUE_NAME, RESULT).add(VALUE_TYPE, Message().add(1, Message().add(1, FLOAT)))])
    model.replace(GRAPH, [graph])
    return bytes(model)


def with_offsets(rows: str, nodes: Sequence[Message]) -> str:
    """The rows of a table after the offsets of their blocks were added, if it has some."""
    value = rows
    for operator in OFFSETS:
        following = [node for node in nodes if value in node.texts(NODE_INPUT)[:1]]
        if len(following) != 1 or following[0].text(OPERATOR) != operator:
            return rows
        value = following[0].texts(NODE_OUTPUT)[0]
    return value


def leads_to(ids_name: str, name: str, makers: Mapping[str, Message]) -> bool:
    """Whether a value is the ids, possibly in another shape or type."""
    while name != ids_name:
        maker = makers.get(name)
        if maker is None or maker.text(OPERATOR) not in SAME_IDS:
            return False
        name = maker.texts(NODE_INPUT)[0]
    return True


def names_before(name: str, makers: Mapping[str, Message]) -> set[str]:
    """The names of a value and of everything that it is computed from."""
    found, open_names = set[str](), [name]
    while open_names:
        name = open_names.pop()
        if name not in found:
            found.add(name)
            open_names += ingredients(makers.get(name))
    return found


def ingredients(node: Message | None) -> Iterator[str]:
    """The names of a node's inputs, without omitted ones."""
    return filter(None, node.texts(NODE_INPUT) if node else ())


def cast_to_float() -> Message:
    """The attribute `to` of a Cast to float32."""
    return Message().add(ATTRIBUTE_NAME, "to").add(ATTRIBUTE_INT, FLOAT).add(ATTRIBUTE_TYPE, INT_ATTRIBUTE)
