"""The calls of one reply: announced together, made once, recorded one by one, and answered by a person if need be."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_ai import DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelRequest, ModelRequestPart, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.tools import ToolDefinition, ToolDenied

from holdfast.adapters.pydantic_ai.notes import Deferral, Notes
from holdfast.adapters.pydantic_ai.policy import NO_TOOL, ToolPolicies, ToolPolicy
from holdfast.adapters.pydantic_ai.results import (
    TOLD,
    ToolResults,
    has_mark,
    is_error,
    outcome_of,
    part_of,
    value_of,
    verdict,
)
from holdfast.run.drive import CallRequest, Drive
from holdfast.run.effects import Effect
from holdfast.run.errors import InvalidReply, NotKnownHere, RunParked


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that the open reply asks for."""

    part: ToolCallPart
    definition: ToolDefinition | None
    policy: ToolPolicy
    #: It is made only after calls before it have ended.
    waits_for_turn: bool = False

    @property
    def call_id(self) -> str:
        return self.part.tool_call_id

    @property
    def effect(self) -> Effect:
        return self.policy.effect

    @property
    def waits(self) -> bool:
        """It is not made when the model asks for it, but later: then somebody has to remember that it was begun."""
        waits_for_answer = self.definition is not None and self.definition.kind in ("external", "unapproved")
        return waits_for_answer or self.waits_for_turn


