"""The loop that executes agents of the OpenAI Agents SDK, and `durable`, which makes a holdfast agent of one."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncContextDecorator, AsyncExitStack
from typing import Any, Unpack

from agents import Agent as SDKAgent
from agents import AgentOutputSchema, RunConfig, RunHooks
from agents.agent_output import AgentOutputSchemaBase
from agents.exceptions import UserError
from agents.lifecycle import RunHooksBase
from agents.run_config import _coerce_run_config

from holdfast.adapters.openai_agents.handoffs import AgentGraph
from holdfast.adapters.openai_agents.history import forget_active_agent
from holdfast.adapters.openai_agents.message_codec import (
    CODEC,
    Input,
    SDKReply,
    ToolOutput,
    list_call_items,
    make_input_items,
    make_output,
    parse_arguments,
    to_input_items,
)
from holdfast.adapters.openai_agents.sdk_runner import Cost, SDKOptions, SDKRunner
from holdfast.adapters.output_codec import OutputCodec
from holdfast.adapters.tool_policies import NO_POLICIES, ToolPolicies, check_policies
from holdfast.core.agents.agent import Agent, AgentOptions
from holdfast.core.errors import DefinitionError
from holdfast.core.execution.step import StepContext
from holdfast.core.loop import FinishedCall, PendingCall
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import MessageCodec
from holdfast.core.run.prompt import dump_json_parts
from holdfast.core.validation import check_type


class OpenAIAgentsLoop:
    """The loop of one agent. Made by `durable`."""

    name = "openai_agents"

    def __init__(self, agent: SDKAgent[Any], options: SDKOptions) -> None:
        self._graph, self._options = AgentGraph(agent, options.tools), options
        self._output_codec = OutputCodec([_get_output_type(each) for each in self._graph])

    @property
    def codec(self) -> MessageCodec:
        return CODEC

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        last = history[-1] if history else None
        if not isinstance(last, SDKReply):
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
        return Input(items=make_input_items(content))

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
            user_context = await _make_context(self._options.context, context.attempt.info, stack)
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
    return [*before, *make_input_items(context.prompt)]


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


def _make_run_config(given: RunConfig | dict[str, Any] | None) -> RunConfig:
    try:
        return RunConfig() if given is None else _coerce_run_config(given)
    except (UserError, TypeError, ValueError) as exc:
        raise DefinitionError(f"run_config cannot be used: {exc}") from exc


def durable(
    agent: SDKAgent[Any],
    *,
    name: str | None = None,
    tools: ToolPolicies = NO_POLICIES,
    stream: bool = False,
    context: Any | Callable[[RunInfo], Any | Awaitable[Any]] = None,
    run_config: RunConfig | dict[str, Any] | None = None,
    hooks: RunHooks[Any] | None = None,
    cost: Cost | None = None,
    **options: Unpack[AgentOptions],
) -> Agent[Any]:
    """Make an agent of the OpenAI Agents SDK durable. The agent itself is not changed.

    The prompt of its runs is text; a list of text and content parts of the Responses API, such as
    `{"type": "input_image", "image_url": ...}`; or a list of input items, such as `{"role": "user", "content": ...}`,
    as `Runner.run` takes them.

    Args:
        name: interrupted runs find their agent by it; without it the agent's own name.
        tools: a `ToolPolicy` by the name of the tool or handoff, or a function of the SDK's tool that returns one. The
            default is `once`. Calls for which the SDK's tool needs an approval need one anyway.
        stream: request replies as streams; `App.events` and listeners get their text as it arrives.
        context: the context object of the run, or a function of `RunInfo` that makes it, sync or async, for each run
            and again at each resume. An `@asynccontextmanager` function is entered and left with the run.
        run_config: the SDK's, for every run. `group_id` is the run id unless it is given.
        hooks: the SDK's run hooks.
        cost: the cost of a reply in US dollars, from the name of the model and the usage of the reply.
        options: `bounds` of the whole run, resumes included, in place of the SDK's `max_turns`; `retry` of model
            requests; `compact`, which gets the input items before a step and returns fewer, or `None` to keep them;
            `missing_tools`, `agent_id` and `model_tier`, as in `Agent`.

    Raises:
        DefinitionError: the agent has no name, two agents that it reaches share one, a tool cannot be recorded, or an
            option has a wrong value.
    """
    check_type("the agent", agent, SDKAgent, "an agent of the OpenAI Agents SDK")
    if not (name or agent.name):
        raise DefinitionError("the agent has no name: give it one with name=, interrupted runs find their agent by it")
    if hooks is not None and not isinstance(hooks, RunHooksBase):
        raise DefinitionError(f"hooks is a {type(hooks).__name__}: give RunHooks here, and AgentHooks to the agent")
    own = SDKOptions(
        context=context,
        run_config=_make_run_config(run_config),
        hooks=hooks,
        tools=check_policies(tools),
        stream=stream,
        cost=cost,
    )
    return Agent(name=name or agent.name, loop=OpenAIAgentsLoop(agent, own), **options)
