"""The page of a workflow: the tree of its recorded calls."""

import re

import msgspec
import pytest
from playwright.sync_api import Page, expect
from tests.web.ui.journals import HOSTILE, store_workflow_run
from tests.web.ui.server import UIServer

from holdfast.checkpoint.codec import Step, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Reply, ToolCall, ToolResult
from holdfast.web.ui.run_view.call_tree import CallGroup, CallTree, build_tree
from holdfast.web.ui.run_view.run_steps import build_steps


def build(*script: str) -> CallTree:
    """Build the tree of a journal: `pay` announces the call, `pay!` records its result, `pay?` an error."""
    entries: list[Entry] = []
    finished = 0
    for word in script:
        tool = word.rstrip("!?").partition(".")[0]
        call_id = word.rstrip("!?")
        if word[-1] not in "!?":
            arguments = {"call_id": word.partition(".")[2]} if tool.startswith("undo ") else {"id": call_id}
            body = NATIVE_CODEC.encode(Reply(tool_calls=[ToolCall(id=call_id, name=tool, arguments=arguments)]))
            entries.append(Entry(seq=len(entries), kind=EntryKind.MESSAGE, body=body))
            continue
        finished += 1
        content = {"winner": "paid", "abandoned": ["sleep.1"]} if tool == "first" else "ok"
        result = ToolResult(call_id=call_id, tool=tool, content=content, error=word[-1] == "?")
        step = Step(at=SYSTEM_CLOCK.now(), progress=Progress(steps=finished))
        for kind, body in ((EntryKind.MESSAGE, NATIVE_CODEC.encode(result)), (EntryKind.STEP, encode(step))):
            entries.append(Entry(seq=len(entries), kind=kind, body=body))
    info = RunInfo(run_id="r", agent_name="w", loop="workflow")
    now = SYSTEM_CLOCK.now()
    record = RunRecord(
        run_id="r",
        agent_name="w",
        info=encode(info),
        progress=encode(Progress(steps=finished)),
        status=RunStatus.RUNNING,
        created_at=now,
        updated_at=now,
        owner="w1",
        owner_alive=True,
        token=1,
        strikes=0,
        not_before=now,
        reason="",
        cancel_requested=False,
        expires_at=None,
        next_seq=len(entries),
        size=0,
    )
    return build_tree(build_steps(entries, record, is_end=True, finished_steps=finished).steps, [])


def describe(group: CallGroup) -> str:
    inner = f"({', '.join(map(describe, group.parts))})" if group.parts else ""
    return f"{group.kind} {group.title}{inner}"


def test_calls_that_began_before_another_had_ended_ran_at_once() -> None:
    tree = build("a.1", "a.1!", "b.1", "c.1", "c.1!", "b.1!", "d.1", "d.1!")
    assert [describe(group) for group in tree.groups] == ["call a", "parallel 2 at once(call b, call c)", "call d"]
    assert [group.number for group in tree.groups] == [1, 2, 3]


def test_many_equal_calls_are_one_node_with_how_many_ran_at_once() -> None:
    calls = [f"a.{number}" for number in range(6)]
    one_by_one = [word for call in calls for word in (call, f"{call}!")]
    [group] = build(*one_by_one).groups
    assert (describe(group), group.width) == ("many a × 6", 1)
    assert group.brief == 'id="a.0" … "a.5"'
    [group] = build(*calls[:3], "a.0!", *calls[3:], *(f"{call}!" for call in calls[1:])).groups
    assert (describe(group), group.width) == ("many a × 6", 5)
    two_by_two = [
        word for at in (0, 2, 4) for word in (*calls[at : at + 2], *(f"{call}!" for call in calls[at : at + 2]))
    ]
    [group] = build(*two_by_two).groups
    assert (describe(group), group.width) == ("many a × 6", 2)
    tree = build(*calls, "b.1", *(f"{call}!" for call in calls), "b.1?")
    assert [describe(group) for group in tree.groups] == ["parallel 7 at once(many a × 6, call b)"]
    assert [call.tool for call in tree.failed] == ["b"]


def test_an_undo_names_its_call_and_the_call_its_undo() -> None:
    tree = build("a.1", "a.1!", "b.1", "b.1?", "undo a.a.1", "undo a.a.1!")
    [first, _, undo] = tree.groups
    assert (first.calls[0].state, undo.kind, undo.calls[0].undoes) == ("undone", "undo", first.calls[0].view)
    [*_, undo] = build("a.1", "a.1!", "undo a.a.1", "undo a.a.1?").groups
    assert undo.calls[0].state == "failed"
    assert build("a.1", "a.1!", "undo a.a.1", "undo a.a.1?").groups[0].calls[0].state == "not undone"


def test_a_call_that_lost_a_race_ends_with_the_race() -> None:
    tree = build("pay.1", "sleep.1", "pay.1!", "first.1", "first.1!", "ship.1", "ship.1!")
    assert [describe(group) for group in tree.groups] == ["parallel 2 at once(call pay, call sleep)", "call ship"]
    assert tree.groups[0].note == "paid came first"
    assert [call.state for call in tree.groups[0].calls] == ["done", "abandoned"]


