"""The retry policy: which errors are transient, how long a pause is, and what a provider asked for."""

import errno
import socket
import urllib.error
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import FallbackExceptionGroup, ModelAPIError, ModelHTTPError, ModelQuotaExceededError

from holdfast import Retry
from holdfast.core.agents.retry import MAX_RETRY_AFTER, Backoff, get_retry_after, is_transient
from holdfast.core.errors import DefinitionError, InvalidReply, SaveFailed, ToolTimeout
from holdfast.errors import ModelUnavailable
from holdfast.testing.manual_clock import ManualClock

SECOND = timedelta(seconds=1)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
REQUEST = httpx.Request("POST", "http://model")


class StatusError(Exception):
    """An error as a provider's SDK raises it."""

    def __init__(self, status_code: Any, headers: Any = None) -> None:
        super().__init__(f"status {status_code}")
        self.status_code, self.headers = status_code, headers


class ResponseError(Exception):
    def __init__(self, status: int, headers: Any = None) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


class StatedWait(Exception):
    """An error with an attribute, beside a header that counts only without it."""

    def __init__(self, retry_after: Any) -> None:
        super().__init__(f"retry after {retry_after}")
        self.retry_after, self.headers = retry_after, {"Retry-After": "5"}


def caused_by(cause: BaseException) -> Exception:
    error = RuntimeError("the request failed")
    error.__cause__ = cause
    return error


def openai_error(status: int, headers: dict[str, str] | None = None) -> Exception:
    response = httpx.Response(status, headers=headers, request=REQUEST)
    return openai.APIStatusError("no", response=response, body=None)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionError(),
        ConnectionResetError(),
        OSError(errno.EHOSTUNREACH, "no route"),
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        urllib.error.URLError(ConnectionRefusedError()),
        urllib.error.HTTPError("http://model", 503, "busy", Message(), None),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut"),
        openai.APIConnectionError(request=REQUEST),
        openai.APITimeoutError(request=REQUEST),
        *(openai_error(status) for status in (408, 409, 429, 500, 529)),
        *(StatusError(status) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529, 599)),
        ResponseError(429),
        ModelHTTPError(429, "m"),
        ModelUnavailable("away"),
        caused_by(httpx.ConnectError("refused")),
        caused_by(caused_by(StatusError(503))),
        FallbackExceptionGroup("all", [ModelHTTPError(500, "m"), ModelHTTPError(429, "n")]),
        ToolTimeout("t", SECOND, may_be_running=False),
    ],
    ids=repr,
)
def test_errors_that_a_later_attempt_may_mend(error: BaseException) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("broken"),
        FileNotFoundError("no file"),
        OSError(errno.ENOSPC, "full"),
        httpx.UnsupportedProtocol("ftp"),
        *(openai_error(status) for status in (400, 401, 404, 422)),
        *(StatusError(status) for status in (200, 302, 400, 401, 403, 404, 410, 422, 600, True, "429", None)),
        urllib.error.HTTPError("http://model", 404, "gone", Message(), None),
        ModelHTTPError(400, "m"),
        ModelQuotaExceededError("m", "no money"),
        ModelAPIError("m", "unknown"),
        InvalidReply("not a reply"),
        SaveFailed("the store is away"),
        caused_by(StatusError(400)),
        FallbackExceptionGroup("all", [ModelHTTPError(500, "m"), ModelHTTPError(400, "n")]),
        ToolTimeout("t", SECOND, may_be_running=True),
    ],
    ids=repr,
)
def test_errors_that_are_not_transient(error: BaseException) -> None:
    assert not is_transient(error)


def test_the_status_of_an_error_goes_before_its_cause() -> None:
    error = StatusError(400)
    error.__cause__ = ConnectionError()
    assert not is_transient(error)


def test_causes_that_form_a_circle_are_followed_only_so_far() -> None:
    one, two = RuntimeError(), RuntimeError()
    one.__cause__, two.__cause__ = two, one
    assert not is_transient(one)
    assert get_retry_after(one, NOW) is None


def test_ten_causes_are_followed() -> None:
    error: BaseException = ModelUnavailable("away", SECOND)
    for _ in range(9):
        error = caused_by(error)
    assert is_transient(error)
    assert get_retry_after(error, NOW) == SECOND
    assert not is_transient(caused_by(error))
    assert get_retry_after(caused_by(error), NOW) is None


def test_further_errors_are_named_by_class_or_by_function() -> None:
    assert Retry(retry_on=KeyError).is_transient(KeyError())
    assert Retry(retry_on=(KeyError, ValueError)).is_transient(ValueError())
    by_text = Retry(retry_on=lambda error: "soon" in str(error))
    assert by_text.is_transient(ValueError("soon"))
    assert not by_text.is_transient(ValueError("never"))
    assert by_text.is_transient(TimeoutError())


