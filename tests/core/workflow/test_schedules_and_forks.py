"""Workflows as the jobs of a schedule, and forks of workflow runs."""

from typing import Any

import pytest

from holdfast import App, tool
from holdfast.batteries.schedule import Schedule
from holdfast.core.errors import DefinitionError
from holdfast.core.run.messages import Reply
from holdfast.core.workflow.definition import Workflow
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import workflow

MADE: list[tuple[int, int]] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    MADE.clear()


@tool
async def add(left: int, right: int) -> int:
    MADE.append((left, right))
    return left + right


@workflow
async def without_parameters() -> int:
    return int(await add(1, 2))


@workflow
async def measure(city: str) -> str:
    first = await add(1, 2)
    return f"{city} {await add(3, first)}"


@workflow
async def with_two_parameters(left: int, right: int) -> int:
    return int(await add(left, right))


FLOWS: list[Workflow[Any]] = [without_parameters, measure, with_two_parameters]


@pytest.mark.parametrize(("name", "prompt", "output"), [("without_parameters", "", 3), ("measure", "Porto", "Porto 6")])
async def test_a_schedule_runs_a_workflow(name: str, prompt: str, output: object) -> None:
    schedule = Schedule()
    async with App(FLOWS, MemoryStore(), schedule=schedule) as app:
        await schedule.add("job", name, prompt, "0 3 * * *")
        assert (await app.result(await schedule.run_now("job"))).output == output


@pytest.mark.parametrize(
    ("name", "prompt", "message"),
    [
        ("without_parameters", "Porto", "has no parameters: give it no prompt"),
        ("with_two_parameters", "Porto", "takes no prompt: give its arguments as inputs, left, right"),
        ("with_two_parameters", "", "missing required field `left`"),
    ],
)
async def test_a_job_whose_prompt_does_not_fit_its_workflow_is_refused(name: str, prompt: str, message: str) -> None:
    schedule = Schedule()
    async with App(FLOWS, MemoryStore(), schedule=schedule) as app:
        await schedule.add("job", name, prompt, "0 3 * * *")
        with pytest.raises(DefinitionError, match=message):
            await schedule.run_now("job")
        assert not (await app.list()).runs


async def test_a_fork_keeps_the_steps_before_it_and_makes_the_others() -> None:
    async with App(FLOWS, MemoryStore()) as app:
        await app.run(measure, "Rome", run_id="r")
        MADE.clear()
        assert (await app.result(await app.fork("r", 1))).output == "Rome 6"
        assert MADE == [(3, 3)]


async def test_a_fork_with_an_edited_result_continues_with_it() -> None:
    async with App(FLOWS, MemoryStore()) as app:
        result = await app.run(measure, "Rome", run_id="r")
        replies = [message for message in result.messages if isinstance(message, Reply)]
        call_id = replies[0].tool_calls[0].id
        fork = await app.fork("r", 1, results={call_id: 10})
        assert (await app.result(fork)).output == "Rome 13"


async def test_a_fork_has_another_prompt_at_its_first_step_only() -> None:
    async with App(FLOWS, MemoryStore()) as app:
        await app.run(measure, "Rome", run_id="r")
        assert (await app.result(await app.fork("r", 1, edited="Oslo"))).output == "Oslo 6"
        with pytest.raises(DefinitionError, match="a workflow reads no messages"):
            await app.fork("r", 2, edited="Oslo")
