"""Store matrices in 8 or 4 bits, or in 2 if that is lossless; norms, biases and tables of positions are unchanged.

At the target `ort` a product becomes MatMulNBits and the embedding's Gather GatherBlockQuantized; a tied output layer shares the
embedding's bytes. At the target `standard` a product reads its weight through DequantizeLinear, which ONNX Runtime turns into
MatMulNBits when it loads the graph, and the embedding gathers 8-bit rows before they are dequantised (Gather takes no 4-bit ones).
Weights are read when the file is written, one at a time. The routers of a mixture of experts are unchanged, because rounding them
would select other experts; `stored_experts` stores the experts themselves.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from onnx_textgen.package.manifest import FLOAT32_LEVELS, Target

from ...errors import ExportError
from ..experts import StackTensor
from ..graph.linear import add_constant, replace, sizes_of
from ..graph.products import Part, Product, find_products, find_tables, part_of
from .layouts import Arrays, LastResult, Packed, Plain, SameBytes, Zeros, store_lazily
from .lossless import TERNARY, Form, Order, in_order, lossless_form, order_of, stored_rows
from .options import SMALLEST_TABLE, Bits, Quantization
from .plan import FoundCodes, Plan
from .quantizers import make_quantizer, quantize_matrix
from .rounding import Rounding, Roundings
from .smoothing import Norm, find_maker
from .split_head import split_matrices
from .stored_experts import quantize_experts


@dataclasses.dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight in the graph."""

    values: dict[str, ir.Value]
    """By kind: codes, scales and, if there are any, zeros or offsets."""
    bits: Bits
    block_size: int
    order: Order | None = None
    """The inputs of its products, in the order of its blocks; None: as they come."""
    middle: int = 0
    """The code that products take for zero, while its offsets count from code 0."""


def quantize(model: ir.Model, options: Quantization, target: Target = "ort", plan: Plan | None = None) -> Roundings:
    """Quantise `model` in place; returns what that does to the module's parameters.

    plan: codes found by calibration; matrices that it does not name are rounded according to `options`.

    Raises `ExportError` if the target has no operator for these options.
    """
    if target == "standard" and options.method == "hqq":
        raise ExportError("hqq has fractional zero points, which no operator of the ONNX standard supports; take k_quant")
    graph = model.graph
    if plan is not None:
        split_matrices(graph, plan.splits)
    products = find_products(graph)
    logits = next((value for value in graph.outputs if value.name == "logits"), None)
    parts = {node: part_of(product, products, logits) for node, product in products.items()}
    tables = [node for node in find_tables(graph, SMALLEST_TABLE) if can_gather(node, options)]
    tabled = frozenset(id(node.inputs[0]) for node in tables)
    roundings = Roundings(arithmetic=options.activations or "fp32")
    change = Change(graph, options, target, LastResult(), tables=tabled, plan=plan, roundings=roundings)
    if plan is not None:
        smooth(graph, products, plan)
    for node in tables:
        change.replace_gather(node, heads=[p for n, p in products.items() if parts[n] == "head" and p.weight is node.inputs[0]])
    for node, product in products.items():
        if parts[node] != "router":
            change.replace_product(product, parts[node])
    if target == "ort":
        change.note_experts()
        quantize_experts(graph, options, change.last)
        model.opset_imports["com.microsoft"] = 1
    common.RemoveUnusedNodesPass()(model)  # the weights in float32, and their Transposes
    change.roundings.see_plain(graph)
    return change.roundings


def smooth(graph: ir.Graph, products: dict[ir.Node, Product], plan: Plan) -> None:
    """Divide the inputs of products whose codes were found for smoothed inputs, if a norm computes them."""
    for product in products.values():
        found = plan.found.get(str(product.weight.name))
        if found is not None and found.smoothing is not None and isinstance(maker := find_maker(product, products), Norm):
            maker.divide(graph, found.smoothing)


