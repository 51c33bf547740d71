"""The page of conversations: the list, the thread, its approval, queued messages, and the composer."""

import pytest
from playwright.sync_api import Page, expect
from tests.web.ui.agents import go_on
from tests.web.ui.journals import HOSTILE
from tests.web.ui.server import UIServer


def post(server: UIServer, agent: str, key: str, text: str, caller: str = "kim") -> str:
    conversation = server.app.conversation(agent, key, caller_id=caller)
    server.call(conversation.post(text))
    return f"{server.url}/conversations/{conversation.run_id}"


def test_a_message_is_answered_in_the_thread_and_enter_sends(any_server: UIServer, page: Page) -> None:
    url = post(any_server, "greeter", "kim", "Is the pool open?")
    page.goto(url)
    thread = page.get_by_role("region", name="kim")
    expect(thread.locator(".from-user")).to_contain_text("Is the pool open?")
    expect(thread.locator(".from-agent")).to_contain_text("Hello.")
    expect(thread.locator("#thread-head .status")).to_have_text("your turn")
    page.get_by_label("Message", exact=True).fill("And the sauna?")
    page.get_by_label("Message", exact=True).press("Enter")
    expect(thread.locator(".from-agent")).to_contain_text(["Hello.", "Hello again."])
    expect(thread.locator(".turn-mark")).to_contain_text(["turn 1", "turn 2"])
    talk = page.locator(".talk[aria-current=page]")
    expect(talk).to_contain_text("greeter: Hello again.")
    expect(talk).to_contain_text("2 turns")


def test_an_approval_is_given_where_it_arose(any_server: UIServer, page: Page) -> None:
    page.goto(post(any_server, "clerk", "lea", "Pay ann."))
    thread = page.get_by_role("region", name="lea")
    expect(thread.locator("#thread-head .status")).to_have_text("approval")
    expect(page.locator(".talk", has_text="lea")).to_contain_text("approval")
    expect(page.locator(".talk", has_text="lea")).to_contain_text("clerk · first turn")
    thread.get_by_role("button", name="Approve").first.click()
    expect(page.get_by_role("status")).to_contain_text("Approved")
    expect(thread.locator(".from-agent").last).to_contain_text("It is settled.")
    expect(thread.locator(".did > summary")).to_contain_text("1 call:")


def test_a_message_during_a_turn_asks_when_and_is_shown_as_queued(server: UIServer, page: Page) -> None:
    go_on.clear()
    page.goto(post(server, "writer", "max", "Write."))
    try:
        expect(page.locator("#draft")).to_contain_text("Once upon")
        expect(page.get_by_role("radio", name="steer this turn")).to_be_visible()
        page.get_by_label("Message", exact=True).fill("And then?")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".queued-msg")).to_have_text("And then?")
        expect(page.locator(".talk[aria-current=page]")).to_contain_text("1 queued")
    finally:
        go_on.set()
    expect(page.locator(".queued-msg")).to_have_count(0)
    expect(page.locator(".from-agent")).to_have_count(2)


def test_the_list_is_filtered_by_words(server: UIServer, page: Page) -> None:
    post(server, "greeter", "olga", "About a kettle.")
    page.goto(f"{server.url}/conversations")
    page.get_by_label("Filter conversations").fill("OLGA")
    page.get_by_label("Filter conversations").press("Enter")
    expect(page.locator(".talk")).to_have_count(1)
    expect(page.locator(".talk")).to_contain_text("olga")


@pytest.mark.parametrize("text", ["\n".join(HOSTILE)])
def test_a_hostile_conversation_is_text(server: UIServer, page: Page, text: str) -> None:
    page.goto(post(server, "greeter", HOSTILE[0], text, caller=HOSTILE[1]))
    expect(page.locator(".from-agent")).to_contain_text("Hello.")
    assert page.evaluate("window.hacked") is None
    expect(page.locator(".from-user").first).to_contain_text("<script>window.hacked = 1</script>")
    page.goto(f"{server.url}/conversations")
    expect(page.locator(".talk", has_text="<script>")).to_have_count(1)
    assert page.evaluate("window.hacked") is None
