"""The kinds of content that a field of a response template may have, and how a content becomes the field's value.

All follow transformers' `utils/chat_parsing`: `json` with its dialects, tags (`xml-inline`), lines of keys and values (`kv-lines`)
and calls in Python's notation (`python-call-list`). Every function raises `ValueError` for a content that does not fit.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import regex

from .plain_json import plain_json, read_json

Args = Mapping[str, Any]
MATCH_SECONDS = 1.0
"""Longest time of one search by a regular expression, which comes with the package: a hostile one would never end."""
UNREADABLE = (KeyError, TypeError, AttributeError, regex.error, TimeoutError)
"""Errors of arguments that the template gives, and of texts that take too long."""
PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
PYTHON_CONSTANTS = {"true": True, "false": False, "null": None}
"""Constants of JSON, which models write in Python's calls too."""
PYTHON_NAMES = re.compile(r"""\"(?:\\.|[^\"\\])*+\"?|'(?:\\.|[^'\\])*+'?|(?<![\w.-])([A-Za-z_][\w.-]*+)(?=\s*[=(])""")
"""Texts in quotes, and names of calls and of arguments; no text is searched twice."""


def as_text(text: str, args: Args) -> str:
    """The text, without white space around it unless `strip` is false."""
    return text.strip() if args.get("strip", True) else text


def as_bool(text: str, args: Args) -> bool:
    """Return whether the text says true."""
    return as_text(text, args).lower() in ("true", "1")


def as_json(text: str, args: Args) -> Any:  # noqa: ANN401 - any JSON value
    """A JSON value; `unquoted_keys`, `string_delims` and `allow_non_json` allow what some models write instead."""
    # What is not closed extends to the end, so that no second search begins inside it.
    marks = [(regex.escape(begin), regex.escape(end)) for begin, end in args.get("string_delims", ())]
    delimited = "".join(f"|{begin}(.*?){end}|{begin}.*" for begin, end in marks)
    keys = r"|(?<=[{,])(?P<before>\s*+)(?P<key>\w++)(?P<after>\s*+):" if args.get("unquoted_keys") else ""
    pattern = rf'(?!){delimited}|"(?:\\.|[^"\\])*+"?{keys}'

    def quoted(found: regex.Match[str]) -> str:
        if keys and found["key"] is not None:
            return f'{found["before"]}"{found["key"]}"{found["after"]}:'
        return found[0] if found.lastindex is None else json.dumps(found[found.lastindex])

    try:
        return read_json(regex.sub(pattern, quoted, text, flags=regex.DOTALL) if delimited or keys else text)
    except ValueError as error:
        if args.get("allow_non_json"):
            return as_text(text, args)
        raise ValueError(f"it is not JSON: {error}") from error


def as_tags(text: str, args: Args) -> dict[str, Any]:
    """Tags, one for each key; `tag_pattern` has the groups `key` and `value`."""
    found = dict[str, list[Any]]()
    for key, value, _ in tags_in(text, args):
        found.setdefault(key, []).append(value)
    merges = args.get("merge_duplicates", False)
    return {key: values if merges and len(values) > 1 else values[-1] for key, values in found.items()}


def tags_in(text: str, args: Args, start: int = 0) -> Iterator[tuple[str, Any, int]]:
    """The complete tags of a text from a place on: the key, the value, and where the tag ends."""
    try:
        pattern = regex.compile(args["tag_pattern"], regex.DOTALL)
        if not {"key", "value"} <= pattern.groupindex.keys():
            raise ValueError("tag_pattern needs the groups key and value")
        for found in pattern.finditer(text, start, timeout=MATCH_SECONDS):
            yield found["key"], value_of(found["value"], args), found.end()
    except UNREADABLE as error:
        raise ValueError(f"the tags cannot be read ({type(error).__name__}: {error})") from error


def value_of(text: str, args: Args) -> Any:  # noqa: ANN401 - any JSON value
    """A value of a tag or a line, by `value_parser`."""
    parser = args.get("value_parser")
    return text if parser is None else parse_content(text, parser.get("name", "text"), parser.get("args", {}))


def as_lines(text: str, args: Args) -> dict[str, Any]:
    """Lines, each with a key and a value; other lines are left out."""
    separator = args.get("kv_sep", ":")
    pairs = [line.split(separator, 1) for line in text.split(args.get("line_sep", "\n")) if separator in line]
    return {as_text(key, args): value_of(as_text(value, args), args) for key, value in pairs}


