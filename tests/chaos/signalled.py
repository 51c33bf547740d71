"""An agent that waits for the same signal several times, and has an effect outside the store for each."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.chaos.agent import Effect, Ledger

from holdfast import Agent, Reply, ToolCall, ToolResult, current_call, tool, wait_for
from holdfast.core import Message, ToolSchema

#: The number of signals that each run waits for. All have the same name, so one that is applied twice takes the place
#: of another.
SIGNALS = 2


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Wait for each signal and apply its payload. The answer reports the payloads, and whether the effect is known."""
    results = [message for message in messages if isinstance(message, ToolResult)]
    done, is_received = divmod(len(results), 2)
    if is_received:
        payload = results[-1].content
        return Reply(tool_calls=[ToolCall(id=f"apply-{done}", name="apply", arguments={"payload": payload})])
    if done < SIGNALS:
        return Reply(tool_calls=[ToolCall(id=f"wait-{done}", name="wait_for", arguments={"name": "order"})])
    outcomes = ["unknown" if result.error else "done" for result in results[1::2]]
    return Reply(text=json.dumps(list(zip([result.content for result in results[::2]], outcomes, strict=True))))


def signalled_agent(ledger: Ledger, seconds: float) -> Agent:
    """Build the agent. Each effect takes this many seconds."""

    @tool
    async def apply(payload: str) -> str:
        ledger.write(Effect(current_call().run_id, payload, os.getpid()))
        await asyncio.sleep(seconds)
        return "applied"

    return Agent(name="signalled", model=model, tools=[wait_for, apply])


def find_faults(
    sent: Mapping[str, Sequence[str]], outputs: Mapping[str, str], ledger: Sequence[Effect]
) -> Iterator[str]:
    """Compare the payloads that were sent with what the runs report and with the ledger. Yield every fault."""
    counts = Counter((effect.run_id, effect.call_id) for effect in ledger)
    for (run_id, payload), times in counts.items():
        if times > 1 or payload not in sent[run_id]:
            yield f"{payload} of {run_id} was applied {times} times"
    for run_id, payloads in sent.items():
        reported = json.loads(outputs[run_id])
        if sorted(payload for payload, _ in reported) != sorted(payloads):
            yield f"{run_id} reported {reported} instead of {payloads}"
        for payload, outcome in reported:
            if outcome == "done" and counts[run_id, payload] == 0:
                yield f"{payload} of {run_id} was reported done and never applied"
