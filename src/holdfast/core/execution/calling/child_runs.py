"""Runs that a tool of another run starts."""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.concurrency import shielded
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import (
    ModelUnavailable,
    NotDurable,
    RunCancelled,
    RunError,
    RunFailed,
    RunInterrupted,
    RunLost,
    SaveFailed,
    ShuttingDown,
)
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.background import StartedRuns
from holdfast.core.loop import Loop
from holdfast.core.ports import ChildOutcome, Resumption
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.result import Result
from holdfast.core.run.run_events import ChildFinished, ChildStarted
from holdfast.core.run.waiting import OutageWait, RunWaiting


def child_run_id(parent_run_id: str, step: int, call_id: str, key: str) -> str:
    """Return the id of a child of one call. It is the same in every attempt of the parent."""
    digest = hashlib.sha256("\n".join((parent_run_id, str(step), call_id, key)).encode(errors="surrogatepass"))
    return f"{parent_run_id[:100]}:{digest.hexdigest()[:20]}"


class ChildRuns:
    """Starts the children of one tool call. None runs longer than the call."""

    __slots__ = (
        "_background_count",
        "_call_id",
        "_interrupting_error",
        "_is_repeated",
        "_parent",
        "_started_count",
        "_step",
        "closed",
        "outcomes",
        "usage",
        "waiting",
    )

    def __init__(self, parent: Attempt, call_id: str, step: int, *, is_repeated: bool) -> None:
        """Make the starter of a call.

        Args:
            step: the step of the call.
            is_repeated: an earlier process may have started the call, and children of it.
        """
        self._parent, self._call_id, self._step, self._is_repeated = parent, call_id, step, is_repeated
        self._started_count = self._background_count = 0
        self._interrupting_error: BaseException | None = None
        #: The call has ended: it starts no more children.
        self.closed: bool = False
        #: The outcome of each child, and the task that waits for it, by run id.
        self.outcomes: dict[str, tuple[asyncio.Future[Result], asyncio.Task[Any]]] = {}
        #: Added to the parent's usage when the call's result is recorded, so that it is counted exactly once.
        self.usage: Usage = NO_USAGE
        #: The children that wait: the call cannot have a result before they continue.
        self.waiting: list[RunWaiting] = []

    async def start(
        self, agent: AgentSource | str, prompt: str, key: str | None, inputs: Mapping[str, Any] | None = None
    ) -> Result:
        """Run a child, or attach to the child that this call or an earlier attempt of it has started under `key`."""
        agent = self._parent.services.find_agent(agent)
        info = self._make_info(agent, prompt, self._take_number() if key is None else key, inputs)
        if info.run_id in self.outcomes:
            return await asyncio.shield(self.outcomes[info.run_id][0])
        task = asyncio.current_task()
        if self.closed or task is None:
            raise RunError(f"call {self._call_id} has ended: it cannot start child runs")
        outcome = asyncio.get_running_loop().create_future()
        self.outcomes[info.run_id] = outcome, task
        try:
            result = await self._start(agent, info)
        except BaseException as exc:
            # Other tasks that wait for the child were not cancelled with it.
            cancelled = isinstance(exc, asyncio.CancelledError)
            outcome.set_exception(RunCancelled(f"run {info.run_id} was cancelled") if cancelled else exc)
            outcome.exception()  # retrieved: no task has to wait for it
            if isinstance(exc, RunWaiting):
                await self._wait_for_others()
            raise
        outcome.set_result(result)
        return result

    def begin_try(self) -> None:
        """Number the children from the first one again: a further try of the call attaches to them."""
        self._started_count = self._background_count = 0

    @property
    def background(self) -> StartedRuns:
        """The runs that this run has started in the background."""
        return StartedRuns(self._parent)

    async def submit(
        self,
        agent: AgentSource | str,
        prompt: str,
        key: str | None,
        inputs: Mapping[str, Any] | None = None,
        *,
        detached: bool = False,
    ) -> RunInfo:
        """Start a run in the background, once for each `key` of this call, and return its identity."""
        if self.closed:
            raise RunError(f"call {self._call_id} has ended: it cannot start runs")
        if key is None:
            key = str(self._background_count)
            self._background_count += 1
        source, above = self.background.find_agent(agent), self._parent.info
        info = self._make_info(source, prompt, f"background {key}", inputs)
        info = msgspec.structs.replace(
            info,
            parent_run_id=None if detached else above.run_id,
            started_by=above.run_id if detached else None,
            background=not detached,
            priority=above.priority,
            concurrency_key=above.concurrency_key,
        )
        if not self._is_repeated:
            self._note_start(info)
        if await self.background.submit(info) and self._is_repeated:
            self._note_start(info)
        return info

    def _take_number(self) -> str:
        """Return the next number as a key. A child that an earlier attempt cancelled has no result."""
        while True:
            key = str(self._started_count)
            self._started_count += 1
            known = self.outcomes.get(self._make_run_id(key))
            if known is None or not _is_cancelled(known[0]):
                return key

    async def _start(self, agent: AgentSource, info: RunInfo) -> Result:
        parent = self._parent
        try:
            # The child may act at once. If the reply that asks for this call were lost, the model would be called again
            # and the new call would start another child. Shielded: the tool may cancel this task.
            if not self._is_repeated:  # else it may be the child of an earlier attempt
                self._note_start(info)
            await shielded(parent.saver.save(must_succeed=True))
            result = await self._execute(agent, info)
        except RunWaiting as exc:
            self.waiting.append(exc)
            raise
        except Exception as exc:
            if isinstance(exc, ModelUnavailable) and parent.checkpointer is not None:
                # Only this call waits until the child is due. The others of the parent continue.
                wait = OutageWait(info.run_id, exc, parent.services.clock.now() + exc.retry_after)
                self.waiting.append(wait)
                raise wait from exc
            if parent.stop_state.record_interruption(exc):
                self._interrupting_error = exc
            else:
                self._note_end(info, "cancelled" if isinstance(exc, RunCancelled) else "failed")
            raise
        self._note_end(info, "done")
        return result

    def _note_start(self, info: RunInfo) -> None:
        self._parent.record_event(
            ChildStarted(
                run_id=self._parent.info.run_id,
                step=self._step,
                child_run_id=info.run_id,
                agent=info.agent_name,
                call_id=self._call_id,
            )
        )

    def _note_end(self, info: RunInfo, status: Literal["done", "failed", "cancelled"]) -> None:
        run_id = self._parent.info.run_id
        self._parent.record_event(
            ChildFinished(run_id=run_id, step=self._step, child_run_id=info.run_id, status=status)
        )

    async def _execute(self, agent: AgentSource, info: RunInfo) -> Result:
        services = self._parent.services
        executor, loop = services.executor, services.get_loop(agent)
        # A call starts each child once, so an attempt in progress was resumed by hand.
        await executor.stop_superseded(info.run_id, RunInterrupted(f"run {info.run_id} continues under its parent"))
        if executor.get_attempt(info.run_id) is not None:
            raise ShuttingDown(f"run {info.run_id} does not continue under its parent: this executor is shutting down")
        found = await self._attach(info, loop)
        if isinstance(found, ChildOutcome):
            self.usage = self.usage + found.usage
            if found.error is not None:
                raise RunFailed(info.run_id, found.error)
            return Result(run_id=info.run_id, output=loop.load_output(found.output), usage=found.usage, steps=0)
        if found is None and self._is_repeated:
            self._note_start(info)
        attempt = Attempt(info, services, resumption=found, parent=self._parent)
        try:
            return await executor.supervise(agent, attempt)
        except RunLost as exc:
            # Not the parent's own claim, which would stay with this worker: a parent that is interrupted releases it.
            raise RunInterrupted(f"run {info.run_id}, a child, was lost to another worker") from exc
        except RunError as exc:
            if isinstance(exc, NotDurable) or exc.is_elsewhere:  # it must never become the result of a tool
                raise SaveFailed(f"run {info.run_id}, a child, could not be created: {exc}") from exc
            raise
        finally:
            self.usage = self.usage + attempt.state.usage

    async def _attach(self, info: RunInfo, loop: Loop) -> Resumption | ChildOutcome | None:
        """Return the child that an earlier attempt of the parent started, if there is one."""
        checkpoints = self._parent.services.ports.checkpoints
        if checkpoints is None or self._parent.checkpointer is None:
            return None
        try:
            return await checkpoints.attach_child(info, loop.codec)
        except RunError:
            raise
        except Exception as exc:  # a store may raise anything: it must never become the result of a tool
            raise SaveFailed(f"run {info.run_id}, a child, could not be looked up: {exc}") from exc

    async def _wait_for_others(self) -> None:
        """Wait until no child runs: the error of one that waits would make the tool cancel the others."""
        while running := [outcome for outcome, _ in self.outcomes.values() if not outcome.done()]:
            await asyncio.wait(running)

    async def stop(self) -> None:
        """Stop the children that still run. Returns when they are finalized."""
        running = [(outcome, task) for outcome, task in self.outcomes.values() if not outcome.done()]
        for _, task in running:
            task.cancel()
        if running:
            await shielded(asyncio.wait([outcome for outcome, _ in running]))

    def raise_if_interrupted(self, error: Exception | None = None) -> None:
        """Raise the error of an interrupted child: it interrupts the parent even if the tool caught or replaced it."""
        if self._interrupting_error is not None and self._interrupting_error is not error:
            raise self._interrupting_error from error

    def _make_info(self, agent: AgentSource | str, prompt: str, key: str, inputs: Mapping[str, Any] | None) -> RunInfo:
        above = self._parent.info
        return RunInfo.create(
            agent,
            prompt,
            run_id=self._make_run_id(key),
            parent_run_id=above.run_id,
            lineage=(*above.lineage, above.agent_name),
            inputs=inputs,
            **above.inherited_options,
        )

    def _make_run_id(self, key: str) -> str:
        return child_run_id(self._parent.info.run_id, self._step, self._call_id, key)


def _is_cancelled(outcome: "asyncio.Future[Result]") -> bool:
    return outcome.done() and isinstance(outcome.exception(), RunCancelled)
