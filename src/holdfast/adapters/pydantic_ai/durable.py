"""The loop that executes agents of pydantic-ai, and `durable`, which makes a holdfast agent of one."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncContextDecorator, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Unpack

from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import AgentRun
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import RunCancelled as AgentRunCancelled
from pydantic_ai.exceptions import RunTimedOut
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.usage import RunUsage, UsageLimits

from holdfast.adapters.pydantic_ai.batch import PydanticAIBatch
from holdfast.adapters.pydantic_ai.graph_runner import DurableCapability, GraphRunner, StreamingDurableCapability
from holdfast.adapters.pydantic_ai.history import Counters, PydanticAIHistory, make_steering_parts
from holdfast.adapters.pydantic_ai.message_codec import CODEC, dump_parts, load_prompt, make_output_codec
from holdfast.adapters.pydantic_ai.tool_results import ToolResultBuilder
from holdfast.adapters.pydantic_ai.toolset import make_toolset
from holdfast.adapters.tool_policies import NO_POLICIES, ToolPolicies, check_policies
from holdfast.core.agents.agent import Agent, AgentOptions
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError, RunCancelled
from holdfast.core.execution.step import StepContext
from holdfast.core.loop import FinishedCall, PendingCall
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import MessageCodec
from holdfast.core.run.result import OutputT
from holdfast.core.validation import check_type

#: Makes a value for a run when it begins, and again at each resume.
PerRunFactory = Callable[[RunInfo], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PydanticAIOptions:
    """The options of `durable` that a run needs."""

    deps: Any = None
    history: PerRunFactory | None = None
    tools: ToolPolicies
    usage_limits: UsageLimits | None = None
    stream: bool = False


class _RequestFailed(Exception):
    """A request to the model failed: carries the error past the end of pydantic-ai's run."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class PydanticAILoop:
    """The loop of one agent. Made by `durable`."""

    name = "pydantic_ai"

    def __init__(self, agent: AbstractAgent[Any, Any], options: PydanticAIOptions) -> None:
        self._agent, self._options = agent, options
        self._output_codec = make_output_codec(agent.output_type)

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
                # Call ids are unique within a reply; a later reply may use them again.
                finished += [
                    _make_finished_call(call, found[call.tool_call_id]) for call in asked if call.tool_call_id in found
                ]
                asked, found = (message.tool_calls if message is not None else ()), {}
        return finished

    def make_result(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        return ToolResultBuilder(call.tool, call.call_id).make_resolution(content, error=error)

    def make_message(self, content: str | list[Any]) -> Any:
        return ModelRequest(parts=make_steering_parts([content]))

    def dump_output(self, output: Any) -> Any:
        return self._output_codec.dump(output)

    def load_output(self, stored: Any) -> Any:
        return self._output_codec.load(stored)

    def dump_prompt(self, parts: Sequence[Any]) -> list[Any]:
        return dump_parts(parts)

    async def run(self, context: StepContext) -> Any:
        """Return the agent's output.

        Raises:
            RunWaiting: calls wait for an approval, a result, a time or a signal.
            ModelUnavailable: the provider does not answer; recovery resumes the run.
        """
        while True:
            try:
                return await self._run_once(context)
            except _RequestFailed as failure:
                error = failure.error
            # A stream broke off, which pydantic-ai cannot retry. The conversation continues as it is recorded.
            await context.model_calls.on_error(error)

    async def _run_once(self, context: StepContext) -> Any:
        counters, history = Counters(context.state), PydanticAIHistory(context)
        if not history.has_started:
            counters.start_turn() if context.attempt.info.conversation else counters.start_phase()
        batch = PydanticAIBatch(context, counters, self._options.tools, history.final_results())
        capability = StreamingDurableCapability if self._options.stream else DurableCapability
        runner: GraphRunner | None = None
        try:
            async with AsyncExitStack() as stack:
                run = await self._start_run(context, history, counters.usage, stack)
                capability.install(run, context, history, batch, counters)
                runner = GraphRunner(context, run, history, batch, counters)
                output = await runner.run()
        except RunTimedOut:
            raise
        except AgentRunCancelled as exc:  # a tool or a hook has called `RunContext.cancel`
            raise RunCancelled(f"run {context.run_id} was cancelled by its agent") from exc
        except Exception as exc:
            if runner is not None and exc is runner.request_error:
                raise _RequestFailed(exc) from exc
            raise
        finally:
            batch.count_usage()  # also of a request that failed
        if runner.has_waiting_calls:
            raise context.waits.make_error()
        return output

    async def _start_run(
        self, context: StepContext, history: PydanticAIHistory, usage: RunUsage, stack: AsyncExitStack
    ) -> AgentRun[Any, Any]:
        begins = not history.has_started
        toolsets = [make_toolset(context.profile.tools, context.attempt)] if context.profile.tools else None
        return await stack.enter_async_context(
            self._agent.iter(
                load_prompt(context.prompt) if begins else None,
                message_history=history.messages or await self._load_initial_history(context),
                deps=await self._make_deps(context.attempt.info, stack),
                instructions=context.profile.instructions or None,
                usage=usage,
                # The agent's bounds limit the run; pydantic-ai's own default would end it at 50 requests.
                usage_limits=self._options.usage_limits or UsageLimits(request_limit=None),
                conversation_id=context.run_id,
                toolsets=toolsets,
                infer_name=False,
            )
        )

    async def _load_initial_history(self, context: StepContext) -> list[ModelMessage]:
        make = self._options.history
        return list(await _call_factory(make, context.attempt.info)) if make is not None else []

    async def _make_deps(self, info: RunInfo, stack: AsyncExitStack) -> Any:
        given = self._options.deps
        if not callable(given) or isinstance(given, self._agent.deps_type):
            return given
        made = await _call_factory(given, info)
        # An @asynccontextmanager function: it is exited when the run ends.
        if isinstance(made, AsyncContextDecorator) and isinstance(made, AbstractAsyncContextManager):
            return await stack.enter_async_context(made)
        return made


def _make_finished_call(call: ToolCallPart, result: ToolReturnPart) -> FinishedCall:
    return FinishedCall(
        call_id=call.tool_call_id,
        tool=call.tool_name,
        arguments=call.args_as_dict(),
        content=result.content,
        error=result.outcome != "success",
    )


async def _call_factory(factory: PerRunFactory, info: RunInfo) -> Any:
    made = factory(info)
    return await made if inspect.isawaitable(made) else made


def durable(
    agent: AbstractAgent[Any, OutputT] | str,
    *,
    name: str | None = None,
    tools: ToolPolicies = NO_POLICIES,
    stream: bool = False,
    deps: Any = None,
    history: PerRunFactory | None = None,
    extra_tools: Sequence[Tool | Callable[..., Any]] = (),
    usage_limits: UsageLimits | None = None,
    **options: Unpack[AgentOptions],
) -> Agent[OutputT]:
    """Make an agent of pydantic-ai durable. The agent itself is not changed.

    The prompt of its runs is text, or a list of pydantic-ai's content parts.

    Args:
        agent: an agent; or a model by its name, such as `openai:gpt-5`, for an agent without tools.
        name: interrupted runs find their agent by it; without it the agent's own name.
        tools: a `ToolPolicy` by the name of the tool, or a function of its `ToolDefinition` that returns one. Other
            tools may state their effect as `metadata={"effect": "pure"}`; the default is `once`. The function of an
            approval gets the arguments as the model gave them.
        stream: request replies as streams, and show their text as it arrives, to watchers and the listener.
        deps: the agent's dependencies, or a function of `RunInfo` that makes them, sync or async, for each run and
            again at each resume. An `@asynccontextmanager` function is entered and left with the run.
        history: a function of `RunInfo` for the messages that a new run begins with. Called once per run.
        extra_tools: holdfast tools in addition to the agent's own, such as `sleep`, `wait_for` and `ask_person`.
        usage_limits: pydantic-ai's, over the whole run or the turn of a conversation, resumes included. Without them
            only `bounds` hold.
        options: `bounds`, `retry` of model requests, `compact` (gets the messages before a step and returns fewer, or
            `None` to keep them), `missing_tools`, `agent_id` and `model_tier`, as in `Agent`.

    Raises:
        DefinitionError: the agent has no name, or an option has a wrong value.
    """
    if isinstance(agent, str):
        agent = PydanticAIAgent(agent, name=agent)
    check_type("the agent", agent, AbstractAgent, "an agent of pydantic-ai")
    name = name or agent.name
    if not name:
        raise DefinitionError("the agent has no name: give it one with name=, interrupted runs find their agent by it")
    own = PydanticAIOptions(
        deps=deps, history=history, tools=check_policies(tools), usage_limits=usage_limits, stream=stream
    )
    return Agent(name=name, loop=PydanticAILoop(agent, own), tools=extra_tools, **options)
