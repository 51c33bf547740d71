"""A LangGraph agent that survives a SIGKILL within a tool call, and waits for a person.

The model follows a script, so the example needs no key. Each of the three parts is a process of its own.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from holdfast import App, RunWaiting, Value
from holdfast.adapters.langgraph import ToolPolicy, durable


@tool
async def look(city: str) -> str:
    """Look at the weather."""
    print(f"  look at {city}", flush=True)
    return "sunny"


@tool
async def reserve(city: str) -> str:
    """Kill this process in the first call."""
    print(f"  reserve a hotel in {city}", flush=True)
    if "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return "room 7"


async def model(state: MessagesState) -> MessagesState:
    """Stands for a model: one call after the other, then the answer."""
    calls = len(state["messages"]) // 2
    if calls < 2:
        name = ("look", "reserve")[calls]
        print(f"model: {name}, please", flush=True)
        return {"messages": [AIMessage("", tool_calls=[{"name": name, "args": {"city": "Lyon"}, "id": name}])]}
    answer = interrupt("Shall I pay 99 euros?")
    return {"messages": [AIMessage(f"Reserved, and you said: {answer}.")]}


builder = StateGraph(MessagesState)
builder.add_node("model", model)
builder.add_node("tools", ToolNode([look, reserve]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")

# `durable` is all it takes. A tool without an effect is never repeated; `reserve` is, because it is idempotent.
agent = durable(builder.compile(), name="planner", tools={"reserve": ToolPolicy("idempotent")})


async def travel() -> None:
    async with App([agent], "sqlite:trips.db") as app:
        if "--answer" in sys.argv:
            [question] = await app.pending()
            await app.answer(question.run_id, question.call_id, Value("yes"))
            result = await app.result("trip")
            print(result.output["messages"][-1].text)
            return
        try:
            await app.run(agent, "A weekend, please.", run_id="trip")
        except RunWaiting as waiting:
            print(f"waiting: {waiting.calls[0].reason}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for argument in ("--die", "--resume", "--answer"):
            child = subprocess.run([sys.executable, Path(__file__).resolve(), argument], cwd=folder, check=False)
            print("killed" if child.returncode == -signal.SIGKILL else "ended", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(travel())
    else:
        main()

# Output:
# model: look, please
#   look at Lyon
# model: reserve, please
#   reserve a hotel in Lyon
# killed
#   reserve a hotel in Lyon
# waiting: Shall I pay 99 euros?
# ended
# Reserved, and you said: yes.
# ended
