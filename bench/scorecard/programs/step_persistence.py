"""pydantic-ai with StepPersistence, on SQLite: the caller continues from the newest snapshot, as its README shows.

`capture_frontier` saves a reply before its tools are called. After a crash the program looks at the ledger of tool
effects: a payment that was started and has no end is not repeated.
"""

import asyncio
from typing import Any

from bench.scorecard.ledger import Ledger
from bench.scorecard.programs.agent_script import ask_model
from bench.scorecard.programs.command import Place, main, sleep_for_turn
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.step_persistence import SqliteStepStore, StepPersistence


def make_agent(ledger: Ledger, store: SqliteStepStore) -> Agent[None, Any]:
    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        text, wanted = await ask_model(ledger, [part.tool_call_id for part in parts])
        calls = [ToolCallPart(effect.partition("-")[0], {"effect": effect}, tool_call_id=effect) for effect in wanted]
        return ModelResponse(parts=[TextPart(text), *calls])

    agent: Agent[None, Any] = Agent(
        FunctionModel(reply),
        output_type=[str, DeferredToolRequests],
        capabilities=[StepPersistence(store=store, capture_frontier=True)],
    )

    @agent.tool_plain
    async def look(effect: str) -> str:
        return ledger.perform(effect)

    @agent.tool_plain
    async def fetch(effect: str) -> str:
        await sleep_for_turn(effect)
        return ledger.perform(effect)

    @agent.tool_plain(requires_approval=True)
    async def pay(effect: str) -> str:
        return ledger.perform(effect)

    return agent


async def find_history(store: SqliteStepStore, conversation: str) -> tuple[list[ModelMessage] | None, bool]:
    """Return the newest messages, and whether a payment was started and has no end."""
    runs = await store.list_runs(conversation_id=conversation)
    effects = [effect for run in runs for effect in await store.list_unresolved_tool_effects(run_id=run.run_id)]
    for run in reversed(runs):
        snapshot = await store.latest_snapshot(run_id=run.run_id, include_interrupted=True)
        if snapshot is not None:
            return list(snapshot.messages), any(effect.tool_name == "pay" for effect in effects)
    return None, False


async def submit(place: Place) -> str:
    store = SqliteStepStore(database=place.store / "steps.db")
    agent = make_agent(place.ledger, store)
    history, is_unknown = await find_history(store, place.run_id)
    if history is None:
        result = await agent.run("Pay order 1.", conversation_id=place.run_id)
    elif (text := find_output(history)) is not None:
        return text
    else:
        result = await agent.run(message_history=history, conversation_id=place.run_id)
    while isinstance(result.output, DeferredToolRequests):
        if is_unknown:
            place.ledger.report_unknown()
        else:
            while not (place.folder / f"approval of {place.run_id}").exists():
                await asyncio.sleep(0.05)
        decision = ToolDenied("The outcome of this payment is unknown.") if is_unknown else True
        result = await agent.run(
            message_history=result.all_messages(),
            deferred_tool_results=DeferredToolResults(
                approvals={call.tool_call_id: decision for call in result.output.approvals}
            ),
            conversation_id=place.run_id,
        )
    return str(result.output)


def find_output(history: list[ModelMessage]) -> str | None:
    """Return the text of an answer that asks for no tools."""
    last = history[-1]
    return last.text if isinstance(last, ModelResponse) and not last.tool_calls else None


async def approve(place: Place) -> None:
    # A deferred call has no mailbox: the caller continues with the answer.
    (place.folder / f"approval of {place.run_id}").touch()


if __name__ == "__main__":
    main(submit=submit, approve=approve)
