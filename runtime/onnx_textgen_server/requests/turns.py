"""Messages of a chat, in OpenAI's form, put together from the pieces of other wire formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onnx_textgen.chat.fitting import joined
from onnx_textgen.errors import OptionError


def append_message(chat: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    r"""Append a message, or add it to the last one if both are pieces of one answer. Other neighbours are the template's matter.

    >>> chat = [{"role": "assistant", "content": "I look."}]
    >>> append_message(chat, {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001"}]})
    >>> chat
    [{'role': 'assistant', 'content': 'I look.', 'tool_calls': [{'id': 'call00001'}]}]
    """
    if chat and chat[-1]["role"] == message["role"] == "assistant":
        chat[-1] = joined(chat[-1], message)
    else:
        chat.append(dict(message))


def written(arguments: object) -> str:
    """The arguments of a call as OpenAI has them, in a text, whatever a model wrote; raises `OptionError`."""
    try:
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    except RecursionError as error:
        raise OptionError("the arguments of a call are nested too deeply; give flat ones") from error
