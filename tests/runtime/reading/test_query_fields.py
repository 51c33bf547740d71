"""The conditions of a listing as data."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.runtime.reading.query_fields import QUERY_FIELDS, encode_query


def test_each_condition_has_a_kind_and_a_sentence_for_users() -> None:
    assert [(field.name, field.kind, field.parameter, field.is_repeatable) for field in QUERY_FIELDS] == [
        ("status", "texts", "status", True),
        ("agent", "text", "agent", False),
        ("caller", "text", "caller", False),
        ("parent", "text", "parent", False),
        ("forked_from", "text", "forked_from", False),
        ("labels", "pairs", "label", True),
        ("since", "time", "since", False),
        ("until", "time", "until", False),
    ]
    assert all(field.help.startswith("Only ") for field in QUERY_FIELDS)


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ({}, {}),
        ({"status": "done", "agent": None}, {"status": ["done"]}),
        ({"status": {"done"}, "agent": "a"}, {"status": ["done"], "agent": "a"}),
        ({"labels": {"team": "a", "for": "b"}}, {"label": ["team=a", "for=b"]}),
        ({"since": datetime(2030, 1, 1, tzinfo=UTC)}, {"since": "2030-01-01T00:00:00+00:00"}),
    ],
)
def test_a_query_becomes_the_parameters_of_a_request(query: Any, parameters: dict[str, Any]) -> None:
    assert encode_query(query) == parameters
