"""Model calls of a run wait here until the limits of their provider allow them."""

from datetime import datetime, timedelta

from holdfast.core.agents.retry import get_retry_after
from holdfast.core.execution.attempt import RunExecution
from holdfast.core.ports import RatePermit
from holdfast.core.run.messages import Usage
from holdfast.core.run.waiting import RateLimitWait

#: A run waits in its process at most this long. For a longer wait it is released, and holds no slot of a worker.
MAX_PAUSE = timedelta(seconds=5)


class ModelGate:
    """The permits of the model calls of one conversation. A loop enters before each call."""

    __slots__ = ("_last_tokens", "_limits", "_permit", "_run", "has_limits")

    def __init__(self, run: RunExecution) -> None:
        self._run, self._limits = run, run.ports.rate_limiter
        #: Without them there is nothing to enter.
        self.has_limits: bool = self._limits is not None
        #: The permit of the call in progress, until its usage is known.
        self._permit: RatePermit | None = None
        usage = run.state.own_usage
        self._last_tokens = usage.total_tokens // max(usage.requests, 1)

    async def enter(self, model: str) -> None:
        """Return when the model may be called.

        Raises:
            RateLimitWait: that takes too long to wait for it in this process.
        """
        if self._limits is not None:
            self._permit = await self._acquire(model, in_place=self._run.checkpointer is None)

    async def acquire(self, model: str) -> RatePermit | None:
        """As `enter`, for calls within a tool or a node, which may be concurrent: waits in this process.

        End the call with `settle` or `fail`.
        """
        return None if self._limits is None else await self._acquire(model, in_place=True)

    async def _acquire(self, model: str, *, in_place: bool) -> RatePermit | None:
        run, limits = self._run, self._limits
        assert limits is not None, "checked by the callers"
        while True:
            answer = await limits.acquire(run.info, model, self._last_tokens)
            if not isinstance(answer, datetime):
                return answer
            wait = answer - run.clock.now()
            if wait > MAX_PAUSE and not in_place:
                raise RateLimitWait(run.info.run_id, model, answer)
            await run.pause(max(wait, timedelta(0)))

    def on_usage(self, usage: Usage) -> None:
        """Settle the call that `enter` has let pass. A reply without a count of tokens keeps the reservation."""
        if self._permit is not None:
            self.settle(self._permit, usage.total_tokens)
            self._permit = None

    def settle(self, permit: RatePermit | None, tokens: int) -> None:
        """Replace the reserved tokens of a call with those that it has used."""
        if permit is not None and self._limits is not None and tokens > 0:
            self._last_tokens = tokens
            self._limits.settle(permit, tokens)

    def on_error(self, error: BaseException) -> None:
        """End the call that `enter` has let pass, as `fail` does."""
        permit, self._permit = self._permit, None
        self.fail(permit, error)

    def fail(self, permit: RatePermit | None, error: BaseException) -> None:
        """Pass a `Retry-After` of the provider on to all runs. The reservation of a failed call stays."""
        if permit is None or self._limits is None:
            return
        delay = get_retry_after(error, self._run.clock.now())
        if delay:
            self._limits.pause(permit, delay)
