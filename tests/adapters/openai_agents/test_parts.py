"""The parts of a durable agent of the SDK one by one: stored messages, streams, handoffs, hooks."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from agents import Agent, AgentHooks, FunctionTool, ModelResponse, RunHooks, ShellTool, Usage, function_tool, handoff
from agents.agent_output import AgentOutputSchema
from agents.exceptions import ModelBehaviorError, UserError
from agents.testing import assistant_message, function_call
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseErrorEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseReasoningItem,
    ResponseReasoningTextDeltaEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_reasoning_item import Content, Summary
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BaseModel
from tests.adapters.crash_simulator import RUN, CrashSimulator
from tests.adapters.openai_agents.scripted_model import ScriptedModel, call
from tests.adapters.openai_agents.test_resume import get_outputs
from tests.core.null_listener import NullListener
from tests.failed_runs import fails_with

from holdfast import App, Approve, Deny, Phase, RunInfo, RunWaiting, Value, ask_person, tool
from holdfast.adapters.call_arguments import UNREADABLE_REASON
from holdfast.adapters.openai_agents import ToolPolicy, durable
from holdfast.adapters.openai_agents.handoffs import AgentGraph
from holdfast.adapters.openai_agents.message_codec import (
    CODEC,
    Final,
    Input,
    SDKReply,
    ToolOutput,
    get_text,
    list_calls,
    load_usage,
    make_input_items,
    make_output,
    make_reply,
    make_response,
    parse_arguments,
    replace_unstorable,
    to_input_items,
)
from holdfast.adapters.openai_agents.model import ModelRecorder
from holdfast.core.errors import DefinitionError, InvalidReply, MissingDefinition, PayloadError
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.loop import PendingCall
from holdfast.core.ports import Ports
from holdfast.core.run.messages import UNREADABLE_ARGUMENTS
from holdfast.core.run.run_events import ReasoningDelta, ReplyAdded, RunEvent, TextDelta
from holdfast.stores.memory import MemoryStore

USAGE = Usage(
    requests=2,
    input_tokens=30,
    output_tokens=7,
    total_tokens=37,
    input_tokens_details=InputTokensDetails.model_construct(cached_tokens=4, cache_write_tokens=0),
    output_tokens_details=OutputTokensDetails(reasoning_tokens=5),
)


def respond(*output: Any, usage: Usage = USAGE) -> ModelResponse:
    return ModelResponse(output=list(output), usage=usage, response_id="resp_1", request_id="req_1")


# -- stored messages ------------------------------------------------------------------------------------------------


def test_a_reply_is_stored_and_comes_back_with_its_usage() -> None:
    reply = make_reply("clerk", respond(assistant_message("hm"), call("c1", "look", city="Lyon")), ["c1"])
    assert (reply.agent, reply.response_id, reply.request_id, reply.unknown) == ("clerk", "resp_1", "req_1", ["c1"])
    assert reply.usage == {
        "requests": 2, "input_tokens": 30, "cached_tokens": 4, "output_tokens": 7, "reasoning_tokens": 5,
    }  # fmt: skip
    stored = CODEC.decode(CODEC.encode(reply))
    again = make_response(stored)
    assert (again.response_id, again.request_id) == ("resp_1", "req_1")
    assert [type(item).__name__ for item in again.output] == ["ResponseOutputMessage", "ResponseFunctionToolCall"]
    assert make_reply("clerk", again, ["c1"]) == reply
    assert (again.usage.total_tokens, again.usage.input_tokens_details.cached_tokens) == (37, 4)
    assert [each.call_id for each in list_calls(again)] == ["c1"]


def test_usage_without_counts_is_zero() -> None:
    usage = load_usage({})
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens) == (0, 0, 0, 0)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (0, 0)


def test_what_cannot_be_stored_or_read_is_refused() -> None:
    message: Any = assistant_message("hm")
    message.content[0].text = object()
    with pytest.raises(PayloadError, match="the reply of the model cannot be stored"):
        make_reply("a", respond(message), [])
    with pytest.raises(PayloadError, match="this adapter cannot read a stored message"):
        CODEC.decode(b'{"item":"of a later version"}')
    with pytest.raises(PayloadError, match="cannot read a stored reply"):
        make_response(SDKReply(agent="a", output=[{"type": "of a later version"}], usage={}))


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([{"type": "message", "content": [{"text": "One "}, {"refusal": "no"}, {"type": "odd"}]}], "One no"),
        ([{"type": "message"}, {"type": "reasoning", "content": [{"text": "hm"}]}], ""),
    ],
)
def test_the_text_of_a_reply_is_that_of_its_messages(output: list[Any], text: str) -> None:
    assert get_text(SDKReply(agent="a", output=output, usage={})) == text


@pytest.mark.parametrize(
    ("given", "parsed"), [('{"a":1}', {"a": 1}), ("", {}), (None, {}), ("{no", "{no"), ("\ud83d", "\ud83d")]
)
def test_arguments_are_data_if_they_are_json(given: Any, parsed: Any) -> None:
    assert parse_arguments(given) == parsed


PICTURE = {"type": "input_image", "image_url": "http://x/y.png"}


@pytest.mark.parametrize(
    ("content", "items"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        ([], [{"role": "user", "content": []}]),
        (["see", PICTURE], [{"role": "user", "content": [{"type": "input_text", "text": "see"}, PICTURE]}]),
        ([PICTURE], [{"role": "user", "content": [PICTURE]}]),
        ([{"role": "user", "content": "x"}], [{"role": "user", "content": "x"}]),
        ([{"type": "function_call_output", "call_id": "c"}], [{"type": "function_call_output", "call_id": "c"}]),
        ([{"type": "input_text", "role": "user"}], [{"type": "input_text", "role": "user"}]),
        ([{"role": "user"}, PICTURE], [{"role": "user", "content": [{"role": "user"}, PICTURE]}]),
    ],
)
def test_a_prompt_is_a_message_of_parts_or_a_list_of_items(content: Any, items: list[Any]) -> None:
    assert make_input_items(content) == items


class Room(BaseModel):
    number: int | None = None


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (7, 7),
        (True, True),
        ([1, "a"], [1, "a"]),
        ((1, 2), "(1, 2)"),
        ([], []),
        ({1: 2}, "{1: 2}"),
        (Room(number=7), "number=7"),
        ([Room(number=7)], "[Room(number=7)]"),
        ([Room(number=7), 1], "[Room(number=7), 1]"),
        (object, str(object)),
        (float("nan"), "nan"),
    ],
)
def test_a_result_is_stored_as_data_only_if_the_model_reads_the_same(value: Any, stored: Any) -> None:
    assert make_output("c", "look", value) == ToolOutput(call_id="c", tool="look", value=stored)


def test_a_typed_result_is_stored_as_the_json_that_the_model_reads() -> None:
    assert make_output("c", "look", [Room(number=7), "é"], typed=True).value == '[{"number":7},"é"]'
    assert make_output("c", "look", "é", typed=True).value == "é"


def test_a_conversation_becomes_the_input_of_the_sdk() -> None:
    reply = make_reply("a", respond(call("c1", "look", city="Lyon")), [])
    asked = make_response(reply).to_input_items()
    result = ToolOutput(call_id="c1", tool="look", value="warm")
    seen = {"type": "function_call_output", "call_id": "c1", "output": "warm"}
    user = {"role": "user", "content": "go"}
    assert to_input_items([Input(items=[user]), reply, result, Final()]) == [user, *asked, seen]
    assert to_input_items([reply]) == asked
    assert to_input_items([reply, Input(items=[user])]) == [*asked, user]
    assert to_input_items([reply, Input(items=[user], includes_reply=True)]) == [user]


def test_half_a_surrogate_pair_is_replaced_wherever_a_model_writes() -> None:
    half, whole = "half \ud83d", "half \ufffd"
    refusal = ResponseOutputRefusal(refusal=half, type="refusal")
    message = ResponseOutputMessage(id="m", content=[refusal], role="assistant", status="completed", type="message")
    thought = ResponseReasoningItem(
        id="r",
        summary=[Summary(text=half, type="summary_text")],
        content=[Content(text=half, type="reasoning_text")],
        type="reasoning",
    )
    bare = ResponseReasoningItem(id="r", summary=[], type="reasoning")
    good = call("c1", "look", city="Lyon")
    bad = function_call("look", '{"city": NaN}', call_id="c2")
    response = respond(assistant_message(half), message, thought, bare, good, bad)
    replace_unstorable(response)
    assert "\ud83d" not in repr([item.model_dump() for item in response.output])
    assert (refusal.refusal, thought.summary[0].text) == (whole, whole)
    assert thought.content is not None
    assert thought.content[0].text == whole
    assert [parse_arguments(each.arguments) for each in list_calls(response)] == [
        {"city": "Lyon"},
        {UNREADABLE_ARGUMENTS: UNREADABLE_REASON},
    ]


# -- the loop -------------------------------------------------------------------------------------------------------


def test_calls_are_read_from_a_history_with_their_results() -> None:
    loop: Any = get_loop(durable(Agent(name="a", model=ScriptedModel("done"))))
    first = make_reply("a", respond(call("c1", "look", city="Lyon"), call("c2", "pay"), call("c3", "pay")), [])
    last = make_reply("a", respond(assistant_message("hm"), call("c4", "look", city="Faro")), [])
    history = [
        Input(items=[{"role": "user", "content": "go"}]),
        first,
        ToolOutput(call_id="c1", tool="look", value={"warm": 1}, error=True),
        Input(items=[{"type": "function_call_output", "call_id": "c2", "output": "by the SDK"}]),
        last,
    ]
    pending = [(each.call_id, each.tool, each.arguments) for each in loop.pending_calls(history)]
    assert pending == [("c4", "look", {"city": "Faro"})]
    assert loop.pending_calls(history[:-1]) == loop.pending_calls([]) == ()
    results = {"c4": ToolOutput(call_id="c4", tool="look", value="hot")}
    finished = loop.finished_calls(history, results)
    assert [(each.call_id, each.tool, each.arguments, each.content, each.error) for each in finished] == [
        ("c1", "look", {"city": "Lyon"}, {"warm": 1}, True),
        ("c2", "pay", {}, "by the SDK", False),
        ("c4", "look", {"city": "Faro"}, "hot", False),
    ]
    assert len(loop.finished_calls(history)) == 2


def test_a_resolution_is_a_result() -> None:
    loop: Any = get_loop(durable(Agent(name="a", model=ScriptedModel("done"))))
    call_ = PendingCall(call_id="c1", tool="pay", arguments={})
    assert loop.make_result(call_, {1}, error=True) == ToolOutput(call_id="c1", tool="pay", value="{1}", error=True)
    assert loop.make_result(call_, "paid") == ToolOutput(call_id="c1", tool="pay", value="paid")
    assert loop.make_message("hi") == Input(items=[{"role": "user", "content": "hi"}])


class Strict(BaseModel):
    city: str


@pytest.mark.parametrize(
    ("kind", "output", "stored"),
    [
        (None, "text", "text"),
        (Strict, Strict(city="Lyon"), {"city": "Lyon"}),
        (AgentOutputSchema(Strict), Strict(city="Lyon"), {"city": "Lyon"}),
    ],
)
def test_an_output_is_stored_by_the_type_that_the_agent_declares(kind: Any, output: Any, stored: Any) -> None:
    loop: Any = get_loop(durable(Agent(name="a", model=ScriptedModel("done"), output_type=kind)))
    assert loop.dump_output(output) == stored
    assert loop.load_output(stored) == output


# -- agents ---------------------------------------------------------------------------------------------------------


def test_the_agents_of_a_graph_are_found_by_name() -> None:
    clerk: Agent[Any] = Agent(name="clerk")
    guide: Agent[Any] = Agent(name="guide", handoffs=[clerk])
    desk: Agent[Any] = Agent(name="desk", handoffs=[clerk, handoff(guide)])
    graph = AgentGraph(desk, {})
    assert [agent.name for agent in graph] == ["desk", "clerk", "guide"]
    assert graph.find(None) is desk
    assert graph.find("guide") is guide
    with pytest.raises(MissingDefinition, match="the active agent of the run is 'cook'"):
        graph.find("cook")


@pytest.mark.parametrize("policy", [ToolPolicy(approval=True), ToolPolicy("pure", retry=None)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_handoff_may_have_an_effect_and_no_approval(policy: ToolPolicy, wrapped: bool) -> None:
    clerk: Agent[Any] = Agent(name="clerk")
    desk: Agent[Any] = Agent(name="desk", handoffs=[handoff(clerk) if wrapped else clerk])
    if policy.approval is False:
        assert durable(desk, tools={"transfer_to_clerk": policy}).name == "desk"
    else:
        with pytest.raises(DefinitionError, match="transfer_to_clerk is a handoff"):
            durable(desk, tools={"transfer_to_clerk": policy})


def test_a_shell_of_the_provider_is_recorded_with_its_reply_and_a_local_one_is_refused() -> None:
    assert durable(Agent(name="a", tools=[ShellTool(environment={"type": "container_auto"})])).name == "a"

    async def run(request: Any) -> str:
        return ""

    with pytest.raises(DefinitionError, match="agent a: calls of a ShellTool cannot be recorded"):
        durable(Agent(name="a", tools=[ShellTool(executor=run)]))


def test_an_agent_has_a_name() -> None:
    with pytest.raises(DefinitionError, match="the agent has no name"):
        durable(Agent(name=""))
    assert durable(Agent(name=""), name="b").name == durable(Agent(name="a"), name="b").name == "b"
    with pytest.raises(DefinitionError, match="an agent of the OpenAI Agents SDK"):
        durable("a")  # type: ignore[arg-type]


async def test_a_tool_of_holdfast_that_asks_for_an_order_is_refused() -> None:
    @tool(sequential=True)
    async def pay() -> str:
        return "paid"

    class Provider:
        async def tools(self, info: RunInfo) -> Any:
            return [pay]

    async with App([durable(Agent(name="a", model=ScriptedModel("done")))], "memory:", tools=[Provider()]) as app:
        with fails_with(DefinitionError, match="tool pay is sequential"):
            await app.run("a", "go")


@pytest.mark.parametrize("kind", ["run", "agent"])
async def test_every_hook_gets_the_agent_and_the_tool_of_their_author(kind: str) -> None:
    seen: list[Any] = []

    def note(name: str) -> Any:
        async def hook(context: Any, agent: Any, *more: Any) -> None:
            seen.append((name, agent is desk, *(each is look for each in more if isinstance(each, FunctionTool))))

        return hook

    @function_tool
    async def look() -> str:
        return "seen"

    hooks: Any = RunHooks[Any]() if kind == "run" else AgentHooks[Any]()
    names = ["on_llm_start", "on_llm_end", "on_tool_start", "on_tool_end"]
    ends = ["on_agent_start", "on_agent_end"] if kind == "run" else ["on_start", "on_end"]
    for name in (*names, *ends):
        setattr(hooks, name, note(name))
    model = ScriptedModel([call("c1", "look")], "done")
    desk: Agent[Any] = Agent(name="desk", model=model, tools=[look], hooks=hooks if kind == "agent" else None)
    async with App([durable(desk, hooks=hooks if kind == "run" else None)], "memory:") as app:
        await app.run("desk", "go")
    turn = [("on_llm_start", True), ("on_llm_end", True)]
    calls = [("on_tool_start", True, True), ("on_tool_end", True, True)]
    assert seen == [(ends[0], True), *turn, *calls, *turn, (ends[1], True)]


# -- tools of holdfast ----------------------------------------------------------------------------------------------


async def test_tools_of_holdfast_wait_fail_and_are_denied_as_in_other_loops() -> None:
    made: list[str] = []

    @tool(approval=True)
    async def pay(city: str) -> str:
        made.append(city)
        return f"paid in {city}"

    @tool(on_error="raise")
    async def burn() -> str:
        raise LookupError("no fire")

    class Provider:
        async def tools(self, info: RunInfo) -> Any:
            return [pay, burn, ask_person]

    steps = [
        [call("c1", "pay", city="Lyon"), call("c2", "pay", city="Faro"), call("c3", "ask_person", question="Why?")],
        [call("c4", "pay", town="Lyon")],
        [call("c5", "burn")],
    ]
    model = ScriptedModel(*steps)
    async with App([durable(Agent(name="a", model=model))], "memory:", tools=[Provider()], worker=False) as app:
        with pytest.raises(RunWaiting) as stopped:
            await app.run("a", "go", run_id="r")
        assert sorted((each.call_id, each.kind) for each in stopped.value.calls) == [
            ("c1", "approval"),
            ("c2", "approval"),
            ("c3", "question"),
        ]
        with pytest.raises(DefinitionError, match="city: is missing"):
            await app.answer("r", "c1", Approve(arguments={"town": "Nice"}))
        await app.answer("r", "c1", Approve(arguments={"city": "Nice"}))
        await app.answer("r", "c2", Deny())
        await app.answer("r", "c3", Value("because"))
        with fails_with(UserError, match="tool burn failed, and its on_error ends the run"):
            await app.resume("r")
    outputs = get_outputs(model.requests[-1])
    assert (outputs["c1"], outputs["c2"], outputs["c3"]) == ("paid in Nice", "The call was denied.", "because")
    assert outputs["c4"].startswith("The arguments do not fit: ")
    assert made == ["Nice"]


# -- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["reply", "output"])
async def test_the_step_of_an_answer_is_counted_once_wherever_its_process_dies(place: str) -> None:
    deaths = CrashSimulator(place)

    class Listener(NullListener):
        async def on_event(self, info: RunInfo, event: RunEvent) -> None:
            if isinstance(event, ReplyAdded):
                await deaths.reach("reply")

        async def on_output(self, info: RunInfo, output: Any) -> None:
            await deaths.reach("output")

    model = ScriptedModel("done")
    result = await deaths.run(durable(Agent(name="a", model=model)), ports=Ports(listener=Listener()))
    assert (result.output, result.steps, len(model.requests)) == ("done", 1, 1)


async def test_an_approved_call_with_a_result_does_not_wait_again_after_a_crash() -> None:
    deaths = CrashSimulator("look")

    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    @function_tool(needs_approval=True)
    async def look() -> str:
        await deaths.reach("look", results=1)
        return "seen"

    model = ScriptedModel([call("c1", "pay"), call("c2", "look")], "done")
    policies = {"pay": ToolPolicy(), "look": ToolPolicy("pure")}
    agent = durable(Agent(name="a", model=model, tools=[pay, look]), tools=policies)
    store = MemoryStore()
    async with App([agent], store, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id=RUN)
        for call_id in ("c1", "c2"):
            await app.answer(RUN, call_id, Approve())
    assert (await deaths.resume(agent, store=store)).output == "done"
    assert get_outputs(model.requests[1]) == {"c1": "paid", "c2": "seen"}


@pytest.mark.parametrize("behavior", ["stop_on_first_tool", {"stop_at_tool_names": ["pay"]}])
async def test_a_result_that_is_the_output_is_found_again_after_a_crash(behavior: Any) -> None:
    deaths = CrashSimulator("output")

    class Listener(NullListener):
        async def on_output(self, info: RunInfo, output: Any) -> None:
            await deaths.reach("output")

    @function_tool
    async def pay(city: str) -> str:
        deaths.passed.append(f"pay {city}")
        return f"paid {city}"

    model = ScriptedModel([call("c1", "pay", city="Lyon"), call("c2", "pay", city="Faro")], "never")
    agent = Agent[Any](name="a", model=model, tools=[pay], tool_use_behavior=behavior)
    result = await deaths.run(durable(agent), ports=Ports(listener=Listener()))
    assert (result.output, result.steps, result.usage.tool_calls) == ("paid Lyon", 1, 2)
    assert (len(model.requests), sorted(deaths.passed)) == (1, ["output", "output", "pay Faro", "pay Lyon"])
    kinds = [type(message).__name__ for message in result.messages]
    assert kinds == ["Input", "SDKReply", "ToolOutput", "ToolOutput", "Final"]


async def test_the_history_has_each_result_as_it_was_recorded() -> None:
    @function_tool
    async def pay(city: str) -> dict[str, str]:
        return {"paid": city}

    model = ScriptedModel([call("c1", "pay", city="Lyon")], "done")
    async with App([durable(Agent(name="a", model=model, tools=[pay]))], "memory:") as app:
        result = await app.run("a", "go")
    assert result.messages[2] == ToolOutput(call_id="c1", tool="pay", value={"paid": "Lyon"})
    assert [type(message).__name__ for message in result.messages] == ["Input", "SDKReply", "ToolOutput", "SDKReply"]


async def test_two_calls_with_one_id_are_refused() -> None:
    @function_tool
    async def look() -> str:
        raise AssertionError("it is not called")

    model = ScriptedModel([call("c1", "look"), call("c1", "look")], "done")
    async with App([durable(Agent(name="a", model=model, tools=[look]))], "memory:") as app:
        with fails_with(InvalidReply, match="two tool calls of one reply share the id c1"):
            await app.run("a", "go")


async def test_instructions_and_inputs_of_a_phase_come_before_the_prompt() -> None:
    model = ScriptedModel("done")
    agent = replace(
        durable(Agent(name="a", model=model)),
        instructions="Be brief.",
        phases=[Phase(name="one", prompt="first $prompt"), Phase(name="two", prompt="then $one")],
    )
    async with App([agent], "memory:") as app:
        await app.run("a", "go")
    told = {"role": "developer", "content": "Be brief."}
    assert model.requests == [
        [told, {"role": "user", "content": "first go"}],
        [told, {"role": "user", "content": "then done"}],
    ]


# -- streams --------------------------------------------------------------------------------------------------------


def make_event_response(output: list[Any], usage: ResponseUsage | None) -> Response:
    return Response.model_construct(id="resp_1", model="m1", output=output, usage=usage)


class StreamingModel(ScriptedModel):
    """Streams these events."""

    def __init__(self, *events: Any) -> None:
        super().__init__()
        self.events = events

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async def stream() -> AsyncIterator[Any]:
            for event in self.events:
                yield event

        return stream()


class Deltas(NullListener):
    """Keeps the parts of replies."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_event(self, info: RunInfo, event: RunEvent) -> None:
        if isinstance(event, TextDelta | ReasoningDelta):
            self.seen.append(f"{event.type} {event.text}")


