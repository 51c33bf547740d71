"""`ChatCompletions` against a server on the loopback interface that speaks the protocol."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from tests.failed_runs import fails_with

from holdfast import Agent, App, Reply, Retry, ToolCall, ToolResult, Usage, User, tool
from holdfast.adapters.chat_completions import ChatCompletions
from holdfast.core.errors import InvalidReply
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message
from holdfast.core.run.run_events import Event, TextDelta

Answer = tuple[int, dict[str, str], str]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def stream(*deltas: dict[str, Any], usage: tuple[int, int] = (10, 5), end: str | None = "stop") -> Answer:
    """A reply in parts, as providers send it."""
    chunks: list[Any] = [
        {"model": "m1-2026", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    if end is not None:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
        chunks.append({"choices": [], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return 200, {"content-type": "text/event-stream"}, f": comment\n\n{text}data: [DONE]\n\n"


def call_parts(call_id: str, name: str, arguments: str) -> list[dict[str, Any]]:
    half = len(arguments) // 2
    first = {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments[:half]}}
    return [{"tool_calls": [first]}, {"tool_calls": [{"index": 0, "function": {"arguments": arguments[half:]}}]}]


class Provider:
    """Gives its answers in order, and keeps the requests."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append((headers, body))
        status, more, text = self._answers.pop(0)
        lines = [f"HTTP/1.1 {status} X", "connection: close", *(f"{name}: {value}" for name, value in more.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n" + text).encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serve(*answers: Answer) -> AsyncIterator[Provider]:
    provider = Provider(*answers)
    server = await asyncio.start_server(provider.handle, "127.0.0.1", 0)
    async with server:
        provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield provider


@tool(effect="pure")
def lookup(word: str) -> str:
    """Look a word up."""
    return word.upper()


class TextListener:
    """Keeps the parts of replies."""

    def __init__(self) -> None:
        self.deltas: list[str] = []

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.deltas.append(event.text)

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


def make_agent(provider: Provider, **options: Any) -> Agent[Any]:
    retry = Retry(initial_delay=timedelta(0))
    model = ChatCompletions("m1", base_url=provider.url, api_key="k1", **options)
    return Agent(name="a", model=model, tools=[lookup], instructions="Be brief.", retry=retry)


async def test_tools_text_and_usage_go_both_ways() -> None:
    answers = [
        stream({"content": "I look."}, *call_parts("c1", "lookup", '{"word": "sea"}'), usage=(20, 7), end="tool_calls"),
        stream({"content": "It is "}, {"content": "SEA."}, usage=(30, 4)),
    ]
    listener = TextListener()
    async with serve(*answers) as provider:
        agent = make_agent(provider, parameters={"temperature": 0})
        async with App([agent], "memory:", listener=listener) as app:
            result = await app.run("a", "what is sea?")
    assert (result.output, result.usage.input_tokens, result.usage.output_tokens) == ("It is SEA.", 50, 11)
    assert listener.deltas == ["I look.", "It is ", "SEA."]
    (headers, first), (_, second) = provider.requests
    assert headers["authorization"] == "Bearer k1"
    assert (first["model"], first["temperature"], first["stream"]) == ("m1", 0, True)
    assert first["stream_options"] == {"include_usage": True}
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "what is sea?"},
    ]
    assert first["tools"][0]["function"]["name"] == "lookup"
    assert first["tools"][0]["function"]["parameters"]["properties"] == {"word": {"type": "string"}}
    assert (second["messages"][2]["role"], second["messages"][2]["content"]) == ("assistant", "I look.")
    assert second["messages"][2]["tool_calls"][0]["function"] == {"name": "lookup", "arguments": '{"word":"sea"}'}
    assert second["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "SEA"}


async def test_a_reply_names_the_model_that_the_server_names() -> None:
    async with serve(stream({"content": "hello"})) as provider:
        reply = await ChatCompletions("m1", base_url=provider.url)([User(text="hi")], ())
    assert (reply.text, reply.model) == ("hello", "m1-2026")


def send(*chunks: dict[str, Any] | str) -> Answer:
    """Chunks as they are, each on a line."""
    lines = (f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks)
    return 200, {"content-type": "text/event-stream"}, "".join(lines)


async def ask(answer: Answer, *messages: Message) -> tuple[Reply, Any]:
    """The reply of a model without tools and key, and the request."""
    async with serve(answer) as provider:
        reply = await ChatCompletions("m1", base_url=provider.url)(messages or [User(text="hi")], ())
    headers, body = provider.requests[0]
    assert "authorization" not in headers
    return reply, body


async def test_calls_in_parallel_are_told_apart_by_their_index() -> None:
    parts = [
        {"index": 1, "id": "b", "function": {"name": "look", "arguments": ""}},
        {"index": 0, "function": {"name": "up", "arguments": '{"word": '}},
        {"index": 1, "function": {"name": "up"}},
        {"function": {"arguments": '"sea"}'}},
        {"index": 2, "id": "c", "function": {"name": "up", "arguments": "{no json"}},
        {"index": 3, "id": "c"},
    ]
    chunks: list[Any] = [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in parts]
    end = {"model": None, "choices": [{"finish_reason": "tool_calls"}]}
    reply, body = await ask(send(*chunks, end))
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("call-0", "up", {"word": "sea"}),
        ("b", "lookup", {}),
        ("c", "up", "{no json"),
        ("c.2", "", {}),
    ]
    assert (reply.text, reply.model, reply.usage) == ("", "", Usage())
    assert set(body) == {"model", "messages", "stream", "stream_options"}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 7}, Usage(input_tokens=7)),
        ({"completion_tokens": 5}, Usage(output_tokens=5)),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, Usage(reasoning_tokens=3)),
        (None, Usage()),
    ],
)
async def test_a_server_counts_what_it_likes(usage: Any, expected: Usage) -> None:
    end = {"choices": [{"delta": {"content": "done"}, "finish_reason": "stop"}], "usage": usage}
    reply, _ = await ask(send(end))
    assert (reply.text, reply.usage) == ("done", expected)


