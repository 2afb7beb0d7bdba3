"""`/set` in a chat: the options of its answers, shown and changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from ...errors import OptionError, did_you_mean
from ..generation_options import OPTIONS, read_values

if TYPE_CHECKING:
    from ...options.generation_config import GenerationConfig

NOT_IN_A_CHAT = ("num_return_sequences", "best_of", "num_beams", "length_penalty", "early_stopping", "logprobs")
"""Options for more than one text, because a session continues only one, and `logprobs`, which it does not show."""
USUAL = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "seed")
"""Options that are shown whether they were given or not."""
NAMES = [name for name in OPTIONS if name not in NOT_IN_A_CHAT]
SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def values_of(config: GenerationConfig, given: Iterable[str]) -> list[tuple[str, str]]:
    """The usual options and those that were given, with the values that count."""
    found = {name: getattr(config, name) for name in dict.fromkeys((*USUAL, *given))}
    return [(name, "a new one each time" if name == "seed" and value is None else f"{value}") for name, value in found.items()]


def name_of(text: str) -> str:
    """The option that a text names, with dashes or without; raises `OptionError`."""
    name = text.lower().replace("-", "_")
    if name not in NAMES:
        raise OptionError(f"there is no option {name:.60}; {did_you_mean(name, NAMES)}/set shows the usual ones")
    return name


def changed(generation: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    """Options with another value for one of them, without it for an empty text; raises `OptionError`."""
    others = {key: value for key, value in generation.items() if key != name}
    return others | (read_values({name: typed(name, text)}) if text else {})


def typed(name: str, text: str) -> Any:  # noqa: ANN401 - a value of the option's own type
    """The value that a text is for an option; raises `OptionError`."""
    kind = OPTIONS[name].kind
    if get_origin(kind) is list:
        return [text]
    if kind in (str, Path):
        return kind(text)
    try:
        return SWITCH[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        wanted = {int: "a whole number", float: "a number", bool: "on or off"}[kind]
        raise OptionError(f"{name} takes {wanted}, found {text!r:.60}") from error
