"""Stored messages in one readable form, whichever loop wrote them."""

from typing import Any

import pytest
from pydantic_ai import BinaryContent, ImageUrl
from pydantic_ai.messages import (
    FilePart,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast.adapters.pydantic_ai.message_codec import CODEC
from holdfast.adapters.pydantic_ai.tool_results import ToolResultBuilder
from holdfast.adapters.readable import Resolution, Thinking, read_message
from holdfast.core.run.messages import NATIVE_CODEC, Reply, System, ToolCall, ToolResult, User


@pytest.mark.parametrize(
    "message",
    [System("be brief"), User("hi"), Reply(text="yes"), ToolResult(call_id="c1", tool="pay", content=1, error=True)],
)
def test_messages_of_the_native_loop_are_returned_as_they_are(message: Any) -> None:
    assert read_message("native", NATIVE_CODEC.encode(message)) == [message]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            ModelRequest([SystemPromptPart("be brief"), UserPromptPart("hi")]),
            [System("be brief"), User("hi")],
        ),
        (
            ModelRequest([UserPromptPart(["look", ImageUrl("https://x.example/a.png")])]),
            [User("look\n[image https://x.example/a.png]")],
        ),
        (
            ModelRequest([UserPromptPart(["at this", BinaryContent(b"123456", media_type="image/png")])]),
            [User("at this\n[image/png, 6 bytes]")],
        ),
        (
            ModelRequest(
                [ToolReturnPart("pay", {"paid": [1]}, "c1"), ToolReturnPart("pay", "no", "c2", outcome="denied")]
            ),
            [
                ToolResult(call_id="c1", tool="pay", content={"paid": [1]}),
                ToolResult(call_id="c2", tool="pay", content="no", error=True),
            ],
        ),
        (
            ModelRequest([RetryFeedbackPart("plain text?", retry=RetryInfo(cause="no_output"))]),
            [User("plain text?")],
        ),
        (
            ModelResponse([ThinkingPart("hm"), TextPart("I"), TextPart(" pay"), ToolCallPart("pay", '{"a":1}', "c1")]),
            [Thinking("hm"), Reply(text="I pay", tool_calls=[ToolCall(id="c1", name="pay", arguments={"a": 1})])],
        ),
        (
            ModelResponse([ToolCallPart("pay", "{broken", "c1"), ToolCallPart("stop", None, "c2")]),
            [
                Reply(
                    tool_calls=[
                        ToolCall(id="c1", name="pay", arguments="{broken"),
                        ToolCall(id="c2", name="stop", arguments={}),
                    ]
                )
            ],
        ),
        (
            ModelResponse(
                [
                    NativeToolCallPart("web_search", {"q": "x"}, "s1"),
                    NativeToolReturnPart("web_search", ["hit"], "s1"),
                    FilePart(BinaryContent(b"abc", media_type="image/png")),
                ]
            ),
            [
                Reply(
                    text="[image/png, 3 bytes]",
                    tool_calls=[ToolCall(id="s1", name="web_search", arguments={"q": "x"})],
                ),
                ToolResult(call_id="s1", tool="web_search", content=["hit"]),
            ],
        ),
        (
            ToolResultBuilder("pay", "c1").make_resolution(True),
            [Resolution(call_id="c1", tool="pay", content=True)],
        ),
    ],
)
def test_messages_of_pydantic_ai_are_read_without_it(message: Any, expected: list[Any]) -> None:
    assert read_message("pydantic_ai", CODEC.encode(message)) == expected


def test_retries_are_read_as_earlier_versions_of_pydantic_ai_stored_them() -> None:
    parts = (
        '{"part_kind":"retry-prompt","content":"again","tool_name":"pay","tool_call_id":"c1"},'
        '{"part_kind":"retry-prompt","content":"plain text?","tool_name":null,"tool_call_id":"c2"}'
    )
    assert read_message("pydantic_ai", f'{{"kind":"request","parts":[{parts}]}}'.encode()) == [
        ToolResult(call_id="c1", tool="pay", content="again", error=True),
        User("plain text?"),
    ]


@pytest.mark.parametrize(
    "body",
    [b"[1]", b'"text"', b'{"kind":"request"}', b'{"kind":"other","parts":[]}', b'{"parts":[{"x":1}]}', b"\xff", b"{"],
)
@pytest.mark.parametrize("loop", ["native", "pydantic_ai", "openai_agents", "langgraph", "unknown", ""])
def test_other_formats_are_not_guessed(loop: str, body: bytes) -> None:
    assert read_message(loop, body) is None


def test_a_message_is_read_as_its_loop_has_written_it() -> None:
    body = NATIVE_CODEC.encode(User("hello"))
    assert read_message("native", body) == [User("hello")]
    assert read_message("pydantic_ai", body) is None
    assert read_message("unknown", body) is None
    assert read_message("", body) == [User("hello")], "the run was submitted without its agent"
