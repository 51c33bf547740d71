"""`interrupt()` in a durable graph: the run waits, and is answered by the id of the interrupt from any process."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from tests.adapters.langgraph.crash import RUN, Crash
from tests.adapters.langgraph.graphs import State
from tests.adapters.langgraph.test_durable import Visits, build_line, get_tool_texts

from holdfast import App, Approve, Deny, RunWaiting, Value
from holdfast.adapters.langgraph import ToolPolicy, durable
from holdfast.core.agents.agent import Agent
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import Answer
from holdfast.results import WaitingCall


class Story:
    """One run; each method is another process."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self._agent, self._url = agent, f"sqlite:{folder / 'runs.db'}"

    async def start(self) -> None:
        """Run until the run waits."""
        async with App([self._agent], self._url, worker=False) as app:
            with pytest.raises(RunWaiting):
                await app.run(self._agent, "", inputs={}, run_id=RUN)

    async def list_calls(self) -> Sequence[WaitingCall]:
        async with App([self._agent], self._url, worker=False) as app:
            return await app.pending()

    async def list_questions(self) -> dict[Any, WaitingCall]:
        """Return the calls that wait, by the value of their interrupt."""
        return {call.arguments: call for call in await self.list_calls()}

    async def answer(self, call: WaitingCall, answer: Answer) -> None:
        async with App([self._agent], self._url, worker=False) as app:
            await app.answer(RUN, call.call_id, answer)

    async def finish(self) -> Any:
        async with App([self._agent], self._url) as app:
            return (await app.result(RUN)).output

    async def continue_until_it_waits(self) -> None:
        async with App([self._agent], self._url, worker=False) as app:
            with pytest.raises(RunWaiting):
                await app.resume(RUN)


async def test_a_question_is_answered_from_another_process(tmp_path: Path) -> None:
    async def ask(state: Visits) -> Visits:
        return {"places": [interrupt("where to?")]}

    story = Story(durable(build_line(ask).compile(name="visits")), tmp_path)
    await story.start()
    [(question, call)] = (await story.list_questions()).items()
    assert (question, call.kind, call.reason) == ("where to?", "question", "where to?")
    await story.answer(call, Value("Lyon"))
    assert await story.finish() == {"places": ["Lyon"]}


async def test_a_denied_question_is_a_rejection(tmp_path: Path) -> None:
    async def ask(state: Visits) -> Visits:
        return {"places": [interrupt("where to?")["message"]]}

    story = Story(durable(build_line(ask).compile(name="visits")), tmp_path)
    await story.start()
    [call] = (await story.list_questions()).values()
    await story.answer(call, Deny(reason="nowhere"))
    assert await story.finish() == {"places": ["The call was denied: nowhere."]}


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        (Approve(), {"type": "approve"}),
        (Approve(arguments={"cents": 5}), {"type": "edit", "edited_action": {"name": "pay", "args": {"cents": 5}}}),
        (Deny(reason="no"), {"type": "reject", "message": "The call was denied: no."}),
    ],
)
async def test_a_request_of_langchains_middleware_about_one_call_is_an_approval(
    tmp_path: Path, answer: Answer, decision: dict[str, Any]
) -> None:
    request = {"action_requests": [{"name": "pay", "args": {"cents": 7}, "description": "Pay?"}], "review_configs": []}

    async def ask(state: Visits) -> Visits:
        return {"places": [interrupt(request)["decisions"]]}

    story = Story(durable(build_line(ask).compile(name="visits")), tmp_path)
    await story.start()
    [call] = await story.list_calls()
    assert (call.kind, call.tool, call.arguments, call.reason) == ("approval", "pay", {"cents": 7}, "Pay?")
    await story.answer(call, answer)
    assert await story.finish() == {"places": [[decision]]}


