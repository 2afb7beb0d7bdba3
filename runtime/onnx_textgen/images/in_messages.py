"""Pictures in the messages of a chat: found in the forms of all APIs, and put where the chat template has their places."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import ImageError, TemplateError
from ..options.checks import is_address
from ..options.checks import shown as quoted
from ..package.manifest import ImageRecord
from .image_rows import ReadImage
from .pictures import as_data_url, bytes_of_base64

TYPES = ("image", "image_url", "input_image")
PLACE = "place"
"""The key of a part that is the place of a picture, which chat templates know by its type: the number of the picture."""
NOT_FETCHED = "pictures at an address are not fetched; give a data URL with base64"
Message = Mapping[str, Any]


def is_picture(part: object) -> bool:
    """Return whether a part of a content is a picture, in any API's form."""
    return isinstance(part, Mapping) and part.get("type") in TYPES


def source_of(part: Mapping[str, Any], *, fetches: bool = False) -> object:
    """What `read_picture` reads of a part; raises `ImageError` for a part that has nothing of the kind.

    fetches: addresses of the web are read too.

    >>> source_of({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}})
    'data:image/png;base64,iVBO'
    """
    if (given := part.get("image")) is not None:
        return given
    for key in ("image_url", "url"):
        if (address := part.get(key)) is not None:
            return as_address(address.get("url") if isinstance(address, Mapping) else address, fetches=fetches)
    if isinstance(source := part.get("source"), Mapping):  # Anthropic's form
        if source.get("type") == "url":
            return as_address(source.get("url"), fetches=fetches)
        return as_base64(source.get("data"))
    if (path := part.get("path")) is not None:
        return path
    if part.get("base64") is not None:
        return as_base64(part["base64"])
    raise ImageError(f'a part of the type {quoted(part.get("type"))} has no picture; give {{"type": "image", "image": "FILE"}}')


def as_address(address: object, *, fetches: bool) -> str:
    """A data URL, or with `fetches` an address of the web; raises `ImageError` for any other address."""
    if isinstance(address, str) and (address.lower().startswith("data:") or (fetches and is_address(address))):
        return address
    raise ImageError(f"{NOT_FETCHED}, found {quoted(address)}")


def as_base64(data: object) -> bytes:
    """The bytes of a picture in base64."""
    if not isinstance(data, str):
        raise ImageError(f"a picture should be base64, found {quoted(data)}")
    return bytes_of_base64(data)


def without_pictures(messages: Sequence[Message], *, fetches: bool = False) -> tuple[list[dict[str, Any]], list[object]]:
    """Messages with a place for each picture, and the pictures in their order."""
    made, found = list[dict[str, Any]](), list[object]()
    for message in messages:
        content, changed = message.get("content"), dict(message)
        if isinstance(content, list | tuple):
            parts = list[object]()
            for part in content:
                parts.append({"type": "image", PLACE: len(found)} if is_picture(part) else part)
                found += [source_of(part, fetches=fetches)] if is_picture(part) else []
            changed["content"] = parts
        made.append(changed)
    return made, found


def kept(message: Message, *, fetches: bool = False) -> Message:
    """A message that holds its pictures as texts, for a session: a file may change, and an array cannot be saved."""
    content = message.get("content")
    if not isinstance(content, list | tuple) or not any(map(is_picture, content)):
        return message

    def held(part: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "image", "image": as_data_url(source_of(part, fetches=fetches), fetches=fetches)}

    return {**message, "content": [held(part) if is_picture(part) else part for part in content]}


def shown(content: object) -> str:
    """The text of a content for a person, with its pictures named."""
    if not isinstance(content, list | tuple):
        return str(content or "")
    return " ".join("[picture]" if is_picture(part) else str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def is_place(part: object) -> bool:
    """Return whether a part is the place of a picture that was read."""
    return isinstance(part, Mapping) and part.get("type") == "image" and isinstance(part.get(PLACE), int)


def places_in(messages: Sequence[Message]) -> tuple[int, ...]:
    """The numbers of the pictures that have a place in messages, in their order."""
    contents = [message.get("content") for message in messages]
    return tuple(part[PLACE] for content in contents if isinstance(content, list) for part in content if is_place(part))


def as_text(messages: Sequence[Message], mark: str) -> list[dict[str, Any]]:
    """Messages with a mark in the text for each place, for a template that writes no parts; its number follows the mark."""
    made = list[dict[str, Any]]()
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = [{"type": "text", "text": f"{mark}{part[PLACE]}{mark}\n"} if is_place(part) else part for part in content]
        made.append({**message, "content": content})
    return made


def expanded(text: str, images: Iterable[ReadImage], record: ImageRecord) -> str:
    """A text with what each picture becomes in its place, of which it has as many as there are pictures."""
    texts = [record.expansion if image.tiles is None else image.tiles.text for image in images]
    return "".join(itertools.chain(*zip(text.split(record.placeholder), [*texts, ""], strict=True)))


def placed(ids: Sequence[int], images: Sequence[ReadImage], record: ImageRecord) -> list[int]:
    """Ids in which the tokens of pictures are the ids of their rows; raises `TemplateError` if their number is another.

    One token may stand for all rows of a picture, or of a tile.
    """
    count = sum(each == record.token_id for each in ids)
    parts = [part for image in images for part in image.parts]
    if count != len(parts):
        raise TemplateError("the text itself has the token that stands for a row of a picture; take it out")
    left = iter(parts)
    return [each for own in ids for each in (next(left) if own == record.token_id else (own,))]
