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
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.operations import Operations
from holdfast.clock import Clock
from holdfast.run.errors import (
    RunAlreadyLive,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunLost,
    RunParked,
    described,
)
from holdfast.run.executor import Executor
from holdfast.run.info import RunInfo
from holdfast.run.outcome import Result

#: How many ends of recovered runs are kept in mind for whoever asks for them by their id.
_REMEMBERED = 10_000

#: Before a run that this process has claimed is looked for again, until it is driven. The pauses after it grow.
_LOOK = timedelta(milliseconds=1)
#: A claim that the store would not take back may be held for long.
_LONGEST_LOOK = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended. Holds nothing of its conversation: many ends may have to be remembered."""

    agent_name: str
    #: Of the prompt, which may be long.
    digest: bytes
    #: Or the error's text. The error itself holds frames, and they whole transcripts.
    result: Result | str
    cancelled: bool


class Ends:
    """How runs ended in this process.

    What recovery has driven is remembered for whoever asks for it later: nobody has been told yet. What a caller has
    driven is known to that caller, and only noted for others who came before the end.
    """

    def __init__(self) -> None:
        self._ends: dict[str, _End] = {}
        #: Of the runs that somebody looks for.
        self._noted: dict[str, _End] = {}
        self._looking: dict[str, int] = {}

    def remember(self, info: RunInfo, end: Result | Exception) -> None:
        """Keep in mind how the run ended, and which run it was."""
        self._ends[info.run_id] = _end(info, end)
        if len(self._ends) > _REMEMBERED:
            del self._ends[next(iter(self._ends))]

    def forget(self, run_id: str) -> None:
        """The run goes on: how it ended is not true any more."""
        self._ends.pop(run_id, None)
        self._noted.pop(run_id, None)

    @contextmanager
    def looking(self, run_id: str) -> Iterator[None]:
        """While somebody looks for the run, or drives it, its end can be noted."""
        self._looking[run_id] = self._looking.get(run_id, 0) + 1
        try:
            yield
        finally:
            self._looking[run_id] -= 1
            if not self._looking[run_id]:
                del self._looking[run_id]
                self._noted.pop(run_id, None)

    def note(self, info: RunInfo, end: Result | Exception) -> None:
        """Keep in mind how the run ended for as long as somebody looks for it."""
        if info.run_id in self._looking:
            self._noted[info.run_id] = _end(info, end)

    def of(self, info: RunInfo, prompts: Collection[str]) -> Result | None:
        """The result; `None` if nothing is known of a run with this id.

        Args:
            prompts: what the prompt of `info` may be known as.

        Raises:
            RunConflict: it had another agent or prompt. RunFailed: it failed. RunCancelled: it was cancelled.
        """
        end = self._noted.get(info.run_id) or self._ends.get(info.run_id)
        if end is None:
            return None
        if end.agent_name != info.agent_name or end.digest not in map(_digest, prompts):
            raise RunConflict(info.run_id, end.agent_name)
        if isinstance(end.result, Result):
            return end.result
        if end.cancelled:
            raise RunCancelled(f"run {info.run_id} was cancelled")
        raise RunFailed(f"run {info.run_id} failed: {end.result}")


def _end(info: RunInfo, end: Result | Exception) -> _End:
    result = replace(end, messages=()) if isinstance(end, Result) else described(end)
    return _End(info.agent_name, _digest(info.prompt), result, isinstance(end, RunCancelled))


def _digest(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode(errors="surrogatepass")).digest()


class Reunion:
    """Brings a caller and the run with its id together."""

    def __init__(
        self,
        operations: Operations,
        executor: Executor,
        ends: Ends,
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
        self._operations, self._executor, self._ends = operations, executor, ends
        self._worker_id, self._resume, self._clock = worker_id, resume, clock

    async def meet(self, info: RunInfo, begin: Callable[[], Awaitable[Result]]) -> Result:
        """The result of the run with this id, which is begun if there is none.

        Raises:
            RunConflict: it has another agent or prompt. RunBusy: a live worker elsewhere owns it. RunParked: it waits
                for a person. Whatever else the run ends with.
        """
        with self._ends.looking(info.run_id):
            return await self._meet(info, begin)

    async def _meet(self, info: RunInfo, begin: Callable[[], Awaitable[Result]]) -> Result:
        while True:
            if self._executor.live(info.run_id) is not None:
                return await self._join(info)
            if (earlier := await self._earlier(info)) is not None:
                return earlier
            try:
                return await self._drive(info, begin())
            except RunAlreadyLive:
                # Another caller of this process was quicker. Nothing was awaited since, so it is still live.
                return await self._join(info)
            except RunExists as exc:
                if exc.run_id != info.run_id:
                    raise
                # Another process was quicker.

    async def _drive(self, info: RunInfo, run: Awaitable[Result]) -> Result:
        """Drive the run here, and let others who look for it know how it ended."""
        try:
            result = await run
        except (RunParked, RunInterrupted, RunLost, RunAlreadyLive, CheckpointError):
            raise  # it is not over, or it was not this that ended
        except Exception as exc:
            self._ends.note(info, exc)
            raise
        self._ends.note(info, result)
        return result

    async def _join(self, info: RunInfo) -> Result:
        live = self._executor.live(info.run_id)
        if live is None:
            raise RunAlreadyLive(info.run_id)
        if live.info.agent_name != info.agent_name or live.info.prompt not in self._operations.prompts(info):
            raise RunConflict(info.run_id, live.info.agent_name)
        result = await self._executor.join(info.run_id)
        assert result is not None
        return result

    async def _earlier(self, info: RunInfo) -> Result | None:
        """The result of the run that has this id already; `None` if there is none."""
        try:
            await self._operations.check_same(info)
        except RunNotFound:
            return self._ended(info)
        try:
            return await self._go_on(info)
        except RunNotFound:
            # It came to its end meanwhile. To begin it anew would do everything twice.
            if (result := self._ended(info)) is not None:
                return result
            raise

    def _ended(self, info: RunInfo) -> Result | None:
        return self._ends.of(info, self._operations.prompts(info))

    async def _go_on(self, info: RunInfo) -> Result:
        run_id, pause = info.run_id, _LOOK
        while True:
            joined = await self._executor.join(run_id)
            if joined is not None:
                return joined
            record = await self._operations.record(run_id)
            if record.over or record.status is Status.PARKED:
                return await self._operations.result(run_id)
            try:
                return await self._drive(info, self._resume(run_id))
            except RunBusy as busy:
                if busy.owner != self._worker_id:
                    raise
            except (RunAlreadyLive, RunNotClaimable):
                pass
            # Recovery has claimed it and is about to drive it, or has just ended it.
            await self._clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK)
