"""Tensors that a checkpoint need not hold because transformers computes them: tables of sinusoidal positions, biases of zeros.

`save_pretrained` leaves some of them out (Marian's positions). What only the random generator or a constant would fill is not
computed: there a checkpoint is incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel


def computed_tensors(model: PreTrainedModel, missing: Iterable[str]) -> dict[str, Tensor]:
    """Those of the `missing` tensors that transformers computes, by name, as it does when it makes a model."""
    found: dict[str, Tensor] = {}
    for name in missing:
        made = [initialised(model, name, seed) for seed in (0, 1)]
        is_same, is_constant = torch.equal(*made), bool((made[0] == made[0].flatten()[:1]).all())
        if is_same and (not is_constant or is_left_out(model, name)):
            found[name] = made[0]
    return found


def initialised(model: PreTrainedModel, name: str, seed: int) -> Tensor:
    """A tensor as transformers initialises it with a seed."""
    owner, _, own = name.rpartition(".")
    module = model.get_submodule(owner)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        tensor: Tensor = getattr(module, own)
        tensor.normal_()  # what is left as it was is not computed
        cast(Any, model)._init_weights(module)
    made: Tensor = getattr(module, own).detach().to(torch.float32, copy=True)
    return made


def is_left_out(model: PreTrainedModel, name: str) -> bool:
    """Return whether transformers opens a checkpoint without this tensor and says nothing."""
    patterns: Iterable[str] = model._keys_to_ignore_on_load_missing or ()
    return name in (model._keys_to_ignore_on_save or ()) or any(re.search(each, name) for each in patterns)
