"""Adds LoRA adapters to a graph, over the same weights: each changed product gets one of low rank, `y + ((x A) * mask) B`.

The ranks of all adapters lie side by side in A [in, ranks] and B [ranks, out], and the mask, an input of the graph, lets through
those of each row's own adapter. So rows with different adapters are decoded in one run. A and B are constants, which ONNX Runtime
multiplies in an order that does not depend on the number of rows or of ranks, and the others' ranks add exact zeros: so a row has
the same numbers in any company, and the same as in a graph with its adapter alone, which needs no mask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from ...errors import PackageError
from ...files.onnx_graph import FLOAT, FLOAT16, GRAPH, INT64, MODEL, NODE, make_node, make_tensor, make_value_info
from ...files.onnx_wire import Message
from ..onnxruntime_session import OnnxRuntimeSession, open_variant
from ..signature import ADAPTER_MASK
from .adapter_file import Changes, LowRank
from .linear_layers import ElementType, LinearLayer, LinearLayers

MOST_BYTES = 2**31 - 2**20
"""Limit for a graph in memory: protobuf's, less what surrounds the matrices."""
ELEMENT_TYPES: Mapping[ElementType, int] = {"float32": FLOAT, "float16": FLOAT16}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class AddedProduct:
    """The product of low rank that is added to one layer."""

    layer: LinearLayer
    narrow: npt.NDArray[np.float32]
    """[in, ranks]"""
    wide: npt.NDArray[np.float32]
    """[ranks, out]"""
    owners: tuple[int, ...]
    """[ranks]: the adapter that each rank belongs to."""


def open_with_adapters(session: OnnxRuntimeSession, read: Callable[[], Mapping[str, Changes]]) -> OnnxRuntimeSession:
    """Open the session's graph a second time, with the adapters that `read` returns, by name.

    `read` is called once more for a verifier of drafts. Raises `PackageError` for an adapter of another model.
    """
    adapters, layers = read(), linear_layers(session)
    for name, changes in adapters.items():
        check_adapter(name, changes, layers)
    opened = open_variant(session, with_adapters(session.model(), layers, list(adapters.values())))

    def model() -> bytes:
        return with_adapters(session.model(), layers, list(read().values()))

    return dataclasses.replace(opened, adapters=tuple(adapters), own_model=model)


def linear_layers(session: OnnxRuntimeSession) -> LinearLayers:
    """The record of a session's linear layers; raises `PackageError` if it has none."""
    return LinearLayers.from_metadata(session.ort.get_modelmeta().custom_metadata_map)


def check_adapter(name: str, changes: Changes, layers: LinearLayers) -> None:
    """Raise `PackageError` for an adapter whose names or shapes are not those of the graph."""
    inputs = {parameter: layer.inputs for layer in layers.layers for parameter, _ in layer.parameters}
    outputs = dict[str, int]()
    for parameter, here in (each for layer in layers.layers for each in layer.parameters):
        outputs[parameter] = outputs.get(parameter, 0) + len(here)
    for parameter, change in changes.items():
        if parameter not in inputs:
            raise PackageError(
                f"the adapter {name} changes {parameter}, which is no linear layer of this graph; "
                "take an adapter of this model, or merge it: onnx-textgen export BASE --adapter DIR"
            )
        sizes, found = (inputs[parameter], outputs[parameter]), (change.narrow.shape[0], change.wide.shape[1])
        if found != sizes:
            raise PackageError(
                f"the adapter {name} changes {parameter} from {found[0]} to {found[1]} numbers, and this model has {sizes[0]} "
                f"and {sizes[1]}; take an adapter of this model"
            )


def with_adapters(model: bytes, layers: LinearLayers, adapters: list[Changes]) -> bytes:
    """The model with the products of its changed layers, and for several adapters an input `adapter_mask` [batch, 1, adapters]."""
    if sum(bytes_of(layer, adapters) for layer in layers.layers) > MOST_BYTES:
        raise PackageError("its adapters take more than 2 GB together; take fewer, or adapters of lower ranks")
    added = {each.layer.output: each for layer in layers.layers if (each := make_product(layer, adapters)) is not None}
    kind = layers.element_type
    whole = Message(model)
    graph = whole.messages(MODEL.GRAPH)[0]
    masks = Masks()
    nodes = list[bytes | Message]()
    for content in graph.contents(GRAPH.NODE):
        node = Message(content)
        names = node.texts(NODE.OUTPUT)
        if changed := [name for name in names if name in added]:
            node.replace(NODE.OUTPUT, [name_before(name) if name in added else name for name in names])
            nodes.append(node)
            for product in map(added.pop, changed):
                if len(adapters) > 1:
                    nodes += masks.nodes_for(product)
                nodes += product_nodes(product, masks.name_for(product))
                graph.add(GRAPH.INITIALIZER, *constants(product, kind))
        else:
            nodes.append(content)
    if added:
        raise PackageError(f"its graph has no value {next(iter(added))!r:.80}, which its record names; export the model again")
    graph.replace(GRAPH.NODE, [each if isinstance(each, bytes) else bytes(each) for each in nodes])
    if masks.names:
        graph.add(GRAPH.INPUT, make_value_info(ADAPTER_MASK, ELEMENT_TYPES[kind], ["batch", 1, len(adapters)]))
        graph.add(GRAPH.INITIALIZER, *masks.constants())
    whole.replace(MODEL.GRAPH, [graph])
    return bytes(whole)


