"""The OpenAI Agents SDK with a SQLiteSession. The state of a run that waits for an approval is a file of the caller."""

import asyncio
import json
from typing import Any

from agents import Agent, ModelResponse, Runner, RunState, SQLiteSession, Usage, function_tool, set_tracing_disabled
from agents.models.interface import Model
from bench.scorecard.ledger import Ledger
from bench.scorecard.programs.agent_script import ask_model
from bench.scorecard.programs.command import Place, main, sleep_for_turn
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class ScriptedModel(Model):
    """Asks for the effects of the program."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **others: Any) -> ModelResponse:
        text, wanted = await ask_model(self._ledger, [] if isinstance(input, str) else list_finished(input))
        content = ResponseOutputText(text=text, type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id=text.replace(" ", "-"), content=[content], role="assistant", status="completed", type="message"
        )
        calls = [
            ResponseFunctionToolCall(
                name=effect.partition("-")[0],
                call_id=effect,
                arguments=json.dumps({"effect": effect}),
                type="function_call",
            )
            for effect in wanted
        ]
        return ModelResponse(output=[message, *calls], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **others: Any) -> Any:
        raise NotImplementedError("the program does not stream")


def list_finished(items: Any) -> list[str]:
    """Return the effects that have a result."""
    return [
        item["call_id"] for item in items if not isinstance(item, str) and item.get("type") == "function_call_output"
    ]


def make_agent(ledger: Ledger) -> Agent[None]:
    @function_tool
    async def look(effect: str) -> str:
        return ledger.perform(effect)

    @function_tool
    async def fetch(effect: str) -> str:
        await sleep_for_turn(effect)
        return ledger.perform(effect)

    @function_tool(needs_approval=True)
    async def pay(effect: str) -> str:
        return ledger.perform(effect)

    return Agent(name="clerk", model=ScriptedModel(ledger), tools=[look, fetch, pay])


async def submit(place: Place) -> str:
    set_tracing_disabled(True)
    agent, session = make_agent(place.ledger), SQLiteSession(place.run_id, place.store / "sessions.db")
    saved = place.store / f"state of {place.run_id}"
    given: Any
    if saved.exists() and "pay" not in list_finished(await session.get_items()):
        given = await RunState.from_string(agent, saved.read_text())
        await approve_all(place, given)
    else:
        given = "Continue." if await session.get_items() else "Pay order 1."
    while True:
        result = await Runner.run(agent, given, session=session, max_turns=20)
        if not result.interruptions:
            saved.unlink(missing_ok=True)
            return str(result.final_output)
        given = result.to_state()
        saved.write_text(given.to_string())
        await approve_all(place, given)


async def approve_all(place: Place, state: Any) -> None:
    while not (place.folder / f"approval of {place.run_id}").exists():
        await asyncio.sleep(0.05)
    for interruption in state.get_interruptions():
        state.approve(interruption)


async def approve(place: Place) -> None:
    # An interruption has no mailbox: the caller continues with the answer.
    (place.folder / f"approval of {place.run_id}").touch()


if __name__ == "__main__":
    main(submit=submit, approve=approve)
