"""Usage, replies, mail and prompts: what they hold, and where their bounds are."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.core.errors import DefinitionError, InvalidReply, PayloadError
from holdfast.core.run.mail import Mail, Mailbox, decode_message, encode_message
from holdfast.core.run.messages import (
    NATIVE_CODEC,
    NO_USAGE,
    Reply,
    System,
    ToolCall,
    ToolResult,
    Usage,
    User,
    replace_half_pairs,
    validate_reply,
)
from holdfast.core.run.prompt import dump_inputs, dump_prompt, make_request_digest, summarize_prompt
from holdfast.core.run.turns import TurnInput, TurnMessage, make_digest, summarize_input

SOME = Usage(input_tokens=1, output_tokens=2, reasoning_tokens=3, requests=4, tool_calls=5, cost_usd=0.5)
MORE = Usage(input_tokens=11, output_tokens=22, reasoning_tokens=33, requests=44, tool_calls=55, cost_usd=2.0)
ALL = Usage(input_tokens=12, output_tokens=24, reasoning_tokens=36, requests=48, tool_calls=60, cost_usd=2.5)


def test_usage_is_added_and_subtracted_by_field() -> None:
    assert SOME + MORE == ALL
    assert ALL - MORE == SOME
    assert SOME + NO_USAGE == SOME
    assert NO_USAGE + SOME == SOME
    assert SOME.total_tokens == 3
    assert msgspec.json.encode(SOME - SOME) == b"{}", "zero is not stored"
    assert msgspec.json.encode(Usage(requests=1) + Usage(requests=1)) == b'{"requests":2}'


@pytest.mark.parametrize(
    "message",
    [
        System("be brief"),
        User("see", content=[{"type": "image"}]),
        Reply(text="x", tool_calls=[ToolCall(id="1", name="look")], usage=SOME, model="m"),
        ToolResult(call_id="1", tool="look", content={"a": [1]}, error=True),
    ],
)
def test_a_message_comes_back_equal(message: Any) -> None:
    assert NATIVE_CODEC.decode(NATIVE_CODEC.encode(message)) == message


def test_a_message_without_a_json_form_is_refused() -> None:
    with pytest.raises(PayloadError, match="a ToolResult message cannot be stored"):
        NATIVE_CODEC.encode(ToolResult(call_id="1", tool="t", content=object()))


@pytest.mark.parametrize(
    "usage",
    [
        SOME,
        Usage(input_tokens=10**12, output_tokens=10**12, requests=10**12),
        Usage(cost_usd=1e9),
        Usage(cost_usd=1),
    ],
)
def test_usage_up_to_the_limits_is_accepted(usage: Usage) -> None:
    accepted = validate_reply(Reply(text="x", usage=usage)).usage
    assert accepted == usage
    assert type(accepted.cost_usd) is float


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (Usage(input_tokens=10**12 + 1), "input_tokens=1000000000001: give a number from 0 to 1e\\+12"),
        (Usage(tool_calls=-1), "tool_calls=-1: give a number from 0 to 1e\\+12"),
        (Usage(reasoning_tokens=-1), "reasoning_tokens=-1"),
        (Usage(cost_usd=1e9 + 1), "cost_usd=1000000001.0: give a number from 0 to 1e\\+09"),
        (Usage(cost_usd=-1), "cost_usd=-1: give a number from 0 to 1e\\+09"),
    ],
)
def test_usage_beyond_the_limits_is_refused(usage: Usage, text: str) -> None:
    with pytest.raises(InvalidReply, match=text):
        validate_reply(Reply(text="x", usage=usage))


def test_a_reply_is_returned_as_a_store_would_return_it() -> None:
    given = Reply(
        text="\ud83d", model="m\udfff", tool_calls=[ToolCall(id="\ud83d", name="n\ud83d", arguments={"a": (1,)})]
    )
    call = ToolCall(id="\ufffd", name="n\ufffd", arguments={"a": [1]})
    assert validate_reply(given) == Reply(text="\ufffd", model="m\ufffd", tool_calls=[call])
    assert validate_reply(Reply(text="é", tool_calls=[ToolCall(id="é", name="ü")])).tool_calls[0].id == "é"
    assert replace_half_pairs(5) == 5


@pytest.mark.parametrize("field", ["text", "model", "id", "name"])
def test_half_a_character_in_any_text_of_a_reply_is_replaced(field: str) -> None:
    given = {"text": "t", "model": "m", "id": "i", "name": "n", field: "\ud83d"}
    reply = validate_reply(
        Reply(text=given["text"], model=given["model"], tool_calls=[ToolCall(id=given["id"], name=given["name"])])
    )
    call = reply.tool_calls[0]
    shown = {"text": reply.text, "model": reply.model, "id": call.id, "name": call.name}
    assert shown == {**given, field: "\ufffd"}


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("x", "the model returned str: return a holdfast Reply"),
        (Reply(tool_calls={}), "the tool calls of a reply have to be a list of ToolCall"),  # type: ignore[arg-type]
        (Reply(tool_calls=["x"]), "have to be a list of ToolCall"),  # type: ignore[list-item]
        (Reply(tool_calls=[ToolCall(id="", name="x")]), "has to have an id and a name"),
        (Reply(tool_calls=[ToolCall(id="1", name="")]), "has to have an id and a name"),
        (Reply(tool_calls=[ToolCall(id="1", name="a"), ToolCall(id="1", name="b")]), r"share an id: \['1', '1'\]"),
        (Reply(text="x", model=5), "a field of the wrong type"),  # type: ignore[arg-type]
        (Reply(text=bytearray(b"x")), "a field of the wrong type"),  # type: ignore[arg-type]
        (Reply(tool_calls=[ToolCall(id=1, name="x")]), "a field of the wrong type"),  # type: ignore[arg-type]
        (Reply(tool_calls=[ToolCall(id="1", name=2)]), "a field of the wrong type"),  # type: ignore[arg-type]
        (Reply(text="x", usage=None), "a field of the wrong type"),  # type: ignore[arg-type]
        (Reply(text="x", usage=Usage(requests=1.5)), "a field of the wrong type"),  # type: ignore[arg-type]
        (Reply(text="x", usage=Usage(cost_usd="1")), "a field of the wrong type"),  # type: ignore[arg-type]
        (Reply(text="x", usage=Usage(cost_usd=float("nan"))), "cost_usd=nan: give a number"),
    ],
    ids=repr,
)
def test_what_is_wrong_with_a_reply_is_named(reply: Any, text: str) -> None:
    with pytest.raises(InvalidReply, match=text):
        validate_reply(reply)


# -- mail -------------------------------------------------------------------------------------------------------------


def make_mail(number: int, topic: str = "message") -> Mail:
    return Mail(mail_id=f"m{number}", topic=topic, body=encode_message(f"text {number}"))


def test_mail_is_taken_once_and_in_the_order_of_its_arrival() -> None:
    consumed: list[str] = []
    box = Mailbox(consumed, [make_mail(1), make_mail(2, "other"), make_mail(3)])
    assert [mail.mail_id for mail in box.find("message")] == ["m1", "m3"]
    assert (box.has("other"), box.has("none")) == (True, False)
    assert box.peek("none") is None
    oldest = box.peek("other", "message")
    assert oldest is not None
    assert oldest.mail_id == "m1"
    box.take(oldest)
    box.deliver([make_mail(1), make_mail(3), make_mail(4)])
    assert list(box.unread) == ["m2", "m3", "m4"], "what was taken or is known is not delivered again"
    assert [decode_message(mail) for mail in box.take_all("message")] == ["text 3", "text 4"]
    assert list(box.take_all("message")) == []
    assert consumed == ["m1", "m3", "m4"]
    assert Mailbox([]).has("message") is False
    assert list(Mailbox([]).take_all("message")) == []


def test_a_message_is_text_or_content_parts() -> None:
    for content in ("", "hello", [], ["hello", {"type": "image"}]):
        mail = Mail(mail_id="1", topic="message", body=encode_message(content))
        assert decode_message(mail) == content
        assert TurnMessage.from_mail(mail).prompt == content


# -- prompts ----------------------------------------------------------------------------------------------------------


class Encoder:
    """A loop that accepts content parts."""

    def dump_prompt(self, parts: Any) -> list[Any]:
        if "bad" in parts:
            raise DefinitionError("no bad parts")
        return ["dumped", *parts]


@pytest.mark.parametrize(
    ("loop", "prompt", "dumped"),
    [
        (None, "", ""),
        (Encoder(), "text", "text"),
        (None, ("a", {"b": 1}), ["a", {"b": 1}]),
        (Encoder(), ["a"], ["dumped", "a"]),
    ],
)
def test_a_prompt_becomes_plain_data(loop: object, prompt: Any, dumped: Any) -> None:
    assert dump_prompt("agent", loop, prompt) == dumped


@pytest.mark.parametrize(
    ("loop", "prompt", "text"),
    [
        (None, [], r"the prompt is \[\]: give text, or a list of content parts"),
        (None, b"x", "the prompt is b'x': give text"),
        (None, bytearray(b"x"), "give text"),
        (None, 5, "the prompt is 5: give text"),
        (None, {"a": 1}, "give text"),
        (None, [5], "agent agent: the content part 5 cannot be used"),
        (None, [{"a": b"x"}], "agent agent: the prompt would come back changed"),
        (Encoder(), ["bad"], "agent agent: no bad parts"),
        (object(), ["a"], "agent agent accepts text only"),
    ],
)
def test_another_prompt_is_refused(loop: object, prompt: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        dump_prompt("agent", loop, prompt)


def test_inputs_are_copied_and_checked() -> None:
    given = {"a": [1]}
    dumped = dump_inputs(given)
    given["a"].append(2)
    assert dumped == {"a": [1]}
    assert dump_inputs(None) == {}
    for wrong, text in (
        ([], "inputs is"), ({1: 2}, "give a mapping from names"), ({"prompt": 1}, "cannot be named prompt"),
        ({"a": object()}, "the inputs cannot be stored"),
    ):  # fmt: skip
        with pytest.raises(DefinitionError, match=text):
            dump_inputs(wrong)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("plain", "plain"),
        (["a", {"text": "b"}, {"content": "c"}], "a b c"),
        ([{"text": 5, "content": "c"}], "c"),
        ([{"kind": "binary", "media_type": "image/png", "data": "..."}], "[binary image/png]"),
        ([{"type": "image_url"}], "[image_url]"),
        ([{"data": 1}, 5], "[part] [part]"),
    ],
    ids=repr,
)
def test_a_prompt_is_summarized(prompt: Any, text: str) -> None:
    assert summarize_prompt(prompt) == text


def test_digests_depend_on_the_content_alone() -> None:
    assert make_request_digest("a", {"x": 1, "y": 2}) == make_request_digest("a", {"y": 2, "x": 1})
    assert len({make_request_digest("a", {}), make_request_digest("b", {}), make_request_digest("a", {"x": 1})}) == 3
    assert len(make_request_digest("\ud83d", {})) == 32
    assert make_digest([{"x": 1, "y": 2}]) == make_digest([{"y": 2, "x": 1}])
    assert make_digest("a") != make_digest("b")
    assert len(make_digest("a")) == 16
    assert summarize_input("x" * 201) == "x" * 200


def test_a_turn_includes_the_messages_that_joined_it() -> None:
    turn = TurnInput(turn_id="t", number=1, digest="d", joined={"j": "e"}, at=datetime(2030, 1, 1, tzinfo=UTC))
    assert [turn.includes(each) for each in ("t", "j", "x")] == [True, True, False]
    assert [turn.get_digest(each) for each in ("t", "j")] == ["d", "e"]