def bytes_of(layer: LinearLayer, adapters: list[Changes]) -> int:
    """Bytes of what the adapters add to a layer."""
    names = {name for name, _ in layer.parameters}
    ranks = sum(changes[name].rank for changes in adapters for name in names & changes.keys())
    return 4 * ranks * (layer.inputs + layer.outputs)


def make_product(layer: LinearLayer, adapters: list[Changes]) -> AddedProduct | None:
    """Return what the adapters add to a layer; None if they leave it unchanged."""
    narrow, wide, owners = list[npt.NDArray[np.float32]](), list[npt.NDArray[np.float32]](), list[int]()
    starts = np.cumsum([0, *(len(outputs) for _, outputs in layer.parameters)])
    for owner, changes in enumerate(adapters):
        for parameter in dict.fromkeys(name for name, _ in layer.parameters):
            if (change := changes.get(parameter)) is None:
                continue
            narrow.append(change.narrow)
            wide.append(placed(change, parameter, layer, starts))
            owners += [owner] * change.rank
    if not owners:
        return None
    columns, rows = np.concatenate(narrow, axis=1), np.concatenate(wide)
    if layer.divisors is not None:
        columns = columns * layer.divisors[:, None]
    if layer.output_divisors is not None:
        rows = rows / layer.output_divisors
    return AddedProduct(layer, columns, rows, tuple(owners))


def placed(change: LowRank, parameter: str, layer: LinearLayer, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The wide matrix [rank, out], with zeros for outputs of other parameters."""
    found = np.zeros((change.rank, layer.outputs), np.float32)
    for start, (name, outputs) in zip(starts, layer.parameters, strict=False):
        if name == parameter:
            found[:, start : start + len(outputs)] = change.wide[:, outputs]
    return found


class Masks:
    """The masks of ranks, each made once for all layers whose ranks belong to the same adapters."""

    def __init__(self) -> None:
        self.names: dict[tuple[tuple[int, ...], int], str] = {}
        """By the owners of the ranks, and the dimensions of the layer."""

    def name_for(self, product: AddedProduct) -> str | None:
        """The name of a product's mask; None if there are no masks."""
        return self.names.get((product.owners, product.layer.dimensions))

    def nodes_for(self, product: AddedProduct) -> Iterator[Message]:
        """The nodes that make a product's mask, [batch, 1, ranks] or [batch, 1, 1, ranks], unless it was made already."""
        key = product.owners, product.layer.dimensions
        if key in self.names:
            return
        self.names[key] = name = f"{ADAPTER_MASK}.{len(self.names)}"
        if product.layer.dimensions == 3:
            yield make_node("Gather", [ADAPTER_MASK, f"{name}.owners"], [name], axis=2)
        else:
            yield make_node("Gather", [ADAPTER_MASK, f"{name}.owners"], [f"{name}.flat"], axis=2)
            yield make_node("Unsqueeze", [f"{name}.flat", f"{name}.axis"], [name])

    def constants(self) -> Iterator[Message]:
        """The owners of the ranks of each mask."""
        for (owners, dimensions), name in self.names.items():
            yield make_tensor(f"{name}.owners", np.array(owners, "<i8").tobytes(), [len(owners)], INT64)
            if dimensions == 4:
                yield make_tensor(f"{name}.axis", np.array([1], "<i8").tobytes(), [1], INT64)


def name_before(output: str) -> str:
    """Name of a layer's output before an adapter's product is added."""
    return f"{output}.before_adapters"


def product_nodes(product: AddedProduct, mask: str | None) -> Iterator[Message]:
    """The nodes that add the product to the layer's output; mask: None where all ranks are of one adapter."""
    name = product.layer.output
    ranks = f"{name}.ranks"
    yield make_node("MatMul", [product.layer.input, f"{name}.lora_A"], [ranks])
    if mask is not None:
        yield make_node("Mul", [ranks, mask], [f"{name}.own_ranks"])  # a Where is slower
        ranks = f"{name}.own_ranks"
    yield make_node("MatMul", [ranks, f"{name}.lora_B"], [f"{name}.change"])
    yield make_node("Add", [name_before(name), f"{name}.change"], [name])


def constants(product: AddedProduct, kind: ElementType) -> Iterator[Message]:
    """The two matrices of a product."""
    for ending, array in ((".lora_A", product.narrow), (".lora_B", product.wide)):
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(array, np.dtype(kind).newbyteorder("<"))
        if not np.isfinite(stored).all():
            raise PackageError(f"an adapter has numbers beyond {kind}, for {product.layer.output}; merge it, or leave it out")
        yield make_tensor(product.layer.output + ending, stored.tobytes(), stored.shape, ELEMENT_TYPES[kind])