@pytest.mark.parametrize(
    ("configs", "arguments", "error"),
    [
        ([], {"cents": "many"}, "cents: is not of type integer"),
        ([{"action_name": "pay", "allowed_decisions": ["approve", "reject"]}], {"cents": 5}, "cents: is not 7"),
    ],
)
async def test_edited_arguments_of_langchains_middleware_that_do_not_fit_are_refused(
    tmp_path: Path, configs: list[Any], arguments: dict[str, Any], error: str
) -> None:
    request = {"action_requests": [{"name": "pay", "args": {"cents": 7}}], "review_configs": configs}

    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        return "paid"

    async def ask(state: Visits) -> Visits:
        return {"places": [interrupt(request)["decisions"]]}

    builder = build_line(ask)
    builder.add_node("tools", ToolNode([pay]))
    story = Story(durable(builder.compile(name="visits")), tmp_path)
    await story.start()
    [call] = await story.list_calls()
    with pytest.raises(DefinitionError, match=error):
        await story.answer(call, Approve(arguments=arguments))
    await story.answer(call, Approve())
    assert await story.finish() == {"places": [[{"type": "approve"}]]}


async def test_each_call_of_a_request_about_several_is_decided_by_itself(tmp_path: Path) -> None:
    actions = [{"name": "pay", "args": {"cents": cents}} for cents in (1, 2, 3)]

    async def ask(state: Visits) -> Visits:
        return {"places": [interrupt({"action_requests": actions, "review_configs": []})["decisions"]]}

    story = Story(durable(build_line(ask).compile(name="visits")), tmp_path)
    await story.start()
    calls = {call.arguments["cents"]: call for call in await story.list_calls()}
    assert [(call.kind, call.tool) for call in calls.values()] == [("approval", "pay")] * 3
    await story.answer(calls[3], Deny(reason="too much"))
    await story.continue_until_it_waits()
    assert [call.arguments["cents"] for call in await story.list_calls()] == [1, 2]
    await story.answer(calls[1], Approve())
    await story.answer(calls[2], Approve(arguments={"cents": 20}))
    assert await story.finish() == {
        "places": [
            [
                {"type": "approve"},
                {"type": "edit", "edited_action": {"name": "pay", "args": {"cents": 20}}},
                {"type": "reject", "message": "The call was denied: too much."},
            ]
        ]
    }


async def test_requests_of_langchains_middleware_about_each_call_are_answered_in_any_order(tmp_path: Path) -> None:
    made: list[str] = []

    @tool
    async def pay(cents: int) -> str:
        """Pay, if a person agrees."""
        if f"asked {cents}" not in made:
            made.append(f"asked {cents}")
        request = {"type": "tool_approval", "tool_call_id": "?", "name": "pay", "args": {"cents": cents}}
        decision = interrupt(request)
        made.append(f"answered {cents}")
        return f"{cents} {decision['type']}"

    async def model(state: State) -> State:
        calls = [{"name": "pay", "args": {"cents": cents}, "id": f"p{cents}"} for cents in (1, 2)]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    graph = build_line(model, ToolNode([pay]), state=State).compile(name="agent")
    story = Story(durable(graph), tmp_path)
    await story.start()
    calls = {call.arguments["cents"]: call for call in await story.list_calls()}
    assert [(call.kind, call.tool) for call in calls.values()] == [("approval", "pay")] * 2
    await story.answer(calls[2], Deny())
    await story.continue_until_it_waits()
    assert [call.arguments["cents"] for call in await story.list_calls()] == [1]
    await story.answer(calls[1], Approve())
    assert get_tool_texts(await story.finish()) == ["1 approve", "2 reject"]
    assert made == ["asked 1", "asked 2", "answered 2", "answered 1"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Approve(), "paid 7"),
        (Approve(arguments={"cents": 5}), "paid 5"),
        (Deny(reason="no"), "The call was denied: no."),
    ],
)
async def test_a_call_of_a_tool_node_waits_for_its_approval(tmp_path: Path, answer: Answer, text: str) -> None:
    made: list[str] = []

    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        made.append("pay")
        return f"paid {cents}"

    @tool
    async def look() -> str:
        """Look."""
        made.append("look")
        return "seen"

    async def model(state: State) -> State:
        calls = [{"name": "pay", "args": {"cents": 7}, "id": "p"}, {"name": "look", "args": {}, "id": "l"}]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    graph = build_line(model, ToolNode([pay, look]), state=State).compile(name="agent")
    story = Story(
        durable(graph, tools={"pay": ToolPolicy(approval=lambda arguments: arguments["cents"] > 5)}), tmp_path
    )
    await story.start()
    assert made == ["look"]
    [call] = await story.list_calls()
    assert (call.call_id, call.kind, call.tool, call.arguments) == ("p", "approval", "pay", {"cents": 7})
    await story.answer(call, answer)
    assert get_tool_texts(await story.finish()) == [text, "seen"]
    assert made == (["look", "pay"] if isinstance(answer, Approve) else ["look"])


