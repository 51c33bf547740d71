"""Event streams over HTTP: frames, cursors, hostile text, and clients and servers that leave and return."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from tests.web.conftest import Site
from tests.web.site import HOSTILE, make_agents
from tests.web.test_api import check_problem, fetch_result, submit, wait_for_status

from holdfast import App
from holdfast.client import AsyncClient, Client
from holdfast.core.run.run_events import Event, OutputRecorded, ReplyAdded, ToolReturned
from holdfast.web import sse
from holdfast.web.sse import EventStreamResponse


class Frame(NamedTuple):
    """One frame, read by the rules of the standard and no others."""

    id: str | None
    event: str
    data: str


def parse_frames(body: bytes) -> list[Frame]:
    text = body.decode()
    assert "\r" not in text, "a carriage return would end a line"
    frames = []
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in filter(None, block.split("\n")):
            name, _, value = line.partition(": ")
            assert name in ("", "retry", "id", "event", "data"), f"a line was broken: {line[:80]}"
            assert name not in fields, "a frame has each field once"
            fields[name] = value
        if "data" in fields:
            frames.append(Frame(fields.get("id"), fields["event"], fields["data"]))
    return frames


async def read_stream(client: httpx.AsyncClient, run_id: str, **headers: str) -> list[Frame]:
    response = await client.get(f"/runs/{run_id}/events", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return parse_frames(response.content)


async def read_reference(site: Site, run_id: str) -> list[str]:
    """The durable events of a run, as an App in this process reads them from the store."""
    async with App(make_agents(site.folder), site.store, worker=False) as app:
        return [encode(event) async for event in app.events(run_id) if event.cursor is not None]


def encode(event: Event) -> str:
    return msgspec.json.encode(event).decode()


async def test_durable_events_have_an_id_and_the_stream_ends_with_the_run(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "stream-1", "note note")
    frames = await read_stream(ann, "stream-1")
    assert frames[-1] == Frame(None, "end", "{}")
    durable = [frame for frame in frames if frame.id is not None]
    assert [frame.data for frame in durable] == await read_reference(site, "stream-1")
    for frame in frames[:-1]:
        event = msgspec.json.decode(frame.data, type=Event)
        assert (event.type, event.cursor) == (frame.event, frame.id)
    assert {"message", "reply", "tool_call", "tool_result", "step_finished", "output"} <= {
        each.event for each in durable
    }


async def test_a_stream_continues_after_any_of_its_events(ann: httpx.AsyncClient) -> None:
    await submit(ann, "stream-2", "note note")
    await fetch_result(ann, "stream-2")
    durable = [frame for frame in await read_stream(ann, "stream-2") if frame.id is not None]
    for place, frame in enumerate(durable[:-1]):
        rest = await read_stream(ann, "stream-2", **{"last-event-id": frame.id or ""})
        assert [each for each in rest if each.id is not None] == durable[place + 1 :]
    last = durable[-1].id or ""
    over = await ann.get("/runs/stream-2/events", headers={"last-event-id": last})
    assert over.status_code == 204, "a browser would connect again and again"
    assert (await ann.get("/runs/stream-2/events", params={"after": last})).status_code == 204
    check_problem(await ann.get("/runs/stream-2/events", headers={"last-event-id": "9-9-9"}), 422, "InvalidCursor")
    check_problem(await ann.get("/runs/stream-2/events", params={"after": "forged"}), 422, "InvalidCursor")


async def test_a_browser_token_opens_the_stream_of_its_run(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "stream-3", "note")
    async with site.client("") as browser:
        token = site.issue_token("stream-3", "read")
        response = await browser.get("/runs/stream-3/events", params={"token": token})
        assert parse_frames(response.content)[-1].event == "end"


async def test_a_client_that_leaves_ends_nothing(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "stream-4", "gate note")
    async with ann.stream("GET", "/runs/stream-4/events") as response:
        await anext(response.aiter_raw())
    site.open_gate("stream-4")
    assert (await fetch_result(ann, "stream-4")).json()["output"] == "did | gate note"


async def test_the_stream_of_a_waiting_run_has_no_secret(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "stream-5", "render")
    await wait_for_status(ann, "stream-5", "waiting")
    token = site.wait_for_line("stream-5", "token ").partition(" ")[2]
    body = b""
    async with ann.stream("GET", "/runs/stream-5/events") as response:
        async for chunk in response.aiter_raw():
            body += chunk
            if b"event: waiting" in body:
                break
    assert b"rendering" in body
    assert token.rpartition("~")[2].encode() not in body
    await ann.post("/runs/stream-5/cancel")


async def test_hostile_text_breaks_no_frame_and_reaches_no_header(ann: httpx.AsyncClient) -> None:
    await submit(ann, "hostile", HOSTILE[2] + HOSTILE[0], agent="curser", labels={"x": HOSTILE[4]})
    response = await ann.get("/runs/hostile/events")
    frames = parse_frames(response.content)
    assert [frame.event for frame in frames].count("end") == 1
    events = [msgspec.json.decode(frame.data, type=Event) for frame in frames[:-1]]
    assert [event.content for event in events if isinstance(event, ToolReturned)] == HOSTILE
    replies = [event.text for event in events if isinstance(event, ReplyAdded)]
    assert replies == [*(text[:1000] for text in HOSTILE), HOSTILE[2]]
    for answer in (response, await ann.get("/runs/hostile"), await ann.get("/runs/hostile/result")):
        assert not {"x-injected", "set-cookie"} & set(answer.headers)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "html" not in answer.headers["content-type"]


def test_half_surrogate_pairs_are_replaced() -> None:
    assert sse.encode_json({"a\ud800": ["b\udfff", 1]}) == b'{"a?":["b?",1]}'


async def test_a_silent_stream_has_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timedelta(seconds=15) >= sse.HEARTBEAT_INTERVAL, "the idle timeout of some proxies is 30 seconds"
    monkeypatch.setattr(sse, "HEARTBEAT_INTERVAL", sse.HEARTBEAT_INTERVAL * 0)
    sent: list[bytes] = []
    beats = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await beats.wait()
        yield b"data: 2\n\n"

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent[-1] == b": heartbeat\n\n":
            assert message["more_body"], "a heartbeat is not the end"
        if sent.count(b": heartbeat\n\n") == 2:
            beats.set()

    async def receive() -> Any:
        await asyncio.Event().wait()

    await EventStreamResponse(frames())({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert [each for each in sent if each.startswith(b"data")] == [b"data: 1\n\n", b"data: 2\n\n"]


async def test_a_client_that_leaves_closes_its_source() -> None:
    closed = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
        finally:
            closed.set()

    blocked = asyncio.Event()

    async def send(message: Any) -> None:
        if "body" in message:  # the client takes nothing
            blocked.set()
            await asyncio.Event().wait()

    received = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        await blocked.wait()
        return received.pop(0)

    await EventStreamResponse(frames())({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert closed.is_set()
    assert received == []


async def respond(response: EventStreamResponse, *, send_error: Exception | None = None) -> list[Any]:
    """Return what a response sends to a client that stays, or whose connection breaks with this error."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        if send_error is not None and "body" in message:
            raise send_error
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    await response({"type": "http"}, receive, send)
    return sent