def as_python_calls(text: str, _: Args) -> list[dict[str, Any]]:
    """Calls such as `[get_weather(city="Paris")]`, with keyword arguments that are literals."""
    names = list[str]()

    def numbered(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        names.append(found[1])
        return f"n{len(names) - 1}"

    try:
        # Names of tools and arguments may be no names in Python, such as `class` and `get-weather`.
        listed = ast.parse(PYTHON_NAMES.sub(numbered, text.strip()), mode="eval").body
        if not isinstance(listed, ast.List):
            raise ValueError("a list of calls was expected")
        name_of = {f"n{number}": name for number, name in enumerate(names)}
        return [python_call(each, name_of) for each in listed.elts]
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is no list of calls in Python: {error}") from error


def python_call(node: ast.expr, name_of: Mapping[str, str]) -> dict[str, Any]:
    """One call; `name_of`: what its numbered names stand for."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("calls with keyword arguments were expected")
    values = {name_of.get(str(each.arg)): plain_json(python_value(each.value)) for each in node.keywords}
    if None in values or len(values) < len(node.keywords):
        raise ValueError("an argument has no name, or occurs twice")
    return {"name": name_of[node.func.id], "arguments": values}


def python_value(node: ast.expr) -> Any:  # noqa: ANN401 - any JSON value
    """A literal; also the constants of JSON, at the top or in lists and dicts."""
    if isinstance(node, ast.Name) and node.id in PYTHON_CONSTANTS:
        return PYTHON_CONSTANTS[node.id]
    if isinstance(node, ast.List):
        return [python_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {ast.literal_eval(key): python_value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{type(value).__name__} is no JSON value")
    return value


CONTENT_KINDS: Mapping[str, Callable[[str, Args], Any]] = {
    "text": as_text,
    "int": lambda text, args: plain_json(int(as_text(text, args))),
    "float": lambda text, args: plain_json(float(as_text(text, args))),
    "bool": as_bool,
    "json": as_json,
    "xml-inline": as_tags,
    "kv-lines": as_lines,
    "python-call-list": as_python_calls,
}


def parse_content(text: str, kind: str, args: Args) -> Any:  # noqa: ANN401 - any JSON value
    """The value of a content of one kind; raises `ValueError`."""
    try:
        return CONTENT_KINDS[kind](text, args)
    except UNREADABLE as error:
        raise ValueError(f"the content {kind} cannot be read ({type(error).__name__}: {error})") from error


def is_whole(text: str, kind: str, args: Args) -> bool:
    """Return whether a content can be read to its end: between tags only white space is allowed."""
    try:
        if kind == "xml-inline":
            return not regex.sub(args["tag_pattern"], "", text, flags=regex.DOTALL, timeout=MATCH_SECONDS).strip()
        parse_content(text, kind, args)
    except (ValueError, *UNREADABLE):
        return False
    return True


def transformed(value: Any, transform: Any, captures: Mapping[str, str], *, each: bool) -> Any:  # noqa: ANN401 - any JSON value
    """The value in the form that `transform` gives; with `each`, every item of a list in that form."""
    if transform is None:
        return value
    if not each:
        return filled(transform, {**captures, "content": value})
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("a list of objects was expected")
    return [filled(transform, {**captures, **item}) for item in value]


def filled(transform: Any, scope: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Replace each placeholder, such as "{content.name}", by its value."""
    if isinstance(transform, dict):
        return {key: filled(item, scope) for key, item in transform.items()}
    if isinstance(transform, list):
        return [filled(item, scope) for item in transform]
    placeholder = PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if placeholder is None:
        return transform
    value: Any = scope
    for key in placeholder[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"there is no {key!r}, which {transform} names")
        value = value[key]
    return value


def check_placeholders(transform: object) -> None:
    """Raise `ValueError` for a text of a transform that mixes a placeholder with other text."""
    if isinstance(transform, dict | list):
        for item in transform.values() if isinstance(transform, dict) else transform:
            check_placeholders(item)
    elif isinstance(transform, str) and PLACEHOLDER.search(transform) and not PLACEHOLDER.fullmatch(transform):
        raise ValueError(f"the transform {transform!r:.60} has text around a placeholder; make it the placeholder alone")
