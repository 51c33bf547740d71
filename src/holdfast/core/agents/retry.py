"""Retry: how many times and how long a failed call is retried, and which errors are transient."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.clock import Clock
from holdfast.core.errors import DefinitionError, ModelUnavailable, ToolTimeout
from holdfast.ids import draw_between
from holdfast.root_error import HoldfastError

#: Exception classes, or a function that says whether an error is transient.
RetryOn = tuple[type[BaseException], ...] | type[BaseException] | Callable[[BaseException], bool]

_TRANSIENT_STATUS_CODES = frozenset({408, 409, 425, 429})

#: Attributes that carry an HTTP status: `status_code` (httpx, openai, anthropic, pydantic-ai), `status` (aiohttp),
#: `code` (urllib, google).
_STATUS_ATTRIBUTES = ("status_code", "status", "code")

#: Connection and timeout errors of HTTP clients and provider SDKs, by class name: none of them is imported here.
_TRANSIENT_CLASS_NAMES = frozenset(
    {
        "APIConnectionError",  # openai, anthropic, groq
        "APITimeoutError",
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "ConnectionClosedError",  # botocore
        "ConnectionError",  # requests
        "ChunkedEncodingError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteRead",  # http.client
        "ModelConnectionError",  # pydantic-ai
        "ModelRateLimitError",
        "ModelRequestTimeout",
        "ModelServerError",
        "ModelUnavailableError",
        "NetworkError",
        "RemoteProtocolError",  # h11, httpcore
        "ServiceUnavailable",  # google
        "ServiceUnavailableError",
        "Timeout",
        "TimeoutException",  # httpx, httpcore
        "TransportError",
        "gaierror",  # socket
    }
)

#: Permanent errors whose class, status or cause looks transient.
_PERMANENT_CLASS_NAMES = frozenset(
    {"LocalProtocolError", "ModelQuotaExceededError", "UnsupportedProtocol", "UsageLimitExceeded"}
)

_TRANSIENT_ERRNOS = frozenset(
    {
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ETIMEDOUT,
    }
)

#: A longer `Retry-After` is cut to this.
MAX_RETRY_AFTER = timedelta(days=1)
#: A number of seconds or milliseconds that is larger than `MAX_RETRY_AFTER`, and still fits a timedelta.
_MAX_NUMBER = 1e9

#: A chain of causes longer than this is not followed.
_MAX_CAUSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How a failed model call or tool call is retried.

    Transient by default: timeouts, connection errors, the HTTP statuses 408, 409, 425, 429 and 5xx, and
    `ModelUnavailable`. Other errors are not retried.
    """

    #: The first one included.
    max_tries: int = 5
    #: The longest pause before the second attempt. It doubles with each further attempt.
    initial_delay: timedelta = timedelta(seconds=1)
    #: No pause is longer, unless the provider asks for it with `Retry-After`.
    max_delay: timedelta = timedelta(seconds=30)
    #: The random part of a pause, from 0 (none) to 1 (any pause up to the full one). Spreads the retries of many runs.
    jitter: float = 1.0
    #: No attempt begins later than this after the first error.
    max_elapsed: timedelta = timedelta(minutes=2)
    #: Errors that are transient too.
    retry_on: RetryOn = ()

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            DefinitionError: a value has the wrong type or is out of range.
        """
        if type(self.max_tries) is not int or self.max_tries < 1:
            raise DefinitionError(f"max_tries is {self.max_tries!r}: give a whole number of at least 1")
        for name in ("initial_delay", "max_delay", "max_elapsed"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < timedelta(0):
                raise DefinitionError(f"{name} is {value!r}: give a timedelta that is not negative")
        if isinstance(self.jitter, bool) or not isinstance(self.jitter, int | float) or not 0 <= self.jitter <= 1:
            raise DefinitionError(f"jitter is {self.jitter!r}: give a number from 0 to 1")
        _check_retry_on(self.retry_on)

    def is_transient(self, error: BaseException) -> bool:
        """Whether a later attempt may succeed."""
        if is_transient(error):
            return True
        if isinstance(self.retry_on, tuple | type):
            return isinstance(error, self.retry_on)
        return bool(self.retry_on(error))

    def delay(self, attempt: int) -> timedelta:
        """Return the delay after this try. The first try is 1."""
        # A large exponent would overflow; by then `max_delay` is reached.
        doubled = self.initial_delay.total_seconds() * 2.0 ** min(attempt - 1, 60)
        full = min(doubled, self.max_delay.total_seconds())
        return timedelta(seconds=full * draw_between(1 - self.jitter, 1))


def _check_retry_on(given: Any) -> None:
    types = given if isinstance(given, tuple) else (given,) if isinstance(given, type) else None
    if types is None and not callable(given):
        raise DefinitionError(f"retry_on is {given!r}: give exception classes, or a function of an exception")
    for each in types or ():
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise DefinitionError(f"retry_on has {each!r}, which is not an exception class")


class Backoff:
    """The tries of one call: counts them and says when the next one may begin."""

    def __init__(self, policy: Retry, clock: Clock) -> None:
        """Begin at the first error."""
        self._policy, self._clock, self._began_at = policy, clock, clock.monotonic()
        #: Failed tries.
        self.failed_tries: int = 0

    def next_delay(self, error: BaseException) -> timedelta | None:
        """Return the pause before the next attempt after one that failed with `error`; `None`: give up."""
        self.failed_tries += 1
        if self.failed_tries >= self._policy.max_tries:
            return None
        delay = max(self._policy.delay(self.failed_tries), get_retry_after(error, self._clock.now()) or timedelta(0))
        elapsed = timedelta(seconds=self._clock.monotonic() - self._began_at)
        return delay if elapsed + delay <= self._policy.max_elapsed else None


def is_transient(error: BaseException) -> bool:
    """Whether `error`, or an error that is its cause, says that a later attempt may succeed.

    A group of errors is transient if all of them are.
    """
    for each in _list_causes(error):
        known = _classify(each)
        if known is not None:
            return known
    return False


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its cause (`raise ... from`), the cause of that, and so on."""
    current: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if current is None:
            return
        yield current
        reason = getattr(current, "reason", None)  # urllib's URLError has no cause
        current = current.__cause__ or (reason if isinstance(reason, BaseException) else None)


