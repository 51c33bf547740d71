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
