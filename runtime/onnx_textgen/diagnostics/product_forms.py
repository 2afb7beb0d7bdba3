"""The products with quantised weights in a package's graph: their sizes, how their weights are stored, what an export could make.

They are the nodes MatMulNBits of a graph at int8 or int4 and target `ort`. Experts (QMoE) have one form only, and are left out.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from ..backends.signature import LOGITS
from ..backends.windowed_graph import attributes
from ..errors import OptionError, PackageError
from ..files.graph_file import map_model
from ..files.onnx_graph import FLOAT, FLOAT16, GRAPH, MODEL, NODE, TENSOR
from ..files.onnx_wire import Message
from ..package.foreign import graph_of, is_foreign
from ..package.manifest import FLOAT32_LEVELS, LARGEST_SIZE, Manifest
from ..package.reading import read_manifest

OPERATOR = "MatMulNBits"
MOST_BYTES = 2**26
"""Limit for a graph's file; the weights of a package are in another file."""
BITS, BLOCK_SIZES = (2, 4, 8), (16, 32, 64, 128, 256)
EXPORTED_BLOCKS = {4: (32, 64, 128), 8: (32, 64)}
"""The sizes of blocks that are compared, by bits. Blocks of 16 are smaller than what fast kernels have."""
ZEROS_INPUT = 3
Zeros = Literal["none", "whole", "real"]


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """How the weights of a product are stored, and what it computes in.

    >>> Form(4, 64, "whole").describe(), Form(4, 64, "whole").export_options
    ('int4, blocks of 64, zero points', '--precision int4 --block-size 64 --asymmetric')
    """

    bits: int
    block_size: int
    zeros: Zeros = "none"
    """Zero points of blocks: none, whole numbers, or real ones, which only the quantizer `hqq` makes."""
    accuracy_level: int = 4
    """What ONNX Runtime multiplies in: 4 is int8, 1 float32, 0 leaves the choice to it."""
    is_float16: bool = False
    """Whether inputs, scales and outputs are float16; else they are float32."""

    def describe(self) -> str:
        """In words, for a table."""
        zeros = {"none": "", "whole": ", zero points", "real": ", real zero points"}[self.zeros]
        return f"int{self.bits}, blocks of {self.block_size}{zeros}"

    @property
    def export_options(self) -> str:
        """The options of `onnx-textgen export` that make it."""
        words = [f"--precision int{self.bits} --block-size {self.block_size}"]
        words.append("--symmetric" if self.zeros == "none" else "--asymmetric")
        words += ["--exact"] if self.accuracy_level in FLOAT32_LEVELS else []
        words += ["--activations fp16"] if self.is_float16 else []
        return " ".join(words)

    @property
    def bytes_per_weight(self) -> float:
        """Bytes in the file: the code, and a share of the scale (a byte) and of the zero point."""
        zeros = {"none": 0.0, "whole": self.bits / 8, "real": 4.0}[self.zeros]
        return self.bits / 8 + (1 + zeros) / self.block_size


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A product of activations [tokens, inputs] with stored weights [outputs, inputs]."""

    inputs: int
    outputs: int
    form: Form
    is_head: bool = False
    """Whether its outputs are logits: of a prompt, they are computed for the last token only."""

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.inputs * self.outputs


Products = collections.Counter[Product]
"""How often a graph has each product."""


def package_products(place: Path) -> tuple[Products, Manifest]:
    """The products of the package at `place`; raises `OptionError` if it has none that an export could store otherwise."""
    if is_foreign(place):
        raise OptionError("--forms compares what onnx-textgen export can make, and another exporter made this folder; leave it out")
    graph = graph_of(place)
    manifest = read_manifest(graph.parent)
    if manifest.encoder is not None:
        raise OptionError("--forms compares forms of decoders, and this is an encoder-decoder; leave it out")
    rounded = manifest.quantization
    if "as_stored" in rounded and "block_size" not in rounded:
        raise OptionError("this package keeps the numbers of a quantised source, so its form is the source's; leave out --forms")
    products = read_products(graph, is_float16=manifest.is_float16)
    if not products:
        raise OptionError(
            f"--forms compares forms of quantised weights, and this package ({manifest.precision}, target {manifest.target}) has "
            f"no {OPERATOR}; leave it out, or export with --precision int8 or int4 and --target ort"
        )
    return products, manifest


def read_products(path: Path, *, is_float16: bool = False) -> Products:
    """The products of a graph's file, counted; raises `PackageError` for a file that is no graph, and for impossible sizes."""
    with map_model(path) as content:
        if len(content) > MOST_BYTES:
            raise PackageError(f"{path.name} is larger than any graph of this project; export the model again")
        (graph,) = Message(content[:]).messages(MODEL.GRAPH)
    nodes = graph.messages(GRAPH.NODE)
    types = {tensor.text(TENSOR.NAME): tensor.number(TENSOR.ELEMENT_TYPE) for tensor in graph.messages(GRAPH.INITIALIZER)}
    heads = outputs_before(LOGITS, nodes)
    return collections.Counter(
        read_product(node, types, is_head=node.texts(NODE.OUTPUT)[0] in heads, is_float16=is_float16)
        for node in nodes
        if is_product(node)
    )