class Batch:
    """Makes the calls of the reply that is being answered. One object serves a conversation, reply after reply."""

    def __init__(self, drive: Drive, notes: Notes, policies: ToolPolicies, closed: Mapping[str, ModelRequest]) -> None:
        """Begin with no reply.

        Args:
            closed: results that are in the conversation already, of a reply whose answers an earlier life completed.
        """
        self._drive, self._notes, self._policies, self._closed = drive, notes, policies, closed
        self._calls: dict[str, OpenCall] = {}
        self._answers = DeferredToolResults()

    async def open(self, tools: ToolManager[Any], reply: ModelResponse, *, resumed: bool) -> None:
        """Announce the calls of `reply`. Once this returns they may be made."""
        self._calls = self._calls_of(tools, reply)
        unknown = [call.call_id for call in self._calls.values() if call.definition is None]
        if resumed:
            self._check_removed(unknown)
            self._take_answers()
        elif unknown:
            self._notes.unknown = unknown
            self._notes.keep(self._drive.state)
        if self._calls:
            untried = [call.call_id for call in self._calls.values() if self._is_untried(call)]
            await self._drive.intend(list(self._calls.values()), resumed=resumed, untried=untried)

    def _calls_of(self, tools: ToolManager[Any], reply: ModelResponse) -> dict[str, OpenCall]:
        calls: dict[str, OpenCall] = {}
        parts = [(part, tools.get_tool_def(part.tool_name)) for part in reply.tool_calls]
        functions = [(part, tool) for part, tool in parts if tool is None or tool.kind != "output"]
        # With one call there is no other that it could wait for.
        several = len(functions) > 1
        one_by_one = several and tools.get_parallel_execution_mode() == "sequential"
        # Beside an output it depends on the agent which calls are made, and when.
        waits = len(functions) < len(parts)
        for part, definition in functions:
            if part.tool_call_id in calls:
                raise InvalidReply(f"two tool calls of one reply share the id {part.tool_call_id}")
            policy = NO_TOOL if definition is None else self._policies.of(definition, self._drive.profile.tools)
            alone = several and (one_by_one or tools.is_sequential(part))
            calls[part.tool_call_id] = OpenCall(part, definition, policy, waits or (alone and bool(calls)))
            waits = waits or alone
        return calls

    def _is_untried(self, call: OpenCall) -> bool:
        waits = call.waits or call.call_id in self._notes.deferred
        return waits and call.call_id not in self._notes.begun

    def _check_removed(self, unknown: Sequence[str]) -> None:
        """A saved reply may ask for a tool that a deploy has removed: that is not the model's mistake."""
        missing = [
            self._calls[call_id].part.tool_name
            for call_id in unknown
            if call_id not in self._notes.unknown and call_id not in self._drive.state.results
        ]
        policy = self._drive.profile.removed_tools
        if missing and policy == "leave":
            raise NotKnownHere(f"run {self._drive.run_id} was about to call {missing}, which this process lacks")
        if missing and policy == "park":
            raise RunParked("removed tool", f"the run was about to call {missing}, which its agent no longer has")

    # -- making calls -------------------------------------------------------------------------------------------

    async def execute(
        self,
        ctx: RunContext[Any],
        part: ToolCallPart,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """The call's outcome: the recorded one, or that of making it now."""
        call = self._calls.get(part.tool_call_id)
        if call is None:  # no call of the reply but of a tool: that tool's doing
            return await handler(args)
        if call.call_id in self._closed:
            return value_of(self._closed[call.call_id])
        if call.call_id not in self._drive.state.results:
            if call.call_id in self._notes.deferred and not ctx.tool_call_approved:
                raise self._notes.deferred[call.call_id].error()
            if call.waits or ctx.tool_call_approved:
                await self._begin(call)
        return await self._call(ctx, call, args, handler)

    async def _call(
        self, ctx: RunContext[Any], call: OpenCall, args: dict[str, Any], handler: WrapToolExecuteHandler
    ) -> Any:
        results = ToolResults(call.part.tool_name, call.call_id, call.definition)
        seen = None

        async def execute() -> ModelRequest:
            nonlocal seen
            work = _made(handler, args)
            own = self._drive.profile.tools.get(call.part.tool_name)
            in_thread = _runs_in_thread(ctx, call.part.tool_name) if own is None else own.in_thread
            live = self._drive.live
            seen, result = await outcome_of(live.outlast(work) if in_thread else work, results)
            if is_error(result) and live.ended_by is not None and not in_thread:
                raise asyncio.CancelledError  # what a call that is stopped half-way raises is not its outcome
            self.count_usage()
            return result

        request = CallRequest(
            call_id=call.call_id, tool=call.part.tool_name, arguments=call.part.args_as_dict(), effect=call.effect,
            execute=execute, tell=results.failed, found=results.returned,
            reconcile=call.policy.reconcile, in_doubt=call.policy.in_doubt, failed=is_error,
        )  # fmt: skip
        try:
            result = await self._drive.call(request)
        except (ApprovalRequired, CallDeferred) as exc:
            kind: Literal["approval", "external"] = "approval" if isinstance(exc, ApprovalRequired) else "external"
            self._notes.deferred[call.call_id] = Deferral.of(kind, exc.metadata)
            self._notes.begun = [call_id for call_id in self._notes.begun if call_id != call.call_id]
            self._notes.keep(self._drive.state)
            raise
        except Exception as exc:
            if self._drive.live.is_left_by(exc):
                self._drive.live.failing = exc
            raise
        if seen is not None:
            return seen()
        if part_of(result).outcome == "retried" and ctx.tool_manager is not None:
            ctx.tool_manager.failed_tools.add(call.part.tool_name)
        return value_of(result)

    async def _begin(self, call: OpenCall) -> None:
        """From here on the call is in doubt until its result is recorded. Durable before it starts."""
        if call.call_id in self._notes.begun:
            return
        self._notes.begun.append(call.call_id)
        self._notes.keep(self._drive.state)
        if call.effect is Effect.ONCE:
            await self._drive.live.save(essential=True)

    def count_usage(self) -> None:
        """Bring the run's usage up to pydantic-ai's."""
        used = self._notes.count()
        if used is not None:
            self._drive.used(used)
            self._notes.keep(self._drive.state)

    # -- calls that wait for a person ---------------------------------------------------------------------------

    def defer(self, requests: DeferredToolRequests) -> RunParked:
        """Some calls wait for an answer: why the run is parked."""
        for part in requests.approvals:
            self._notes.deferred[part.tool_call_id] = Deferral.of("approval", requests.metadata.get(part.tool_call_id))
        for part in requests.calls:
            self._notes.deferred[part.tool_call_id] = Deferral.of("external", requests.metadata.get(part.tool_call_id))
        self._notes.keep(self._drive.state)
        asked = {part.tool_call_id for part in (*requests.approvals, *requests.calls)}
        waiting = [call.part for call in self._calls.values() if call.call_id in asked]
        return RunParked("approval", ", ".join(f"{part.tool_name} {part.tool_call_id}" for part in waiting))

    def _take_answers(self) -> None:
        """What was answered since the run was parked, now or in an earlier life."""
        results = self._drive.state.results
        for call_id in self._calls.keys() & results.keys():
            result = results[call_id]
            part, deferral = part_of(result), self._notes.deferred.get(call_id)
            if not has_mark(result, TOLD) or deferral is None:
                # An approved call that has been made, and gives its result again; or a denied one.
                self._answers.approvals[call_id] = part.outcome != "denied" or ToolDenied(str(part.content))
            elif deferral.kind == "external":
                self._answers.calls[call_id] = part.content
            else:
                said = self._answers.approvals[call_id] = verdict(part.content)
                del results[call_id]
                if isinstance(said, ToolDenied):
                    results[call_id] = ToolResults(part.tool_name, call_id).returned(said)

    def answers(self, requests: DeferredToolRequests) -> DeferredToolResults | None:
        """The answers to these requests, as far as there are any."""
        approvals = {part.tool_call_id for part in requests.approvals} & set(self._answers.approvals)
        calls = {part.tool_call_id for part in requests.calls} & set(self._answers.calls)
        if not approvals and not calls:
            return None
        return DeferredToolResults(
            approvals={call_id: self._answers.approvals[call_id] for call_id in approvals},
            calls={call_id: self._answers.calls[call_id] for call_id in calls},
            metadata={
                call_id: deferral.metadata
                for call_id, deferral in self._notes.deferred.items()
                if call_id in approvals and deferral.metadata
            },
        )

    # -- all answered -------------------------------------------------------------------------------------------

    def close(self, parts: Sequence[ModelRequestPart]) -> list[ModelRequest]:
        """The answers to the reply as they enter the conversation: recorded results, and what else pydantic-ai says."""
        recorded = {call_id: self._drive.state.results.get(call_id) for call_id in self._calls}
        said = [part.content for result in recorded.values() if result for part in _prompts(result)]
        messages: list[ModelRequest] = []
        loose: list[ModelRequestPart] = []
        for part in parts:
            result = recorded.get(getattr(part, "tool_call_id", ""))
            if result is None:
                if isinstance(part, UserPromptPart) and part.content in said:
                    said.remove(part.content)  # it is in a result already
                else:
                    loose.append(part)
            elif not any(result is message for message in messages):
                messages.extend(_joined(loose))
                messages.append(result)
                loose = []
        self._calls, self._answers = {}, DeferredToolResults()
        self._notes.end_batch()
        return [*messages, *_joined(loose)]


async def _made(handler: WrapToolExecuteHandler, args: dict[str, Any]) -> Any:
    return await handler(args)


def _runs_in_thread(ctx: RunContext[Any], name: str) -> bool:
    """Whether the tool is a sync function: a thread, which nobody can stop half-way."""
    tool: Any = (ctx.tool_manager.tools or {}).get(name) if ctx.tool_manager is not None else None
    while (inner := getattr(tool, "source_tool", None)) is not None:  # as part of a combined toolset
        tool = inner
    return getattr(tool, "is_async", True) is False


def _prompts(result: ModelRequest) -> list[UserPromptPart]:
    return [part for part in result.parts if isinstance(part, UserPromptPart)]


def _joined(parts: list[ModelRequestPart]) -> list[ModelRequest]:
    return [ModelRequest(parts=parts)] if parts else []
