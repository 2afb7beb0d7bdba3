"""Prompts for text between a prefix and a suffix (fill in the middle), for models that were trained to write it.

Such a model has three control tokens, which are known by their names, as in llama.cpp. `PromptEncoder` writes the prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class InfillNames:
    """The control tokens of a family of models."""

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    """Whether the family was trained mainly with the suffix before the prefix."""


FAMILIES = (
    InfillNames("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    InfillNames("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite, Stable Code
    InfillNames("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillNames("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    InfillNames("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    InfillNames("<PRE>", "<SUF>", "<MID>"),
    InfillNames("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    InfillNames("<|prefix|>", "<|suffix|>", "<|middle|>"),  # Falcon
    InfillNames("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),  # Seed-Coder
    InfillNames("[PREFIX]", "[SUFFIX]", None, suffix_first=True),  # Codestral
)
ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<file_sep>", "<|file_separator|>", "<|repo_name|>"),
    *("\u2581<EOT>", "<EOT>", "<|endoftext|>"),
)
"""Tokens that such models write after the middle, even if they do not end other texts."""


@dataclasses.dataclass(frozen=True, slots=True)
class InfillTokens:
    """The ids of one model's control tokens."""

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool
    end_ids: frozenset[int]
    """Ids after which there is no more of the middle."""

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int], *, suffix_first: bool | None = None) -> list[int]:
        """The ids of a prompt; `suffix_first`: the order, by default the one of the model's family.

        >>> InfillTokens(1, 2, 3, False, frozenset()).prompt([10, 11], [12])
        [1, 10, 11, 2, 12, 3]
        >>> InfillTokens(1, 2, 3, False, frozenset()).prompt([10, 11], [12], suffix_first=True)
        [2, 12, 1, 10, 11, 3]
        """
        first, second = [self.prefix, *prefix], [self.suffix, *suffix]
        if self.suffix_first if suffix_first is None else suffix_first:
            first, second = second, first
        return [*first, *second, *([] if self.middle is None else [self.middle])]


def find_infill_tokens(added: Mapping[str, int]) -> InfillTokens | None:
    """The control tokens among the added tokens of a tokenizer; None if the model has none of a known family."""
    for family in FAMILIES:
        names = [name for name in (family.prefix, family.suffix, family.middle) if name is not None]
        if all(name in added for name in names):
            prefix, suffix, *middle = (added[name] for name in names)
            ends = frozenset(added[name] for name in ENDS if name in added)
            return InfillTokens(prefix, suffix, middle[0] if middle else None, family.suffix_first, ends)
    return None
