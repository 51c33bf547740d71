"""Misuse of steps: clear errors, and nothing is recorded by halves."""

import asyncio
import contextvars
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, RunWaiting, tool
from holdfast.core.errors import DefinitionError, RunError, RunFailed
from holdfast.workflows import StepFailed, call, first, sleep, wait_for, workflow

MADE: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    MADE.clear()


@tool
async def book(seat: str) -> str:
    MADE.append(seat)
    return f"{seat}!"


async def count_steps(app: App, run_id: str) -> int:
    return (await app.get(run_id)).steps


async def test_a_result_that_cannot_be_stored_is_a_failed_step(store_url: str) -> None:
    @workflow
    async def flow() -> str:
        try:
            await call("make", object)
        except StepFailed as exc:
            return exc.type_name
        return ""

    async with App([flow], store_url) as app:
        assert (await app.run(flow, run_id="r")).output == "PayloadError"
        assert await count_steps(app, "r") == 1


@pytest.mark.parametrize("key", [7, "", b"key", ["key"]])
async def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    @workflow
    async def flow() -> None:
        with pytest.raises(DefinitionError, match="give a text that is not empty"):
            await book.keyed(key)("4a")

    async with App([flow], "memory:") as app:
        await app.run(flow, run_id="r")
        assert await count_steps(app, "r") == 0
    assert MADE == []


async def test_a_step_of_another_thread_or_loop_is_refused(store_url: str) -> None:
    def run_in_another_loop() -> None:
        asyncio.run(asyncio.wait_for(book("4a"), 5))

    @workflow
    async def flow() -> str:
        with pytest.raises(RunError, match="in another event loop or thread"):
            await asyncio.to_thread(run_in_another_loop)
        return str(await book("4b"))

    async with App([flow], store_url) as app:
        assert (await app.run(flow, run_id="r")).output == "4b!"
        assert await count_steps(app, "r") == 1
    assert MADE == ["4b"]


async def test_a_context_that_is_used_after_its_run_is_refused(store_url: str) -> None:
    kept: list[contextvars.Context] = []

    @workflow
    async def flow() -> None:
        kept.append(contextvars.copy_context())

    async with App([flow], store_url) as app:
        await app.run(flow, run_id="r")
        step = kept[0].run(book, "4a")
        with pytest.raises(RunError, match="which has ended"):
            await asyncio.get_running_loop().create_task(step, context=kept[0])
        assert await count_steps(app, "r") == 0
    assert MADE == []


async def test_a_tool_in_the_body_of_another_is_a_part_of_that_step(store_url: str) -> None:
    @tool
    async def book_both() -> list[str]:
        return [await book("4a"), await book("4b")]

    @workflow
    async def flow() -> list[str]:
        return list(await book_both())

    async with App([flow], store_url) as app:
        assert (await app.run(flow, run_id="r")).output == ["4a!", "4b!"]
        assert await count_steps(app, "r") == 1


@pytest.mark.parametrize("how", ["timeout", "wait", "wait_for"])
async def test_a_short_timeout_of_asyncio_ends_a_wait_and_a_long_one_is_refused(how: str) -> None:
    @workflow
    async def flow(seconds: float) -> str:
        try:
            if how == "timeout":
                async with asyncio.timeout(seconds):
                    await wait_for("never")
            elif how == "wait_for":
                await asyncio.wait_for(wait_for("never"), seconds)
            else:
                task = asyncio.ensure_future(wait_for("never"))
                done, _ = await asyncio.wait({task}, timeout=seconds)
                task.cancel()
                return "too late" if not done else ""
        except TimeoutError:
            return "too late"
        return ""

    async with App([flow], "memory:") as app:
        assert (await app.run(flow, inputs={"seconds": 1.5})).output == "too late"
        with pytest.raises(RunFailed, match="give the wait a timeout, or use first"):
            await app.run(flow, inputs={"seconds": 3600})


async def test_a_timeout_around_the_app_does_not_count(store_url: str) -> None:
    @workflow
    async def flow() -> str:
        winner, _ = await first(never=wait_for("never"), late=sleep(timedelta(days=1)))
        return winner

    async with App([flow], store_url) as app, asyncio.timeout(3600):
        await app.submit(flow, run_id="r")
        assert app.store is not None
        while (await app.get("r")).status.value != "waiting":
            await app.store.wait_for_change(timedelta(milliseconds=20))


async def test_as_completed_and_task_groups_over_steps(store_url: str) -> None:
    waits = True

    @workflow
    async def flow() -> list[str]:
        seats = [await each for each in asyncio.as_completed([book("4a"), book("4b"), book("4c")])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(book(seat)) for seat in ("5a", "5b")]
        done, _ = await asyncio.wait([asyncio.ensure_future(book("6a")), asyncio.ensure_future(book("6b"))])
        if waits:
            await wait_for("go")
        return sorted([*seats, *(task.result() for task in tasks), *(task.result() for task in done)])

    async with App([flow], store_url) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        await app.signal("r", "go")
        assert (await app.result("r")).output == ["4a!", "4b!", "4c!", "5a!", "5b!", "6a!", "6b!"]
    assert sorted(MADE) == ["4a", "4b", "4c", "5a", "5b", "6a", "6b"]
