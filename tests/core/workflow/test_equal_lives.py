"""What the code of a workflow gets is the same in every attempt; what it does not repeat is shown."""

import asyncio
from typing import Any

import pytest

from holdfast import App, RunWaiting, tool
from holdfast.config import CheckpointSettings
from holdfast.core.errors import RunFailed
from holdfast.core.redaction import Redactor
from holdfast.core.run.run_events import CustomEvent
from holdfast.runtime.reading.transcript import Transcript
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import Restart, StepFailed, map_items, wait_for, workflow


async def wait_and_signal(app: App, flow: Any, **options: Any) -> Any:
    """Run a workflow that waits for the signal `go`, and return its output."""
    with pytest.raises(RunWaiting):
        await app.run(flow, run_id="r", **options)
    await app.signal("r", "go")
    return (await app.result("r")).output


async def test_redaction_changes_the_input_results_and_errors_already_in_the_first_attempt(store_url: str) -> None:
    seen: list[Any] = []

    @tool
    async def look_up(name: str) -> dict[str, str]:
        return {"name": name, "password": "hunter2", "text": "key-123"}

    @tool
    async def fail(name: str) -> None:
        raise LookupError(f"{name} key-456")

    @workflow
    async def flow(name: str) -> str | Restart:
        if name != "again":
            return Restart("again")
        found = await look_up("key-789")
        again = await look_up(found["text"])
        try:
            await fail(name)
        except StepFailed as exc:
            seen.append([found, again, exc.message])
        await wait_for("go")
        return "done"

    @workflow
    async def enter(name: str) -> str:
        seen.append(name)
        await look_up(name)
        await wait_for("go")
        return name

    settings = CheckpointSettings(redact=Redactor(patterns=[r"key-\d+"]))
    async with App([flow, enter], store_url, checkpoint=settings) as app:
        assert await wait_and_signal(app, flow, inputs={"name": "first"}) == "done"
        first, second = seen
        assert first == second
        assert first[0]["password"] == first[0]["text"] == "[redacted]"
        seen.clear()
    async with App([enter], MemoryStore(), checkpoint=settings) as app:
        assert await wait_and_signal(app, enter, inputs={"name": "key-1"}) == "[redacted]"
    assert seen == ["[redacted]", "[redacted]"]


async def test_a_recorded_call_that_the_code_has_not_repeated_is_shown_as_abandoned(store_url: str) -> None:
    is_old = True

    @tool(effect="idempotent")
    async def prepare(name: str) -> str:
        return name

    @workflow
    async def flow() -> str:
        await prepare("kept")
        if is_old:
            await prepare("dropped")
        await wait_for("go")
        return "done"

    async with App([flow], store_url) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        is_old = False
        await app.signal("r", "go")
        assert (await app.result("r")).output == "done"
        assert app.store is not None
        transcript = Transcript("workflow")
        transcript.read((await app.store.load("r")).entries)
        states = {str(call.arguments.get("name")): call.state for call in transcript.calls}
        assert [call.state for call in transcript.unanswered] == ["abandoned"]  # `show` prints these
        assert states == {"kept": "done", "dropped": "abandoned", "go": "done"}


async def test_map_items_gives_each_result_makes_what_is_missing_and_shows_progress(store_url: str) -> None:
    made: list[int] = []
    stops = True

    @tool(effect="idempotent")
    async def work(item: int) -> int:
        made.append(item)
        if item == 3:
            raise LookupError("three")
        return item * 10

    async def handle(item: int) -> int:
        if item == 4 and stops:
            await wait_for("go")
        return int(await work(item))

    @workflow
    async def flow(items: list[int]) -> list[str]:
        results = await map_items(handle, items, limit=2, return_exceptions=True)
        return [f"{type(each).__name__} {each}" if isinstance(each, Exception) else str(each) for each in results]

    async with App([flow], store_url) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, inputs={"items": [1, 2, 3, 4]}, run_id="r")
        assert sorted(made) == [1, 2, 3]
        assert [str(each) for each in (await app.get("r")).progress] == ["handle 3 of 4, 1 failed"]
        await app.signal("r", "go")
        output = (await app.result("r")).output
        events = [event async for event in app.events("r") if isinstance(event, CustomEvent)]
    assert output == ["10", "20", "StepFailed step work failed: LookupError: three", "40"]
    assert sorted(made) == [1, 2, 3, 4]
    assert [event.value for event in events if event.name == "progress"] == [
        {"name": "handle", "done": 1, "total": 4},
        {"name": "handle", "done": 2, "total": 4},
        {"name": "handle", "done": 3, "total": 4, "failed": 1},
        {"name": "handle", "done": 4, "total": 4, "failed": 1},
    ]


async def test_the_items_that_a_failed_one_has_cancelled_are_not_done() -> None:
    @tool
    async def work(item: int) -> int:
        if item == 0:
            raise LookupError("none")
        await asyncio.Event().wait()
        return item

    @workflow
    async def flow() -> list[int]:
        return await map_items(work, range(3))

    async with App([flow], "memory:") as app:
        with pytest.raises(RunFailed):
            await app.run(flow, run_id="r")
        assert [str(each) for each in (await app.get("r")).progress] == ["work 1 of 3, 1 failed"]


async def test_two_apps_of_one_process_share_a_workflow(durable_store_url: str) -> None:
    made: list[str] = []

    @tool
    async def book(seat: str) -> str:
        made.append(seat)
        return seat

    @workflow
    async def flow() -> list[str]:
        booked = await asyncio.gather(book("4a"), book("4b"))
        await wait_for("go")
        return [*booked, await book("4c")]

    async with App([flow], durable_store_url) as one, App([flow], durable_store_url) as two:
        with pytest.raises(RunWaiting):
            await one.run(flow, run_id="r")
        await two.signal("r", "go")
        assert (await one.result("r")).output == (await two.result("r")).output == ["4a", "4b", "4c"]
    assert sorted(made) == ["4a", "4b", "4c"]