async def test_messages_have_the_form_of_the_protocol() -> None:
    call = ToolCall(id="call-0", name="lookup", arguments={"word": "sea"})
    said: list[Message] = [
        Reply(text="", tool_calls=[call]),
        ToolResult(call_id="call-0", tool="lookup", content={"found": 1}),
    ]
    answer = send({"choices": [{"delta": {"tool_calls": [{"function": {"name": "lookup"}}]}, "finish_reason": "x"}]})
    reply, body = await ask(answer, *said, Reply(text="found"))
    called = {"id": "call-0", "type": "function", "function": {"name": "lookup", "arguments": '{"word":"sea"}'}}
    assert body["messages"] == [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call-0", "content": '{"found":1}'},
        {"role": "assistant", "content": "found"},
    ]
    assert [each.id for each in reply.tool_calls] == ["call-0.2"], "an id is used once, also one that we make"


async def test_what_is_not_the_protocol_is_an_invalid_reply() -> None:
    with pytest.raises(InvalidReply, match="not JSON"):
        await ask(send("{no json"))


async def test_the_key_comes_from_the_environment_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k2")
    async with serve(stream({"content": "hello"})) as provider:
        await ChatCompletions("m1", base_url=f"{provider.url}/")([User(text="hi")], ())
    assert provider.requests[0][0]["authorization"] == "Bearer k2"


async def test_an_id_that_the_server_uses_again_is_another_call() -> None:
    again = [stream(*call_parts("0", "lookup", json.dumps({"word": word})), end="tool_calls") for word in ("a", "b")]
    async with serve(*again, stream({"content": "done"})) as provider, App([make_agent(provider)], "memory:") as app:
        await app.run("a", "go")
    results = [message for message in provider.requests[2][1]["messages"] if message["role"] == "tool"]
    assert [(each["tool_call_id"], each["content"]) for each in results] == [("0", "A"), ("0.2", "B")]


@pytest.mark.parametrize(
    "failure",
    [
        lambda: (429, {"retry-after-ms": "1"}, "slow down"),
        lambda: (503, {}, "busy"),
        lambda: stream({"content": "half a rep"}, end=None),
    ],
    ids=["rate limit", "outage", "cut off"],
)
async def test_a_transient_error_is_retried(failure: Callable[[], Answer]) -> None:
    answers = [failure(), stream({"content": "done"})]
    async with serve(*answers) as provider, App([make_agent(provider)], "memory:") as app:
        assert (await app.run("a", "go")).output == "done"
    assert len(provider.requests) == 2


async def test_a_refused_request_fails_the_run_with_the_text_of_the_provider() -> None:
    refusal = (401, {"content-type": "application/json"}, '{"error": {"message": "invalid key"}}')
    async with serve(refusal) as provider, App([make_agent(provider)], "memory:") as app:
        with fails_with(httpx.HTTPStatusError, match=r"answered 401: .*invalid key"):
            await app.run("a", "go")


async def test_the_text_of_an_error_is_kept_up_to_2000_bytes() -> None:
    async with serve((400, {}, "x" * 2_500)) as provider:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await ChatCompletions("m1", base_url=provider.url, api_key="k")([User(text="hi")], ())
    assert str(refused.value).count("x") == 2_000


async def test_pictures_are_passed_on() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    async with serve(stream({"content": "a cat"})) as provider, App([make_agent(provider)], "memory:") as app:
        assert (await app.run("a", ["What is this?", picture])).output == "a cat"
    content = provider.requests[0][1]["messages"][1]["content"]
    assert content == [{"type": "text", "text": "What is this?"}, picture]
