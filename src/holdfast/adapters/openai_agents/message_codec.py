"""The messages of the journal: what the Agents SDK sends to a model, and what the model replies, as plain data."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from agents import ItemHelpers, ModelResponse, Usage
from agents.items import TResponseOutputItem
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseReasoningItem,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from holdfast.adapters.call_arguments import UNREADABLE_REASON, is_unreadable
from holdfast.core.errors import PayloadError
from holdfast.core.json_value import to_json_value
from holdfast.core.run.messages import UNREADABLE_ARGUMENTS, JsonCodec, replace_half_pairs

_OUTPUT_ADAPTER: TypeAdapter[list[TResponseOutputItem]] = TypeAdapter(list[TResponseOutputItem])


class _Message(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="item"):
    """What all messages share: the JSON of a message names its kind as `item`."""


class Input(_Message, frozen=True, kw_only=True, tag="input"):
    """Input items: the prompt, messages that were sent to the run, and results that the SDK itself made."""

    items: Sequence[Any]
    #: The items contain those of the reply before them, in the form in which the SDK sends them.
    includes_reply: bool = False


class SDKReply(_Message, frozen=True, kw_only=True, tag="reply"):
    """A response of the model."""

    #: The agent that asked for it.
    agent: str
    output: Sequence[Any]
    usage: dict[str, int]
    response_id: str | None = None
    request_id: str | None = None
    #: Calls for which the agent had no tool when the reply arrived.
    unknown: Sequence[str] = ()


class ToolOutput(_Message, frozen=True, kw_only=True, tag="output"):
    """The result of one tool call, or the agent that a handoff leads to."""

    call_id: str
    tool: str
    #: What the tool returned if JSON keeps it unchanged, otherwise the text that the model reads.
    value: Any = None
    error: bool = False


class Final(_Message, frozen=True, kw_only=True, tag="final"):
    """The results of the last reply are the output of the run: the model is not called again."""


Message = Input | SDKReply | ToolOutput | Final


class AgentsCodec(JsonCodec):
    """Says which adapter cannot read a message."""

    def decode(self, body: bytes) -> Any:
        try:
            return super().decode(body)
        except msgspec.MsgspecError as exc:
            raise PayloadError(f"this adapter cannot read a stored message: {exc}") from exc


CODEC = AgentsCodec(Message)


def make_reply(agent: str, response: ModelResponse, unknown: Sequence[str]) -> SDKReply:
    """Return a response as plain data.

    Raises:
        PayloadError: an item of it has no JSON form.
    """
    try:
        output = [_dump_item(item) for item in response.output]
    except (PydanticSerializationError, TypeError, ValueError) as exc:
        raise PayloadError(f"the reply of the model cannot be stored: {exc}") from exc
    return SDKReply(
        agent=agent,
        output=to_json_value(output, "the reply of the model"),
        usage=_dump_usage(response.usage),
        response_id=response.response_id,
        request_id=response.request_id,
        unknown=list(unknown),
    )


def replace_unstorable(response: ModelResponse) -> None:
    """Replace what no store can keep: half surrogate pairs in texts, and arguments such as NaN.

    In place of such arguments there is the reason, which the model reads: the call is not made.
    """
    for item in response.output:
        if isinstance(item, ResponseFunctionToolCall):
            if is_unreadable(item.arguments):
                item.arguments = json.dumps({UNREADABLE_ARGUMENTS: UNREADABLE_REASON})
        elif isinstance(item, ResponseOutputMessage | ResponseReasoningItem):
            summary = item.summary if isinstance(item, ResponseReasoningItem) else ()
            for part in (*summary, *(item.content or ())):
                if isinstance(part, ResponseOutputRefusal):
                    part.refusal = replace_half_pairs(part.refusal)
                else:
                    part.text = replace_half_pairs(part.text)


def make_response(reply: SDKReply) -> ModelResponse:
    """Return the response that was recorded.

    Raises:
        PayloadError: this version of the SDK does not know an item of it.
    """
    try:
        output = _OUTPUT_ADAPTER.validate_python(list(reply.output))
    except ValidationError as exc:
        raise PayloadError(f"this version of openai-agents cannot read a stored reply: {exc}") from exc
    usage = load_usage(reply.usage)
    return ModelResponse(output=output, usage=usage, response_id=reply.response_id, request_id=reply.request_id)


def _dump_item(item: Any) -> Any:
    return item.model_dump(mode="json", exclude_unset=True, warnings=False) if isinstance(item, BaseModel) else item


def _dump_usage(usage: Usage) -> dict[str, int]:
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.input_tokens_details.cached_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.output_tokens_details.reasoning_tokens,
    }


def load_usage(counts: Mapping[str, int]) -> Usage:
    """Return usage in the form of the SDK."""
    usage = Usage(
        requests=counts.get("requests", 0),
        input_tokens=counts.get("input_tokens", 0),
        output_tokens=counts.get("output_tokens", 0),
        total_tokens=counts.get("input_tokens", 0) + counts.get("output_tokens", 0),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=counts.get("reasoning_tokens", 0)),
    )
    details: InputTokensDetails = usage.input_tokens_details
    details.cached_tokens = counts.get("cached_tokens", 0)
    return usage


def list_calls(response: ModelResponse) -> list[ResponseFunctionToolCall]:
    """Return the calls of functions and handoffs that a response asks for."""
    return [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]


def list_call_items(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return those of the items that are calls of functions and handoffs."""
    return [item for item in items if item.get("type") == "function_call"]


