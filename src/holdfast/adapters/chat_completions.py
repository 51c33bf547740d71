"""A model of an OpenAI-compatible endpoint, for the native loop. Needs the extra `chat-completions`."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.core.agents.tool import ToolSchema
from holdfast.core.agents.tool_context import emit_text
from holdfast.core.errors import InvalidReply
from holdfast.core.run.messages import Message, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.extras import require_extra

with require_extra("chat-completions"):
    import httpx

#: Bytes of a provider's error text that an error keeps.
_MAX_ERROR_BYTES = 2_000


class ChatCompletions:
    """A model behind `POST /chat/completions`: `Agent(model=ChatCompletions("gpt-5"), tools=[...])`.

    Replies are streamed to the watchers of the run. An HTTP error is raised as `httpx.HTTPStatusError`, which the
    agent's `Retry` knows: 429, 5xx and lost connections are retried, after the pause that the provider asks for.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str = "",
        timeout: timedelta = timedelta(minutes=10),
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a model.

        Args:
            base_url: of any provider or local server that speaks this protocol.
            api_key: default: the environment variable `OPENAI_API_KEY`, read at each call.
            timeout: of connecting, and of the pause between two parts of a reply.
            parameters: further fields of the request, such as `{"temperature": 0}`.
        """
        #: The name that rate limits know it by.
        self.model_name = model
        self._url, self._api_key = f"{base_url.rstrip('/')}/chat/completions", api_key
        self._timeout, self._parameters = timeout.total_seconds(), dict(parameters or {})

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        """Return the reply.

        Raises:
            httpx.HTTPError: the provider refused the request, or cannot be reached.
            InvalidReply: it sent something else than this protocol.
        """
        body: dict[str, Any] = {
            "model": self.model_name,
            "messages": [_dump_message(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._parameters,
        }
        if tools:
            body["tools"] = [{"type": "function", "function": msgspec.to_builtins(tool)} for tool in tools]
        reply = _PartialReply({call.id for each in messages if isinstance(each, Reply) for call in each.tool_calls})
        async for chunk in self._stream(body):
            if text := reply.add(chunk):
                await emit_text(text)
        return reply.finish()

    async def _stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        key = self._api_key or os.environ.get("OPENAI_API_KEY", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with (
            httpx.AsyncClient(timeout=self._timeout) as client,
            client.stream("POST", self._url, json=body, headers=headers) as response,
        ):
            if response.is_error:
                text = (await response.aread())[:_MAX_ERROR_BYTES].decode(errors="replace")
                message = f"{self._url} answered {response.status_code}: {text}"
                raise httpx.HTTPStatusError(message, request=response.request, response=response)
            async for line in response.aiter_lines():
                data = line.removeprefix("data:").strip()
                if line.startswith("data:") and data and data != "[DONE]":
                    yield _decode_chunk(data)


def _decode_chunk(data: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise InvalidReply(f"the model sent a part that is not JSON: {exc}") from exc


def _dump_message(message: Message) -> dict[str, Any]:
    match message:
        case System(text=text):
            return {"role": "system", "content": text}
        case User(text=text, content=parts):
            content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
            return {"role": "user", "content": content or text}
        case Reply(text=text, tool_calls=calls):
            dumped = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()},
                }
                for call in calls
            ]
            return {"role": "assistant", "content": text or None, **({"tool_calls": dumped} if dumped else {})}
        case ToolResult(call_id=call_id, content=content):
            text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
            return {"role": "tool", "tool_call_id": call_id, "content": text}


class _PartialReply:
    """Collects the parts of one reply."""

    def __init__(self, used_ids: set[str]) -> None:
        self._used_ids = used_ids
        self._text: list[str] = []
        #: Id, name and the text of the arguments, by the index of the call.
        self._calls: dict[int, dict[str, str]] = {}
        self._usage = Usage()
        self._model = ""
        self._finished = False

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Add a part. Return the text in it."""
        if usage := chunk.get("usage"):
            details = usage.get("completion_tokens_details") or {}
            self._usage = Usage(
                input_tokens=usage.get("prompt_tokens") or 0,
                output_tokens=usage.get("completion_tokens") or 0,
                reasoning_tokens=details.get("reasoning_tokens") or 0,
            )
        if isinstance(model := chunk.get("model"), str):
            self._model = self._model or model
        choices = chunk.get("choices") or ()
        if not choices:
            return ""
        self._finished = self._finished or choices[0].get("finish_reason") is not None
        delta = choices[0].get("delta") or {}
        for part in delta.get("tool_calls") or ():
            call = self._calls.setdefault(part.get("index") or 0, {"id": "", "name": "", "arguments": ""})
            function = part.get("function") or {}
            call["id"] = call["id"] or part.get("id") or ""
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""
        text = delta.get("content") or ""
        self._text.append(text)
        return text

    def finish(self) -> Reply:
        """Return the reply.

        Raises:
            ConnectionError: the stream ended in the middle of the reply. Retried like any lost connection.
            InvalidReply: the arguments of a call are not JSON.
        """
        if not self._finished:
            raise ConnectionError("the provider ended the stream before the reply was complete")
        calls = [self._make_call(number, call) for number, call in sorted(self._calls.items())]
        return Reply(text="".join(self._text), tool_calls=calls, usage=self._usage, model=self._model)

    def _make_call(self, number: int, call: Mapping[str, str]) -> ToolCall:
        try:
            arguments = msgspec.json.decode(call["arguments"] or "{}")
        except msgspec.DecodeError:
            arguments = call["arguments"]  # they fit no signature: the model reads that
        call_id = call["id"] or f"call-{number}"
        # Some servers begin to count again with each reply; within a run an id is used once.
        again = 1
        while call_id in self._used_ids:
            again += 1
            call_id = f"{call['id'] or f'call-{number}'}.{again}"
        self._used_ids.add(call_id)
        return ToolCall(id=call_id, name=call["name"], arguments=arguments)
