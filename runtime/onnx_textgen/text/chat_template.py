"""Chat messages to one prompt, through the chat template a model brings, rendered as transformers renders it.

The template is a stranger's program, so it runs in the sandbox of `template_sandbox`. Messages are data: `{{ 7*7 }}` in a
message stays as it is. What the template cannot keep apart is a control token that a user writes out, such as `<|im_start|>`:
the rendered text holds it like the template's own, and the tokenizer reads both alike.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from ..errors import TemplateError


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    bos_token: str | None,
    eos_token: str | None,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    variables: Mapping[str, object] | None = None,
    now: datetime.datetime | None = None,
) -> str:
    """Write a conversation as the model was trained to see it, special tokens written out.

    `messages`: such as `{"role": "user", "content": "Hello"}`, made of nothing but JSON values; `tools`: JSON schemas.
    `add_generation_prompt` ends the text where the assistant's answer begins. `variables`: what else this template reads, such as
    `{"enable_thinking": False}`; they cannot replace the arguments above. `now` is the time for templates that write the date
    (default: the local time). Encode the result with `add_special_tokens=False`.

    Raises `TemplateError` if the template refuses the messages, is no template, or does what none needs to.

    >>> render_chat("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", [{"role": "user", "content": "Hi"}],
    ...             bos_token="<s>", eos_token="</s>")
    '<user>Hi'
    """
    # Imported when the first chat is rendered: jinja2 takes longer to import than a short answer to begin.
    from .template_sandbox import render_template  # noqa: PLC0415

    tokens = {"bos_token": bos_token, "eos_token": eos_token}
    everything: dict[str, object] = {
        **{name: plain_data(value, name) for name, value in (variables or {}).items()},
        **{name: token for name, token in tokens.items() if token is not None},
        "messages": [plain_message(message, position) for position, message in enumerate(messages)],
        "tools": None if tools is None else plain_data(list(tools), "a tool"),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    return render_template(template, everything, now or datetime.datetime.now().astimezone())


def plain_message(message: object, position: int) -> object:
    """Copy one message; raises `TemplateError` if it is no mapping of JSON values."""
    if not isinstance(message, Mapping):
        raise TemplateError(
            f"message {position} is of type {type(message).__name__}; give each message as a dict such as "
            '{"role": "user", "content": "Hello"}'
        )
    return plain_data(message, f"message {position}")


def plain_data(value: object, where: str, depth: int = 0) -> object:
    """Copy JSON-like `value`, made of Python's own types alone, so that a template reaches no method of any other."""
    if depth > 64:
        raise TemplateError(f"{where} is nested more than 64 levels deep; give flat messages")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): plain_data(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, where, depth + 1) for item in value]
    raise TemplateError(f"{where} holds a value of type {type(value).__name__}; give text, numbers, lists and dicts only")
