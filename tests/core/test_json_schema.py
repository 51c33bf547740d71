"""Arguments are checked against the schema of a tool, without the tool."""

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from holdfast import tool
from holdfast.core.json_schema import find_mismatch


class Address(msgspec.Struct):
    street: str
    number: int = 1


class Color(Enum):
    RED = "red"


@tool
async def order(
    amount: Annotated[int, msgspec.Meta(ge=1, le=100)],
    to: Address | None = None,
    colors: list[Color] | None = None,
    size: Literal["s", "l"] = "s",
    price: float = 1.0,
    gift: bool = False,
) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"amount": 5}, ""),
        ({"amount": 5, "to": {"street": "x"}, "colors": ["red"], "size": "l", "price": 2, "gift": True}, ""),
        ({"amount": 5, "to": None, "colors": None}, ""),
        ({}, "amount: is missing"),
        ({"amount": "5"}, "amount: is not of type integer"),
        ({"amount": True}, "amount: is not of type integer"),
        ({"amount": 0}, "amount: is less than 1"),
        ({"amount": 101}, "amount: is more than 100"),
        ({"amount": 5, "sum": 1}, "sum: is not an argument"),
        ({"amount": 5, "size": "m"}, "size: is not one of"),
        ({"amount": 5, "to": {}}, "to: fits none of the allowed forms"),
        ({"amount": 5, "colors": ["blue"]}, "colors: fits none of the allowed forms"),
        ({"amount": 5, "gift": 1}, "gift: is not of type boolean"),
        ([], "the value: is not of type object"),
    ],
)
def test_the_first_part_that_does_not_fit_is_named(arguments: Any, expected: str) -> None:
    found = find_mismatch(arguments, order.schema.parameters)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
    if expected:
        with pytest.raises(ValueError, match=r".") as refused:
            order.check(arguments)
        assert refused.value is not None, "the tool refuses it too"


def test_a_schema_that_refers_to_itself_and_deep_data_end() -> None:
    schema = {"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    assert find_mismatch(deep, schema) == ""
    assert find_mismatch(5, {"$ref": "#/$defs/loop", "$defs": {"loop": {"$ref": "#/$defs/loop"}}}) == ""
    assert find_mismatch([[5]], schema) == "[0][0]: is not of type array"


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": ["integer", "null"]}, None, ""),
        ({"type": ["integer", "null"]}, "x", "the value: is not of type integer or null"),
        ({"type": "integer"}, 2.0, ""),
        ({"type": "integer"}, 2.5, "the value: is not of type integer"),
        ({"type": "number"}, 2.5, ""),
        ({"type": "number"}, True, "the value: is not of type number"),
        ({"type": "boolean"}, True, ""),
        ({"type": "array"}, (1,), ""),
        ({"type": "colour"}, "red", ""),
        ({"enum": ["s", "l"]}, "l", ""),
        ({"enum": ["s", "l"]}, "m", "the value: is not one of 's', 'l'"),
        ({"const": 5}, 5, ""),
        ({"const": 5}, 6, "the value: is not 5"),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 3, ""),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 4, "the value: is more than 3"),
        ({"anyOf": [{"type": "string"}]}, 4, "the value: is not of type string"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 4, "the value: fits none of the allowed forms"),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, None, ""),
        ({"anyOf": []}, 4, ""),
        ({"minimum": 1, "maximum": 1}, 1, ""),
        ({"minimum": 1}, 0, "the value: is less than 1"),
        ({"minimum": 5}, True, ""),
        ({"minLength": 1, "maxLength": 1, "minItems": 5}, "x", ""),
        ({"maxLength": 1}, "", ""),
        ({"minLength": 1}, "", "the value: has a length of 0, which is out of bounds"),
        ({"maxLength": 1}, "xx", "the value: has a length of 2, which is out of bounds"),
        ({"minItems": 1, "maxItems": 1, "minLength": 5}, ["x"], ""),
        ({"minItems": 1}, [], "the value: has a length of 0, which is out of bounds"),
        ({"maxItems": 1}, [1, 2], "the value: has a length of 2, which is out of bounds"),
        ({"items": {"type": "string"}}, ["x", 1], "[1]: is not of type string"),
        ({"items": {"type": "string"}}, ("x", 1), "[1]: is not of type string"),
        ({"items": True}, [1], ""),
        ({"properties": {"a": {"required": ["b"]}}}, {"a": {}}, "a.b: is missing"),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}, "a: is not of type string"),
        ({"additionalProperties": False}, {"a": 1}, "a: is not an argument"),
        ({"additionalProperties": True}, {"a": 1}, ""),
        ({"properties": {}}, {"a": 1}, ""),
        ({"$ref": "#/$defs/none/x", "$defs": {}}, 1, ""),
    ],
    ids=repr,
)
def test_each_keyword_accepts_and_refuses(schema: dict[str, Any], value: Any, expected: str) -> None:
    assert find_mismatch(value, schema) == expected


#: By keyword: a schema one level deeper, and a value that meets it.
LEVELS: dict[str, tuple[Any, Any]] = {
    "items": (lambda inner: {"items": inner}, lambda value: [value]),
    "allOf": (lambda inner: {"allOf": [inner]}, lambda value: value),
    "anyOf": (lambda inner: {"anyOf": [inner]}, lambda value: value),
    "properties": (lambda inner: {"properties": {"a": inner}}, lambda value: {"a": value}),
    "additionalProperties": (lambda inner: {"additionalProperties": inner}, lambda value: {"a": value}),
}


@pytest.mark.parametrize("keyword", LEVELS)
def test_data_is_checked_down_to_50_levels(keyword: str) -> None:
    deepen_schema, deepen_value = LEVELS[keyword]
    schema, value = {"const": 1}, 2
    for _ in range(50):
        schema, value = deepen_schema(schema), deepen_value(value)
    assert find_mismatch(value, schema).endswith(": is not 1")
    assert find_mismatch(deepen_value(value), deepen_schema(schema)) == ""


def test_references_are_followed_50_times() -> None:
    definitions: dict[str, Any] = {f"d{level}": {"$ref": f"#/$defs/d{level + 1}"} for level in range(50)}
    definitions["d50"] = {"const": 1}
    assert find_mismatch(2, {"$ref": "#/$defs/d1", "$defs": definitions}) == "the value: is not 1"
    assert find_mismatch(2, {"$ref": "#/$defs/d0", "$defs": definitions}) == ""
