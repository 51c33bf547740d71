"""What a person decides and starts: with and without JavaScript, light and dark, on each durable store."""

import re

from playwright.sync_api import expect
from tests.web.ui.agents import LONG_TEXT, go_on
from tests.web.ui.conftest import find_serious
from tests.web.ui.journals import store_fanout, store_parked_run
from tests.web.ui.visitor import Visitor

from holdfast.checkpoint.codec import decode_begin
from holdfast.checkpoint.store import get_record
from holdfast.core.run.messages import Reply


def test_approve_edit_and_deny(visitor: Visitor) -> None:
    page = visitor.page
    approved, edited, denied = visitor.submit_all("clerk", "a", "b", "c", status="waiting", caller_id="alice")
    visitor.open("/inbox")
    task = visitor.find_task("Approval", approved)
    expect(task).to_contain_text('pay(amount=129.0, to="ann")')
    expect(task).to_contain_text("I pay ann now.")
    expect(task).to_contain_text("audience finance")
    visitor.click("Approve", task)
    visitor.expect_said("Approved.")
    assert visitor.get_results(approved) == ["paid 129.0 to ann"]

    task = visitor.find_task("Approval", edited)
    task.get_by_text("Edit and approve").click()
    expect(task.get_by_label("to")).to_have_value("ann")
    task.get_by_label("amount").fill("much")
    task.get_by_label("to").fill("<b>bob</b>")
    visitor.click("Approve these arguments", task)
    expect(task.locator(".field-error")).to_have_text("Give a number. The model asked for 129.0.")
    expect(task.get_by_label("amount")).to_have_value("much")
    expect(task.get_by_label("to")).to_have_value("<b>bob</b>")
    assert not visitor.has_script or find_serious(page) == []
    assert visitor.get_status(edited) == "waiting"
    task.get_by_label("amount").fill("-3")
    visitor.click("Approve these arguments", task)
    expect(task.locator(".field-error")).to_contain_text("This is less than 0.")
    task.get_by_label("amount").fill("12")
    visitor.click("Approve these arguments", task)
    visitor.expect_said("Approved.")
    assert visitor.get_results(edited) == ["paid 12.0 to <b>bob</b>"]
    visitor.open(f"/runs/{edited}")
    expect(page.locator("#step-1 .call")).to_contain_text("amount=129.0 → 12, to")

    visitor.open(f"/runs/{denied}")
    page.get_by_text("Deny…").click()
    page.get_by_label("Reason, for the model").fill("not in the budget")
    visitor.click("Deny")
    visitor.expect_said("Denied.")
    assert "not in the budget" in visitor.get_results(denied)[0]


def test_approve_several(visitor: Visitor) -> None:
    page = visitor.page
    first, second, third = visitor.submit_all("clerk", "a", "b", "c", status="waiting")
    visitor.open("/inbox")
    page.get_by_role("link", name=re.compile(r"Approve \d+ as asked")).click()
    expect(page.get_by_role("button", name="Approve the ticked calls")).to_be_visible()
    for box in page.get_by_role("checkbox").all():
        box.set_checked((box.get_attribute("aria-label") or "").endswith((first, second)))
    visitor.click("Approve the ticked calls")
    visitor.expect_said("2 calls approved.")
    assert not visitor.has_script or find_serious(page) == []
    assert [*visitor.get_results(first), *visitor.get_results(second)] == ["paid 129.0 to ann"] * 2
    assert visitor.get_status(third) == "waiting"


def test_answer_a_question(visitor: Visitor) -> None:
    written, chosen = visitor.submit_all("asker", "a", "b", status="waiting")
    visitor.open("/inbox")
    task = visitor.find_task("Question", written)
    task.get_by_label("Answer").fill("in spring")
    visitor.click("Answer", task)
    visitor.expect_said("Answered.")
    assert visitor.get_results(written) == ["in spring"]
    visitor.open(f"/runs/{chosen}")
    visitor.click("June")
    visitor.expect_said("Answered.")
    assert visitor.get_results(chosen) == ["June"]


