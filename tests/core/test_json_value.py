"""What a store is given reads back the same, or is refused."""

import datetime
import decimal
import enum
import math
import sys
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import PayloadError
from holdfast.core.json_value import lower_durations, to_json_value


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Box:
    size: tuple[int, int]


class Letter(msgspec.Struct):
    text: str


class OwnInt(int):
    pass


def _cycle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def _deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


#: Every JSON value, with the hard ones among them.
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.integers(min_value=-(10**4000), max_value=10**4000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


def _exactly(value: Any) -> Any:
    """A form in which True is not 1, 1 is not 1.0 and -0.0 is not 0.0."""
    if type(value) is dict:
        return {key: _exactly(inner) for key, inner in value.items()}
    if type(value) is list:
        return [_exactly(inner) for inner in value]
    return type(value).__name__, repr(value) if isinstance(value, float) else value


@given(JSON)
def test_json_data_comes_back_exactly_as_it_was(value: Any) -> None:
    assert _exactly(to_json_value(value, "it")) == _exactly(value)


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, 1, 1.0, -0.0, 5e-324, sys.float_info.max, 2**64, -(2**63) - 1, 10**4000, "", "\0",
        "\u2028", "\U0010ffff", {"\0": "\0"}, {"": None}, [True, 1, 1.0, False, 0, 0.0, -0.0], [], {}, [[]],
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_hard_values_come_back_exactly_as_they_were(value: Any) -> None:
    assert _exactly(to_json_value(value, "it")) == _exactly(value)


@pytest.mark.parametrize(
    ("value", "lowered"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        ({"a": (True, 1)}, {"a": [True, 1]}),
        (Point(1, 2), [1, 2]),
        (Box((3, 4)), {"size": [3, 4]}),
        (Letter("x"), {"text": "x"}),
        (Colour.RED, "red"),
        ([Level.HIGH], [3]),
        ({Colour.RED: 1}, {"red": 1}),
        ({7}, [7]),
        (OrderedDict(a=1), {"a": 1}),
        (datetime.date(2030, 1, 2), "2030-01-02"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
    ids=repr,
)
def test_typed_values_are_lowered_to_plain_data(value: Any, lowered: Any) -> None:
    assert _exactly(to_json_value(value, "it")) == _exactly(lowered)


@pytest.mark.parametrize(
    "value",
    [
        math.nan, [math.nan], (math.nan,), {"a": math.inf}, -math.inf, "\ud800", ["\udfff"], {"\ud800": 1}, b"raw",
        [b"raw"], (b"raw",), bytearray(b"raw"), memoryview(b"raw"), {1: "a"}, {1: "a", "1": "b"}, {1.5: "a"},
        {True: "a"}, {None: "a"}, {(1, 2): "a"}, {Colour.RED: 1, "red": 2}, OwnInt(5), [OwnInt(5)], 1j, object(), int,
        range(3), iter(()), ValueError("x"), _cycle(), _deep(100_000), 10**5000, [10**5000],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_would_come_back_changed_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match=r"^the thing (cannot be stored|would come back changed).*(use|convert)"):
        to_json_value(value, "the thing")


def test_plain_data_is_a_copy() -> None:
    given = {"a": [1]}
    kept = to_json_value(given, "it")
    given["a"].append(2)
    assert kept == {"a": [1]}


@pytest.mark.parametrize(
    "value",
    [
        _deep(499),
        [[], _deep(498)],
        [[] for _ in range(600)],
        ["[{" for _ in range(600)],
        [["x"] for _ in range(600)],
        [{} for _ in range(600)] + [_deep(300)],
        [{"[": ['\\"[']} for _ in range(600)],
    ],
    ids=["deep", "deep after a list", "lists", "texts", "texts in lists", "objects before a deep list", "in keys"],
)
def test_500_levels_are_accepted_beside_any_number_of_brackets(value: Any) -> None:
    assert to_json_value(value, "it") == value


@pytest.mark.parametrize(
    "value",
    [_deep(500), [[] for _ in range(600)] + [_deep(500)], {"a": _deep(500)}],
    ids=["deep", "after other lists", "in an object"],
)
def test_501_levels_are_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match="it is nested deeper than 500 levels: return flatter data"):
        to_json_value(value, "it")


def test_durations_become_seconds_and_other_types_text() -> None:
    minute = datetime.timedelta(minutes=1)
    given = {"a": [minute, (minute, 1)], "b": {"c": minute}, "d": 1j, "e": Colour.RED, "f": None}
    assert lower_durations(given) == {"a": [60.0, [60.0, 1]], "b": {"c": 60.0}, "d": "1j", "e": "red", "f": None}


def test_values_of_500_levels_become_plain_data() -> None:
    minute: Any = datetime.timedelta(minutes=1)
    nested: Any = 60.0
    for _ in range(250):
        minute, nested = {"a": (minute,)}, {"a": [nested]}
    assert lower_durations(minute) == nested
    assert lower_durations(datetime.timedelta(minutes=1)) == 60.0
