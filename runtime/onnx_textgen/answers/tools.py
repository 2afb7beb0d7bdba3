"""Tools that a model may call: JSON schemas in OpenAI's form, or Python functions with annotations and a docstring."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import OptionError
from ..options.checks import shown
from .object_schema import arguments_in, as_list, closed, types_of, whole
from .plain_json import read_json

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
MOST_TOOLS = 128
JSON_TYPES: Mapping[object, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
    Any: {},
}
HEAD = r"[ \t]+\*{0,2}(\w+)(?:[ ]*\([^)]*\))?:[ \t]*"
ARGUMENT = re.compile(rf"^{HEAD}(.*(?:\n(?!{HEAD})[ \t]+\S.*)*)", re.M)
"""An argument in a docstring of Google's style, with the lines that continue it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """JSON Schema of the arguments, an object."""
    function: Callable[..., Any] | None = None
    """The function itself, if it is one of Python."""
    strict: bool = False
    """Whether a call has to fit the schema."""
    given: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    """The tool as JSON, as the caller gave it."""

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments; arguments that it does not name are refused, unless it says otherwise."""
        return closed(self.parameters)

    def ordered_properties(self) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
        """Each argument, its schema and whether it is required; those that are required come first."""
        root = self.schema
        properties, required = arguments_in(root)
        for key, schema in sorted(properties.items(), key=lambda item: item[0] not in required):
            yield key, whole(schema, root), key in required

    def as_json(self) -> dict[str, Any]:
        """The tool in OpenAI's form, as chat templates get it."""
        if self.given is not None:
            return dict(self.given) if "function" in self.given else {"type": "function", "function": dict(self.given)}
        parameters = dict(self.parameters) or {"type": "object", "properties": {}}
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": parameters}}

    def typed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments with texts converted to the types that the schema names; what cannot be converted stays."""
        schema = self.schema
        properties, _ = arguments_in(schema)
        return {key: typed(value, types_of(properties.get(key), schema)) for key, value in arguments.items()}


ToolLike = Tool | Callable[..., Any] | Mapping[str, Any]


def read_tools(given: Sequence[ToolLike]) -> list[Tool]:
    """Check tools; raises `OptionError` for one that cannot be used, and for two of the same name."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise OptionError(f"tools should be a list of functions or JSON schemas, found {shown(given)}")
    if len(given) > MOST_TOOLS:
        raise OptionError(f"at most {MOST_TOOLS} tools can be given, found {len(given):,}; leave some out")
    tools = [read_tool(each) for each in given]
    names = [tool.name for tool in tools]
    if double := [name for name in names if names.count(name) > 1]:
        raise OptionError(f"two tools are called {double[0]}; give each its own name")
    return tools


def read_tool(given: ToolLike) -> Tool:
    """One tool: a `Tool`, a Python function, or a JSON schema as OpenAI has it."""
    if isinstance(given, Tool):
        return given
    if not isinstance(given, Mapping):
        return tool_of_function(given)
    function = given.get("function", given)
    if given.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise OptionError(f"a tool of the type {shown(given.get('type'))} cannot be called here; only functions can")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise OptionError(f"a tool should have a name of up to 128 letters, digits and _.:/-, found {shown(name)}")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise OptionError(f"the tool {name} should have parameters, a JSON Schema; found {shown(parameters)}")
    properties = (parameters or {}).get("properties", {})
    kind = (parameters or {}).get("type", "object")
    if (kind != "object" and "object" not in as_list(kind)) or not isinstance(properties, Mapping):
        raise OptionError(f"the parameters of the tool {name} should be a JSON Schema of an object with properties")
    if wrong := [key for key, schema in properties.items() if not isinstance(schema, Mapping | bool)]:
        raise OptionError(
            f"the parameter {wrong[0]} of the tool {name} should be a JSON Schema, found {shown(properties[wrong[0]])}"
        )
    return Tool(
        name, str(function.get("description") or ""), dict(parameters or {}), strict=bool(function.get("strict")), given=given
    )


