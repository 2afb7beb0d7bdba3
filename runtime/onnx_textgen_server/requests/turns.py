"""Messages of a chat, in OpenAI's form: put together from the pieces of other wire formats, and left out if there are too many."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx_textgen.chat.chat_format import Turn
from onnx_textgen.chat.fitting import joined
from onnx_textgen.errors import LOG, OptionError
from onnx_textgen.text.prompts import LongPromptError

KEPT_ROLES = ("system", "developer")
RESULT_ROLES = ("tool", "function")


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


def turn_that_fits(make: Callable[..., Turn], messages: Sequence[Mapping[str, Any]], *, new_tokens: int) -> Turn:
    """The next turn of a chat; of one that is longer than the context, without its oldest messages, as in Ollama.

    What the system says stays, and so does the last message, with the call that a result belongs to. `new_tokens`: the space for an
    answer that is left where messages are left out. Raises `LongPromptError` if even the rest is too long.
    """
    try:
        return make(messages)
    except LongPromptError:
        starts = [place for place, message in enumerate(messages) if message.get("role") not in (*KEPT_ROLES, *RESULT_ROLES)]
        if len(starts) < 2:
            raise

    def since(start: int) -> list[Mapping[str, Any]]:
        return [message for place, message in enumerate(messages) if place >= start or message.get("role") in KEPT_ROLES]

    def fits(start: int) -> bool:
        try:
            make(since(start), new_tokens=new_tokens)
        except LongPromptError:
            return False
        return True

    found = starts[bisect.bisect_left(starts, True, lo=1, hi=len(starts) - 1, key=fits)]
    turn, left = make(since(found)), len(messages) - len(since(found))
    LOG.warning("a chat is longer than the context: its oldest %d messages are left out", left)
    return turn
