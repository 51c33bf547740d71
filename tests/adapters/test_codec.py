"""Messages and outputs as they are stored, and as they come back."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NotRequired

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_ai import BinaryContent, DeferredToolRequests, NativeOutput, TextOutput, ToolOutput
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage
from typing_extensions import TypedDict

from holdfast.adapters.pydantic_ai.message_codec import CODEC, make_output_codec
from holdfast.core.errors import PayloadError

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=8,
)
_WHEN = st.datetimes(timezones=st.just(UTC))


def _requests() -> st.SearchStrategy[ModelMessage]:
    parts: st.SearchStrategy[Any] = st.one_of(
        st.builds(SystemPromptPart, _TEXT, timestamp=_WHEN),
        st.builds(UserPromptPart, _TEXT | st.lists(_TEXT, max_size=3), timestamp=_WHEN),
        st.builds(RetryFeedbackPart, _TEXT, retry=st.just(RetryInfo(cause="model_retry")), timestamp=_WHEN),
        st.builds(ToolReturnPart, _TEXT, _JSON | st.binary(), _TEXT, metadata=_JSON, timestamp=_WHEN),
    )
    metadata = st.none() | st.dictionaries(_TEXT, _JSON, min_size=1, max_size=2)
    return st.builds(ModelRequest, st.lists(parts, min_size=1, max_size=4), metadata=metadata)


def _replies() -> st.SearchStrategy[ModelMessage]:
    parts: st.SearchStrategy[Any] = st.one_of(
        st.builds(TextPart, _TEXT),
        st.builds(ThinkingPart, _TEXT, signature=st.none() | _TEXT),
        st.builds(ToolCallPart, _TEXT, _TEXT | st.dictionaries(_TEXT, _JSON, max_size=3), _TEXT),
    )
    usage = st.builds(RequestUsage, input_tokens=st.integers(0, 10**9), output_tokens=st.integers(0, 10**9))
    return st.builds(ModelResponse, st.lists(parts, max_size=4), usage=usage, timestamp=_WHEN)


@given(_requests() | _replies())
def test_a_message_comes_back_equal_and_fits_on_a_line(message: ModelMessage) -> None:
    body = CODEC.encode(message)
    assert b"\n" not in body
    assert CODEC.decode(body) == message
    assert CODEC.encode(CODEC.decode(body)) == body


def test_binary_content_comes_back() -> None:
    content: list[Any] = [
        BinaryContent(bytes(range(256)), media_type="audio/wav"),
        ImageUrl("https://example.com/a.png"),
    ]
    sent = ModelRequest(parts=[UserPromptPart(["hear", *content]), ToolReturnPart("t", {"files": content}, "c1")])
    prompt, result = CODEC.decode(CODEC.encode(sent)).parts
    assert isinstance(prompt, UserPromptPart)
    assert isinstance(result, ToolReturnPart)
    assert prompt.content == ["hear", *content]
    assert result.content == {"files": content}


def test_what_cannot_be_stored_is_refused() -> None:
    for content in (object(), "\ud800", {"deep": [object()]}):
        with pytest.raises(PayloadError):
            CODEC.encode(ModelRequest(parts=[ToolReturnPart("t", content, "c1")]))
    with pytest.raises(PayloadError):
        CODEC.decode(b'{"kind": "of its own"}')


class Trip(BaseModel):
    city: str
    when: datetime


class Hotel(BaseModel):
    city: str


@dataclass
class Ticket:
    seat: str


class Visit(TypedDict):
    city: str
    nights: NotRequired[int]


class Flight(TypedDict):
    seat: str


def plain_text(text: str) -> int:
    return len(text)


TRIP = Trip(city="Lyon", when=datetime(2026, 5, 1, 12, tzinfo=UTC))


OUTPUTS: list[tuple[Any, Any]] = [
    (str, "text"),
    (Trip, TRIP),
    (Ticket, Ticket("4a")),
    ([Trip, Hotel], Hotel(city="Faro")),
    ([Trip, Hotel, DeferredToolRequests], TRIP),
    (Trip | Hotel, TRIP),
    (ToolOutput(Trip, name="done"), TRIP),
    ([ToolOutput(Trip, name="a"), ToolOutput(Hotel, name="b"), str], "or text"),
    (NativeOutput([Trip, Hotel]), TRIP),
    (TextOutput(plain_text), 12),
    (plain_text, 7),
    (list[Trip], [TRIP]),
    (dict[str, int], {"a": 1}),
    (bytes, b"\xff\x00"),
    ([str, None], None),
    (bool, True),
    (Visit, {"city": "Faro"}),
    ([Trip, Visit, Flight], {"seat": "4a"}),
    ([Flight, Visit], {"city": "Faro", "nights": 2}),
    ([str, Visit], {"city": "Faro"}),
]


@pytest.mark.parametrize(("spec", "output"), OUTPUTS)
def test_an_output_comes_back_with_its_type(spec: Any, output: Any) -> None:
    outputs = make_output_codec(spec)
    back = outputs.load(outputs.dump(output))
    assert back == output
    assert type(back) is type(output)


def test_one_output_type_is_stored_plain() -> None:
    assert make_output_codec(Trip).dump(TRIP) == {"city": "Lyon", "when": "2026-05-01T12:00:00Z"}
    assert make_output_codec([Hotel, str]).dump("x") == {"type": "str", "value": "x"}


def test_an_output_that_would_come_back_changed_is_refused() -> None:
    refused: list[tuple[Any, Any]] = [(str, object()), (float, float("nan")), (Any, object())]
    for spec, output in refused:
        with pytest.raises(PayloadError):
            make_output_codec(spec).dump(output)
