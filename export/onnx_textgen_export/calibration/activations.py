"""Products that lose too much by rounding their inputs to 8 bits, and compute in float32 instead.

At accuracy level 4 the inputs of a product are rounded in blocks with a common scale. In a few layers the first tokens have inputs
hundreds of times as large as usual ("massive activations", Sun et al. 2024), which round their neighbours in a block to nothing; a
single such product can cost ten times as much as all others together. The package as it runs shows which: every product of 4 bits
also multiplies what rounding to 127 steps for each block takes from its inputs, which gives the error of its outputs. Products of 8
bits keep level 4, because ONNX Runtime's kernels without rounding unpack the whole matrix for every token.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_textgen.backends.onnxruntime_session import make_options
from onnx_textgen.inference.graph_runner import Logits

from ..errors import as_export_error
from ..passes.graph.accuracy import FLOAT32, ROUNDED, accuracy_of, set_accuracy
from ..passes.graph.linear import replace, shared_constant
from ..proof.same_weights import opened_after
from ..proof.scenarios import decoders_of, fed, open_encoder
from ..reports import Report
from .quality import Measures, QualityMeter, summaries

COSTLY = 0.5
"""Largest error of an output, relative to the usual size of outputs, from which a product is costly. Others have 0.01 to 0.1; an
error of 0.4 at the first token of SmolLM2 changes no prediction, 0.9 at a later token of Qwen2.5-Coder-0.5B does."""
WORTH_FLOAT32 = 0.95
"""Products compute in float32 if the loss falls below this share, because they take two to three times as long."""
MOST_ROWS = 32
"""Rows of a product whose errors are computed: those whose inputs lose most."""
OUTPUTS = {"TopK": 2, "Split": 2}
"""Of operators that have more than one."""


class InputRounding:
    """Lets the products that lose too much by rounding their inputs keep them; every product is examined once."""

    def __init__(self, meter: QualityMeter) -> None:
        self.meter = meter
        self.examined, self.unrounded = set[str](), set[str]()
        """The codes of products, and of those that compute in float32."""

    def measure(self, graph: Path, report: Report) -> tuple[Measures, tuple[str, ...]]:
        """Set the products of a package, in all graphs of its folder, and measure it.

        Returns its quality, and the layers that do not round their inputs.
        """
        products = [codes_of(node) for node in rounded_products(ir.load(graph).graph)]
        compute_at(graph.parent, self.unrounded.intersection(products), FLOAT32)
        if self.examined.issuperset(products):
            found = self.meter.measure(graph, "search", report)
        else:
            found = self.examine(graph, report)
            self.examined.update(products)
        return found, tuple(layer_name(name) for name in products if name in self.unrounded)

    def examine(self, graph: Path, report: Report) -> Measures:
        """Find the costly products of a package, let them compute in float32 if that makes it better, and return its quality."""
        found, costly = self.find_costly(graph, report)
        if not costly:
            return found
        compute_at(graph.parent, costly, FLOAT32)
        better = self.meter.measure(graph, "search", report)
        before, after = (summaries([each])["all"].kl_mean for each in (found, better))
        if after < WORTH_FLOAT32 * before:
            self.unrounded.update(costly)
            return better
        compute_at(graph.parent, costly, ROUNDED)
        return found

    def find_costly(self, graph: Path, report: Report) -> tuple[Measures, list[str]]:
        """The quality of a package, and the names of the codes of products that lose too much."""
        source, names, norms = self.meter.source, list[str](), list[list[npt.NDArray[np.float32]]]()

        def add_norms(model: ir.Graph) -> None:
            names.extend(compare_with_unrounded(model, self.examined))

        def feed(text: list[int]) -> Iterator[Logits]:
            decoder = new_decoder(text)
            for logits in fed(decoder, text):
                norms.append([each.ravel() for each in decoder.last_extra_outputs])
                yield logits

        with as_export_error(), opened_after(graph, add_norms, make_options(None)) as session:
            outputs = [output for place in range(len(names)) for output in outputs_of(place)]
            new_decoder = decoders_of(source, session, encoder=open_encoder(source, graph), extra_outputs=outputs)
            found = self.meter.measure_fed(feed, "search", report)
        sizes = [np.concatenate(each) for each in zip(*norms, strict=True)]
        costly = [name for name, errors, usual in zip(names, sizes[::2], sizes[1::2], strict=True) if is_costly(errors, usual)]
        return found, costly


def is_costly(errors: npt.NDArray[np.float32], outputs: npt.NDArray[np.float32]) -> bool:
    """Return whether the largest error of a token's outputs is large for the usual size of outputs; both are norms [tokens]."""
    return len(errors) > 0 and bool(errors.max() > COSTLY * np.median(outputs))


