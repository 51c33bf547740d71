"""Rolling minutes: the calls and tokens that were used, and where they are stored."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from holdfast.core.errors import RunInterrupted
from holdfast.db.tables import BatteryTables, Cursor, Schema, Tables, TablesError
from holdfast.root_error import HoldfastError


class RateLimitError(HoldfastError):
    """The settings of the provider limits are invalid.

    What to do: Correct the setting that the message names.
    """


class RateLimitsUnavailable(RateLimitError, RunInterrupted):
    """The database of the provider limits cannot be read or written. The run is interrupted.

    What to do: Make the database reachable: a worker resumes the run.
    """

    retry_after = timedelta(seconds=5)


#: The length of the window, in seconds.
WINDOW_S = 60


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider allows in any minute. `None`: not limited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise RateLimitError(f"{name} is {value!r}: give a whole number of at least 1, or None")

    @property
    def is_limited(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    def allows(self, requests: int, tokens: int) -> bool:
        """Whether a minute may contain this much."""
        return (self.requests_per_minute is None or requests <= self.requests_per_minute) and (
            self.tokens_per_minute is None or tokens <= self.tokens_per_minute
        )


class _Bucket(msgspec.Struct, array_like=True, gc=False):
    """The calls that began in one second."""

    requests: int = 0
    tokens: int = 0


class Window(msgspec.Struct):
    """The calls of the last minute with one key, counted by the second in which they began.

    A call counts for the whole second in which it began and 60 seconds more. So it counts for more than a minute and
    for at most 61 seconds, and no minute has more calls than the limit.
    """

    #: By the second since the epoch.
    buckets: dict[int, _Bucket] = msgspec.field(default_factory=dict)
    #: No call begins earlier. Seconds since the epoch.
    paused_until: float = 0.0

    @property
    def expires_at(self) -> float:
        """When it no longer counts anything, in seconds since the epoch."""
        return max([self.paused_until, *(second + WINDOW_S + 1.0 for second in self.buckets)])

    def forget_before(self, now: datetime) -> None:
        """Remove calls that no longer count."""
        first = math.floor(now.timestamp()) - WINDOW_S
        for second in [second for second in self.buckets if second < first]:
            del self.buckets[second]

    def find_time(self, limit: RateLimit, tokens: int, now: datetime) -> datetime:
        """Return when a call with this many tokens may begin: `now`, or later.

        A call with more tokens than a minute may contain is permitted when the window is empty.
        """
        requests, used = 1, tokens
        for bucket in self.buckets.values():
            requests, used = requests + bucket.requests, used + bucket.tokens
        begin = max(now.timestamp(), self.paused_until)
        for second in sorted(self.buckets):
            if begin < second + WINDOW_S + 1:  # else it no longer counts at `begin`
                if limit.allows(requests, used):
                    break
                begin = second + WINDOW_S + 1.0
            requests, used = requests - self.buckets[second].requests, used - self.buckets[second].tokens
        return now if begin <= now.timestamp() else datetime.fromtimestamp(begin, UTC)

    def add(self, at: datetime, tokens: int) -> None:
        """Count a call."""
        bucket = self.buckets.setdefault(math.floor(at.timestamp()), _Bucket())
        bucket.requests += 1
        bucket.tokens += tokens

    def correct(self, at: datetime, difference: int) -> None:
        """Change the tokens of a call that began at `at`, unless it no longer counts."""
        if bucket := self.buckets.get(math.floor(at.timestamp())):
            bucket.tokens = max(0, bucket.tokens + difference)

    def pause(self, now: datetime, delay: timedelta) -> None:
        """Permit no call until `delay` has passed. A longer pause that was asked for earlier stays."""
        self.paused_until = max(self.paused_until, (now + delay).timestamp())

    def copy_with(self, planned: Iterable[tuple[datetime, int]]) -> "Window":
        """Return a copy that counts further calls: the time and the tokens of each."""
        made = Window(
            buckets={second: _Bucket(each.requests, each.tokens) for second, each in self.buckets.items()},
            paused_until=self.paused_until,
        )
        for at, tokens in planned:
            made.add(at, tokens)
        return made


_T = TypeVar("_T")

SCHEMA = Schema(
    name="rate_limits",
    migrations=[
        [
            "CREATE TABLE rate_window (key TEXT PRIMARY KEY, state TEXT NOT NULL, "
            "expires_at DOUBLE PRECISION NOT NULL)",
            "CREATE INDEX rate_window_expires ON rate_window (expires_at)",
        ]
    ],
)

_UPSERT = (
    "INSERT INTO rate_window VALUES (?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET state = excluded.state, expires_at = excluded.expires_at"
)


class WindowTable(BatteryTables):
    """Keeps one window for each key. Atomic across tasks and processes. Windows that count nothing are deleted."""

    schema = SCHEMA

    def __init__(self, tables: Tables | None = None) -> None:
        super().__init__(tables)
        #: When it next deletes windows that count nothing.
        self._purge_at = datetime.min.replace(tzinfo=UTC)

    async def update(self, keys: Collection[str], change: Callable[[Mapping[str, Window]], _T], now: datetime) -> _T:
        """Apply `change` to the windows of `keys`, store them, and return its result.

        After a conflict the windows are read again, and `change` is called again.

        Raises:
            TablesError: nothing was changed.
        """

        async def work(cursor: Cursor) -> _T:
            stored = {key: await _load(cursor, key) for key in keys}
            windows = {key: _decode(key, state) for key, state in stored.items()}
            result = change(windows)
            for key, window in windows.items():
                state = msgspec.json.encode(window).decode()
                if state != stored[key]:
                    await cursor.execute(_UPSERT, (key, state, window.expires_at))
            if now >= self._purge_at:
                # A minute later than needed: the clock of another process may be slow.
                await cursor.execute("DELETE FROM rate_window WHERE expires_at < ?", (now.timestamp() - WINDOW_S,))
            return result

        result = await self.transaction(work, lock=[f"rate_limits {key}" for key in keys])
        if now >= self._purge_at:
            self._purge_at = now + timedelta(seconds=WINDOW_S)
        return result


async def _load(cursor: Cursor, key: str) -> str:
    rows = await cursor.execute("SELECT state FROM rate_window WHERE key = ?", (key,))
    return str(rows[0][0]) if rows else "{}"


def _decode(key: str, state: str) -> Window:
    try:
        return msgspec.json.decode(state, type=Window)
    except msgspec.MsgspecError as exc:
        raise TablesError(f"the window of {key} cannot be read, delete its row in rate_window: {exc}") from exc
