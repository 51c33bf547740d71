"""Random programs with parallel branches crash at random steps: no branch ever gets the result of another call."""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulated_host import SimulatedHost

from holdfast import tool
from holdfast.core.errors import RunError
from holdfast.core.run.info import RunInfo
from holdfast.core.workflow.steps.step_log import make_digest
from holdfast.workflows import workflow

#: The steps of one branch: how often it yields to others before the step, and the argument.
BRANCH = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=4)


class Program:
    """Branches that run side by side and record every result they get. The host dies in the chosen calls."""

    def __init__(self, branches: list[list[tuple[int, int]]], crashes: set[int], seeds: list[int]) -> None:
        self._branches, self._crashes, self._seeds = branches, crashes, seeds
        self.wrong: list[Any] = []
        self.host = SimulatedHost()
        self._calls = 0
        self._attempts = 0

        @tool(effect="idempotent")
        async def work(branch: int, argument: int) -> list[int]:
            self._calls += 1
            if self._calls in self._crashes:
                await self.host.crash()
            return [branch, argument]

        async def run_branch(number: int, turns: int) -> int:
            for pause, argument in self._branches[number]:
                for _ in range((pause * turns) % 5):
                    await asyncio.sleep(0)
                got = await work(number, argument)
                if got != [number, argument]:
                    self.wrong.append((number, argument, got))
            return number

        @workflow
        async def flow() -> list[int]:
            turns = self._seeds[self._attempts % len(self._seeds)]
            self._attempts += 1
            return list(await asyncio.gather(*(run_branch(number, turns) for number in range(len(self._branches)))))

        self.flow = flow

    async def run(self) -> Any:
        store = self.host.inner
        with contextlib.suppress(RunError):
            await self.host.executor.start(self.flow, RunInfo.create(self.flow, "", run_id="r"))
        while await self.host.get_statuses():  # it is removed when it has ended
            self.host = SimulatedHost(store)
            with contextlib.suppress(RunError):
                await self.host.resume(self.flow, "r")


@settings(max_examples=60)
@given(
    branches=st.lists(BRANCH, min_size=2, max_size=4),
    crashes=st.sets(st.integers(1, 12), max_size=3),
    seeds=st.lists(st.integers(1, 7), min_size=1, max_size=4),
)
async def test_a_branch_never_gets_a_foreign_result(
    branches: list[list[tuple[int, int]]], crashes: set[int], seeds: list[int]
) -> None:
    program = Program(branches, crashes, seeds)
    await program.run()
    assert program.wrong == []


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2, "b": 1}}, True),
    ],
)
def test_a_digest_is_of_the_arguments_and_not_of_their_order(left: Any, right: Any, same: bool) -> None:
    assert (make_digest(left) == make_digest(right)) is same


async def test_equal_steps_in_a_row_are_told_apart_by_their_ordinal() -> None:
    made: list[int] = []

    @tool
    async def count() -> int:
        made.append(1)
        return len(made)

    @workflow
    async def flow() -> list[int]:
        return [await count() for _ in range(3)]

    result = await SimulatedHost().executor.start(flow, RunInfo.create(flow, "", run_id="r"))
    assert result.output == [1, 2, 3]
