"""Re-entry: calls a workflow for a stored run up to its first call without a result. No call is made."""

import asyncio
import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec

from holdfast.core.agents.agent import Agent, AgentSource, Bounds
from holdfast.core.agents.calls import Effect
from holdfast.core.errors import RunCancelled, RunError, RunFailed, RunParked, format_error
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.pipeline import build_agent
from holdfast.core.execution.step import StepContext
from holdfast.core.ports import Ports, Resumption
from holdfast.core.run.messages import ToolCall, ToolResult
from holdfast.core.run.waiting import RunWaiting
from holdfast.core.workflow.restart import Life
from holdfast.core.workflow.steps.step_calls import StepCall
from holdfast.core.workflow.steps.step_log import WORKFLOW_SCOPE
from holdfast.core.workflow.suspension import Unwind
from holdfast.core.workflow.undo import ScopeStep
from holdfast.core.workflow.workflow_loop import WorkflowLoop
from holdfast.core.workflow.workflow_run import WorkflowRun

#: For the code of one run to reach its first call without a result.
REENTRY_TIMEOUT = timedelta(seconds=10)

MismatchKind = Literal["workflow", "input", "failure", "changed arguments", "not repeated", "timeout"]


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """What does not fit between a stored run and the code of its workflow."""

    kind: MismatchKind
    detail: str
    #: The run continues in spite of it, and no effect can be repeated.
    harmless: bool = False


class ReentryRun(WorkflowRun):
    """Finds the recorded steps of a workflow, and rests at each call that has no result."""

    def __init__(self, context: StepContext, life: Life) -> None:
        super().__init__(context, life)
        #: The calls at which the code rests.
        self.reached: list[StepCall] = []
        self.parked: RunParked | None = None
        #: The text of the exception that ends the function.
        self.failure = ""

    async def make(self, call: StepCall) -> ToolResult:
        """Rest at a call that has no result, until all tasks of the function do."""
        self.suspension.begin_work()
        try:
            if call.call_id not in self.steps.calls:
                await self._refuse_changed_arguments(call)
        except RunParked as exc:
            self.parked = exc
        else:
            self.reached.append(call)
        try:
            if isinstance(call, ScopeStep) and call.tool == WORKFLOW_SCOPE:
                error = await call.perform()
                if error["type_name"] != RunCancelled.__name__:
                    self.failure = f"{error['type_name']}: {error['message']}"
            await self.suspension.rest()
        finally:
            self.suspension.end_work()
        raise Unwind

    def list_not_repeated(self) -> list[ToolCall]:
        """Return the recorded calls that the code has not repeated, without those that are of no consequence."""
        unmet = [call for calls in self._unmet.values() for call in calls.values()]
        return [
            call
            for call in unmet
            if not self.steps.is_settled_without_effect(call)
            and (call.id in self.steps.results or call.effect != Effect.PURE)
        ]


class ReentryLoop(WorkflowLoop):
    """The loop of a workflow that makes no call. For one run."""

    run_made: ReentryRun | None = None

    def make_run(self, context: StepContext, life: Life) -> WorkflowRun:
        self.run_made = ReentryRun(context, life)
        return self.run_made

    async def _call_function(self, run: WorkflowRun, arguments: dict[str, Any]) -> Any:
        try:
            return await super()._call_function(run, arguments)
        except SystemExit as exc:  # it would end the process that re-enters the other runs too
            raise RunError(f"its code ends the process: SystemExit: {exc}") from exc


async def reenter(
    source: AgentSource,
    resumption: Resumption,
    agents: Mapping[str, AgentSource],
    *,
    reason: str = "",
    timeout: timedelta = REENTRY_TIMEOUT,
) -> list[Mismatch]:
    """Call the workflow for a stored run, up to the first call of each of its tasks that has no result.

    No call is made, and nothing is written. The code between the calls runs, as it does in each attempt.

    Args:
        resumption: the stored run, with a checkpointer that writes nothing.
        agents: those that the workflow may name.
        reason: why the run is parked, if it is.
    """
    try:
        agent = await build_agent(source, resumption.info)
    except Exception as exc:  # a source is user code
        return [Mismatch(kind="workflow", detail=f"its workflow cannot be built: {format_error(exc)}")]
    if (stubs := _make_stub(agent, len(resumption.state.phases))) is None:
        return [Mismatch(kind="workflow", detail=f"{source.name} is no workflow in this code")]
    stub, loop = stubs
    executor = Executor(Ports(agents=agents), log_attempts=False)
    error: BaseException | None = None
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            await executor.resume(stub, resumption, on_cancel="cancel")
    except TimeoutError:
        text = f"its code has reached no call without a result within {timeout.total_seconds():.0f} s"
        return [Mismatch(kind="timeout", detail=text)]
    except RunError as exc:
        error = exc
    return _compare(loop.run_made, error, reason, set(resumption.state.calls.in_doubt))


def _make_stub(agent: Agent, finished: int) -> tuple[Agent, ReentryLoop] | None:
    """Return the agent with a workflow that makes no call, and no phase after it; `None` if no workflow would run."""
    phase = next(iter(agent.phases[finished:]), None)
    inner = phase.agent if phase is not None and isinstance(phase.agent, Agent) else agent
    if not isinstance(inner.loop, WorkflowLoop):
        return None
    loop = ReentryLoop(inner.loop.function)
    # Bounds and budget are no matter of the code.
    stub: Agent = dataclasses.replace(inner, loop=loop, bounds=Bounds(max_steps=inner.bounds.max_steps))
    if inner is agent:
        return stub, loop
    phases = [*agent.phases[:finished], dataclasses.replace(agent.phases[finished], agent=stub, bounds=None)]
    return dataclasses.replace(agent, phases=phases, bounds=Bounds()), loop


def _compare(run: ReentryRun | None, error: BaseException | None, reason: str, in_doubt: set[str]) -> list[Mismatch]:
    if isinstance(error, RunFailed) and error.__cause__ is not None:
        error = error.__cause__
    failure = "" if error is None or isinstance(error, RunWaiting | RunCancelled) else format_error(error)
    if run is None:
        return [Mismatch(kind="input", detail=failure)] if failure else []
    found = []
    if run.parked is not None:
        found.append(Mismatch(kind="changed arguments", detail=f"it would be parked: {run.parked.message}"))
    if (failure := run.failure or failure) and not run.steps.has_failed:
        return [*found, Mismatch(kind="failure", detail=f"it would fail before its first new step: {failure}")]
    # A run that is parked for changed arguments has the new call among the recorded ones.
    proposed = in_doubt if reason.startswith("changed arguments") else set()
    if run.parked is None:
        new = [call.call_id for call in run.reached if call.call_id not in run.steps.calls]
        found += [_make_unmet(call, new) for call in run.list_not_repeated() if call.id not in proposed]
    return found


def _make_unmet(call: ToolCall, new: list[str]) -> Mismatch:
    detail = f"its code does not repeat the recorded {call.id}"
    if new:
        detail += f", or only after the new {', '.join(new)}: if that one replaces it, its effect is repeated"
    return Mismatch(kind="not repeated", detail=detail, harmless=call.effect == Effect.PURE)
