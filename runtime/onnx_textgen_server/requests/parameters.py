"""Parameters of a body that are options of `GenerationConfig`, under the same names in every wire format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from onnx_textgen.errors import OptionError
from onnx_textgen.options.generation_config import OPTION_NAMES
from onnx_textgen.options.other_names import did_nothing

from .unknown_names import unknown_parameter

SEARCH_FIELDS = frozenset({"best_of", "num_beams", "length_penalty", "early_stopping"})
"""Options of a search among whole texts, which the server does not support."""
NO_OP_VALUES: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "top_k": (-1,),
    "seed": (-1,),
}
"""Values that request the default behaviour; those of `top_k` and `seed` are llama.cpp's."""


def read_parameters(
    given: Mapping[str, Any], *, renamed: Mapping[str, str], ignored: Collection[str], own: Collection[str] = ()
) -> dict[str, Any]:
    """The options among parameters that a wire format does not name itself; raises `OptionError` for one that does not exist.

    `renamed`: what options are called in the wire format. `ignored`: parameters that change nothing in an answer. `own`: those that
    the wire format names itself, one of which may have been meant.
    """
    options = dict[str, Any]()
    for name, value in given.items():
        if value is None or name in ignored or value in NO_OP_VALUES.get(name, ()) or did_nothing(name, value):
            continue
        if name in renamed:
            raise OptionError(f"{name} is called {renamed[name]} here; use that name")
        if name not in OPTION_NAMES or name in SEARCH_FIELDS:
            known = {*own, *OPTION_NAMES} - SEARCH_FIELDS
            raise OptionError(unknown_parameter(name, () if name in SEARCH_FIELDS else known))
        options[name] = value
    return options


def set_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are given."""
    return {name: value for name, value in options.items() if value is not None}
