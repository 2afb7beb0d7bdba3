"""Adapters of modules that are in memory: merged from a folder, or by PEFT where the module is PEFT's own."""

from __future__ import annotations

import copy
import sys
from typing import Any, cast

import torch
from torch import nn

from onnx_textgen.errors import first_line

from ..errors import ExportError
from ..weights.adapter import Adapter
from ..weights.streamed import put_parameter


def merged(module: nn.Module, adapter: Adapter | None) -> nn.Module:
    """A copy of a module with an adapter merged into its weights; the module itself without one."""
    if adapter is None:
        return module
    module = copy.deepcopy(module)
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    before = dict(module.named_parameters(remove_duplicate=False))
    for name in adapter.parts:
        if name not in before:
            raise ExportError(f"{adapter.folder} changes {name}, which the base does not have; {adapter.right_base()}")
        numbers = adapter.merged(name, before[name].detach)
        if numbers.shape != before[name].shape:
            raise ExportError(
                f"{adapter.folder} replaces {name} by a tensor {list(numbers.shape)}, and the base has "
                f"{list(before[name].shape)}; {adapter.right_base()}"
            )
        tied = names[id(before[name])] if adapter.keeps_ties(name) else [name]
        put_parameter(module, tied, nn.Parameter(numbers, requires_grad=False))
    return module


def is_of_peft(module: nn.Module) -> bool:
    """Return whether a module is a model of PEFT, without importing PEFT (such a model has imported it already)."""
    library = sys.modules.get("peft.peft_model")
    return library is not None and isinstance(module, library.PeftModel)


def without_adapters(model: Any) -> nn.Module:  # noqa: ANN401 - PEFT is not imported
    """A copy of a model of PEFT with its active adapters merged into the weights.

    Raises `ExportError` if that is another model, which happens where an adapter changes one of two tied weights.
    """
    kind = type(model).__name__
    try:
        made = copy.deepcopy(model).merge_and_unload()
        with torch.no_grad():
            before, after = (each.eval()(torch.tensor([[0, 1]])).logits.float() for each in (copy.deepcopy(model), made))
    except (ValueError, TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
        raise ExportError(f"PEFT cannot merge the adapter of this {kind}: {first_line(error)}") from error
    if not torch.allclose(before, after, rtol=0, atol=1e-3 * float(before.abs().max())):
        raise ExportError(
            f"this {kind} computes something else when PEFT merges its adapter; save the adapter with save_pretrained(DIR), and "
            "export the base with --adapter DIR"
        )
    return cast(nn.Module, made)