def get_text(reply: SDKReply) -> str:
    """Return the text of a reply."""
    parts = [part for item in reply.output if item.get("type") == "message" for part in item.get("content", ())]
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)


def parse_arguments(arguments: str | None) -> Any:
    """Return the arguments of a call as data; as they are, if they are not JSON."""
    try:
        return msgspec.json.decode(arguments) if arguments else {}
    except (msgspec.MsgspecError, UnicodeError):
        return arguments


def make_input_items(content: str | list[Any]) -> list[Any]:
    """Return a prompt or a message as input items: text, text and content parts, or a list of input items as it is."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    if content and all(map(_is_item, content)):
        return list(content)
    parts = [{"type": "input_text", "text": part} if isinstance(part, str) else part for part in content]
    return [{"role": "user", "content": parts}]


def _is_item(part: Any) -> bool:
    """Whether this is an item of the Responses API, such as a message, and not a content part within one."""
    return isinstance(part, dict) and ("role" in part or not str(part.get("type", "")).startswith("input_"))


def make_output(call_id: str, tool: str, value: Any, *, typed: bool = False) -> ToolOutput:
    """Return the result of a tool that returned `value`.

    Args:
        typed: the tool declares the type of its output, and the model gets it as JSON.
    """
    return ToolOutput(call_id=call_id, tool=tool, value=_to_stored_value(value, typed=typed))


def _to_stored_value(value: Any, *, typed: bool) -> Any:
    if isinstance(value, str):
        return value
    if typed:
        return json.dumps(to_jsonable_python(value, by_alias=True), ensure_ascii=False, separators=(",", ":"))
    structured = value if isinstance(value, list | tuple) else [value]
    if structured and all(isinstance(each, BaseModel) for each in structured):
        # The SDK takes these fields for the object itself, if it is a text, a picture or a file.
        dumped = [each.model_dump(mode="json", exclude_none=True) for each in structured]
        stored = dumped if isinstance(value, list | tuple) else dumped[0]
        return stored if _convert(stored) == _convert(value) else str(value)
    try:
        stored = to_json_value(value, "the result of a tool")
    except PayloadError:
        return str(value)
    return stored if _convert(stored) == _convert(value) else str(value)


def _convert(value: Any) -> Any:
    """Return what the model reads if a tool returns `value`."""
    return to_input_item(ToolOutput(call_id="", tool="", value=value))["output"]


def to_input_item(output: ToolOutput) -> dict[str, Any]:
    """Return the item that the SDK sends to the model for this result."""
    call = ResponseFunctionToolCall(call_id=output.call_id, name=output.tool, arguments="", type="function_call")
    return dict(ItemHelpers.tool_call_output_item(call, output.value))


def to_input_items(messages: Sequence[Any]) -> list[Any]:
    """Return a conversation in the form in which the SDK takes it as input."""
    items: list[Any] = []
    for index, message in enumerate(messages):
        if isinstance(message, Input):
            items.extend(message.items)
        elif isinstance(message, ToolOutput):
            items.append(to_input_item(message))
        elif isinstance(message, SDKReply):
            following = messages[index + 1] if index + 1 < len(messages) else None
            if not (isinstance(following, Input) and following.includes_reply):
                items.extend(make_response(message).to_input_items())
    return items
