"""Plain JSON: values that every reader of JSON takes, whatever a model wrote. Python's own reader takes more."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

DEEPEST = 100
"""Most lists and objects around a value; other readers follow no more than some hundreds."""


def read_json(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """The value of a JSON text; raises `ValueError` for what is no plain JSON.

    >>> read_json('{"x": [1, "a"]}')
    {'x': [1, 'a']}
    """
    try:
        return plain_json(json.loads(text, parse_constant=refuse_constant))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def plain_json(value: Any, deepest: int = DEEPEST) -> Any:  # noqa: ANN401 - any JSON value
    """The same value; raises `ValueError` where it is no plain JSON.

    That is for numbers that are infinite or too long to be written, halves of surrogate pairs, keys that are no texts, types that
    JSON does not have, and more than `deepest` lists and objects around a value.
    """
    match value:
        case None | bool():
            pass
        case str():
            value.encode()  # UnicodeEncodeError is a ValueError
        case int():
            str(value)  # of thousands of digits: ValueError
        case float() if math.isfinite(value):
            pass
        case list() | dict() if not deepest:
            raise ValueError("it is nested too deeply")
        case list():
            for item in value:
                plain_json(item, deepest - 1)
        case dict() if all(isinstance(key, str) for key in value):
            for key, item in value.items():
                plain_json(key)
                plain_json(item, deepest - 1)
        case _:
            raise ValueError(f"it is no plain JSON: {type(value).__name__}")
    return value


def refuse_constant(name: str) -> NoReturn:
    """Called by `json` for NaN and infinities, which are no JSON."""
    raise ValueError(f"{name} is no JSON")
