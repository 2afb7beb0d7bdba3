"""The forms of a prompt: a text, a sequence of token ids, or a sequence of prompts."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence, Set

import numpy as np

from ..errors import PromptError
from ..options.checks import shown

Prompt = str | Sequence[int]

CHARACTERS_PER_TOKEN = 256
"""Most characters that any tokenizer puts into one token; a prompt with more per token is refused before it is tokenized."""


def items_of(prompt: object) -> list[object]:
    """The items of a list, a tuple, an array or any other sequence; raises `PromptError` for anything else, such as messages."""
    found = prompt
    if hasattr(prompt, "__getitem__") and not isinstance(prompt, str | bytes | bytearray | memoryview | Mapping | Set):
        with contextlib.suppress(TypeError):  # an array without dimensions, or a type instead of a value
            items: list[object] = list(prompt)  # type: ignore[call-overload]
            if not isinstance(found := next(iter(items), None), Mapping):
                return items
    hint = "; messages are for chat(), or stream_chat()" if isinstance(found, Mapping) else ""
    raise PromptError(f"a prompt should be text or a list of token ids, found {shown(found)}{hint}")


def is_id(item: object) -> bool:
    """Return whether a value is a whole number, of any library's type; booleans are not."""
    try:
        operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(item, bool | np.bool_)


def is_batch(prompt: object) -> bool:
    """Return whether a value is a batch of prompts: a sequence, not a text, that begins with a text or another sequence."""
    first = None if isinstance(prompt, str) else next(iter(items_of(prompt)), None)
    return hasattr(first, "__len__") and not is_id(first)


def read_token_ids(prompt: object) -> list[int]:
    """The token ids of one prompt as `int`; raises `PromptError` for anything else."""
    items = items_of(prompt)
    if not items:
        raise PromptError("the prompt has no token ids; give at least one")
    if is_batch(prompt):
        raise PromptError(
            f"expected one prompt, found a list of {len(items)}; only generate takes a list of prompts, and not a nested one"
        )
    if wrong := [item for item in items if not is_id(item)]:
        raise PromptError(f"token ids should be whole numbers, found {shown(wrong[0])}")
    return [operator.index(item) for item in items]  # type: ignore[arg-type]


class LongPromptError(PromptError):
    """A prompt that is longer than the model's context."""


def check_characters(text: str, tokens: int) -> None:
    """Raise `PromptError` for a text that is too long for any tokenizer; `tokens`: what the model takes."""
    if len(text) > tokens * CHARACTERS_PER_TOKEN:
        raise LongPromptError(f"the prompt has {len(text):,} characters; this model takes {tokens:,} tokens. Shorten it")


def check_vocabulary(ids: Sequence[int], vocab_size: int, least: int = 0) -> None:
    """Raise `PromptError` for an id outside the vocabulary; `least`: the lowest, where ids below 0 name rows of pictures."""
    if wrong := [i for i in ids if not least <= i < vocab_size]:
        raise PromptError(f"token id {shown(wrong[0])} is outside the vocabulary; ids go from 0 to {vocab_size - 1}")
