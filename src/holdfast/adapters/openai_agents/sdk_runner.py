"""One attempt of a run: the SDK's runner between our models, tools and records."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agents import (
    Agent,
    Handoff,
    Model,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResult,
    Tool,
    ToolApprovalItem,
    Usage,
)
from agents.run_config import CallModelData, ModelInputData

from holdfast.adapters.openai_agents.batch import SDKBatch, Toolkit
from holdfast.adapters.openai_agents.handoffs import AgentGraph, ExecutedAgents
from holdfast.adapters.openai_agents.history import SDKHistory
from holdfast.adapters.openai_agents.message_codec import (
    SDKReply,
    get_text,
    list_calls,
    load_usage,
    make_reply,
    replace_unstorable,
)
from holdfast.adapters.openai_agents.model import Ask, ModelRecorder, NamedResponse
from holdfast.adapters.openai_agents.public_hooks import PublicRunHooks
from holdfast.adapters.tool_policies import ToolPolicies
from holdfast.core.agents.tool_context import _CURRENT_CALL
from holdfast.core.errors import DefinitionError
from holdfast.core.execution.step import StepContext
from holdfast.core.run.messages import Usage as RunUsage

#: Returns the cost of a reply in US dollars, for the name of its model and its usage.
Cost = Callable[[str, Usage], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SDKOptions:
    """The options of `durable` that a run needs."""

    context: Any = None
    run_config: RunConfig = field(default_factory=RunConfig)
    hooks: RunHooks[Any] | None = None
    tools: ToolPolicies
    stream: bool = False
    cost: Cost | None = None


class SDKRunner:
    """Executes a conversation to its next answer."""

    def __init__(
        self, context: StepContext, graph: AgentGraph, options: SDKOptions, user_context: Any, *, answered: bool
    ) -> None:
        """Prepare an attempt.

        Args:
            answered: the conversation ends with an answer, and continues with messages that were sent to the run.
        """
        self._context, self._options = context, options
        self._history = SDKHistory(context, answered=answered)
        self._sdk_context = RunContextWrapper(user_context, usage=self._load_usage())
        self._batch = SDKBatch(context, options.tools, self._sdk_context, options.run_config.tool_error_formatter)
        self._recorder = ModelRecorder(self, context if options.stream else None)
        self._skips_guardrails = answered or self._history.has_first_results
        self._agents = ExecutedAgents(
            graph,
            self._batch,
            self._recorder,
            extra_tools=list(context.profile.tools.values()),
            skip_input_guardrails=self._skips_guardrails,
        )
        #: The agent that asks for the next reply.
        self._agent: Agent[Any] | None = None
        #: A reply asks for calls, and its step is not ended.
        self._has_open_step = False
        #: An error of holdfast, which the SDK may wrap in one of its own.
        self._error: Exception | None = None

    def _load_usage(self) -> Usage:
        """Return the usage of the run without the open reply, which the SDK counts again."""
        used, reply = self._context.state.own_usage, self._history.open_reply
        again = reply.usage if reply is not None else {}
        names = ("requests", "input_tokens", "output_tokens", "reasoning_tokens")
        return load_usage({name: getattr(used, name) - again.get(name, 0) for name in names})

    async def run(self) -> Any:
        """Return the output.

        Raises:
            RunWaiting: calls wait for an approval or for something else.
        """
        try:
            result = await self._run_sdk()
        except Exception as exc:
            error = self._error or self._batch.error
            if error is None and self._batch.waits:
                error = self._context.waits.make_error()
            if error is None or error is exc:
                raise
            raise error from exc
        if self._batch.waits:
            raise self._context.waits.make_error()
        if result.interruptions:
            raise _make_approval_error(result.interruptions[0])
        if self._has_open_step:
            self._history.add_final_results()
            await self._end_step()
        return result.final_output

    async def _run_sdk(self) -> RunResult:
        agent = self._agents.get(self._history.active_agent)
        try:
            return await Runner.run(
                agent,
                self._history.items,
                context=self._sdk_context,  # the SDK takes a wrapper for the context in it
                max_turns=None,
                hooks=None if self._options.hooks is None else PublicRunHooks(self._options.hooks),
                run_config=self._make_config(),
            )
        finally:
            await self._batch.close()

    def _make_config(self) -> RunConfig:
        given = self._options.run_config
        changes: dict[str, Any] = {
            "model_provider": self._recorder.wrap_provider(given.model_provider),
            "call_model_input_filter": self._filter_input,
            "group_id": given.group_id or self._context.run_id,
        }
        if isinstance(given.model, Model):
            changes["model"] = self._recorder.wrap(given.model)
        if self._skips_guardrails:
            changes["input_guardrails"] = None
        if self._context.profile.missing_tools == "report":
            changes["tool_not_found_behavior"] = "return_error_to_model"
        return replace(given, **changes)

    @property
    def _is_nested(self) -> bool:
        """Whether another run of the SDK, within a tool of this run, uses our run configuration."""
        call = _CURRENT_CALL.get()
        return call is not None and call.run_id == self._context.run_id

    # -- before a reply -----------------------------------------------------------------------------------------

    async def _filter_input(self, data: CallModelData[Any]) -> ModelInputData:
        """Record what happened since the last reply. Return what the model is sent, after the user's own filter."""
        if not self._is_nested:
            try:
                await self._prepare_request(data)
            except Exception as exc:
                self._error = exc
                raise
        own = self._options.run_config.call_model_input_filter
        filtered = own(data) if own is not None else data.model_data
        return await filtered if inspect.isawaitable(filtered) else filtered

    async def _prepare_request(self, data: CallModelData[Any]) -> None:
        history, self._agent = self._history, data.agent
        history.read_sdk_items(data.model_data.input)
        if history.open_reply is not None:
            return  # an earlier process has asked the model
        history.set_active_agent(data.agent.name)
        if self._has_open_step:
            await self._end_step()
        steered = await self._context.begin_step(history.compact if self._context.profile.compact else None)
        if steered:
            history.add_messages(steered)
        data.model_data.input = list(history.items)

    async def _end_step(self) -> None:
        self._has_open_step = False
        await self._context.end_step()

    # -- replies ------------------------------------------------------------------------------------------------

    async def get_reply(
        self, ask: Ask, model: str, tools: Sequence[Tool], handoffs: Sequence[Handoff[Any, Any]]
    ) -> ModelResponse:
        """Return the recorded reply, or ask the model and record what it says."""
        if self._is_nested:
            return await self._ask_within_tool(ask, model)
        try:
            kit = Toolkit(tools, handoffs)
            if self._history.open_reply is not None:
                return await self._replay_reply(self._history.open_reply, kit)
            return await self._request_reply(ask, model, kit)
        except Exception as exc:
            self._error = exc
            raise

    async def _replay_reply(self, reply: SDKReply, kit: Toolkit) -> ModelResponse:
        history, batch = self._history, self._batch
        response = history.replay_reply(reply)
        if history.final_outputs:
            batch.reopen(history.final_outputs)
        elif calls := list_calls(response):
            assert self._agent is not None, "the SDK prepares the input before it asks for a reply"
            await batch.resume(reply, calls, kit, self._agent)
            self._has_open_step = True
        elif not history.is_last_step_counted:
            await self._end_step()
        return response

    async def _request_reply(self, ask: Ask, model: str, kit: Toolkit) -> ModelResponse:
        response = await self._ask_until_reply(ask, model)
        replace_unstorable(response)
        calls = list_calls(response)
        await self._batch.prepare(calls, kit)
        assert self._agent is not None, "the SDK prepares the input before it asks for a reply"
        unknown = [call.call_id for call in calls if call.name not in kit]
        reply = make_reply(self._agent.name, response, unknown)
        self._count(model, response.usage)
        self._history.add_reply(reply, response)
        await self._context.emit_reply(get_text(reply))
        self._history.check_repeats(reply)
        if calls:
            self._has_open_step = True
            await self._batch.open()
        else:
            await self._end_step()
        return response

    async def _ask_within_tool(self, ask: Ask, model: str) -> ModelResponse:
        gate = self._context.model_calls
        permit = await gate.acquire(model)
        try:
            response = await ask()
        except Exception as exc:  # a provider may raise anything
            gate.fail(permit, exc)
            raise
        gate.settle(permit, response.usage.total_tokens)
        # Its tokens are counted with the call that the agent works for.
        self._context.add_usage(RunUsage(cost_usd=self._get_cost(model, response.usage)))
        return response

    async def _ask_until_reply(self, ask: Ask, model: str) -> ModelResponse:
        retries = self._context.model_calls
        while True:
            await self._context.model_calls.enter(model)
            try:
                response = await ask()
            except Exception as exc:  # a provider may raise anything
                await retries.on_error(exc)
            else:
                retries.on_reply(response.model if isinstance(response, NamedResponse) else "")
                return response

    def _count(self, model: str, usage: Usage) -> None:
        self._context.add_usage(
            RunUsage(
                requests=usage.requests,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
                cost_usd=self._get_cost(model, usage),
            )
        )

    def _get_cost(self, model: str, usage: Usage) -> float:
        return 0.0 if self._options.cost is None else self._options.cost(model, usage)


def _make_approval_error(item: ToolApprovalItem) -> DefinitionError:
    """Return the error for an approval that the SDK asks for outside the recorded calls."""
    return DefinitionError(
        f"{item.name} asks for an approval that a durable run cannot give: hosted MCP tools need on_approval_request"
    )
