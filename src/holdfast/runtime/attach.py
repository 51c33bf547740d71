"""A caller who asks for a run under an id that is known already meets that run, and never starts a second one."""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

from holdfast.checkpoint.errors import (
    CheckpointError,
    RunBusy,
    RunConflict,
    RunExists,
    RunNotClaimable,
    RunNotFound,
)
from holdfast.checkpoint.record import RunStatus
from holdfast.clock import Clock
from holdfast.core.errors import (
    RunAlreadyRunning,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunLost,
    RunParked,
    format_error,
)
from holdfast.core.execution.executor import Executor
from holdfast.core.info import RunInfo
from holdfast.core.result import Result
from holdfast.runtime.client import RunClient

#: How many ends of recovered runs are kept in mind for whoever asks for them by their id.
_MAX_OUTCOMES = 10_000

#: Before a run that this process has claimed is looked for again, until it is driven. The pauses after it grow.
_POLL_INTERVAL = timedelta(milliseconds=1)
#: A claim that the store would not take back may be held for long.
_MAX_POLL_INTERVAL = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _RecordedOutcome:
    """How a run ended. Holds nothing of its conversation: many ends may have to be remembered."""

    agent_name: str
    #: Of the prompt, which may be long.
    prompt_digest: bytes
    #: Or the error's text. The error itself holds frames, and they whole transcripts.
    result: Result | str
    cancelled: bool


class RecentOutcomes:
    """How runs ended in this process.

    What recovery has driven is remembered for whoever asks for it later: nobody has been told yet. What a caller has
    driven is known to that caller, and only noted for others who came before the end.
    """

    def __init__(self) -> None:
        self._outcomes: dict[str, _RecordedOutcome] = {}
        #: Of the runs that somebody looks for.
        self._transient: dict[str, _RecordedOutcome] = {}
        self._watchers: dict[str, int] = {}

    def record(self, info: RunInfo, outcome: Result | Exception) -> None:
        """Keep in mind how the run ended, and which run it was."""
        self._outcomes[info.run_id] = _make_outcome(info, outcome)
        if len(self._outcomes) > _MAX_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    def discard(self, run_id: str) -> None:
        """The run goes on: how it ended is not true any more."""
        self._outcomes.pop(run_id, None)
        self._transient.pop(run_id, None)

    @contextmanager
    def watching(self, run_id: str) -> Iterator[None]:
        """While somebody looks for the run, or drives it, its end can be noted."""
        self._watchers[run_id] = self._watchers.get(run_id, 0) + 1
        try:
            yield
        finally:
            self._watchers[run_id] -= 1
            if not self._watchers[run_id]:
                del self._watchers[run_id]
                self._transient.pop(run_id, None)

    def record_transient(self, info: RunInfo, outcome: Result | Exception) -> None:
        """Keep in mind how the run ended for as long as somebody looks for it."""
        if info.run_id in self._watchers:
            self._transient[info.run_id] = _make_outcome(info, outcome)

    def lookup(self, info: RunInfo, prompts: Collection[str]) -> Result | None:
        """The result; `None` if nothing is known of a run with this id.

        Args:
            prompts: what the prompt of `info` may be known as.

        Raises:
            RunConflict: it had another agent or prompt. RunFailed: it failed. RunCancelled: it was cancelled.
        """
        end = self._transient.get(info.run_id) or self._outcomes.get(info.run_id)
        if end is None:
            return None
        if end.agent_name != info.agent_name or end.prompt_digest not in map(_digest_prompt, prompts):
            raise RunConflict(info.run_id, end.agent_name)
        if isinstance(end.result, Result):
            return end.result
        if end.cancelled:
            raise RunCancelled(f"run {info.run_id} was cancelled")
        raise RunFailed(f"run {info.run_id} failed: {end.result}")


def _make_outcome(info: RunInfo, outcome: Result | Exception) -> _RecordedOutcome:
    result = replace(outcome, messages=()) if isinstance(outcome, Result) else format_error(outcome)
    return _RecordedOutcome(info.agent_name, _digest_prompt(info.prompt), result, isinstance(outcome, RunCancelled))


