"""Arguments of the wrong type, and those just outside of a bound, are refused with a text that says what to give."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast.clock import Clock
from holdfast.core.errors import DefinitionError
from holdfast.core.validation import (
    check_callable,
    check_choice,
    check_count,
    check_duration,
    check_flag,
    check_labels,
    check_protocol,
    check_text,
    check_type,
    to_utc,
)
from holdfast.testing.manual_clock import ManualClock

ZERO, TICK = timedelta(0), timedelta(microseconds=1)


def positive(name: str, value: Any) -> None:
    check_duration(name, value, positive=True)


def whole(name: str, value: Any) -> None:
    check_type(name, value, int)


def listed(name: str, value: Any) -> None:
    check_type(name, value, list)


def clock(name: str, value: Any) -> None:
    check_protocol(name, value, Clock)


def labels(name: str, value: Any) -> None:
    check_labels(value)


def choice(name: str, value: Any) -> None:
    check_choice(name, value, ("red", "blue"))


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (whole, 0),
        (check_text, ""),
        (check_flag, False),
        (check_count, 1),
        (check_duration, ZERO),
        (positive, TICK),
        (choice, "blue"),
        (check_callable, print),
        (clock, ManualClock()),
        (labels, {str(number): "" for number in range(64)}),
        (labels, {"n" * 200: "v" * 1000}),
        (to_utc, datetime(1970, 1, 1, tzinfo=UTC)),
        (to_utc, datetime(9000, 1, 1, tzinfo=UTC) - TICK),
    ],
)
def test_a_value_within_its_bounds_is_accepted(check: Callable[[str, Any], object], value: Any) -> None:
    check("it", value)


@pytest.mark.parametrize(
    ("check", "value", "text"),
    [
        (whole, True, "it is True: give an int"),
        (whole, "1", "it is '1': give an int"),
        (listed, (), r"it is \(\): give a list"),
        (check_text, b"x", "it is b'x': give text"),
        (check_flag, 1, "it is 1: give True or False"),
        (check_count, 0, "it is 0: give a whole number of at least 1"),
        (check_count, True, "it is True: give a whole number of at least 1"),
        (check_count, 2.0, "it is 2.0: give a whole number of at least 1"),
        (check_duration, -TICK, "give a timedelta of zero or more"),
        (check_duration, 5, "it is 5: give a timedelta of zero or more"),
        (positive, ZERO, "give a timedelta of more than zero"),
        (positive, -TICK, "give a timedelta of more than zero"),
        (choice, "green", "it is 'green': give one of red, blue"),
        (choice, ["red"], r"it is \['red'\]: give one of red, blue"),
        (check_callable, 1, "it is 1: give a function"),
        (clock, 1, "it is 1: give a Clock, an object with the methods now, "),
        (clock, ManualClock, "give a Clock, an object with the methods now, "),
        (labels, ["a"], r"labels is \['a'\]: give a mapping from text to text"),
        (labels, {"a": 1}, "give a mapping from text to text"),
        (labels, {1: "a"}, "give a mapping from text to text"),
        (labels, {str(number): "" for number in range(65)}, "the run has 65 labels: give at most 64"),
        (labels, {"holdfast.x": "1"}, "the label 'holdfast.x' is set by holdfast: choose another name"),
        (labels, {"n" * 201: "v"}, "is too long: use 200 characters for the name, 1000 for the value"),
        (labels, {"n": "v" * 1001}, "is too long: use 200 characters for the name, 1000 for the value"),
        (to_utc, "now", "it is 'now': give a datetime with a time zone"),
        (to_utc, datetime(2030, 1, 1), "give a datetime with a time zone"),
        (to_utc, datetime(1970, 1, 1, tzinfo=UTC) - TICK, "give a time from 1970 to 8999"),
        (to_utc, datetime(9000, 1, 1, tzinfo=UTC), "give a time from 1970 to 8999"),
        (to_utc, datetime.max.replace(tzinfo=timezone(-timedelta(hours=2))), "give a time from 1970 to 8999"),
    ],
)
def test_another_value_is_refused(check: Callable[[str, Any], object], value: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        check("it", value)


def test_a_time_is_returned_in_utc() -> None:
    given = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert to_utc("it", given) == given
    assert to_utc("it", given).tzinfo is UTC
