"""From a vision part to a graph."""

from __future__ import annotations

import onnx_ir as ir
import torch

from onnx_textgen.images.image_reader import IMAGE_ROWS
from onnx_textgen.package.manifest import Target

from ..image_processors.patch_steps import HEIGHT, WIDTH
from ..layers.torch_substitutes import OnnxSubstitutes
from ..passes.order import Settings, run_passes
from ..tracing.interface import forget_origin
from ..tracing.tracer import attach_weights, trace_module
from ..weights.streamed import Weights
from .vision import Seen, VisionPart


def trace_vision(part: VisionPart, sample: Seen, target: Target, weights: Weights) -> ir.Model:
    """The vision part as a model in float32 whose weights are read on demand; raises `ExportError` if it cannot be traced."""
    name, split = type(part.module).__name__, sample.pixels.shape if part.form is None else part.form.split
    varying = {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(split) if isinstance(size, str)}
    with part.traceable(), OnnxSubstitutes():
        model = trace_module(
            part,
            (sample.pixels,),
            (varying,),
            name=f"the vision part of {name}",
            inputs=[part.name],
            outputs=[IMAGE_ROWS],
            check=lambda exported: None,  # the comparison has pictures of several sizes
        )
    attach_weights(model, part.module, weights)
    run_passes("trace", model, Settings(target))
    model.graph.inputs[0].shape = ir.Shape(list(split))
    model.graph.outputs[0].name = IMAGE_ROWS
    if part.form is not None and (found := model.graph.outputs[0].shape) is not None:
        model.graph.outputs[0].shape = ir.Shape([HEIGHT, WIDTH, found[-1]])
    model.graph.name = "vision"
    forget_origin(model)
    return model
