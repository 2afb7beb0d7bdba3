"""Which matrices may be packed into one: those whose numbers one form of quantised matrix holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...sources.stored_form import StoredForm
from .linear import Linear
from .provenance import parameters_of

STANDS_FOR = {"Q5_0": "Q8_0", "Q4_1": "Q4_K", "Q5_1": "Q5_K"}
"""Kinds of GGUF that one form holds; the second stands for both."""


def are_alike(linears: Iterable[Linear], stored: Mapping[str, StoredForm]) -> bool:
    """Return whether the source stored the weights of all layers in one way, so that packing them loses no numbers."""
    return len({kinds_of(linear, stored) for linear in linears}) <= 1


def kinds_of(linear: Linear, stored: Mapping[str, StoredForm]) -> frozenset[str]:
    """How the source stored the parameters of a layer's weight; an empty name for one that is not quantised."""
    names = (stored[each.name].name if each.name in stored else "" for each in parameters_of(linear.weight.const_value))
    return frozenset(STANDS_FOR.get(name, name) for name in names)
