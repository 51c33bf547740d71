"""Tool results, each as a message of its own.

A reply with three calls is answered by three requests of one part each, recorded one by one as the calls end.
pydantic-ai joins adjacent requests, so the model sees one.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai.exceptions import ToolFailedError, ToolRetryError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ToolAvailabilityDeltaPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition, ToolDenied

from holdfast.adapters.pydantic_ai.message_codec import CODEC
from holdfast.core.errors import PayloadError
from holdfast.core.run.waiting import Deferred

#: In a message's metadata: one of the marks below.
_MARK_KEY = "holdfast"
#: A resolution that came with an unpark.
RESOLUTION = "told"
#: The last of the answers to a reply that holds the run's output.
FINAL = "final"

#: Can always be stored.
_SCALARS = (str, int, float, bool, type(None))


def make_marked_request(parts: list[ModelRequestPart], mark: str) -> ModelRequest:
    """Return a request that is recognised after a resume."""
    return ModelRequest(parts=parts, metadata={_MARK_KEY: mark})


def has_mark(message: ModelMessage, mark: str) -> bool:
    return bool(message.metadata) and message.metadata is not None and message.metadata.get(_MARK_KEY) == mark


class ToolResultBuilder:
    """Makes the results of calls of one tool."""

    def __init__(self, tool: str, call_id: str, definition: ToolDefinition | None = None) -> None:
        self._tool, self._call_id = tool, call_id
        self._kind = definition.tool_kind if definition is not None else None

    def make_result(self, value: Any) -> ModelRequest:
        """Return the result of a tool that returned `value`."""
        if isinstance(value, ToolDenied):
            return ModelRequest(parts=[self._make_part(value.message, outcome="denied")])
        if not isinstance(value, ToolReturn):
            return ModelRequest(parts=[self._make_part(value)])
        parts: list[ModelRequestPart] = [self._make_part(value.return_value, metadata=value.metadata)]
        if value.tools:
            parts.append(
                ToolAvailabilityDeltaPart(tools_added=list(dict.fromkeys(value.tools)), tool_call_id=self._call_id)
            )
        if value.content:
            parts.append(UserPromptPart(value.content))
        return ModelRequest(parts=parts)

    def make_error_result(self, text: str) -> ModelRequest:
        """Return a failed result with a text for the model."""
        return ModelRequest(parts=[self._make_part(text, outcome="failed")])

    def make_resolution(self, content: Any, *, error: bool = False) -> ModelRequest:
        """Return a person's resolution of the call: its result."""
        return make_marked_request([self._make_part(content, outcome="failed" if error else "success")], RESOLUTION)

    def _make_part(self, content: Any, **options: Any) -> ToolReturnPart:
        return ToolReturnPart(
            tool_name=self._tool, tool_call_id=self._call_id, content=content, tool_kind=self._kind, **options
        )


def get_value(result: ModelRequest) -> Any:
    """Return the value of a recorded result, for pydantic-ai to continue with.

    Raises:
        ToolRetryError: the tool asked the model to retry.
        ToolFailedError: it failed.
    """
    part = get_return_part(result)
    if part.outcome == "retried":
        raise ToolRetryError(part)
    if part.outcome == "denied":
        return ToolDenied(str(part.content))
    if part.outcome != "success":
        raise ToolFailedError(part)
    tools = [name for each in result.parts if isinstance(each, ToolAvailabilityDeltaPart) for name in each.tools_added]
    said = [each.content for each in result.parts if isinstance(each, UserPromptPart)]
    if not tools and not said and part.metadata is None:
        return part.content
    return ToolReturn(
        return_value=part.content, content=said[0] if said else None, metadata=part.metadata, tools=tools or None
    )


def get_return_part(result: ModelRequest) -> ToolReturnPart:
    part = result.parts[0]
    assert isinstance(part, ToolReturnPart), "every result begins with one"
    return part


def is_error(result: Any) -> bool:
    return get_return_part(result).outcome != "success"


async def await_outcome(
    call: Awaitable[Any], results: ToolResultBuilder
) -> tuple[Callable[[], Any], ModelRequest | Deferred]:
    """Await the call. Return a function that returns or raises its outcome to pydantic-ai, and the result to record.

    Deferrals and errors that end the run are raised. A result that cannot be stored becomes an error for the model.
    """
    try:
        value = await call
    except ToolRetryError as exc:
        return _make_raiser(exc), ModelRequest(parts=[exc.tool_retry])
    except ToolFailedError as exc:
        return _make_raiser(exc), ModelRequest(parts=[exc.tool_failed])
    if isinstance(value, Deferred):
        return functools.partial(_identity, value), value
    result = results.make_result(value)
    if not isinstance(value, _SCALARS):
        try:
            CODEC.check(result)
        except PayloadError as exc:
            result = results.make_error_result(f"The tool has returned, but its result is lost: {exc}")
            return functools.partial(get_value, result), result
    return functools.partial(_identity, value), result


def _make_raiser(error: Exception) -> Callable[[], Any]:
    def raise_again() -> Any:
        raise error

    return raise_again


def _identity(value: Any) -> Any:
    return value
