"""Every action of the page, in a real browser; the main ones on each durable store."""

import re

import pytest
from playwright.sync_api import Page, expect
from tests.web.ui.agents import LONG_TEXT, go_on
from tests.web.ui.journals import store_parked_run
from tests.web.ui.server import UIServer

from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.core.run.messages import Reply
from holdfast.core.run.waiting import Approve

#: Actions that differ only in their form need one store.
on_sqlite = pytest.mark.parametrize("any_server", ["sqlite"], indirect=True)


@pytest.fixture
def waiting(any_server: UIServer, request: pytest.FixtureRequest) -> str:
    """A run that waits for an approval, with an id of its own."""
    run_id = re.sub(r"[^a-z]+", "-", request.node.name)[:60]
    any_server.submit("clerk", "Pay the invoice of ann.", run_id, caller_id="alice")
    any_server.wait_for(run_id, "waiting")
    return run_id


def get_result(server: UIServer, run_id: str) -> str:
    """Return the content of the only tool result."""
    server.wait_for(run_id, "done")
    result = server.call(server.app.result(run_id))
    [content] = [message.content for message in result.messages if hasattr(message, "call_id")]
    return str(content)


def test_an_approval_in_the_inbox(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/inbox")
    task = page.get_by_role("article", name=f"Approval of run {waiting}")
    expect(task).to_contain_text('pay(amount=129.0, to="ann")')
    expect(task).to_contain_text("I pay ann now.")
    expect(task).to_contain_text("for finance")
    task.get_by_role("button", name="Approve a", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Approved.")
    assert get_result(any_server, waiting) == "paid 129.0 to ann"


def test_an_approval_with_edited_arguments(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/runs/{waiting}")
    page.get_by_text("Edit and approve").click()
    form = page.get_by_role("group", name="Arguments of pay")
    expect(form.get_by_label("to")).to_have_value("ann")
    form.get_by_label("amount").fill("99.5")
    page.get_by_role("button", name="Approve these arguments").click()
    expect(page.get_by_role("status")).to_contain_text("Approved.")
    assert get_result(any_server, waiting) == "paid 99.5 to ann"


@on_sqlite
def test_an_edit_that_does_not_fit_is_shown_again_with_its_error_and_approves_nothing(
    any_server: UIServer, plain_page: Page, waiting: str
) -> None:
    page = plain_page
    page.goto(f"{any_server.url}/inbox")
    task = page.get_by_role("article", name=f"Approval of run {waiting}")
    task.get_by_text("Edit and approve").click()
    task.get_by_label("amount").fill("much")
    task.get_by_label("to").fill("<b>bob</b>")
    task.get_by_role("button", name="Approve these arguments").click()
    expect(task.get_by_label("amount")).to_have_value("much")
    expect(task.get_by_label("to")).to_have_value("<b>bob</b>")
    expect(task.locator(".field-error")).to_have_text("Give a number. The model asked for 129.0.")
    assert any_server.call(any_server.app.get(waiting)).status is RunStatus.WAITING
    task.get_by_label("amount").fill("-3")
    task.get_by_role("button", name="Approve these arguments").click()
    expect(task.locator(".field-error")).to_contain_text("This is less than 0.")
    task.get_by_label("amount").fill("12")
    task.get_by_role("button", name="Approve these arguments").click()
    expect(page.get_by_role("status")).to_contain_text("Approved.")
    assert get_result(any_server, waiting) == "paid 12.0 to <b>bob</b>"


@on_sqlite
def test_an_edit_survives_a_live_update(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/inbox")
    task = page.get_by_role("article", name=f"Approval of run {waiting}")
    task.get_by_text("Edit and approve").click()
    task.get_by_label("amount").fill("17")
    any_server.call(store_parked_run(any_server.app.store, "update"))
    expect(page.get_by_role("article", name="Call in doubt of run update")).to_be_visible()
    expect(task.get_by_label("amount")).to_have_value("17")
    any_server.call(any_server.app.cancel("update"))


@on_sqlite
def test_several_calls_are_approved_as_they_were_shown(any_server: UIServer, plain_page: Page) -> None:
    for run_id in ("many-a", "many-b", "many-c"):
        any_server.submit("clerk", "Pay the invoice of ann.", run_id)
        any_server.wait_for(run_id, "waiting")
    plain_page.goto(f"{any_server.url}/inbox")
    plain_page.get_by_role("link", name=re.compile(r"Approve \d+ as asked")).click()
    expect(plain_page.get_by_role("button", name="Approve the ticked calls")).to_be_visible()
    for box in plain_page.get_by_role("checkbox").all():
        box.set_checked((box.get_attribute("aria-label") or "").endswith(("many-a", "many-b")))
    plain_page.get_by_role("button", name="Approve the ticked calls").click()
    expect(plain_page.get_by_role("status")).to_have_text("2 calls approved.")
    assert get_result(any_server, "many-a") == "paid 129.0 to ann"
    assert get_result(any_server, "many-b") == "paid 129.0 to ann"
    assert any_server.call(any_server.app.get("many-c")).status is RunStatus.WAITING
    any_server.call(any_server.app.cancel("many-c"))


def test_the_inbox_has_parked_runs_by_their_reason_and_unparks_a_group(any_server: UIServer, page: Page) -> None:
    store = any_server.app.store
    for run_id in ("key-1", "key-2"):
        any_server.call(
            store_parked_run(store, run_id, in_doubt=(), reason=f"poison: 3 workers died, last in {run_id}")
        )
    any_server.call(store_parked_run(store, "other-1", in_doubt=(), reason="<b>budget</b> of acme is used up"))
    page.goto(f"{any_server.url}/inbox")
    group = page.locator(".park", has_text="poison")
    expect(group).to_contain_text("2 runs")
    expect(page.locator(".park", has_text="<b>budget</b>")).to_contain_text("other-1")
    counts = [int(text) for text in page.locator(".chip b").all_inner_texts()]
    expect(page.locator("#pending-count")).to_contain_text(str(sum(counts)))
    group.get_by_role("checkbox").check()
    page.get_by_role("button", name="Unpark", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("2 runs unparked")
    any_server.wait_for("key-1", "done", "waiting")
    any_server.wait_for("key-2", "done", "waiting")
    assert any_server.call(any_server.app.get("other-1")).status is RunStatus.PARKED
    any_server.call(any_server.app.cancel("other-1"))


@on_sqlite
def test_a_denial_with_a_reason_by_keyboard(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/runs/{waiting}")
    page.keyboard.press("d")
    page.keyboard.type("not in the budget")
    page.get_by_role("button", name="Deny", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Denied.")
    assert "not in the budget" in get_result(any_server, waiting)


@on_sqlite
def test_an_answer_without_javascript(any_server: UIServer, plain_page: Page) -> None:
    any_server.submit("asker", "A trip.", "ask-plain")
    any_server.wait_for("ask-plain", "waiting")
    plain_page.goto(f"{any_server.url}/inbox")
    task = plain_page.get_by_role("article", name="Question of run ask-plain")
    task.get_by_label("Answer").fill("in spring")
    task.get_by_role("button", name="Answer").click()
    expect(plain_page.get_by_role("status")).to_contain_text("Answered.")
    assert get_result(any_server, "ask-plain") == "in spring"


@on_sqlite
def test_an_option_of_a_question_is_a_button(any_server: UIServer, page: Page) -> None:
    any_server.submit("asker", "A trip.", "ask-option")
    any_server.wait_for("ask-option", "waiting")
    page.goto(f"{any_server.url}/runs/ask-option")
    page.get_by_role("button", name="June").click()
    expect(page.get_by_role("status")).to_contain_text("Answered.")
    assert get_result(any_server, "ask-option") == "June"


@on_sqlite
def test_two_people_answer_and_the_first_wins(any_server: UIServer, plain_page: Page, waiting: str) -> None:
    plain_page.goto(f"{any_server.url}/runs/{waiting}")
    other = plain_page.context.new_page()
    other.goto(f"{any_server.url}/runs/{waiting}")
    plain_page.get_by_role("button", name="Approve", exact=True).click()
    get_result(any_server, waiting)
    other.get_by_role("button", name="Approve", exact=True).click()
    expect(other.get_by_role("heading", name="Not found")).to_be_visible()


def test_a_run_is_cancelled(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/runs/{waiting}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1 + .status")).to_have_text("cancelled")
    assert any_server.call(any_server.app.get(waiting)).status is RunStatus.CANCELLED


def test_a_failed_run_is_resumed(any_server: UIServer, page: Page) -> None:
    any_server.submit("broken", "Try.", "fails")
    any_server.wait_for("fails", "failed")
    page.goto(f"{any_server.url}/runs/fails")
    expect(page.locator("main")).to_contain_text("no such account")
    before = any_server.call(get_record(any_server.app.store, "fails")).token  # type: ignore[arg-type]
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("resumed")
    any_server.wait_for("fails", "failed")  # its model is still broken
    assert any_server.call(get_record(any_server.app.store, "fails")).token > before  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ['{"receipt": 4711}', ""], ids=["resolved", "unknown"])
def test_a_parked_run_is_released_with_the_result_of_its_call_in_doubt(
    any_server: UIServer, plain_page: Page, given: str, request: pytest.FixtureRequest
) -> None:
    run_id = re.sub(r"[^a-z]+", "-", request.node.name)[-60:]
    any_server.call(store_parked_run(any_server.app.store, run_id))
    plain_page.goto(f"{any_server.url}/runs/{run_id}")
    doubts = plain_page.get_by_role("article", name=f"Call in doubt of run {run_id}")
    expect(doubts).to_contain_text('pay(amount=129.0, to="ann")')
    expect(plain_page.locator("#run-side")).to_contain_text(f"w-{run_id}")
    if given:
        doubts.get_by_label("It happened").check()
        doubts.get_by_label("Result of pay").fill(given)
    else:
        doubts.get_by_label("Unknown: tell the model").check()
    doubts.get_by_role("button", name="Decide and unpark").click()
    expect(plain_page.get_by_role("status")).to_contain_text("Unparked.")
    assert get_result(any_server, run_id).startswith("{'receipt': 4711}" if given else "Unknown outcome")


@on_sqlite
def test_a_call_in_doubt_is_decided_in_the_inbox(any_server: UIServer, page: Page) -> None:
    any_server.call(store_parked_run(any_server.app.store, "doubt-inbox"))
    page.goto(f"{any_server.url}/inbox")
    task = page.get_by_role("article", name="Call in doubt of run doubt-inbox")
    expect(task).to_contain_text("Pay the invoice of ann.")
    expect(task.get_by_label("Result of pay")).to_be_hidden()
    task.get_by_label("It happened").check()
    task.get_by_label("Result of pay").fill("booked")
    task.get_by_role("button", name="Decide and unpark").click()
    expect(page.get_by_role("status")).to_contain_text("Unparked.")
    assert get_result(any_server, "doubt-inbox") == "booked"


@on_sqlite
@pytest.mark.parametrize("path", ["/runs/{run_id}", "/inbox"], ids=["run", "inbox"])
def test_a_call_that_did_not_happen_is_made(any_server: UIServer, page: Page, path: str) -> None:
    run_id = f"doubt-made-{path.count('{')}"
    any_server.call(store_parked_run(any_server.app.store, run_id))
    page.goto(any_server.url + path.format(run_id=run_id))
    task = page.get_by_role("article", name=f"Call in doubt of run {run_id}")
    task.get_by_label("It did not happen").check()
    task.get_by_role("button", name="Decide and unpark").click()
    expect(page.get_by_role("status")).to_contain_text("Unparked.")
    any_server.wait_for(run_id, "waiting")
    [call] = [call for call in any_server.call(any_server.app.pending()) if call.run_id == run_id]
    assert (call.call_id, call.kind) == ("p1", "approval"), "the call is made as any other: it needs an approval"
    any_server.call(any_server.app.cancel(run_id))


@pytest.fixture(scope="module")
def settled(any_server: UIServer) -> str:
    """A run of three steps, each with something to edit."""
    any_server.submit("reader", "Read both pages.", "fork-me")
    any_server.wait_for("fork-me", "done")
    return f"{any_server.url}/runs/fork-me"


def list_texts(server: UIServer, page: Page) -> list[str]:
    """Return what people and tools have said in the run of the page, when it has ended."""
    expect(page.get_by_role("status")).to_contain_text("This is the fork.")
    run_id = page.locator("h1").inner_text()
    assert run_id != "fork-me"
    server.wait_for(run_id, "done")
    messages = server.call(server.app.result(run_id)).messages
    return [str(getattr(each, "content", None) or each.text) for each in messages if not isinstance(each, Reply)]


def test_a_run_is_forked_with_an_edited_result(any_server: UIServer, page: Page, settled: str) -> None:
    page.goto(settled)
    page.locator("#step-2").get_by_role("link", name="Fork at step 2").click()
    form = page.get_by_role("region", name="Fork at step 2")
    result = form.get_by_label("Result of read_page")
    assert result.input_value() == LONG_TEXT, "the whole text, which the page of the run cuts"
    result.fill("torn")
    form.get_by_role("button", name="Fork with this result").click()
    assert list_texts(any_server, page) == ["Read both pages.", LONG_TEXT, "torn"]


def test_without_javascript_a_run_is_forked_with_an_edited_prompt_or_a_message(
    any_server: UIServer, plain_page: Page, settled: str
) -> None:
    plain_page.goto(settled)
    plain_page.get_by_role("link", name="Fork at step 1").click()
    plain_page.get_by_label("Prompt").fill("Read them slowly.")
    plain_page.get_by_role("button", name="Start again with this prompt").click()
    assert list_texts(any_server, plain_page) == ["Read them slowly.", LONG_TEXT, LONG_TEXT]
    plain_page.goto(f"{settled}/fork/1")
    plain_page.get_by_label("Continue after step 1").fill("Hurry.")
    plain_page.get_by_role("button", name="Fork after step 1").click()
    assert list_texts(any_server, plain_page) == ["Read both pages.", LONG_TEXT, "Hurry.", LONG_TEXT]


@on_sqlite
def test_a_message_reaches_the_run(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/runs/{waiting}")
    page.get_by_label("Message to the run").fill("Use the other account.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_contain_text("Sent.")
    page.get_by_role("button", name="Approve a", exact=True).click()
    any_server.wait_for(waiting, "done")
    texts = [getattr(message, "text", "") for message in any_server.call(any_server.app.result(waiting)).messages]
    assert "Use the other account." in texts


def test_the_run_page_is_live(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/runs/{waiting}")
    expect(page.locator("h1 + .status")).to_have_text("waiting")
    page.locator("#tail details.call > summary").click()
    any_server.call(any_server.app.answer(waiting, "p1", Approve()))
    expect(page.locator("h1 + .status")).to_have_text("done")
    expect(page.locator("#tail")).to_contain_text("It is settled.")
    expect(page.locator("#tail details.call pre").last).to_have_text("paid 129.0 to ann")  # still open


@on_sqlite
def test_the_inbox_is_live(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/inbox")
    task = page.get_by_role("article", name=f"Approval of run {waiting}")
    expect(task).to_be_visible()
    any_server.call(any_server.app.cancel(waiting))
    expect(task).to_have_count(0)


@on_sqlite
def test_the_text_of_a_reply_appears_while_it_is_written(any_server: UIServer, page: Page) -> None:
    go_on.clear()
    any_server.submit("writer", "Tell me a story.", "story")
    any_server.wait_for("story", "running")
    page.goto(f"{any_server.url}/runs/story")
    expect(page.locator("#draft")).to_have_text("Once upon")
    go_on.set()
    expect(page.locator("#step-1 .turn").last).to_contain_text("Once upon a time.")
    expect(page.locator("#draft")).to_be_hidden()


@on_sqlite
def test_a_person_takes_part_in_a_conversation(any_server: UIServer, page: Page) -> None:
    chat = any_server.app.conversation("greeter", "kitchen")
    any_server.call(chat.send("Hello from the code."))
    page.goto(any_server.url)
    page.get_by_role("link", name="Conversations").click()
    expect(page.locator(".talk")).to_have_count(1)
    expect(page.locator(".talk")).to_contain_text("1 turn")
    page.locator(".talk").click()
    expect(page.locator("#messages")).to_contain_text("Hello from the code.")
    page.get_by_role("link", name="Run page").click()
    page.get_by_label("Message to the run").fill("Hello from the page.")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("Hello from the page.")
    expect(page.locator("#step-2")).to_contain_text("Hello again.")
