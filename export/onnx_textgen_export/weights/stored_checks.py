"""Checks the tensors of a quantised matrix before a number is read: types, shapes against the settings, groups, signs of scales.

Nothing later can show that they are damaged: PyTorch's side of the proof gets its weights from the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

WORDS = (torch.int32,)
WHOLE = (torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def check_type(parts: Mapping[str, Tensor], name: str, types: Iterable[torch.dtype]) -> None:
    """Raise `ValueError` for a tensor of another type."""
    known = [str(each).removeprefix("torch.") for each in types]
    if (found := str(parts[name].dtype).removeprefix("torch.")) not in known:
        raise ValueError(f"its {name} is {found}, and should be {' or '.join(known)}")


def check_shape(parts: Mapping[str, Tensor], name: str, *shape: int) -> None:
    """Raise `ValueError` for a tensor of another shape."""
    if tuple(parts[name].shape) != shape:
        raise ValueError(f"its {name} has the shape {list(parts[name].shape)}, and should have {list(shape)}")


def check_words(parts: Mapping[str, Tensor], name: str, *shape: int) -> None:
    """Raise `ValueError` for a tensor that is no matrix of 32-bit words of this shape."""
    check_type(parts, name, WORDS)
    check_shape(parts, name, *shape)


def check_scales(parts: Mapping[str, Tensor], name: str, *, dimensions: Iterable[int] = (2,)) -> None:
    """Raise `ValueError` for scales that are no positive numbers; 0 is a row of zeros."""
    check_type(parts, name, FLOATS)
    scales = parts[name]
    if scales.ndim not in dimensions or not scales.numel():
        raise ValueError(f"its {name} has the shape {list(scales.shape)}")
    if not bool((scales >= 0).all()):
        raise ValueError(f"its {name} has numbers that are negative or not finite")


def check_groups(parts: Mapping[str, Tensor], name: str, *, inputs: int, groups: int) -> None:
    """Raise `ValueError` for groups of inputs that do not exist."""
    check_type(parts, name, WHOLE)
    check_shape(parts, name, inputs)
    if not bool(((parts[name] >= 0) & (parts[name] < groups)).all()):
        raise ValueError(f"its {name} names groups outside 0 to {groups - 1}")


def check_group_size(size: object, *, inputs: int, groups: int) -> None:
    """Raise `ValueError` if a number of groups is not that of the settings, whose `size` is -1 for a single group."""
    if not 1 <= groups <= inputs:
        raise ValueError(f"it has {groups} groups for {inputs} inputs")
    if isinstance(size, int) and groups != (1 if size <= 0 else -(-inputs // size)):
        raise ValueError(f"it has {groups} groups for {inputs} inputs, and its settings say {size} inputs in a group")


def bits_in(settings: Mapping[str, Any], *names: str, allowed: Iterable[int]) -> int:
    """Return the bits that the settings name; raises `ValueError` if they name none that is known."""
    found = next((settings[name] for name in names if name in settings), None)
    if not isinstance(found, int) or found not in (*allowed,):
        raise ValueError(f"its settings say bits {found!s:.20}, which cannot be read")
    return found