@pytest.mark.parametrize(
    "options",
    [
        {"max_tries": 0},
        {"max_tries": 2.0},
        {"max_tries": True},
        {"initial_delay": 1},
        {"max_delay": -SECOND},
        {"max_elapsed": None},
        {"max_elapsed": 120},
        {"jitter": 2},
        {"jitter": "full"},
        {"jitter": float("nan")},
        {"retry_on": "TimeoutError"},
        {"retry_on": [ValueError]},
        {"retry_on": (ValueError, 3)},
        {"retry_on": int},
    ],
    ids=repr,
)
def test_wrong_values_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(options))):
        Retry(**options)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StatusError(429, {"Retry-After": "7"}), 7),
        (StatusError(429, {"retry-after": "1.5"}), 1.5),
        (StatusError(429, {"retry-after-ms": "250", "retry-after": "9"}), 0.25),
        (StatusError(429, {"Retry-After": format_datetime(NOW + timedelta(minutes=3), usegmt=True)}), 180),
        (StatusError(429, {"Retry-After": format_datetime(NOW - timedelta(minutes=3), usegmt=True)}), 0),
        (ResponseError(503, httpx.Headers({"Retry-After": "4"})), 4),
        (openai_error(429, {"Retry-After": "3"}), 3),
        (caused_by(openai_error(429, {"Retry-After": "3"})), 3),
        (ModelHTTPError(429, "m", headers={"retry-after": "6"}), 6),
        (ModelUnavailable("away", 12 * SECOND), 12),
        (ModelUnavailable("away"), None),
        (FallbackExceptionGroup("g", [ModelUnavailable("a", 9 * SECOND), ModelUnavailable("b", 5 * SECOND)]), 5),
        (StatusError(429, {"Retry-After": "9" * 400}), MAX_RETRY_AFTER.total_seconds()),
        (StatusError(429, {"Retry-After": "inf"}), MAX_RETRY_AFTER.total_seconds()),
        *((StatusError(429, {"Retry-After": text}), None) for text in ("", "nan", "-3", "soon", "Mon, 99 Foo 2030")),
        (StatusError(429, "Retry-After: 3"), None),
        (StatusError(429, {"Retry-After": "0"}), 0),
        (StatusError(429, {"retry-after-ms": "-1", "retry-after": "9"}), 9),
        (StatedWait(7), 7),
        (StatedWait(timedelta(minutes=1)), 60),
        (StatedWait(timedelta(minutes=-1)), 0),
        (StatedWait(None), 5),
        (caused_by(caused_by(ModelUnavailable("away", SECOND))), 1),
        (FallbackExceptionGroup("g", [ValueError(), ModelUnavailable("a", 9 * SECOND)]), 9),
        (FallbackExceptionGroup("g", [ValueError()]), None),
        (StatusError(429, {"Retry-After": "86401"}), 86400),
        (StatusError(429, {"retry-after-ms": "86400001"}), 86400),
        (StatusError(429, {"Retry-After": "86399"}), 86399),
        (StatusError(429), None),
        (ValueError(), None),
    ],
    ids=str,
)
def test_the_wait_that_a_provider_asks_for(error: BaseException, expected: float | None) -> None:
    assert get_retry_after(error, NOW) == (None if expected is None else timedelta(seconds=expected))


DURATIONS = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400))


@given(
    st.builds(
        Retry,
        max_tries=st.integers(1, 200),
        initial_delay=DURATIONS,
        max_delay=DURATIONS,
        jitter=st.floats(0, 1),
        max_elapsed=DURATIONS,
    ),
    st.lists(st.none() | st.timedeltas(min_value=timedelta(0), max_value=timedelta(hours=30)), min_size=1, max_size=30),
)
def test_pauses_stay_within_the_policy(policy: Retry, waits: list[timedelta | None]) -> None:
    """Against a model: the n-th pause is at most the initial one, doubled n-1 times, and all of them fit the limit."""
    clock = ManualClock()
    backoff = Backoff(policy, clock)
    total, tolerance = timedelta(0), timedelta(milliseconds=1)
    for number, wait in enumerate(waits, start=1):
        delay = backoff.next_delay(ModelUnavailable("away", wait))
        asked = min(wait or timedelta(0), MAX_RETRY_AFTER)
        full = max(min(policy.initial_delay.total_seconds() * 2 ** (number - 1), policy.max_delay.total_seconds()), 0)
        shortest = max(asked, timedelta(seconds=full * (1 - policy.jitter)))
        longest = max(asked, timedelta(seconds=full))
        if delay is None:
            assert number >= policy.max_tries or total + longest + tolerance > policy.max_elapsed
            return
        assert number < policy.max_tries
        assert shortest - tolerance <= delay <= longest + tolerance
        total += delay
        clock._now += delay
        assert total <= policy.max_elapsed + tolerance


def test_without_jitter_the_pauses_double_up_to_the_longest_and_end_exactly_with_the_limit() -> None:
    policy = Retry(max_tries=6, jitter=0, initial_delay=SECOND, max_delay=5 * SECOND, max_elapsed=12 * SECOND)
    assert [policy.delay(number) / SECOND for number in range(1, 6)] == [1, 2, 4, 5, 5]
    clock = ManualClock()
    backoff = Backoff(policy, clock)
    for seconds in (1, 2, 4, 5):
        assert backoff.next_delay(TimeoutError()) == seconds * SECOND
        clock._now += seconds * SECOND
    assert backoff.next_delay(TimeoutError()) is None, "the limit is reached"
    assert backoff.failed_tries == 5
    last = Backoff(Retry(max_tries=2, jitter=0, max_elapsed=SECOND), clock)
    assert last.next_delay(TimeoutError()) == SECOND
    assert last.next_delay(TimeoutError()) is None, "both tries were made"


def test_the_smallest_and_largest_values_are_accepted() -> None:
    zero = timedelta(0)
    for jitter in (0, 1):
        policy = Retry(max_tries=1, jitter=jitter, initial_delay=zero, max_delay=zero, max_elapsed=zero)
        assert policy.delay(1) == zero
