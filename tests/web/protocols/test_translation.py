"""Events of holdfast become the streams of AG-UI and of the Vercel AI SDK, through pydantic-ai's own encoders."""

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.ui.ag_ui import AGUIEventStream
from pydantic_ai.ui.vercel_ai import VercelAIEventStream

from holdfast.core.run.run_events import (
    CallsWaiting,
    DraftRetracted,
    Event,
    ReasoningDelta,
    ReplyAdded,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from holdfast.core.run.waiting import WaitingCall
from holdfast.web.protocols.translation import Translator

TIME = datetime(2026, 1, 1, tzinfo=UTC)


async def replay(events: list[Event]) -> AsyncGenerator[Event]:
    for event in events:
        yield event


async def encode(stream: Any, events: list[Event]) -> list[dict[str, Any]]:
    translator = Translator(lambda text: {"retracted": text})
    frames = [
        frame async for frame in stream.encode_stream(stream.transform_stream(translator.translate(replay(events))))
    ]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if "[DONE]" not in frame]


async def encode_ag_ui(events: list[Event]) -> list[dict[str, Any]]:
    return await encode(AGUIEventStream(thread_id="t", run_id="r"), events)


async def encode_vercel(events: list[Event]) -> list[dict[str, Any]]:
    return await encode(VercelAIEventStream(sdk_version=6), events)


async def test_a_draft_is_completed_and_not_repeated() -> None:
    events: list[Event] = [
        TextDelta(run_id="r", text="Hel"),
        TextDelta(run_id="r", text="lo"),
        ReplyAdded(run_id="r", text="Hello there"),
    ]
    deltas = [each["delta"] for each in await encode_ag_ui(events) if each["type"] == "TEXT_MESSAGE_CONTENT"]
    assert deltas == ["Hel", "lo", " there"]
    deltas = [each["delta"] for each in await encode_vercel(events) if each["type"] == "text-delta"]
    assert deltas == ["Hel", "lo", " there"]


async def test_the_calls_of_a_reply_are_one_step_with_its_results() -> None:
    events: list[Event] = [
        ReplyAdded(run_id="r", text="both"),
        ToolCalled(run_id="r", call_id="c1", tool="a", arguments={"x": 1}),
        ToolCalled(run_id="r", call_id="c2", tool="b", arguments={}),
        ToolReturned(run_id="r", call_id="c1", tool="a", content={"ok": True}),
        ToolReturned(run_id="r", call_id="c2", tool="b", content="broken", error=True),
        ReplyAdded(run_id="r", text="done"),
    ]
    assert [each["type"] for each in await encode_vercel(events)] == [
        "start", "start-step", "text-start", "text-delta", "text-end",
        "tool-input-start", "tool-input-delta", "tool-input-start",
        "tool-input-available", "tool-input-available", "tool-output-available", "tool-output-error",
        "finish-step", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish",
    ]  # fmt: skip
    calls = [each for each in await encode_ag_ui(events) if each["type"] == "TOOL_CALL_START"]
    assert len({call["parentMessageId"] for call in calls}) == 1, "the calls belong to one message"


async def test_a_cut_off_reply_is_taken_back() -> None:
    events: list[Event] = [
        ReasoningDelta(run_id="r", text="hm"),
        TextDelta(run_id="r", text="half"),
        DraftRetracted(run_id="r"),
        ReplyAdded(run_id="r", text="whole"),
    ]
    sent = await encode_vercel(events)
    assert [each["data"] for each in sent if each["type"] == "data-holdfast"] == [{"retracted": "half"}]
    assert [each["delta"] for each in sent if each["type"] == "text-delta"] == ["half", "whole"]


async def test_an_approval_ends_the_stream_with_a_request() -> None:
    call = WaitingCall(run_id="r", call_id="c1", step=1, tool="pay", kind="approval", arguments={"n": 1}, asked_at=TIME)
    events: list[Event] = [
        ReplyAdded(run_id="r"),
        ToolCalled(run_id="r", call_id="c1", tool="pay", arguments={"n": 1}),
        CallsWaiting(run_id="r", calls=(call,)),
    ]
    [request] = [each for each in await encode_vercel(events) if each["type"] == "tool-approval-request"]
    assert request == {"type": "tool-approval-request", "approvalId": "c1", "toolCallId": "c1"}
    finished = (await encode_ag_ui(events))[-1]
    [interrupt] = finished["outcome"]["interrupts"]
    assert (finished["type"], interrupt["toolCallId"]) == ("RUN_FINISHED", "c1")


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 20))
async def test_any_draft_and_reply_add_up_to_the_reply(text: str, draft: str, length: int) -> None:
    drafts = [TextDelta(run_id="r", text=text[:length]), TextDelta(run_id="r", text=draft)]
    sent = await encode_vercel([*drafts, ReplyAdded(run_id="r", text=text)])
    shown = ""
    for each in sent:
        if each["type"] == "text-delta":
            shown += each["delta"]
        if each["type"] == "data-holdfast":
            shown = ""
    assert shown == text


async def test_half_a_surrogate_pair_breaks_nothing() -> None:
    events: list[Event] = [TextDelta(run_id="r", text="\ud83d"), TextDelta(run_id="r", text="\ude00")]
    assert [each["delta"] for each in await encode_vercel(events) if each["type"] == "text-delta"] == ["?", "?"]