def is_product(node: Message) -> bool:
    """Whether a node is a product with quantised weights."""
    return node.text(NODE.OPERATOR) == OPERATOR and bool(node.texts(NODE.OUTPUT))


def read_product(node: Message, types: dict[str, int], *, is_head: bool, is_float16: bool) -> Product:
    """Read a node; `types` are the element types of initializers. Raises `PackageError` for sizes that no product has."""
    found = attributes(node)
    inputs, outputs, block_size = (found.get(name, 0) for name in ("K", "N", "block_size"))
    bits, level = found.get("bits", 4), found.get("accuracy_level", 0)
    is_possible = bits in BITS and block_size in BLOCK_SIZES and level in range(5)
    if not (is_possible and 0 < inputs <= LARGEST_SIZE and 0 < outputs <= LARGEST_SIZE):
        raise PackageError(f"its graph has a {OPERATOR} with sizes that none has, {found!s:.100}; export the model again")
    name = "".join(node.texts(NODE.INPUT)[ZEROS_INPUT : ZEROS_INPUT + 1])
    zeros: Zeros = "none" if not name else "real" if types.get(name) in (FLOAT, FLOAT16) else "whole"
    return Product(inputs, outputs, Form(bits, block_size, zeros, level, is_float16), is_head)


def outputs_before(name: str, nodes: Sequence[Message]) -> set[str]:
    """The outputs of the last products before a value, which other operators may join or change."""
    makers = {output: node for node in nodes for output in node.texts(NODE.OUTPUT)}
    found, seen, pending = set[str](), set[str](), [name]
    while pending:
        value = pending.pop()
        if value in seen or (node := makers.get(value)) is None:
            continue
        seen.add(value)
        if is_product(node):
            found.add(value)
        else:
            pending += node.texts(NODE.INPUT)
    return found


def other_forms(products: Products, width: int) -> Iterator[Form]:
    """The forms that an export of a model of that width can make, and that would change one of its products.

    An embedding is quantised in whole blocks only, so blocks have to divide the width.
    """
    first = max(products, key=lambda product: products[product] * product.weights).form
    for bits, sizes in EXPORTED_BLOCKS.items():
        kinds: tuple[Zeros, ...] = ("none", "whole") if bits == 4 else ("none",)
        for zeros, size in ((zeros, size) for zeros in kinds for size in sizes if width % size == 0):
            form = dataclasses.replace(first, bits=bits, block_size=size, zeros=zeros)
            if any(form_in(product, form, products) != product.form for product in products):
                yield form


def form_in(product: Product, form: Form, products: Iterable[Product]) -> Form:
    """The form that a product of a package has if the package is exported in another form.

    Where an int4 package has 8 bits, its budget required them: an export at 4 bits in another form keeps them. Ternary weights of 2
    bits are kept in any form.
    """
    is_kept = product.form.bits == 2 or (form.bits == 4 and product.form.bits == 8 and has_four_bits(products))
    return product.form if is_kept else form


def has_four_bits(products: Iterable[Product]) -> bool:
    """Whether one of the products has weights of 4 bits."""
    return any(product.form.bits == 4 for product in products)