def tool_of_function(function: Callable[..., Any]) -> Tool:
    """A tool that calls a Python function: types from its annotations, descriptions from its docstring (Google's style).

    Raises `OptionError` for an argument without an annotation that JSON Schema knows.
    """
    name = getattr(function, "__name__", "")
    if not callable(function) or not NAME.fullmatch(name):
        raise OptionError(f"a tool should be a named function or a JSON schema, found {shown(function)}")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise OptionError(f"the annotations of {name} cannot be read ({error}); import what they name") from error
    summary, descriptions = read_docstring(inspect.getdoc(function) or "")
    properties, required = dict[str, Any](), list[str]()
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise OptionError(f"the function {name} takes {parameter}, and a tool takes named arguments only; write them out")
        if key not in hints:
            raise OptionError(f"the argument {key} of {name} has no annotation; add one, such as {key}: str")
        schema = schema_of_type(hints[key], f"the argument {key} of {name}")
        properties[key] = schema | ({"description": descriptions[key]} if key in descriptions else {})
        if parameter.default is parameter.empty:
            required.append(key)
    return Tool(name, summary, {"type": "object", "properties": properties, "required": required}, function=function)


def schema_of_type(kind: object, where: str) -> dict[str, Any]:
    """The JSON Schema of an annotation; raises `OptionError` for one that has none."""
    if (isinstance(kind, type) and issubclass(kind, bool)) or kind in JSON_TYPES:
        return dict(JSON_TYPES[kind])
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        described = [each for each in inner[1:] if isinstance(each, str)]
        return schema_of_type(inner[0], where) | ({"description": described[0]} if described else {})
    if origin is Literal:
        kinds = {type(choice) for choice in inner}
        return {"enum": list(inner), **(JSON_TYPES.get(kinds.pop(), {}) if len(kinds) == 1 else {})}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of_type(each, where) for each in inner]}
    if origin in (list, tuple, set, Sequence) and inner:
        return {"type": "array", "items": schema_of_type(inner[0], where)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of_type(inner[1], where)}
    raise OptionError(
        f"{where} has the type {shown(kind)}, which JSON does not have; take str, int, float, bool, list, dict or Literal"
    )


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    r"""The description of a function, and those of its arguments.

    >>> read_docstring("Add numbers.\n\nArgs:\n    one: the first\n    two (int): the\n        second")
    ('Add numbers.', {'one': 'the first', 'two': 'the second'})
    """
    summary, _, rest = text.partition("\nArgs:\n")
    arguments = re.split(r"\n(?=\S)", rest)[0]
    found = {match[1]: " ".join(match[2].split()) for match in ARGUMENT.finditer(arguments)}
    return re.split(r"\n(?:Returns|Raises|Yields):", summary)[0].strip(), found


def typed(value: Any, kinds: Sequence[str]) -> Any:  # noqa: ANN401 - any JSON value
    """A text converted to the first of these types that it is written as."""
    if isinstance(value, list) and "array" not in kinds:  # of a key that was written several times
        return [typed(item, kinds) for item in value]
    if not isinstance(value, str):
        return value
    for kind in kinds:
        try:
            return converted(value, kind)
        except ValueError:
            continue
    return value


def converted(text: str, kind: str) -> Any:  # noqa: ANN401 - any JSON value
    """A text as a value of a JSON type; raises `ValueError`."""
    stripped = text.strip()
    if kind == "string":
        return text
    if kind in ("integer", "number"):
        number = float(text)
        if not math.isfinite(number) or (kind == "integer" and not number.is_integer()):
            raise ValueError(f"{text} is no {kind}")
        is_whole = re.fullmatch(r"[+-]?\d+", stripped) is not None
        return (
            int(stripped) if is_whole else int(number) if kind == "integer" or ("." not in text and number.is_integer()) else number
        )
    if kind == "boolean" and stripped.lower() in ("true", "1", "false", "0"):
        return stripped.lower() in ("true", "1")
    if kind == "null" and stripped in ("null", "None"):
        return None
    if kind in ("object", "array"):
        value = read_json(text)
        if isinstance(value, dict if kind == "object" else list):
            return value
    raise ValueError(f"{text} is no {kind}")
