"""Graphs that PyTorch traced, in a folder that all test processes share: tracing takes most of the export of a small model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import filelock
import onnx_ir as ir
import torch
import transformers
from torch import Tensor, nn

from onnx_textgen.package.manifest import Target
from onnx_textgen_export.sources.source import Source

Trace = Callable[..., ir.Model]
LIBRARIES = {"torch", "transformers", "peft", "onnx_textgen_export"}
SCALAR = (bool, int, float, str, tuple, type(None))
UNTRACED = {"_name_or_path", "architectures", "bos_token_id", "eos_token_id"}
"""What of a config no forward reads."""
SMALL = 4096
"""Elements of a table (of positions, of signs) that is a part of what the module is: code may have read it while it was traced."""


def is_known(module: nn.Module) -> bool:
    """Whether all of a module's code is that of the libraries, so that its description tells it from every other."""
    parts = list(module.modules())
    return isinstance(module, transformers.PreTrainedModel) and not any(
        type(part).__module__.partition(".")[0] not in LIBRARIES or "forward" in vars(part) for part in parts
    )


def described(source: Source, target: Target, outputs: Sequence[str], **more: bool) -> Iterator[str]:
    """Everything that a trace depends on: the module without its weights, and what the source says of it."""
    module, first = source.module, dict[int, str]()
    if source.encoder is None:
        more = {**more, "attention_maps": False}  # they come from a decoder's attention operators, not from its trace
    yield repr((target, list(outputs), sorted(more.items()), torch.is_grad_enabled()))
    yield repr((source.geometry, source.cache, source.attention_path, source.one_token, source.head is None))
    yield repr(source.encoder and (source.encoder.cross, source.encoder.source_length))
    yield repr({key: value for key, value in module.config.to_dict().items() if key not in UNTRACED})
    for name, part in module.named_modules():
        own = {key: value for key, value in vars(part).items() if isinstance(value, SCALAR) and key != "name_or_path"}
        yield repr((name, type(part), sorted(own.items(), key=lambda item: item[0])))
    for name, parameter in module.named_parameters(remove_duplicate=False):
        tied_to = first.setdefault(id(parameter), name)
        yield repr((name, tied_to, parameter.dtype, tuple(parameter.shape)))
    for name, table in module.named_buffers():
        yield repr((name, table.dtype, tuple(table.shape), table.tolist() if table.numel() <= SMALL else None))


def without_weights(model: ir.Model, module: nn.Module) -> ir.Model:
    """A copy whose tensors of the module have only names, types and shapes, as a file that is not there would hold them."""
    copy, own = model.clone(), {f"module.{name}" for name, _ in named_tensors(module)}
    for value in copy.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and value.name in own:
            value.const_value = ir.ExternalTensor(
                "none", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=str(value.name)
            )
    return copy


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers by all of their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def remembered(folder: Path, trace: Trace) -> Trace:
    """`trace`, which traces equal modules of the libraries once, whatever their weights."""

    def from_folder(source: Source, target: Target, outputs: Sequence[str], **more: bool) -> ir.Model:
        if not is_known(source.module):
            return trace(source, target, outputs, **more)
        name = hashlib.sha256("\n".join(described(source, target, outputs, **more)).encode()).hexdigest()
        path = folder / f"{name}.onnx"
        with filelock.FileLock(folder / f"{name}.lock"):
            if not path.exists():
                ir.save(without_weights(trace(source, target, outputs, **more), source.module), path)
        return ir.load(path)

    return from_folder