def test_decide_calls_in_doubt(visitor: Visitor) -> None:
    server, page = visitor.server, visitor.page
    happened, did_not, unknown = map(visitor.name, ("a", "b", "c"))
    for run_id in (happened, did_not, unknown):
        server.call(store_parked_run(server.app.store, run_id))
    visitor.open("/inbox")
    task = visitor.find_task("Call in doubt", happened)
    expect(task).to_contain_text("Pay the invoice of ann.")
    expect(task).to_contain_text('pay(amount=129.0, to="ann")')
    expect(task.get_by_label("Result of pay")).to_be_hidden()
    task.get_by_label("It happened").check()
    task.get_by_label("Result of pay").fill('{"receipt": 4711}')
    visitor.click("Decide and unpark", task)
    visitor.expect_said("Unparked.")
    assert visitor.get_results(happened) == ["{'receipt': 4711}"]

    task = visitor.find_task("Call in doubt", did_not)
    task.get_by_label("It did not happen").check()
    visitor.click("Decide and unpark", task)
    visitor.expect_said("Unparked.")
    server.wait_for(did_not, "waiting")
    [call] = [call for call in server.call(server.app.pending()) if call.run_id == did_not]
    assert (call.call_id, call.kind) == ("p1", "approval"), "the call is made as any other: it needs an approval"

    visitor.open(f"/runs/{unknown}")
    expect(page.locator("#run-side")).to_contain_text(f"w-{unknown}")
    page.get_by_label("Unknown: tell the model").check()
    visitor.click("Decide and unpark")
    visitor.expect_said("Unparked.")
    assert visitor.get_results(unknown)[0].startswith("Unknown outcome")


def test_unpark_one_and_a_group(visitor: Visitor) -> None:
    server, page = visitor.server, visitor.page
    one, *group = map(visitor.name, ("a", "b", "c", "d"))
    for run_id in group:
        reason = f"poison of {visitor.prefix}: 3 workers died, last in {run_id}"
        server.call(store_parked_run(server.app.store, run_id, in_doubt=(), reason=reason))
    budget = "<b>budget</b> is used up"
    server.call(store_parked_run(server.app.store, one, in_doubt=(), reason=budget, is_begun=False))
    visitor.open("/inbox")
    park = page.locator(".park", has_text=f"poison of {visitor.prefix}")
    expect(park).to_contain_text("3 runs")
    expect(page.locator(".park", has_text="<b>budget</b>")).to_contain_text(one)
    counts = [int(text) for text in page.locator(".chip b").all_inner_texts()]
    expect(page.locator("#pending-count")).to_contain_text(str(sum(counts)))
    park.get_by_role("checkbox").check()
    visitor.click("Unpark")
    visitor.expect_said("3 runs unparked")
    for run_id in group:
        server.wait_for(run_id, "done", "waiting")
    assert visitor.get_status(one) == "parked"
    visitor.open(f"/runs/{one}")
    visitor.click("Unpark")
    visitor.expect_said("Unparked.")
    server.wait_for(one, "done", "waiting")


def test_cancel_resume_and_send(visitor: Visitor) -> None:
    server, page = visitor.server, visitor.page
    waiting = visitor.submit("clerk", "a", "waiting")
    visitor.open(f"/runs/{waiting}")
    page.get_by_label("Message to the run").fill("Use the other account.")
    visitor.click("Send")
    visitor.expect_said("Sent.")
    visitor.click("Cancel")
    expect(page.locator("h1 + .status")).to_have_text("cancelled")
    assert visitor.get_status(waiting) == "cancelled"
    visitor.click("Resume")
    visitor.expect_said("resumed")
    server.wait_for(waiting, "waiting")  # for the approval, as before
    visitor.open(f"/runs/{waiting}")
    visitor.click("Approve")
    assert visitor.get_results(waiting) == ["paid 129.0 to ann"]
    messages = server.call(server.app.result(waiting)).messages
    assert "Use the other account." in [getattr(message, "text", "") for message in messages]

    failed = visitor.submit("broken", "b", "failed")
    visitor.open(f"/runs/{failed}")
    expect(page.get_by_role("region", name="Error")).to_contain_text("no such account")
    before = server.call(get_record(server.app.open_store, failed)).token
    visitor.click("Resume")
    visitor.expect_said("resumed")
    server.wait_for(failed, "failed")  # its model is still broken
    assert server.call(get_record(server.app.open_store, failed)).token > before


