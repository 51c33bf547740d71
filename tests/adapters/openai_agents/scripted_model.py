"""A model of the Agents SDK that follows a script, from any process: it looks at the conversation, not at a counter."""

from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelResponse, Usage
from agents.testing import ScriptedModel as OneReply
from agents.testing import assistant_message, function_call

Step = str | list[Any]


def call(call_id: str, tool: str, **arguments: Any) -> Any:
    """A call that the model asks for."""
    return function_call(tool, arguments, call_id=call_id)


class ScriptedModel(Model):
    """Says the first step of which the conversation shows no call yet. A text is the answer."""

    def __init__(self, *steps: Step) -> None:
        self._steps = steps
        #: What the model was sent, request by request, in this process.
        self.requests: list[list[Any]] = []
        #: With which instructions and tools.
        self.instructions: list[str | None] = []
        self.tools: list[list[Any]] = []

    def _find_output(self, items: list[Any]) -> list[Any]:
        seen = {item.get("call_id") for item in items if isinstance(item, dict)}
        for step in self._steps:
            if isinstance(step, str):
                return [assistant_message(step)]
            if not any(each.call_id in seen for each in step):
                return list(step)
        raise AssertionError("the script is over")

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        self.requests.append(list(input))
        self.instructions.append(system_instructions)
        self.tools.append(options.get("tools", []))
        usage = Usage(requests=1, input_tokens=10, output_tokens=3, total_tokens=13)
        return ModelResponse(output=self._find_output(input), usage=usage, response_id=None)

    def stream_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        self.requests.append(list(input))
        return OneReply([self._find_output(input)]).stream_response(system_instructions, input, *args, **options)