async def test_a_stream_is_heard_and_its_items_and_usage_are_kept() -> None:
    usage = ResponseUsage(
        input_tokens=30,
        input_tokens_details=InputTokensDetails.model_construct(cached_tokens=4, cache_write_tokens=0),
        output_tokens=7,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=5),
        total_tokens=37,
    )
    message = assistant_message("hello")
    model = StreamingModel(
        ResponseReasoningTextDeltaEvent.model_construct(delta="hm"),
        ResponseTextDeltaEvent.model_construct(delta="hel"),
        ResponseTextDeltaEvent.model_construct(delta="lo"),
        ResponseOutputItemDoneEvent.model_construct(item=message, type="response.output_item.done"),
        ResponseCompletedEvent.model_construct(response=make_event_response([], usage)),
    )
    heard = Deltas()
    agent = durable(Agent(name="a", model=model), stream=True)
    async with App([agent], "memory:", listener=heard) as app:
        result = await app.run("a", "go")
    assert result.output == "hello", "some providers send the items of a response in the stream only"
    used = result.usage
    assert (used.requests, used.input_tokens, used.output_tokens, used.reasoning_tokens) == (1, 30, 7, 5)
    assert heard.seen == ["reasoning_delta hm", "text_delta hel", "text_delta lo"]
    model.events = (ResponseCompletedEvent.model_construct(response=make_event_response([message], None)),)
    async with App([agent], "memory:") as app:
        result = await app.run("a", "go")
    assert (result.output, result.usage.requests, result.usage.input_tokens) == ("hello", 1, 0)


