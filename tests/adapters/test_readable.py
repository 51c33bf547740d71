"""Stored messages of each loop in one readable form, and the arguments and results that adapters keep."""

import json
from typing import Any

import pytest
from agents import Agent, Model, ModelProvider, ToolOutputImage, ToolOutputText
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from tests.adapters.openai_agents.scripted_model import ScriptedModel

from holdfast import Reply, System, ToolCall, ToolResult, User
from holdfast.adapters.call_arguments import make_fixed_schema
from holdfast.adapters.langgraph.saver import values
from holdfast.adapters.openai_agents import durable
from holdfast.adapters.openai_agents.message_codec import make_output
from holdfast.adapters.openai_agents.model import ModelRecorder
from holdfast.adapters.pydantic_ai import durable as durable_pydantic_ai
from holdfast.adapters.readable import Resolution, Thinking, read_message
from holdfast.core.errors import DefinitionError
from holdfast.core.json_schema import find_mismatch


def read(loop: str, **message: Any) -> list[Any] | None:
    return read_message(loop, json.dumps(message).encode())


def read_part(kind: str, **part: Any) -> list[Any] | None:
    return read("pydantic_ai", kind="request", parts=[{"part_kind": kind, **part}])


@pytest.mark.parametrize(
    ("kind", "part", "expected"),
    [
        ("system-prompt", {"content": "Be kind."}, [System("Be kind.")]),
        ("user-prompt", {"content": "hello"}, [User("hello")]),
        ("user-prompt", {"content": ["see", {"kind": "text-content", "content": "this"}]}, [User("see\nthis")]),
        ("user-prompt", {"content": [{"kind": "image-url", "url": "http://x/y.png"}]}, [User("[image http://x/y.png]")]),
        ("user-prompt", {"content": [{"kind": "binary", "media_type": "image/png", "data": "AAAA" * 400}]},
         [User("[image/png, 1,200 bytes]")]),
        ("user-prompt", {"content": [{"kind": "binary", "data": "AAAA"}]}, [User("[file, 3 bytes]")]),
        ("user-prompt", {"content": {"page": 7}}, [User('{"page":7}')]),
        ("retry-prompt", {"content": "give a word"}, [User("give a word")]),
        ("retry-prompt", {"content": "again", "tool_name": "look", "tool_call_id": "c"},
         [ToolResult(call_id="c", tool="look", content="again", error=True)]),
        ("tool-return", {"content": {"found": 1}, "tool_name": "look", "tool_call_id": "c"},
         [ToolResult(call_id="c", tool="look", content={"found": 1})]),
        ("tool-return", {"content": "no", "tool_name": "look", "tool_call_id": "c", "outcome": "denied"},
         [ToolResult(call_id="c", tool="look", content="no", error=True)]),
        ("of-a-later-version", {"content": "?"}, []),
    ],
)  # fmt: skip
def test_a_request_of_pydantic_ai_is_read(kind: str, part: dict[str, Any], expected: list[Any]) -> None:
    assert read_part(kind, **part) == expected


def test_a_resolution_of_a_person_is_told_from_a_result() -> None:
    part = {"part_kind": "tool-return", "content": "sent", "tool_name": "mail", "tool_call_id": "c"}
    resolved = read("pydantic_ai", kind="request", parts=[part], metadata={"holdfast": "told"})
    assert resolved == [Resolution(call_id="c", tool="mail", content="sent")]
    assert read("pydantic_ai", kind="request", parts=[part], metadata={"holdfast": "x"}) == read(
        "pydantic_ai", kind="request", parts=[part]
    )


def test_a_response_of_pydantic_ai_is_read() -> None:
    parts = [
        {"part_kind": "thinking", "content": "hm"},
        {"part_kind": "thinking", "content": ""},
        {"part_kind": "text", "content": "One "},
        {"part_kind": "text", "content": "moment."},
        {"part_kind": "tool-call", "tool_name": "look", "tool_call_id": "c1", "args": '{"word":"x"}'},
        {"part_kind": "tool-call", "tool_name": "look", "tool_call_id": "c2", "args": "{no json"},
        {"part_kind": "builtin-tool-call", "tool_name": "search", "tool_call_id": "c3"},
        {"part_kind": "builtin-tool-return", "tool_name": "search", "tool_call_id": "c3", "content": "found"},
    ]
    calls = [
        ToolCall(id="c1", name="look", arguments={"word": "x"}),
        ToolCall(id="c2", name="look", arguments="{no json"),
        ToolCall(id="c3", name="search", arguments={}),
    ]
    assert read("pydantic_ai", kind="response", parts=parts, model_name="gpt") == [
        Thinking("hm"),
        Reply(text="One moment.", tool_calls=calls, model="gpt"),
        ToolResult(call_id="c3", tool="search", content="found"),
    ]


