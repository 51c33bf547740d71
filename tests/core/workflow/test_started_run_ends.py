"""Parents and the runs that they have started: closes, missing agents, parked and removed runs, handles, forks."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Approve, User, tool
from holdfast.config import CheckpointSettings, Retention
from holdfast.core import Tool
from holdfast.core.run.status import RunStatus
from holdfast.errors import RunCancelled
from holdfast.workflows import StartedRun, StepFailed, Workflow, background_tools, start, wait_for, workflow


@workflow
async def wait_long(name: str) -> str:
    return str(await wait_for(name))


@workflow
async def hold(name: str) -> str:
    return await (await start(wait_long, name)).result()


@tool
async def pay(euro: int) -> str:
    return f"paid {euro}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'runs.db'}"


async def wait_for_status(app: App, run_id: str, *statuses: str) -> None:
    async for event in app.watch(status=list(statuses)):
        if event.run_id == run_id:
            return


async def find_child(app: App, parent: str) -> str:
    [child] = (await app.list(parent=parent)).runs
    return child.run_id


async def wait_until_ended(app: App, run_id: str, *, runs: int) -> None:
    """Wait until this run is done, and the store has this many runs: a removed run is seen by no watcher."""
    while (await app.get(run_id)).status is not RunStatus.DONE or len((await app.list()).runs) > runs:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def find_waiting(app: App, parent: str, prompt: str) -> str:
    """Return the child with this prompt, once it waits."""
    async for event in app.watch(status=["waiting"]):
        run = await app.get(event.run_id)
        if run.parent == parent and run.prompt == prompt:
            return run.run_id
    raise AssertionError("the stream has ended")


async def test_an_app_that_closes_leaves_a_parent_and_its_child_to_the_next_one(url: str) -> None:
    async with App([hold, wait_long], url) as app:
        await app.submit(hold, "go", run_id="r")
        await wait_for_status(app, "r", "waiting")
        child = await find_child(app, "r")
        await wait_for_status(app, child, "waiting")
    async with App([hold, wait_long], url) as app:
        assert [(await app.get(run_id)).status for run_id in ("r", child)] == [RunStatus.WAITING] * 2
        assert (await app.get("r")).strikes == 0
        await app.signal(child, "go", "ahead")
        assert (await app.result("r", through_waits=True)).output == "ahead"


async def test_a_child_whose_agent_no_worker_knows_waits_for_one_that_does(url: str) -> None:
    async with App([hold, wait_long], url, worker=False) as app:
        await app.submit(hold, "go", run_id="r")
    other: Workflow[Any] = Workflow(wait_long.function, name="other")
    renamed: Workflow[Any] = Workflow(hold.function, name="hold")
    async with App([renamed, other], url) as app:  # this worker has the parent only
        await wait_for_status(app, "r", "waiting")
        child = await find_child(app, "r")
        assert (await app.get(child)).status is RunStatus.QUEUED
        await app.signal(child, "go", "ahead")
    async with App([hold, wait_long], url) as app:
        assert (await app.result("r", through_waits=True)).output == "ahead"


async def test_a_queued_child_is_executed_by_the_first_worker_that_has_its_agent(url: str) -> None:
    async with App([hold, wait_long], url) as app:
        await app.submit(hold, "go", run_id="r")
        await wait_for_status(app, "r", "waiting")
        child = await find_child(app, "r")
        await wait_for_status(app, child, "waiting")
    async with App([hold], url) as app:
        await app.signal(child, "go", "ahead")  # its own worker has gone
        assert (await app.get(child)).status is RunStatus.INTERRUPTED
        assert (await app.get("r")).status is RunStatus.WAITING
    async with App([hold, wait_long], url) as app:
        assert (await app.result("r", through_waits=True)).output == "ahead"


async def test_a_parent_waits_for_a_parked_child_until_it_is_unparked(url: str) -> None:
    euros = [1]

    @workflow
    async def spend(name: str) -> str:
        got = await pay(euros[0])
        await wait_for(name)
        return str(got)

    @workflow
    async def above(name: str) -> str:
        return await (await start(spend, name)).result()

    async with App([above, spend], url) as app:
        await app.submit(above, "go", run_id="r")
        await wait_for_status(app, "r", "waiting")
        child = await find_child(app, "r")
        await wait_for_status(app, child, "waiting")
        euros[0] = 2
        await app.signal(child, "go", None)
        await wait_for_status(app, child, "parked")
        assert (await app.get("r")).status is RunStatus.WAITING
        euros[0] = 1
        await app.unpark(child)
        assert (await app.result("r", through_waits=True)).output == "paid 1"


async def test_a_child_stays_readable_for_its_parent_and_a_removed_detached_run_is_an_error(url: str) -> None:
    @workflow
    async def quick(text: str) -> str:
        return text

    ended = asyncio.get_running_loop().create_future()

    @workflow
    async def above() -> None:
        child, own = await start(quick, "child"), await start(quick, "own", detached=True)
        await wait_for("both have ended")
        found = [await child.result()]
        try:
            found.append(await own.result(timeout=timedelta(days=1)))
        except StepFailed as exc:
            found.append(exc.message)
        ended.set_result(found)

    settings = CheckpointSettings(retention=Retention(done=timedelta(0)))
    async with App([above, quick], url, checkpoint=settings) as app:
        await app.submit(above, run_id="r")
        await wait_for_status(app, "r", "waiting")
        child = await find_child(app, "r")
        await wait_until_ended(app, child, runs=2)
        await app.signal("r", "both have ended", None)
        found = await ended
    assert found[0] == "child"
    assert "has started no run" in found[1]
    assert "or it was removed" in found[1]


async def test_two_handles_of_one_run_get_the_same_result(url: str) -> None:
    entered: list[str] = []

    @workflow
    async def quick(text: str) -> str:
        entered.append(text)
        return text

    @workflow
    async def above() -> list[Any]:
        handle = await start("quick", "once", key="k")
        copy: StartedRun[Any] = StartedRun(run_id=handle.run_id, agent=handle.agent)
        left, right = await asyncio.gather(handle.result(), copy.result())
        await copy.cancel()  # it has ended
        return [left, right, (await handle.status()).value]

    async with App([above, quick], url) as app:
        assert (await app.run(above, run_id="r")).output == ["once", "once", "done"]
    assert entered == ["once"]


async def test_a_fork_reads_ended_runs_and_cannot_wait_for_others(url: str) -> None:
    @workflow
    async def above() -> str:
        ended = await start(wait_long, "ended")
        got = await ended.result()
        later = await start(wait_long, "later")
        return f"{got} {await later.result()}"

    async with App([above, wait_long], url) as app:
        await app.submit(above, run_id="r")
        await wait_for_status(app, "r", "waiting")
        await app.signal(await find_child(app, "r"), "ended", "first")
        later = await find_waiting(app, "r", "later")
        await wait_for_status(app, "r", "waiting")
        fork = await app.fork("r", 3)
        with pytest.raises(Exception, match="a fork cannot wait for"):
            await app.result(fork, through_waits=True)
        await app.signal(later, "later", "second")
        assert (await app.result("r", through_waits=True)).output == "first second"
        fork = await app.fork("r", 3)
        assert (await app.result(fork, through_waits=True)).output == "first second"


async def test_a_message_to_a_started_agent_is_read_before_its_next_step(url: str) -> None:
    model = ScriptedModel(tool_reply(call("1", "wait_for", name="go")), "read")
    clerk = Agent(name="clerk", model=model, tools=[wait_for])

    @workflow
    async def above() -> str:
        started = await start("clerk", "work")
        await started.send("hurry")
        return str(await started.result())

    async with App([above, clerk], url) as app:
        await app.submit(above, run_id="r")
        await wait_for_status(app, "r", "waiting")
        child = await find_child(app, "r")
        await wait_for_status(app, child, "waiting", "done")
        await app.signal(child, "go", None)
        assert (await app.result("r", through_waits=True)).output == "read"
    assert "hurry" in [each.text for each in model.requests[-1] if isinstance(each, User)]


async def test_a_conversation_stays_open_for_messages_while_a_refund_waits_and_processes_come_and_go(url: str) -> None:
    """Each part of the story has an App of its own, as after a deploy."""

    async def pay_back(euro: int) -> str:
        return f"refunded {euro}"

    refund = Tool(pay_back, name="refund", approval=True)
    clerk = Agent(name="clerk", model=ScriptedModel(tool_reply(call("1", "refund", euro=40)), "paid"), tools=[refund])
    model = ScriptedModel(
        tool_reply(call("1", "start_task", agent="clerk", prompt="refund 40 euro")),
        "It waits for approval.",
        "We open at nine.",
        tool_reply(call("2", "list_tasks")),
        "Your refund was paid.",
    )
    desk = Agent(name="desk", model=model, tools=background_tools(["clerk"]))
    async with App([desk, clerk], url) as app:
        assert (await app.conversation(desk, "ann").send("40 euro back!")).output == "It waits for approval."
        task = await find_child(app, app.conversation(desk, "ann").run_id)
        await wait_for_status(app, task, "waiting")
    async with App([desk, clerk], url) as app:
        assert (await app.conversation("desk", "ann").send("When do you open?")).output == "We open at nine."
    async with App([desk, clerk], url) as app:
        [approval] = await app.pending()
        assert (approval.run_id, approval.tool) == (task, "refund")
        await app.answer(approval.run_id, approval.call_id, Approve(), by="boss")
        assert (await app.result(task)).output == "paid"
    async with App([desk, clerk], url) as app:
        assert (await app.conversation("desk", "ann").send("And my refund?")).output == "Your refund was paid."
    told = [each.text for each in model.requests[-1] if isinstance(each, User)]
    assert [text for text in told if "(clerk) has ended: done." in text]


async def test_a_parent_that_is_cancelled_while_its_child_waits_cancels_the_child_in_any_process(url: str) -> None:
    async with App([hold, wait_long], url) as app:
        await app.submit(hold, "go", run_id="r")
        await wait_for_status(app, "r", "waiting")
        child = await find_child(app, "r")
        await wait_for_status(app, child, "waiting")
    async with App([], url, worker=False) as app:  # knows neither
        await app.cancel("r")
    async with App([hold, wait_long], url) as app:
        for run_id in (child, "r"):
            with pytest.raises(RunCancelled):
                await app.result(run_id, through_waits=True)
