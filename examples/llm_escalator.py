"""A critic whose escalator asks a model what to do about an idle run.

The models follow a script, so the example needs no key. A real model is called in the same way.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from holdfast import Agent, App, Bounds, Reply, System, User
from holdfast.batteries.critic import Critic, CriticAction, IdleRun
from holdfast.core import Message, ToolSchema

INSTRUCTIONS = "A run is idle. Answer with one word, WAIT, NUDGE or KILL, and a reason."


async def judge(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a small, fast model."""
    return Reply(text="KILL it waits for a page that does not answer")


async def escalator(idle_run: IdleRun) -> CriticAction | None:
    """Ask the judge and return its decision."""
    report = f"Agent {idle_run.info.agent_name}, step {idle_run.state.steps + 1}, prompt {idle_run.info.prompt!r}."
    verdict = (await judge([System(INSTRUCTIONS), User(report)], ())).text
    word, _, reason = verdict.partition(" ")
    print(f"the judge says {word}: {reason}")
    if word == "KILL":
        return CriticAction(kill=True, reason=reason)
    if word == "NUDGE":
        return CriticAction(nudge="You have been idle for a while. Continue, or say what you are waiting for.")
    return None


async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a model or a tool that never returns."""
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
# RunFailed: run news failed: RunKilled: run news was killed: it waits for a page that does not answer
