"""The driver of the adapter suite for the OpenAI Agents SDK."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from agents import Agent, Model, ModelResponse, Usage, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseTextDeltaEvent

from holdfast import Agent as HoldfastAgent
from holdfast.adapters.openai_agents import ToolPolicy, durable
from holdfast.testing.adapter_suite import INPUT_TOKENS, OUTPUT_TOKENS, AgentScript

set_tracing_disabled(True)


class OpenAIAgentsDriver:
    """Makes agents of the OpenAI Agents SDK."""

    name: ClassVar[str] = "OpenAI Agents SDK"
    unsupported: ClassVar[Mapping[str, str]] = {}

    def get_answer(self, output: Any) -> str:
        return str(output)

    def make_agent(self, script: AgentScript) -> HoldfastAgent[Any]:
        tools: list[Any] = [
            function_tool(each.function, name_override=each.name, needs_approval=each.needs_approval)
            for each in script.tools
        ]
        return durable(
            Agent(name=script.name, model=_SDKModel(script), tools=tools),
            tools={each.name: ToolPolicy(each.effect) for each in script.tools},
            stream=script.stream,
            missing_tools=script.missing_tools,
        )


class _SDKModel(Model):
    """A model of the OpenAI Agents SDK that follows a script."""

    def __init__(self, script: AgentScript) -> None:
        self._script = script

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        step = await self._script.reply({item.get("call_id") for item in input})
        output = (
            [assistant_message(step)]
            if isinstance(step, str)
            else [function_call(each.tool, {"city": each.city}, call_id=each.call_id) for each in step]
        )
        usage = Usage(
            requests=1,
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            total_tokens=INPUT_TOKENS + OUTPUT_TOKENS,
        )
        return ModelResponse(output=output, usage=usage, response_id=None)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Stream the reply word by word."""
        response = await self.get_response(*args, **options)
        step = ModelStep(output=response.output, usage=response.usage)
        async for event in ScriptedModel([step]).stream_response(*args, **options):
            words = event.delta.split() if isinstance(event, ResponseTextDeltaEvent) else ()
            for word in words:
                yield event.model_copy(update={"delta": f"{word} "})
            if not words:
                yield event


DRIVER = OpenAIAgentsDriver()
