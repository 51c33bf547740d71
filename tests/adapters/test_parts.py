"""The parts of a durable agent of pydantic-ai one by one: counters, results, deferred calls, policies."""

import math
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, PromptedOutput, RunContext, ToolOutput, ToolReturn
from pydantic_ai.exceptions import ToolFailed, ToolFailedError, ToolRetryError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition, ToolDenied
from pydantic_ai.usage import RunUsage
from tests.adapters.crash_simulator import CrashSimulator
from tests.adapters.scripted_model import ScriptedModel, call, get_texts
from tests.failed_runs import fails_with
from tests.probe_store import ProbeStore

from holdfast import App, Deferred
from holdfast.adapters.call_arguments import UNREADABLE_REASON, is_unreadable
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.adapters.pydantic_ai.deferred import add_reason, dump_metadata
from holdfast.adapters.pydantic_ai.history import Counters, get_open_parts
from holdfast.adapters.pydantic_ai.message_codec import (
    CODEC,
    dump_parts,
    load_prompt,
    make_output_codec,
    replace_unstorable,
)
from holdfast.adapters.pydantic_ai.tool_results import (
    FINAL,
    RESOLUTION,
    ToolResultBuilder,
    await_outcome,
    get_value,
    has_mark,
    is_error,
    make_marked_request,
)
from holdfast.adapters.pydantic_ai.toolset import OpenCall
from holdfast.adapters.tool_policies import ONCE, PURE, check_policies, find_policy
from holdfast.config import CheckpointSettings
from holdfast.core.agents.calls import Effect
from holdfast.core.errors import DefinitionError, InvalidReply, PayloadError, SaveFailed
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.loop import PendingCall
from holdfast.core.run.messages import Usage
from holdfast.core.run.state import RunState
from holdfast.core.run.waiting import ApprovalRequest
from holdfast.stores.memory import MemoryStore

# -- calls and their results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "approval", "after_others", "later"),
    [
        ("function", False, False, False),
        ("function", True, False, True),
        ("function", False, True, True),
        ("external", False, False, True),
        ("unapproved", False, False, True),
        (None, False, False, False),
    ],
)
def test_a_call_starts_later_if_it_waits_for_an_answer_or_for_others(
    kind: Any, approval: bool, after_others: bool, later: bool
) -> None:
    definition = None if kind is None else ToolDefinition(name="pay", kind=kind)
    opened = OpenCall(call("c1", "pay", city="Lyon"), definition, ToolPolicy(approval=approval), after_others)
    assert opened.starts_later is later
    assert (opened.call_id, opened.tool, opened.arguments, opened.effect) == (
        "c1",
        "pay",
        {"city": "Lyon"},
        Effect.ONCE,
    )


BUILDER = ToolResultBuilder("pay", "c1", ToolDefinition(name="pay"))


@pytest.mark.parametrize("value", [None, 7, "text", {"a": [1]}, b"\xff", ToolDenied("no")])
def test_a_value_comes_back_from_its_result(value: Any) -> None:
    result = BUILDER.make_result(value)
    [part] = result.parts
    assert isinstance(part, ToolReturnPart)
    assert (part.tool_name, part.tool_call_id) == ("pay", "c1")
    assert get_value(CODEC.decode(CODEC.encode(result))) == value  # type: ignore[arg-type]
    assert is_error(result) is isinstance(value, ToolDenied)


@pytest.mark.parametrize(
    "value",
    [
        ToolReturn(return_value=1, metadata={"a": 1}),
        ToolReturn(return_value=1, content="a picture"),
        ToolReturn(return_value=1, tools=["look"]),
        ToolReturn(return_value=1, content="a picture", metadata={"a": 1}, tools=["look", "pay"]),
    ],
)
def test_what_a_tool_returns_beside_its_value_comes_back(value: ToolReturn) -> None:
    back = get_value(BUILDER.make_result(value))
    assert isinstance(back, ToolReturn)
    assert (back.return_value, back.content, back.metadata, back.tools) == (
        value.return_value, value.content, value.metadata, value.tools,
    )  # fmt: skip


def test_a_tool_that_is_named_twice_is_added_once() -> None:
    _, added = BUILDER.make_result(ToolReturn(return_value=1, tools=["look", "pay", "look"])).parts
    assert isinstance(added, ToolAvailabilityDeltaPart)
    assert (added.tools_added, added.tool_call_id) == (["look", "pay"], "c1")
    assert get_value(BUILDER.make_result(ToolReturn(return_value=1))) == 1


