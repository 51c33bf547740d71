"""A deploy that removes a node while a run was about to execute it."""

from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt
from tests.adapters.langgraph.crash import RUN
from tests.adapters.langgraph.test_durable import Visits, build_line

from holdfast import App, RunWaiting, Value
from holdfast.adapters.langgraph import durable
from holdfast.core.agents.agent import Agent, MissingTools
from holdfast.runtime.reading.run_views import RunDetails


async def ask(state: Visits) -> Visits:
    return {"places": [interrupt("where to?")]}


async def stay(state: Visits) -> Visits:
    return {"places": ["home"]}


def send_ask(state: Visits) -> list[Send]:
    return [Send("ask", {"places": []})]


def build(*names: str, sends: bool = False) -> StateGraph[Any]:
    """Return a graph of nodes beside each other."""
    builder: StateGraph[Any] = StateGraph(Visits)
    for name in names:
        builder.add_node(name, ask if name == "ask" else stay)
        if not sends:
            builder.add_edge(START, name)
    if sends:
        builder.add_conditional_edges(START, send_ask, ["ask"] if "ask" in names else None)
    return builder


GRAPHS = {
    "a node": (build("ask", "stay"), build("stay"), "'ask'"),
    "a node of Send": (build("ask", "stay", sends=True), build("stay", sends=True), "'ask'"),
    "a node of a subgraph": (
        build_line(build("ask", "stay").compile()),
        build_line(build("stay").compile()),
        "'node-0.ask'",
    ),
}


async def wait_and_deploy(before: Agent[Any], after: Agent[Any], folder: Path) -> RunDetails:
    """Return the run after a worker with another graph has taken it."""
    url = f"sqlite:{folder / 'runs.db'}"
    async with App([before], url, worker=False) as app:
        with pytest.raises(RunWaiting) as waiting:
            await app.run(before, "", inputs={}, run_id=RUN)
        await app.answer(RUN, waiting.value.calls[0].call_id, Value("Lyon"))
    async with App([after], url) as app:
        await app.recover()
        return await app.get(RUN)


@pytest.mark.parametrize("case", GRAPHS)
@pytest.mark.parametrize("policy", ["park", "report"])
async def test_a_removed_node_parks_the_run(tmp_path: Path, case: str, policy: MissingTools) -> None:
    before, after, name = GRAPHS[case]
    parked = await wait_and_deploy(
        durable(before.compile(name="visits")), durable(after.compile(name="visits"), missing_tools=policy), tmp_path
    )
    assert (parked.status, parked.reason) == (
        "parked",
        f"removed node: the run was about to use [{name}], which its agent no longer has",
    )


async def test_a_removed_node_leaves_the_run_to_a_worker_that_has_it(tmp_path: Path) -> None:
    before, after, _ = GRAPHS["a node"]
    agent = durable(before.compile(name="visits"))
    left = await wait_and_deploy(agent, durable(after.compile(name="visits")), tmp_path)
    assert left.status == "interrupted"
    async with App([agent], f"sqlite:{tmp_path / 'runs.db'}", worker=False) as app:
        assert (await app.resume(RUN)).output == {"places": ["Lyon", "home"]}


async def test_a_node_that_the_run_has_passed_may_be_removed(tmp_path: Path) -> None:
    before, after = build_line(stay, ask), StateGraph(Visits)
    after.add_node("node-1", ask)
    after.add_edge(START, "node-1")
    agent = durable(after.compile(name="visits"), missing_tools="park")
    done = await wait_and_deploy(durable(before.compile(name="visits")), agent, tmp_path)
    assert done.status == "done"
