"""Reads a model's chat template, and finds the ids that end a text.

Makers name the end of a text in up to four places, which may disagree. The settings of some chat models name only the end of a
document, so an answer would continue into the next turn. llama.cpp has a list of token texts for this. This module renders the
template with a conversation that ends with an answer: the token right after the answer is the one that the model generates there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import TemplateError
from ..files.text_files import read_text, readable
from ..text.chat_template import render_chat
from .hf_settings import as_ids, read_json, read_tokenizer_settings, token_text
from .manifest import CHAT_TEMPLATE

ANSWER = "fourtytwo"
NAMED_TEMPLATES, TOOL_USE = "additional_chat_templates", "tool_use"
"""Where transformers keeps templates with names, and the name of the one for tools."""


def read_template(folder: Path) -> str | None:
    """Read `chat_template.jinja`, else the template in `tokenizer_config.json` or `chat_template.json`; None if there is none.

    Of named templates, `tool_use` is rendered where tools are given. Raises `PackageError` for a file that cannot be read.
    """
    with readable(folder):
        has_own_file, for_tools = (folder / CHAT_TEMPLATE).is_file(), folder / NAMED_TEMPLATES / f"{TOOL_USE}.jinja"
        has_one_for_tools = for_tools.is_file()
    if has_own_file:
        own = read_text(folder / CHAT_TEMPLATE)
        return joined(own, read_text(for_tools)) if has_one_for_tools else own
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = template_in(read_json(folder / name).get("chat_template"))
        if template is not None:
            return template
    return None


def template_in(value: object) -> str | None:
    """The template of a settings entry: a text, a list of `{"name", "template"}`, or an object with names as keys.

    >>> template_in([{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}])
    'd'
    """
    if isinstance(value, list):
        value = {str(entry.get("name")): entry.get("template") for entry in value if isinstance(entry, Mapping)}
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else None
    template, for_tools = value.get("default", next(iter(value.values()), None)), value.get(TOOL_USE)
    if not isinstance(template, str):
        return None
    return joined(template, for_tools) if isinstance(for_tools, str) and for_tools != template else template


def joined(template: str, for_tools: str) -> str:
    """One template of two, of which the second is rendered where tools are given.

    Chat templates are rendered without the newline after a block, without one at their end, and without space before a block that
    begins a line; the newlines and empty expressions keep all else.
    """
    inside = ("\n" + text.removesuffix("\n") + "{{ '' }}" for text in (for_tools, template))
    return "{% if tools %}" + "{% else %}".join(inside) + "{% endif %}"


def text_after_answer(template: str, tokens: Mapping[str, str | None]) -> str | None:
    """Render the template and return the text after the last answer; None if it does not accept such a conversation."""
    turns = [("user", "What is it?"), ("assistant", ANSWER)]
    for as_parts, tools in ((False, None), (True, None), (False, ())):  # some templates need lists of parts, some need tools
        messages = [{"role": role, "content": [{"type": "text", "text": text}] if as_parts else text} for role, text in turns]
        try:
            text = render_chat(
                template, messages, bos_token=tokens["bos"], eos_token=tokens["eos"], add_generation_prompt=False, tools=tools
            )
        except TemplateError:
            continue
        if ANSWER in text:
            return text.rpartition(ANSWER)[2]
    return None


def end_of_turn(template: str, tokenizer: Tokenizer, tokens: Mapping[str, str | None]) -> int | None:
    """The id of the added token right after an answer, None if there is none; `tokens` are the texts of `bos` and `eos`."""
    text = (text_after_answer(template, tokens) or "").lstrip()
    added = tokenizer.get_added_tokens_decoder()
    found = [token_id for token_id, token in added.items() if token.content.strip() and text.startswith(token.content)]
    return max(found, key=lambda token_id: len(added[token_id].content), default=None)


def all_eos_ids(
    folder: Path, tokenizer: Tokenizer | None, template: str | None, *, generation: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[int, ...]:
    """All ids that end a text, each once; the ids of `generation` come first.

    The ids in `generation` always count. An id in the model's `config` may be a default of its class without a meaning in this
    vocabulary, so if another end is known it counts only if it is an added token.
    """
    explicit, configured = as_ids(generation.get("eos_token_id")), as_ids(config.get("eos_token_id"))
    if tokenizer is None:
        return unique(explicit or configured)
    settings = read_tokenizer_settings(folder)
    tokens = {name: token_text(settings.get(f"{name}_token")) for name in ("bos", "eos")}
    end_of_text = tokenizer.token_to_id(tokens["eos"]) if tokens["eos"] else None
    turn_end = end_of_turn(template, tokenizer, tokens) if template else None
    size = config.get("vocab_size")
    found = [i for i in (end_of_text, turn_end) if i is not None and not (isinstance(size, int) and i >= size)]
    if explicit or found:
        configured = tuple(i for i in configured if i in tokenizer.get_added_tokens_decoder())
    return unique([*explicit, *configured, *found])


def unique(ids: Iterable[int]) -> tuple[int, ...]:
    """Remove duplicate ids; the order stays."""
    return tuple(dict.fromkeys(ids))
