"""`start`: a run in the background of a workflow or of a tool, and the handle of it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Generic

import msgspec

from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool_context import ToolContext, current_call, find_workflow
from holdfast.core.errors import RunError
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.background import StartedRuns, get_output
from holdfast.core.run.result import OutputT
from holdfast.core.run.status import RunStatus
from holdfast.core.workflow.steps.step_calls import StepCall
from holdfast.core.workflow.steps.step_log import make_digest
from holdfast.core.workflow.workflow_run import WorkflowRun


class StartedRun(msgspec.Struct, Generic[OutputT], frozen=True, kw_only=True):
    """A run that `start` has started. Plain data: it may be the argument of a tool or of a workflow, and be stored.

    Its methods work in the run that has started it: in the function of a workflow each is a recorded step, in a tool a
    part of the call. In a tool, `result` ends the call if the run has not ended; the tool is called again when it has.
    """

    run_id: str
    agent: str

    async def result(self, timeout: timedelta | float | None = None) -> OutputT:
        """Wait until the run has ended, and return its output. No process is held meanwhile.

        Args:
            timeout: as a `timedelta` or in seconds. By default there is none.

        Raises:
            StepFailed: in a workflow: it failed or was cancelled. StepTimeout: it did not end in time.
            RunFailed: in a tool: it failed. RunCancelled: it was cancelled.
        """
        return await _call(_ResultStep, self, timeout)  # type: ignore[no-any-return]

    async def send(self, text: str) -> None:
        """Send a message, which the run reads before its next step.

        Raises:
            StepFailed: in a workflow: it has ended. RunError: in a tool: it has ended.
        """
        await _call(_SendStep, self, text)

    async def cancel(self) -> None:
        """Cancel the run, or ask the worker that executes it to. Does nothing if it has ended."""
        await _call(_CancelStep, self, None)

    async def status(self) -> RunStatus:
        """Return the status of the run. In a workflow it is recorded."""
        return RunStatus(await _call(_StatusStep, self, None))


async def start(
    agent: AgentSource[OutputT] | str,
    prompt: str = "",
    *,
    inputs: Mapping[str, Any] | None = None,
    key: str | None = None,
    detached: bool = False,
) -> StartedRun[OutputT]:
    """Start an agent or a workflow in the background, from a workflow or a tool. Any worker executes it.

    The same call after a crash gives the same run. It is a child, and is cancelled when this run ends.

    Args:
        agent: or the name of one. The run stays queued until a worker has an agent with that name.
        inputs: structured data for the agent, or the arguments of the workflow, as plain JSON data.
        key: tells several runs with the same input apart.
        detached: the run is no child: it outlives this one.

    Raises:
        RunError: called neither in a workflow nor in a tool, or there is no store.
    """
    name = agent if isinstance(agent, str) else agent.name
    if isinstance(workflow := find_workflow(), WorkflowRun):
        step = _StartStep(workflow.attempt, name, prompt, inputs, key, detached)
        return await workflow.call(step)  # type: ignore[no-any-return]
    return await _start(current_call(), name, prompt, inputs, key, detached)


async def _start(
    call: ToolContext, agent: str, prompt: str, inputs: Mapping[str, Any] | None, key: str | None, detached: bool
) -> StartedRun[Any]:
    if call.children is None:
        raise RunError("this call cannot start runs: it is not executed by an executor")
    info = await call.children.submit(agent, prompt, key, inputs, detached=detached)
    return StartedRun(run_id=info.run_id, agent=info.agent_name)


def get_started_runs(call: ToolContext) -> StartedRuns:
    """Return the runs that the run of this call has started.

    Raises:
        RunError: the call is not executed by an executor.
    """
    if call.children is None:
        raise RunError("this call has no runs in the background: it is not executed by an executor")
    return call.children.background


async def _call(kind: "type[_HandleStep]", run: StartedRun[Any], argument: Any) -> Any:
    """Make an operation as a step of a workflow, or as a part of the current call."""
    if isinstance(workflow := find_workflow(), WorkflowRun):
        return await workflow.call(kind(workflow.attempt, run, argument))
    call = current_call()
    started = get_started_runs(call)
    return kind.load_plain(started, run, await kind.operate(started, run, argument, call))


class _StartStep(StepCall):
    """Starts a run. A repeated call finds it."""

    __slots__ = ()

    starts_run = True
    is_computed = True

    def __init__(
        self,
        attempt: Attempt,
        agent: str,
        prompt: str,
        inputs: Mapping[str, Any] | None,
        key: str | None,
        detached: bool,
    ) -> None:
        arguments: dict[str, Any] = {"agent": agent, "prompt": prompt}
        if inputs:
            arguments["inputs"] = dict(inputs)
        if detached:
            arguments["detached"] = True
        super().__init__(
            attempt,
            tool=f"start {agent}",
            arguments=arguments,
            effect=Effect.IDEMPOTENT,
            key=key,
            returns=StartedRun[Any],
        )

    async def perform(self) -> Any:
        given = self.arguments
        detached = given.get("detached", False)
        return await _start(current_call(), given["agent"], given["prompt"], given.get("inputs"), "", detached)


class _HandleStep(StepCall):
    """An operation on a run that was started."""

    __slots__ = ("_argument", "_run")

    verb = ""
    kind = Effect.PURE

    def __init__(self, attempt: Attempt, run: StartedRun[Any], argument: Any) -> None:
        arguments: dict[str, Any] = {"run_id": run.run_id}
        if isinstance(argument, str):
            arguments["text"] = argument
        super().__init__(attempt, tool=f"{self.verb} {run.agent}", arguments=arguments, effect=self.kind)
        self._run, self._argument = run, argument

    async def perform(self) -> Any:
        call = current_call()
        return await self.operate(get_started_runs(call), self._run, self._argument, call)

    @staticmethod
    async def operate(started: StartedRuns, run: StartedRun[Any], argument: Any, call: ToolContext) -> Any:
        """Make the operation, and return its result in its stored form."""
        raise NotImplementedError

    @staticmethod
    def load_plain(started: StartedRuns, run: StartedRun[Any], content: Any) -> Any:
        """Return the result from its stored form, outside of a workflow."""
        return content


class _ResultStep(_HandleStep):
    __slots__ = ()

    verb = "result of"

    @staticmethod
    async def operate(started: StartedRuns, run: StartedRun[Any], argument: Any, call: ToolContext) -> Any:
        [ended] = await started.wait_for_any([run.run_id], _make_expiry(argument, call))
        return get_output(ended)

    @staticmethod
    def load_plain(started: StartedRuns, run: StartedRun[Any], content: Any) -> Any:
        return started.load_output(run.agent, content)

    def load_value(self, content: Any) -> Any:
        return StartedRuns(self.attempt).load_output(self._run.agent, content)


class _SendStep(_HandleStep):
    __slots__ = ()

    verb = "send to"
    kind = Effect.IDEMPOTENT

    @staticmethod
    async def operate(started: StartedRuns, run: StartedRun[Any], argument: Any, call: ToolContext) -> Any:
        digest = make_digest([run.run_id, argument])  # one call of a tool may send several messages
        await started.send(run.run_id, argument, f"{call.idempotency_key}-{digest}")


class _CancelStep(_HandleStep):
    __slots__ = ()

    verb = "cancel"
    kind = Effect.IDEMPOTENT

    @staticmethod
    async def operate(started: StartedRuns, run: StartedRun[Any], argument: Any, call: ToolContext) -> Any:
        await started.cancel(run.run_id)


class _StatusStep(_HandleStep):
    __slots__ = ()

    verb = "status of"
    is_computed = True

    @staticmethod
    async def operate(started: StartedRuns, run: StartedRun[Any], argument: Any, call: ToolContext) -> Any:
        return (await started.read(run.run_id)).status.value


def _make_expiry(timeout: timedelta | float | None, call: ToolContext) -> datetime | None:
    if timeout is None:
        return None
    return call.now() + (timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout))
