"""Ready-made tools with which an agent keeps other agents busy in the background, and answers a person meanwhile."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import DefinitionError, RunError
from holdfast.core.execution.calling.background import get_output
from holdfast.core.ports import BackgroundRun
from holdfast.core.run.info import AgentDetails
from holdfast.core.run.status import TERMINAL_STATUSES
from holdfast.core.validation import check_count
from holdfast.core.workflow.started_run import StartedRun, get_started_runs, start


def background_tools(agents: Iterable[AgentSource | str], *, max_tasks: int = 20) -> list[Tool]:
    """Return tools with which a model starts these agents in the background, lists, messages, awaits and cancels them.

    For the model a run in the background is a task. It is notified with a message before its next step when one ends.
    The tasks of a conversation continue between turns; those of another run end with it.

    Args:
        agents: agents and workflows that the App knows, or their names.
        max_tasks: how many tasks of one run may be unfinished at the same time.

    Raises:
        DefinitionError: there are no agents.
    """
    check_count("max_tasks", max_tasks)
    return _TaskTools(list(agents), max_tasks).make()


class _TaskTools:
    def __init__(self, agents: list[AgentSource | str], max_tasks: int) -> None:
        if not agents:
            raise DefinitionError("background_tools() got no agents")
        self._agents = {each if isinstance(each, str) else each.name: each for each in agents}
        self._max_tasks = max_tasks

    def make(self) -> list[Tool]:
        listed = "; ".join(self._describe(name) for name in self._agents)
        return [
            Tool(
                self.start_task,
                name="start_task",
                description="Start a task in the background and return its id at once. Say all that the agent needs to "
                f"know. You get a message when the task has ended. Agents: {listed}",
                effect=Effect.IDEMPOTENT,
            ),
            Tool(self.list_tasks, name="list_tasks", effect=Effect.PURE),
            Tool(self.message_task, name="message_task", effect=Effect.IDEMPOTENT),
            Tool(self.wait_for_tasks, name="wait_for_tasks", effect=Effect.PURE),
            Tool(self.cancel_task, name="cancel_task", effect=Effect.IDEMPOTENT),
        ]

    def _describe(self, name: str) -> str:
        agent = self._agents[name]
        about = "" if isinstance(agent, str) else AgentDetails.from_source(agent).description
        return f"{name} ({about})" if about else name

    async def start_task(self, agent: str, prompt: str) -> str:
        """Start a task in the background and return its id at once."""
        if agent not in self._agents:
            raise ValueError(f"there is no agent {agent!r}: use one of {', '.join(self._agents)}")
        call = current_call()
        if agent in (*call.info.lineage, call.info.agent_name):
            raise ValueError(f"{agent} is an ancestor of this task: it cannot be started from it")
        tasks = await get_started_runs(call).list_children()
        started = [task for task in tasks if task.status not in TERMINAL_STATUSES]
        if len(started) >= self._max_tasks:
            raise ValueError(f"{len(started)} tasks have not ended: wait for one of them, or cancel one")
        return _to_task_id((await start(agent, prompt)).run_id)

    async def list_tasks(self) -> list[dict[str, str]]:
        """List your tasks in the background: id, agent, status, and why a task waits or has failed."""
        tasks = await get_started_runs(current_call()).list_children()
        return [_describe_task(task) for task in tasks]

    async def message_task(self, task_id: str, text: str) -> str:
        """Send a message to a task that has not ended. It reads the message before its next step."""
        await _find_task(task_id).send(text)
        return "sent"

    async def wait_for_tasks(self, task_ids: list[str], timeout_seconds: float | None = None) -> list[dict[str, Any]]:
        """Wait until at least one of these tasks has ended, and return the results of those that have.

        Only wait if you have nothing else to do: you get a message when a task has ended.
        """
        if not task_ids:
            raise ValueError("give the ids of one or more tasks")
        call = current_call()
        expires_at = None if timeout_seconds is None else call.now() + timedelta(seconds=timeout_seconds)
        run_ids = [_find_task(task_id).run_id for task_id in task_ids]
        ended = await get_started_runs(call).wait_for_any(run_ids, expires_at)
        return [_describe_end(task) for task in ended]

    async def cancel_task(self, task_id: str) -> str:
        """Cancel a task that is no longer needed."""
        await _find_task(task_id).cancel()
        return "cancelled"


def _to_task_id(run_id: str) -> str:
    """Return the short id that a model has to repeat. It is unique among the tasks of one run."""
    return run_id.rpartition(":")[2]


def _find_task(task_id: str) -> StartedRun[Any]:
    above = current_call().run_id
    if not task_id.isalnum():
        raise ValueError(f"there is no task {task_id!r}: list_tasks shows all")
    return StartedRun(run_id=f"{above[:100]}:{task_id}", agent="")


def _describe_task(task: BackgroundRun) -> dict[str, str]:
    described = {"task_id": _to_task_id(task.run_id), "agent": task.agent_name, "status": task.status.value}
    return {**described, "reason": task.reason} if task.reason else described


def _describe_end(task: BackgroundRun) -> dict[str, Any]:
    try:
        return {**_describe_task(task), "result": get_output(task)}
    except RunError as exc:
        return {**_describe_task(task), "error": str(exc)}
