"""Drives an agent of pydantic-ai, turn by turn."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncContextDecorator, AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic_ai import AgentRun
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelAPIError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
)
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.usage import RunUsage, UsageLimits

from holdfast.adapters.pydantic_ai.batch import Batch
from holdfast.adapters.pydantic_ai.capability import Journal, StreamingJournal
from holdfast.adapters.pydantic_ai.codec import CODEC
from holdfast.adapters.pydantic_ai.conversation import Conversation
from holdfast.adapters.pydantic_ai.notes import Notes
from holdfast.adapters.pydantic_ai.outputs import Outputs
from holdfast.adapters.pydantic_ai.own_tools import as_toolset
from holdfast.adapters.pydantic_ai.policy import ToolPolicies
from holdfast.adapters.pydantic_ai.results import ToolResults
from holdfast.adapters.pydantic_ai.turns import Turns
from holdfast.run.drive import Drive
from holdfast.run.errors import ModelUnavailable
from holdfast.run.info import RunInfo
from holdfast.run.loop import FinishedCall, PendingCall
from holdfast.run.message import MessageCodec

#: Makes something for a run, when it begins and again whenever it is resumed.
ForRun = Callable[[RunInfo], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run of the agent is given beside its prompt."""

    deps: Any = None
    history: ForRun | None = None
    policies: ToolPolicies = field(default_factory=ToolPolicies)
    usage_limits: UsageLimits | None = None
    stream: bool = False


class PydanticAILoop:
    """The loop of one agent. Made by `durable`."""

    def __init__(self, agent: AbstractAgent[Any, Any], options: RunOptions) -> None:
        self._agent, self._options = agent, options
        self._outputs = Outputs(agent.output_type)

    @property
    def codec(self) -> MessageCodec:
        return CODEC

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        last = history[-1] if history else None
        if not isinstance(last, ModelResponse):
            return ()
        return [
            PendingCall(call_id=call.tool_call_id, tool=call.tool_name, arguments=call.args_as_dict())
            for call in last.tool_calls
        ]

    def finished_calls(
        self, history: Sequence[Any], results: Mapping[str, Any] | None = None
    ) -> Sequence[FinishedCall]:
        finished: list[FinishedCall] = []
        asked: Sequence[ToolCallPart] = ()
        found: dict[str, ToolReturnPart] = {}
        for message in [*history, *(results or {}).values(), None]:
            if isinstance(message, ModelRequest):
                found.update((part.tool_call_id, part) for part in message.parts if isinstance(part, ToolReturnPart))
            else:
                # The ids of calls are unique within a reply, and may be used again in later ones.
                finished += [_finished(call, found[call.tool_call_id]) for call in asked if call.tool_call_id in found]
                asked, found = (message.tool_calls if message is not None else ()), {}
        return finished

    def told(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        return ToolResults(call.tool, call.call_id).told(content, error=error)

    def dump_output(self, output: Any) -> Any:
        return self._outputs.dump(output)

    def load_output(self, stored: Any) -> Any:
        return self._outputs.load(stored)

    async def drive(self, drive: Drive) -> Any:
        """The agent's output.

        Raises:
            RunParked: calls wait for an approval, or for their results.
            ModelUnavailable: the provider does not answer; recovery goes on with the run.
        """
        notes, conversation = Notes(drive.state), Conversation(drive)
        if not conversation.has_begun:
            notes.new_conversation()
        batch = Batch(drive, notes, self._options.policies, conversation.final_results())
        journal = StreamingJournal if self._options.stream else Journal
        try:
            async with AsyncExitStack() as stack:
                run = await self._open(drive, conversation, notes.usage, stack)
                journal.around(run, drive, conversation, batch, notes)
                turns = Turns(drive, run, conversation, batch, notes)
                output = await turns.take()
        except (ModelAPIError, FallbackExceptionGroup) as exc:
            if not _passes(exc):
                raise
            wait = getattr(exc, "retry_after", None)
            waits = [] if wait is None else [timedelta(seconds=wait)]
            raise ModelUnavailable(f"run {drive.run_id} waits for its model: {exc}", *waits) from exc
        finally:
            batch.count_usage()  # also of a request that failed in the end
        if turns.parked is not None:
            raise turns.parked
        return output

    async def _open(
        self, drive: Drive, conversation: Conversation, usage: RunUsage, stack: AsyncExitStack
    ) -> AgentRun[Any, Any]:
        begins = not conversation.has_begun
        toolsets = [as_toolset(drive.profile.tools)] if drive.profile.tools else None
        return await stack.enter_async_context(
            self._agent.iter(
                drive.prompt if begins else None,
                message_history=await self._beginning(drive) if begins else conversation.messages,
                deps=await self._deps(drive.live.info, stack),
                instructions=drive.profile.instructions or None,
                usage=usage,
                # How far a run may go is said by its bounds; pydantic-ai's own default would end it at 50 requests.
                usage_limits=self._options.usage_limits or UsageLimits(request_limit=None),
                conversation_id=drive.run_id,
                toolsets=toolsets,
                infer_name=False,
            )
        )

    async def _beginning(self, drive: Drive) -> list[ModelMessage]:
        make = self._options.history
        return list(await _made(make, drive.live.info)) if make is not None else []

    async def _deps(self, info: RunInfo, stack: AsyncExitStack) -> Any:
        given = self._options.deps
        if not callable(given) or isinstance(given, self._agent.deps_type):
            return given
        made = await _made(given, info)
        # An @asynccontextmanager function: it is entered, and left when the run is over.
        if isinstance(made, AsyncContextDecorator) and isinstance(made, AbstractAsyncContextManager):
            return await stack.enter_async_context(made)
        return made


def _finished(call: ToolCallPart, result: ToolReturnPart) -> FinishedCall:
    return FinishedCall(
        call_id=call.tool_call_id,
        tool=call.tool_name,
        arguments=call.args_as_dict(),
        content=result.content,
        error=result.outcome != "success",
    )


async def _made(make: ForRun, info: RunInfo) -> Any:
    made = make(info)
    return await made if inspect.isawaitable(made) else made


def _passes(error: BaseException) -> bool:
    """Whether it is the provider's trouble and not the request's: then asking again later may do."""
    if isinstance(error, BaseExceptionGroup):
        return all(_passes(each) for each in error.exceptions)
    return isinstance(error, ModelAPIError) and not isinstance(
        error, ModelRequestRejectedError | ModelQuotaExceededError
    )
