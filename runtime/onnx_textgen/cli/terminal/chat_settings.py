"""`/set` in a chat: the options of its answers, shown and changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from ...errors import OptionError, did_you_mean
from ..generation_options import OPTIONS, read_values

if TYPE_CHECKING:
    from .chat_session import Chat

NOT_IN_A_CHAT = ("num_return_sequences", "best_of", "num_beams", "length_penalty", "early_stopping", "logprobs")
"""Options for more than one text, because a session continues only one, and `logprobs`, which it does not show."""
USUAL = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "seed")
"""Options that are shown whether they were given or not."""
NAMES = [name for name in OPTIONS if name not in NOT_IN_A_CHAT]
SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def values_of(chat: Chat) -> list[tuple[str, str]]:
    """The options that count for the next answer, with their values."""
    config = chat.model.generator.config(chat.options)
    found = {name: getattr(config, name) for name in dict.fromkeys((*USUAL, *chat.options))}
    return [(name, "drawn anew" if name == "seed" and value is None else f"{value}") for name, value in found.items()]


def set_value(chat: Chat, name: str, text: str) -> str:
    """Change an option for the answers to come, or take it back with an empty text; returns its name. Raises `OptionError`."""
    name = name.lower().replace("-", "_")
    if name not in NAMES:
        raise OptionError(f"there is no option {name:.60}; {did_you_mean(name, NAMES)}/set shows the usual ones")
    generation = {key: value for key, value in chat.generation.items() if key != name}
    if text:
        generation |= read_values({name: typed(name, text)})
    chat.model.generator.config(chat.defaults | generation)  # raises for a wrong value
    chat.generation = generation
    return name


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
