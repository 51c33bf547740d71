"""The provider limits: permits for model calls, written for all waiting runs in one transaction."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from holdfast.batteries.rate_limits.windows import RateLimit, RateLimitsUnavailable, Window, WindowTable
from holdfast.clock import CLOCK, Clock
from holdfast.core.ports import RatePermit
from holdfast.core.run.info import RunInfo
from holdfast.core.validation import check_type
from holdfast.db.tables import Tables, TablesError

log = logging.getLogger("holdfast.limits")

#: Returns the key whose limits a call counts against, from the run and the name of its model. `None`: no limits.
GetKey = Callable[[RunInfo, str], str | None]

#: Reserved for the first call of a run.
DEFAULT_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class _Request:
    """A call that asks for a permit."""

    key: str
    tokens: int
    answer: "asyncio.Future[RatePermit | datetime]"


@dataclass(frozen=True, slots=True)
class _Correction:
    """Corrects the tokens of an earlier call that reserved too few or too many."""

    key: str
    at: datetime
    difference: int


@dataclass(frozen=True, slots=True)
class _Pause:
    key: str
    delay: timedelta


_Change = _Request | _Correction | _Pause


class RateLimits:
    """Limits the model calls of all runs to what their provider allows. A run over the limit waits.

    Each model has limits of its own. The name of a model is `provider:model` with pydantic-ai, the name that the SDK
    or LangChain knows, or the name of a native agent's model function.
    """

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        models: Mapping[str, RateLimit] | None = None,
        key: GetKey | None = None,
        tables: Tables | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create limits. Without any, only a `Retry-After` of the provider is respected.

        Args:
            requests_per_minute: the limit of each model that `models` does not name.
            tokens_per_minute: the same for tokens.
            models: the limits of a model, by its name or by the key that `key` returns.
            key: for models that share their limits: returns the key that a call counts against.
            tables: keep the counts. Default: in the store of the App, shared by all its processes.

        Raises:
            RateLimitError: a limit is no positive number.
            DefinitionError: a value of `models` is no `RateLimit`.
        """
        self._default = RateLimit(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
        for name, limit in (models or {}).items():
            check_type(f"the limit of {name}", limit, RateLimit)
        self._models, self._key, self._clock = dict(models or {}), key, clock or CLOCK.get()
        self.tables = tables
        self._windows = WindowTable(tables)
        #: Not written yet, in order.
        self._changes: list[_Change] = []
        self._writer: asyncio.Task[None] | None = None
        #: By key: the calls of this process that wait, each with the time at which it will ask again and its tokens.
        self._planned: dict[str, list[tuple[datetime, int]]] = {}

    async def open(self, tables: Tables) -> None:
        """Open the counts: in `tables`, unless the limits were given others."""
        await self._windows.open(tables)

    async def acquire(self, info: RunInfo, model: str, tokens: int) -> RatePermit | datetime | None:
        """Return a permit for one call, or the time at which to ask again.

        Raises:
            RateLimitsUnavailable: the database cannot be reached.
        """
        key = model if self._key is None else self._key(info, model)
        if key is None:
            return None
        limit = self._get_limit(key)
        tokens = min(tokens or DEFAULT_TOKENS, limit.tokens_per_minute) if limit.tokens_per_minute is not None else 0
        answer: asyncio.Future[RatePermit | datetime] = asyncio.get_running_loop().create_future()
        self._enqueue(_Request(key, tokens, answer))
        try:
            return await answer
        except TablesError as exc:
            raise RateLimitsUnavailable(
                f"run {info.run_id} is interrupted, the limits of {key} cannot be read or written: {exc}"
            ) from exc

    def settle(self, permit: RatePermit, tokens: int) -> None:
        """Replace the tokens that were reserved with those that the call has used."""
        if self._get_limit(permit.key).tokens_per_minute is not None and tokens != permit.tokens:
            self._enqueue(_Correction(permit.key, permit.at, tokens - permit.tokens))

    def pause(self, permit: RatePermit, delay: timedelta) -> None:
        """Let the calls of the whole fleet with this key wait: the provider asked for it."""
        log.warning("the provider of %s asks for a pause of %.3g s", permit.key, delay.total_seconds())
        self._enqueue(_Pause(permit.key, delay))

    async def close(self) -> None:
        """Write what is not written yet, and close the tables. May be called again."""
        if self._writer is not None:
            await self._writer
        await self._windows.close()

    def _get_limit(self, key: str) -> RateLimit:
        return self._models.get(key, self._default)

    # -- writing ------------------------------------------------------------------------------------------------

    def _enqueue(self, change: _Change) -> None:
        """Write the change with all others that come while the write before it is in progress."""
        self._changes.append(change)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._changes:
                batch, self._changes = self._changes, []
                await self._write(batch)
        finally:
            self._writer = None

    async def _write(self, batch: Sequence[_Change]) -> None:
        try:
            keys = {each.key for each in batch}
            answers = await self._windows.update(keys, partial(self._apply, batch), self._clock.now())
        except TablesError as exc:
            log.warning("the provider limits could not be written: %s", exc)
            _refuse(batch, exc)
            return
        except BaseException:  # such as the end of the event loop
            _refuse(batch, TablesError("the write has stopped"))
            raise
        for request, answer in answers:
            if isinstance(answer, datetime):
                self._planned.setdefault(request.key, []).append((answer, request.tokens))
            if not request.answer.done():  # else its run has stopped, and its permit expires with the window
                request.answer.set_result(answer)

    def _apply(
        self, batch: Sequence[_Change], windows: Mapping[str, Window]
    ) -> list[tuple[_Request, RatePermit | datetime]]:
        """Change the windows, and return the answers to the requests."""
        now = self._clock.now()
        plans: dict[str, Window] = {}
        answers: list[tuple[_Request, RatePermit | datetime]] = []
        for window in windows.values():
            window.forget_before(now)
        for change in batch:
            window = windows[change.key]
            if isinstance(change, _Correction):
                window.correct(change.at, change.difference)
            elif isinstance(change, _Pause):
                window.pause(now, change.delay)
            else:
                answers.append((change, self._decide(change, window, plans, now)))
        return answers

    def _decide(
        self, request: _Request, window: Window, plans: dict[str, Window], now: datetime
    ) -> RatePermit | datetime:
        """Count the call if it may begin now. Else return a time for it that is after those of the waiting calls."""
        key, tokens, limit = request.key, request.tokens, self._get_limit(request.key)
        earliest = window.find_time(limit, tokens, now)
        if earliest <= now:
            if limit.is_limited:
                window.add(now, tokens)
                if key in plans:
                    plans[key].add(now, tokens)
            return RatePermit(key=key, at=now, tokens=tokens)
        if key not in plans:
            planned = self._planned[key] = [each for each in self._planned.get(key, ()) if each[0] > now]
            plans[key] = window.copy_with(planned)
        found = plans[key].find_time(limit, tokens, earliest)
        plans[key].add(found, tokens)
        return found


def _refuse(batch: Sequence[_Change], error: TablesError) -> None:
    """Answer the requests of a batch that was not written."""
    for each in batch:
        if isinstance(each, _Request) and not each.answer.done():
            each.answer.set_exception(error)