async def test_answers_to_parallel_interrupts_reach_the_nodes_that_asked(tmp_path: Path) -> None:
    def make_node(name: str) -> Any:
        async def ask(state: Visits) -> Visits:
            return {"places": [f"{name}: {interrupt(name)}"]}

        return ask

    builder = StateGraph(Visits)
    for name in ("a", "b", "c"):
        builder.add_node(name, make_node(name))
        builder.add_edge(START, name)
    story = Story(durable(builder.compile(name="visits")), tmp_path)
    await story.start()
    questions = await story.list_questions()
    await story.answer(questions["c"], Value(3))
    await story.continue_until_it_waits()
    assert set(await story.list_questions()) == {"a", "b"}
    await story.answer(questions["b"], Value(2))
    await story.answer(questions["a"], Value(1))
    assert await story.finish() == {"places": ["a: 1", "b: 2", "c: 3"]}


async def test_a_node_of_a_subgraph_may_ask_twice(tmp_path: Path) -> None:
    async def ask(state: Visits) -> Visits:
        return {"places": [interrupt("first"), interrupt("second")]}

    graph = build_line(build_line(ask).compile()).compile(name="visits")
    story = Story(durable(graph), tmp_path)
    await story.start()
    for question in ("first", "second"):
        questions = await story.list_questions()
        assert set(questions) == {question}
        await story.answer(questions[question], Value(f"{question} answer"))
        if question == "first":
            await story.continue_until_it_waits()
    assert await story.finish() == {"places": ["first answer", "second answer"]}


async def test_a_once_tool_that_asks_is_called_again_with_the_answer_and_its_siblings_are_not(tmp_path: Path) -> None:
    made: list[str] = []

    @tool
    async def pay(amount: int) -> str:
        """Pay, if a person agrees."""
        made.append("asked")
        answer = interrupt(f"pay {amount}?")
        made.append("paid")
        return f"paid, {answer}"

    @tool
    async def look() -> str:
        """Look."""
        made.append("looked")
        return "seen"

    async def model(state: State) -> State:
        calls = [{"name": "pay", "args": {"amount": 7}, "id": "p"}, {"name": "look", "args": {}, "id": "l"}]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    graph = build_line(model, ToolNode([pay, look]), state=State).compile(name="agent")
    story = Story(durable(graph), tmp_path)
    await story.start()
    await story.answer((await story.list_questions())["pay 7?"], Value("go ahead"))
    assert get_tool_texts(await story.finish()) == ["paid, go ahead", "seen"]
    assert Counter(made) == {"asked": 2, "looked": 1, "paid": 1}


async def test_an_answer_that_was_read_survives_the_crash_of_its_reader(tmp_path: Path) -> None:
    crash = Crash()

    async def ask(state: Visits) -> Visits:
        answer = interrupt("where to?")
        await crash.reach("answered")
        return {"places": [answer]}

    agent = durable(build_line(ask).compile(name="visits"), input=lambda info: {"places": []})
    with pytest.raises(RunWaiting) as waiting:
        await crash.run(agent)
    await crash.answer(waiting.value.calls[0].call_id, Value("Lyon"))
    result = await crash.resume(agent, "answered")
    assert (crash.passed, result.output) == (["answered", "answered"], {"places": ["Lyon"]})
