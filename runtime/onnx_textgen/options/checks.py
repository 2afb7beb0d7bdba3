"""Checks one option's value: returns it as a Python type, or raises a one-line error that says what is expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from ..errors import OptionError

Check = Callable[[str, object], Any]
"""Takes an option's name and value and returns the value to keep; raises `OptionError`."""

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_SEED = 2**63 - 1
MAX_IDS = 100_000
MAX_NAME_CHARS = 64
DIGITS = re.compile(r"\d{1,18}")
"""An id as text; Python refuses to read a number with thousands of digits."""
MAX_GRAMMAR_CHARS = 1_000_000


def whole_number(name: str, value: object, low: int, high: int | None = None) -> int:
    """Read `value` as an int within `low..high`; a bool or a float is refused."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        result = int(value)
        if low <= result and (high is None or result <= high):
            return result
    limits = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise OptionError(f"{name} should be a whole number {limits}, found {shown(value)}")


def number(name: str, value: object, limits: str, fits: Callable[[float], bool]) -> float:
    """Read `value` as a float for which `fits` is true; `limits` says the same in words. NaN is always refused."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:
            result = float("inf")
        if fits(result):
            return result
    raise OptionError(f"{name} should be a number {limits}, found {shown(value)}")


def whole(low: int, high: int | None = None) -> Check:
    """Make a check for a whole number within `low..high`."""
    return lambda name, value: whole_number(name, value, low, high)


def real(limits: str, fits: Callable[[float], bool]) -> Check:
    """Make a check for a number for which `fits` is true; `limits` says the same in words."""
    return lambda name, value: number(name, value, limits, fits)


def optional(check: Check) -> Check:
    """Make a check for None, or a value that `check` accepts."""
    return lambda name, value: None if value is None else check(name, value)


def switch_or(check: Check) -> Check:
    """Make a check for a number that a bool may stand for, as in OpenAI's API: True for 0, False for None."""
    return lambda name, value: (0 if value else None) if isinstance(value, bool) else check(name, value)


def one_of(*choices: str | bool) -> Check:
    """Make a check for one of a few values."""

    def check(name: str, value: object) -> str | bool:
        for choice in choices:
            if isinstance(value, type(choice)) and value == choice:
                return choice
        listed = ", ".join(map(repr, choices))
        raise OptionError(f"{name} should be one of {listed}, found {shown(value)}")

    return check


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """Read a list of token ids as a tuple; whether they are in a vocabulary is not checked here."""
    if not isinstance(value, (tuple, list)) or len(value) > MAX_IDS:
        found = f"{len(value):,} of them" if isinstance(value, (tuple, list)) else shown(value)
        raise OptionError(f"{name} should be a list of token ids, at most {MAX_IDS:,}, found {found}")
    return tuple(whole_number(f"each id of {name}", each, 0) for each in value)


def token_id_lists(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    """Read a list of lists of token ids, none of them empty, as tuples."""
    if not isinstance(value, (tuple, list)) or len(value) > MAX_IDS:
        raise OptionError(f"{name} should be a list of lists of token ids, at most {MAX_IDS:,}, found {shown(value)}")
    lists = tuple(token_ids(f"each item of {name}", each) for each in value)
    if not all(lists):
        raise OptionError(f"each item of {name} should be a list of at least one token id, found an empty one")
    return lists


def biases(name: str, value: object) -> tuple[tuple[int, float], ...]:
    """Read token ids and the numbers added to their logits, as pairs or as a mapping, whose keys may be text as in JSON."""
    if isinstance(value, Mapping):
        pairs = [(int(key) if isinstance(key, str) and DIGITS.fullmatch(key) else key, bias) for key, bias in value.items()]
    elif isinstance(value, (tuple, list)) and all(isinstance(each, (tuple, list)) and len(each) == 2 for each in value):
        pairs = [tuple(each) for each in value]
    else:
        raise OptionError(f"{name} should be a mapping from token ids to numbers, found {shown(value)}")
    if len(pairs) > MAX_IDS:
        raise OptionError(f"{name} should have at most {MAX_IDS:,} token ids, found {len(pairs):,}")
    limits = "from -100 to 100"
    read = {
        whole_number(f"each id of {name}", key, 0): number(f"each bias of {name}", bias, limits, lambda b: -100 <= b <= 100)
        for key, bias in pairs
    }
    return tuple(sorted(read.items()))


def strings(most: int, longest: int) -> Check:
    """Make a check for a tuple of up to `most` strings of 1 to `longest` characters; a single string counts as a tuple of one."""

    def check(name: str, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, (tuple, list)) or len(value) > most:
            found = f"{len(value)} of them" if isinstance(value, (tuple, list)) else shown(value)
            raise OptionError(f"{name} should be a tuple of up to {most} strings, found {found}")
        for text in value:
            if not isinstance(text, str) or not 1 <= len(text) <= longest:
                found = f"{len(text):,} characters" if isinstance(text, str) else shown(text)
                raise OptionError(f"each {name} string should have 1 to {longest} characters, found {found}")
        return tuple(value)

    return check


def text_of_grammar(name: str, value: object) -> str:
    """Read a regular expression or a grammar."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_GRAMMAR_CHARS:
        found = f"{len(value):,} characters" if isinstance(value, str) else shown(value)
        raise OptionError(f"{name} should be a text of 1 to {MAX_GRAMMAR_CHARS:,} characters, found {found}")
    return value


def json_schema(name: str, value: object) -> str:
    """Read a JSON Schema, given as a mapping or as JSON, and return it as JSON."""
    schema = value
    if isinstance(value, str):
        try:
            schema = json.loads(value)
        except ValueError as error:
            raise OptionError(f"{name} should be a JSON Schema, found text that is not JSON: {error}") from error
    if not isinstance(schema, Mapping):
        raise OptionError(f"{name} should be a JSON Schema (an object), found {shown(value)}")
    try:
        return text_of_grammar(name, json.dumps(dict(schema), ensure_ascii=False))
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} should be a JSON Schema, found a value that JSON cannot hold: {error}") from error


def name(name: str, value: object) -> str:
    """Read a name."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARS:
        raise OptionError(f"{name} should be a name of 1 to {MAX_NAME_CHARS} characters, found {shown(value)}")
    return value


def function(name: str, value: object) -> Callable[..., Any]:
    """Read a function."""
    if not callable(value):
        raise OptionError(f"{name} should be a function, found {shown(value)}")
    return value


def shown(value: object) -> str:
    """The text of `value` for a one-line message, always short."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length():,} bits"  # Python refuses to print more than 4,300 digits
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    return repr(value) if isinstance(value, (int, float)) or value is None else f"a {type(value).__name__}"


def is_address(value: object) -> bool:
    """Return whether a value is an address of the web, and no path.

    >>> [is_address(each) for each in ("https://example.com/a.recipe", "HTTP://a", "http:/a.recipe", "data:image/png;base64,")]
    [True, True, False, False]
    """
    return isinstance(value, str) and value.lower().startswith(("https://", "http://"))
