"""Values against schemas, as the library `jsonschema` judges them."""

import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.sampling.schema_check import follows
from support.examples import examples

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 12), st.sampled_from([0.5, 1.0, 2.5]), st.text("ab1", max_size=4))
NAMES = st.sampled_from(["a", "b", "ab", "1"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8)
SMALL = st.integers(0, 3)
PATTERNS = st.sampled_from(["a", "^b", "1$", "a|b"])
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["null", "boolean", "string", "array", "object", "number", "integer", ["string", "integer"]]),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-2, 9)),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), SMALL),
        "pattern": PATTERNS,
        "uniqueItems": st.booleans(),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
    },
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
            **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames"), inner),
            **dict.fromkeys(("properties", "dependentSchemas"), named),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            **dict.fromkeys(("minContains", "maxContains"), SMALL),
            "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b~1c"]),
        },
    )


SCHEMAS = st.recursive(LEAVES | st.booleans(), nested, max_leaves=6)


@given(VALUES, SCHEMAS, LEAVES, LEAVES)
@examples(200)
def test_values_follow_what_jsonschema_says_they_follow(value: Any, schema: Any, one: Any, other: Any) -> None:
    whole = {"allOf": [schema], "$defs": {"a": one, "b/c": other}}
    assert follows(value, whole) == jsonschema.Draft202012Validator(whole).is_valid(value)


SLOW = r"(?:(a|aa)+\1)+$(?<!a)"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}] * 9},
        {"pattern": "("},
        {"pattern": SLOW},
        {"anyOf": [{"pattern": f"{SLOW}{n}"} for n in range(99)]},
        {"$ref": "https://x"},
        {"type": "zebra"},
        5,
    ],
)
def test_a_schema_that_cannot_be_checked_holds_a_value_to_nothing(schema: Any) -> None:
    began = time.monotonic()
    assert follows("a" * 40, schema)
    assert time.monotonic() - began < 3


def test_decimals_are_multiples_of_decimals() -> None:
    assert follows(19.99, {"multipleOf": 0.01})
    assert not follows(19.995, {"multipleOf": 0.01})
