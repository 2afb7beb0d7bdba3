"""Pictures of a user's message: data URLs, which the browser made small and keeps with the conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

MOST_PICTURES = 8
"""Of one message."""
DATA_URL = re.compile(r"data:image/(?:jpeg|png|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")


def read_pictures(value: object) -> list[str]:
    """Pictures that a browser kept, or a person imported; raises `OptionError` for anything else."""
    value = value or []
    if not isinstance(value, list) or len(value) > MOST_PICTURES:
        raise OptionError(f"the pictures of a message should be a list of at most {MOST_PICTURES}, found {shown(value)}")
    for each in value:
        if not isinstance(each, str) or not DATA_URL.fullmatch(each):
            raise OptionError(f"a picture of a conversation should be a data URL with base64, found {shown(each)}")
    return value


def with_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with its pictures in its content, as the runtime takes them: before the text."""
    if not message.get("images"):
        return message
    made = {key: value for key, value in message.items() if key != "images"}
    pictures = [{"type": "image", "image": each} for each in message["images"]]
    return made | {"content": [*pictures, {"type": "text", "text": message.get("content") or ""}]}


def pictures_html(message: Mapping[str, Any]) -> str:
    """The pictures of a message."""
    made = "".join(f'<img src="{escape(each)}" alt="Picture">' for each in message.get("images") or ())
    return f'<div class="pictures">{made}</div>' if made else ""
