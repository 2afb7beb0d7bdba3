"""Messages for parameters that do not exist, with the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from typing import get_args

from pydantic import BaseModel

from onnx_textgen.options.checks import shown

MOST_COMPARED = 100
"""Characters of a name that are compared; a name of the body may be as long as the body."""
MIN_SIMILARITY = 0.75
"""From 0 to 1, by `difflib`. Below it another name is no help."""


def unknown_parameter(name: str, known: Collection[str]) -> str:
    """One line for a parameter that does not exist.

    >>> unknown_parameter("max_token", ["max_tokens", "model"])
    "there is no parameter 'max_token' here; did you mean max_tokens?"
    >>> unknown_parameter("colour", ["max_tokens", "model"])
    "there is no parameter 'colour' here; leave it out"
    """
    closest = difflib.get_close_matches(name[:MOST_COMPARED], known, n=1, cutoff=MIN_SIMILARITY)
    return f"there is no parameter {shown(name)} here; {f'did you mean {closest[0]}?' if closest else 'leave it out'}"


def names_of(body: type[BaseModel]) -> set[str]:
    """The parameters of a body, as clients write them."""
    return {field.alias or name for name, field in body.model_fields.items()}


def names_at(body: type[BaseModel], place: Sequence[str | int]) -> set[str]:
    """The parameters of the object at a place in a body, such as `("stream_options",)`; empty if it is not described."""
    models = [body]
    for part in place:
        fields = (field for model in models for name, field in model.model_fields.items() if part in (name, field.alias))
        models = [model for field in fields for model in models_in(field.annotation)] or models
    return set[str]().union(*map(names_of, models))


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The models that a type mentions.

    >>> class One(BaseModel): ...
    >>> [each.__name__ for each in models_in(list[One] | None)]
    ['One']
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)
