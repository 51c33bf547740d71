"""Runs that are started from inside a tool of another run."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from holdfast.concurrency import shielded
from holdfast.core.agent import AgentSource
from holdfast.core.errors import RunCancelled, RunError
from holdfast.core.execution.run import RunExecution
from holdfast.core.info import RunInfo
from holdfast.core.message import NO_USAGE, Usage
from holdfast.core.result import Result

#: Drives a child run of a live run to its end, or finds it ended; tells what it has used, however it ended.
StartChild = Callable[[RunExecution, AgentSource, RunInfo, Callable[[Usage], None]], Awaitable[Result]]


def child_run_id(parent_run_id: str, step: int, call_id: str, key: str) -> str:
    """The id of the child that this call of the parent starts: the same in every life of the parent."""
    digest = hashlib.sha256("\n".join((parent_run_id, str(step), call_id, key)).encode(errors="surrogatepass"))
    return f"{parent_run_id[:100]}:{digest.hexdigest()[:20]}"


class ChildRuns:
    """The children of one tool call. None outlives the call."""

    __slots__ = (
        "_call_id",
        "_interrupting_error",
        "_outcomes",
        "_parent",
        "_start_child",
        "_started_count",
        "_step",
        "closed",
        "usage",
    )

    def __init__(self, parent: RunExecution, call_id: str, start_child: StartChild | None) -> None:
        self._parent, self._call_id, self._start_child = parent, call_id, start_child
        self._step = parent.state.steps + 1
        self._started_count = 0
        self._interrupting_error: BaseException | None = None
        #: The call is over: it starts no children any more.
        self.closed = False
        #: How each child ends, by its id, and the task that waits for that.
        self._outcomes: dict[str, tuple[asyncio.Future[Any], asyncio.Task[Any]]] = {}
        #: Joins the parent's usage when the call's result is recorded, so that it is counted exactly once.
        self.usage: Usage = NO_USAGE

    @property
    def run_ids(self) -> Collection[str]:
        return self._outcomes.keys()

    async def start(self, agent: AgentSource, prompt: str, key: str | None) -> Any:
        """Run the child, or meet it again: one of an earlier life, or one that this call has started already."""
        if key is None:
            key = str(self._started_count)
            self._started_count += 1
        info = self._make_info(agent, prompt, key)
        if info.run_id in self._outcomes:
            return await asyncio.shield(self._outcomes[info.run_id][0])
        if self.closed:
            raise RunError(f"call {self._call_id} is over: it starts no child runs any more")
        end, task = asyncio.get_running_loop().create_future(), asyncio.current_task()
        assert task is not None, "no coroutine runs outside of a task"
        self._outcomes[info.run_id] = end, task
        try:
            result = await self._execute(agent, info)
        except BaseException as exc:
            # Whoever else waits for the child was not cancelled with it.
            cancelled = isinstance(exc, asyncio.CancelledError)
            end.set_exception(RunCancelled(f"run {info.run_id} was cancelled") if cancelled else exc)
            end.exception()  # seen: nobody has to wait for it
            raise
        end.set_result(result)
        return result

    async def _execute(self, agent: AgentSource, info: RunInfo) -> Result:
        assert self._start_child is not None, "only an executor makes drives"
        try:
            # The child may act at once. If the reply that asks for this call were lost, the model would be asked again,
            # and the call that it asks for then would start another child. Seen through: the tool may give up on it.
            await shielded(self._parent.save(must_succeed=True))
            self._parent.may_have_children = True
            return await self._start_child(self._parent, agent, info, self._add_usage)
        except Exception as exc:
            if self._parent.is_resumable_after(exc):
                # Its siblings, too: whoever cancels them from now on.
                self._interrupting_error = self._parent.call_error = exc
            raise

    async def cancel_all(self) -> None:
        """End the children that still run, or leave them if their parent is left. Returns when they are settled."""
        running = [(end, task) for end, task in self._outcomes.values() if not end.done()]
        for _, task in running:
            task.cancel()
        if running:
            await shielded(asyncio.wait([end for end, _ in running]))

    def raise_if_interrupted(self, error: Exception | None = None) -> None:
        """A child that is left stops its parent, whatever the tool made of that: a result, or another `error`."""
        if self._interrupting_error is not None and self._interrupting_error is not error:
            raise self._interrupting_error from error

    def _add_usage(self, usage: Usage) -> None:
        self.usage = self.usage + usage

    def _make_info(self, agent: AgentSource, prompt: str, key: str) -> RunInfo:
        above = self._parent.info
        return RunInfo(
            run_id=child_run_id(above.run_id, self._step, self._call_id, key),
            agent_name=agent.name,
            agent_id=getattr(agent, "agent_id", ""),
            caller_id=above.caller_id,
            channel_id=above.channel_id,
            guild_id=above.guild_id,
            model_tier=getattr(agent, "model_tier", ""),
            parent_run_id=above.run_id,
            lineage=(*above.lineage, above.agent_name),
            labels=above.labels,
            inputs={"prompt": prompt},
        )
