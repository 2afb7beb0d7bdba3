"""From a vision part to a graph."""

from __future__ import annotations

import onnx_ir as ir
from torch import Tensor

from onnx_textgen.images.image_reader import IMAGE_ROWS
from onnx_textgen.package.manifest import Target

from ..huggingface.probed_model import attention_as
from ..layers.encoder_attention import OWN
from ..layers.torch_substitutes import OnnxSubstitutes
from ..passes.order import Settings, run_passes
from ..tracing.interface import forget_origin
from ..tracing.tracer import attach_weights, trace_module
from ..weights.streamed import Weights
from .vision import VisionPart


def trace_vision(part: VisionPart, pixels: tuple[Tensor, ...], target: Target, weights: Weights) -> ir.Model:
    """The vision part as a model in float32 whose weights are read on demand; raises `ExportError` if it cannot be traced."""
    attention = part.attention(pixels) if target == "ort" else OWN
    name = type(part.module).__name__
    with attention_as(part.module, attention), OnnxSubstitutes():
        model = trace_module(
            part,
            pixels,
            (tuple({} for _ in pixels),),
            name=f"the vision part of {name}",
            inputs=part.names,
            outputs=[IMAGE_ROWS],
            check=lambda exported: None,  # every size is fixed
        )
    attach_weights(model, part.module, weights)
    run_passes("trace", model, Settings(target))
    for value, each in zip(model.graph.inputs, pixels, strict=True):
        value.shape = ir.Shape(list(each.shape))
    model.graph.outputs[0].name = IMAGE_ROWS
    model.graph.name = "vision"
    forget_origin(model)
    return model
