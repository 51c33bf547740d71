"""Stored runs are re-entered with other code: no call is made, nothing is written, and mismatches are named."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, RunWaiting, tool
from holdfast.checkpoint.record import RunFilter
from holdfast.core.agents.agent import AgentSource
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Reentries, reenter_runs
from holdfast.workflows import Restart, Workflow, ask_person, first, now, run_agent, saga, sleep, start, wait_for

MADE: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    MADE.clear()


@tool(effect="pure")
async def look(city: str) -> str:
    MADE.append(f"look {city}")
    return f"{city}?"


async def take_back(call: Any, result: str) -> None:
    MADE.append(f"undo {result}")


@tool(undo=take_back)
async def pay(euro: int) -> str:
    MADE.append(f"pay {euro}")
    return f"receipt {euro}"


@tool
async def pay_by_card(euro: int) -> str:
    MADE.append(f"card {euro}")
    return f"receipt {euro}"


async def buy(euro: int) -> str:
    await look("Rome")
    receipt = await pay(euro)
    await wait_for("delivered")
    return str(receipt)


Function = Callable[..., Awaitable[Any]]


def make(function: Function, name: str = "buy") -> Workflow[Any]:
    return Workflow(function, name=name)


async def store_run(store: MemoryStore, *flows: Workflow[Any], **inputs: Any) -> None:
    """Run the first workflow until it waits or is parked."""
    async with App(flows, store) as app:
        await app.submit(flows[0], inputs=inputs, run_id="r")
        async for event in app.watch(status=["waiting", "parked"]):
            if event.run_id == "r":
                break
    MADE.clear()


async def reenter(store: MemoryStore, *flows: Workflow[Any], **options: Any) -> Reentries:
    """Re-enter the runs with this code, and check that it has changed nothing."""
    agents: dict[str, AgentSource] = {flow.name: flow for flow in flows}
    await store.open()
    before = await read_all(store)
    found = await reenter_runs(store, agents, **options)
    assert await read_all(store) == before
    assert not [made for made in MADE if not made.startswith("code")]
    return found


async def read_all(store: MemoryStore) -> list[Any]:
    page = await store.list_page(RunFilter(), limit=100)
    return [await store.load(record.run_id) for record in page.records]


async def find_kinds(old: Function, new: Function, **inputs: Any) -> list[tuple[str, str, bool]]:
    store = MemoryStore()
    await store_run(store, make(old), **inputs)
    [run] = (await reenter(store, make(new))).runs
    return [(each.kind, each.detail, each.harmless) for each in run.mismatches]


async def test_the_same_code_fits() -> None:
    assert await find_kinds(buy, buy, euro=7) == []


async def test_steps_in_another_order_and_new_steps_at_the_end_fit() -> None:
    async def other(euro: int) -> str:
        receipts = await asyncio.gather(pay(euro), look("Rome"))
        await wait_for("delivered")
        await pay_by_card(1)
        return str(receipts[0])

    assert await find_kinds(buy, other, euro=7) == []


async def test_a_once_call_with_other_arguments_would_park_the_run() -> None:
    async def other(euro: int) -> str:
        return str(await pay(euro + 1))

    [(kind, detail, harmless)] = await find_kinds(buy, other, euro=7)
    assert (kind, harmless) == ("changed arguments", False)
    assert '{"euro":8}' in detail
    assert '{"euro":7}' in detail


async def test_a_recorded_call_that_another_one_replaces_is_named() -> None:
    async def other(euro: int) -> str:
        await look("Rome")
        return str(await pay_by_card(euro))

    [(kind, detail, harmless)] = await find_kinds(buy, other, euro=7)
    assert (kind, harmless) == ("not repeated", False)
    assert "does not repeat the recorded pay:" in detail
    assert "new pay_by_card:" in detail


async def test_a_pure_call_that_the_code_no_longer_makes_is_harmless() -> None:
    async def other(euro: int) -> str:
        await pay(euro)
        await wait_for("delivered")
        return ""

    [(kind, detail, harmless)] = await find_kinds(buy, other, euro=7)
    assert (kind, harmless) == ("not repeated", True)
    assert "look:" in detail


@pytest.mark.parametrize("undone", [True, False])
async def test_code_that_raises_before_a_new_step_would_fail_the_run(undone: bool) -> None:
    async def other(euro: int) -> str:
        await look("Rome")
        if undone:
            await pay(euro)
        raise KeyError("gone")

    found = await find_kinds(buy, other, euro=7)
    assert found == [("failure", "it would fail before its first new step: KeyError: 'gone'", False)]


async def test_an_input_that_no_longer_fits_is_found() -> None:
    async def other(euro: int, card: str) -> str:
        return ""

    [(kind, detail, _)] = await find_kinds(buy, other, euro=7)
    assert kind == "input"
    assert "missing required field `card`" in detail


async def test_a_result_that_no_longer_fits_its_annotation_is_found() -> None:
    @dataclass
    class Receipt:
        number: int

    async def find_receipt(euro: int) -> Receipt:
        raise AssertionError("not called")

    async def other(euro: int) -> str:
        await look("Rome")
        return str(await tool(name="pay")(find_receipt)(euro))

    [(kind, detail, _)] = await find_kinds(buy, other, euro=7)
    assert kind == "failure"
    assert "does not fit its annotation" in detail


async def test_a_workflow_that_is_gone_is_found() -> None:
    store = MemoryStore()
    await store_run(store, make(buy), euro=7)
    [run] = (await reenter(store, make(buy, "sell"))).runs
    assert [each.detail for each in run.mismatches] == ["there is no workflow buy among sell"]


async def test_code_that_reaches_no_call_ends_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "holdfast.core.workflow.reentry.reenter.__kwdefaults__", {"reason": "", "timeout": timedelta(0)}
    )

    async def other(euro: int) -> str:
        await asyncio.Event().wait()
        return ""

    [(kind, _, _)] = await find_kinds(buy, other, euro=7)
    assert kind == "timeout"


async def shop(count: int) -> Any:
    """Uses everything that has steps of its own."""
    await now()
    cities = await asyncio.gather(*(look(f"city {number}") for number in range(count)))
    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(pay(number))
    winner, _ = await first(fast=look("fast"), slow=sleep(timedelta(days=1)))
    try:
        async with saga():
            await pay(10)
            raise ValueError("no")
    except ValueError:
        pass
    background = await start("child", "x")
    await run_agent("child", "y")
    await first(person=ask_person("Go?"), child=background.result(), late=sleep(timedelta(days=2)))
    return [cities, winner]


async def child(text: str) -> str:
    if text == "x":
        await wait_for("never")
    return text


async def test_a_run_with_every_kind_of_step_fits_its_own_code_and_so_do_its_children() -> None:
    store = MemoryStore()
    flows = make(shop), make(child, "child")
    await store_run(store, *flows, count=3)
    found = await reenter(store, *flows)
    assert {run.agent for run in found.runs} == {"buy", "child"}
    assert found.mismatches == []
    assert [each for run in found.runs for each in run.mismatches] == []


async def test_a_restarted_run_is_re_entered_with_its_new_arguments() -> None:
    async def loop(number: int) -> Any:
        await pay(number)
        if number == 1:
            await wait_for("next")
        return Restart(number + 1)

    store = MemoryStore()
    await store_run(store, make(loop), number=0)
    [run] = (await reenter(store, make(loop))).runs
    assert run.mismatches == []


async def test_a_run_parked_for_changed_arguments_fits_the_corrected_code() -> None:
    times = iter(range(100))

    async def wrong(euro: int) -> str:
        await pay(euro + next(times))
        await wait_for("x")
        return ""

    async def right(euro: int) -> str:
        await pay(euro)
        await wait_for("x")
        return ""

    store = MemoryStore()
    await store_run(store, make(wrong), euro=7)
    async with App([make(wrong)], store) as app:
        await app.signal("r", "x", "go")
        async for event in app.watch(status=["parked"]):
            if event.run_id == "r":
                break
    [run] = (await reenter(store, make(right))).runs
    assert run.mismatches == []
    [run] = (await reenter(store, make(wrong))).runs
    assert [each.kind for each in run.mismatches] == ["changed arguments"]


async def test_a_filter_and_a_limit_bound_the_runs() -> None:
    store, flows = MemoryStore(), (make(buy), make(child, "child"))
    async with App(flows, store, worker=False) as app:
        for number in range(4):
            await app.submit("buy", inputs={"euro": number})
        await app.submit("child", "x")
    found = await reenter(store, *flows, limit=3)
    assert (len(found.runs), found.truncated) == (3, True)
    found = await reenter(store, *flows, agent="child")
    assert ([run.agent for run in found.runs], found.truncated) == (["child"], False)


async def test_what_the_code_prints_does_not_reach_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    async def loud(euro: int) -> str:
        print("loud")
        await pay(euro)
        await wait_for("x")
        return ""

    store = MemoryStore()
    await store_run(store, make(loud), euro=1)
    capsys.readouterr()
    await reenter(store, make(loud))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "loud\n")


async def test_code_that_ends_the_process_is_a_mismatch_and_the_other_runs_are_reentered() -> None:
    async def wait(name: str) -> str:
        return str(await wait_for("go"))

    async def leave(name: str) -> str:
        if name == "b":
            sys.exit(3)
        return str(await wait_for("go"))

    store = MemoryStore()
    async with App([Workflow(wait, name="flow")], store) as app:
        for name in ("a", "b", "c"):
            with pytest.raises(RunWaiting):
                await app.run("flow", name, run_id=name)
    async with App([Workflow(leave, name="flow")], store, worker=False) as app:
        found = await reenter_runs(app.open_store, app.agents)
    assert {run.run_id for run in found.runs} == {"a", "b", "c"}
    [mismatch] = found.mismatches
    assert mismatch.startswith("run b of flow: it would fail before its first new step")
    assert "SystemExit: 3" in mismatch
