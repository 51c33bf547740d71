"""Forks with an edited prompt, message or result, on each durable store."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.store_kinds import STORES

from holdfast import Agent, App, Phase, Reply, ToolResult, User, WorkerSettings, current_call, tool
from holdfast.checkpoint.errors import CheckpointError
from holdfast.core import Message
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError, PayloadError


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with STORES[request.param].open_empty(tmp_path_factory.mktemp("forks")) as url:
        yield url


class Clerk:
    """Weighs two parcels in one step, stamps one in the next, then says what it has read."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.tools: list[Tool] = [tool(effect="once")(self.weigh), tool(effect="pure")(self.stamp)]
        self.agent = Agent(name="clerk", model=self.reply, tools=self.tools)

    def make_app(self, url: str, *agents: Agent[Any]) -> App:
        return App([self.agent, *agents], url, worker=WorkerSettings(handle_signals=False))

    async def weigh(self, parcel: str) -> int:
        self.calls.append(f"weigh {parcel}")
        return len(parcel)

    async def stamp(self) -> str:
        self.calls.append("stamp")
        return "stamped"

    async def reply(self, messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        replies = sum(isinstance(message, Reply) for message in messages)
        if replies == 0:
            return tool_reply(call("c1", "weigh", parcel="a"), call("c2", "weigh", parcel="bb"))
        if replies == 1:
            return tool_reply(call("c1", "stamp"))  # an id of the reply before
        read = [
            str(message.content if isinstance(message, ToolResult) else message.text)
            for message in messages
            if isinstance(message, User | ToolResult)
        ]
        return Reply(text=" | ".join(read))


async def get_answer(app: App, run_id: str) -> tuple[str, int]:
    result = await app.result(run_id)
    return str(result.output), result.steps


async def test_a_fork_with_an_edited_result_repeats_nothing_before_it(url: str) -> None:
    clerk = Clerk()
    async with clerk.make_app(url) as app:
        await app.run("clerk", "go", run_id="results")
        assert sorted(clerk.calls) == ["stamp", "weigh a", "weigh bb"]
        clerk.calls.clear()
        first = await app.fork("results", 1, results={"c2": {"grams": 7}})
        assert await get_answer(app, first) == ("go | 1 | {'grams': 7} | stamped", 3)
        assert clerk.calls == ["stamp"], "the results of the edited step are taken, later steps are run"
        second = await app.fork("results", 2, results={"c1": "torn"})
        assert await get_answer(app, second) == ("go | 1 | 2 | torn", 3)
        assert clerk.calls == ["stamp"]
        old = await app.get("results")
        forks = [await app.get(first), await app.get(second)]
        assert [(fork.forked_from, fork.forked_at, dict(fork.labels)) for fork in forks] == [
            ("results", 1, {}),
            ("results", 2, {}),
        ]
        assert {run.run_id for run in (await app.list(forked_from="results")).runs} == {first, second}
        assert [fork.usage.requests for fork in forks] == [old.usage.requests] * 2, "each step counts once"
        assert await get_answer(app, "results") == ("go | 1 | 2 | stamped", 3)


async def test_a_fork_with_an_edited_message_runs_the_step_again(url: str) -> None:
    clerk = Clerk()
    async with clerk.make_app(url) as app:
        await app.run("clerk", "go", run_id="messages")
        prompt = await app.fork("messages", 1, edited="stop")
        assert await get_answer(app, prompt) == ("stop | 1 | 2 | stamped", 3)
        clerk.calls.clear()
        steered = await app.fork("messages", 2, edited="hurry")
        assert await get_answer(app, steered) == ("go | 1 | 2 | hurry | stamped", 3)
        assert clerk.calls == ["stamp"]
        again = await app.fork(steered, 2, edited="slowly")
        assert await get_answer(app, again) == ("go | 1 | 2 | slowly | stamped", 3)
        added = await app.fork("messages", 4, edited=["and", {"text": "then?"}])
        assert await get_answer(app, added) == ("go | 1 | 2 | stamped | and then?", 4)


async def test_a_fork_of_a_child_run_has_no_parent(url: str) -> None:
    clerk = Clerk()

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(clerk.agent, "go")).output)

    model = ScriptedModel(tool_reply(call("1", "delegate")), "done")
    async with clerk.make_app(url, Agent(name="boss", model=model, tools=[delegate])) as app:
        await app.run("boss", "go", run_id="boss")
        [child] = (await app.list(parent="boss")).runs
        fork = await app.fork(child.run_id, 1, results={"c2": 9})
        assert await get_answer(app, fork) == ("go | 1 | 9 | stamped", 3)
        assert (await app.get(fork)).parent is None
        assert [run.run_id for run in (await app.list(parent="boss")).runs] == [child.run_id]


async def test_a_fork_that_is_not_possible_says_why(url: str) -> None:
    clerk = Clerk()
    phases = [Phase(name="one"), Phase(name="two")]
    team = Agent(name="team", model=clerk.reply, tools=clerk.tools, phases=phases)
    async with clerk.make_app(url, team) as app:
        await app.run("clerk", "go", run_id="refused")
        with pytest.raises(CheckpointError, match="step 1 has no result of c9; it has results of c1, c2"):
            await app.fork("refused", 1, results={"c9": 1})
        with pytest.raises(CheckpointError, match="step 3 has no result of c1; it has results of no call"):
            await app.fork("refused", 3, results={"c1": 1})
        with pytest.raises(CheckpointError, match="cannot be forked at step 9: its journal has 1, 2, 3"):
            await app.fork("refused", 9, edited="x")
        with pytest.raises(DefinitionError, match="an edited message or edited results"):
            await app.fork("refused", 1, edited="x", results={"c1": 1})
        with pytest.raises(PayloadError):
            await app.fork("refused", 1, results={"c1": object()})
        assert len((await app.list(forked_from="refused")).runs) == 0
        assert (await app.run("team", "go", run_id="phases")).steps == 6
        with pytest.raises(CheckpointError, match="step 4 begins a phase"):
            await app.fork("phases", 4, edited="x")
        second = await app.fork("phases", 5, edited="in the second phase")
        assert "in the second phase" in (await get_answer(app, second))[0]
