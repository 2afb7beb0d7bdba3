"""JSON Schemas of arguments as libraries write them: the object with its properties at the top, and the types of a value."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

DEEPEST = 16
"""Most references and unions that are followed: a schema may refer to itself."""
JOINED = frozenset({"type", "properties", "required", "title", "description", "additionalProperties", "$defs", "definitions"})
"""Keywords of which several schemas for one object can be written as one."""
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"}
Schema = Mapping[str, Any]


@dataclasses.dataclass(slots=True)
class Steps:
    """References and unions that may still be followed in one schema: with each level of a hostile one they would multiply."""

    left: int = 1_000

    def take(self, depth: int) -> bool:
        """Return whether one more may be followed; `depth`: levels that are left."""
        self.left -= 1
        return depth > 0 and self.left > 0


def closed(schema: Schema) -> dict[str, Any]:
    """The schema of an object, with `properties`; keys that it does not name are refused, unless it says otherwise.

    A reference, `allOf` and unions are followed: a key that they name is none that the schema does not name (JSON Schema 2020-12,
    10.3.2.3, knows only those next to `additionalProperties`).

    >>> closed({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"x": {"type": "integer"}}}}})["properties"]
    {'x': {'type': 'integer'}}
    """
    return {
        **closed_in(schema, schema, DEEPEST, Steps()),
        **{key: schema[key] for key in ("$defs", "definitions") if key in schema},
    }


def closed_in(schema: Schema, root: Schema, depth: int, steps: Steps) -> dict[str, Any]:
    """See `closed`; `root`: where references lead to."""
    schema = whole(schema, root, depth, steps)
    unions = {key: schema[key] for key in ("anyOf", "oneOf") if is_schemas(schema.get(key))}
    properties = properties_in(schema)
    if unions and not properties and steps.take(depth):
        choices = {key: [closed_in(each, root, depth - 1, steps) for each in union] for key, union in unions.items()}
        return {"type": "object", **schema, "properties": {}, **choices}
    refuses = {} if "$ref" in schema or "allOf" in schema else {"additionalProperties": False}
    return {"type": "object", **refuses, **schema, "properties": properties}


def arguments_in(schema: Schema) -> tuple[dict[str, Schema], list[Any]]:
    """Each argument that a closed schema names, also in a union, with its schema; and those that are required of all."""
    choices = [arguments_in(each) for key in ("anyOf", "oneOf") for each in as_list(schema.get(key)) if isinstance(each, Mapping)]
    if (found := properties_in(schema)) or not choices:
        return found, as_list(schema.get("required"))
    for properties, _ in choices:
        for key, each in properties.items():
            found[key] = each if found.get(key, each) == each else {"anyOf": [found[key], each]}
    return found, [key for key in found if all(key in required for _, required in choices)]


def whole(schema: Schema, root: Schema, depth: int = DEEPEST, steps: Steps | None = None) -> Schema:
    """The schema with what it refers to, and with the parts of `allOf`, as one, where that can be written."""
    steps = steps or Steps()
    target, given = referred(schema, root), schema.get("allOf")
    parts: list[Schema] = as_list(given) if is_schemas(given) else []
    if (target is None and not parts) or not steps.take(depth):
        return schema
    own = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
    found: list[Schema] = [own, *([] if target is None else [target]), *parts]
    found = [whole(each, root, depth - 1, steps) for each in found]
    if sum(bool(each) for each in found) <= 1:
        return next(filter(None, found), {})
    if any(each.keys() - JOINED for each in found if each.keys() - {"title", "description"}) and len(found) > 1:
        bare = [each for each in found if each.keys() - {"title", "description", "type", "$defs", "definitions"}]
        return {**bare[0], **own} if len(bare) == 1 else schema
    return functools.reduce(joined, found)


def joined(one: Schema, other: Schema) -> dict[str, Any]:
    """Two schemas of `JOINED` keywords that an object follows both."""
    properties = properties_in(one)
    for key, schema in properties_in(other).items():
        properties[key] = {"allOf": [properties[key], schema]} if properties.get(key, schema) != schema else schema
    required = [key for each in (one, other) for key in as_list(each.get("required")) if isinstance(key, str)]
    return {**other, **one, "properties": properties, **({"required": list(dict.fromkeys(required))} if required else {})}


def properties_in(schema: Schema) -> dict[str, Schema]:
    """The schema of each property; `true` as the empty one. A property that is `false` is none."""
    given = schema.get("properties")
    found = {key: {} if each is True else each for key, each in given.items()} if isinstance(given, Mapping) else {}
    return {str(key): each for key, each in found.items() if isinstance(each, Mapping)}


def referred(schema: Schema, root: Schema) -> Schema | None:
    """The schema that another refers to, if it is in the same document."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for key in reference[2:].split("/"):
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def is_schemas(value: object) -> bool:
    """Return whether a value is a list of schemas, and not empty."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def types_of(schema: object, root: Schema, depth: int = DEEPEST, steps: Steps | None = None) -> tuple[str, ...]:
    """The JSON types that a schema allows, in its order."""
    steps = steps or Steps()
    if not isinstance(schema, Mapping) or not steps.take(depth):
        return ()
    declared = schema.get("type")
    found = [declared] if isinstance(declared, str) else [each for each in as_list(declared) if isinstance(each, str)]
    choices = [schema["const"]] if "const" in schema else as_list(schema.get("enum"))
    if not found:
        found += [TYPES[type(choice)] for choice in choices if type(choice) in TYPES]
    for parts in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf"), [referred(schema, root)]):
        found += [kind for part in as_list(parts) for kind in types_of(part, root, depth - 1, steps)]
    return (*found, "null") if schema.get("nullable") and "null" not in found else tuple(found)


def as_list(value: object) -> list[Any]:
    """The value if it is a list, else an empty one: a schema comes from a client, and no validator has seen it."""
    return value if isinstance(value, list) else []