def list_texts(visitor: Visitor) -> list[str]:
    """Return what people and tools have said in the fork that the page shows, when it has ended."""
    visitor.expect_said("This is the fork.")
    fork = visitor.page.locator("h1").inner_text()
    visitor.server.wait_for(fork, "done")
    messages = visitor.server.call(visitor.server.app.result(fork)).messages
    return [str(getattr(each, "content", None) or each.text) for each in messages if not isinstance(each, Reply)]


def test_fork_with_an_edit_and_pick_the_better_result(visitor: Visitor) -> None:
    page, prompt = visitor.page, "Pay the invoice of ann."
    settled = visitor.submit("reader", "a", "done")
    visitor.open(f"/runs/{settled}")
    page.get_by_role("link", name="Fork at step 2").click()
    form = page.get_by_role("region", name="Fork at step 2")
    result = form.get_by_label("Result of read_page")
    assert result.input_value() == LONG_TEXT, "the whole text, which the page of the run cuts"
    result.fill("torn")
    visitor.click("Fork with this result", form)
    assert list_texts(visitor) == [prompt, LONG_TEXT, "torn"]
    visitor.open(f"/runs/{settled}")
    page.get_by_role("link", name="Fork at step 1").click()
    page.get_by_role("textbox", name="Prompt").fill("Read them slowly.")
    visitor.click("Start again with this prompt")
    assert list_texts(visitor) == ["Read them slowly.", LONG_TEXT, LONG_TEXT]
    visitor.open(f"/runs/{settled}/fork/1")
    page.get_by_label("Continue after step 1").fill("Hurry.")
    visitor.click("Fork after step 1")
    assert list_texts(visitor) == [prompt, LONG_TEXT, "Hurry.", LONG_TEXT]

    fork = page.locator("h1").inner_text()
    visitor.open(f"/runs/{settled}")
    visitor.click("Compare", role="link")
    column = page.get_by_role("region", name=fork)
    column.get_by_role("button", name="Pick").click()
    expect(column).to_contain_text("Picked by local")
    visitor.click("Undo", column)
    expect(page.locator(".card.result.picked")).to_have_count(0)


def test_pick_an_answer_of_a_fan_out(visitor: Visitor) -> None:
    server, page, run_id = visitor.server, visitor.page, visitor.name("a")
    server.call(store_fanout(server.app.store, run_id))
    visitor.open(f"/runs/{run_id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Compare {run_id}")  # its page
    expect(page.locator(".card.result")).to_have_count(3)
    two = page.get_by_role("region", name="fake:two")
    expect(two).to_contain_text("<b>I</b> print two.")
    expect(page.get_by_role("region", name="fake:three").locator(".status")).to_have_text("interrupted")
    expect(page.get_by_role("note")).to_have_text(
        "Read these before you pick or apply a result, programs may execute them: .github/workflows/ci.yml"
    )
    risky = page.get_by_role("region", name=".github/workflows/ci.yml")
    expect(risky).to_contain_text("programs may execute this file")
    expect(page.get_by_role("region", name="app.py")).not_to_contain_text("programs may execute")
    two.get_by_role("button", name="Pick").click()
    expect(two).to_contain_text("Picked by local")
    columns = page.get_by_role("region", name="app.py").locator(".result")
    expect(columns.nth(0).locator(".removed")).to_have_text("-print(2)")
    expect(columns.nth(0).locator(".added")).to_have_text("+print(1)")
    expect(columns.nth(1).locator(".added, .removed")).to_have_count(0)
    expect(columns.nth(2)).to_contain_text("not changed")
    expect(page.get_by_role("region", name="old.py").locator(".result").first).to_contain_text("deleted")
    visitor.click("Undo", two)
    expect(page.locator(".card.result.picked")).to_have_count(0)
    page.get_by_role("region", name="fake:one").get_by_role("link", name="Compare with this").click()
    expect(columns.nth(1).locator(".removed")).to_have_text("-print(1)")
    response = page.goto(f"{server.url}/runs/{run_id}/compare?base=unheard-of")
    assert response is not None
    assert response.status == 422