def _digest_prompt(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode(errors="surrogatepass")).digest()


class RunAttacher:
    """Brings a caller and the run with its id together."""

    def __init__(
        self,
        client: RunClient,
        executor: Executor,
        outcomes: RecentOutcomes,
        *,
        worker_id: str,
        resume: Callable[[str], Awaitable[Result]],
        clock: Clock,
    ) -> None:
        """Make one for each caller.

        Args:
            worker_id: of this process.
            resume: goes on with an interrupted run as recovery does, here.
        """
        self._client, self._executor, self._outcomes = client, executor, outcomes
        self._worker_id, self._resume, self._clock = worker_id, resume, clock

    async def run_or_attach(self, info: RunInfo, start: Callable[[], Awaitable[Result]]) -> Result:
        """The result of the run with this id, which is begun if there is none.

        Raises:
            RunConflict: it has another agent or prompt. RunBusy: a live worker elsewhere owns it. RunParked: it waits
                for a person. Whatever else the run ends with.
        """
        with self._outcomes.watching(info.run_id):
            return await self._run_or_attach(info, start)

    async def _run_or_attach(self, info: RunInfo, start: Callable[[], Awaitable[Result]]) -> Result:
        while True:
            if self._executor.get_run(info.run_id) is not None:
                return await self._attach_local(info)
            if (earlier := await self._find_existing(info)) is not None:
                return earlier
            try:
                return await self._execute(info, start())
            except RunAlreadyRunning:
                # Another caller of this process was quicker. Nothing was awaited since, so it is still live.
                return await self._attach_local(info)
            except RunExists as exc:
                if exc.run_id != info.run_id:
                    raise
                # Another process was quicker.

    async def _execute(self, info: RunInfo, run: Awaitable[Result]) -> Result:
        """Drive the run here, and let others who look for it know how it ended."""
        try:
            result = await run
        except (RunParked, RunInterrupted, RunLost, RunAlreadyRunning, CheckpointError):
            raise  # it is not over, or it was not this that ended
        except Exception as exc:
            self._outcomes.record_transient(info, exc)
            raise
        self._outcomes.record_transient(info, result)
        return result

    async def _attach_local(self, info: RunInfo) -> Result:
        live = self._executor.get_run(info.run_id)
        if live is None:
            raise RunAlreadyRunning(info.run_id)
        if live.info.agent_name != info.agent_name or live.info.prompt not in self._client.equivalent_prompts(info):
            raise RunConflict(info.run_id, live.info.agent_name)
        result = await self._executor.wait(info.run_id)
        assert result is not None
        return result

    async def _find_existing(self, info: RunInfo) -> Result | None:
        """The result of the run that has this id already; `None` if there is none."""
        try:
            await self._client.ensure_same_request(info)
        except RunNotFound:
            return self._lookup_outcome(info)
        try:
            return await self._resume_existing(info)
        except RunNotFound:
            # It came to its end meanwhile. To begin it anew would do everything twice.
            if (result := self._lookup_outcome(info)) is not None:
                return result
            raise

    def _lookup_outcome(self, info: RunInfo) -> Result | None:
        return self._outcomes.lookup(info, self._client.equivalent_prompts(info))

    async def _resume_existing(self, info: RunInfo) -> Result:
        run_id, pause = info.run_id, _POLL_INTERVAL
        while True:
            joined = await self._executor.wait(run_id)
            if joined is not None:
                return joined
            record = await self._client.get_record(run_id)
            if record.is_terminal or record.status is RunStatus.PARKED:
                return await self._client.result(run_id)
            try:
                return await self._execute(info, self._resume(run_id))
            except RunBusy as busy:
                if busy.owner != self._worker_id:
                    raise
            except (RunAlreadyRunning, RunNotClaimable):
                pass
            # Recovery has claimed it and is about to drive it, or has just ended it.
            await self._clock.sleep(pause)
            pause = min(pause * 2, _MAX_POLL_INTERVAL)
