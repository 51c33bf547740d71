"""The model calls of a run: permits of the provider's limits, tries, and outages."""

from datetime import datetime, timedelta

import msgspec

from holdfast.core.agents.retry import Backoff, Retry, get_retry_after
from holdfast.core.errors import ModelUnavailable
from holdfast.core.execution.attempt import Attempt, report_retry
from holdfast.core.log import format_short
from holdfast.core.observer import MODEL_ASKED, REPLY_RECEIVED, ModelNamed, ReplyReceived
from holdfast.core.ports import RatePermit
from holdfast.core.run.messages import Usage
from holdfast.core.run.run_events import DraftRetracted
from holdfast.core.run.waiting import RateLimitWait

#: A run waits in its process at most this long. For a longer wait it is released, and holds no slot of a worker.
MAX_PAUSE = timedelta(seconds=5)

_FIRST_OUTAGE_DELAY = timedelta(seconds=30)
_MAX_OUTAGE_DELAY = timedelta(minutes=15)


def get_outage_delay(outages: int) -> timedelta:
    """Return how long a run stays interrupted the n-th time in a row that its model is unavailable."""
    return min(_FIRST_OUTAGE_DELAY * (1 << min(outages - 1, 10)), _MAX_OUTAGE_DELAY)


class ModelCalls:
    """The model calls of one phase or turn. A loop enters before each, and reports each error and each reply."""

    __slots__ = (
        "_attempt",
        "_backoff",
        "_final_error",
        "_last_tokens",
        "_limits",
        "_permit",
        "_retry",
        "enters",
        "has_limits",
    )

    def __init__(self, attempt: Attempt, retry: Retry) -> None:
        self._attempt, self._retry, self._limits = attempt, retry, attempt.services.ports.rate_limiter
        self.has_limits: bool = self._limits is not None
        #: Whether `enter` does anything.
        self.enters: bool = self.has_limits or ModelNamed in attempt.observers.wanted
        #: The permit of the call in progress, until its usage is known.
        self._permit: RatePermit | None = None
        usage = attempt.state.own_usage
        self._last_tokens = usage.total_tokens // max(usage.requests, 1)
        #: The pauses between the tries of the current call, once it has failed.
        self._backoff: Backoff | None = None
        #: The error that ended the tries.
        self._final_error: ModelUnavailable | None = None

    async def enter(self, model: str) -> None:
        """Return when the model may be called.

        Raises:
            RateLimitWait: that takes too long to wait for it in this process.
        """
        if ModelNamed in self._attempt.observers.wanted:
            self._attempt.observers.emit(ModelNamed(model))
        if self._limits is not None:
            self._permit = await self._acquire(model, in_place=self._attempt.checkpointer is None)

    async def on_error(self, error: Exception) -> None:
        """Pause after a failed model call. Once this returns, call the model again.

        Raises:
            ModelUnavailable: the tries are exhausted. The run is interrupted and resumes after a delay, which grows.
            Exception: `error` itself, if it is not transient.
        """
        attempt, stop = self._attempt, self._attempt.stop_state
        self.retract_draft()
        permit, self._permit = self._permit, None
        self.fail(permit, error)
        interrupts = stop.is_resumable_after(error) and not isinstance(error, ModelUnavailable)
        if error is self._final_error or interrupts or stop.is_stopping or not self._retry.is_transient(error):
            raise error
        if self._backoff is None:
            self._backoff = Backoff(self._retry, attempt.services.clock)
        delay = self._backoff.next_delay(error)
        if delay is None:
            self._final_error = self._make_final_error(error, self._backoff.failed_tries)
            raise self._final_error from error
        await report_retry(attempt, self._backoff.failed_tries, delay, error)
        await stop.pause(delay)
        attempt.observers.emit(MODEL_ASKED)

    def on_reply(self, model: str = "") -> None:
        """Record that the model replied: the next call has all its tries, and the next outage a short delay.

        Args:
            model: the model that has replied, as the provider names it, if that is known.
        """
        self._backoff = None
        attempt = self._attempt
        if ReplyReceived in attempt.observers.wanted:
            attempt.observers.emit(ReplyReceived(model) if model else REPLY_RECEIVED)
        retry = attempt.state.retry
        if retry.next_at is not None or retry.outages:
            attempt.state.retry = msgspec.structs.replace(retry, next_at=None, outages=0)

    def on_usage(self, usage: Usage) -> None:
        """Settle the call that `enter` has let pass. A reply without a count of tokens keeps the reservation."""
        if self._permit is not None:
            self.settle(self._permit, usage.total_tokens)
            self._permit = None

    def retract_draft(self) -> None:
        """Withdraw the text of the reply in progress that was shown."""
        attempt = self._attempt
        if DraftRetracted in attempt.observers.wanted:
            attempt.observers.emit(DraftRetracted(run_id=attempt.info.run_id, step=attempt.state.steps + 1))

    def _make_final_error(self, error: Exception, tries: int) -> ModelUnavailable:
        attempt, clock = self._attempt, self._attempt.services.clock
        outages = attempt.state.retry.outages + 1
        attempt.state.retry = msgspec.structs.replace(
            attempt.state.retry, error=format_short(error), next_at=None, outages=outages
        )
        asked = get_retry_after(error, clock.now()) or timedelta(0)
        delay = max(get_outage_delay(outages), asked)
        times = "1 attempt" if tries == 1 else f"{tries} attempts"
        resumes = f", and resumes after {delay.total_seconds():g} seconds" if attempt.checkpointer is not None else ""
        return ModelUnavailable(
            f"run {attempt.info.run_id} waits for its model after {times}{resumes}: {format_short(error)}", delay
        )

    # -- permits ------------------------------------------------------------------------------------------------------

    async def acquire(self, model: str) -> RatePermit | None:
        """As `enter`, for calls within a tool or a node, which may be concurrent: waits in this process.

        End the call with `settle` or `fail`.
        """
        return None if self._limits is None else await self._acquire(model, in_place=True)

    async def _acquire(self, model: str, *, in_place: bool) -> RatePermit | None:
        attempt, limits = self._attempt, self._limits
        assert limits is not None, "checked by the callers"
        while True:
            answer = await limits.acquire(attempt.info, model, self._last_tokens)
            if not isinstance(answer, datetime):
                return answer
            wait = answer - attempt.services.clock.now()
            if wait > MAX_PAUSE and not in_place:
                raise RateLimitWait(attempt.info.run_id, model, answer)
            await attempt.stop_state.pause(max(wait, timedelta(0)))

    def settle(self, permit: RatePermit | None, tokens: int) -> None:
        """Replace the reserved tokens of a call with those that it has used."""
        if permit is not None and self._limits is not None and tokens > 0:
            self._last_tokens = tokens
            self._limits.settle(permit, tokens)

    def fail(self, permit: RatePermit | None, error: BaseException) -> None:
        """Pass a `Retry-After` of the provider on to all runs. The reservation of a failed call stays."""
        if permit is None or self._limits is None:
            return
        delay = get_retry_after(error, self._attempt.services.clock.now())
        if delay:
            self._limits.pause(permit, delay)