def _classify(error: BaseException) -> bool | None:
    """Whether the error itself is transient; `None` if it does not say."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_transient(each) for each in error.exceptions)
    if isinstance(error, ToolTimeout):
        return not error.may_be_running
    if isinstance(error, HoldfastError):
        return isinstance(error, ModelUnavailable)
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _PERMANENT_CLASS_NAMES:
        return False
    status = get_status_code(error)
    if status is not None:
        return status in _TRANSIENT_STATUS_CODES or status >= 500
    if isinstance(error, TimeoutError | ConnectionError) or names & _TRANSIENT_CLASS_NAMES:
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return True
    return None


def get_status_code(error: BaseException) -> int | None:
    """Return the HTTP status of the error or of its `response`; `None` if there is none."""
    for owner in (error, getattr(error, "response", None)):
        for name in _STATUS_ATTRIBUTES:
            status = getattr(owner, name, None)
            if isinstance(status, int) and 400 <= status <= 599:
                return status
    return None


def get_retry_after(error: BaseException, now: datetime) -> timedelta | None:
    """Return the wait that the provider asked for; `None` if it did not. At most `MAX_RETRY_AFTER`.

    It is read from `ModelUnavailable`, from `retry_after` of pydantic-ai's errors, or from the headers `retry-after-ms`
    and `Retry-After` of the error or its `response`. Of a group of errors the shortest wait counts.
    """
    for each in _list_causes(error):
        if isinstance(each, BaseExceptionGroup):
            waits = [wait for inner in each.exceptions if (wait := get_retry_after(inner, now)) is not None]
            wait = min(waits, default=None)
        elif isinstance(each, ModelUnavailable):
            wait = each.requested_delay
        else:
            wait = _read_wait(each, now)
        if wait is not None:
            return min(max(wait, timedelta(0)), MAX_RETRY_AFTER)
    return None


def _read_wait(error: BaseException, now: datetime) -> timedelta | None:
    stated = _to_duration(getattr(error, "retry_after", None))
    if stated is not None:
        return stated
    for owner in (getattr(error, "response", None), error):
        if (found := _read_headers(getattr(owner, "headers", None), now)) is not None:
            return found
    return None


def _read_headers(headers: Any, now: datetime) -> timedelta | None:
    try:
        lower = {str(name).lower(): str(value) for name, value in headers.items()}
    except Exception:  # none, or the object of a library that we do not know, which may raise anything
        return None
    milliseconds = _to_duration(lower.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = lower.get("retry-after")
    if text is None:
        return None
    seconds = _to_duration(text)
    return seconds if seconds is not None else _parse_http_date(text, now)


def _to_duration(given: Any) -> timedelta | None:
    """Return a number of seconds as a duration; `None` if it is none."""
    if isinstance(given, timedelta):
        return given
    try:
        seconds = float(given)
        return timedelta(seconds=min(seconds, _MAX_NUMBER)) if seconds >= 0 else None
    except (TypeError, ValueError, OverflowError):
        return None


def _parse_http_date(text: str, now: datetime) -> timedelta | None:
    try:
        return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC) - now
    except ValueError:
        return None
