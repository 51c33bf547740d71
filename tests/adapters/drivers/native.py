"""The driver of the adapter suite for the native loop."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from holdfast import Agent, Reply
from holdfast.core import Message, Tool, ToolSchema
from holdfast.core.agents.tool_context import emit_text
from holdfast.core.run.messages import ToolCall, Usage
from holdfast.testing.adapter_suite import INPUT_TOKENS, OUTPUT_TOKENS, AgentScript


class NativeDriver:
    """Makes agents of the native loop."""

    name: ClassVar[str] = "native loop"
    unsupported: ClassVar[Mapping[str, str]] = {}

    def get_answer(self, output: Any) -> str:
        return str(output)

    def make_agent(self, script: AgentScript) -> Agent[Any]:
        async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
            seen = {call.id for message in messages if isinstance(message, Reply) for call in message.tool_calls}
            step = await script.reply(seen)
            usage = Usage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
            if not isinstance(step, str):
                calls = [ToolCall(id=each.call_id, name=each.tool, arguments={"city": each.city}) for each in step]
                return Reply(tool_calls=calls, usage=usage)
            for word in step.split() if script.stream else ():
                await emit_text(f"{word} ")
            return Reply(text=step, usage=usage)

        tools = [
            Tool(each.function, name=each.name, effect=each.effect, approval=each.needs_approval)
            for each in script.tools
        ]
        return Agent(name=script.name, model=model, tools=tools, missing_tools=script.missing_tools)


DRIVER = NativeDriver()
