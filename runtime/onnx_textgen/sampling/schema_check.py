"""Checks a JSON value against a schema, for the keywords that no grammar can follow.

JSON Schema 2020-12. Formats, `unevaluated...` and `$dynamicRef` are not checked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import regex

MOST_SECONDS = 0.1
"""Of the thread's own time. A schema may refer to itself, and a pattern take for ever: then a value counts as following it."""
TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: TYPES["number"](value) and (isinstance(value, int) or value.is_integer()),
}


def follows(value: Any, schema: Any) -> bool:  # noqa: ANN401 - JSON
    """Return whether a value follows a schema.

    >>> follows([1, 2], {"uniqueItems": True}), follows([1, 1.0], {"uniqueItems": True})
    (True, False)
    """
    try:
        return Checker(schema).follows(value, schema)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TimeoutError, TypeError, ValueError, regex.error):
        return True  # the schema is none, is elsewhere, or takes too long: there is nothing that the value could be held to


class Checker:
    """Checks values against the schemas of one document."""

    def __init__(self, root: Any) -> None:  # noqa: ANN401 - JSON
        self.root, self.end = root, time.thread_time() + MOST_SECONDS

    def follows(self, value: Any, schema: Any) -> bool:  # noqa: ANN401 - JSON
        """See `follows`."""
        if time.thread_time() > self.end:
            raise TimeoutError
        if isinstance(schema, bool):
            return schema
        kind = next(name for name in KEYWORDS if TYPES.get(name, lambda _: True)(value))
        checks = [*KEYWORDS["any"].items(), *(KEYWORDS[kind].items() if kind != "any" else ())]
        return all(check(self, value, schema[keyword], schema) for keyword, check in checks if keyword in schema)

    def at(self, reference: str) -> Any:  # noqa: ANN401 - JSON
        """The schema that a reference names; raises `LookupError` for one of another document."""
        if not reference.startswith("#"):
            raise LookupError(reference)
        found = self.root
        for key in reference[1:].split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
        return found

    def matches(self, pattern: str, text: str) -> bool:
        """Return whether a pattern is in a text."""
        return regex.search(pattern, text, timeout=max(0.001, self.end - time.thread_time())) is not None


def as_key(value: Any) -> Hashable:  # noqa: ANN401 - JSON
    """A key that is equal for equal JSON values: 1 is 1.0, and not true."""
    if isinstance(value, dict):
        return "object", frozenset((key, as_key(item)) for key, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(as_key, value))
    return ("boolean", value) if isinstance(value, bool) else value


def is_multiple(value: float, of: float) -> bool:
    """Return whether a number is a multiple of another; decimals are as near to it as numbers can be."""
    quotient = value / of
    return math.isclose(quotient, round(quotient), rel_tol=1e-12, abs_tol=1e-12)


def has_items(checker: Checker, value: Sequence[Any], items: Any, schema: Mapping[str, Any]) -> bool:  # noqa: ANN401 - JSON
    """`items`: for those after `prefixItems`."""
    return all(checker.follows(each, items) for each in value[len(schema.get("prefixItems", ())) :])


def contains(checker: Checker, value: Sequence[Any], wanted: Any, schema: Mapping[str, Any]) -> bool:  # noqa: ANN401 - JSON
    """`contains`, with `minContains` and `maxContains`."""
    count = sum(checker.follows(each, wanted) for each in value)
    return bool(schema.get("minContains", 1) <= count <= schema.get("maxContains", count))


def has_others(checker: Checker, value: Mapping[str, Any], others: Any, schema: Mapping[str, Any]) -> bool:  # noqa: ANN401 - JSON
    """`additionalProperties`: for those that the schema does not name."""
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    rest = [key for key in value if key not in named and not any(checker.matches(pattern, key) for pattern in patterns)]
    return all(checker.follows(value[key], others) for key in rest)


KEYWORDS: Mapping[str, Mapping[str, Callable[[Checker, Any, Any, Mapping[str, Any]], bool]]] = {
    "number": {
        "multipleOf": lambda _, value, given, __: is_multiple(value, given),
        "minimum": lambda _, value, given, __: value >= given,
        "maximum": lambda _, value, given, __: value <= given,
        "exclusiveMinimum": lambda _, value, given, __: value > given,
        "exclusiveMaximum": lambda _, value, given, __: value < given,
    },
    "string": {
        "minLength": lambda _, value, given, __: len(value) >= given,
        "maxLength": lambda _, value, given, __: len(value) <= given,
        "pattern": lambda self, value, given, _: self.matches(given, value),
    },
    "array": {
        "minItems": lambda _, value, given, __: len(value) >= given,
        "maxItems": lambda _, value, given, __: len(value) <= given,
        "uniqueItems": lambda _, value, given, __: not given or len({as_key(each) for each in value}) == len(value),
        "prefixItems": lambda self, value, given, _: all(map(self.follows, value, given)),
        "items": has_items,
        "contains": contains,
    },
    "object": {
        "required": lambda _, value, given, __: all(key in value for key in given),
        "minProperties": lambda _, value, given, __: len(value) >= given,
        "maxProperties": lambda _, value, given, __: len(value) <= given,
        "properties": lambda self, value, given, _: all(
            self.follows(value[key], each) for key, each in given.items() if key in value
        ),
        "patternProperties": lambda self, value, given, _: all(
            self.follows(item, each) for pattern, each in given.items() for key, item in value.items() if self.matches(pattern, key)
        ),
        "additionalProperties": has_others,
        "propertyNames": lambda self, value, given, _: all(self.follows(key, given) for key in value),
        "dependentRequired": lambda _, value, given, __: all(
            other in value for key, others in given.items() if key in value for other in others
        ),
        "dependentSchemas": lambda self, value, given, _: all(
            self.follows(value, each) for key, each in given.items() if key in value
        ),
    },
    "any": {
        "$ref": lambda self, value, given, _: self.follows(value, self.at(given)),
        "type": lambda _, value, given, __: any(TYPES[each](value) for each in ([given] if isinstance(given, str) else given)),
        "enum": lambda _, value, given, __: as_key(value) in map(as_key, given),
        "const": lambda _, value, given, __: as_key(value) == as_key(given),
        "not": lambda self, value, given, _: not self.follows(value, given),
        "allOf": lambda self, value, given, _: all(self.follows(value, each) for each in given),
        "anyOf": lambda self, value, given, _: any(self.follows(value, each) for each in given),
        "oneOf": lambda self, value, given, _: sum(self.follows(value, each) for each in given) == 1,
        "if": lambda self, value, given, schema: self.follows(
            value, schema.get("then" if self.follows(value, given) else "else", True)
        ),
    },
}
"""What each keyword asks of the values of a type."""
