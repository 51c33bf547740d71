"""Random small workflows are cut at random steps and resumed: the same values, exceptions, effects and outcome."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.workflow.random_programs import PROGRAM, Declined, Node, Program, describe
from tests.simulated_host import SimulatedHost
from tests.store_kinds import DURABLE, STORES

from holdfast import App, RunWaiting, tool
from holdfast.core.errors import RunError
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.errors import RunFailed
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import sleep, wait_for, workflow

IS_LONG = bool(os.environ.get("HOLDFAST_LONG_TESTS"))


class CutProgram(Program):
    """Its host dies at the chosen points."""

    def __init__(self, node: Node, cuts: set[int]) -> None:
        super().__init__(node)
        self._cuts, self._points, self._is_dead = cuts, 0, False
        self._ports = Ports(agents={flow.name: flow for flow in self.flows})
        self._host = SimulatedHost(ports=self._ports)

    async def cut(self) -> None:
        self._points += 1
        if self._points in self._cuts:
            self._is_dead = True
            await self._host.crash()

    def note(self, place: str, got: Any) -> None:
        if not self._is_dead:  # else its process would have ended
            super().note(place, got)

    def add_effect(self, place: str, token: str) -> None:
        if not self._is_dead:
            super().add_effect(place, token)

    async def run(self) -> Any:
        """Return the outcome."""
        outcome: Any = None
        store, is_new = self._host.inner, True
        while is_new or await self._host.get_statuses():  # it is removed when it has ended
            if not is_new:
                self._host, self._is_dead = SimulatedHost(store, ports=self._ports), False
            with contextlib.suppress(RunError):
                try:
                    info = RunInfo.create(self.flow, "", run_id="r")
                    executor = self._host.executor
                    result = await (executor.start(self.flow, info) if is_new else self._host.resume(self.flow, "r"))
                    outcome = ["done", result.output]
                except RunFailed as exc:
                    outcome = ["failed", describe(exc.__cause__ or exc)]
            is_new = False
        return outcome


def normalize(value: Any) -> Any:
    """Return the outcome without the random values, which differ between two runs."""
    if not isinstance(value, list):
        return value
    if len(value) == 2 and isinstance(value[0], str) and value[0].startswith("p"):
        return value[0]
    return [normalize(each) for each in value]


def is_parallel(node: Node) -> bool:
    return node[0] in ("gather", "group") or any(map(is_parallel, node[1]))


@settings(max_examples=2000 if IS_LONG else 60, deadline=None)
@given(node=PROGRAM, cuts=st.sets(st.integers(1, 14), min_size=1, max_size=3))
async def test_a_workflow_that_is_cut_has_the_outcome_of_one_that_is_not(node: Node, cuts: set[int]) -> None:
    whole, cut = CutProgram(node, set()), CutProgram(node, cuts)
    expected, found = await whole.run(), await cut.run()
    assert cut.different == []
    assert normalize(found) == normalize(expected)
    assert cut.repeated == []
    if not is_parallel(node):  # else a branch that fails ends others sooner or later
        assert sorted(cut.effects) == sorted(whole.effects)


@pytest.mark.parametrize("kind", ["group", "task", "wait"])
async def test_a_step_that_the_code_has_cancelled_is_cancelled_again_in_a_later_attempt(kind: str) -> None:
    seen: list[Any] = []

    @tool(errors=[Declined])
    async def decline() -> None:
        raise Declined("no")

    @workflow
    async def flow() -> str:
        try:
            if kind == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(wait_for("never"))
                    group.create_task(decline())
            task = asyncio.create_task(wait_for("never"))
            await sleep(0)
            if kind == "wait":
                await asyncio.wait({task}, timeout=0)
            task.cancel()
            await task
        except (Exception, asyncio.CancelledError) as exc:
            seen.append(describe(exc))
        return str(await wait_for("go"))

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        await app.signal("r", "go", "went")
        assert (await app.result("r")).output == "went"
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_step_that_a_timeout_has_cancelled_times_out_in_a_later_attempt() -> None:
    seen: list[Any] = []

    @workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(0.05):
                await sleep(4)
        except TimeoutError as exc:
            seen.append(type(exc).__name__)
        return str(await wait_for("go"))

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        await app.signal("r", "go", "went")
        assert (await app.result("r")).output == "went"
    assert len(seen) == 2


def execute(node: Node, url: str, folder: Path, kill_at: int) -> dict[str, Any] | None:
    """Run the program in a process of its own. Return what it found, or `None` if it was killed."""
    command = [sys.executable, "-m", "tests.core.workflow.random_programs"]
    done = subprocess.run(
        [*command, json.dumps(node), url, str(folder), str(kill_at)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if kill_at and done.returncode == -9:
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("store", DURABLE)
@settings(max_examples=40 if IS_LONG else 3, deadline=None)
@given(node=PROGRAM.filter(bool), kill_at=st.integers(1, 8))
def test_a_workflow_whose_process_is_killed_has_the_same_outcome_in_the_next_one(
    store: str, node: Node, kill_at: int
) -> None:
    with TemporaryDirectory() as name, TemporaryDirectory() as other:
        with STORES[store].open_empty(Path(name)) as url:
            found = execute(node, url, Path(name), kill_at) or execute(node, url, Path(name), 0)
        whole = execute(node, "memory:", Path(other), 0)
    assert found is not None
    assert whole is not None
    assert found["different"] == []
    assert found["repeated"] == []
    assert normalize(found["outcome"]) == normalize(whole["outcome"])
    if not is_parallel(node):
        assert sorted(found["effects"]) == sorted(whole["effects"])
