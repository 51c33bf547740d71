"""Stored messages of each loop, by its name, in one readable form.

It knows the JSON of the native loop and of the adapters, imports neither an adapter nor the agent's code, and ignores
fields and parts that it does not know.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.core.run.messages import NATIVE_CODEC, Message, Reply, System, ToolCall, ToolResult, User

#: In the metadata of a pydantic-ai message: a person has resolved the call, with an unpark.
_MARK_KEY, _RESOLUTION_MARK = "holdfast", "told"

#: The beginning of entries with checkpoints of a graph. Its prompts, calls, results and replies are native messages.
_GRAPH_CHECKPOINT = b'{"role":"langgraph'


class Thinking(msgspec.Struct, frozen=True):
    """The reasoning of a model before its reply."""

    text: str


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """A person's resolution of a call: its result, or whether it may be made."""

    call_id: str
    tool: str
    content: Any = None
    error: bool = False


ReadableMessage = Message | Thinking | Resolution


def read_message(loop: str, body: bytes) -> list[ReadableMessage] | None:
    """Return the content of one stored message in order, or `None` if its format is not known.

    Args:
        loop: of the run, as `RunInfo.loop` names it. Empty if the run was submitted without its agent: then the first
            loop that knows the format reads it.
        body: the message as the loop's codec has encoded it.
    """
    for read in _READERS.values() if not loop else filter(None, [_READERS.get(loop)]):
        try:
            return list(read(body))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return None


def _read_native_message(body: bytes) -> Iterable[ReadableMessage]:
    return [NATIVE_CODEC.decode(body)]


def _read_graph_entry(body: bytes) -> Iterable[ReadableMessage]:
    return [] if body.startswith(_GRAPH_CHECKPOINT) else _read_native_message(body)


def _read_pydantic_ai_message(body: bytes) -> Iterable[ReadableMessage]:
    message = _MESSAGE_DECODER.decode(body)
    return _read_response(message) if message.kind == "response" else _read_request(message)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a pydantic-ai message, of any kind."""

    part_kind: str
    content: Any = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    args: Any = None
    outcome: str = "success"


class _PydanticAIMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of pydantic-ai's `ModelMessage` that are read."""

    kind: Literal["request", "response"]
    parts: list[_Part]
    model_name: str | None = None
    metadata: dict[str, Any] | None = None


_MESSAGE_DECODER = msgspec.json.Decoder(_PydanticAIMessage)


def _read_request(message: _PydanticAIMessage) -> Iterator[ReadableMessage]:
    is_resolution = (message.metadata or {}).get(_MARK_KEY) == _RESOLUTION_MARK
    for part in message.parts:
        if part.part_kind == "system-prompt":
            yield System(_format_content(part.content))
        elif part.tool_name is not None and part.part_kind in ("tool-return", "retry-prompt"):
            result = _read_result(part)
            yield msgspec.convert(result, Resolution, from_attributes=True) if is_resolution else result
        elif part.part_kind in ("user-prompt", "retry-prompt", "retry-feedback"):
            yield User(_format_content(part.content))


def _read_response(message: _PydanticAIMessage) -> Iterator[ReadableMessage]:
    texts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    for part in message.parts:
        if part.part_kind == "thinking":
            if part.content:
                yield Thinking(_format_content(part.content))
        elif part.part_kind in ("tool-call", "builtin-tool-call"):
            name, call_id = part.tool_name or "", part.tool_call_id or ""
            calls.append(ToolCall(id=call_id, name=name, arguments=_parse_arguments(part.args)))
        elif part.part_kind == "builtin-tool-return":
            results.append(_read_result(part))
        elif part.part_kind in ("text", "file"):
            texts.append(_format_content(part.content))
    yield Reply(text="".join(texts), tool_calls=calls, model=message.model_name or "")
    yield from results