async def make_frames(*frames: bytes, error: Exception | None = None) -> AsyncGenerator[bytes]:
    for frame in frames:
        yield frame
    if error is not None:
        raise error


def make_body(body: bytes, more_body: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more_body}


async def test_a_stream_has_no_length_and_an_end() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for expires_at in (None, later):
        start, *bodies = await respond(
            EventStreamResponse(make_frames(b"a", b"b"), expires_at=expires_at, headers={"x-more": "1"})
        )
        assert (start["type"], start["status"]) == ("http.response.start", 200)
        assert dict(start["headers"]) == {
            b"x-accel-buffering": b"no", b"x-more": b"1", b"content-type": b"text/event-stream; charset=utf-8",
        }  # fmt: skip
        assert bodies == [make_body(b"a", True), make_body(b"b", True), make_body(b"", False)]


async def test_the_stream_of_an_expired_token_ends_at_once_and_closes_its_source() -> None:
    closed = asyncio.Event()

    async def frames() -> AsyncGenerator[bytes]:
        try:
            yield b"a"
            await asyncio.Event().wait()
        finally:
            closed.set()

    expired = datetime.now(UTC) - timedelta(hours=1)
    sent = await respond(EventStreamResponse(frames(), expires_at=expired))
    assert sent[-1] == make_body(b"", False)
    assert make_body(b"", False) not in sent[:-1]
    assert closed.is_set() or make_body(b"a", True) not in sent


async def test_an_error_of_the_source_is_raised_and_one_of_the_connection_is_not() -> None:
    with pytest.raises(ValueError, match="a fault"):
        await respond(EventStreamResponse(make_frames(b"a", error=ValueError("a fault"))))
    sent = await respond(EventStreamResponse(make_frames(b"a")), send_error=ConnectionResetError())
    assert [message["type"] for message in sent] == ["http.response.start"]


# -- processes that die ---------------------------------------------------------------------------------------------


async def test_a_client_misses_nothing_when_server_and_worker_are_killed(own_site: Site) -> None:
    worker, server = await asyncio.gather(
        asyncio.to_thread(own_site.start, "worker"), asyncio.to_thread(own_site.start, "viewer")
    )
    token = own_site.issue_token("killed", "read", "start")
    seen: list[str] = []
    async with AsyncClient(own_site.url, token=token) as client:
        await client.submit("clerk", "note gate note", run_id="killed")
        async for event in client.events("killed"):
            if event.cursor is not None:
                seen.append(encode(event))
            if event.type == "tool_call" and len(own_site.processes) == 2:
                own_site.kill(server)
                await asyncio.to_thread(own_site.wait_for_line, "killed", "gate")
                own_site.kill(worker)
                await asyncio.gather(
                    asyncio.to_thread(own_site.start, "worker"), asyncio.to_thread(own_site.start, "viewer")
                )
                own_site.open_gate("killed")
        assert isinstance(msgspec.json.decode(seen[-1], type=Event), OutputRecorded)
    assert seen == await read_reference(own_site, "killed")
    assert own_site.read_ledger("killed").count("note") == 2, "a finished call was repeated"


def test_the_sync_client_streams_too(site: Site) -> None:
    with Client(site.url, token=site.issue_token("sync", "read", "start")) as client:
        client.submit("clerk", "note", run_id="sync")
        events = list(client.events("sync"))
        assert any(isinstance(each, OutputRecorded) for each in events)
        stream = client.events("sync")
        first = next(stream)
        stream.close()
        assert first.cursor is not None
        rest = [each for each in client.events("sync", after=first.cursor) if each.cursor is not None]
        assert rest == [each for each in events if each.cursor is not None][1:]
