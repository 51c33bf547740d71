"""The driver of the adapter suite for pydantic-ai."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import Tool as PydanticAITool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from holdfast import Agent
from holdfast.adapters.pydantic_ai import durable
from holdfast.testing.adapter_suite import INPUT_TOKENS, OUTPUT_TOKENS, AgentScript
from holdfast.testing.adapter_suite.script import Step


class PydanticAIDriver:
    """Makes agents of pydantic-ai."""

    name: ClassVar[str] = "pydantic-ai"
    unsupported: ClassVar[Mapping[str, str]] = {}

    def get_answer(self, output: Any) -> str:
        return str(output)

    def make_agent(self, script: AgentScript) -> Agent[Any]:
        async def find_step(messages: list[ModelMessage]) -> Step:
            parts = [part for message in messages for part in message.parts]
            return await script.reply({part.tool_call_id for part in parts if isinstance(part, ToolCallPart)})

        async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            step = await find_step(messages)
            parts: list[Any] = (
                [TextPart(step)]
                if isinstance(step, str)
                else [ToolCallPart(each.tool, {"city": each.city}, each.call_id) for each in step]
            )
            usage = RequestUsage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
            return ModelResponse(parts=parts, usage=usage)

        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            step = await find_step(messages)
            assert isinstance(step, str), "only answers are streamed"
            for word in step.split():
                yield f"{word} "

        tools = [
            PydanticAITool(
                each.function,
                name=each.name,
                requires_approval=each.needs_approval,
                metadata={"effect": each.effect.value},
                takes_ctx=False,
            )
            for each in script.tools
        ]
        agent = PydanticAIAgent(FunctionModel(reply, stream_function=stream), name=script.name, tools=tools)
        return durable(agent, stream=script.stream, missing_tools=script.missing_tools)


DRIVER = PydanticAIDriver()
