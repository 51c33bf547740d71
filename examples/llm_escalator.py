"""A critic whose escalator asks a model what to do about a silent run.

The models here follow a script, so that the example needs no key; a real one is asked in the same way.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from holdfast import Agent, App, Bounds, Message, Reply, System, ToolSchema, User
from holdfast.batteries.critic import Critic, Decision, IdleRun

INSTRUCTIONS = "A run is silent. Answer with one word, WAIT, NUDGE or KILL, and a reason."


async def judge(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a small, quick model."""
    return Reply(text="KILL it waits for a page that does not answer")


async def escalator(silence: IdleRun) -> Decision | None:
    """Ask the judge, and do what it says."""
    report = f"Agent {silence.info.agent_name}, step {silence.state.steps + 1}, prompt {silence.info.prompt!r}."
    verdict = (await judge([System(INSTRUCTIONS), User(report)], ())).text
    word, _, reason = verdict.partition(" ")
    print(f"the judge says {word}: {reason}")
    if word == "KILL":
        return Decision(kill=True, reason=reason)
    if word == "NUDGE":
        return Decision(nudge="You have been silent for a while. Go on, or say what you wait for.")
    return None


async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a model, or a tool, that never comes back."""
    await asyncio.Event().wait()
    raise AssertionError


async def main() -> None:
    agent = Agent(name="reader", model=hangs, bounds=Bounds(max_runtime=timedelta(milliseconds=200)))
    async with App([agent], store=None, critic=Critic(escalator)) as app:
        try:
            await app.run("reader", "Read the news.", run_id="news")
        except Exception as exc:
            print(f"{type(exc).__name__}: {exc}")


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# the judge says KILL: it waits for a page that does not answer
# RunKilled: run news was killed: it waits for a page that does not answer