def test_start_a_run(visitor: Visitor) -> None:
    server, page = visitor.server, visitor.page
    visitor.click("New run", role="link")
    page.get_by_label("Agent").select_option("greeter")
    page.get_by_label("Input").fill("Good morning,\nsay hello.")
    page.get_by_label("Data").fill('{"order": {"id": "A17", "lines": [1, 2]}}')
    page.get_by_label("Labels").fill("acme")
    visitor.click("Start the run")
    expect(page.get_by_role("alert")).to_contain_text("write one a line, such as tenant=acme")
    expect(page.get_by_label("Agent")).to_have_value("greeter")
    expect(page.get_by_label("Input")).to_have_value("Good morning,\nsay hello.")
    expect(page.get_by_label("Labels")).to_have_value("acme")
    assert not visitor.has_script or find_serious(page) == []
    page.get_by_label("Labels").fill("tenant = acme\n\nnote=a=b")
    visitor.click("Start the run")
    visitor.expect_said("Queued.")
    run_id = page.locator("h1").inner_text()
    server.wait_for(run_id, "done")
    run = server.call(server.app.get(run_id))
    assert (run.agent, run.prompt) == ("greeter", "Good morning,\nsay hello.")
    assert run.labels == {"tenant": "acme", "note": "a=b"}
    stored = server.call(server.app.open_store.load(run_id))
    assert decode_begin(stored).info.inputs == {"order": {"id": "A17", "lines": [1, 2]}}


def test_take_part_in_a_conversation(visitor: Visitor) -> None:
    server, page = visitor.server, visitor.page
    visitor.open("/conversations")
    page.get_by_text("New conversation").click()
    page.get_by_label("Agent").select_option("writer")
    page.get_by_label("Key").fill(visitor.prefix)
    page.get_by_label("First message").fill("Write.")
    go_on.clear()
    try:
        visitor.click("Begin")
        run_id = f"chat:writer:{visitor.prefix}"
        expect(page).to_have_url(re.compile(re.escape(f"/conversations/{run_id}")))
        expect(page.locator(".from-user")).to_contain_text("Write.")
        server.wait_for(run_id, "running")
        for number, when in enumerate(("queue it", "steer this turn", "interrupt it"), 1):
            visitor.open(f"/conversations/{run_id}")
            page.get_by_role("radio", name=when).check()
            page.get_by_label("Message", exact=True).fill(f"And {when}?")
            if visitor.has_script:
                page.get_by_label("Message", exact=True).press("Enter")
            else:
                visitor.click("Send")
            visitor.expect_said("Sent")
            expect(page.locator(".queued-msg")).to_have_count(number)
    finally:
        go_on.set()
    server.call(server.app.conversation("writer", visitor.prefix).send("The end."))
    visitor.open(f"/conversations/{run_id}")
    expect(page.locator(".queued-msg")).to_have_count(0)
    said = [text.partition(" · ")[0] for text in page.locator(".turn-mark, .from-user .bubble").all_inner_texts()]
    assert " | ".join(text.strip() for text in said) == (
        "turn 1 | Write. | turn 2 | And interrupt it? | And steer this turn? | "
        "turn 3 | And queue it? | turn 4 | The end."
    )
