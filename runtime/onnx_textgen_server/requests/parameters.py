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
ALSO_CALLED = {"repeat_penalty": "repetition_penalty"}
"""The names that Ollama and llama.cpp have for options."""
EMPTY_IS_OFF = frozenset({"stop", "regex", "grammar"})
LARGEST_EXACT = 2.0**53
"""Beyond it a JSON number may have lost digits."""


def read_parameters(
    given: Mapping[str, Any], *, renamed: Mapping[str, str], ignored: Collection[str] = (), own: Collection[str] = ()
) -> dict[str, Any]:
    """The options among parameters that a wire format does not name itself; raises `OptionError` for one that does not exist.

    `renamed`: what options are called in the wire format. `ignored`: those that change nothing in an answer. `own`: those that
    the wire format names itself, one of which may have been meant.
    """
    options = dict[str, Any]()
    for key, value in given.items():
        name = ALSO_CALLED.get(key, key)
        if value is None or name in ignored or value in NO_OP_VALUES.get(name, ()) or did_nothing(name, value):
            continue
        if key in renamed:
            raise OptionError(f"{key} is called {renamed[key]} here; use that name")
        if name not in OPTION_NAMES or name in SEARCH_FIELDS:
            known = {*own, *OPTION_NAMES} - SEARCH_FIELDS
            raise OptionError(unknown_parameter(name, () if name in SEARCH_FIELDS else known))
        options[name] = value
    return options


def set_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are given, in the runtime's words.

    JSON has one kind of number; other servers take the most likely token where `top_p` is 0, and no stop string is empty.

    >>> set_options({"top_k": 40.0, "top_p": 0, "stop": [""], "regex": "", "seed": None})
    {'top_k': 1}
    """
    given = {name: whole_numbers(value) for name, value in options.items() if value is not None}
    if given.get("top_p") == 0 and not isinstance(given["top_p"], bool):
        del given["top_p"]
        given["top_k"] = 1
    if isinstance(given.get("stop"), list):
        given["stop"] = [each for each in given["stop"] if each != ""]
    return {name: value for name, value in given.items() if not (name in EMPTY_IS_OFF and value in ("", []))}


def whole_numbers(value: Any, depth: int = 2) -> Any:  # noqa: ANN401 - any JSON value
    """A number, or each of lists of lists, as an integer if it is one: JSON has no other way to tell them apart."""
    if isinstance(value, list) and depth:
        return [whole_numbers(each, depth - 1) for each in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_EXACT
    return int(value) if is_whole else value
