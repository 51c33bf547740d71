"""The loop that executes agents of the OpenAI Agents SDK, and `durable`, which makes a holdfast agent of one."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncContextDecorator, AsyncExitStack
from typing import Any

from agents import Agent as SDKAgent
from agents import AgentOutputSchema, FunctionTool, RunConfig, RunHooks
from agents.agent_output import AgentOutputSchemaBase

from holdfast.adapters.openai_agents.handoffs import AgentGraph
from holdfast.adapters.openai_agents.history import forget_active_agent
from holdfast.adapters.openai_agents.message_codec import (
    CODEC,
    Input,
    Reply,
    ToolOutput,
    list_call_items,
    make_output,
    make_user_item,
    parse_arguments,
    to_input_items,
)
from holdfast.adapters.openai_agents.sdk_runner import Cost, SDKOptions, SDKRunner
from holdfast.adapters.output_codec import OutputCodec
from holdfast.adapters.policies import ToolPolicies
from holdfast.core.agents.agent import Agent, Bounds, Compact, MissingTools
from holdfast.core.agents.calls import Effect, InDoubt, Reconcile
from holdfast.core.agents.retry import Retry
from holdfast.core.errors import DefinitionError
from holdfast.core.execution.step import StepContext
from holdfast.core.loop import FinishedCall, PendingCall
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import MessageCodec
from holdfast.core.run.prompt import dump_json_parts

#: The effect of each tool by name, or as a function of the tool. `None`: the default.
Effects = Mapping[str, Effect | str] | Callable[[FunctionTool], Effect | str | None]


class OpenAIAgentsLoop:
    """The loop of one agent. Made by `durable`."""

    def __init__(self, agent: SDKAgent[Any], options: SDKOptions) -> None:
        self._graph, self._options = AgentGraph(agent), options
        self._output_codec = OutputCodec([_get_output_type(each) for each in self._graph])

    @property
    def codec(self) -> MessageCodec:
        return CODEC

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        last = history[-1] if history else None
        if not isinstance(last, Reply):
            return ()
        return [
            PendingCall(call_id=call["call_id"], tool=call["name"], arguments=parse_arguments(call["arguments"]))
            for call in list_call_items(last.output)
        ]

    def finished_calls(
        self, history: Sequence[Any], results: Mapping[str, Any] | None = None
    ) -> Sequence[FinishedCall]:
        recorded = [message for message in history if isinstance(message, ToolOutput)]
        found = {output.call_id: output for output in [*(results or {}).values(), *recorded]}
        items = [item for item in to_input_items(history) if isinstance(item, dict)]
        outputs = {item["call_id"]: item for item in items if item.get("type") == "function_call_output"}
        finished: list[FinishedCall] = []
        for call in list_call_items(items):
            if (call_id := call["call_id"]) in found:
                content, error = found[call_id].value, found[call_id].error
            elif call_id in outputs:
                content, error = outputs[call_id]["output"], False
            else:
                continue
            arguments = parse_arguments(call["arguments"])
            finished.append(
                FinishedCall(call_id=call_id, tool=call["name"], arguments=arguments, content=content, error=error)
            )
        return finished

    def make_result(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        made = make_output(call.call_id, call.tool, content)
        return ToolOutput(call_id=made.call_id, tool=made.tool, value=made.value, error=error)

    def make_message(self, content: str | list[Any]) -> Any:
        return Input(items=[make_user_item(content)])

    def dump_output(self, output: Any) -> Any:
        return self._output_codec.dump(output)

    def load_output(self, stored: Any) -> Any:
        return self._output_codec.load(stored)

    def dump_prompt(self, parts: Sequence[Any]) -> list[Any]:
        return dump_json_parts(parts)

    async def run(self, context: StepContext) -> Any:
        """Return the output of the agent that gives the answer.

        Raises:
            RunWaiting: calls wait for an approval or for something else.
            ModelUnavailable: the provider does not answer; recovery resumes the run.
        """
        if context.begins:
            if not context.state.history:
                forget_active_agent(context.state)  # of an earlier phase
            await context.start([Input(items=_make_prompt_items(context))])
        async with AsyncExitStack() as stack:
            user_context = await _make_context(self._options.context, context.run.info, stack)
            answered = False
            while True:
                attempt = SDKRunner(context, self._graph, self._options, user_context, answered=answered)
                output = await attempt.run()
                if not context.has_messages:
                    return output
                answered = True


def _make_prompt_items(context: StepContext) -> list[Any]:
    instructions = context.profile.instructions if not context.state.history else ""
    before = [{"role": "developer", "content": instructions}] if instructions else []
    return [*before, make_user_item(context.prompt)]


async def _make_context(given: Any, info: RunInfo, stack: AsyncExitStack) -> Any:
    if not callable(given):
        return given
    made = given(info)
    made = await made if inspect.isawaitable(made) else made
    # An @asynccontextmanager function: it is exited when the run ends.
    if isinstance(made, AsyncContextDecorator) and isinstance(made, AbstractAsyncContextManager):
        return await stack.enter_async_context(made)
    return made


def _get_output_type(agent: SDKAgent[Any]) -> Any:
    kind = agent.output_type
    if isinstance(kind, AgentOutputSchema):
        return kind.output_type
    if isinstance(kind, AgentOutputSchemaBase):
        return Any
    return str if kind is None else kind


def durable(
    agent: SDKAgent[Any],
    *,
    name: str | None = None,
    context: Any | Callable[[RunInfo], Any | Awaitable[Any]] = None,
    effects: Effects | None = None,
    reconcile: Mapping[str, Reconcile] | None = None,
    in_doubt: Mapping[str, InDoubt] | None = None,
    retry: Retry | None = None,
    tool_retry: Mapping[str, Retry] | None = None,
    bounds: Bounds | None = None,
    compact: Compact | None = None,
    missing_tools: MissingTools = "defer",
    stream: bool = False,
    run_config: RunConfig | None = None,
    hooks: RunHooks[Any] | None = None,
    cost: Cost | None = None,
    agent_id: str = "",
    model_tier: str = "",
) -> Agent[Any]:
    """Make an agent of the OpenAI Agents SDK durable. The agent itself is not changed.

    The prompt of its runs is text, or a list of text and content parts of the Responses API, such as
    `{"type": "input_image", "image_url": ...}`.

    Args:
        name: interrupted runs find their agent by it; without it the agent's own name.
        context: the context object of the run, or a function of `RunInfo` that makes it, sync or async, for each run
            and again at each resume. An `@asynccontextmanager` function is entered and left with the run.
        effects: the effect of each tool and handoff, by its name, or as a function of the tool. The default is `once`.
        reconcile: by tool name: finds, after a crash, the outcome of a call whose result was never recorded.
        in_doubt: by tool name: `report` a call with an unknown outcome to the model, or `park` the run for a person.
        retry: how failed model requests are repeated; without it the defaults of `Retry`.
        tool_retry: by tool name: repeats calls of `pure` and `idempotent` tools that raised a transient error.
        bounds: the bounds of the whole run, resumes included. They take the place of the SDK's `max_turns`.
        compact: gets the input items before a step and returns fewer, or `None` to keep them.
        missing_tools: for a resumed run that was about to call a tool that the agent no longer has.
        stream: request replies as streams; `App.events` and listeners get their text as it arrives.
        run_config: the SDK's, for every run. `group_id` is the run id unless it is given.
        hooks: the SDK's run hooks.
        cost: the cost of a reply in US dollars, from the name of the model and the usage of the reply.

    Raises:
        DefinitionError: the agent has no name, two agents that it reaches share one, a tool cannot be recorded, or the
            options contradict each other.
    """
    if not (name or agent.name):
        raise DefinitionError("the agent has no name: give it one with name=, interrupted runs find their agent by it")
    policies = ToolPolicies(
        effects=effects or {}, reconcile=reconcile or {}, in_doubt=in_doubt or {}, retry=tool_retry or {}
    )
    options = SDKOptions(
        context=context,
        run_config=run_config or RunConfig(),
        hooks=hooks,
        policies=policies,
        stream=stream,
        cost=cost,
    )
    return Agent(
        name=name or agent.name,
        loop=OpenAIAgentsLoop(agent, options),
        bounds=bounds or Bounds(),
        retry=Retry() if retry is None else retry,
        compact=compact,
        missing_tools=missing_tools,
        agent_id=agent_id,
        model_tier=model_tier,
    )