def test_failures_and_resolutions_are_told_apart() -> None:
    with pytest.raises(ToolFailedError):
        get_value(BUILDER.make_error_result("no"))
    assert is_error(BUILDER.make_error_result("no"))
    resolved = BUILDER.make_resolution("paid")
    assert (get_value(resolved), is_error(resolved)) == ("paid", False)
    assert is_error(BUILDER.make_resolution("no", error=True))
    assert [has_mark(resolved, mark) for mark in (RESOLUTION, FINAL)] == [True, False]
    assert has_mark(make_marked_request([], FINAL), FINAL)
    assert not has_mark(ModelRequest(parts=[]), FINAL)
    assert not has_mark(ModelRequest(parts=[], metadata={"mine": 1}), FINAL)
    loop: Any = get_loop(durable(Agent(name="a")))
    made = loop.make_result(PendingCall(call_id="c1", tool="pay", arguments={}), "no", error=True)
    assert (is_error(made), has_mark(made, RESOLUTION)) == (True, True)
    assert not is_error(loop.make_result(PendingCall(call_id="c1", tool="pay", arguments={}), "yes"))


async def test_the_outcome_of_a_call_is_returned_or_raised_again() -> None:
    async def give(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    part = ToolReturnPart("pay", "again", "c1", outcome="retried")
    errors: list[Any] = [ToolRetryError(part), ToolFailedError(ToolReturnPart("pay", "no", "c1", outcome="failed"))]
    for error in errors:
        outcome, result = await await_outcome(give(error), BUILDER)
        assert isinstance(result, ModelRequest)
        assert is_error(result)
        with pytest.raises(type(error)) as raised:
            outcome()
        assert raised.value is error
        with pytest.raises(type(error)):
            get_value(result)
    for value in ("text", {"a": 1}, None, 7):
        outcome, result = await await_outcome(give(value), BUILDER)
        assert outcome() is value
        assert isinstance(result, ModelRequest)
        assert get_value(result) == value
    waiting = Deferred(reason="later")
    outcome, result = await await_outcome(give(waiting), BUILDER)
    assert outcome() is result is waiting
    outcome, result = await await_outcome(give({"made": object()}), BUILDER)
    with pytest.raises(ToolFailedError):
        outcome()
    assert isinstance(result, ModelRequest)
    assert "The tool has returned, but its result is lost: " in str(result.parts[0])


# -- deferred calls -------------------------------------------------------------------------------------------------


def test_metadata_of_a_call_that_waits_is_plain_data() -> None:
    assert dump_metadata(None) is None
    assert dump_metadata({"at": Decimal("1.5"), "n": 1}) == {"at": "1.5", "n": 1}
    with pytest.raises(PayloadError, match="the metadata of a call that waits cannot be stored"):
        dump_metadata({"made": object()})


@pytest.mark.parametrize(
    ("asked", "metadata", "reason"),
    [
        (ApprovalRequest(), {"reason": "money"}, "money"),
        (ApprovalRequest(reason="mine"), {"reason": "money"}, "mine"),
        (ApprovalRequest(), {"reason": 7}, ""),
        (ApprovalRequest(), None, ""),
    ],
)
def test_the_reason_is_that_of_the_request_or_of_the_metadata(asked: Any, metadata: Any, reason: str) -> None:
    given = ApprovalRequest(reason=asked.reason, audience="ann")
    found = add_reason(given, metadata)
    assert (found.reason, found.audience) == (reason, "ann")


# -- counters -------------------------------------------------------------------------------------------------------


def keep(counters: Counters) -> Counters:
    """The counters as a later process reads them."""
    state = RunState()
    counters.write_to(state)
    return Counters(state)


def test_counters_survive_and_are_stored_only_if_they_count() -> None:
    state = RunState()
    counters = Counters(state)
    counters.write_to(state)
    assert state.loop_data == {"usage": {}}
    counters.usage.requests, counters.usage.input_tokens, counters.usage.cost = 2, 30, Decimal("0.25")
    counters.started, counters.unknown_calls = ["c1"], ["c2"]
    counters.output_retries, counters.tool_retries = 1, {"pay": 2}
    again = keep(counters)
    assert (again.usage.requests, again.usage.input_tokens, again.usage.cost) == (2, 30, Decimal("0.25"))
    assert (again.started, again.unknown_calls) == (["c1"], ["c2"])
    assert (again.output_retries, again.tool_retries) == (1, {"pay": 2})
    assert again.take_usage() is None, "what an earlier process has counted is not counted again"


def test_a_phase_keeps_the_usage_and_a_turn_begins_anew() -> None:
    counters = keep(Counters(RunState()))
    counters.usage.requests, counters.started, counters.unknown_calls = 2, ["c1"], ["c2"]
    counters.output_retries, counters.tool_retries = 1, {"pay": 2}
    counters.start_phase()
    assert (counters.started, counters.unknown_calls, counters.output_retries, counters.tool_retries) == ([], [], 0, {})
    assert counters.take_usage() == Usage(requests=2)
    counters.usage.requests = 5
    counters.start_turn()
    assert (counters.usage, counters.take_usage()) == (RunUsage(), None)


def test_usage_is_taken_once() -> None:
    counters = Counters(RunState())
    assert counters.take_usage() is None
    used = counters.usage
    used.input_tokens, used.output_tokens, used.output_reasoning_tokens, used.requests = 30, 7, 5, 2
    assert counters.take_usage() == Usage(input_tokens=30, output_tokens=7, reasoning_tokens=5, requests=2)
    assert counters.take_usage() is None
    used.cost = Decimal("0.5")
    assert counters.take_usage() == Usage(cost_usd=0.5)
    used.cost, used.input_tokens, used.output_tokens, used.output_reasoning_tokens = Decimal("0.75"), 31, 9, 8
    assert counters.take_usage() == Usage(input_tokens=1, output_tokens=2, reasoning_tokens=3, cost_usd=0.25)


def test_open_parts_are_those_after_the_last_reply() -> None:
    one, two, three = (UserPromptPart(text) for text in "123")
    asked, reply = ModelRequest(parts=[one]), ModelResponse(parts=[TextPart("hm")])
    later = [ModelRequest(parts=[two]), ModelRequest(parts=[three])]
    assert get_open_parts([asked, reply, *later]) == [two, three]
    assert get_open_parts([asked, *later]) == [one, two, three]
    assert get_open_parts([asked, reply]) == get_open_parts([]) == []


# -- stored messages ------------------------------------------------------------------------------------------------


def test_bytes_are_marked_and_come_back_with_the_metadata() -> None:
    plain = ModelRequest(parts=[ToolReturnPart("t", "text", "c1")])
    assert b"holdfast_bytes" not in CODEC.encode(plain)
    for metadata in (None, {"mine": 1}):
        parts: list[Any] = [
            UserPromptPart("go"),
            ToolReturnPart("t", b"\xff\x00", "c1"),
            ToolReturnPart("t", "x", "c2"),
        ]
        message = ModelRequest(parts=parts, metadata=metadata)
        again = CODEC.decode(CODEC.encode(message))
        assert (again, again.metadata) == (message, metadata)
        assert message.metadata == metadata


@pytest.mark.parametrize(("depth", "fits"), [(100, True), (190, True), (240, False), (400, False)])
def test_a_result_that_could_not_be_read_again_is_refused(depth: int, fits: bool) -> None:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    message = ModelRequest(parts=[ToolReturnPart("t", value, "c1")])
    if fits:
        CODEC.check(message)
    else:
        with pytest.raises(PayloadError):
            CODEC.check(message)


def test_what_no_store_can_keep_is_replaced_in_a_reply() -> None:
    bad = ToolCallPart("look", {"city": math.nan}, "c1")
    good = ToolCallPart("look", {"city": "Lyon"}, "c2")
    reply = ModelResponse(parts=[TextPart("half \ud83d"), ThinkingPart("half \ud83d"), bad, good])
    replace_unstorable(reply)
    assert [part.content for part in reply.parts[:2]] == ["half \ufffd"] * 2  # type: ignore[union-attr]
    assert str(bad.args).startswith(f"{UNREADABLE_REASON}: ")
    assert good.args == {"city": "Lyon"}


def test_a_prompt_is_text_or_parts() -> None:
    assert load_prompt("go") == "go"
    assert load_prompt(dump_parts(["go", "on"])) == ["go", "on"]
    with pytest.raises(PayloadError, match="this pydantic-ai cannot read the stored prompt"):
        load_prompt([{"kind": "of a later version"}])


def count_words(text: str) -> int:
    return len(text.split())


def give_anything(text: str):  # type: ignore[no-untyped-def]
    return text


@pytest.mark.parametrize(
    ("spec", "output", "stored"),
    [
        (PromptedOutput[Any]([int, str]), 7, {"type": "int", "value": 7}),
        (PromptedOutput(int), 7, 7),
        (give_anything, {"a": 1}, {"a": 1}),
        ([count_words, str], "x", {"type": "str", "value": "x"}),
        (None, None, None),
        ([], "x", "x"),
    ],
)
def test_the_types_of_an_output_are_found_in_its_specification(spec: Any, output: Any, stored: Any) -> None:
    codec = make_output_codec(spec)
    assert codec.dump(output) == stored
    assert codec.load(stored) == output


def test_an_output_of_a_type_that_a_deploy_removed_is_plain_data() -> None:
    codec = make_output_codec([int, str])
    assert codec.load({"type": "Trip", "value": {"city": "Lyon"}}) == {"city": "Lyon"}


def nest(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


# -- arguments and policies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "unreadable"),
    [
        ({"a": 1}, False), ({"a": math.nan}, True), ({"a": math.inf}, True), ({"a": "\ud83d"}, True), (None, False),
        (nest(490), False), (nest(501), True), (nest(5000), True), ("[" * 5000, True), ("[" * 501 + "]" * 501, True),
        ("[" * 490 + "]" * 490, False), ("[NaN," + "[" * 100_000, True),
        ("", False), ('{"a": 1}', False), ('{"a": NaN}', True), ("{no json", False), ('{"a": "\ud83d"', True),
    ],
    ids=range(17),
)  # fmt: skip
def test_arguments_that_no_store_can_keep_are_recognised(arguments: Any, unreadable: bool) -> None:
    assert is_unreadable(arguments) is unreadable


def test_a_policy_is_that_of_the_user_else_of_the_metadata_else_the_default() -> None:
    given = ToolPolicy("idempotent")
    assert find_policy({"pay": given}, "pay", "tool", {"effect": "pure"}) is given
    assert find_policy({"pay": given}, "look", "tool", {"effect": "pure"}) == PURE
    assert find_policy({}, "pay", "tool", {"in_doubt": "park", "other": 1}) == ToolPolicy(in_doubt="park")
    assert find_policy({}, "pay", "tool", {"other": 1}) is find_policy({}, "pay", "tool") is ONCE
    assert find_policy({}, "pay", None, default=PURE) is PURE
    asked: list[Any] = []

    def choose(tool: Any) -> ToolPolicy | None:
        asked.append(tool)
        return given if tool == "mine" else None

    assert find_policy(choose, "pay", "mine", {"effect": "pure"}) is given
    assert find_policy(choose, "pay", "other", {"effect": "pure"}) == PURE
    assert find_policy(choose, "pay", None) is ONCE
    assert asked == ["mine", "other"]


def test_a_policy_that_cannot_be_used_is_refused() -> None:
    wrong: list[tuple[Any, str]] = [
        (7, "tools is 7: give a ToolPolicy by the name of the tool, or a function"),
        ({"pay": "once"}, "tools: the policy of pay is 'once': give a ToolPolicy"),
        ({"pay": ToolPolicy("transaction")}, "tool pay: effect is transaction"),
    ]
    for tools, text in wrong:
        with pytest.raises(DefinitionError, match=text):
            check_policies(tools)
    with pytest.raises(DefinitionError, match="the policy of pay is 'once'"):
        find_policy(lambda tool: "once", "pay", "tool")  # type: ignore[arg-type,return-value]
    with pytest.raises(DefinitionError, match="the metadata of tool pay: "):
        find_policy({}, "pay", "tool", {"effect": "twice"})


# -- runs -----------------------------------------------------------------------------------------------------------


async def test_two_calls_with_one_id_are_refused() -> None:
    agent = Agent(ScriptedModel([call("c1", "look"), call("c1", "look")], "done").model, name="a")
    made: list[str] = []

    @agent.tool_plain
    def look() -> str:
        made.append("look")
        return "seen"

    async with App([durable(agent)], "memory:") as app:
        with fails_with(InvalidReply, match="two tool calls of one reply share the id c1"):
            await app.run("a", "go")
    assert made == []


@pytest.mark.parametrize("first_fails", [True, False])
async def test_a_recorded_result_counts_as_a_retry_only_if_it_asked_for_one(first_fails: bool) -> None:
    deaths, tried = CrashSimulator("wait"), list[int]()
    turns: list[Any] = [
        [call("c1", "pick", n=0), call("c2", "wait")],
        [call("c3", "pick", n=1)],
        [call("c4", "pick", n=2)],
        "done",
    ]
    agent: Agent[None, str] = Agent(ScriptedModel(*turns).model, name="a")

    @agent.tool_plain(retries=1)
    async def pick(n: int) -> str:
        tried.append(n)
        if n == 1 or (n == 0 and first_fails):
            raise ModelRetry("not that one")
        return "picked"

    @agent.tool_plain(metadata={"effect": "pure"})
    async def wait() -> str:
        await deaths.reach("wait", results=1)
        return "waited"

    running = deaths.run(durable(agent))
    if first_fails:
        with fails_with(UnexpectedModelBehavior, match="max retries"):
            await running
        assert tried == [0, 1]
    else:
        assert (await running).output == "done"
        assert tried == [0, 1, 2]


async def test_a_tool_that_fails_for_good_is_recorded_with_its_text() -> None:
    script = ScriptedModel([call("c1", "look")], "done")
    agent: Agent[None, str] = Agent(script.model, name="a")

    @agent.tool_plain
    async def look() -> str:
        raise ToolFailed("nothing there")

    async with App([durable(agent)], "memory:") as app:
        assert (await app.run("a", "go")).output == "done"
    assert ("tool-return", "nothing there") in get_texts(script.asked[-1])


async def test_a_tool_may_call_another_tool_within_its_own_call() -> None:
    script = ScriptedModel([call("c1", "plan")], "done")
    agent: Agent[None, str] = Agent(script.model, name="a")
    made: list[str] = []

    @agent.tool_plain
    def look(city: str) -> str:
        made.append(city)
        return f"{city} is warm"

    @agent.tool
    async def plan(ctx: RunContext[None]) -> str:
        assert ctx.tool_manager is not None
        return str(await ctx.tool_manager.handle_call(call("inner", "look", city="Lyon")))

    async with App([durable(agent)], "memory:") as app:
        result = await app.run("a", "go")
    assert ("tool-return", "Lyon is warm") in get_texts(script.asked[-1])
    assert (made, result.usage.tool_calls) == (["Lyon"], 1)


async def test_only_the_results_that_end_a_run_are_marked_as_final() -> None:
    store = MemoryStore()
    agents: list[Agent[None, Any]] = [
        Agent(ScriptedModel([call("c1", "look")], "done").model, name="text"),
        Agent(ScriptedModel([call("c1", "look")], [call("c2", "final_result", response=7)]).model, name="number",
              output_type=ToolOutput(int)),
    ]  # fmt: skip

    def look() -> str:
        return "seen"

    for agent in agents:
        agent.tool_plain(look)
    async with App([durable(agent) for agent in agents], store) as app:
        outputs = [(await app.run(name, "go", run_id=name)).output for name in ("text", "number")]
        bodies = [b"".join(entry.body for entry in (await store.load(name)).entries) for name in ("text", "number")]
    assert outputs == ["done", 7]
    assert [body.count(b'"holdfast":"final"') for body in bodies] == [0, 1]


async def test_a_once_call_whose_start_cannot_be_saved_is_not_made() -> None:
    store, paid = ProbeStore(MemoryStore()), list[int]()
    agent: Agent[None, str] = Agent(ScriptedModel([call("c1", "pay", n=1), call("c2", "pay", n=2)], "done").model)

    @agent.tool_plain(sequential=True)
    async def pay(n: int) -> str:
        paid.append(n)
        store.fail("append", *[OSError("the disk is full")] * 100)
        return "paid"

    tolerant = CheckpointSettings(require_durability=False)
    async with App([durable(agent, name="a")], store, checkpoint=tolerant, worker=False) as app:
        with pytest.raises(SaveFailed, match="the disk is full"):
            await app.run("a", "go")
    assert paid == [1]
