"""A loopback server that speaks the OpenAI chat-completions protocol, and misbehaves where a test asks for it."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

#: Instead of an answer: an HTTP error, one with `Retry-After: 3600`, nothing at all, half an answer.
Fault = Literal["429", "500", "later", "hang", "cut"]

#: One turn of the script: an answer, or calls as (id, tool, arguments).
Turn = str | Sequence[tuple[str, str, dict[str, Any]]]


@dataclass
class Request:
    """A request as the server saw it."""

    turn: int
    #: Stands for the conversation that the model is shown.
    key: str
    body: dict[str, Any]
    #: `answered` once the whole answer was handed over; else the fault.
    outcome: str = "open"


@dataclass
class OpenAIServer:
    """Gives its n-th reply to a conversation with n replies in it."""

    turns: Sequence[Turn]
    #: By turn: faults, in the order in which they happen before the turn is answered.
    faults: dict[int, list[Fault]] = field(default_factory=dict)
    #: Called when a request arrives, before anything is answered.
    arrived: Callable[[Request], Any] = lambda request: None
    log: list[Request] = field(default_factory=list)
    url: str = ""
    _serving: "set[asyncio.Task[Any]]" = field(default_factory=set)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["OpenAIServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}/v1"
        try:
            yield self
        finally:
            server.close()
            for serving in self._serving:
                serving.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def choose_turn(self, request: Request) -> Turn:
        """The reply to a request."""
        return self.turns[request.turn]

    def finished(self) -> list[str]:
        """The conversations that were answered, as often as they were."""
        return [request.key for request in self.log if request.outcome == "answered"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) and await self._answer(head, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the server is closed
        finally:
            self._serving.discard(task)
            writer.transport.abort() if task.cancelling() else writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Whether the connection can be used again."""
        lengths = [line for line in head.decode().split("\r\n") if line.lower().startswith("content-length:")]
        body = json.loads(await reader.readexactly(int(lengths[0].partition(":")[2])))
        request = _request(body)
        self.log.append(request)
        self.arrived(request)
        planned = self.faults.get(request.turn)
        if planned:
            request.outcome = planned.pop(0)
            return await _misbehave(request, writer)
        reply = _reply(self.choose_turn(request), request.turn)
        chunks = _stream(reply) if body.get("stream") else [_json(200, reply)]
        for chunk in chunks:
            writer.write(chunk)
        await writer.drain()
        request.outcome = "answered"
        return True


def _request(body: dict[str, Any]) -> Request:
    messages = body["messages"]
    turn = sum(message["role"] == "assistant" for message in messages)
    digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
    return Request(turn=turn, key=digest[:16], body=body)


async def _misbehave(request: Request, writer: asyncio.StreamWriter) -> bool:
    if request.outcome in ("429", "500"):
        writer.write(_json(int(request.outcome), {"error": {"message": "not now"}}, "retry-after-ms: 1\r\n"))
        await writer.drain()
        return True
    if request.outcome == "later":
        writer.write(_json(429, {"error": {"message": "in an hour"}}, "Retry-After: 3600\r\n"))
        await writer.drain()
        return True
    if request.outcome == "hang":
        await asyncio.Event().wait()
    reply = _reply("this answer is never finished", 0)
    whole = b"".join(_stream(reply)) if request.body.get("stream") else _json(200, reply)
    writer.write(whole[: len(whole) * 2 // 3])
    await writer.drain()
    writer.transport.abort()
    return False


def _reply(turn: Turn, number: int) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        for call_id, tool, arguments in ([] if isinstance(turn, str) else turn)
    ]
    text = turn if isinstance(turn, str) else None
    message = {"role": "assistant", "content": text, "tool_calls": calls or None}
    used = {"prompt_tokens": 1000 + number, "completion_tokens": 100 + number, "total_tokens": 1100 + 2 * number}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": used,
    }


def _json(status: int, body: dict[str, Any], headers: str = "") -> bytes:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _stream(reply: dict[str, Any]) -> list[bytes]:
    """The reply as server-sent events, word by word, each in a chunk of its own."""
    message, end = reply["choices"][0]["message"], reply["choices"][0]["finish_reason"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": f"{word} "} for word in (message["content"] or "").split()]
    for index, call in enumerate(message["tool_calls"] or ()):
        deltas.append({"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": call["function"]["arguments"]}}]})
    head = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    whole = {**reply, "object": "chat.completion.chunk", "usage": None}
    events = [{**whole, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**whole, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
    events.append({**whole, "choices": [], "usage": reply["usage"]})
    bodies = [*(json.dumps(event) for event in events), "[DONE]"]
    return [head, *(_chunk(f"data: {body}\n\n".encode()) for body in bodies), _chunk(b"")]


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)
