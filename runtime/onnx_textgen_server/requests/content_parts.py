"""Contents of messages, and tools, in the forms of all wire formats: what models here read is taken, and the rest is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from onnx_textgen.chat.parts import kind_of
from onnx_textgen.errors import LOG
from onnx_textgen.images.in_messages import TYPES
from onnx_textgen.options.checks import shown

from .body import Body

TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})


class Part(Body):
    """A part of a content: a text, a picture, or what no model here reads, of which only the type is kept.

    Of a picture, what may name a file of this machine is not kept: pictures come with the request.
    """

    model_config = ConfigDict(extra="ignore")
    type: str
    text: str | None = None
    refusal: str | None = Field(default=None, repr=False)
    image_url: Any = Field(default=None, repr=False)
    """A data URL, in OpenAI's forms."""
    source: Any = Field(default=None, repr=False)
    """Base64, in Anthropic's form."""

    @model_validator(mode="after")
    def has_text(self) -> Part:
        """Refuse a text without text."""
        if self.type in TEXTS and self.text is None and self.refusal is None:
            raise ValueError(f"a part of the type {self.type} should have a text")
        return self

    def as_data(self) -> dict[str, Any]:
        """The part as the runtime takes it."""
        text = self.refusal if self.text is None else self.text
        if self.type in TYPES:
            given = {"image_url": self.image_url, "source": self.source}
            return {"type": self.type, **{key: value for key, value in given.items() if value is not None}}
        return {"type": "text", "text": text} if self.type in TEXTS else {"type": self.type}


def as_parts(given: object) -> list[Any]:
    """A content that is a text as one part; raises `ValueError` for an entry of a list that is not an object with a type."""
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    if not isinstance(given, list):
        raise ValueError(f"should be a text or a list of parts, found {shown(given)}")
    for entry in given:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
            raise ValueError(f'the models here read text: a part should be {{"type": "text", "text": ...}}, found {shown(entry)}')
    return given


Parts = Annotated[list[Part], BeforeValidator(as_parts)]


def content_of(parts: Iterable[Part], between: str = "") -> str | list[dict[str, Any]]:
    """A content for the runtime: one text, unless there are other parts. `between`: what separates texts."""
    data = [part.as_data() for part in parts]
    if all("text" in part for part in data):
        return between.join(part["text"] for part in data)
    return [part | ({"text": between + part["text"]} if place and "text" in part else {}) for place, part in enumerate(data)]


def functions_among(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Functions in OpenAI's form, which the client runs. Other tools are left out, with one line in the log."""
    others = [tool for tool in tools if tool.get("type", "function") != "function"]
    if others:
        kinds = dict.fromkeys(map(kind_of, others))
        LOG.warning("a request has tools that do not run here, and are left out: %s", ", ".join(kinds))
    return [dict(tool) for tool in tools if tool.get("type", "function") == "function"]


def allowed_tools(tools: list[dict[str, Any]], choice: object) -> tuple[list[dict[str, Any]], Any]:
    """The functions and the choice without OpenAI's `allowed_tools`, which chooses among some of the functions.

    >>> choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    >>> allowed_tools([{"function": {"name": "f"}}, {"function": {"name": "g"}}], choice)
    ([{'function': {'name': 'f'}}], 'auto')
    """
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return tools, choice
    given = choice.get("allowed_tools", choice)
    listed = given.get("tools") if isinstance(given, Mapping) else None
    names = [name_of(tool) for tool in listed] if isinstance(listed, list) else []
    return [tool for tool in tools if name_of(tool) in names], given.get("mode") if names else "none"


def name_of(tool: object) -> object:
    """The name of a function, in the form of either of OpenAI's routes."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None
