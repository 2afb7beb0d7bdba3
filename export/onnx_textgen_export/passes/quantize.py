"""Store matrices in 8 or 4 bits, weight-only: activations, norms, biases and tables of positions stay as they are.

At the target `ort` a product becomes MatMulNBits and the embedding's Gather GatherBlockQuantized; a tied output layer shares the
embedding's bytes. At the target `standard` a product reads its weight through DequantizeLinear, which ONNX Runtime turns into
MatMulNBits when it loads the graph, and the embedding gathers 8-bit rows before they are dequantised (Gather takes no 4-bit ones).
Weights are read when the file is written, one at a time. Matrices of more dimensions (mixtures of experts) are left as they are,
and so are the routers of a mixture, whose rounding would send tokens elsewhere.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
from onnx_ir.passes import common

from onnx_textgen.artifact import Target

from ..errors import ExportError
from .experts import StackTensor
from .linear import add_constant, replace, sizes_of
from .products import Part, Product, find_products, find_tables, part_of
from .quantization import Bits, Quantization
from .quantize_experts import quantize_experts
from .quantizers import make_quantizer
from .rounding import Rounding, Roundings
from .stored import LastResult, Packed, Plain, SameBytes, store_lazily

SMALLEST_TABLE = 1024
"""Embedding rows below which a table (of positions, say) is not worth its loss."""


def quantize(model: ir.Model, options: Quantization, target: Target = "ort") -> Roundings:
    """Quantise `model` in place; returns what that does to the module's parameters.

    Raises `ExportError` where the target has no operator for what is asked.
    """
    if target == "standard" and options.method == "hqq":
        raise ExportError("hqq has fractional zero points, which no operator of the ONNX standard takes; take k_quant")
    graph = model.graph
    products = find_products(graph)
    logits = next(value for value in graph.outputs if value.name == "logits")
    parts = {node: part_of(product, products, logits) for node, product in products.items()}
    tables = [node for node in find_tables(graph, SMALLEST_TABLE) if can_gather(node, options)]
    change = Change(graph, options, target, LastResult(), tables=frozenset(id(node.inputs[0]) for node in tables))
    for node in tables:
        change.replace_gather(node, heads=[p for n, p in products.items() if parts[n] == "head" and p.weight is node.inputs[0]])
    for node, product in products.items():
        if parts[node] != "router":
            change.replace_product(product, parts[node])
    if target == "ort":
        change.note_experts()
        quantize_experts(graph, options, change.last)
        model.opset_imports["com.microsoft"] = 1
    common.RemoveUnusedNodesPass()(model)  # the weights in float32, and what turned them round
    change.roundings.see_plain(graph)
    return change.roundings


def can_gather(node: ir.Node, options: Quantization) -> bool:
    """Whether the table's rows are whole blocks, as the gathering operators want them."""
    assert node.inputs[0] is not None, "find_tables looked at it"
    return sizes_of(node.inputs[0])[1] % options.block_size == 0


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One quantisation of one graph."""

    graph: ir.Graph
    options: Quantization
    target: Target
    last: LastResult
    tables: frozenset[int]
    """Ids of the weights that are gathered from."""
    made: dict[tuple[int, bool], dict[str, ir.Value]] = dataclasses.field(default_factory=dict)
    """The tensors of each weight, by its id and whether it is read as [in, out]."""
    roundings: Roundings = dataclasses.field(default_factory=Roundings)

    def bits(self, part: Part) -> Bits:
        """Of a product."""
        if part == "head":
            return self.options.head_bits or self.options.bits
        if part in ("values", "feed-forward out"):
            return self.options.sensitive_bits or self.options.bits
        return self.options.bits

    def tensors(self, weight: ir.Value, bits: Bits, *, inputs_first: bool, product: bool) -> dict[str, ir.Value]:
        """A weight's tensors, made once; `product`: for a product and not only for a table."""
        key = (id(weight), inputs_first)
        if key not in self.made:
            first, second = sizes_of(weight)
            outputs, inputs = (second, first) if inputs_first else (first, second)
            gathered, block = id(weight) in self.tables and not inputs_first, self.options.block_size
            layout: Packed | Plain
            if self.target == "ort":
                fractional = self.options.method == "hqq" and bits == 4 and not gathered
                zeros = "none" if self.options.symmetric else "fractional" if fractional else "whole"
                layout = Packed(outputs, inputs, bits, block, zeros, flat=not product)  # type: ignore[arg-type]
            else:
                layout = Plain(outputs, inputs, bits, block, self.options.symmetric, rows=gathered)
            find = make_quantizer(self.options, bits, gathered=gathered)
            rounding = Rounding(self.options, bits, gathered, inputs_first)
            self.roundings.add(weight.const_value, rounding, product=product, table=gathered)
            self.made[key] = store_lazily(self.graph, weight, layout, find, self.last, inputs_first=inputs_first)
        return self.made[key]

    def note_experts(self) -> None:
        """Note what `quantize_experts` is about to round."""
        bits = self.options.bits
        for node in self.graph:
            if node.op_type == "MoE":
                for value in (node.inputs[2], node.inputs[4]):
                    tensor = value.const_value if value is not None else None
                    stack = tensor.stack if isinstance(tensor, StackTensor) else None
                    rounding = Rounding(self.options, bits, gathered=True, inputs_first=stack is not None and stack.transposed)
                    self.roundings.add(stack.source if stack is not None else tensor, rounding, product=True, table=False)

    def replace_gather(self, node: ir.Node, heads: list[Product]) -> None:
        """Gather quantised rows; `heads` are the products that share the table."""
        weight = node.inputs[0]
        assert weight is not None, "find_tables looked at it"
        shared = any(not head.inputs_first for head in heads)
        bits: Bits = 8 if self.target == "standard" else self.bits("head") if shared else self.options.bits
        made = self.tensors(weight, bits, inputs_first=False, product=shared)
        if self.target == "standard":
            rows = [ir.node("Gather", [value, node.inputs[1]]) for value in made.values()]
            self.graph.insert_before(node, rows)
            axis = len(node.outputs[0].shape) - 1 if node.outputs[0].shape is not None else 2
            taken = [gather.outputs[0] for gather in rows]
            replace(self.graph, node, [ir.node("DequantizeLinear", taken, {"axis": axis, "block_size": self.options.block_size})])
            return
        codes = made["codes"]
        if shared:
            count, blocks, block_bytes = sizes_of(codes)
            codes = add_constant(self.graph, f"{weight.name}.rows", SameBytes(codes, (count, blocks * block_bytes)))
        attributes = {"bits": bits, "block_size": self.options.block_size, "gather_axis": 0, "quantize_axis": 1}
        inputs = [codes, node.inputs[1], made["scales"], *([made["zeros"]] if "zeros" in made else [])]
        replace(self.graph, node, [ir.node("GatherBlockQuantized", inputs, attributes, domain="com.microsoft")])

    def replace_product(self, product: Product, part: Part) -> None:
        """Multiply with a quantised weight; a Gemm's bias becomes an Add."""
        node, bits = product.node, self.bits(part)
        made = self.tensors(product.weight, bits, inputs_first=product.inputs_first, product=True)
        new = self.nbits(product, made) if self.target == "ort" else self.dequantised(product, made)
        if product.bias is not None:
            self.graph.insert_before(node, new)
            new = ir.node("Add", [new.outputs[0], product.bias])
        replace(self.graph, node, [new])

    def nbits(self, product: Product, made: dict[str, ir.Value]) -> ir.Node:
        """A MatMulNBits."""
        inputs, outputs = product.sizes
        code_shape = sizes_of(made["codes"])
        attributes = {
            "K": inputs,
            "N": outputs,
            "bits": code_shape[2] * 8 // self.options.block_size,
            "block_size": self.options.block_size,
            "accuracy_level": self.options.accuracy_level,
        }
        values = [product.node.inputs[0], made["codes"], made["scales"], *([made["zeros"]] if "zeros" in made else [])]
        return ir.node("MatMulNBits", values, attributes, domain="com.microsoft", name=product.node.name)

    def dequantised(self, product: Product, made: dict[str, ir.Value]) -> ir.Node:
        """A MatMul behind DequantizeLinear, in the form [in, out] that ONNX Runtime fuses; a table is turned round first."""
        values = list(made.values())
        if id(product.weight) in self.tables and not product.inputs_first:
            turned = [ir.node("Transpose", [value], {"perm": [1, 0]}) for value in values]
            self.graph.insert_before(product.node, turned)
            values = [node.outputs[0] for node in turned]
        attributes = {"axis": 0, "block_size": self.options.block_size}
        weight = ir.node("DequantizeLinear", values, attributes)
        self.graph.insert_before(product.node, weight)
        return ir.node("MatMul", [product.node.inputs[0], weight.outputs[0]], name=product.node.name)
