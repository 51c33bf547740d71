"""A workflow whose input is its script: a tree of steps, branches, races, sagas and runs in the background."""

import asyncio
import json
from contextlib import suppress
from typing import Any

from holdfast.core.agents.tool_context import find_workflow
from holdfast.core.agents.waiting_tools import ask_person, sleep, wait_for
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.workflow.definition import Workflow
from holdfast.core.workflow.recorded import first, map_items, random, run_agent, saga
from holdfast.core.workflow.restart import Restart
from holdfast.core.workflow.started_run import start
from holdfast.core.workflow.steps.step_errors import StepDenied, StepFailed, StepTimeout
from holdfast.core.workflow.workflow_run import WorkflowRun
from holdfast.testing.simulation.scenarios.script_agent import ACTOR, make_prompt
from holdfast.testing.simulation.scenarios.script_tools import SCRIPTED, WORKFLOW_TOOLS

#: A part of a script: its kind, its place, which no other part has, and its arguments.
Node = list[Any]


class ScriptFailed(Exception):
    """The script says that the workflow fails here."""


class _Life:
    """One call of the function. It plays the script, and tells the ledger each value that it sees."""

    def __init__(self, number: int) -> None:
        workflow = find_workflow()
        assert isinstance(workflow, WorkflowRun), "the script is an async function"
        self._run_id, self._number = workflow.attempt.info.run_id, number
        self._ledger, self._process = SCRIPTED.get().ledger, SCRIPTED.get().process
        #: What the code of this attempt has seen, by place.
        self._seen: dict[str, str] = {}

    async def play(self, node: Node) -> Any:
        kind, place, *arguments = node
        value = await getattr(self, f"_play_{kind}")(f"{self._number}.{place}", *arguments)
        self._see(f"{self._number}.{place}", value)
        return value

    def _see(self, place: str, value: Any) -> None:
        self._process.check_alive()
        self._seen[place] = repr(value)
        self._ledger.see(self._run_id, place, value)

    async def _play_seq(self, place: str, nodes: list[Node]) -> int:
        for node in nodes:
            await self.play(node)
        return len(nodes)

    async def _play_all(self, place: str, nodes: list[Node]) -> list[Any]:
        return list(await asyncio.gather(*map(self.play, nodes)))

    async def _play_map(self, place: str, nodes: list[Node]) -> list[Any]:
        return await map_items(self.play, nodes, limit=2)

    async def _play_first(self, place: str, left: Node, right: Node) -> tuple[str, Any]:
        # Parallel races are told apart by the names of their branches.
        return await first(**{f"left of {place}": self.play(left), f"right of {place}": self.play(right)})

    async def _play_saga(self, place: str, nodes: list[Node]) -> str:
        try:
            async with saga(key=place):
                await self._play_seq(place, nodes)
        except ScriptFailed:
            return "undone"
        except StepFailed as exc:
            if exc.type_name != ScriptFailed.__name__:
                raise
            return "undone"
        return "done"

    async def _play_tool(self, place: str, name: str) -> Any:
        self._ledger.ask(self._run_id, place, self._seen)
        try:
            return await SCRIPTED.get().choose(WORKFLOW_TOOLS[name])(place)
        except (StepDenied, StepTimeout) as exc:
            return type(exc).__name__
        except StepFailed as exc:
            if name in ("broken", "book") or UNKNOWN_OUTCOME in exc.message:
                return exc.message
            raise

    async def _play_sleep(self, place: str, seconds: float) -> None:
        await sleep(seconds)

    async def _play_wait(self, place: str, name: str, timeout: float) -> Any:
        with suppress(StepTimeout):
            return await wait_for(name, timeout)

    async def _play_ask(self, place: str) -> Any:
        return await ask_person(place)

    async def _play_value(self, place: str) -> float:
        return await random()

    async def _play_child(self, place: str, steps: list[Any]) -> Any:
        return await run_agent(ACTOR, make_prompt(steps), key=place)

    async def _play_start(self, place: str, steps: list[Any], ends: str) -> Any:
        run = await start(ACTOR, make_prompt(steps), key=place, detached=ends == "detached")
        self._see(f"{place}i", run.run_id)
        if ends == "detached":
            self._ledger.detached.add(run.run_id)
        if ends == "cancel":
            await run.cancel()
        return await run.result() if ends == "result" else None

    async def _play_fail(self, place: str) -> None:
        raise ScriptFailed(place)


async def _play_script(script: str, life: int = 0) -> str | Restart:
    """Play a script once for each of its lives."""
    content = json.loads(script)
    await _Life(life).play(["seq", "t", content["nodes"]])
    if life + 1 < content["lives"]:
        return Restart(script, life=life + 1)
    return f"life {life}"


WORKFLOW: Workflow[Any] = Workflow(_play_script, name="flow")


def make_script(nodes: list[Node], lives: int) -> str:
    return json.dumps({"nodes": nodes, "lives": lives})