async def test_a_stream_that_the_provider_gives_up_fails_the_run() -> None:
    gave_up = ResponseErrorEvent(message="overloaded", sequence_number=1, type="error")
    agent = durable(Agent(name="a", model=StreamingModel(gave_up)), stream=True)
    async with App([agent], "memory:") as app:
        with fails_with(ModelBehaviorError, match="the model ended its response with error: .*overloaded"):
            await app.run("a", "go")


def test_a_recorded_model_is_asked_by_its_run_only() -> None:
    class Advising(ScriptedModel):
        model = "m1"

        def get_retry_advice(self, request: Any) -> Any:
            return f"advice for {request}"

    replies: Any = None  # no reply is asked for
    recorded: Any = ModelRecorder(replies, None).wrap(Advising())
    assert recorded.get_retry_advice("r") == "advice for r"
    assert recorded._supports_default_prompt_cache_key() is False
    assert (recorded._name, ModelRecorder(replies, None).wrap(Advising(), "m2")._name) == ("m1", "m2")  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="use the option stream"):
        recorded.stream_response()


async def test_the_error_of_a_holdfast_tool_is_reported_to_the_model() -> None:
    @tool
    async def burn() -> str:
        raise LookupError("no fire")

    model = ScriptedModel([call("c1", "burn")], "done")
    agent = replace(durable(Agent(name="a", model=model)), tools=[burn])
    async with App([agent], "memory:") as app:
        assert (await app.run("a", "go")).output == "done"
    [output] = [item["output"] for item in model.requests[1] if item.get("type") == "function_call_output"]
    assert output == "LookupError: no fire"
