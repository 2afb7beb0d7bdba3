"""What a prompt may look like: a text, the ids of one, or several of either, in any kind of sequence."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set

import numpy as np

from ..errors import PromptError
from ..options.checks import shown

Prompt = str | Sequence[int]


def items_of(prompt: object) -> list[object]:
    """The items of a list, a tuple, an array or any other sequence; raises `PromptError` for what is none."""
    if hasattr(prompt, "__getitem__") and not isinstance(prompt, str | bytes | bytearray | memoryview | Mapping | Set):
        try:
            return list(prompt)  # type: ignore[call-overload,no-any-return]
        except TypeError:
            pass  # an array without dimensions, or a type and not a value
    raise PromptError(f"a prompt should be text or a list of token ids, found {shown(prompt)}")


def is_id(item: object) -> bool:
    """Whether this is a whole number of any library."""
    try:
        operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(item, bool | np.bool_)


def is_batch(prompt: object) -> bool:
    """Whether this is several prompts: a sequence, no text, that begins with a text or another sequence."""
    first = None if isinstance(prompt, str) else next(iter(items_of(prompt)), None)
    return hasattr(first, "__len__") and not is_id(first)


def read_token_ids(prompt: object) -> list[int]:
    """One prompt's ids as Python's own numbers; raises `PromptError` for anything else."""
    items = items_of(prompt)
    if not items:
        raise PromptError("the prompt has no token ids; give at least one")
    if is_batch(prompt):
        raise PromptError(f"one prompt is wanted here, found a list of {len(items)}; only generate takes several, in one flat list")
    if wrong := [item for item in items if not is_id(item)]:
        raise PromptError(f"token ids should be whole numbers, found {shown(wrong[0])}")
    return [operator.index(item) for item in items]  # type: ignore[arg-type]
