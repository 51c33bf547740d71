"""Random small workflows. `python -m tests.core.workflow.random_programs NODE URL FOLDER KILL_AT` runs one.

With KILL_AT the process kills itself there. What happened outside, what the code saw and the outcome are in FOLDER.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from holdfast import NOT_EXECUTED, App, Completed, tool
from holdfast.core.agents.calls import Reconciliation
from holdfast.core.agents.tool_context import ToolContext
from holdfast.errors import RunFailed
from holdfast.ids import make_id
from holdfast.workflows import Workflow, first, now, run_agent, saga, sleep, wait_for

#: A node is its kind, and the nodes below it.
Node = tuple[str, list[Any]]


def add_level(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    many = st.lists(inner, min_size=1, max_size=3)
    one = st.lists(inner, min_size=1, max_size=1)
    return st.one_of(
        st.tuples(st.sampled_from(["sequence", "gather", "group"]), many),
        st.tuples(st.sampled_from(["first", "try", "saga", "child", "timeout"]), one),
    )


LEAF: st.SearchStrategy[Node] = st.tuples(
    st.sampled_from(["work", "look", "known", "unknown", "now", "sleep"]), st.just([])
)
PROGRAM: st.SearchStrategy[Node] = st.recursive(LEAF, add_level, max_leaves=8)


class Declined(Exception):
    pass


class Program:
    """A workflow made of nodes. `cut` is called at the start and at the end of each step's body."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: The effects outside of the store, which survive a cut.
        self.effects: dict[str, str] = {}
        self.repeated: list[str] = []
        #: What the code got at each place, the first time, and what it got there later.
        self.seen: dict[str, Any] = {}
        self.different: list[Any] = []
        self._make_tools()
        self._child: Workflow[Any] = Workflow(self._run_child, name="child")
        self.flow: Workflow[Any] = Workflow(self._run, name="flow")
        self.flows = [self.flow, self._child]

    async def cut(self) -> None:
        """End the process, in a subclass."""

    def add_effect(self, place: str, token: str) -> None:
        if self.effects.setdefault(place, token) != token:
            self.repeated.append(place)

    def _make_tools(self) -> None:
        async def find(call: ToolContext) -> Completed | Reconciliation:
            place = call.arguments["place"]
            return Completed([place, self.effects[place]]) if place in self.effects else NOT_EXECUTED

        @tool(reconcile=find)
        async def work(place: str) -> list[str]:
            await self.cut()
            token = make_id()
            self.add_effect(place, token)
            await self.cut()
            return [place, token]

        @tool(effect="pure")
        async def look(place: str) -> list[str]:
            await self.cut()
            return [place, "seen"]

        @tool(effect="idempotent", errors=[Declined])
        async def known(place: str) -> None:
            await self.cut()
            raise Declined(place, 402)

        @tool(effect="idempotent")
        async def unknown(place: str) -> None:
            await self.cut()
            raise KeyError(place)

        self._tools = {"work": work, "look": look, "known": known, "unknown": unknown}

    async def _run(self) -> Any:
        return await self._evaluate(self._node, "p")

    async def _run_child(self, place: str) -> Any:
        node = self._node
        for index in place.split(".")[1:]:
            node = node[1][int(index)]
        return await self._evaluate(node[1][0], f"{place}.0")

    def note(self, place: str, got: Any) -> None:
        if self.seen.setdefault(place, got) != got:
            self.different.append((place, self.seen[place], got))

    async def _evaluate(self, node: Node, place: str) -> Any:
        kind, below = node
        try:
            value = await self._enter(kind, below, place)
        except Exception as exc:
            self.note(place, describe(exc))
            raise
        self.note(place, value)
        return value

    async def _enter(self, kind: str, below: list[Node], place: str) -> Any:
        if kind in self._tools:
            return await self._tools[kind](place)
        inner = [(each, f"{place}.{number}") for number, each in enumerate(below)]
        match kind:
            case "now":
                await now()  # not returned: a pure value is kept once it is saved, before the next effect
                return "now"
            case "sleep":
                return await sleep(0.001)
            case "sequence":
                return [await self._evaluate(*each) for each in inner]
            case "gather":
                return list(await asyncio.gather(*self._start_branches(inner)))
            case "group":
                return await self._run_group(inner)
            case "first":
                return list(await first(place, other=self._lose(place), one=self._evaluate(*inner[0])))
            case "try":
                return await self._guard(*inner[0])
            case "saga":
                async with saga(key=place):
                    return await self._evaluate(*inner[0])
            case "child":
                return await run_agent("child", inputs={"place": place})
            case _:
                async with asyncio.timeout(60):
                    return await self._evaluate(*inner[0])

    def _start_branches(self, inner: list[tuple[Node, str]]) -> list[Coroutine[Any, Any, Any]]:
        """Return the branches, of which one at most may fail: which of two fails first is not on record."""
        (node, place), *others = inner
        guarded = [self._guard(*each) if can_fail(each[0]) else self._evaluate(*each) for each in others]
        return [self._evaluate(node, place), *guarded]

    async def _guard(self, node: Node, place: str) -> Any:
        try:
            return await self._evaluate(node, place)
        except Exception as exc:
            return describe(exc)

    async def _run_group(self, inner: list[tuple[Node, str]]) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in self._start_branches(inner)]
        return [task.result() for task in tasks]

    async def _lose(self, place: str) -> Any:
        await self._tools["look"](f"{place} lost")
        return await wait_for("never")


def can_fail(node: Node) -> bool:
    return node[0] in ("known", "unknown") or any(map(can_fail, node[1]))


def describe(error: BaseException) -> Any:
    """The same exception has the same description in every process."""
    if isinstance(error, BaseExceptionGroup):
        return [type(error).__name__, sorted(json.dumps(describe(each)) for each in error.exceptions)]
    return [type(error).__name__, str(error)]


class KilledProgram(Program):
    """Keeps what survives in files, and kills its process at a point."""

    def __init__(self, node: Node, folder: Path, kill_at: int) -> None:
        super().__init__(node)
        self._folder, self._kill_at, self.points = folder, kill_at, 0
        self.effects = dict(line.split() for line in self._read("effects"))
        for line in self._read("seen"):
            self.seen.setdefault(*json.loads(line))

    def _read(self, name: str) -> list[str]:
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []

    def _write(self, name: str, line: str) -> None:
        with (self._folder / name).open("a") as file:
            file.write(f"{line}\n")

    async def cut(self) -> None:
        self.points += 1
        if self.points == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def add_effect(self, place: str, token: str) -> None:
        super().add_effect(place, token)
        self._write("effects", f"{place} {token}")

    def note(self, place: str, got: Any) -> None:
        super().note(place, got)
        self._write("seen", json.dumps([place, got]))


async def main(node: Node, url: str, folder: Path, kill_at: int) -> None:
    program = KilledProgram(node, folder, kill_at)
    async with App(program.flows, url) as app:
        try:
            outcome = ["done", (await app.run(program.flow, run_id="r")).output]
        except RunFailed as exc:
            outcome = ["failed", exc.error]  # without a cause, if the kill came after the end of the run
    found = {"outcome": outcome, "effects": [*program.effects], "different": program.different}
    found["repeated"] = program.repeated
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
