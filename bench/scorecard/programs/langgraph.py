"""LangGraph: a node for each effect, `interrupt` in a node of its own, `durability="sync"`, on SQLite."""

import asyncio
import itertools
import operator
from typing import Annotated, Any, TypedDict

from bench.scorecard.ledger import BATCH, EFFECTS, LAST, Ledger
from bench.scorecard.programs.command import Place, main, sleep_for_turn
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class Results(TypedDict):
    results: Annotated[list[str], operator.add]


def make_graph(ledger: Ledger, saver: Any) -> Any:
    builder: Any = StateGraph(Results)

    def add_effect(effect: str) -> None:
        async def node(state: Results) -> dict[str, list[str]]:
            if effect in BATCH:
                await sleep_for_turn(effect)
            return {"results": [ledger.perform(effect)]}

        builder.add_node(effect, node)

    async def ask(state: Results) -> dict[str, list[str]]:
        interrupt("approve the payment")
        return {"results": []}

    for effect in EFFECTS:
        add_effect(effect)
    builder.add_node("ask", ask)
    line = [START, *EFFECTS[:5], "ask", "pay", "model-3"]
    for before, after in itertools.pairwise(line):
        builder.add_edge(before, after)
    for effect in BATCH:
        builder.add_edge("model-3", effect)
    builder.add_edge(list(BATCH), LAST)
    builder.add_edge(LAST, END)
    return builder.compile(checkpointer=saver)


async def submit(place: Place) -> str:
    config: Any = {"configurable": {"thread_id": place.run_id}}
    async with AsyncSqliteSaver.from_conn_string(str(place.store / "checkpoints.db")) as saver:
        graph = make_graph(place.ledger, saver)
        state = await graph.aget_state(config)
        given: Any = None if state.values else {"results": []}
        while True:
            values = await graph.ainvoke(given, config, durability="sync")
            state = await graph.aget_state(config)
            if not state.next:
                return str(values["results"][-1])
            while not (place.folder / f"approval of {place.run_id}").exists():
                await asyncio.sleep(0.05)
            given = Command(resume=True)


async def approve(place: Place) -> None:
    # An interrupt has no mailbox: the caller resumes with the answer.
    (place.folder / f"approval of {place.run_id}").touch()


if __name__ == "__main__":
    main(submit=submit, approve=approve)