def can_gather(node: ir.Node, options: Quantization) -> bool:
    """Return whether the table's rows consist of whole blocks, as the gathering operators require."""
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
    plan: Plan | None = None
    made: dict[tuple[int, bool], StoredWeight] = dataclasses.field(default_factory=dict)
    """The tensors of each weight, by its id and whether it is read as [in, out]."""
    roundings: Roundings = dataclasses.field(default_factory=Roundings)

    def found(self, weight: ir.Value) -> FoundCodes | None:
        """A weight's codes, if the plan has them."""
        return self.plan.found.get(str(weight.name)) if self.plan is not None else None

    def tensors(self, weight: ir.Value, bits: Bits, *, inputs_first: bool, product: bool) -> StoredWeight:
        """A weight's tensors, made once; `product`: a product reads them, not only a table."""
        key = (id(weight), inputs_first)
        if key not in self.made:
            found, gathered = self.found(weight), id(weight) in self.tables and not inputs_first
            if found is not None:
                self.made[key] = self.stored(weight, found, inputs_first=inputs_first, product=product, gathered=gathered)
            else:
                self.made[key] = self.rounded(weight, bits, inputs_first=inputs_first, product=product, gathered=gathered)
        return self.made[key]

    def rounded(self, weight: ir.Value, bits: Bits, *, inputs_first: bool, product: bool, gathered: bool) -> StoredWeight:
        """A weight that is rounded when it is written."""
        source, options = weight.const_value, self.options
        assert source is not None, "weights have data"
        form = lossless_form(source, bits, options, is_table=gathered)
        if form is TERNARY:
            options, bits = dataclasses.replace(options, block_size=form.block_size, symmetric=True, method="rtn"), 2
            self.roundings.ternary += 1
        elif form is not None:
            return self.kept(weight, form, inputs_first=inputs_first, product=product, gathered=gathered)
        block = options.block_size
        fractional = options.method == "hqq" and bits == 4 and not gathered
        zeros: Zeros = "none" if options.symmetric else "fractional" if fractional else "whole"
        find = make_quantizer(options, bits, gathered=gathered)

        def fill(arrays: Arrays) -> None:
            store = functools.partial(layout.put, arrays)
            quantize_matrix(source.numpy(), find, block, store, inputs_first=inputs_first, row_scales=bits)

        rounding = Rounding(options, bits, gathered, inputs_first)
        self.roundings.add(source, rounding, product=product, table=gathered)
        layout = self.layout(weight, bits, block, zeros, inputs_first=inputs_first, product=product, gathered=gathered)
        return StoredWeight(store_lazily(self.graph, weight, layout, fill, self.last), bits, block)

    def kept(self, weight: ir.Value, form: Form, *, inputs_first: bool, product: bool, gathered: bool) -> StoredWeight:
        """A weight whose numbers stay unchanged."""
        source = weight.const_value
        assert source is not None, "weights have data"

        def fill(arrays: Arrays) -> None:
            if (stored := stored_rows(source)) is not None:
                stored.fill(layout, arrays)
                return
            matrix = in_order(source, inputs_first=inputs_first)
            quantize_matrix(matrix, form.find, form.block_size, functools.partial(layout.put, arrays), inputs_first=inputs_first)

        self.roundings.keep(source, form, product=product, table=gathered)
        first, second = sizes_of(weight)
        outputs, inputs = (second, first) if inputs_first else (first, second)
        shift = (1 << (form.bits - 1)) - form.middle
        flat = not product
        layout = Packed(outputs, inputs, form.bits, form.block_size, form.zeros, flat=flat, scales=form.scales, shift=shift)
        values = store_lazily(self.graph, weight, layout, fill, self.last)
        return StoredWeight(values, form.bits, form.block_size, order_of(source), form.middle)

    def stored(self, weight: ir.Value, found: FoundCodes, *, inputs_first: bool, product: bool, gathered: bool) -> StoredWeight:
        """A weight whose codes calibration found."""
        assert self.plan is not None, "it has the codes"
        gains, name = self.plan.gains.get(str(weight.name)), str(weight.name)

        def fill(arrays: Arrays) -> None:
            codes = found.load(gains)
            layout.put(arrays, slice(0, codes.codes.shape[1]), codes)

        self.roundings.restore(self.plan.changes[name], product=product, table=gathered)
        zeros: Zeros = "none" if found.symmetric else "whole"
        layout = self.layout(
            weight, found.bits, found.block_size, zeros, inputs_first=inputs_first, product=product, gathered=gathered
        )
        return StoredWeight(store_lazily(self.graph, weight, layout, fill, self.last), found.bits, found.block_size)

    def layout(
        self, weight: ir.Value, bits: Bits, block_size: int, zeros: Zeros, *, inputs_first: bool, product: bool, gathered: bool
    ) -> Packed | Plain:
        """The layout of a weight's codes in tensors."""
        first, second = sizes_of(weight)
        outputs, inputs = (second, first) if inputs_first else (first, second)
        if self.target == "ort":
            return Packed(outputs, inputs, bits, block_size, zeros, flat=not product)
        return Plain(outputs, inputs, bits, block_size, zeros == "none", rows=gathered)

    def note_experts(self) -> None:
        """Record what `quantize_experts` will round."""
        bits = self.options.bits
        for node in self.graph:
            if node.op_type == "MoE":
                for value in (node.inputs[2], node.inputs[4]):
                    tensor = value.const_value if value is not None else None
                    stack = tensor.stack if isinstance(tensor, StackTensor) else None
                    transposed = stack is not None and stack.transposed
                    rounding = Rounding(self.options, bits, gathered=True, inputs_first=transposed, is_expert=True)
                    self.roundings.add(stack.source if stack is not None else tensor, rounding, product=True, table=False)

    def replace_gather(self, node: ir.Node, heads: list[Product]) -> None:
        """Gather quantised rows; `heads` are the products that share the table."""
        weight = node.inputs[0]
        assert weight is not None, "find_tables looked at it"
        shared = any(not head.inputs_first for head in heads)
        bits: Bits = 8 if self.target == "standard" else self.options.bits_of("head") if shared else self.options.bits
        made = self.tensors(weight, bits, inputs_first=False, product=shared)
        if self.target == "standard":
            rows = [ir.node("Gather", [value, node.inputs[1]]) for value in made.values.values()]
            self.graph.insert_before(node, rows)
            axis = len(node.outputs[0].shape) - 1 if node.outputs[0].shape is not None else 2
            taken = [gather.outputs[0] for gather in rows]
            replace(self.graph, node, [ir.node("DequantizeLinear", taken, {"axis": axis, "block_size": made.block_size})])
            return
        codes = made.values["codes"]
        if shared:
            count, blocks, block_bytes = sizes_of(codes)
            codes = add_constant(self.graph, f"{weight.name}.rows", SameBytes(codes, (count, blocks * block_bytes)))
        attributes = {"bits": made.bits, "block_size": made.block_size, "gather_axis": 0, "quantize_axis": 1}
        more = [value for kind, value in made.values.items() if kind not in ("codes", "offsets")]
        new = [ir.node("GatherBlockQuantized", [codes, node.inputs[1], *more], attributes, domain="com.microsoft")]
        if "offsets" in made.values:
            new += self.plus_offsets(node, new[0].outputs[0], made)
        found = self.found(weight) if shared else None
        if found is not None and found.smoothing is not None:  # the product's inputs are divided by it, but not these rows
            name = f"{weight.name}.unsmoothing"
            new.append(ir.node("Mul", [new[0].outputs[0], add_constant(self.graph, name, ir.tensor(1 / found.smoothing))]))
        replace(self.graph, node, new)

    def plus_offsets(self, node: ir.Node, rows: ir.Value, made: StoredWeight) -> list[ir.Node]:
        """Add to gathered rows [..., inputs] the offsets of their blocks, and the middle code, which is subtracted from them."""
        weight, ids, shape = node.inputs[0], node.inputs[1], node.outputs[0].shape
        assert weight is not None and shape is not None, "shapes were inferred"
        name, leading = weight.name, [0] * (len(shape) - 1)
        constants = {
            "blocks": np.array([*leading, -1, made.block_size]),
            "inputs": np.array([*leading, sizes_of(weight)[1]]),
            "last": np.array([-1]),
            "middle": np.array(made.middle, np.float32),
        }
        values = {kind: add_constant(self.graph, f"{name}.rows.{kind}", ir.tensor(array)) for kind, array in constants.items()}
        return [
            scales := ir.node("Gather", [made.values["scales"], ids]),
            offsets := ir.node("Gather", [made.values["offsets"], ids]),
            middles := ir.node("Mul", [scales.outputs[0], values["middle"]]),
            added := ir.node("Add", [offsets.outputs[0], middles.outputs[0]]),
            column := ir.node("Unsqueeze", [added.outputs[0], values["last"]]),
            blocks := ir.node("Reshape", [rows, values["blocks"]]),
            sums := ir.node("Add", [blocks.outputs[0], column.outputs[0]]),
            ir.node("Reshape", [sums.outputs[0], values["inputs"]]),
        ]

    def replace_product(self, product: Product, part: Part) -> None:
        """Multiply with a quantised weight; a Gemm's bias becomes an Add."""
        node, bits = product.node, self.options.bits_of(part)
        made = self.tensors(product.weight, bits, inputs_first=product.inputs_first, product=True)
        new = self.nbits(product, made) if self.target == "ort" else self.dequantised(product, made)
        if "offsets" in made.values:
            self.graph.insert_before(node, new)
            new = ir.node("Add", [new.outputs[0], self.times_offsets(product, made)])
        if product.bias is not None:
            self.graph.insert_before(node, new)
            new = ir.node("Add", [new.outputs[0], product.bias])
        replace(self.graph, node, [new])

    def nbits(self, product: Product, made: StoredWeight) -> ir.Node:
        """A MatMulNBits."""
        inputs, outputs = product.sizes
        attributes = {
            "K": inputs,
            "N": outputs,
            "bits": made.bits,
            "block_size": made.block_size,
            "accuracy_level": self.options.accuracy_level,
        }
        given = product.node.inputs[0] if made.order is None else self.reordered(product, made.order)
        values = [given, *(value for kind, value in made.values.items() if kind != "offsets")]
        return ir.node("MatMulNBits", values, attributes, domain="com.microsoft", name=product.node.name)

    def times_offsets(self, product: Product, made: StoredWeight) -> ir.Value:
        """Return what the offsets of blocks add to a product: the sum of each block of inputs, times its offset.

        MatMulNBits takes offsets only as fractional zero points, with which it is 20 times as slow. It subtracts the middle code,
        which is added here; the runtime computes that once, when it opens the graph.
        """
        inputs, _ = product.sizes
        given, middle, name = product.node.inputs[0], made.middle, product.weight.name
        assert given is not None and given.shape is not None, "shapes were inferred"
        sizes = [0] * (len(given.shape) - 1) + [inputs // made.block_size, made.block_size]
        constants = {"blocks": np.array(sizes), "last": np.array([-1]), "middle": np.array(middle, np.float32)}
        values = {kind: add_constant(self.graph, f"{name}.{kind}", ir.tensor(array)) for kind, array in constants.items()}
        nodes = [
            blocks := ir.node("Reshape", [given, values["blocks"]]),
            sums := ir.node("ReduceSum", [blocks.outputs[0], values["last"]], {"keepdims": 0}),
            middles := ir.node("Mul", [made.values["scales"], values["middle"]]),
            offsets := ir.node("Add", [made.values["offsets"], middles.outputs[0]]),
            columns := ir.node("Transpose", [offsets.outputs[0]], {"perm": [1, 0]}),
            product_of_sums := ir.node("MatMul", [sums.outputs[0], columns.outputs[0]]),
        ]
        self.graph.insert_before(product.node, nodes)
        return product_of_sums.outputs[0]

    def reordered(self, product: Product, order: Order) -> ir.Value:
        """The inputs of a product in another order."""
        places = add_constant(self.graph, f"{product.weight.name}.order", ir.tensor(order))
        node = ir.node("Gather", [product.node.inputs[0], places], {"axis": -1})
        self.graph.insert_before(product.node, node)
        return node.outputs[0]

    def dequantised(self, product: Product, made: StoredWeight) -> ir.Node:
        """A MatMul of DequantizeLinear's output, in the form [in, out] that ONNX Runtime fuses; a table is transposed first.

        ONNX Runtime's fusion rounds the inputs to 8 bits, whatever the level. For the levels that are float32, a Sum of one
        value stands between the two operators: no rule fuses or removes it.
        """
        values = list(made.values.values())
        if id(product.weight) in self.tables and not product.inputs_first:
            transposes = [ir.node("Transpose", [value], {"perm": [1, 0]}) for value in values]
            self.graph.insert_before(product.node, transposes)
            values = [node.outputs[0] for node in transposes]
        attributes = {"axis": 0, "block_size": made.block_size}
        weight = ir.node("DequantizeLinear", values, attributes)
        self.graph.insert_before(product.node, weight)
        if self.options.accuracy_level in FLOAT32_LEVELS:
            weight = ir.node("Sum", [weight.outputs[0]])
            self.graph.insert_before(product.node, weight)
        return ir.node("MatMul", [product.node.inputs[0], weight.outputs[0]], name=product.node.name)
