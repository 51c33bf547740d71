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
    page.get_by_role("textbox", name="Arguments").fill('{"amount": 99.5, "to": "ann"}')
    page.get_by_role("button", name="Approve these arguments").click()
    expect(page.get_by_role("status")).to_contain_text("Approved.")
    assert get_result(any_server, waiting) == "paid 99.5 to ann"


@on_sqlite
def test_edited_arguments_that_are_no_json_are_refused(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/runs/{waiting}")
    page.get_by_text("Edit and approve").click()
    page.get_by_role("textbox", name="Arguments").fill("{amount: 99")
    page.get_by_role("button", name="Approve these arguments").click()
    expect(page.get_by_text("the arguments are not a JSON object")).to_be_visible()
    assert any_server.call(any_server.app.get(waiting)).status is RunStatus.WAITING


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
    doubts = plain_page.get_by_role("region", name="1 call without a known outcome")
    expect(doubts).to_contain_text('pay(amount=129.0, to="ann")')
    expect(plain_page.locator("#run-side")).to_contain_text(f"w-{run_id}")
    doubts.get_by_label("Result of pay").fill(given)
    doubts.get_by_role("button", name="Unpark").click()
    expect(plain_page.get_by_role("status")).to_contain_text("Unparked.")
    assert get_result(any_server, run_id).startswith("{'receipt': 4711}" if given else "Unknown outcome")


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
    page.locator("#tail details.call summary").click()
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
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("waits for the next message, after 1 turn")
    page.locator("tbody a").first.click()
    expect(page.locator("main")).to_contain_text("Hello from the code.")
    page.get_by_label("Message to the run").fill("Hello from the page.")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("main")).to_contain_text("Hello from the page.")
    expect(page.locator("#step-2")).to_contain_text("Hello again.")
