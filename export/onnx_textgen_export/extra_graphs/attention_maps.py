"""The graph that shows attention, and its proof: a package's own graph with the attention of every layer as outputs more.

Both attention operators can give their weights after softmax. They take time, and memory that grows with the square of the text's
length, so the package's own graph does not ask for them: a second one of some ten kilobytes, over the same weights, does.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper

from onnx_textgen.inference.attention_maps import ATTENTIONS, read_maps
from onnx_textgen.package.manifest import ATTENTION_GRAPH, GRAPH, Precision

from ..errors import ExportError
from ..passes.quantization.rounding import Roundings
from ..proof.parity import LAST_STEPS, REMEDIES, WHOLE_LENGTH, why_it_does_not_run
from ..proof.same_weights import opened_for_proof
from ..sources.source import Attentions, Source
from ..weights.streamed import Weights

AFTER_SOFTMAX = {"GroupQueryAttention": ("qk_output", 2), "Attention": ("qk_matmul_output_mode", 3)}
"""The attribute by which an operator gives its weights after softmax as its fourth output."""
PIECE = 7
LONGEST_WINDOW = 512
"""A window up to this is crossed by the proof."""

Array = npt.NDArray[np.float64]


def attentions_of(source: Source) -> Attentions:
    """PyTorch's side; raises `ExportError` where a decoder's attention cannot be shown."""
    if source.attentions is None:
        raise ExportError(
            f"no attention maps: {type(source.module).__name__} attends by its own code or has a recurrent state; "
            "leave out --attention-maps"
        )
    return source.attentions


def write_attention_graph(folder: Path, heads: int) -> None:
    """Write the graph beside the package's own; raises `ExportError` where a layer's attention is no single operator."""
    model = onnx.load(folder / GRAPH, load_external_data=False)
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    new = next(value for value in graph.input if value.name == "input_ids").type.tensor_type.shape.dim[1]
    for present in list(graph.output):
        layer = re.fullmatch(r"present\.([0-9]+)\.key", present.name)
        if layer is None:
            continue
        node = producers[present.name]
        if node.op_type not in AFTER_SOFTMAX or len(node.output) != 3:
            raise ExportError(
                f"no attention maps: layer {layer[1]} attends by more than one operator ({node.op_type} makes its keys); "
                "leave out --attention-maps"
            )
        name, value = AFTER_SOFTMAX[node.op_type]
        node.attribute.append(helper.make_attribute(name, value))
        node.output.append(f"{ATTENTIONS}{layer[1]}")
        shape = ["batch", heads, new.dim_param or new.dim_value, "total_length"]
        graph.output.append(helper.make_tensor_value_info(node.output[3], present.type.tensor_type.elem_type, shape))
    onnx.save(model, folder / ATTENTION_GRAPH)


def prove_attention_maps(
    source: Source, weights: Weights, graph: Path, ids: list[int], *, precision: Precision, roundings: Roundings | None
) -> float:
    """How far a text's attention is from PyTorch's, as a share of its length as one vector.

    Of a quantised package both sides have the same rounded weights, and the limit is that of fp32. Raises `ExportError` beyond
    it, and where a token looks ahead.
    """
    windows = [window for window in source.windows if window <= LONGEST_WINDOW]
    text = ids[: min(max([WHOLE_LENGTH, *(window + LAST_STEPS for window in windows)]), source.geometry.context_length)]
    rows = min(len(text), WHOLE_LENGTH)
    opened = opened_for_proof(source, graph, precision=precision, roundings=roundings)
    with why_it_does_not_run(), opened as (session, changes, tolerance):
        _, maps = read_maps(session, source.geometry, text, rows=rows, size=PIECE)
    with weights.present(changes), torch.no_grad():
        reference = attentions_of(source)(torch.tensor([text]), rows)
    got, want = maps.astype(np.float64), torch.cat(reference).double().numpy()
    error = difference(got, want)
    if not error <= tolerance.logits_error:
        raise ExportError(
            f"the attention maps are not PyTorch's (relative error {error:.1e}), so nothing was written; {REMEDIES[precision]}"
        )
    return error


def difference(got: Array, want: Array) -> float:
    """The relative error of maps [layers, heads, rows, tokens]; infinite where a token looks ahead."""
    rows, tokens = got.shape[2:]
    ahead = np.arange(tokens)[None] > np.arange(tokens - rows, tokens)[:, None]
    if got.shape != want.shape or got[..., ahead].any():
        return float("inf")
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