def outputs_of(place: int) -> tuple[str, str]:
    """The names of the outputs that tell the norms of errors and of outputs of a product."""
    return f"rounded_inputs.error.{place}", f"rounded_inputs.size.{place}"


def rounded_products(graph: ir.Graph) -> list[ir.Node]:
    """The products of 4 bits that round their inputs."""
    return [node for node in graph if is_four_bits(node) and accuracy_of(node) == ROUNDED]


def compare_with_unrounded(graph: ir.Graph, known: Container[str] = ()) -> list[str]:
    """Add outputs that compare products of 4 bits with ones of unrounded inputs, but for known ones; returns their codes' names."""
    products = [node for node in rounded_products(graph) if codes_of(node) not in known]
    names = [codes_of(node) for node in products]
    for place, node in enumerate(products):
        for norm, name in zip(with_norms(graph, node), outputs_of(place), strict=True):
            norm.name, norm.type = name, ir.TensorType(ir.DataType.FLOAT)
            graph.outputs.append(norm)
    return names


def with_norms(graph: ir.Graph, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Add to a product the norms of its error for the tokens that lose most, and of its outputs for each token.

    A product is linear: from what its inputs lose by rounding, as further rows, it makes the error. A second product with unrounded
    inputs would hold the matrix in memory once more, and take two to three times as long.
    """
    size, inputs, new = node.attributes["block_size"].as_int(), node.attributes["K"].as_int(), list[ir.Node]()

    def add(operator: str, *given: ir.Value | float | list[int], output: int = 0, **attributes: int) -> ir.Value:
        values = [each if isinstance(each, ir.Value) else constant(graph, each) for each in given]
        new.append(ir.node(operator, values, attributes, num_outputs=OUTPUTS.get(operator, 1)))
        return new[-1].outputs[output]

    given, *weight = node.inputs
    assert given is not None, "the operator has inputs"
    rows = add("Reshape", given, [-1, inputs])
    blocks = add("Reshape", add("Pad", rows, [0, 0, 0, -inputs % size]), [-1, -(-inputs // size), size])
    steps = add("Max", add("Div", add("ReduceMax", add("Abs", blocks), [-1]), 127.0), float(np.finfo(np.float32).tiny))
    rounded = add("Mul", add("Round", add("Div", blocks, steps)), steps)
    lost = add("Slice", add("Reshape", add("Sub", blocks, rounded), [0, -1]), [0], [inputs], [-1])
    losses = add("ReduceL2", lost, [-1], keepdims=0)
    count = add("Min", add("Shape", losses), [MOST_ROWS])
    worst = add("Gather", lost, add("TopK", losses, count, output=1))
    new.append(ir.node(node.op_type, [add("Concat", rows, worst, axis=0), *weight], dict(node.attributes), domain=node.domain))
    add("Split", new[-1].outputs[0], add("Concat", add("Shape", losses), count, axis=0), axis=0)
    kept, errors = new[-1].outputs
    norms = tuple(add("ReduceL2", each, [-1], keepdims=0) for each in (errors, kept))
    add("Reshape", kept, add("Concat", add("Shape", given, end=-1), [-1], axis=0))
    replace(graph, node, new)
    return norms[0], norms[1]


def constant(graph: ir.Graph, value: float | list[int]) -> ir.Value:
    """An initializer of a float32 number, a whole number, or whole numbers."""
    return shared_constant(graph, f"rounded_inputs.{value}", np.array(value, np.float32 if isinstance(value, float) else np.int64))


def compute_at(folder: Path, names: Collection[str], level: int) -> None:
    """Set the accuracy level of the products of 4 bits with these codes, in all graphs of a folder."""
    if not names:
        return
    wanted = frozenset(names)
    for path in folder.rglob("*.onnx"):
        model = ir.load(path)
        found = [node for node in model.graph if is_four_bits(node) and codes_of(node) in wanted]
        for node in found:
            set_accuracy(node, level)
        if found:
            ir.save(model, path)


def is_four_bits(node: ir.Node) -> bool:
    """Return whether a node is a product with a matrix of 4 bits."""
    return node.op_type == "MatMulNBits" and node.attributes["bits"].as_int() == 4


def codes_of(node: ir.Node) -> str:
    """The name of a product's codes."""
    codes = node.inputs[1]
    assert codes is not None, "the operator has them"
    return str(codes.name)


def layer_name(codes: str) -> str:
    """The name of a layer, from that of its codes.

    >>> layer_name("module.model.layers.2.mlp.down_proj.weight.transposed.codes")
    'model.layers.2.mlp.down_proj'
    """
    return codes.removeprefix("module.").removesuffix(".codes").removesuffix(".transposed").removesuffix(".weight")