def test_messages_of_the_agents_sdk_are_read() -> None:
    given = [
        {"role": "user", "content": "hello"},
        {"role": "developer", "content": [{"text": "Be kind."}, {"type": "input_image"}, "plain"]},
        {"role": "user"},
        {"type": "function_call_output", "call_id": "c", "output": "seen"},
    ]
    assert read("openai_agents", item="input", items=given) == [
        User("hello"),
        System("Be kind.\n[input_image]\nplain"),
        ToolResult(call_id="c", tool="", content="seen"),
    ]
    assert read("openai_agents", item="output", call_id="c", tool="look", value=[1], error=True) == [
        ToolResult(call_id="c", tool="look", content=[1], error=True)
    ]
    output = [
        {"type": "reasoning", "summary": [{"text": "hm"}]},
        {"type": "reasoning", "content": [{"text": "so"}]},
        {"type": "reasoning"},
        {"type": "message", "content": [{"text": "One "}]},
        {"type": "message", "content": [{"refusal": "no"}]},
        {"type": "function_call", "name": "look", "call_id": "c1", "arguments": ""},
        {"type": "web_search_call", "id": "c2"},
        {"type": "item_reference", "id": "x"},
    ]
    calls = [ToolCall(id="c1", name="look", arguments={}), ToolCall(id="c2", name="web_search_call", arguments={})]
    assert read("openai_agents", item="reply", output=output) == [
        Thinking("hm"),
        Thinking("so"),
        Reply(text="One no", tool_calls=calls),
    ]
    assert read("openai_agents", item="final") == []


def test_a_loop_that_is_not_known_is_found_by_the_format_and_an_unknown_format_is_not_read() -> None:
    assert read("", kind="request", parts=[{"part_kind": "user-prompt", "content": "hello"}]) == [User("hello")]
    assert read("", item="input", items=[{"role": "user", "content": "hello"}]) == [User("hello")]
    assert read("langgraph", role="langgraph checkpoint") is None
    assert read_message("langgraph", b'{"role":"langgraph.checkpoint"}') == []
    assert read("of another host", kind="request", parts=[]) is None
    assert read_message("pydantic_ai", b"\xff") is None


def test_arguments_that_a_person_may_not_change_fit_themselves_alone() -> None:
    for fixed, others in (({"room": 7}, [{"room": 8}, {}, {"room": 7, "bed": 1}]), ("no json", ["other", {}])):
        schema = make_fixed_schema(fixed)
        assert not find_mismatch(fixed, schema)
        for other in others:
            assert find_mismatch(other, schema)


class Room(BaseModel):
    number: int


def test_a_result_of_the_agents_sdk_is_stored_as_data_if_the_model_reads_the_same() -> None:
    assert make_output("c", "look", "text").value == "text"
    assert make_output("c", "look", {"b": 1}).value == {"b": 1}
    assert make_output("c", "look", Room(number=7)).value == "number=7"
    assert make_output("c", "look", Room(number=7), typed=True).value == '{"number":7}'
    assert make_output("c", "look", ToolOutputText(text="hi")).value == {"type": "text", "text": "hi"}
    image = ToolOutputImage(image_url="http://x/y.png")
    assert make_output("c", "look", [ToolOutputText(text="hi"), image]).value == [
        {"type": "text", "text": "hi"},
        {"type": "image", "image_url": "http://x/y.png"},
    ]
    assert make_output("c", "look", {1, 2}).value == str({1, 2})


async def test_a_model_and_a_provider_of_the_agents_sdk_are_closed_through_their_wrappers() -> None:
    closed: list[str] = []

    class Closable(ScriptedModel):
        async def close(self) -> None:
            closed.append("model")

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            return Closable()

        async def aclose(self) -> None:
            closed.append("provider")

    replies: Any = None  # no reply is asked for
    provider = ModelRecorder(replies, None).wrap_provider(Provider())
    await provider.get_model("m").close()
    await provider.aclose()
    assert closed == ["model", "provider"]


def test_what_is_no_agent_is_refused() -> None:
    with pytest.raises(DefinitionError, match="an agent of pydantic-ai"):
        durable_pydantic_ai(7)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="the agent has no name"):
        durable_pydantic_ai(PydanticAgent("test"))


def test_a_list_that_is_stored_again_counts_once_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MAX_CACHED_ITEMS", 4)
    cache, index = values.ListCache(), values.ListIndex("1", {b"a": (0, 0), b"b": (0, 1)}, 0, 2)
    first, second, third = [("thread", "", name) for name in ("first", "second", "third")]
    cache.put(first, index)
    for _ in range(3):
        cache.put(second, index)
    assert (cache.get(first), cache.get(second)) == (index, index)
    cache.put(third, index)
    assert (cache.get(first), cache.get(second), cache.get(third)) == (None, index, index)
    cache.discard(second)
    cache.put(first, index)
    assert cache.get(third) == index


def test_agents_may_hand_off_to_each_other() -> None:
    first = Agent[Any](name="first", model=ScriptedModel())
    first.handoffs = [Agent[Any](name="second", handoffs=[first])]
    assert durable(first).name == "first"
