"""Keys, two people at once, and live updates. `test_matrix_actions` has every action."""

import re

import pytest
from playwright.sync_api import Page, expect
from tests.web.ui.agents import go_on
from tests.web.ui.journals import store_parked_run
from tests.web.ui.server import UIServer

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
def test_a_denial_with_a_reason_by_keyboard(any_server: UIServer, page: Page, waiting: str) -> None:
    page.goto(f"{any_server.url}/runs/{waiting}")
    page.keyboard.press("d")
    page.keyboard.type("not in the budget")
    page.get_by_role("button", name="Deny", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Denied.")
    any_server.wait_for(waiting, "done")
    [denied] = [each for each in any_server.call(any_server.app.result(waiting)).messages if hasattr(each, "call_id")]
    assert "not in the budget" in str(denied.content)


@on_sqlite
def test_two_people_answer_and_the_first_wins(any_server: UIServer, plain_page: Page, waiting: str) -> None:
    plain_page.goto(f"{any_server.url}/runs/{waiting}")
    other = plain_page.context.new_page()
    other.goto(f"{any_server.url}/runs/{waiting}")
    plain_page.get_by_role("button", name="Approve", exact=True).click()
    any_server.wait_for(waiting, "done")
    other.get_by_role("button", name="Approve", exact=True).click()
    expect(other.get_by_role("heading", name="Not found")).to_be_visible()


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
