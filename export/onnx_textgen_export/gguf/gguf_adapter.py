"""Reads a LoRA adapter in llama.cpp's form: a GGUF file whose tensors have llama.cpp's names and order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from onnx_textgen.backends.variants.adapter_file import LowRank
from onnx_textgen.errors import first_line

from ..errors import ExportError
from .gguf_checkpoint import Translator
from .gguf_file import GGUFFile

NARROW, WIDE = ".lora_a", ".lora_b"
ALPHA = "adapter.lora.alpha"
INSTEAD = "give the adapter as PEFT saved it"


def read_gguf_adapter(path: Path, module: nn.Module) -> dict[str, LowRank]:
    """The products of low rank by the parameter of the module, with llama.cpp's scale: alpha / rank.

    Raises `ExportError` for another file, and for an adapter that does not belong to the module.
    """
    file = GGUFFile(path)
    if (file.metadata.get("general.type"), file.metadata.get("adapter.type")) != ("adapter", "lora"):
        raise ExportError(f"{path} holds no LoRA adapter; give a file that llama.cpp's convert_lora_to_gguf.py made")
    if not isinstance(module, PreTrainedModel):
        kind = type(module).__name__
        raise ExportError(f"{path} names layers as llama.cpp does, and {kind} is no model of transformers; {INSTEAD}")
    try:
        translator = Translator(file, module, module.config.to_dict())
    except (NotImplementedError, KeyError) as error:
        why = first_line(error)
        raise ExportError(f"{path} belongs to a model that transformers cannot translate: {why}; {INSTEAD}") from error
    found = dict[str, LowRank]()
    for name in sorted({each.removesuffix(NARROW).removesuffix(WIDE) for each in file.tensors}):
        target = translator.target(name)
        if target is None or not {name + NARROW, name + WIDE} <= file.tensors.keys():
            raise ExportError(f"{path} changes {name} in a way that is not read; {INSTEAD}")
        narrow, wide = file.read(name + NARROW), file.read(name + WIDE)
        if narrow.ndim != 2 or wide.ndim != 2 or narrow.shape[0] != wide.shape[1]:
            raise ExportError(f"{path}: the two matrices for {name} do not belong together; convert the adapter again")
        try:
            ordered = translator.translated(name, wide)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:  # whatever a translation assumes of a weight
            raise ExportError(f"{path} changes {name} in a way that is not read ({first_line(error)}); {INSTEAD}") from error
        if ordered.shape != wide.shape:  # the weight is transposed, or part of a stack
            raise ExportError(f"{path} changes {name} in a way that is not read; {INSTEAD}")
        scale = scale_of(file.metadata.get(ALPHA), narrow.shape[0])
        found[target] = LowRank(np.ascontiguousarray(narrow.T), np.ascontiguousarray(scale * ordered.T))
    return found


def scale_of(alpha: Any, rank: int) -> float:  # noqa: ANN401 - a number of the file
    """Return the factor of an adapter's product; like llama.cpp, 1 without an alpha."""
    return float(alpha) / rank if alpha else 1.0
