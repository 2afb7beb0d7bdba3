"""Renders chat messages to one prompt with the model's chat template, as transformers does.

The template is an untrusted program, so it runs in the sandbox of `template_sandbox`. Messages are data: `{{ 7*7 }}` in a message
stays unchanged. If a message writes out a control token such as `<|im_start|>`, the rendered text has it like the template's own;
`plain_content` keeps them apart.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from ..errors import TemplateError
from ..options.checks import shown

MARK = "continue-the-message-here "
"""A text that no message contains; its last space shows whether the template keeps spaces at the end of a message."""


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    bos_token: str | None,
    eos_token: str | None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, object]] | None = None,
    documents: Sequence[Mapping[str, object]] | None = None,
    variables: Mapping[str, object] | None = None,
    now: datetime.datetime | None = None,
) -> str:
    """Render a conversation in the format that the model was trained on, special tokens included.

    `messages`: such as `{"role": "user", "content": "Hello"}`, of JSON values only; `tools`: JSON schemas; `documents`: what an
    answer may cite. With `add_generation_prompt` the text ends where the assistant's answer begins; with `continue_final_message`
    it ends with the content of the last message, which the model then continues. `variables`: further variables of this template,
    such as `{"enable_thinking": False}`; they cannot replace the arguments above. `now`: the time for templates that write the date
    (default: the local time). Encode the result with `add_special_tokens=False`.

    Raises `TemplateError` if the template refuses the messages, is not valid, or does what the sandbox forbids.

    >>> render_chat("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", [{"role": "user", "content": "Hi"}],
    ...             bos_token="<s>", eos_token="</s>")
    '<user>Hi'
    """
    # Imported for the first chat only: the import of jinja2 takes longer than a short answer takes to begin.
    from .template_sandbox import render_template  # noqa: PLC0415

    if not isinstance(variables, Mapping | None):
        raise TemplateError(f"the variables of a template should be a mapping, found a {type(variables).__name__}")
    if continue_final_message and add_generation_prompt:
        raise TemplateError("a chat continues its last message or begins an answer, not both; leave one out")
    check_messages(messages)
    plain = [plain_message(message, position) for position, message in enumerate(messages)]
    spaces = mark_end(plain) if continue_final_message else ""
    tokens = {"bos_token": bos_token, "eos_token": eos_token}
    everything: dict[str, object] = {
        **{name: plain_data(value, name) for name, value in (variables or {}).items()},
        **{name: token for name, token in tokens.items() if token is not None},
        "messages": plain,
        "tools": None if tools is None else plain_data(list(tools), "a tool"),
        "documents": None if documents is None else plain_data(list(documents), "a document"),
        "add_generation_prompt": add_generation_prompt,
    }
    rendered = render_template(template, everything, now or datetime.datetime.now().astimezone())
    return cut_at_mark(rendered, spaces) if continue_final_message else rendered


def mark_end(messages: Sequence[dict[str, object]]) -> str:
    """Write a mark after the text of the last message, so that its end is found in the rendered chat; returns its last spaces."""
    last = messages[-1] if messages else {"content": []}
    content = last.get("content")
    if content is None or isinstance(content, str):
        last["content"] = (content or "") + MARK
        return spaces_after(content or "")
    for part in reversed(content) if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"].strip():
            spaces = spaces_after(part["text"])
            part["text"] += MARK
            return spaces
    raise TemplateError("there is no last message with a text to continue; give the beginning of the answer as its content")


def spaces_after(text: str) -> str:
    """The white space at the end of a text; "" if that is all of it, because a template then removes it as a beginning."""
    return text[len(text.rstrip()) :] if text.strip() else ""


def cut_at_mark(rendered: str, spaces: str) -> str:
    """The chat up to the mark; without the `spaces` of the message before it if the template removes those at its end.

    >>> cut_at_mark(f"<user>Hi<assistant>Hello, {MARK}<end>", " "), cut_at_mark(f"<assistant>Hello {MARK.strip()}<end>", " ")
    ('<user>Hi<assistant>Hello, ', '<assistant>Hello')
    """
    before, mark, after = rendered.rpartition(MARK.rstrip())
    if not mark:
        raise TemplateError("the template leaves out the text of the last message, so it cannot be continued; begin a new answer")
    return before if after.startswith(" ") else before.removesuffix(spaces)


def plain_message(message: Mapping[str, object], position: int) -> dict[str, object]:
    """Copy one message; raises `TemplateError` if it is not one of JSON values."""
    return {str(key): plain_data(value, f"message {position}") for key, value in message.items()}


def check_messages(messages: object) -> None:
    """Raise `TemplateError` unless these are dicts in a list."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise TemplateError(
            f'a chat takes a list of messages, such as [{{"role": "user", "content": "Hello"}}]; found {shown(messages)}'
        )
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TemplateError(
                f"message {position} is of type {type(message).__name__}; give each message as a dict such as "
                '{"role": "user", "content": "Hello"}'
            )


def plain_data(value: object, where: str, depth: int = 0) -> object:
    """Copy a JSON value into built-in types only, so that a template reaches no methods of other types."""
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
    raise TemplateError(f"{where} has a value of type {type(value).__name__}; give text, numbers, lists and dicts only")
