"""A checkpoint's chat template, and the ids that end a turn.

Makers name the end of a text in up to four places, and they disagree: chat models are shipped whose settings name only the end of
a document, so that an answer would run on into the next turn. llama.cpp keeps a list of token texts for this. Here the template is
asked: it writes a conversation that ends with an answer, and the token right behind the answer is what the model writes there.
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


def read_template(folder: Path) -> str | None:
    """`chat_template.jinja`, else what `tokenizer_config.json` or `chat_template.json` holds; of named ones, the default."""
    with readable(folder):
        has_own_file = (folder / CHAT_TEMPLATE).is_file()
    if has_own_file:
        return read_text(folder / CHAT_TEMPLATE)
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = default_template(read_json(folder / name).get("chat_template"))
        if template is not None:
            return template
    return None


def default_template(value: object) -> str | None:
    """One template of what a settings file holds: a text, a list of `{"name", "template"}`, or an object of names.

    >>> default_template([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}])
    'd'
    """
    if isinstance(value, list):
        value = {str(entry.get("name")): entry.get("template") for entry in value if isinstance(entry, Mapping)}
    if isinstance(value, Mapping):
        value = value.get("default", next(iter(value.values()), None))
    return value if isinstance(value, str) else None


def answered(template: str, tokens: Mapping[str, str | None]) -> str | None:
    """What the template writes behind the last answer; None where it cannot write such a conversation."""
    turns = [("user", "What is it?"), ("assistant", ANSWER)]
    for as_parts, tools in ((False, None), (True, None), (False, ())):  # some take lists of parts only, some insist on tools
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
    """The id of the added token right behind an answer; `tokens` are the texts of bos and eos. None if no such token is there."""
    behind = (answered(template, tokens) or "").lstrip()
    added = tokenizer.get_added_tokens_decoder()
    found = [token_id for token_id, token in added.items() if token.content.strip() and behind.startswith(token.content)]
    return max(found, key=lambda token_id: len(added[token_id].content), default=None)


def every_end(
    folder: Path, tokenizer: Tokenizer | None, template: str | None, *, generation: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[int, ...]:
    """All ids that end a text, those of `generation` first, each once.

    What is written out for generation counts as it is. An id of the model's `config` may be a default of its class that means
    nothing in this vocabulary, so beside another it counts only if it is an added token.
    """
    given, configured = as_ids(generation.get("eos_token_id")), as_ids(config.get("eos_token_id"))
    if tokenizer is None:
        return unique(given or configured)
    settings = read_tokenizer_settings(folder)
    tokens = {name: token_text(settings.get(f"{name}_token")) for name in ("bos", "eos")}
    written = tokenizer.token_to_id(tokens["eos"]) if tokens["eos"] else None
    behind = end_of_turn(template, tokenizer, tokens) if template else None
    size = config.get("vocab_size")
    found = [i for i in (written, behind) if i is not None and not (isinstance(size, int) and i >= size)]
    if given or found:
        configured = tuple(i for i in configured if i in tokenizer.get_added_tokens_decoder())
    return unique([*given, *configured, *found])


def unique(ids: Iterable[int]) -> tuple[int, ...]:
    """Each id once, in order."""
    return tuple(dict.fromkeys(ids))