class _AgentsMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the adapter for the OpenAI Agents SDK: items of the Responses API."""

    item: Literal["input", "reply", "output", "final"]
    items: list[dict[str, Any]] = []
    output: list[dict[str, Any]] = []
    call_id: str = ""
    tool: str = ""
    value: Any = None
    error: bool = False


_AGENTS_DECODER = msgspec.json.Decoder(_AgentsMessage)


def _read_agents_message(body: bytes) -> Iterator[ReadableMessage]:
    message = _AGENTS_DECODER.decode(body)
    if message.item == "output":
        yield ToolResult(call_id=message.call_id, tool=message.tool, content=message.value, error=message.error)
    elif message.item == "reply":
        yield from _read_agents_reply(message.output)
    for item in message.items:
        if item.get("type") == "function_call_output":
            yield ToolResult(call_id=str(item.get("call_id", "")), tool="", content=item.get("output"))
        elif item.get("role") in ("user", "system", "developer") and "content" in item:
            kind = User if item["role"] == "user" else System
            yield kind(_format_items(item["content"]))


def _read_agents_reply(output: list[dict[str, Any]]) -> Iterator[ReadableMessage]:
    texts: list[str] = []
    calls: list[ToolCall] = []
    for item in output:
        if item.get("type") == "reasoning":
            if thought := _format_items(item.get("summary") or item.get("content") or ""):
                yield Thinking(thought)
        elif item.get("type") == "message":
            texts.append(_format_items(item.get("content", "")))
        elif isinstance(item.get("name"), str) or str(item.get("type", "")).endswith("_call"):
            name, call_id = item.get("name") or item["type"], item.get("call_id") or item.get("id") or ""
            calls.append(ToolCall(id=call_id, name=name, arguments=_parse_arguments(item.get("arguments"))))
    yield Reply(text="".join(texts), tool_calls=calls)


def _format_items(content: Any) -> str:
    """Return content parts of the Responses API as one text, with a short form of pictures and files."""
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, dict) else {"text": str(part)} for part in content]
    return "\n".join(str(part.get("text") or part.get("refusal") or f"[{part.get('type', 'part')}]") for part in parts)


def _read_result(part: _Part) -> ToolResult:
    error = part.part_kind == "retry-prompt" or part.outcome != "success"
    return ToolResult(
        call_id=part.tool_call_id or "", tool=part.tool_name or "", content=shorten_files(part.content), error=error
    )


def _parse_arguments(args: Any) -> Any:
    """Return the arguments as data. Some providers give them as JSON text, which need not be valid."""
    if not isinstance(args, str):
        return {} if args is None else args
    try:
        return msgspec.json.decode(args) if args else {}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return args


def _format_content(content: Any) -> str:
    """Return the content of a prompt or a text as one text, with a short form of pictures and files."""
    content = shorten_files(content)
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_format_content(item) for item in content)
    if isinstance(content, dict) and content.get("kind") == "text-content":
        return str(content.get("content", ""))
    return msgspec.json.encode(content).decode()


def shorten_files(content: Any) -> Any:
    """Replace files within stored content, such as pictures, by texts that name their media type and size, or URL."""
    if isinstance(content, list):
        return [shorten_files(item) for item in content]
    if not isinstance(content, dict):
        return content
    kind = content.get("kind")
    if kind == "binary" and isinstance(content.get("data"), str):
        size = len(content["data"]) * 3 // 4
        return f"[{content.get('media_type') or 'file'}, {size:,} bytes]"
    if isinstance(kind, str) and kind.endswith("-url") and isinstance(content.get("url"), str):
        return f"[{kind.removesuffix('-url')} {content['url']}]"
    return {name: shorten_files(value) for name, value in content.items()}


#: By the name of the loop. A graph also has native messages.
_READERS: Mapping[str, Callable[[bytes], Iterable[ReadableMessage]]] = {
    "langgraph": _read_graph_entry,
    "native": _read_native_message,
    "pydantic_ai": _read_pydantic_ai_message,
    "openai_agents": _read_agents_message,
    "workflow": _read_native_message,
}
