"""A redactor sees the keys of objects, and tells apart those that become equal."""

from typing import Any

import pytest

from holdfast.core.redaction import Redactor

redact = Redactor(names=["password"], patterns=[r"sk-\d+", r"\d+"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"sk-1": 1}, {"[redacted]": 1}),
        ({"key sk-1!": {"sk-2": "sk-3"}}, {"key [redacted]!": {"[redacted]": "[redacted]"}}),
        ({"sk-1": 1, "sk-2": 2, "a": 3, "sk-3": 4}, {"[redacted]": 1, "[redacted b]": 2, "a": 3, "[redacted c]": 4}),
        ({"sk-1": 1, "[redacted]": 2}, {"[redacted b]": 1, "[redacted]": 2}),
        ({"address2": 1, "4711": 2}, {"address2": 1, "[redacted]": 2}),
        ([{"sk-1": [{"sk-2": 1}]}], [{"[redacted]": [{"[redacted]": 1}]}]),
        (
            {"Password": "x", "sk-1": {"password": "y"}},
            {"Password": "[redacted]", "[redacted]": {"password": "[redacted]"}},
        ),
    ],
)
def test_keys_are_redacted(value: Any, expected: Any) -> None:
    found = redact(value)
    assert found == expected
    assert list(found) == list(expected)
    assert redact(found) == found


def test_a_key_that_could_name_a_field_is_redacted_only_as_a_whole() -> None:
    assert Redactor(patterns=["AKIA[A-Z0-9]{4}"])({"AKIA1234": 1, "my_AKIA1234": 2}) == {
        "[redacted]": 1,
        "my_AKIA1234": 2,
    }


def test_many_keys_that_become_equal_stay_apart() -> None:
    found = redact({f"sk-{number}": number for number in range(1000)})
    assert list(found.values()) == list(range(1000))
    assert redact(found) == found
