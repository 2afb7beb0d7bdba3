"""Graphs of `cache_graphs` as other exporters would have written them: the same numbers behind other inputs and outputs."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Change = Callable[[onnx.ModelProto], None]


def value_of(values: list, name: str) -> onnx.ValueInfoProto:
    """An input or output by its name."""
    return next(value for value in values if value.name == name)


def constant(model: onnx.ModelProto, name: str, array: np.ndarray) -> str:
    """A constant of the graph."""
    if all(one.name != name for one in model.graph.initializer):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return name


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    """Call a value otherwise, wherever it stands."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = new if name == old else name
    for value in (*model.graph.input, *model.graph.output):
        value.name = new if value.name == old else value.name


def first(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    """Put nodes before all others."""
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])


def in_int32(model: onnx.ModelProto) -> None:
    """Ids and mask of 32 bits."""
    for name in ("input_ids", "attention_mask"):
        rename(model, name, f"{name}_64")
        value = value_of(model.graph.input, f"{name}_64")
        value.name, value.type.tensor_type.elem_type = name, TensorProto.INT32
        first(model, helper.make_node("Cast", [name], [f"{name}_64"], to=TensorProto.INT64))


def stacked(model: onnx.ModelProto) -> None:
    """Keys and values of a layer in one tensor [2, batch, heads, tokens, head_size]: `past_0`, `present_0`."""
    keys = [value.name for value in model.graph.input if value.name.endswith(".key")]
    for layer, key in enumerate(keys):
        pair = [key, key.replace(".key", ".value")]
        sizes = value_of(model.graph.input, key).type.tensor_type
        after = value_of(model.graph.output, key.replace("past_key_values", "present")).type.tensor_type
        for values, name, kind in ((model.graph.input, f"past_{layer}", sizes), (model.graph.output, f"present_{layer}", after)):
            shape = [2, *(one.dim_param or one.dim_value for one in kind.shape.dim)]
            values.append(helper.make_tensor_value_info(name, kind.elem_type, shape))
        for index, past in enumerate(pair):
            at = constant(model, f"at_{index}", np.array(index))
            first(model, helper.make_node("Gather", [f"past_{layer}", at], [past], axis=0))
            model.graph.input.remove(value_of(model.graph.input, past))
            model.graph.output.remove(value_of(model.graph.output, past.replace("past_key_values", "present")))
        axis, parts = constant(model, "axis_0", np.array([0])), [f"{past}.stacked" for past in pair]
        for past, part in zip(pair, parts, strict=True):
            model.graph.node.append(helper.make_node("Unsqueeze", [past.replace("past_key_values", "present"), axis], [part]))
        model.graph.node.append(helper.make_node("Concat", parts, [f"present_{layer}"], axis=0))


def only_last_row(model: onnx.ModelProto) -> None:
    """Logits of the last token and no others."""
    rename(model, "logits", "every_row")
    value = value_of(model.graph.output, "every_row")
    value.name, value.type.tensor_type.shape.dim[1].dim_value = "logits", 1
    last = constant(model, "last", np.array([-1]))
    model.graph.node.append(helper.make_node("Gather", ["every_row", last], ["logits"], axis=1))


def rows_to_keep(model: onnx.ModelProto) -> None:
    """Logits of as many of the last tokens as an input of no dimension says; 0: of all."""
    rename(model, "logits", "every_row")
    value = value_of(model.graph.output, "every_row")
    value.name, value.type.tensor_type.shape.dim[1].dim_param = "logits", "kept"
    model.graph.input.append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []))
    axis, end = constant(model, "axis_1", np.array([1])), constant(model, "end", np.array([2**40]))
    model.graph.node.extend(
        [
            helper.make_node("Neg", ["num_logits_to_keep"], ["begin"]),
            helper.make_node("Reshape", ["begin", constant(model, "one", np.array([1]))], ["begins"]),
            helper.make_node("Slice", ["every_row", "begins", end, axis], ["logits"]),
        ]
    )


def merged(model: onnx.ModelProto) -> None:
    """Two branches: one for a text's beginning, which reads no past, and one for a past, which lets new tokens see one another."""
    graph = model.graph
    pasts = [value for value in graph.input if value.name.startswith("past_")]
    graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    branches, _ = {}, constant(model, "far", np.array(2**40))
    for name, has_past in (("then_branch", True), ("else_branch", False)):
        inner = onnx.GraphProto()
        inner.CopyFrom(graph)
        inner.name = name
        del inner.input[:], inner.initializer[:]
        renamed = onnx.ModelProto(graph=inner)
        for node in graph.node:
            for made in node.output:
                rename(renamed, made, f"{name}.{made}")
        inner = renamed.graph
        if not has_past:
            for value in pasts:
                sizes = [1 if dim.dim_param == "batch" else dim.dim_value for dim in value.type.tensor_type.shape.dim]
                rename(renamed, value.name, f"empty.{value.name}")
                empty = np.zeros(sizes, helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
                inner.initializer.append(numpy_helper.from_array(empty, f"empty.{value.name}"))
        else:
            for node in inner.node:
                if node.op_type == "LessOrEqual":  # what a token sees; as traced with one new token, which sees all
                    node.input[1] = "far"
        branches[name] = inner
    outputs = [value.name for value in graph.output]
    del graph.node[:]
    graph.node.append(helper.make_node("If", ["use_cache_branch"], outputs, **branches))


def called_otherwise(model: onnx.ModelProto) -> None:
    """Names that only settings tell: `ids`, `mask`, `scores`, `k_in.0` ..."""
    for old, new in (("input_ids", "ids"), ("attention_mask", "mask"), ("logits", "scores")):
        rename(model, old, new)
    for value in [*model.graph.input, *model.graph.output]:
        name = value.name.replace("past_key_values", "cache_in").replace("present", "cache_out")
        rename(model, value.name, name)


def open_sizes(model: onnx.ModelProto) -> None:
    """Heads and head size of the cache left open, as genai leaves one of them."""
    for value in [*model.graph.input, *model.graph.output]:
        dims = value.type.tensor_type.shape.dim
        if len(dims) == 4:
            dims[1].dim_param, dims[3].dim_param = "kv_heads", "kv_cache_dim"


DIALECTS: dict[str, Change] = {
    "as it is": lambda model: None,
    "int32": in_int32,
    "stacked": stacked,
    "only the last row": only_last_row,
    "rows to keep": rows_to_keep,
    "merged": merged,
    "other names": called_otherwise,
    "open sizes": open_sizes,
}
