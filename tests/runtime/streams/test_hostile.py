"""Events of a hostile transcript stay one line of JSON, and reach a terminal without its control sequences."""

import msgspec
from tests.runtime.streams.watching import collect
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, tool
from holdfast.events import Event, MessageAdded, ReplyAdded, ToolReturned

HOSTILE = "<script>alert(1)</script>\r\n\r\nevent: output\ndata: {}\x1b]0;title\x07\x1b[2J\u2028\x00\u202e"
LONG = "x" * (10 * 2**20)


@tool(effect="pure")
async def fetch() -> str:
    return HOSTILE + LONG


async def test_any_text_is_one_line_of_json_and_comes_back_unchanged() -> None:
    model = ScriptedModel(tool_reply(call("1\n", "fetch"), text=HOSTILE), HOSTILE)
    async with App([Agent(name="a", model=model, tools=[fetch])], "memory:") as app:
        result = await app.run("a", HOSTILE)
        events = await collect(app.events(result.run_id))
    assert [event.content for event in events if isinstance(event, MessageAdded)] == [HOSTILE]
    assert [event.text for event in events if isinstance(event, ReplyAdded)] == [HOSTILE, HOSTILE]
    assert [event.content for event in events if isinstance(event, ToolReturned)] == [HOSTILE + LONG]
    for event in events:
        line = msgspec.json.encode(event)
        assert not {b"\n", b"\r", b"\x1b", b"\x00"} & {bytes([byte]) for byte in set(line)}
        assert msgspec.json.decode(line, type=Event) == event
        assert (event.cursor or "").isascii()
        assert "\n" not in (event.cursor or "")