def test_a_tree_is_also_a_list() -> None:
    tree = build("a.1", "b.1", "a.1!", "b.1?")
    assert [describe(group) for group in tree.select("list").groups] == ["call a", "call b"]
    assert [describe(group) for group in tree.select("failed").groups] == ["call b"]


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trip(any_server: UIServer) -> UIServer:
    any_server.submit("book_trip", "", "trip-1", inputs={"city": "Lisbon", "nights": 3}, caller_id="kim")
    any_server.wait_for("trip-1", "waiting")
    return any_server


def test_the_tree_of_a_workflow_follows_it_to_its_end(trip: UIServer, page: Page) -> None:
    page.goto(f"{trip.url}/runs/trip-1")
    expect(page.get_by_role("region", name="Input")).to_contain_text('city"Lisbon"')
    calls = page.get_by_role("region", name="Recorded calls")
    many = calls.locator("details.call", has_text="price_for × 24")
    expect(many.locator("> summary")).to_contain_text("24 done")
    many.locator("> summary").click()
    expect(many.locator("details.call")).to_have_count(24)
    flight = calls.locator(".branch", has_text="book_flight").first
    expect(flight).to_contain_text("undone")
    expect(flight).to_contain_text("once")
    expect(calls.locator(".branch.bad")).to_contain_text("LookupError: no room on 2 June")
    expect(calls.locator("[id^=undo-]")).to_contain_text("undoes book_flight")
    expect(calls.locator(".wait-box")).to_contain_text("Waits for the signal “dates”")
    expect(calls.locator("details.call", has_text="travel")).to_contain_text("child run · 1 step")
    trip.call(trip.app.signal("trip-1", "dates", "8 June"))
    expect(calls.locator(".wait-box")).to_contain_text(
        re.compile('Waited for.*came "8 June".*no worker was held', re.DOTALL)
    )
    expect(calls.locator(".tag.undo")).to_have_text(["↩ can be undone", "↩ can be undone"])
    expect(many.locator("details.call").first).to_be_visible()  # what was open stays open
    page.get_by_role("button", name="yes").click()
    trip.wait_for("trip-1", "done")
    page.goto(f"{trip.url}/runs/trip-1")
    expect(page.get_by_role("region", name="Result")).to_contain_text("Casa do Largo")
    expect(calls.locator(".par", has_text="agreed came first")).to_contain_text("abandoned")


def test_the_head_has_the_progress_of_map_items_and_follows_it(any_server: UIServer, page: Page) -> None:
    any_server.submit("find_rooms", "", "rooms-1")
    any_server.wait_for("rooms-1", "waiting")
    page.goto(f"{any_server.url}/runs/rooms-1")
    expect(page.locator(".figures")).to_contain_text("find_room 3 of 4, 1 failed")
    any_server.call(any_server.app.signal("rooms-1", "late"))
    expect(page.locator(".figures")).to_contain_text("find_room 4 of 4, 1 failed")


def test_without_javascript_calls_open_are_listed_and_searched(trip: UIServer, plain_page: Page) -> None:
    plain_page.goto(f"{trip.url}/runs/trip-1")
    plain_page.get_by_role("link", name="Failed", exact=True).click()
    expect(plain_page.locator(".flow details.call > summary")).to_have_count(1)
    plain_page.get_by_role("link", name="List").click()
    assert plain_page.locator(".flow details.call > summary").count() > 30
    plain_page.get_by_label("Search in this run").fill("TP 533")
    plain_page.get_by_role("button", name="Search").click()
    plain_page.get_by_role("link", name=re.compile("step")).first.click()
    expect(plain_page.locator(".flow")).to_contain_text("TP 533")


def test_a_workflow_is_forked_at_a_call(trip: UIServer, page: Page) -> None:
    page.goto(f"{trip.url}/runs/trip-1")
    call = page.locator("details.call", has_text="travel").first
    call.locator("> summary").click()
    call.get_by_role("link", name="Fork after this call").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Fork trip-1")
    result = page.get_by_label("Result of")
    result.fill('{"number": "XX 1"}')
    page.get_by_role("button", name="Fork with this result").click()
    expect(page.get_by_role("status")).to_contain_text("This is the fork.")
    expect(page.locator(".flow")).to_contain_text("XX 1")


def test_a_hostile_workflow_is_text(server: UIServer, page: Page) -> None:
    shown = server.call(store_workflow_run(server.app.store, "hostile-flow", [*HOSTILE]))
    for query in ("", "?show=list", "?show=failed"):
        page.goto(f"{server.url}/runs/hostile-flow{query}")
        for details in page.locator("details").all():
            details.evaluate("element => element.open = true")
        text = page.locator("main").inner_text()
        assert page.evaluate("window.hacked") is None
        if not query:
            missing = [line for line in shown if msgspec.json.encode(line).decode().strip('"') not in text]
            assert [line for line in missing if line not in text] == []


def test_a_workflow_of_many_calls_is_shown_in_windows(server: UIServer, page: Page) -> None:
    server.call(store_workflow_run(server.app.store, "long-flow", [f"tool{number % 3}" for number in range(400)]))
    page.goto(f"{server.url}/runs/long-flow")
    expect(page.locator(".flow")).to_contain_text("399")
    page.get_by_role("link", name="Earlier calls").click()
    expect(page.locator("#step-400")).to_have_count(0)
    last = page.locator(".flow-step i").last.get_attribute("id")
    page.get_by_role("link", name="Later calls").click()
    expect(page.locator(f"#{last}")).to_have_count(1)  # windows overlap
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("#step-400")).to_have_count(1)
