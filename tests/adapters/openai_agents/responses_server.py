"""A loopback server that speaks the Responses API of OpenAI, so that the provider code of the SDK runs."""

import asyncio
import json
from typing import Any

from tests.adapters.openai_server import OpenAIServer, Request, Turn, _chunk, _json


class ResponsesServer(OpenAIServer):
    """Gives the first turn of which the conversation shows no call yet."""

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        assert head.startswith(b"POST /v1/responses "), head
        lengths = [line for line in head.decode().split("\r\n") if line.lower().startswith("content-length:")]
        body = json.loads(await reader.readexactly(int(lengths[0].partition(":")[2])))
        turn = self._find_turn(body["input"])
        request = Request(turn=turn, key=json.dumps(body["input"], sort_keys=True), body=body)
        self.log.append(request)
        self.arrived(request)
        if planned := self.faults.get(turn):
            request.outcome = planned.pop(0)
            if request.outcome == "hang":
                await asyncio.Event().wait()
            return await self._cut(body, turn, writer)
        response = _make_response(self.turns[turn], turn)
        for chunk in _stream(response) if body.get("stream") else [_json(200, response)]:
            writer.write(chunk)
        await writer.drain()
        request.outcome = "answered"
        return True

    def _find_turn(self, items: list[dict[str, Any]]) -> int:
        seen = {item.get("call_id") for item in items}
        for number, turn in enumerate(self.turns):
            if isinstance(turn, str) or not any(call_id in seen for call_id, _, _ in turn):
                return number
        raise AssertionError("the script is over")

    async def _cut(self, body: dict[str, Any], turn: int, writer: asyncio.StreamWriter) -> bool:
        response = _make_response("this answer is never finished", turn)
        whole = b"".join(_stream(response)) if body.get("stream") else _json(200, response)
        writer.write(whole[: len(whole) * 2 // 3])
        await writer.drain()
        writer.transport.abort()
        return False


def _make_response(turn: Turn, number: int) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if isinstance(turn, str):
        content = [{"type": "output_text", "text": turn, "annotations": [], "logprobs": []}]
        output.append(
            {"type": "message", "id": f"m{number}", "role": "assistant", "status": "completed", "content": content}
        )
    else:
        output += [
            {
                "type": "function_call",
                "id": f"fc_{call_id}",
                "call_id": call_id,
                "name": tool,
                "arguments": json.dumps(arguments),
                "status": "completed",
            }
            for call_id, tool, arguments in turn
        ]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1700000000,
        "status": "completed",
        "model": "gpt-4o",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1000 + number,
            "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
            "output_tokens": 100 + number,
            "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": 1100 + 2 * number,
        },
    }


def _stream(response: dict[str, Any]) -> list[bytes]:
    """The response as server-sent events, word by word."""
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": [], "usage": None}}
    ]
    for index, item in enumerate(response["output"]):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        for part in item.get("content", ()):
            words = [{"item_id": item["id"], "output_index": index, "content_index": 0, "logprobs": []}]
            events += [
                {"type": "response.output_text.delta", "delta": f"{word} ", **words[0]} for word in part["text"].split()
            ]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": response})
    head = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    bodies = [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events)
    ]
    return [head, *(_chunk(body.encode()) for body in bodies), _chunk(b"")]
